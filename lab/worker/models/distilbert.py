"""DistilBERT as published, through transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lab import workloads
from lab.analysis.networks import DISTILBERT_HEAD
from lab.errors import InputError, LabError, Problem
from lab.worker.models.classifier import Classifier, freeze
from lab.worker.models.text_classifier import not_padding
from lab.worker.models.torchvision import import_torchvision


class DistilBERT(Classifier):
    """The encoder of a folder with transformers' classification head, which starts from random weights."""

    def __init__(self, config: workloads.DistilBERT, *, folder: Path, classes: int, pad: int) -> None:
        super().__init__()
        self.pad = pad
        self.network = _load(folder, classes, config.dropout)
        freeze(self.network, config.trainable, head=DISTILBERT_HEAD)

    def logits(self, inputs: Tensor) -> Tensor:
        """Scores (samples, classes) of tokens (samples, tokens)."""
        scores: Tensor = self.network(input_ids=inputs, attention_mask=not_padding(inputs, self.pad)).logits
        return scores


def _load(folder: Path, classes: int, dropout: float | None) -> nn.Module:
    import_torchvision()  # a torchvision that cannot be imported would take transformers along
    try:
        from transformers import DistilBertForSequenceClassification
    except ImportError as error:
        raise LabError(f"DistilBERT needs transformers ({error}): pip install 'scaling-lab[encoders]'") from None
    rates: dict[str, Any] = (
        {} if dropout is None else dict.fromkeys(("dropout", "attention_dropout", "seq_classif_dropout"), dropout)
    )
    try:
        network: nn.Module = DistilBertForSequenceClassification.from_pretrained(
            folder, num_labels=classes, local_files_only=True, use_safetensors=True, trust_remote_code=False, **rates
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError("model", [Problem("weights", f"{folder} cannot be loaded: {error}")]) from None
    return network
