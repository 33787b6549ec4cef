"""Points of a curve: one configuration at one world size, over rows of all ranks and repeats."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from lab.analysis.audit.columns import NUMERIC, ROUNDED, residue
from lab.records.table import grouped

ROUNDINGS = tuple(f"{name}_rounding" for name in ROUNDED)
# From rows to points, in order.
CARRIED = dict.fromkeys((*NUMERIC, *ROUNDINGS, "total_steps", "foreign_share"))
FEW_EPOCHS = 3  # with fewer, the first counts too
CERTAINLY_MORE = 1.3
EXACT, FEWEST_EXACT, MOSTLY = 0.01, 3, 0.75  # quoted speedups that are ratios of the times
PRECISELY = 0.02  # how far apart others are then
QUOTED = 0.05  # rounding explains no more, once the last digits of both are allowed for
ROUNDING = 0.03  # a table rounds rates, times and ratios independently
INDEX = ("repeat", "epoch", "step")
Cells = dict[str, list[Any]]


def columns_of(rows: pd.DataFrame, groups: pd.Series) -> Cells:
    """The columns that points are made of, with only those carried numbers that are known; rows of
    one of the `groups` belong to one point.

    Rows that agree in `repeated` belong to one repeat, and in `measurement` to one time of it.
    """
    needed = {"time", "time_mean", "rate", "rank"}
    names = [*(name for name in CARRIED if name in rows), "rank"]
    numbers = rows[names].to_numpy(dtype=float).T
    known = ~np.isnan(numbers).all(axis=1)
    cells: Cells = {
        name: values.tolist()
        for name, values, some in zip(names, numbers, known, strict=True)
        if some or name in needed
    }
    measured = measurements(rows, groups)
    repeated = measured
    indexed = np.any([pd.notna(rows[name].to_numpy()) for name in INDEX], axis=0)
    if indexed.any():
        repeats = rows["repeat"].astype(object).where(rows["repeat"].notna(), "")
        repeated = repeats.where(groups.isin(groups[indexed]), measured).tolist()
    cells |= {"measurement": measured, "repeated": repeated}
    return cells | {name: rows[name].tolist() for name in ("repeat", "aggregate", "label")}


def point_of(
    curve: Curve, size: float, strategy: str, cells: Cells, places: Sequence[int], kind: str
) -> Point:
    """A point made of the rows at these places, of one world size and kind of observations."""
    apart = [row for row in places if not cells["aggregate"][row]]
    own, means, of_means = places, places, "time_mean"
    if kind == "table" and apart:
        own = apart
        if len(apart) < len(places):
            means, of_means = [row for row in places if cells["aggregate"][row]], "time"
    values = {}
    for name, column in cells.items():
        if name in CARRIED and (known := [v for row in places if (v := column[row]) == v]):
            # Most points of a large table are one row, whose median needs no sorting.
            values[name] = median(known) if len(known) > 1 else known[0]
    repeats = {repeat for row in own if pd.notna(repeat := cells["repeat"][row])}
    ranked = bool(_known(cells["rank"][row] for row in own))
    if len(places) > 1 and (len(own) <= 2 or (len(repeats) <= 1 and ranked)):
        times = cells["time"]
        slowest = max(own, key=lambda row: times[row] if times[row] == times[row] else -math.inf)
        of_slowest = {name: cells[name][slowest] for name in values}
        values |= {name: value for name, value in of_slowest.items() if value == value}
    quoted = _known(cells["speedup"][row] for row in own) if "speedup" in cells else []
    if quoted and max(quoted) > CERTAINLY_MORE * min(quoted):  # these are no repeats
        if any(abs(value - 1) < ROUNDING for value in quoted):
            values["programs"] = len(set(quoted))
        else:  # nor is the median of their times that of any
            values |= {"speedup": math.nan, "efficiency": math.nan}
    return Point(
        curve=curve,
        world_size=size,
        strategy=strategy,
        times=_per_repeat(cells["time"], own, cells),
        means=_per_repeat(cells[of_means], means, cells),
        rates=_per_repeat(cells["rate"], own, cells),
        values=values,
        labels=tuple(cells["label"][row] for row in places),
    )


def _known(values: Iterable[float]) -> list[float]:
    return [value for value in values if value == value]


def measurements(rows: pd.DataFrame, groups: pd.Series) -> list[str]:
    """The key that rows of one measurement share on all ranks of a group: the repeat, epoch and
    step, or the number among equal rows."""
    index = joined(rows, [name for name in INDEX if rows[name].count() > 0])
    alike: Counter[tuple[Any, ...]] = Counter()
    keys = []
    # Not grouped by pandas, which takes several times as long for the few rows of most tables.
    columns = (groups, index, rows["rank"].fillna(-1), rows["aggregate"])
    for row in zip(*(column.tolist() for column in columns), strict=True):
        keys.append(f"{row[1]}\x1f{alike[row]}")
        alike[row] += 1
    return keys


def joined(rows: pd.DataFrame, names: Sequence[str]) -> pd.Series:
    """The values of some columns joined into one string per row."""
    # Lists, as adding up series takes several times as long.
    cells = [map(str, rows[name].tolist()) for name in names]
    values = ["\x1f".join(values) for values in zip(*cells, strict=True)] if cells else ""
    return pd.Series(values, index=rows.index, dtype=object)


def _per_repeat(values: Sequence[float], rows: Iterable[int], cells: Cells) -> tuple[float, ...]:
    """The slowest rank of each measurement, then the median over epochs or steps of a repeat."""
    slowest: dict[object, dict[object, float]] = {}
    for row in rows:
        if (value := values[row]) == value:
            known = slowest.setdefault(cells["repeated"][row], {})
            measurement = cells["measurement"][row]
            known[measurement] = max(value, known.get(measurement, value))
    each = [list(known.values()) for known in slowest.values()]
    # The first epoch pays for caches and compilation.
    return tuple(median(part[1:] if len(part) >= FEW_EPOCHS else part) for part in each)


@dataclass(eq=False)
class Curve:
    """Points in ascending world size, and the batch column that is constant over them.

    `per` is what a time covers (step, epoch, total), `scaling` is as declared: strong, weak, none
    or "".
    """

    label: str
    batch: str | None
    per: str
    scaling: str
    points: list[Point] = field(default_factory=list)
    siblings: list[Curve] = field(default_factory=list, repr=False)  # at other batches

    @cached_property
    def smallest(self) -> list[Point]:
        """The points at the smallest world size that was measured: one out of memory was not."""
        measured = [point for point in self.points if point.is_measured] or self.points
        least = measured[0].world_size
        return list(takewhile(lambda point: point.world_size == least, measured))

    @cached_property
    def by_strategy(self) -> dict[str, list[Point]]:
        """The smallest points by their strategy."""
        return grouped((point.strategy, point) for point in self.smallest)

    @cached_property
    def by_residue(self) -> dict[frozenset[str], list[Point]]:
        """The smallest points by their strategy's words other than the number of ranks."""
        return grouped((residue(point.strategy), point) for point in self.smallest)

    @cached_property
    def ratios_over(self) -> float:
        """The ranks that quoted speedups and efficiencies are relative to: those of the smallest
        row if it quotes 1, or quotes none and the others match the table's gains; fewer if speedups
        and efficiencies agree on a number; else one rank.

        NaN if one rank has a speedup too, or the smallest rows quote 1 and others: then the
        reference is another program.
        """
        least = self.smallest[0].world_size
        if any(point.programs > 1 for point in self.smallest):
            return math.nan
        if fewer := self._quoted_over_fewer:
            return fewer
        for name in ("speedup", "efficiency"):
            quoted = [point for point in self.smallest if getattr(point, name) > 0]
            if any(
                abs(getattr(point, name) - 1) < ROUNDING
                and not abs(point.efficiency - 1) >= ROUNDING
                for point in quoted
            ):
                return math.nan if name == "speedup" and self._over_another else least
            if quoted:
                return math.nan if least == 1 and name == "speedup" else 1.0
        # A gain of 0 is the ratio of a tiny time and a huge one.
        ratios = (point.quoted_gain / (point.gain or math.nan) for point in self.points)
        own = [ratio for ratio in ratios if ratio > 0]
        near = [ratio for ratio in own if abs(ratio - 1) < ROUNDING]
        matched = own and (2 * len(near) >= len(own) or abs(float(np.median(own)) - 1) < ROUNDING)
        return least if matched else 1.0

    @property
    def _quoted_over_fewer(self) -> float:
        """The ranks that all speedups and efficiencies of two points or more are over, if these are
        fewer than were measured, such as the 4 of "speedup (vs 4 threads)"; else 0."""
        both = [point for point in self.points if point.speedup > 0 and point.efficiency > 0]
        over = [point.world_size * point.efficiency / point.speedup for point in both]
        ranks = float(np.round(median(over))) if len(over) > 1 else 0.0
        if not 1 < ranks < self.smallest[0].world_size:
            return 0.0
        near = all(
            abs(one / ranks - 1) < max(ROUNDING, point.speedup_rounding + point.efficiency_rounding)
            for one, point in zip(over, both, strict=True)
        )
        return ranks if near else 0.0

    @cached_property
    def grows(self) -> bool:
        """Whether most quoted speedups or efficiencies say that the work grows with the ranks: then
        they are N times the ratio of the times, or this ratio. Half are enough if the batch of each
        rank is fixed."""
        if self.scaling:
            return False
        known = []
        for point in self.points:
            if (base := point.base) is None or not base.time > 0:
                continue
            # Many baselines quote nothing of themselves.
            if point.speedup > 0 and not abs(base.speedup - 1) >= ROUNDING:
                known.append(point.speedup / point.ideal * point.time / base.time)
            elif point.efficiency > 0 and not abs(base.efficiency - 1) >= ROUNDING:
                known.append(point.efficiency * point.time / base.time)
        growing = [ratio for ratio in _known(known) if abs(ratio - 1) < ROUNDING]
        fixed = self.batch == "micro_batch_size" and 2 * len(growing) == len(known) > 0
        return fixed or len(growing) > max(1, len(known) / 2)

    @cached_property
    def quoted_within(self) -> float:
        """How far apart a quoted speedup and that of the times may be: less where most others are
        the same but for their last digits."""
        quoting = [point for point in self.points if point.speedup > 0 and point.gain > 0]
        gaps = [abs(point.speedup / point.gain - 1) for point in quoting]
        exact = sum(gap < EXACT for gap in gaps)
        return PRECISELY if exact >= max(FEWEST_EXACT, MOSTLY * len(gaps)) else QUOTED

    @property
    def _over_another(self) -> bool:
        """Whether more ranks are also quoted at 1 although they are far faster: then the quoted
        value is the speedup of another program over this one."""
        return any(point.speedup == 1 and point.gain > CERTAINLY_MORE for point in self.points)


@dataclass(eq=False)
class Point:
    """One configuration at one world size; medians in `values` are attributes, NaN if unknown.

    `times` holds the slowest rank's time in s for each repeat, `means` the quoted means over ranks,
    `rates` the work per second.
    """

    curve: Curve = field(repr=False)
    world_size: float
    strategy: str
    times: tuple[float, ...]
    means: tuple[float, ...]
    rates: tuple[float, ...]
    values: dict[str, float]
    labels: tuple[str, ...]

    def __getattr__(self, name: str) -> float:
        values = self.__dict__.get("values")
        if values is None or name.startswith("__"):
            raise AttributeError(name)
        return float(values.get(name, 0.0 if name.endswith("_rounding") else math.nan))

    @property
    def ranks(self) -> str:
        """The world size and the curve in words."""
        plural, label = "s" * (self.world_size != 1), self.curve.label
        return f"{self.world_size:g} rank{plural}" + (f" at {label}" if label else "")

    @property
    def is_measured(self) -> bool:
        """Whether the point has a time, a rate or a quoted ratio."""
        known = (self.time, self.rate, self.speedup, self.efficiency)
        return any(map(math.isfinite, known))

    @cached_property
    def time(self) -> float:
        """Median over repeats of the slowest rank's time."""
        return float(median(self.times)) if self.times else math.nan

    @cached_property
    def mean(self) -> float:
        """Median over repeats of the quoted mean over ranks."""
        return float(median(self.means)) if self.means else math.nan

    @cached_property
    def bounds(self) -> tuple[float, float] | None:
        """The range of the time over repeats, or as the table gives it; None if unknown."""
        if len(self.times) > 1:
            return min(self.times), max(self.times)
        if self.low <= self.time <= self.high:
            return self.low, self.high
        return _around(self.time, self.std)

    @property
    def rate_bounds(self) -> tuple[float, float] | None:
        """The range of the rate as the table gives it; None if unknown."""
        return _around(self.rate, self.rate_std)

    @cached_property
    def base(self) -> Point | None:
        """The point at the smallest world size to compare with, None if none or several fit."""
        smallest = self.curve.smallest
        if self.world_size <= smallest[0].world_size:
            return None
        own = residue(self.strategy)
        alone = smallest if smallest[0].world_size == 1 else []  # where strategies hardly differ
        for fits in (
            self.curve.by_strategy.get(self.strategy, []),
            self.curve.by_residue.get(own, []),
            self.curve.by_residue.get(frozenset(), []),
            alone,
        ):
            if len(fits) == 1:
                return None if fits[0].programs > 1 else fits[0]
        return None

    @property
    def over(self) -> float:
        """The number of ranks relative to the one that quoted ratios are based on."""
        return self.world_size / self.curve.ratios_over

    @property
    def quoted_gain(self) -> float:
        """The quoted speedup, else what a quoted efficiency makes of the ideal gain."""
        return self.speedup if self.speedup > 0 else self.efficiency * self.ideal

    @cached_property
    def ideal(self) -> float:
        """The gain that the number of ranks allows: N over the baseline's."""
        return self.world_size / self.base.world_size if self.base else 1.0

    def is_quoted_over(self, other: Point) -> bool:
        """Whether its quoted speedup is the ratio of the other's time to its own, or of rates."""
        speedup, time, rate, rounding = self._quoted
        _, other_time, other_rate, other_rounding = other._quoted
        margin = max(QUOTED, rounding + other_rounding)
        if time > 0 and other_time > 0 and abs(speedup * time / other_time - 1) < margin:
            return True
        return rate > 0 and other_rate > 0 and abs(speedup * other_rate / rate - 1) < margin

    @cached_property
    def _quoted(self) -> tuple[float, float, float, float]:
        """Its quoted numbers and their rounding; cached, as many points are compared with it."""
        return self.speedup, self.time, self.rate, self.rounding

    @property
    def rounding(self) -> float:
        """The rounding uncertainty of the time, or of the rate, as a share of it."""
        return self.time_rounding if self.times else self.rate_rounding

    @cached_property
    def work(self) -> float:
        """The samples that its time covers, relative to the baseline's.

        The samples of a step are its batch, if it is known. An epoch or a total has the same
        samples, except in weak scaling, which is declared or follows from the quoted speedups or
        from rate times time. NaN for a step without a batch whose scaling is declared as neither.
        """
        base = self.base
        if base is None:
            return math.nan
        if self.curve.per == "step":
            ratio = self.global_batch_size / (base.global_batch_size or math.nan)
            if math.isfinite(ratio):
                return ratio
        if self.curve.grows:
            return self.ideal
        done = base.rate * base.time
        ratio = self.rate * self.time / done if done > 0 else math.nan
        if abs(ratio / self.ideal - 1) < ROUNDING:
            return ratio
        if self.curve.scaling == "none" and self.curve.per == "step":
            return math.nan
        return self.ideal if self.curve.scaling == "weak" else 1.0

    @cached_property
    def gain(self) -> float:
        """Work per time relative to the baseline, NaN if unknown."""
        base = self.base
        if base is None:
            return math.nan
        if math.isfinite(base.time) and self.time > 0:
            return base.time / self.time * self.work
        return self.rate / base.rate if base.rate > 0 else math.nan

    @property
    def least_gain(self) -> float:
        """The gain if both numbers were rounded in its favour."""
        if self.base is None:
            return math.nan
        ends = (self.base.rounding, self.rounding)
        larger, smaller = ends if self.times else reversed(ends)
        return self.gain * (1 - larger) / (1 + smaller)

    @property
    def gain_of_means(self) -> float:
        """The gain computed from means over ranks, NaN if unknown."""
        if self.base is None or not self.mean > 0:
            return math.nan
        quoted = self.base.time if math.isnan(self.base.mean) else self.base.mean
        return quoted / self.mean * self.work

    @property
    def gain_bounds(self) -> tuple[float, float] | None:
        """The range of the gain, from the ranges of both times; None if one is unknown."""
        here, there = self.bounds, self.base.bounds if self.base else None
        if here is None or there is None or min(here[0], there[0]) <= 0:
            return None
        return there[0] / here[1] * self.work, there[1] / here[0] * self.work


def _around(value: float, std: float) -> tuple[float, float] | None:
    # Two standard deviations cover 95 % of a normal distribution.
    return (max(value - 2 * std, 0.0), value + 2 * std) if std > 0 else None
