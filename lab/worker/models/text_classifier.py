"""Transformer encoders that classify texts: the lab's own, and DistilBERT from a user's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lab.config import models
from lab.errors import InputError, LabError
from lab.perfmodel.flops import DISTILBERT_HEAD
from lab.worker.models.classifier import Classifier, freeze, import_torchvision
from lab.worker.models.gpt import Block, init_weights


class TextClassifier(Classifier):
    """GPT-2's blocks without the causal mask, the mean over a text's tokens, a linear head."""

    def __init__(
        self, config: models.TextClassifier, *, vocab_size: int, classes: int, pad: int = 0
    ) -> None:
        super().__init__()
        self.pad = pad
        self.embedding = nn.Embedding(vocab_size, config.width)
        self.positions = nn.Embedding(config.block_size, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, classes)
        self.apply(init_weights)

    def logits(self, inputs: Tensor) -> Tensor:
        """Scores (samples, classes) of tokens (samples, tokens); padding changes nothing."""
        is_text = not_padding(inputs, self.pad)
        positions = self.positions(torch.arange(inputs.shape[1], device=inputs.device))
        x = self.dropout(self.embedding(inputs) + positions)
        for block in self.blocks:
            x = block(x, is_text[:, None, None, :])
        weights = is_text / is_text.sum(dim=1, keepdim=True)
        pooled = torch.einsum("st,std->sd", weights.to(x.dtype), self.norm(x))
        return self.head(pooled)


def not_padding(tokens: Tensor, pad: int) -> Tensor:
    """True where a token is text, (samples, tokens)."""
    is_text = tokens != pad
    is_text[:, 0] = True  # so that an empty text also has a mean
    return is_text


class DistilBERT(Classifier):
    """A folder's encoder with transformers' classification head, initialized at random."""

    def __init__(self, config: models.DistilBERT, *, folder: Path, classes: int, pad: int) -> None:
        super().__init__()
        self.pad = pad
        self.network = _load(folder, classes, config.dropout)
        freeze(self.network, config.trainable, head=DISTILBERT_HEAD)

    def logits(self, inputs: Tensor) -> Tensor:
        """Scores (samples, classes) of tokens (samples, tokens)."""
        mask = not_padding(inputs, self.pad)
        return self.network(input_ids=inputs, attention_mask=mask).logits


def _load(folder: Path, classes: int, dropout: float | None) -> nn.Module:
    # Before transformers, whose import would fail with a broken torchvision.
    import_torchvision()
    try:
        from transformers import DistilBertForSequenceClassification
    except ImportError as error:
        raise LabError(
            f"DistilBERT needs transformers ({error}): pip install 'scaling-lab[encoders]'"
        ) from None
    names = ("dropout", "attention_dropout", "seq_classif_dropout")
    rates: dict[str, Any] = {} if dropout is None else dict.fromkeys(names, dropout)
    try:
        network: nn.Module = DistilBertForSequenceClassification.from_pretrained(
            folder,
            num_labels=classes,
            # Nothing is downloaded and nothing of the folder is executed.
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            **rates,
        )
    except (OSError, ValueError, RuntimeError) as error:
        what = f"{folder} cannot be loaded: {error}"
        raise InputError.of("model", "weights", what) from None
    return network
