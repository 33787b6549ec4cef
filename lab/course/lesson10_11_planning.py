"""Checks of lessons 10 and 11: predictions and their scores, numbers of a compute-time proposal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lab.course.check import exercise, judge, require
from lab.course.language import tr

Phases = Mapping[str, float]  # seconds of each phase of a step on one rank
SECONDS_PER_HOUR = 3600


@exercise("10.compute")
def compute(answer: object, *, phases: Phases, ranks: int) -> str:
    """Work for each sample is shared by the ranks, work for each parameter is not."""
    right, alone = _compute(phases, ranks), _compute(phases, 1)
    with_data = right + (1 - 1 / ranks) * phases["data"]
    mistakes = {
        tr("The optimizer updates all parameters on every rank: what should make it shorter?"): (
            alone / ranks
        ),
        tr("Every rank computes only its share of the samples."): alone,
        tr("Every rank reads only its share of the samples, too."): with_data,
    }
    judge(answer, right, mistakes=mistakes, unit="s")
    return tr("{ms:.2f} ms before anything is sent.", ms=right * 1e3)


@exercise("10.turns")
def turns(answer: object, *, phases: Phases, ranks: int, all_reduce_s: float) -> str:
    """Without overlap the all-reduce is added to the compute time."""
    right = _compute(phases, ranks) + all_reduce_s
    judge(answer, right, unit="s")
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


@exercise("11.report")
def report(answer: object, *, study: Path) -> str:
    """lab.report(study) returns the paths of the report: give its html."""
    require(isinstance(answer, str | Path), "Give a path.")
    path = Path(str(answer)).resolve()
    require(path.is_file(), "There is no file {name}.", name=path.name)
    require(path.is_relative_to(study.resolve()), "This is the report of another study.")
    require(path.suffix == ".html", "{name} is not the HTML file.", name=path.name)
    return tr(
        "{name}, {size:.0f} kB: one file that opens anywhere.",
        name=path.name,
        size=path.stat().st_size / 1e3,
    )


@exercise("11.stop")
def stop(answer: object, *, epoch_s: Mapping[int, float], threshold: float) -> str:
    """The largest number of GPUs whose efficiency is at least the threshold: device-seconds of the
    smallest row over device-seconds of this one.
    """
    right = _stop(epoch_s, threshold)
    fastest = min(epoch_s, key=lambda n: epoch_s[n])
    mistakes = {tr("The fastest is not the most economical: look at the efficiency."): fastest}
    judge(answer, right, mistakes=mistakes, within=0)
    return tr(
        "On {right} GPUs the efficiency is {efficiency:.0%}; that is where to stop if it must be "
        "at least {threshold:.0%}.",
        right=right,
        efficiency=_efficiency(epoch_s, right),
        threshold=threshold,
    )


@exercise("11.device-hours")
def device_hours(
    answer: object, *, epoch_s: Mapping[int, float], epochs: int, threshold: float
) -> str:
    """An epoch's seconds times the epochs are the wall time; each of N devices is occupied for
    it; an hour has 3600 s.
    """
    ranks = _stop(epoch_s, threshold)
    right = epoch_s[ranks] * epochs * ranks / SECONDS_PER_HOUR
    mistakes = {
        tr("These are hours of wall time: every device is charged."): right / ranks,
        tr("Give hours, not seconds."): right * SECONDS_PER_HOUR,
    }
    judge(answer, right, mistakes=mistakes)
    return tr("{hours:,.2f} device-hours.", hours=right)


@exercise("11.price")
def price(answer: object, *, epoch_s: Mapping[int, float], threshold: float) -> str:
    """Device-hours on N over device-hours on the fewest: the inverse of the efficiency."""
    ranks = _stop(epoch_s, threshold)
    right = 1 / _efficiency(epoch_s, ranks)
    mistakes = {
        tr("That is the efficiency; the price is its inverse."): 1 / right,
        tr("Each of N devices is charged."): epoch_s[ranks] / epoch_s[min(epoch_s)],
    }
    judge(answer, right, mistakes=mistakes)
    return tr(
        "The same training costs {right:.2f} times the device-hours and is {speedup:.2f} times as "
        "fast.",
        right=right,
        speedup=epoch_s[min(epoch_s)] / epoch_s[ranks],
    )


def _stop(epoch_s: Mapping[int, float], threshold: float) -> int:
    return max(n for n in epoch_s if _efficiency(epoch_s, n) >= threshold)


def _efficiency(epoch_s: Mapping[int, float], ranks: int) -> float:
    """Over the fewest devices that were measured."""
    fewest = min(epoch_s)
    return fewest * epoch_s[fewest] / (ranks * epoch_s[ranks])
