"""Checks of lesson 03: distributed SGD equals plain SGD, and what it sends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lab.course.check import exercise, judge, number, require
from lab.course.language import tr

TOLERANCE = 2e-4  # relative, between losses of the same SGD


@exercise("03.average")
def average(answer: object, *, gradients: Sequence[float], samples: Sequence[int]) -> str:
    """A rank's mean stands for as many samples as the rank had: weight the means by it."""
    right = float(np.average(gradients, weights=samples))
    plain = float(np.mean(gradients))
    mistakes = {
        tr(
            "This is the plain mean, right only if all ranks have the same number of samples."
        ): plain,
        tr("That is the sum."): sum(gradients),
    }
    judge(answer, right, mistakes=mistakes, within=0.001)
    return tr(
        "DDP takes the plain mean: that is why every rank must have the same number of samples, "
        "and why an incomplete last batch is left out."
    )


@exercise("03.tensors")
def tensors(answer: object, *, layers: int) -> str:
    """Count the tensors of a layer (each norm and matrix has a weight and a bias), then those of
    the embeddings and of the last norm.
    """
    right = _tensors(layers)
    mistakes = {
        tr("Embeddings (2) and the last norm (weight and bias) are tensors too."): 12 * layers,
        tr("Each norm and matrix has a bias."): 6 * layers + 3,
    }
    judge(answer, right, mistakes=mistakes, within=0)
    return tr(
        "{right} calls in every step, most of them for the few numbers of a norm or a bias.",
        right=right,
    )


@exercise("03.bytes")
def gradient_bytes(answer: object, *, parameters: int) -> str:
    """Every parameter has one gradient, of 4 bytes in fp32."""
    right = 4.0 * parameters
    mistakes = {
        tr("A gradient has 4 bytes."): right / 4,
        tr("Only gradients travel, not the optimizer's moments."): 4 * right,
    }
    judge(answer, right, mistakes=mistakes, unit="bytes", within=0.001)
    return tr("{size:.2f} MB in every step, for any batch size.", size=right / 1e6)


@exercise("03.latency")
def latency(answer: object, *, layers: int, alpha_s: float) -> str:
    """Every call costs alpha once, whatever it carries; flat makes one call instead of one per
    tensor.
    """
    calls = _tensors(layers)
    right = (calls - 1) * alpha_s
    judge(
        answer,
        right,
        mistakes={tr("One call remains."): calls * alpha_s},
        unit="s",
        within=0.005,
    )
    return tr("{ms:.1f} ms in each step, of latency alone.", ms=right * 1e3)


def _tensors(layers: int) -> int:
    return 12 * layers + 4


@exercise("03.losses")
def losses(answer: object, *, curves: Sequence[Sequence[float]]) -> str:
    """max over the steps of |a/b - 1|, for two lists of equal length."""
    reference = np.array(curves[0])
    right = max(float(np.abs(np.array(curve) / reference - 1).max()) for curve in curves[1:])
    value = number(answer)
    require(abs(value - right) <= 0.02 * right + 1e-9)
    require(
        right < TOLERANCE,
        "Your calculation is right, but {right:.1e} is too much: these runs do not train the "
        "same model.",
        right=right,
    )
    return tr(
        "{right:.1e}, nothing but rounding: the same SGD, so only times need comparing.",
        right=right,
    )


@exercise("03.hidden")
def hidden(answer: object, *, total_s: float, exposed_s: float) -> str:
    """What is hidden is total minus exposed; divide it by the total."""
    right = 1 - exposed_s / total_s
    if abs(number(answer) - right) > 0.01:  # of all communication: the share itself may be 0
        exposed = {tr("That is the share that is exposed."): exposed_s / total_s}
        judge(answer, right, mistakes=exposed, unit="fraction")
    return tr("{right:.0%} of the communication cost no time of its own.", right=max(right, 0.0))
