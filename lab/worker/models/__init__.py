"""The models that the lab trains, called with inputs and targets for the mean loss."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend

from lab.config import datasets, models
from lab.config.own import Script
from lab.config.run import Run
from lab.errors import InputError
from lab.perfmodel import flops
from lab.worker import own
from lab.worker.data.dataset import Dataset, FastLoader
from lab.worker.optim import DTYPES
from lab.worker.pretrained import gpt2_weights


def build(run: Run, dataset: Dataset) -> nn.Module:
    """The run's model on the CPU, with weights drawn with torch's current seed or published ones.

    Raises InputError for a vocabulary smaller than the data's or unusable weights, LabError for a
    missing package or a user's module that cannot be trained.
    """
    # A rank imports only the module of its own model.
    config = run.architecture
    if isinstance(config, models.CNN):
        from lab.worker.models.classifier import Vision

        return Vision(config, channels=dataset.channels, classes=dataset.classes)
    if isinstance(config, models.PythonModel):
        return own.build(config)
    assert not isinstance(config, Script), "a script builds its own"
    vocab_size = datasets.vocab_size_of(config, run.dataset)
    if vocab_size < dataset.vocab_size:
        what = f"{vocab_size} is less than the {dataset.vocab_size} tokens of the data"
        advice = "leave it out, or choose a smaller vocab_size of the data"
        raise InputError.of("model", "vocab_size", what, advice)
    if isinstance(config, models.TextClassifier):
        from lab.worker.models.classifier import TextClassifier

        return TextClassifier(
            config, vocab_size=dataset.vocab_size, classes=dataset.classes, pad=dataset.pad
        )
    if isinstance(config, models.DistilBERT):
        from lab.worker.models.classifier import DistilBERT

        assert dataset.pretrained is not None
        return DistilBERT(
            config, folder=dataset.pretrained, classes=dataset.classes, pad=dataset.pad
        )
    from lab.worker.models.gpt import GPT

    model = GPT(config, vocab_size=vocab_size)
    if dataset.pretrained is not None:
        model.load_state_dict(gpt2_weights(dataset.pretrained, config))
    return model


def flops_per_sample(run: Run, dataset: Dataset) -> float | None:
    """FLOPs of forward and backward for one sample; None for own code that torch cannot count."""
    config = run.architecture
    if not isinstance(config, models.PythonModel):
        return flops.flops_per_sample(run)
    batch = FastLoader(dataset.train, run=run, rank=0).micro_batch(0, 0)
    return own.counted_flops(config, *batch)


def attention_kernel(run: Run, device: torch.device) -> str | None:
    """The kernel that torch chooses for a GPT's attention, in torch's words; None for others.

    On an H100 and its successors, torch 2.11 and later prefer cuDNN's (pytorch/pytorch 162073).
    """
    config = run.architecture
    if not isinstance(config, models.GPT):
        return None
    shape = (1, config.heads, config.block_size, config.width // config.heads)
    dtype = DTYPES[run.stated.precision]
    heads = torch.empty(shape, device=device, dtype=dtype, requires_grad=True)
    choice = torch._fused_sdp_choice(heads, heads, heads, dropout_p=config.dropout, is_causal=True)
    return str(SDPBackend(choice).name).lower()


def depends_on_split(model: nn.Module, run: Run) -> str | None:
    """Why the loss curve depends on how ranks split the batch; None if it must not."""
    if isinstance(run.architecture, models.PythonModel):
        return own.depends_on_split(model) or None
    return run.architecture.depends_on_split or None


class Score(NamedTuple):
    """The mean loss of a batch and its share of correct classes, NaN for a language model."""

    loss: Tensor
    accuracy: Tensor


def score(model: nn.Module, inputs: Tensor, targets: Tensor) -> Score:
    """Loss and accuracy of one forward pass of a model in evaluation mode."""
    loss = model(inputs, targets)
    # Only a Classifier counts its correct answers.
    return Score(loss, getattr(model, "right", torch.full_like(loss, torch.nan)))
