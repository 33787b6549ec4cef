"""A transformer encoder that says what a text is about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lab.config import models
from lab.errors import InputError, LabError, Problem
from lab.perfmodel.flops import DISTILBERT_HEAD
from lab.worker.models.classifier import Classifier, freeze, import_torchvision
from lab.worker.models.gpt import Block, init_weights


class TextClassifier(Classifier):
    """Blocks as in GPT-2 in which each token sees all others, the mean over a text's tokens, a linear head."""

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
        seen = not_padding(inputs, self.pad)
        x = self.dropout(
            self.embedding(inputs)
            + self.positions(torch.arange(inputs.shape[1], device=inputs.device))
        )
        for block in self.blocks:
            x = block(x, seen[:, None, None, :])
        shares = seen / seen.sum(dim=1, keepdim=True)
        pooled = torch.einsum("st,std->sd", shares.to(x.dtype), self.norm(x))
        scores: Tensor = self.head(pooled)
        return scores


def not_padding(tokens: Tensor, pad: int) -> Tensor:
    """True where a token is text, (samples, tokens); the first one always is, so that an empty text has a mean."""
    seen = tokens != pad
    seen[:, 0] = True
    return seen


class DistilBERT(Classifier):
    """The encoder of a folder with transformers' classification head, which starts from random weights."""

    def __init__(self, config: models.DistilBERT, *, folder: Path, classes: int, pad: int) -> None:
        super().__init__()
        self.pad = pad
        self.network = _load(folder, classes, config.dropout)
        freeze(self.network, config.trainable, head=DISTILBERT_HEAD)

    def logits(self, inputs: Tensor) -> Tensor:
        """Scores (samples, classes) of tokens (samples, tokens)."""
        scores: Tensor = self.network(
            input_ids=inputs, attention_mask=not_padding(inputs, self.pad)
        ).logits
        return scores


def _load(folder: Path, classes: int, dropout: float | None) -> nn.Module:
    import_torchvision()  # a torchvision that cannot be imported would take transformers along
    try:
        from transformers import DistilBertForSequenceClassification
    except ImportError as error:
        raise LabError(
            f"DistilBERT needs transformers ({error}): pip install 'scaling-lab[encoders]'"
        ) from None
    rates: dict[str, Any] = (
        {}
        if dropout is None
        else dict.fromkeys(("dropout", "attention_dropout", "seq_classif_dropout"), dropout)
    )
    try:
        network: nn.Module = DistilBertForSequenceClassification.from_pretrained(
            folder,
            num_labels=classes,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            **rates,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(
            "model", [Problem("weights", f"{folder} cannot be loaded: {error}")]
        ) from None
    return network
