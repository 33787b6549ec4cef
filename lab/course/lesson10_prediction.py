"""Checks of lesson 10: predict, measure, score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lab.course.check import exercise, judge
from lab.course.language import tr

Phases = Mapping[str, float]  # seconds of each phase of a step on one rank


@exercise("10.compute")
def compute(answer: object, *, phases: Phases, ranks: int) -> str:
    """Work for each sample is shared by the ranks, work for each parameter is not."""
    shared = phases["data"] + phases["forward"] + phases["backward"]
    right = _compute(phases, ranks)
    mistakes = {
        tr("The optimizer updates all parameters on every rank: what should make it shorter?"): (
            shared + phases["optimizer"]
        )
        / ranks,
        tr("Every rank computes only its share of the samples."): shared + phases["optimizer"],
        tr("Every rank reads only its share of the samples, too."): right
        + (1 - 1 / ranks) * phases["data"],
    }
    judge(answer, right, mistakes=mistakes, unit="s")
    return tr("{ms:.2f} ms before anything is sent.", ms=right * 1e3)


@exercise("10.turns")
def turns(answer: object, *, phases: Phases, ranks: int, all_reduce_s: float) -> str:
    """Without overlap the all-reduce is added to the compute time."""
    right = judge(answer, _compute(phases, ranks) + all_reduce_s, unit="s")
    return tr("{ms:.2f} ms if compute and communication take turns.", ms=right * 1e3)


@exercise("10.hidden")
def hidden(answer: object, *, phases: Phases, ranks: int, all_reduce_s: float) -> str:
    """Only the backward pass can hide communication: the longer of the two counts. What comes
    before both, and what after?
    """
    right = (
        (phases["data"] + phases["forward"]) / ranks
        + max(phases["backward"] / ranks, all_reduce_s)
        + phases["optimizer"]
    )
    judge(answer, right, unit="s")
    return tr(
        "{ms:.2f} ms if communication hides as well as it can. A measured step should lie between "
        "the two.",
        ms=right * 1e3,
    )


@exercise("10.error")
def error(
    answer: object, *, phases: Phases, ranks: int, all_reduce_s: float, measured: float
) -> str:
    """|predicted / measured - 1|, with the step of exercise 10.2 as the prediction."""
    predicted = _compute(phases, ranks) + all_reduce_s
    right = abs(predicted / measured - 1)
    mistakes = {
        tr("Relative to what was measured, not to what was predicted."): abs(
            measured / predicted - 1
        ),
    }
    judge(answer, right, mistakes=mistakes, unit="fraction")
    return tr(
        "{right:.1%} off. Published predictors of whole clusters claim 4 to 15 %.", right=right
    )


def _compute(phases: Phases, ranks: int) -> float:
    shared = phases["data"] + phases["forward"] + phases["backward"]
    return shared / ranks + phases["optimizer"]


@exercise("10.bandwidth")
def bandwidth(answer: object, *, one_s: float, two_s: float, gradient_bytes: float) -> str:
    """The extra time on two GPUs is the all-reduce; a rank sends 2 (N - 1)/N times the gradients in
    it.
    """
    right = gradient_bytes / (two_s - one_s)
    mistakes = {
        tr("With two ranks 2 (N - 1)/N is 1, not 2."): 2 * right,
        tr("The step holds compute too: only its growth is communication."): gradient_bytes / two_s,
    }
    judge(answer, right, mistakes=mistakes, unit="bytes/s")
    return tr(
        "{rate:.1f} GB/s, if nothing hides: PCIe without a direct path between the GPUs.",
        rate=right / 1e9,
    )


@exercise("10.score")
def score(answer: object, *, predicted: Sequence[float], measured: Sequence[float]) -> str:
    """The mean over the rows of |predicted / measured - 1|."""
    right = float(np.mean(np.abs(np.array(predicted) / np.array(measured) - 1)))
    judge(answer, right, unit="fraction")
    return tr(
        "{right:.1%} on rows that the fit never saw: that is the number to state with every "
        "prediction of it.",
        right=right,
    )
