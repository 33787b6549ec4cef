"""What a quantized model says against what its base says: errors of logits, perplexity, tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lab.inference import Share
from lab.worker.data.loading import Batch
from lab.worker.generate import generate
from lab.worker.group import share
from lab.worker.models.gpt import GPT
from lab.worker.timing import FloatArray

WRONG = 0.5  # a relative error of logits that rounding does not explain
_RESAMPLES = 2000


@dataclass(frozen=True)
class Fidelity:
    """Perplexities on held-out samples, and how far the quantized model agrees with its base."""

    base_perplexity: float
    perplexity: float
    ratio: Share
    same_tokens: Share


@torch.inference_mode()
def output_errors(base: GPT, quantized: GPT, inputs: Sequence[Tensor]) -> dict[str, float]:
    """The largest relative error of logits on any rank by shape of the input, infinite where they are not finite.

    Kernels differ by shape, and one was seen that is wrong for one shape alone. All ranks must call it.
    """
    errors: dict[str, float] = {}
    for tokens in inputs:
        expected, found = base(tokens).float(), quantized(tokens).float()
        error = float((found - expected).norm() / expected.norm())
        shape = "x".join(map(str, tokens.shape))
        errors[shape] = max(error if np.isfinite(error) else np.inf, errors.get(shape, 0.0))
    return {shape: max(rank[shape] for rank in share(errors)) for shape in errors}


@torch.inference_mode()
def fidelity(base: GPT, quantized: GPT, batches: Iterable[Batch], *, device: torch.device) -> Fidelity:
    """Compare on held-out batches, this rank's share of them; all ranks must call it.

    Intervals are percentile bootstraps over samples, the two models of a sample kept together (Efron, 1979).
    """
    rows: list[FloatArray] = []
    for batch in batches:
        inputs, targets = batch.to(device)
        expected, found = (model(inputs).float() for model in (base, quantized))
        losses = [
            functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none").mean(dim=1)
            for logits in (expected, found)
        ]
        same = (expected.argmax(dim=-1) == found.argmax(dim=-1)).float().mean(dim=1)
        rows.append(torch.stack([*losses, same], dim=1).double().cpu().numpy())
    samples = np.concatenate([part for part in share(np.concatenate(rows) if rows else np.zeros((0, 3))) if len(part)])
    of_base, of_quantized, same_tokens = samples.T
    change = _mean(of_quantized - of_base)
    low, high = (None if bound is None else float(np.exp(bound)) for bound in (change.low, change.high))
    return Fidelity(
        base_perplexity=float(np.exp(of_base.mean())),
        perplexity=float(np.exp(of_quantized.mean())),
        ratio=Share(value=float(np.exp(change.value)), low=low, high=high),
        same_tokens=_mean(same_tokens),
    )


def generated_alike(base: GPT, quantized: GPT, prompts: Tensor, *, new_tokens: int) -> float:
    """The share of greedily generated tokens that are the same, over all ranks."""
    expected, found = (generate(model, prompts, new_tokens=new_tokens) for model in (base, quantized))
    return float(np.mean(share(float((expected == found).float().mean()))))


def _mean(values: FloatArray) -> Share:
    """The mean with its percentile-bootstrap interval, none for less than two values."""
    if len(values) < 2:
        return Share(value=float(values.mean()), low=None, high=None)
    drawn = np.random.default_rng(0).integers(0, len(values), size=(_RESAMPLES, len(values)))
    low, high = np.percentile(values[drawn].mean(axis=1), [2.5, 97.5])
    return Share(value=float(values.mean()), low=float(low), high=float(high))
