"""How well a quantized model agrees with its base: logits, perplexity and tokens, or classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lab.records.schema import Share
from lab.records.statistics import bootstrap_interval
from lab.worker.data.loader import Batch
from lab.worker.distributed import all_gather_object
from lab.worker.inference.generate import generate
from lab.worker.measure.clock import FloatArray
from lab.worker.models.classifier import Classifier
from lab.worker.models.gpt import GPT, Cache

MAX_OUTPUT_ERROR = 0.5  # a relative error of logits that rounding does not explain
_RESAMPLES = 2000
Pair = tuple[nn.Module, nn.Module]  # the base and its quantized copy


@torch.inference_mode()
def output_errors(models: Pair, inputs: Sequence[Tensor]) -> dict[str, float]:
    """The largest relative error of logits on any rank by input shape; all ranks must call it."""
    errors: dict[str, float] = {}
    for samples in inputs:  # kernels differ by shape, and some are wrong for only one shape
        expected, logits = (_logits(model, samples) for model in models)
        # Relative to all of them, as a single logit may be near zero.
        error = float((logits - expected).norm() / expected.norm())
        # NaN would pass every comparison with a limit.
        shape = "x".join(map(str, samples.shape))
        errors[shape] = max(error if np.isfinite(error) else np.inf, errors.get(shape, 0.0))
    return {shape: max(rank[shape] for rank in all_gather_object(errors)) for shape in errors}


@torch.inference_mode()
def cached_error(models: tuple[GPT, GPT], prompts: Tensor) -> float:
    """The largest relative error on any rank of a token's logits after a prompt in the cache."""
    expected, logits = (_after_prompt(model, prompts) for model in models)
    error = float((logits - expected).norm() / expected.norm())
    return max(all_gather_object(error if np.isfinite(error) else np.inf))


def _after_prompt(model: GPT, prompts: Tensor) -> Tensor:
    cache = Cache(len(model.blocks), prompts.shape[1])
    model.extend(prompts[:, :-1], cache)
    return model.extend(prompts[:, -1:], cache).float()


def _logits(model: nn.Module, samples: Tensor) -> Tensor:
    logits: Tensor = model.logits(samples) if isinstance(model, Classifier) else model(samples)
    return logits.float()  # bf16 would round their differences too


@torch.inference_mode()
def compare_language_models(
    models: Pair, batches: Iterable[Batch], *, device: torch.device
) -> dict[str, Any]:
    """Fields of `Inference` from this rank's held-out batches; all ranks must call it."""
    rows = [np.zeros((0, 3))]  # a rank may have no batch
    for batch in batches:
        inputs, targets = batch.to(device)
        expected, logits = (_logits(model, inputs) for model in models)
        losses = [
            functional.cross_entropy(of.transpose(1, 2), targets, reduction="none").mean(dim=1)
            for of in (expected, logits)
        ]
        same = (expected.argmax(dim=-1) == logits.argmax(dim=-1)).float().mean(dim=1)
        rows.append(torch.stack([*losses, same], dim=1).double().cpu().numpy())
    of_base, of_quantized, same_tokens = _on_all_ranks(rows)
    # Sample by sample, the difference between two models varies far less than either of them.
    change = _mean(of_quantized - of_base)
    # The ratio of two perplexities is the exponential of the mean difference of losses.
    low, high = (None if end is None else float(np.exp(end)) for end in (change.low, change.high))
    return {
        "base_perplexity": float(np.exp(of_base.mean())),
        "perplexity": float(np.exp(of_quantized.mean())),
        "perplexity_ratio": Share(value=float(np.exp(change.value)), low=low, high=high),
        "same_tokens": _mean(same_tokens),
    }


@torch.inference_mode()
def compare_classifiers(
    models: Pair, batches: Iterable[Batch], *, device: torch.device
) -> dict[str, Any]:
    """Fields of `Inference` from this rank's held-out batches; all ranks must call it."""
    rows = [np.zeros((0, 3))]
    for batch in batches:
        inputs, targets = batch.to(device)
        expected, classes = (_logits(model, inputs).argmax(dim=1) for model in models)
        same = torch.stack([expected == targets, classes == targets, expected == classes], dim=1)
        rows.append(same.double().cpu().numpy())
    of_base, of_quantized, same_classes = _on_all_ranks(rows)
    return {
        "held_out_samples": len(of_base),
        "base_accuracy": float(of_base.mean()),
        "accuracy": float(of_quantized.mean()),
        "accuracy_change": _mean(of_quantized - of_base),
        "same_classes": _mean(same_classes),
    }


def _on_all_ranks(rows: Sequence[FloatArray]) -> FloatArray:
    """The columns of the rows gathered from all ranks, some of which may have no samples."""
    return np.concatenate(all_gather_object(np.concatenate(rows))).T


def generated_alike(models: tuple[GPT, GPT], prompts: Tensor, *, new_tokens: int) -> float:
    """The share of greedily generated tokens that agree, over all ranks."""
    expected, tokens = (generate(model, prompts, new_tokens=new_tokens) for model in models)
    return float(np.mean(all_gather_object(float((expected == tokens).float().mean()))))


def _mean(values: FloatArray) -> Share:
    """The mean with its bootstrap interval, or without one for fewer than two values."""
    if len(values) < 2:
        return Share(value=float(values.mean()), low=None, high=None)
    low, high = bootstrap_interval([values], np.mean, resamples=_RESAMPLES)
    return Share(value=float(values.mean()), low=float(low), high=float(high))
