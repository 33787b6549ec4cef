"""Observations as lines of points: what belongs together, what it is called, and the time of each world size."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lab.analysis.audit.columns import PHASES
from lab.analysis.audit.observations import Observations
from lab.analysis.audit.table import residue
from lab.config.strategies import SETTINGS

BATCHES = ("global_batch_size", "batch", "micro_batch_size")
CARRIED: tuple[str, ...] = (
    *PHASES,
    "communication_mean",
    "rate",
    "speedup",
    "efficiency",
    "global_batch_size",
    "micro_batch_size",
    "batch",
    "samples",
    "steps",
    "total_steps",
    "parameters",
    "bytes",
    "nodes",
    "cpus",
    "loader_workers",
    "repeats",
    "std",
    "low",
    "high",
)
FEW_EPOCHS = 3
# How ranks work together; on one rank a setting of it means nothing, so that all its values have one baseline.
WAYS = ("key:strategy", *(f"key:{name}" for name in SETTINGS))


def lines(seen: Observations) -> list[Line]:
    """All lines of the observations; rows without a world size are in none."""
    if "lines" not in seen.memo:
        seen.memo["lines"] = _lines(seen)
    known: list[Line] = seen.memo["lines"]
    return known


def _lines(seen: Observations) -> list[Line]:
    rows = seen.frame[seen.frame["world_size"].notna()]
    if rows.empty or seen.kind == "collectives":
        return []
    keys = [key for key in seen.keys if key not in WAYS]
    batch = _batch_key(seen, rows, keys)
    named = [*keys, batch] if batch else keys
    rows = rows.assign(_line=_joined(rows, named))
    varied = [key for key in named if rows[key].nunique(dropna=False) > 1]
    found = []
    for _, group in rows.groupby("_line", sort=False):
        points = sorted(_points(group, seen), key=lambda point: point.world_size)
        found.append(
            Line(
                label=_label(group, varied),
                points=tuple(points),
                batch=batch,
                per=seen.per,
                weak=seen.scaling == "weak",
            )
        )
    return found


def _joined(rows: pd.DataFrame, names: Sequence[str]) -> pd.Series:
    joined = pd.Series("", index=rows.index)
    for name in names:
        joined = joined + "\x1f" + rows[name].astype(str)
    return joined


def _label(group: pd.DataFrame, varied: Sequence[str]) -> str:
    first = group.iloc[0]
    words = {"global_batch_size": "batch", "batch": "batch", "micro_batch_size": "batch per rank"}
    told = [
        f"{words[name]} {first[name]:g}"
        if name in words
        else _told(name.removeprefix("key:"), str(first[name]))
        for name in varied
        if first[name] == first[name] and first[name] != ""
    ]
    return ", ".join(told)


def _told(name: str, value: str) -> str:
    """A value that says by itself what it is, or a number or a yes or no with its name."""
    return (
        f"{name} {value}"
        if re.fullmatch(r"[-+.\de]+|true|false|yes|no|none", value, re.IGNORECASE)
        else value
    )


def _batch_key(seen: Observations, rows: pd.DataFrame, keys: Sequence[str]) -> str | None:
    """The batch column that is constant over world sizes in most rows; what the table names goes before what follows."""
    if seen.scaling is not None:
        return "micro_batch_size" if seen.scaling == "weak" else "global_batch_size"
    best, most = None, 0.0
    for name in sorted(
        (name for name in BATCHES if rows[name].notna().any()),
        key=lambda name: name in seen.derived,
    ):
        sizes = rows["world_size"].groupby(_joined(rows, [*keys, name]))
        score = float(
            (
                (sizes.transform("nunique") > 1)
                & (sizes.transform("min") == rows["world_size"].min())
            ).mean()
        )
        if score > most:
            best, most = name, score
    return best if most > 0.5 else None


def _points(group: pd.DataFrame, seen: Observations) -> list[Point]:
    found = []
    for (size, way), rows in group.groupby([group["world_size"], _ways(group)], sort=False):
        found.append(_point(float(str(size)), str(way), rows, seen))
    return found


def _ways(group: pd.DataFrame) -> pd.Series:
    """The strategy of each row, with those of its settings that differ between rows."""
    ways = group["key:strategy"] if "key:strategy" in group else pd.Series("", index=group.index)
    for key in WAYS[1:]:
        if key in group and group[key].nunique() > 1:
            ways = ways + f", {key.removeprefix('key:')} " + group[key]
    return ways.str.removeprefix(", ")


def measurements(rows: pd.DataFrame) -> pd.Series:
    """Which rows are one measurement on all its ranks: the same repeat, epoch and step, or the next of equal rows."""
    columns = [name for name in ("repeat", "epoch", "step") if rows[name].notna().any()]
    ident = _joined(rows, columns)
    again = rows.groupby([ident, rows["rank"].fillna(-1), rows["aggregate"]]).cumcount()
    return ident + "\x1f" + again.astype(str)


def _point(size: float, strategy: str, rows: pd.DataFrame, seen: Observations) -> Point:
    rows = rows.assign(
        _measurement=measurements(rows),
        _repeat=rows["repeat"].fillna("") if rows["repeat"].notna().any() else "",
    )
    if not rows["repeat"].notna().any() and not rows[["epoch", "step"]].notna().any(axis=None):
        rows["_repeat"] = rows["_measurement"]
    alone = (
        rows if seen.kind == "records" else rows[~rows["aggregate"] | bool(rows["aggregate"].all())]
    )
    means = (
        rows[rows["aggregate"]]["time"]
        if seen.kind == "table" and rows["aggregate"].any() and not rows["aggregate"].all()
        else rows["time_mean"]
    )
    return Point(
        world_size=size,
        strategy=strategy,
        times=tuple(_per_repeat(alone, alone["time"])),
        means=tuple(_per_repeat(rows.loc[means.index], means)),
        values=_values(rows, alone),
        labels=tuple(rows["label"]),
    )


def _per_repeat(rows: pd.DataFrame, times: pd.Series) -> list[float]:
    """The slowest of each measurement, then the median over the epochs or steps of a repeat, the first epoch left out."""
    known = times.dropna()
    if known.empty:
        return []
    rows = rows.loc[known.index]
    slowest = known.groupby([rows["_repeat"], rows["_measurement"]], sort=False).max()
    return [
        float(part.iloc[1:].median() if len(part) >= FEW_EPOCHS else part.median())
        for _, part in slowest.groupby(level=0, sort=False)
    ]


def _values(rows: pd.DataFrame, alone: pd.DataFrame) -> dict[str, float]:
    """What else is known: of the slowest row, else the median of all rows that know it."""
    slowest: Any = (
        alone.iloc[int(alone["time"].fillna(-1.0).to_numpy().argmax())]
        if alone["time"].notna().any()
        else alone.iloc[0]
    )
    single = len(alone) <= 2 or (alone["rank"].notna().any() and alone["repeat"].nunique() <= 1)
    values = {}
    for name in CARRIED:
        if name not in rows:
            continue
        own = slowest[name] if single else math.nan
        column = rows[name].dropna()
        values[name] = (
            float(own) if own == own else float(column.median()) if len(column) else math.nan
        )
    return values


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
        here, there = (
            (point.mean, base.time if math.isnan(base.mean) else base.mean)
            if means
            else (point.time, base.time)
        )
        if math.isfinite(here) and math.isfinite(there) and here > 0:
            return there / here * self.work(point, base)
        return point.rate / base.rate if base.rate > 0 and not means else math.nan

    def work(self, point: Point, base: Point) -> float:
        """How many times the baseline's samples the time of this point stands for.

        Those of a step are its batch. Others are the same samples, but in weak scaling, said or seen from rates times times.
        """
        if self.per == "step":
            ratio = (
                point.global_batch_size / base.global_batch_size
                if base.global_batch_size
                else math.nan
            )
            return ratio if math.isfinite(ratio) else 1.0
        ranks = point.world_size / base.world_size
        done = (
            point.rate * point.time / (base.rate * base.time)
            if base.rate * base.time > 0
            else math.nan
        )
        if abs(done / ranks - 1) < ROUNDING:
            return done
        return ranks if self.weak else 1.0

    def bounds(self, point: Point) -> tuple[float, float] | None:
        """Where the gain may lie by the ranges of both times; None where one of them has none."""
        base = self.base(point)
        if (
            base is None
            or point.bounds is None
            or base.bounds is None
            or point.bounds[0] <= 0
            or base.bounds[0] <= 0
        ):
            return None
        work = self.work(point, base)
        return base.bounds[0] / point.bounds[1] * work, base.bounds[1] / point.bounds[0] * work

    def ideal(self, point: Point) -> float:
        """The gain that the number of ranks allows: N over the baseline's."""
        base = self.base(point)
        return point.world_size / base.world_size if base is not None else 1.0
