"""Results from any source in one form: canonical columns, and curves of time over ranks."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import compress
from typing import Any, Literal

import numpy as np
import pandas as pd

from lab.analysis.audit.columns import LAYOUT, named_precision, normal, period, residue
from lab.analysis.audit.points import ROUNDING, Curve, Point, columns_of, joined, point_of
from lab.config.strategies import SETTINGS
from lab.formatting import PERIODS
from lab.records.table import grouped

# The batch that each kind of scaling keeps constant.
HELD = {"strong": "global_batch_size", "weak": "micro_batch_size", "none": "global_batch_size"}
# How ranks work together. On one rank it has no effect, so all its values share a baseline.
STRATEGY_KEYS = ("key:strategy", *(f"key:{name}" for name in SETTINGS))
LAYOUT_KEYS = {
    f"key:{name}" for name in (*LAYOUT, "strategy", "sharding", "interleave", "sequence_parallel")
}
REPEATED = {"key:seed"}  # runs of a table that differ only in this are repeats
BATCHES = {"global_batch_size": "batch", "batch": "batch", "micro_batch_size": "batch per rank"}
NUMBERS = BATCHES | {"grad_accum": "accumulation"}  # in the names of curves
MOST_REFERENCES = 20  # rows or curves that a quoted speedup may be over
GRADIENT_BYTES = 4  # of a parameter in fp32
FULL_PRECISION = re.compile(r"|(f|fp|float)[ _-]?32|tf[ _-]?32|full|single|no|none|false|off")
PRECISION = re.compile(
    r"\b(?:mx|nv)?(?:b?f(?:p|loat)?|tf|int)[-_]?(?:4|8|16|32)(?![a-z\d])", re.IGNORECASE
)
OVER = re.compile(r"_(?:vs|versus|over|against|relative_to|compared_to)_(.+)")
ROW = "row of the table"  # its number from 1, if one row becomes several


class UncheckedError(Exception):
    """A rule cannot be applied because `args` are missing."""


@dataclass(frozen=True)
class Observations:
    """Measurements in canonical columns.

    `frame` has the columns of `lab.analysis.audit.columns.COLUMNS`, NaN if unknown, times in s,
    sizes in bytes. `label` names a row, `aggregate` marks one that covers all ranks of other rows,
    and columns that start with `key:` distinguish configurations. `given` maps canonical names to
    the table's own column names, `reading` states how each was interpreted, `derived` lists columns
    that follow from others, `calibrated` holds bus bandwidths in bytes/s by world size, and `per`
    is what a time covers. `own_baseline` names the table's column that the speedup of each row is
    over; with `one_elsewhere` the run on one rank is in another table of the text. `summarised`
    rows may stand for several repeats, `logged` ones are the lines of a log, of which nothing is
    claimed; the numbers of a `projected` table were computed. `number` and `place` say which table
    of a text it is. `configurations` names those of records by run id.
    """

    frame: pd.DataFrame
    kind: Literal["records", "table", "collectives"]
    per: Literal["step", "epoch", "total"] = "step"
    scaling: Literal["strong", "weak", "none"] | None = None
    baseline: Mapping[str, object] = field(default_factory=dict)
    calibrated: Mapping[int, float] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    derived: frozenset[str] = frozenset()
    own_baseline: str = ""
    one_elsewhere: bool = False
    assumptions: Sequence[str] = ()
    notes: Sequence[str] = ()
    summarised: bool = False
    logged: bool = False
    projected: bool = False
    reading: Mapping[str, str] = field(default_factory=dict)
    number: int = 1
    place: str = ""
    configurations: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def known(self) -> set[str]:
        """Canonical columns that hold at least one value."""
        return columns_with_values(self.frame)

    @cached_property
    def keys(self) -> list[str]:
        """Columns that distinguish configurations, apart from world size and batch."""
        return [name for name in self.frame.columns if name.startswith("key:")]

    def per_period(self, rate: float, digits: int = 6) -> str:
        """A rate for a sentence, in the period of its column: 2.4 per day."""
        unit = period(self.given.get("rate") or self.given.get("rate_per_rank", ""))
        return f"{rate * PERIODS[unit]:.{digits}g} per {unit}"

    @property
    def nodes_as_ranks(self) -> bool:
        """Whether a node counts as a rank, as the table does not give the ranks of one."""
        return not {"world_size", "per_node", "dp"} & set(self.given) and "nodes" in self.given

    @cached_property
    def runs(self) -> pd.DataFrame:
        """Rows that cover whole runs: for records those over all ranks, for a table every row."""
        return self.frame[self.frame["aggregate"]] if self.kind == "records" else self.frame

    def groups(self, rows: pd.DataFrame, *names: str) -> pd.Series:
        """A number for each configuration of rows: their keys, ranks and batch, and `names`."""
        by = [*self.keys, "world_size", "global_batch_size", "batch", *names]
        return rows.groupby(by, sort=False, dropna=False).ngroup()

    def noted(self, pattern: str) -> re.Match[str] | None:
        """The first match of a pattern in the notes: a hint, never a measurement."""
        matches = (re.search(pattern, note, re.IGNORECASE) for note in self.notes)
        return next((match for match in matches if match), None)

    def samples_of(self, point: Point) -> float:
        """Samples per epoch, else those that the notes give; NaN if they give none."""
        if point.samples > 0:
            return point.samples
        what = r"(\d[\d,]*)\s+(?:training\s+|train\s+)?(?:samples|examples|images|sequences)"
        match = self.noted(what)
        return float(match[1].replace(",", "")) if match else math.nan

    @cached_property
    def noted_precision(self) -> str:
        """The precision of all rows, if the notes name one and no setting names another; or ""."""
        settings = (str(value) for key in self.keys for value in self.frame[key].unique())
        words = (word for text in (*self.notes, *settings) for word in PRECISION.findall(text))
        named = {named_precision(word) for word in words}
        return (named.pop() or "") if len(named) == 1 else ""

    @cached_property
    def curves(self) -> list[Curve]:
        """The rows by configuration, as points over the world size.

        Raises UncheckedError for collectives.
        """
        if self.kind == "collectives":
            raise UncheckedError("training times")
        sizes = self.frame["world_size"]
        rows = self.frame if sizes.count() == len(sizes) else self.frame[sizes.notna()]
        if len(rows) and rows["scaling"].count() == 0:
            return self._curves_of(rows, self.scaling or "")
        scaling = rows["scaling"].fillna(self.scaling or "").astype(str)
        groups = rows.groupby(scaling, sort=False)
        return [curve for kind, part in groups for curve in self._curves_of(part, str(kind))]

    def _curves_of(self, rows: pd.DataFrame, scaling: str) -> list[Curve]:
        """The curves of rows that declare one kind of scaling, or none at all ("")."""
        left_out = {*STRATEGY_KEYS, *(REPEATED if self.kind == "table" else ())}
        keys = [key for key in self.keys if key not in left_out]
        batch = _batch_key(self, rows, keys, scaling)
        names = [*keys, batch] if batch else keys
        varied = [name for name in names if rows[name].nunique(dropna=False) > 1]
        configurations = joined(rows, names)
        # Rows of one strategy at one world size that divide their work differently are settings,
        # not repeats.
        divided, programs = list[str](), [rows["world_size"]]
        if self.kind == "records":
            divided, programs = ["grad_accum"], [*programs, rows["strategy"].map(str)]
        elif "micro_batch_size" in self.given:
            divided = ["micro_batch_size", "grad_accum"]
            programs += [rows[key] for key in STRATEGY_KEYS if key in rows]
        for other in (name for name in divided if rows[name].nunique() > 1):
            at_once = rows[other].groupby([configurations, *programs])
            several = at_once.transform("nunique").groupby(configurations).transform("max") > 1
            configurations = configurations + rows[other].map(str).where(several, "")
            if several.any() and other not in names:
                varied.append(other)
        # Lists, as a table may hold a hundred thousand configurations, of a row or two each.
        codes = pd.factorize(configurations)[0]
        named = {name: rows[name].tolist() for name in varied}
        curves = []
        alike: dict[str, list[Curve]] = {}
        for at in np.unique(codes, return_index=True)[1]:
            values = {name: named[name][at] for name in named}
            siblings = alike.setdefault(
                self._label({name: value for name, value in values.items() if name not in NUMBERS}),
                [],
            )
            curve = Curve(self._label(values), batch, self.per, scaling, siblings=siblings)
            siblings.append(curve)
            curves.append(curve)
        for siblings in alike.values():
            if len(siblings) > MOST_REFERENCES:
                siblings.clear()
        sizes, strategies = rows["world_size"].tolist(), _strategies(rows, configurations)
        nodes = self._layouts(rows, codes)
        groups = grouped(
            ((int(codes[place]), sizes[place], strategies[place], nodes[place]), place)
            for place in np.lexsort((sizes, codes)).tolist()
        )
        of_point = np.empty(len(rows), dtype=int)
        for number, places in enumerate(groups.values()):
            of_point[places] = number
        columns = columns_of(rows, pd.Series(of_point, rows.index))
        for (code, size, strategy, _), places in groups.items():
            point = point_of(curves[code], size, strategy, columns, places, self.kind)
            curves[code].points.append(point)
        return curves

    def _layouts(self, rows: pd.DataFrame, curves: np.ndarray[Any, Any]) -> list[float]:
        """What tells the rows of a table apart that spread as many ranks over other nodes: 2 GPUs
        of one node and one GPU of each of 2 nodes are no repeats. Baselines stay together."""
        if self.kind != "table" or "nodes" not in self.given:
            return [0.0] * len(rows)
        least = rows["world_size"].groupby(curves).transform("min")
        return rows["nodes"].where(rows["world_size"] > least, 0.0).fillna(0.0).tolist()

    def _label(self, values: Mapping[str, Any]) -> str:
        """A configuration's name."""
        parts = []
        for name, value in values.items():
            if value != value or value == "" or value is None:
                continue
            if name in NUMBERS:
                parts.append(f"{NUMBERS[name]} {value:g}")
            else:
                parts.append(setting(value, name, self.given))
        return ", ".join(parts)

    def gradient_bytes(self, point: Point) -> float:
        """The bytes of a point's gradients, NaN if unknown.

        Parameters count four bytes each, unless a table states a precision other than fp32.
        """
        if point.bytes > 0 or not point.parameters > 0:
            return point.bytes
        if self.kind == "table" and "precision" in self.given:
            stated = self.rows_of(point)["key:precision"].str.lower()
            if not all(map(FULL_PRECISION.fullmatch, stated)):
                return math.nan
        return GRADIENT_BYTES * point.parameters

    @cached_property
    def points(self) -> list[Point]:
        """The points of all curves."""
        return [point for curve in self.curves for point in curve.points]

    @cached_property
    def ones(self) -> list[Point]:
        """The points that quote a speedup or an efficiency of 1, in ascending world size."""
        ones = (
            point
            for point in self.points
            if abs(point.speedup - 1) < ROUNDING or abs(point.efficiency - 1) < ROUNDING
        )
        return sorted(ones, key=lambda point: point.world_size)

    def rows_of(self, point: Point) -> pd.DataFrame:
        """The rows that make up a point."""
        return self.frame.iloc[self.places_of(point.labels)]

    def places_of(self, labels: Iterable[str]) -> list[int]:
        """The positions of rows with these labels."""
        places = (self._places[label] for label in labels)
        return sorted({place for some in places for place in some})

    @cached_property
    def _places(self) -> dict[str, list[int]]:
        return grouped((label, place) for place, label in enumerate(self.frame["label"]))

    @cached_property
    def quoted_over_settings(self) -> set[str]:
        """Labels of points whose quoted speedup is that of their settings, not of their ranks: over
        a row at as many ranks that quotes 1 or nothing, and of those rows. If the name of the
        column tells a setting, such as "Speedup vs GPipe", these are all."""
        named = OVER.search(normal(self.given.get("speedup", "")))
        if (
            named
            and residue(named[1])
            and any(
                named[1] in {normal(value) for value in self.frame[key].unique()}
                for key in self.keys
            )
        ):
            return {label for point in self.points for label in point.labels}
        at_size = grouped(
            (point.world_size, point)
            for point in self.points
            if point.base is None or not abs(point.base.speedup - 1) < ROUNDING
        )
        labels: set[str] = set()
        for points in at_size.values():
            ones = [point for point in points if not abs(point.speedup - 1) >= ROUNDING]
            if len(ones) > MOST_REFERENCES:
                continue  # one of them has any ratio by chance
            for point in (point for point in points if point.speedup > 0):
                over = [one for one in ones if one is not point and point.is_quoted_over(one)]
                for one in (point, *over) if over else ():
                    labels.update(one.labels)
        return labels

    @cached_property
    def hardware(self) -> dict[str, dict[str, str]]:
        """The GPU and the CPU of each row by its label, where the rows differ in them."""
        return {
            name: dict(zip(self.frame["label"], self.frame[name].fillna("").map(str), strict=True))
            for name in ("gpu", "cpu")
            if self.frame[name].nunique() > 1
        }

    @cached_property
    def compares_layouts(self) -> bool:
        """Whether its rows differ in nothing but how ranks work together, and in their number."""
        return {key for key in self.keys if self.frame[key].nunique() > 1} <= LAYOUT_KEYS

    @property
    def collectives(self) -> list[pd.DataFrame]:
        """The rows of each collective on each number of ranks, in ascending message size."""
        names = [*(key for key in self.keys if key != "key:bytes"), "world_size"]
        groups = self.frame.dropna(subset=["time", "bytes"]).groupby(
            names, sort=False, dropna=False
        )
        return [group.sort_values("bytes") for _, group in groups]

    @property
    def compared(self) -> list[tuple[Point, Point]]:
        """Each point that has a baseline, together with that baseline."""
        return [(point, point.base) for point in self.points if point.base is not None]


def columns_with_values(frame: pd.DataFrame) -> set[str]:
    """The columns that hold at least one value."""
    return set(compress(frame.columns, np.any(~frame.isna().to_numpy(), axis=0)))


def setting(value: str, key: str, given: Mapping[str, str]) -> str:
    """A value in a label; one that says nothing by itself follows its column's name."""
    if not re.fullmatch(r"[-+.\de]+|true|false|yes|no|on|off|none", value, re.IGNORECASE):
        return value
    canonical = key.removeprefix("key:")
    column = given.get(canonical, canonical)
    if canonical != "strategy" and column == given.get("strategy"):
        column = canonical  # a degree that the names of strategies hold
    return f"{column} {value}"


def _batch_key(
    observations: Observations, rows: pd.DataFrame, keys: Sequence[str], scaling: str
) -> str | None:
    """The batch that is constant over world sizes in most rows of what has several. The one that
    the declared scaling keeps constant goes first, and given ones before derived; if none is, the
    one that should be."""
    held = HELD.get(scaling)
    best, most, smallest = held, 0.5, rows["world_size"].min()
    configurations = grouped(zip(joined(rows, keys), rows["world_size"], strict=True))
    scaled = sum(len(some) for some in configurations.values() if len(set(some)) > 1)
    known = [name for name in BATCHES if rows[name].count() > 0]
    for name in sorted(known, key=lambda name: (name != held, name in observations.derived)):
        sizes = grouped(zip(joined(rows, [*keys, name]), rows["world_size"], strict=True))
        whole = [some for some in sizes.values() if min(some) == smallest and max(some) > smallest]
        score = sum(map(len, whole)) / (scaled or len(rows))
        if score > most:
            best, most = name, score
            if name == held:
                break
    return best


def _strategies(rows: pd.DataFrame, curves: pd.Series) -> list[str]:
    """The strategy of each row, with the settings that differ within its curve."""
    named = "key:strategy" in rows
    strategies = rows["key:strategy"] if named else pd.Series("", index=rows.index)
    for key in STRATEGY_KEYS[1:]:
        if key in rows and rows[key].nunique() > 1:
            several = rows[key].groupby(curves).transform("nunique") > 1
            settings = f", {key.removeprefix('key:')} " + rows[key]
            strategies = strategies + settings.where(several, "")
    return [str(strategy).removeprefix(", ") for strategy in strategies]


def rounding(rows: pd.DataFrame, *names: str) -> pd.Series:
    """The relative rounding of a result of these columns; 0 where it is unknown."""
    # One by one, as pandas takes several times as long for both columns.
    return reduce(operator.add, (rows[f"{name}_rounding"].fillna(0.0) for name in names))


def largest(rows: pd.DataFrame, values: pd.Series) -> Any:
    """The row with the largest of some values."""
    place: Any = values[rows.index].fillna(-math.inf).idxmax()
    return rows.loc[place]
