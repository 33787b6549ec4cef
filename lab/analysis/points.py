"""Lines of configurations that differ in their world size: the slowest rank's time of each, and its gain over the baseline."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lab.analysis.stages import residue

# Rates, times and ratios of a table are rounded, each by itself.
ROUNDING = 0.03


@dataclass(frozen=True)
class Point:
    """One configuration at one world size: a time in s per repeat, that of the slowest rank, and what else is known of it."""

    world_size: float
    strategy: str
    times: tuple[float, ...]
    means: tuple[float, ...]
    values: dict[str, float]
    labels: tuple[str, ...]

    @property
    def time(self) -> float:
        """Median over repeats of the slowest rank's time, NaN where unknown."""
        return float(np.median(self.times)) if self.times else math.nan

    @property
    def mean(self) -> float:
        """Median over repeats of the time that is quoted as the mean over ranks, NaN where none is."""
        return float(np.median(self.means)) if self.means else math.nan

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Where the time may lie: the range of repeats, or what the table gives; None where neither is known."""
        low, high, std = (self.values.get(name, math.nan) for name in ("low", "high", "std"))
        if len(self.times) > 1:
            return min(self.times), max(self.times)
        if low <= self.time <= high:
            return low, high
        # Two standard deviations hold 95 % of a normal spread.
        return (self.time - 2 * std, self.time + 2 * std) if std > 0 else None

    def __getattr__(self, name: str) -> float:
        values = self.__dict__.get("values")
        if values is None or name.startswith("__"):
            raise AttributeError(name)
        return float(values.get(name, math.nan))


@dataclass(frozen=True)
class Line:
    """Points that differ in their world size, in ascending order, and the column that holds their batch constant.

    `per` is what a time is of (step, epoch, total); `weak` says that the work of these grows with the ranks.
    """

    label: str
    points: tuple[Point, ...]
    batch: str | None
    per: str
    weak: bool = False

    def base(self, point: Point) -> Point | None:
        """The point of the smallest world size that this one is compared with; None where it is one itself or none fits."""
        smallest = [other for other in self.points if other.world_size == self.points[0].world_size]
        if point.world_size == self.points[0].world_size:
            return None
        for fits in (
            [other for other in smallest if other.strategy == point.strategy],
            [other for other in smallest if residue(other.strategy) == residue(point.strategy)],
            [other for other in smallest if not residue(other.strategy)],
            smallest,
        ):
            if len(fits) == 1:
                return fits[0]
        return None

    def gain(self, point: Point, *, means: bool = False) -> float:
        """Work per time relative to the baseline; NaN where it cannot be told. With `means` by the means over ranks."""
        base = self.base(point)
        if base is None:
            return math.nan
        here, there = (point.mean, base.time if math.isnan(base.mean) else base.mean) if means else (point.time, base.time)
        if math.isfinite(here) and math.isfinite(there) and here > 0:
            return there / here * self.work(point, base)
        return point.rate / base.rate if base.rate > 0 and not means else math.nan

    def work(self, point: Point, base: Point) -> float:
        """How many times the baseline's samples the time of this point stands for.

        Those of a step are its batch. Others are the same samples, but in weak scaling, said or seen from rates times times.
        """
        if self.per == "step":
            ratio = point.global_batch_size / base.global_batch_size if base.global_batch_size else math.nan
            return ratio if math.isfinite(ratio) else 1.0
        ranks = point.world_size / base.world_size
        done = point.rate * point.time / (base.rate * base.time) if base.rate * base.time > 0 else math.nan
        if abs(done / ranks - 1) < ROUNDING:
            return done
        return ranks if self.weak else 1.0

    def bounds(self, point: Point) -> tuple[float, float] | None:
        """Where the gain may lie by the ranges of both times; None where one of them has none."""
        base = self.base(point)
        if base is None or point.bounds is None or base.bounds is None or point.bounds[0] <= 0 or base.bounds[0] <= 0:
            return None
        work = self.work(point, base)
        return base.bounds[0] / point.bounds[1] * work, base.bounds[1] / point.bounds[0] * work

    def ideal(self, point: Point) -> float:
        """The gain that the number of ranks allows: N over the baseline's."""
        base = self.base(point)
        return point.world_size / base.world_size if base is not None else 1.0
