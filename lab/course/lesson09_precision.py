"""Checks of lesson 09: fewer bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.course.check import exercise, judge, number, require
from lab.course.language import tr

LARGEST = 127  # of a signed byte, the same on both sides of zero


@exercise("09.epsilon")
def epsilon(answer: object) -> str:
    """bf16 keeps 7 bits after the point: what is the last of them worth, next to a 1?"""
    mistakes = {
        tr("That is fp16, which keeps 10 bits."): 2.0**-10,
        tr("That is fp32, which keeps 23 bits."): 2.0**-23,
        tr("The exponent has 8 bits, the mantissa 7."): 2.0**-8,
    }
    judge(answer, 2.0**-7, mistakes=mistakes, within=0.001)
    return tr(
        "An update of less than half of that, 0.4 % of a weight of 1, changes nothing: the master "
        "copy of the weights stays in fp32."
    )


@exercise("09.speedup")
def speedup(answer: object, *, fp32_s: float, bf16_s: float) -> str:
    """The step in fp32 over the step in bf16."""
    right = fp32_s / bf16_s
    mistakes = {tr("That is the inverse: above 1 means that bf16 is faster."): 1 / right}
    judge(answer, right, mistakes=mistakes)
    return tr(
        "{right:.2f} times as fast; where the repeats of the two overlap, call neither the faster "
        "one.",
        right=right,
    )


@exercise("09.loss-scale")
def loss_scale(answer: object, *, gradient: float) -> str:
    """The least power of two that lifts the gradient to 2**-14 or above, fp16's smallest normal
    number.
    """
    right = 2.0 ** math.ceil(math.log2(2.0**-14 / gradient))
    mistakes = {
        tr("With that it is still below 2**-14, where fp16 loses bits."): right / 2,
        tr("Give the power of two, not its exponent."): math.log2(right),
        tr("2**-24 is the smallest of all numbers; it has a single bit left."): 2.0
        ** math.ceil(math.log2(2.0**-24 / gradient)),
    }
    judge(answer, right, mistakes=mistakes, within=0)
    return tr(
        "{right:.0f}. Whatever is larger than 65504 divided by that overflows, so a trainer looks "
        "for the largest scale at which nothing does, and divides before the update.",
        right=right,
    )


@exercise("09.quantize")
def quantize(answer: object) -> str:
    """By what must the row be divided for its largest magnitude to become 127? The integers are
    the quotients, each rounded to the nearest.
    """
    require(callable(answer), "Give the function itself, without parentheses.")
    draw = np.random.default_rng(9)
    for row in (
        draw.normal(size=64),
        100 * draw.normal(size=8),
        np.array([0.5, -2.0, 1.0]),
        np.array([3.0, -1.0]),
    ):
        _try(answer, row)  # type: ignore[arg-type]
    return tr(
        "No value is off by more than half a scale. One outlier makes the scale of its whole row "
        "coarse."
    )


def _try(quantized: Callable[[object], Any], row: object) -> None:
    values: npt.NDArray[np.float64] = np.asarray(row, dtype=np.float64)
    result = quantized(values.copy())  # it may work in place
    require(
        isinstance(result, tuple | list) and len(result) == 2,
        "Return two things: the integers and the scale.",
    )
    scale = number(result[1])
    q: npt.NDArray[np.float64] = np.asarray(result[0], dtype=np.float64)
    require(q.shape == values.shape, "There must be an integer for every value.")
    require(
        bool((q == np.round(q)).all()),
        "The first part must be whole numbers: round, do not truncate.",
    )
    require(
        bool((np.abs(q) <= LARGEST).all()), "Some integers are beyond {LARGEST}.", LARGEST=LARGEST
    )
    require(
        bool(np.abs(q).max() == LARGEST),
        "The largest value of a row should become {LARGEST}: is the scale that of this row?",
        LARGEST=LARGEST,
    )
    half = 0.5001 * float(np.abs(values).max()) / LARGEST
    worst = float(np.abs(q * scale - values).max())
    turned = worst > half and scale != 0 and np.abs(q / scale - values).max() <= half
    require(not turned, "That is the inverse of the scale: the row is the integers times it.")
    require(worst <= half, "A value is off by more than half a scale: round to the nearest.")


@exercise("09.size")
def size(answer: object, *, rows: int, columns: int) -> str:
    """A byte for each weight, and 4 bytes for the scale of each row; fp32 takes 4 bytes for each
    weight.
    """
    right = 4 * rows * columns / (rows * columns + 4 * rows)
    judge(answer, right, mistakes={tr("The scales need memory too."): 4.0}, within=0.003)
    return tr("{right:.2f} times smaller.", right=right)


@exercise("09.decode")
def decode(answer: object, *, parameters: float, bytes_per_weight: float, bandwidth: float) -> str:
    """Every weight is read once for a token: bandwidth over the bytes of all weights."""
    right, in_fp32 = bandwidth / (parameters * bytes_per_weight), bandwidth / (4 * parameters)
    mistakes = {
        tr("Those are the bytes of fp32: how many does a weight have here?"): in_fp32,
        tr("That is the inverse: these are seconds per token."): 1 / right,
    }
    judge(answer, right, mistakes=mistakes, within=0.01)
    return tr(
        "At most {right:.0f} tokens/s for one sequence, however fast the arithmetic is.",
        right=right,
    )


@exercise("09.perplexity")
def perplexity(answer: object, *, base: float, quantized: float) -> str:
    """Perplexity of the quantized model over that of the base."""
    right = quantized / base
    judge(answer, right, mistakes={tr("That is the inverse."): base / quantized}, within=0.0005)
    values = {"right": right, "apart": abs(right - 1)}
    if right > 1:
        apart = tr("{right:.4f}: on held-out text {apart:.2%} higher than the base's", **values)
    else:
        apart = tr("{right:.4f}: on held-out text {apart:.2%} lower than the base's", **values)
    return tr(
        "{apart}, and lower is better. Read its interval before you call it free, or a gain.",
        apart=apart,
    )
