"""The models that the lab trains."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from lab.config import datasets, models
from lab.config.run import Run
from lab.errors import InputError, Problem
from lab.worker.data.dataset import Dataset
from lab.worker.models.classifier import Classifier
from lab.worker.models.gpt import GPT
from lab.worker.models.text_classifier import DistilBERT, TextClassifier
from lab.worker.models.vision import Vision
from lab.worker.pretrained import gpt2_weights


def build(run: Run, dataset: Dataset) -> nn.Module:
    """The run's model on the CPU for this data, its weights drawn from torch's present seed, or those that were published.

    Called with inputs and targets, samples along the first axis, it answers with the mean loss; a Classifier has
    `logits` too. Raises InputError where the model's own vocabulary is too small for the data's, or its weights cannot
    be used, LabError where a package that it needs is not there.
    """
    config = run.architecture
    if isinstance(config, models.CNN):
        return Vision(config, channels=dataset.channels, classes=dataset.classes)
    own = datasets.vocab_size_of(config, run.dataset)
    if own < dataset.vocab_size:
        what = f"{own} is less than the {dataset.vocab_size} tokens of the data"
        raise InputError(
            "model",
            [
                Problem(
                    "vocab_size", what, "leave it out, or choose a smaller vocab_size of the data"
                )
            ],
        )
    if isinstance(config, models.TextClassifier):
        return TextClassifier(
            config, vocab_size=dataset.vocab_size, classes=dataset.classes, pad=dataset.pad
        )
    if isinstance(config, models.DistilBERT):
        assert dataset.pretrained is not None
        return DistilBERT(
            config, folder=dataset.pretrained, classes=dataset.classes, pad=dataset.pad
        )
    model = GPT(config, vocab_size=own)
    if dataset.pretrained is not None:
        model.load_state_dict(gpt2_weights(dataset.pretrained, config))
    return model


class Score(NamedTuple):
    """What a model makes of one batch: the mean loss, and the share of right classes, not a number for a language model."""

    loss: Tensor
    accuracy: Tensor


def score(model: nn.Module, inputs: Tensor, targets: Tensor) -> Score:
    """Loss and accuracy of one forward pass of a model in evaluation mode."""
    loss = model(inputs, targets)
    return Score(
        loss, model.right if isinstance(model, Classifier) else torch.full_like(loss, torch.nan)
    )
