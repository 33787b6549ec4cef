"""Anybody's results in one form: canonical columns, and curves of time over the number of ranks."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd

from lab.analysis.audit.columns import NUMERIC, residue
from lab.config.strategies import SETTINGS

# The batch that each kind of scaling holds.
HELD = {"strong": "global_batch_size", "weak": "micro_batch_size", "none": "global_batch_size"}
# How ranks work together: on one rank it means nothing, so that all its values share a baseline.
STRATEGY_KEYS = ("key:strategy", *(f"key:{name}" for name in SETTINGS))
REPEATED = {"key:seed"}  # runs of a table that differ in nothing else are repeats
BATCHES = {"global_batch_size": "batch", "batch": "batch", "micro_batch_size": "batch per rank"}
CARRIED = (*NUMERIC, "total_steps", "foreign_share")  # from rows to points
FEW_EPOCHS = 3  # fewer, and the first counts too
ROUNDING = 0.03  # rates, times and ratios of a table are rounded, each by itself


class UncheckedError(Exception):
    """A rule cannot be applied for lack of `args`."""


@dataclass(frozen=True)
class Observations:
    """Measurements in canonical columns.

    `frame` has the columns of `lab.analysis.audit.columns.COLUMNS`, NaN where unknown, times in s,
    sizes in bytes. `label` names a row, `aggregate` says that it stands for all ranks of others,
    columns that start with `key:` tell configurations apart. `given` are the names of the table's
    own columns by canonical name, `derived` columns that follow from others, `calibrated` bus
    bandwidths in bytes/s by world size, `per` what a time is of. `summarised` rows may stand for
    several repeats.
    """

    frame: pd.DataFrame
    kind: Literal["records", "table", "collectives"]
    per: Literal["step", "epoch", "total"] = "step"
    scaling: Literal["strong", "weak", "none"] | None = None
    baseline: Mapping[str, object] = field(default_factory=dict)
    calibrated: Mapping[int, float] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    derived: frozenset[str] = frozenset()
    assumptions: Sequence[str] = ()
    notes: Sequence[str] = ()
    summarised: bool = False

    @cached_property
    def known(self) -> set[str]:
        """Canonical columns that hold at least one value."""
        return set(self.frame.columns[self.frame.notna().any()])

    @property
    def keys(self) -> list[str]:
        """Columns that tell configurations apart, world size and batch aside."""
        return [name for name in self.frame.columns if name.startswith("key:")]

    @property
    def runs(self) -> pd.DataFrame:
        """Rows that stand for whole runs: of records those over all ranks, of a table every row."""
        return self.frame[self.frame["aggregate"]] if self.kind == "records" else self.frame

    def noted(self, pattern: str) -> re.Match[str] | None:
        """The first match of a pattern in the notes: a hint, never a measurement."""
        matches = (re.search(pattern, note, re.IGNORECASE) for note in self.notes)
        return next((match for match in matches if match), None)

    @property
    def noted_samples(self) -> float:
        """Samples of an epoch by the notes, NaN where they name none."""
        what = r"(\d[\d,]*)\s+(?:training\s+|train\s+)?(?:samples|examples|images|sequences)"
        match = self.noted(what)
        return float(match[1].replace(",", "")) if match else math.nan

    @cached_property
    def curves(self) -> list[Curve]:
        """The rows by configuration, as points over the world size.

        Raises UncheckedError for collectives.
        """
        if self.kind == "collectives":
            raise UncheckedError("training times")
        rows = self.frame[self.frame["world_size"].notna()]
        scaling = rows["scaling"].where(rows["scaling"].notna(), self.scaling or "").astype(str)
        groups = rows.groupby(scaling, sort=False)
        return [curve for kind, part in groups for curve in self._curves_of(part, str(kind))]

    def _curves_of(self, rows: pd.DataFrame, scaling: str) -> list[Curve]:
        """The curves of rows that declare one kind of scaling, or none ("")."""
        left_out = {*STRATEGY_KEYS, *(REPEATED if self.kind == "table" else ())}
        keys = [key for key in self.keys if key not in left_out]
        batch = _batch_key(self, rows, keys, scaling)
        names = [*keys, batch] if batch else keys
        varied = [name for name in names if rows[name].nunique(dropna=False) > 1]
        curves = []
        for _, group in rows.groupby(_joined(rows, names), sort=False):
            curve = Curve(_label(group.iloc[0], varied), batch, self.per, scaling)
            group = group.sort_values("world_size", kind="stable")
            parts = group.groupby(["world_size", _strategies(group)], sort=False)
            for (size, strategy), part in parts:
                curve.points.append(_point(curve, float(str(size)), str(strategy), part, self))
            curves.append(curve)
        return curves

    @property
    def points(self) -> list[Point]:
        """The points of all curves."""
        return [point for curve in self.curves for point in curve.points]

    @property
    def compared(self) -> list[tuple[Point, Point]]:
        """Each point that has a baseline, with it."""
        return [(point, point.base) for point in self.points if point.base is not None]


def _joined(rows: pd.DataFrame, names: Sequence[str]) -> pd.Series:
    """The values of some columns as one text for each row."""
    joined = pd.Series("", index=rows.index)
    for name in names:
        joined = joined + "\x1f" + rows[name].map(str)
    return joined


def _label(row: pd.Series, names: Sequence[str]) -> str:
    parts = []
    for name in names:
        value = row[name]
        if value != value or value == "":
            continue
        if name in BATCHES:
            parts.append(f"{BATCHES[name]} {value:g}")
        elif re.fullmatch(r"[-+.\de]+|true|false|yes|no|none", value, re.IGNORECASE):
            parts.append(f"{name.removeprefix('key:')} {value}")
        else:
            parts.append(value)
    return ", ".join(parts)


def _batch_key(
    observations: Observations, rows: pd.DataFrame, keys: Sequence[str], scaling: str
) -> str | None:
    """The batch that is constant over world sizes in most rows: the one that the declared scaling
    holds before others, given ones before derived. Where none is, what should be."""
    held = HELD.get(scaling)
    best, most = held, 0.5
    known = [name for name in BATCHES if rows[name].notna().any()]
    for name in sorted(known, key=lambda name: (name != held, name in observations.derived)):
        sizes = rows["world_size"].groupby(_joined(rows, [*keys, name]))
        several = sizes.transform("nunique") > 1
        score = float((several & (sizes.transform("min") == rows["world_size"].min())).mean())
        if score > most:
            best, most = name, score
            if name == held:
                break
    return best


def _strategies(group: pd.DataFrame) -> pd.Series:
    """The strategy of each row, with those of its settings that differ."""
    strategies = group.get("key:strategy", pd.Series("", index=group.index))
    for key in STRATEGY_KEYS[1:]:
        if key in group and group[key].nunique() > 1:
            strategies = strategies + f", {key.removeprefix('key:')} " + group[key]
    return strategies.str.removeprefix(", ")


def measurements(rows: pd.DataFrame) -> pd.Series:
    """What is equal in rows of one measurement on all ranks: the repeat, epoch and step, or the
    number among equal rows."""
    names = [name for name in ("repeat", "epoch", "step") if rows[name].notna().any()]
    index = _joined(rows, names)
    again = rows.groupby([index, rows["rank"].fillna(-1), rows["aggregate"]]).cumcount()
    return index + "\x1f" + again.astype(str)


def largest(rows: pd.DataFrame, values: pd.Series) -> Any:
    """The row with the largest of some values."""
    place: Any = values[rows.index].fillna(-math.inf).idxmax()
    return rows.loc[place]


def _point(
    curve: Curve, size: float, strategy: str, rows: pd.DataFrame, observations: Observations
) -> Point:
    rows = rows.assign(_measurement=measurements(rows), _repeat=rows["repeat"].fillna(""))
    if not rows[["repeat", "epoch", "step"]].notna().any(axis=None):
        rows["_repeat"] = rows["_measurement"]
    own, means = rows, rows["time_mean"]
    if observations.kind != "records" and not rows["aggregate"].all():
        own = rows[~rows["aggregate"]]
        if observations.kind == "table" and rows["aggregate"].any():
            means = rows[rows["aggregate"]]["time"]
    values = rows[[name for name in CARRIED if name in rows]].median()
    if len(own) <= 2 or (own["rank"].notna().any() and own["repeat"].nunique() <= 1):
        slowest = largest(own, own["time"])
        values = slowest[values.index].astype(float).fillna(values)
    return Point(
        curve=curve,
        world_size=size,
        strategy=strategy,
        times=_per_repeat(own, own["time"]),
        means=_per_repeat(rows.loc[means.index], means),
        rates=_per_repeat(own, own["rate"]),
        values={str(name): value for name, value in values.items()},
        labels=tuple(rows["label"]),
    )


def _per_repeat(rows: pd.DataFrame, times: pd.Series) -> tuple[float, ...]:
    """The slowest rank of each measurement, then the median over epochs or steps of a repeat."""
    names = [rows["_repeat"], rows["_measurement"]]
    slowest = times.groupby(names, sort=False).max().dropna()
    return tuple(
        # The first epoch pays for caches and compilation.
        float((part.iloc[1:] if len(part) >= FEW_EPOCHS else part).median())
        for _, part in slowest.groupby(level=0, sort=False)
    )


@dataclass(eq=False)
class Curve:
    """Points in ascending world size, and the column that holds their batch constant.

    `per` is what a time is of (step, epoch, total), `scaling` what is declared: strong, weak, none
    or "".
    """

    label: str
    batch: str | None
    per: str
    scaling: str
    points: list[Point] = field(default_factory=list)

    @cached_property
    def ratios_over(self) -> float:
        """The ranks that quoted speedups and efficiencies are over: those of the smallest row where
        they are 1 in it, or its own gains where it quotes none; else one rank.

        NaN where one rank has a speedup too: then they are over another program.
        """
        least = self.points[0].world_size
        smallest = [point for point in self.points if point.world_size == least]
        for name in ("speedup", "efficiency"):
            quoted = [value for point in smallest if (value := getattr(point, name)) > 0]
            if quoted and any(abs(value - 1) < ROUNDING for value in quoted):
                return least
            if quoted:
                return math.nan if least == 1 and name == "speedup" else 1.0
        own = [ratio for point in self.points if (ratio := point.speedup / point.gain) > 0]
        return least if own and abs(float(np.median(own)) - 1) < ROUNDING else 1.0


@dataclass(eq=False)
class Point:
    """One configuration at one world size; its medians in `values` are attributes, NaN if unknown.

    `times` has the slowest rank's time in s for each repeat, `means` quoted means over ranks,
    `rates` what is done per second.
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
        return float(values.get(name, math.nan))

    @property
    def ranks(self) -> str:
        """The world size and the curve in words."""
        return f"{self.world_size:g} ranks" + (
            f" at {self.curve.label}" if self.curve.label else ""
        )

    @cached_property
    def time(self) -> float:
        """Median over repeats of the slowest rank's time."""
        return float(np.median(self.times)) if self.times else math.nan

    @cached_property
    def mean(self) -> float:
        """Median over repeats of the quoted mean over ranks."""
        return float(np.median(self.means)) if self.means else math.nan

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The range of the time by repeats, or as the table gives it; None if unknown."""
        if len(self.times) > 1:
            return min(self.times), max(self.times)
        if self.low <= self.time <= self.high:
            return self.low, self.high
        # Two standard deviations hold 95 % of a normal spread.
        return (self.time - 2 * self.std, self.time + 2 * self.std) if self.std > 0 else None

    @cached_property
    def base(self) -> Point | None:
        """The point of the smallest world size to compare with, None where none or several fit."""
        least = self.curve.points[0].world_size
        if self.world_size == least:
            return None
        smallest = [other for other in self.curve.points if other.world_size == least]
        for fits in (
            [other for other in smallest if other.strategy == self.strategy],
            [other for other in smallest if residue(other.strategy) == residue(self.strategy)],
            [other for other in smallest if not residue(other.strategy)],
            smallest,
        ):
            if len(fits) == 1:
                return fits[0]
        return None

    @property
    def over(self) -> float:
        """The number of ranks relative to those that quoted ratios are over."""
        return self.world_size / self.curve.ratios_over

    @property
    def ideal(self) -> float:
        """The gain that the number of ranks allows: N over the baseline's."""
        return self.world_size / self.base.world_size if self.base else 1.0

    @property
    def work(self) -> float:
        """How many times the baseline's samples its time stands for.

        Those of a step are its batch. An epoch or a total has the same samples, except in weak
        scaling, which is declared or follows from rates times times.
        """
        base, per = self.base, self.curve.per
        if base is None:
            return math.nan
        if per == "step":
            ratio = self.global_batch_size / (base.global_batch_size or math.nan)
            if math.isfinite(ratio):
                return ratio
        else:
            done = base.rate * base.time
            ratio = self.rate * self.time / done if done > 0 else math.nan
            if abs(ratio / self.ideal - 1) < ROUNDING:
                return ratio
        return self.ideal if self.curve.scaling == "weak" else 1.0

    @property
    def gain(self) -> float:
        """Work per time over that of the baseline, NaN if unknown."""
        base = self.base
        if base is None:
            return math.nan
        if math.isfinite(base.time) and self.time > 0:
            return base.time / self.time * self.work
        return self.rate / base.rate if base.rate > 0 else math.nan

    @property
    def gain_of_means(self) -> float:
        """The gain by means over ranks, NaN if unknown."""
        if self.base is None or not self.mean > 0:
            return math.nan
        quoted = self.base.time if math.isnan(self.base.mean) else self.base.mean
        return quoted / self.mean * self.work

    @property
    def gain_bounds(self) -> tuple[float, float] | None:
        """Where the gain may lie by the ranges of both times; None where one is unknown."""
        here, there = self.bounds, self.base.bounds if self.base else None
        if here is None or there is None or min(here[0], there[0]) <= 0:
            return None
        return there[0] / here[1] * self.work, there[1] / here[0] * self.work
