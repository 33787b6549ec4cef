"""Prediction intervals from deviations that were estimated from few values, or from many."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LEVEL = 0.95
NORMAL_95 = 1.96  # standard deviations around the mean that cover LEVEL of a normal distribution
# Standard deviations between the quantiles at 10 and 90 % of a normal distribution.
P10_TO_P90 = 2.563
# Five processes that ran one step on their own cores differed by 3.5 %.
UNKNOWN_SPREAD = 0.035
# The standard deviation of a sample median relative to that of the mean, for normal values.
OF_MEDIAN = math.sqrt(math.pi / 2)
# The most that one competitor gets of a core that a rank wants for itself.
MOST_FOREIGN = 0.5


@dataclass(frozen=True)
class Deviation:
    """A relative standard deviation, and its degrees of freedom."""

    sd: float
    freedom: float = math.inf

    def times(self, factor: float) -> Deviation:
        """The same for a quantity that deviates this many times as much."""
        return Deviation(self.sd * factor, self.freedom)


EXACT = Deviation(0.0)


def half_width(deviations: Iterable[Deviation]) -> float:
    """Half width of the 95 % interval of a quantity with all of these independent deviations.

    Student's t with the degrees of freedom by Welch (1947) and Satterthwaite (1946).
    """
    from scipy.special import stdtrit

    parts = [part for part in deviations if part.sd > 0]
    if not parts:
        return 0.0
    variance = sum(part.sd**2 for part in parts)
    # A sum of few degrees of freedom: an infinite part adds nothing to it.
    inverse = sum(part.sd**4 / part.freedom for part in parts) / variance**2
    freedom = min(1 / inverse if inverse else math.inf, 1e6)
    return float(stdtrit(freedom, 0.5 + LEVEL / 2)) * math.sqrt(variance)


def spread(groups: Iterable[Sequence[float]]) -> Deviation | None:
    """The pooled relative deviation within groups of values; None if all groups have one value.

    It uses logarithms, because times of small and large steps deviate by similar shares.
    """
    squares, freedom = 0.0, 0
    for group in groups:
        logs = [math.log(value) for value in group]
        squares += sum((value - statistics.fmean(logs)) ** 2 for value in logs)
        freedom += max(len(logs) - 1, 0)
    return Deviation(math.sqrt(squares / freedom), freedom) if freedom else None


def of_processes(
    known: Deviation | None, *, basis: int, measured: int, noise: float = 1.0
) -> Deviation:
    """Deviation of the median over `measured` processes from that over `basis`, by their spread.

    What is predicted from the basis has `noise` times its deviation.
    """
    spread_of_one = known or Deviation(UNKNOWN_SPREAD, 4)

    def share(count: int) -> float:
        return (OF_MEDIAN if count > 2 else 1.0) ** 2 / count

    return spread_of_one.times(math.sqrt(noise**2 * share(basis) + share(measured)))


def of_foreign_load(share: float) -> Deviation:
    """Deviation of a step that lost a `share` of its core to others, and might run without them."""
    share = min(share, MOST_FOREIGN)
    return Deviation(share / (1 - share) / NORMAL_95)
