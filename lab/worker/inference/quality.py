"""What a quantized model says against what its base says: errors of logits, perplexity and tokens, or accuracy and classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lab.records.inference import Share
from lab.records.statistics import bootstrap_interval
from lab.worker.data.loader import Batch
from lab.worker.distributed import all_gather_object
from lab.worker.inference.generate import generate
from lab.worker.measure.clock import FloatArray
from lab.worker.models.classifier import Classifier
from lab.worker.models.gpt import GPT

WRONG = 0.5  # a relative error of logits that rounding does not explain
_RESAMPLES = 2000


@dataclass(frozen=True)
class Fidelity:
    """Perplexities on held-out samples, and how far the quantized model agrees with its base."""

    base_perplexity: float
    perplexity: float
    ratio: Share
    same_tokens: Share


@dataclass(frozen=True)
class Agreement:
    """Accuracies on held-out samples, and how far the quantized classifier agrees with its base."""

    samples: int
    base_accuracy: float
    accuracy: float
    change: Share
    same_classes: Share


@torch.inference_mode()
def output_errors(
    base: nn.Module, quantized: nn.Module, inputs: Sequence[Tensor]
) -> dict[str, float]:
    """The largest relative error of logits on any rank by shape of the input, infinite where they are not finite.

    Kernels differ by shape, and one was seen that is wrong for one shape alone. All ranks must call it.
    """
    errors: dict[str, float] = {}
    for samples in inputs:
        expected, found = (_logits(model, samples) for model in (base, quantized))
        error = float((found - expected).norm() / expected.norm())
        shape = "x".join(map(str, samples.shape))
        errors[shape] = max(error if np.isfinite(error) else np.inf, errors.get(shape, 0.0))
    return {shape: max(rank[shape] for rank in all_gather_object(errors)) for shape in errors}


def _logits(model: nn.Module, samples: Tensor) -> Tensor:
    logits: Tensor = model.logits(samples) if isinstance(model, Classifier) else model(samples)
    return logits.float()


@torch.inference_mode()
def fidelity(
    base: GPT, quantized: GPT, batches: Iterable[Batch], *, device: torch.device
) -> Fidelity:
    """Compare on held-out batches, this rank's share of them; all ranks must call it.

    Intervals are percentile bootstraps over samples, the two models of a sample kept together (Efron, 1979).
    """
    rows: list[FloatArray] = []
    for batch in batches:
        inputs, targets = batch.to(device)
        expected, found = (_logits(model, inputs) for model in (base, quantized))
        losses = [
            functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none").mean(dim=1)
            for logits in (expected, found)
        ]
        same = (expected.argmax(dim=-1) == found.argmax(dim=-1)).float().mean(dim=1)
        rows.append(torch.stack([*losses, same], dim=1).double().cpu().numpy())
    of_base, of_quantized, same_tokens = _of_all_ranks(rows, columns=3)
    change = _mean(of_quantized - of_base)
    low, high = (
        None if bound is None else float(np.exp(bound)) for bound in (change.low, change.high)
    )
    return Fidelity(
        base_perplexity=float(np.exp(of_base.mean())),
        perplexity=float(np.exp(of_quantized.mean())),
        ratio=Share(value=float(np.exp(change.value)), low=low, high=high),
        same_tokens=_mean(same_tokens),
    )


@torch.inference_mode()
def agreement(
    base: Classifier, quantized: Classifier, batches: Iterable[Batch], *, device: torch.device
) -> Agreement:
    """Compare two classifiers on held-out batches as `fidelity` does language models; all ranks must call it."""
    rows: list[FloatArray] = []
    for batch in batches:
        inputs, targets = batch.to(device)
        expected, found = (_logits(model, inputs).argmax(dim=1) for model in (base, quantized))
        rows.append(
            torch.stack([expected == targets, found == targets, expected == found], dim=1)
            .double()
            .cpu()
            .numpy()
        )
    of_base, of_quantized, same_classes = _of_all_ranks(rows, columns=3)
    return Agreement(
        samples=len(of_base),
        base_accuracy=float(of_base.mean()),
        accuracy=float(of_quantized.mean()),
        change=_mean(of_quantized - of_base),
        same_classes=_mean(same_classes),
    )


def _of_all_ranks(rows: Sequence[FloatArray], *, columns: int) -> FloatArray:
    """The columns over the samples of all ranks, of which some may have had none."""
    mine = np.concatenate(rows) if rows else np.zeros((0, columns))
    return np.concatenate([part for part in all_gather_object(mine) if len(part)]).T


def generated_alike(base: GPT, quantized: GPT, prompts: Tensor, *, new_tokens: int) -> float:
    """The share of greedily generated tokens that are the same, over all ranks."""
    expected, found = (
        generate(model, prompts, new_tokens=new_tokens) for model in (base, quantized)
    )
    return float(np.mean(all_gather_object(float((expected == found).float().mean()))))


def _mean(values: FloatArray) -> Share:
    """The mean with its percentile-bootstrap interval, none for less than two values."""
    if len(values) < 2:
        return Share(value=float(values.mean()), low=None, high=None)
    low, high = bootstrap_interval([values], np.mean, resamples=_RESAMPLES)
    return Share(value=float(values.mean()), low=float(low), high=float(high))
