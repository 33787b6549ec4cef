"""Checks of lesson 11: numbers of a compute-time proposal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lab.course.check import exercise, judge, require
from lab.course.language import tr

SECONDS_PER_HOUR = 3600


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
