"""A results table as records: only what it states, against a chosen baseline."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import zip_longest
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, get_args

import pandas as pd

from lab.analysis.audit import COLUMNS, Audit, apply_rules
from lab.analysis.audit.columns import NO_VARIANT, PHASES, TOKEN, counted, normal, period
from lab.analysis.audit.observations import NUMBERS, Observations
from lab.analysis.audit.points import Curve, Point
from lab.analysis.audit.table import from_table
from lab.analysis.audit.text_table import read_table
from lab.analysis.scaling_curves import shortest
from lab.config.run import Run, Stated
from lab.errors import InputError, Problem, require_choice, require_type
from lab.formatting import PERIODS, count
from lab.records.schema import Period, Reported, Unit
from lab.records.store import Record

# Fields that any run may leave open as None; for a table all other unknown fields are removed.
OPEN = Stated._fields
Kind = Literal["auto", "strong", "weak"]
Scaling = Literal["strong", "weak", ""]
SCALINGS: tuple[Scaling, ...] = ("strong", "weak", "")
MOST_REPEATS = 1000
MOST_POINTS = 2000  # configurations: with more, it is a log and not a table of results
# Words of strategies whose ranks keep a whole copy of the model and reduce its gradients.
ALL_REDUCE = NO_VARIANT | {"ddp", "dp", "naive", "horovod", "single", "serial", "data", "parallel"}
WHOLE_COPIES = "0|no|none|off|false|ddp|replicated"
LONGEST = 30  # letters of a name that is the table's, not a configuration's
NAMED = 12  # columns in a sentence
# Below this share of the baseline's time, a step or a run has less work per rank. That is not weak
# scaling, which can at best keep its time.
SHORTER = 0.75
KNOWN_NUMBERS = ("global_batch_size", "micro_batch_size", "grad_accum")
BATCH_WORDS = NUMBERS | {"global_batch_size": "global batch"}
KNOWN_TEXTS = {
    "model": "model",
    "strategy": "strategy",
    "precision": "precision",
    "data": "dataset",
}


class RateUnit(NamedTuple):
    """What rates count, in the plural or "" if unknown, and `per` which period: s, min, h, day."""

    of: str
    per: Period


@dataclass(frozen=True)
class ReportedTable:
    """Results as returned by `read`; `frame` has the columns of the table itself."""

    frame: pd.DataFrame
    observations: Observations
    records: tuple[Record, ...]

    @cached_property
    def audit(self) -> Audit:
        """What in the table cannot be trusted."""
        return apply_rules(self.observations)

    @property
    def name(self) -> str:
        """That of its file, which also names its configuration if it has only one."""
        return _name(self.frame)

    @property
    def which(self) -> str:
        """Its number and place if it is one of several tables in a text."""
        place = self.frame.attrs.get("place")
        return f"table {self.frame.attrs['number']}, {place}" if place else ""

    @property
    def unit(self) -> Unit:
        """What its world sizes count."""
        return _unit(self.observations, self.frame)

    @property
    def kinds(self) -> list[Scaling]:
        """The kinds of scaling of its rows, strong first; "" if unknown."""
        kinds = {record.reported.scaling for record in self.records if record.reported}
        return [kind for kind in SCALINGS if kind in kinds]

    def of_kind(self, kind: Scaling) -> ReportedTable:
        """The same with only the records of one kind, whose names do not repeat it."""
        if len(self.kinds) < 2:
            return self
        records = [r for r in self.records if r.reported and r.reported.scaling == kind]
        runs = {record.run_id: _without_kind(record, kind, self.name) for record in records}
        return dataclasses.replace(self, records=tuple(_renamed(one, runs) for one in records))

    @classmethod
    def read(
        cls,
        table: pd.DataFrame | str | Path,
        *,
        columns: Mapping[str, str] | None = None,
        scaling: Kind = "auto",
        baseline: int | None = None,
        number: int | None = None,
    ) -> ReportedTable:
        """Read a table of results, with the arguments of `records_from`.

        Of a table of both kinds, `scaling` selects one. Raises InputError for unreadable input, and
        for a table without ranks, without times and rates, with a single number of ranks, or
        without the baseline.
        """
        require_type(table, pd.DataFrame | str | Path, "table", "a DataFrame or a file")
        require_type(columns, Mapping | None, "columns", COLUMNS)
        require_type(baseline, Real | None, "baseline", "a number of ranks")
        require_choice(scaling, get_args(Kind), "scaling")
        if isinstance(table, pd.DataFrame):
            frame = table
        else:
            frame = read_table(table, columns, number=number)
        name = _name(frame)
        source = name if isinstance(table, pd.DataFrame) else str(table)
        observations = from_table(frame, columns=columns, source=source)
        if scaling != "auto":
            observations = dataclasses.replace(observations, scaling=scaling)
        if problems := list(_lacks(frame, observations)):
            raise InputError(source, problems)
        curves = _curves(observations, source)
        if baseline is not None:
            curves = _above(curves, baseline, source)
        kinds = [_kind(curve, observations) for curve in curves]
        if set(kinds) == {"strong", ""}:  # what some of its times show holds for all
            kinds = ["strong"] * len(kinds)
        pairs = zip(curves, kinds, strict=True)
        chosen = [(curve, kind) for curve, kind in pairs if scaling in ("auto", kind)]
        if not chosen:
            what = f"no rows of {scaling} scaling, by what the table itself says"
            raise InputError.of(source, "scaling", what, "leave it out")
        _check_repeats([curve for curve, _ in chosen], source)
        names = shortest(sorted({curve.label for curve, _ in chosen}))
        by_label = observations.frame.set_index("label")
        unit, rated = _unit(observations, frame), _rate_unit(observations, frame)
        records: list[Record] = []
        for curve, kind in chosen:
            prefix = kind if len(set(kinds)) > 1 else ""
            runs = {
                id(point): _run(point, by_label, observations, [prefix, names[curve.label]], name)
                for point in curve.points
            }
            records += _records(curve, kind, observations, runs, unit, rated)
        return cls(frame, observations, tuple(records))


def records_from(
    table: pd.DataFrame | str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    scaling: Kind = "auto",
    baseline: int | None = None,
    number: int | None = None,
) -> list[Record]:
    """Records from a results table: one for each repeat of each configuration.

    `table` is a DataFrame or a file (CSV and other text as for `lab audit`, or Parquet); `columns`
    maps canonical names to columns; the rest is guessed. What the table does not state is None: a
    batch, a model, a rate. Speedups are over the fewest ranks of each curve, or over `baseline`
    ranks; `scaling` (strong, weak) sets what the table leaves open. Of several tables in a text,
    the longest is read, or the one of this `number`. Raises InputError for a table that cannot be
    read, or that shows no scaling.
    """
    read = ReportedTable.read(
        table, columns=columns, scaling=scaling, baseline=baseline, number=number
    )
    return list(read.records)


def _lacks(frame: pd.DataFrame, observations: Observations) -> Iterator[Problem]:
    """What a scaling table needs and this one lacks."""
    named = ", ".join(repr(str(column)) for column in list(frame.columns)[:NAMED])
    if observations.kind == "collectives":
        what = "holds times of collectives by size, not of training: there is no report on them"
        advice = "`lab audit` reads them; `lab calibrate` measures, draws and fits such times"
        yield Problem("table", what, advice)
        return
    tidy = observations.frame
    if not tidy["world_size"].notna().any():
        advice = f"name it: --column world_size=COLUMN, one of {named}"
        yield Problem("columns", "none gives the number of ranks, GPUs or nodes", advice)
    elif tidy["world_size"].nunique() == 1:
        size = tidy["world_size"].dropna().iloc[0]
        what = f"all rows are on the same number of ranks ({size:g}): nothing scales"
        yield Problem("table", what, "add rows for other numbers; `lab audit` reads any table")
    if not tidy[["time", "rate"]].notna().any(axis=None):
        options = "--column time=COLUMN, rate=COLUMN or, of each rank, rate_per_rank=COLUMN"
        advice = f"name one: {options}, one of {named}"
        yield Problem("columns", "none holds times or rates of training as numbers", advice)


def _curves(observations: Observations, source: str) -> list[Curve]:
    tidy = observations.frame
    keys = [*observations.keys, *KNOWN_NUMBERS, "batch", "world_size"]
    timed = tidy[tidy["time"].notna() | tidy["rate"].notna()]
    configurations = len(timed[keys].drop_duplicates())
    if configurations > MOST_POINTS:
        what = f"{configurations} configurations: a report shows up to {MOST_POINTS}"
        raise InputError.of(source, "table", what, "give a part of it")
    curves = dataclasses.replace(observations, frame=timed).curves
    mixed = _mixed_batches(timed, curves, observations)
    if mixed:  # different batches are different configurations, not repeats
        cells = {f"key:{BATCH_WORDS[name]}": timed[name].map("{:g}".format) for name in mixed}
        curves = dataclasses.replace(observations, frame=timed.assign(**cells)).curves
    return curves


def _mixed_batches(
    rows: pd.DataFrame, curves: Sequence[Curve], observations: Observations
) -> list[str]:
    """The batch columns of the table that have several values within one point."""
    columns = [name for name in (*KNOWN_NUMBERS, "batch") if name in observations.given]
    batches = rows.set_index("label")[columns]
    points = [point for curve in curves for point in curve.points if len(point.labels) > 1]
    return [
        name
        for name in columns
        if any(batches.loc[list(point.labels), name].nunique() > 1 for point in points)
    ]


def _check_repeats(curves: Sequence[Curve], source: str) -> None:
    """Raise InputError for a log in which nothing distinguishes thousands of rows."""
    most = max(max(len(p.times), len(p.rates)) for curve in curves for p in curve.points)
    if most > MOST_REPEATS:
        what = f"{most} rows are one configuration, and nothing tells them apart"
        advice = "give a row for each run, or a column that names the step, the run or the model"
        raise InputError.of(source, "table", what, advice)


def _above(curves: Sequence[Curve], baseline: int, source: str) -> list[Curve]:
    """The curves from this number of ranks on, which becomes their baseline."""
    kept = []
    for curve in curves:
        if any(point.world_size == baseline for point in curve.points):
            new = dataclasses.replace(curve, points=[])
            new.points += [
                dataclasses.replace(point, curve=new)
                for point in curve.points
                if point.world_size >= baseline
            ]
            kept.append(new)
    if not kept:
        sizes = sorted({point.world_size for curve in curves for point in curve.points})
        advice = f"choose one of {', '.join(f'{size:g}' for size in sizes[:NAMED])}"
        what = f"no row on {count(baseline, 'rank')}"
        raise InputError.of(source, "baseline", what, advice)
    return kept


def _kind(curve: Curve, observations: Observations) -> Scaling:
    """Strong or weak, by the table, its batches or its times; "" if none of them tells."""
    if curve.scaling in {"strong", "weak"}:
        return "strong" if curve.scaling == "strong" else "weak"
    if curve.batch == "global_batch_size":
        return "strong"
    if curve.batch == "micro_batch_size":
        return "weak"
    compared = [(point, point.base) for point in curve.points if point.base is not None]
    if any(point.work > 1 for point, _ in compared):
        return "weak"
    times = [point.time / base.time for point, base in compared]
    if not any(map(math.isfinite, times)):
        return ""
    same_work = observations.noted("strong[ _-]?scal") or curve.per == "epoch"
    return "strong" if same_work or min(filter(math.isfinite, times)) < SHORTER else ""


def _name(frame: pd.DataFrame) -> str:
    return str(frame.attrs.get("name", "table"))


def _unit(observations: Observations, frame: pd.DataFrame) -> Unit:
    columns = observations.given
    column = normal(columns.get("world_size", columns.get("per_node", "")))
    if "world_size" in columns and columns["world_size"] not in frame:
        # It was read from the names of columns.
        column = " ".join(map(normal, frame.columns))
    if re.search(r"gpu|cuda|accelerator", column):
        return "GPU"
    if re.search(r"(?:^|_)cores?(?:_|$)", column) and "_per_" not in column:
        return "core"
    if not column:
        return "node" if "nodes" in columns else "rank"
    return "node" if re.search("(?<!per_)node", column) else "rank"


def _rate_unit(observations: Observations, frame: pd.DataFrame) -> RateUnit:
    """The unit of the rates, by the name of their column or else its first cell."""
    name = observations.given.get("rate") or observations.given.get("rate_per_rank", "")
    thing = counted(name) or (counted(str(frame[name].iloc[0])) if name in frame else "")
    is_word = thing.islower() and len(thing) > len("ns")
    return RateUnit(thing + "s" * is_word, period(name))


def _records(
    curve: Curve,
    kind: Scaling,
    observations: Observations,
    runs: Mapping[int, ReportedRun],
    unit: Unit,
    rated: RateUnit,
) -> Iterator[Record]:
    """One record for each repeat of each point; `runs` maps points to configurations."""
    least = curve.smallest[0].world_size
    # If times may cover more work with more ranks, no speedup can be stated.
    is_open = not kind and any(point.times for point in curve.points)
    for point in curve.points:
        base = point if point.world_size == least else point.base
        base = None if is_open else base
        run = runs[id(point)]
        parts = {part: value for part in PHASES if math.isfinite(value := getattr(point, part))}
        gradient_bytes = _gradient_bytes(point, observations)
        rows = observations.rows_of(point)
        by_rank = rows["rank"].notna().any()
        # Of the rank that uses most, and of the slowest one, if ranks have rows.
        peak_memory = rows["memory"].max() if by_rank else rows["memory"].median()
        mfu = point.mfu if by_rank else rows["mfu"].median()
        cores = rows["cores_per_rank"].max()
        in_period = PERIODS[rated.per]
        bounds = point.bounds if point.times else point.rate_bounds
        if bounds and not point.times:
            bounds = bounds[0] * in_period, bounds[1] * in_period
        interval = bounds if len(point.times or point.rates) == 1 else None
        for repeat, (time, rate) in enumerate(zip_longest(point.times, point.rates)):
            reported = Reported(
                configuration=run.configuration,
                scaling=kind,
                per=observations.per,
                unit=unit,
                cores_per_rank=round(cores) if math.isfinite(cores) else None,
                time=time,
                interval=interval,
                rate=None if rate is None else rate * in_period,
                rate_of=rated.of,
                rate_per=rated.per,
                parts=parts,
                gradient_bytes=gradient_bytes,
                peak_memory=_known(peak_memory),
                mfu=_known(mfu),
                baseline=runs[id(base)].id if base else None,
                work=(1.0 if base is point else point.work) if base else None,
            )
            yield Record(
                run_id=run.id,
                repeat=repeat,
                run=run,
                status="completed",
                finished_at=datetime.now(UTC).isoformat(),
                reported=reported,
            )


def _without_kind(record: Record, kind: Scaling, table: str) -> Run:
    """The configuration of a record, whose name in a table of both kinds begins with its kind."""
    rest = record.run.label_parts[0].removeprefix(kind).removeprefix(", ")
    name = rest or record.run.names["model"] or table
    return record.run.model_copy(update={"configuration": name})


def _renamed(record: Record, runs: Mapping[str, Run]) -> Record:
    run, reported = runs[record.run_id], record.reported
    assert reported is not None
    base = runs[reported.baseline].id if reported.baseline else None
    update = {"configuration": run.label_parts[0], "baseline": base}
    reported = reported.model_copy(update=update)
    return record.model_copy(update={"run_id": run.id, "run": run, "reported": reported})


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _gradient_bytes(point: Point, observations: Observations) -> float | None:
    """The bytes that a step reduces over all ranks; None if unknown, or ranks send others."""
    row = observations.rows_of(point).iloc[0]
    words = set(TOKEN.split(point.strategy.lower())) - {""}
    sharded = isinstance(row["sharding"], str) and not re.fullmatch(WHOLE_COPIES, row["sharding"])
    if sharded or not words <= ALL_REDUCE:
        return None
    return _known(observations.gradient_bytes(point))


def _run(
    point: Point,
    by_label: pd.DataFrame,
    observations: Observations,
    names: Sequence[str],
    table: str,
) -> ReportedRun:
    """What the table states about a point's configuration; its default name is the table's."""
    row = by_label.loc[point.labels[0]]
    fields: dict[str, Any] = {
        field: round(value)
        for field in KNOWN_NUMBERS
        if field in observations.given and math.isfinite(value := getattr(point, field))
    }
    fields |= {
        field: text for field, column in KNOWN_TEXTS.items() if isinstance(text := row[column], str)
    }
    label = ", ".join(filter(None, [*names, point.strategy])) or fields.get("model") or table
    if len(label) > LONGEST and not any(names) and not point.strategy:
        label = "the table"
    return ReportedRun.of(label, world_size=round(point.world_size), **fields)


class ReportedRun(Run):
    """A configuration in a third-party table; fields not in the table have no value or default.

    Batches and precision are None then, as any run may leave them open. Reading any other such
    field raises AttributeError, so that nothing takes None for a number. Create it only with `of`,
    which skips the checks of a run that can be started.
    """

    configuration: str = ""

    @classmethod
    def of(cls, configuration: str, **fields: Any) -> Self:
        """The configuration of this name, with the known fields of a run."""
        made = cls.model_construct(None, configuration=configuration)
        for name in Run.model_fields:
            made.__dict__.pop(name, None)  # its default
        made.__dict__.update(dict.fromkeys(OPEN) | fields)
        return made

    if not TYPE_CHECKING:  # for a type checker every field exists

        def __getattr__(self, name: str) -> Any:
            """Raise the error for a field that the table leaves open."""
            if name in Run.model_fields:
                raise AttributeError(f"{self.label}: its table does not give {name}")
            return super().__getattr__(name)

    def _conflicts(self) -> Iterator[tuple[str, str]]:
        """No conflicts, as the run is never started and not fully known."""
        return iter(())

    @property
    def script(self) -> None:
        """None: a table tells of no script, and may leave the model open."""
        return None

    @cached_property
    def id(self) -> str:
        """Ten hexadecimal digits of the SHA-256 of its name and its known fields."""
        return hashlib.sha256(repr(sorted(self._known.items())).encode()).hexdigest()[:10]

    @property
    def _known(self) -> dict[str, Any]:
        values = {name: self.__dict__.get(name) for name in (*Run.model_fields, "configuration")}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def names(self) -> dict[str, Any]:
        """Model and data set as the table calls them."""
        return {"model": self._known.get("model"), "data": self._known.get("data")}

    @property
    def label_parts(self) -> list[str]:
        """Its name and its ranks: `batch 64, ddp x4`."""
        return [*filter(None, [self.configuration]), f"x{self.world_size}"]
