"""Layout tables from any source: the model, the layout, the machine and the step time.

Gaps in a table are filled from its notes, and every assumption is listed.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.analysis.audit.columns import named_precision
from lab.analysis.audit.values import COUNT_UNITS, number, ranks_of
from lab.analysis.layout_columns import (
    ASSUMED,
    RATES,
    TEXT,
    UNITS,
    column_values,
    crashed,
    meaning,
    meanings,
    stage,
)
from lab.analysis.layout_page import (
    UNNAMED,
    UNSAID_PRECISION,
    UNSAID_STAGES,
    USUAL_GPUS,
    Page,
    page_of,
    table_defaults,
)
from lab.analysis.layout_row import LACKING, UNTIMED, LayoutRow, layout_row
from lab.analysis.layout_values import completed, enter_gpus, flop_rate, with_defaults
from lab.analysis.layout_words import (
    ADAPTERS,
    DENIED,
    FUSED,
    OTHER_CHIP,
    SENT_ONCE,
    SHARED,
    settings,
)
from lab.errors import InputError, Problem, nearest, require_type
from lab.formatting import count, listed
from lab.perfmodel import layout_law, layout_terms
from lab.perfmodel.frameworks import ANY, OF_MEGATRON_CORE, Framework, named_framework
from lab.perfmodel.hardware import GPUS, named_gpu
from lab.perfmodel.layout_law import LayoutLaw
from lab.perfmodel.layout_terms import Case

MOST_NAMES = 8
MOST_CELLS = 50  # of a column that are looked at
MOST_REACHED = 0.76  # of an A100's peak, recomputed passes counted: FSDP of 70B reached 0.74
# What is assumed of rows, by the fields that mark them.
OF_SOME = {
    "rate_of_gpu": "the rate is that of each GPU, by the row's own FLOP/s or MFU, or because it "
    "would otherwise use almost nothing of them",
    "divided": "no micro-batch size, the largest that fits is assumed",
    "only_size": "the only mixture of experts that is known of that size",
    "shares": "FSDP is assumed, because whole copies of the state would not fit",
}


@dataclass(frozen=True)
class LayoutTable:
    """Rows of a table that can be predicted, what was assumed of them, and why others cannot be.

    `inferred` is what the rows' own times reveal; rows without times need it, too.
    """

    rows: tuple[LayoutRow, ...]
    assumptions: tuple[str, ...]
    left_out: dict[str, int] = field(default_factory=dict)
    name: str = "rows"
    inferred: dict[str, str] = field(default_factory=dict)

    @property
    def measured(self) -> list[LayoutRow]:
        """Rows with a time."""
        return [row for row in self.rows if row.step_s is not None]

    def with_measured(self) -> LayoutTable:
        """The same table; raises InputError if no row has a time."""
        if self.measured:
            return self
        what = f"none ran: {listed(self.notes[len(self.assumptions) :], MOST_NAMES)}"
        raise InputError.of(self.name, "rows", what, "add one with a time or a rate")

    @property
    def cases(self) -> list[Case]:
        """The cases of the measured rows."""
        return [row.case for row in self.measured]

    @property
    def step_s(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The step times of the measured rows, in s."""
        return np.array([row.step_s for row in self.measured], dtype=float)

    @property
    def notes(self) -> list[str]:
        """The assumptions, which rows did not run, and why others were left out, as sentences."""
        failed = sum(row.failed for row in self.rows)
        notes = [*self.assumptions]
        notes += [f"{count(failed, 'row')} crashed or ran out of memory"] if failed else []
        return notes + [f"{count(n, 'row')} left out: {why}" for why, n in self.left_out.items()]


def read_layouts(
    source: str | Path | pd.DataFrame,
    *,
    assume: Mapping[str, Any] | None = None,
    timed: bool = True,
    number: int | None = None,
) -> LayoutTable:
    """Read a file or DataFrame of layouts; `assume` fills in what is missing, such as gpu="a100".

    Of several tables in a text, the longest is read, or the one of this `number`.
    Rows without a time or rate are left out, unless `timed` is false. Raises InputError, with what
    is missing, if no row can be predicted, and for unknown names in `assume`.
    """
    require_type(source, pd.DataFrame | str | Path, "table", "a DataFrame or a file")
    require_type(assume, Mapping | None, "assume", "values by their names, such as {'gpu': 'h100'}")
    page = page_of(source, number)
    name = page.name if isinstance(source, pd.DataFrame) else str(source)
    frame, assumed = page.frame, _assumed(assume or {})
    columns = meanings(frame)
    no_gpu = "gpu" not in {*columns, *assumed}
    if no_gpu and (chip := _other_chip(f"{page.notes}; {_words(frame)}")):
        what = f"the table is of {chip!r}, whose speed is unknown"
        advice = "predict a GPU's times with --assume gpu=h100"
        raise InputError.of(name, "gpu", what, advice)
    cells = _cells(frame, columns, assumed)
    framework = _framework(page, cells)
    every, gpu, assumptions = _values(page, cells, columns, assumed, framework)
    rows, left_out = _rows(every, page, framework, timed=timed)
    if not rows:
        problems = [
            Problem(count(n, "row"), reason + _unread(reason, frame, columns), _advice(reason))
            for reason, n in left_out.items()
        ]
        nothing = [Problem("table", "has no rows", "add one per layout")]
        raise InputError(name, problems or nothing)
    stated, rows = rows, [*map(_in_tf32, rows)]
    if quick := sum(one is not other for one, other in zip(stated, rows, strict=True)):
        assumptions.append(
            f"{count(quick, 'row')}: tf32 instead of fp32, in which no GPU is that fast"
        )
    if all(row.case.candidate.layout.pipeline == 1 for row in rows):
        assumptions = [one for one in assumptions if not one.startswith(UNSAID_STAGES)]
    tables: list[LayoutTable] = []
    for what, value, why in _faster(rows, gpu, assumptions):
        more = {**(assume or {}), what: value}
        table = read_layouts(source, assume=more, timed=timed, number=number)
        inferred = {**table.inferred, what: value}
        tables.append(replace(table, assumptions=(*table.assumptions, why), inferred=inferred))
        if not any(map(_too_fast, table.rows)):
            return tables[-1]
    if tables and "gpu" in tables[0].inferred:  # no usual one equals the table's
        return tables[0]
    experts = any(row.case.model.experts > 1 for row in rows)
    if experts and not any("expert" in values for values in every):
        assumptions.append("the table gives no expert parallelism: each rank has all experts")
    assumptions += _of_some(rows)
    if unused := _unused(frame, columns):
        assumptions.append(f"{count(len(unused), 'column')} not used: {listed(unused, MOST_NAMES)}")
    return LayoutTable(tuple(rows), tuple(assumptions), left_out, page.name)


def _values(
    page: Page,
    cells: Sequence[dict[str, Any]],
    columns: Mapping[str, str],
    assumed: Mapping[str, Any],
    framework: Framework,
) -> tuple[list[dict[str, Any]], str, list[str]]:
    """What is known of each row, the GPU of rows that name none, and sentences on what is assumed.

    A row's own cells come first, then the assumptions of the caller, then the notes.
    """
    precisions = {
        named_precision(str(row["precision"])) or "bf16" for row in cells if "precision" in row
    }
    by_rates = sum(map(enter_gpus, cells))
    said = {name for name in ("gpu", "gpus", "recomputed") if all(name in row for row in cells)}
    defaults, noted = table_defaults(page, {*columns, *assumed, *said}, precisions, framework)
    assumptions = [*page.frame.attrs.get("assumptions", ())]
    if page.sideways:
        assumptions.append("each column after the first is read as a layout")
    assumptions += noted
    if by_rates:
        assumptions.append(
            f"{count(by_rates, 'row')}: the GPUs are the total rate over that of one"
        )
    every = [with_defaults(row, {**defaults, **assumed}) for row in cells]
    assumptions += completed(every, columns)
    if rates := set(map(flop_rate, every)) - {None}:
        attention = "half of attention" if framework.halves_attention else "attention"
        kinds = " and ".join(sorted({"MFU" if rate == "mfu" else "FLOP/s" for rate in rates}))
        assumptions.append(
            f"step times follow from {kinds}: 6 FLOPs per token and parameter, plus {attention}"
        )
    return every, str(defaults.get("gpu")), assumptions


def _rows(
    every: Sequence[Mapping[str, Any]], page: Page, framework: Framework, *, timed: bool
) -> tuple[list[LayoutRow], dict[str, int]]:
    """The rows that can be predicted, and how many others lack what."""
    rows: list[LayoutRow] = []
    left_out: Counter[str] = Counter()
    for place, (values, cells) in enumerate(
        zip(every, page.frame.to_numpy().tolist(), strict=True)
    ):
        if _is_heading(cells):
            continue
        try:
            rows.append(layout_row(place, values, page.notes, framework, timed=timed))
        except ValueError as error:
            left_out[str(error)] += 1
    return rows, dict(left_out)


def _words(frame: pd.DataFrame) -> str:
    """What the names and the cells of a table say."""
    columns = (frame.iloc[:, place] for place in range(frame.shape[1]))
    cells = (cell for column in columns for cell in column.dropna().unique()[:MOST_CELLS])
    return "; ".join(map(str, [*frame.columns, *cells]))


def _other_chip(words: str) -> str:
    """The chip that is named if it is no GPU and no GPU is named, or ""."""
    chip = OTHER_CHIP.search(words)
    return chip[0] if chip and not named_gpu(words) else ""


def _framework(page: Page, cells: Sequence[Mapping[str, Any]]) -> Framework:
    """The framework by the notes, GPUs and precisions, else also by the page's opening and by the
    framework's own acronyms, or by a column that names it in each row, with its dispatcher."""
    notes, words = page.notes, _words(page.frame)
    named = {str(row[name]) for row in cells for name in ("gpu", "precision") if name in row}
    noted = "; ".join([notes, *sorted(named), page.gpu])
    framework = named_framework(noted)
    if framework is ANY:
        own = re.findall(OF_MEGATRON_CORE, words, re.IGNORECASE)
        framework = named_framework("; ".join([page.opening, noted, *own]))
    if framework is ANY:
        framework = _named_in_each_row(page.frame, noted)
    if FUSED.search(DENIED.sub("", f"{notes}; {words}")):
        others = {name: one for name, one in framework.coefficients.items() if name != "scores"}
        framework = replace(framework, coefficients=others)
    if SENT_ONCE.search(f"{notes}; {words}"):
        return replace(framework, dispatches_once=True)
    return framework


def _named_in_each_row(frame: pd.DataFrame, noted: str) -> Framework:
    """The framework that all cells of one column name; rows of several are read as of none."""
    for place in range(frame.shape[1]):
        cells = set(map(str, frame.iloc[:, place]))
        if len(cells) <= MOST_NAMES and all(re.search("[a-z]{3}", cell.lower()) for cell in cells):
            named = {named_framework(f"{noted}; {cell}").name for cell in cells}
            if len(named) == 1 and named != {ANY.name}:
                return named_framework(f"{noted}; {cells.pop()}")
    return ANY


def _is_heading(cells: Sequence[Any]) -> bool:
    """Whether a row holds nothing but a heading of the rows below it."""
    filled = sum(str(cell).strip() not in {"", "nan", "None"} for cell in cells)
    return filled < 2 < len(cells)


def _unused(frame: pd.DataFrame, columns: Mapping[str, str]) -> list[str]:
    """Columns that neither have a meaning nor say a setting in their cells."""
    others = [column for column in frame.columns if column not in columns.values()]
    return [repr(str(name)) for name in others if not any(map(settings, map(str, frame[name])))]


def _of_some(rows: Sequence[LayoutRow]) -> Iterator[str]:
    """What is assumed of some rows only, with their number."""
    for mark, assumed in OF_SOME.items():
        if n := sum(getattr(row, mark) for row in rows):
            yield f"{count(n, 'row')}: {assumed}"
    for kind, n in Counter(row.kind for row in rows if row.kind).items():
        yield f"{count(n, 'row')}: {kind} is predicted as a decoder of its size or sizes"
    if others := sum(row.quoted_batch is not None for row in rows):
        yield (
            f"{count(others, 'row')} quote{'s' * (others == 1)} a batch other than micro-batch x "
            "accumulation x replicas; this product is used"
        )


def _too_fast(row: LayoutRow) -> bool:
    """Whether a row's GPU cannot compute that fast."""
    case, gpus = row.case, row.case.candidate.layout.world_size
    if row.step_s is None:
        return False
    # What is not stated is not counted.
    passes = case.passes if case.recomputed is None else 3.0
    each = case.sequence * case.model.flops_per_token(case.sequence, passes=passes)
    peak = case.machine.gpu.fastest(case.candidate.precision)
    return case.candidate.global_batch * each / row.step_s / gpus > MOST_REACHED * peak


def _in_tf32(row: LayoutRow) -> LayoutRow:
    """The row in tf32, if it is said to be in fp32 but too fast for that; else itself."""
    candidate, gpu = row.case.candidate, row.case.machine.gpu
    if candidate.precision != "fp32" or "tf32" not in gpu.flops or not _too_fast(row):
        return row
    candidate = replace(candidate, precision="tf32")
    return replace(row, case=replace(row.case, candidate=candidate))


def _faster(
    rows: Sequence[LayoutRow], default: str, said: Sequence[str]
) -> list[tuple[str, str, str]]:
    """What a table may have that it does not name, if its rows are too fast without, and why: usual
    GPUs after the `default`, else fp8."""
    if not any(map(_too_fast, rows)):
        return []
    if any(UNNAMED in text for text in said) and default != USUAL_GPUS[-1]:
        slow = f"{UNNAMED}, and {default.upper()}s are too slow for its rows"
        later = [gpu for gpu in USUAL_GPUS if _peak(gpu) > _peak(default)]
        return [("gpu", gpu, f"{gpu.upper()} GPUs, {slow}") for gpu in later]
    gpus = sorted({row.case.machine.gpu.name for row in rows})
    if UNSAID_PRECISION not in said or not all("fp8" in GPUS[gpu].flops for gpu in gpus):
        return []
    slow = f"no {' or '.join(map(str.upper, gpus))} is that fast in bf16"
    why = f"fp8 is assumed, because the table names no precision, and {slow}"
    return [("precision", "fp8", why)]


def _peak(gpu: str) -> float:
    return GPUS[gpu].fastest("bf16")


def _unread(reason: str, frame: pd.DataFrame, columns: Mapping[str, str]) -> str:
    """The cell of a time or rate that is not one number, for a row that lacks both."""
    timed = {meant: columns[meant] for meant in ("time", *RATES) if meant in columns}
    for meant, column in timed.items() if UNTIMED in reason else ():
        cells = frame[column].tolist()
        for cell, value in zip(cells, column_values(meant, column, cells), strict=True):
            if value is None and re.search(r"\d", str(cell)):
                return f" ({column!r} holds {str(cell)!r}, which is not one number)"
    return ""


def _advice(reason: str) -> str:
    """What to do about rows that lack something."""
    if not (lacking := [what for what in LACKING if what in reason.split(", ")]):
        return ""
    assumed = " ".join(f"--assume {LACKING[what]}" for what in lacking if LACKING[what])
    columns = "add a column for it" if len(lacking) == 1 else "add columns for them"
    return f"{columns}, or assume the same for all rows, such as {assumed}" if assumed else columns


def _assumed(assume: Mapping[str, Any]) -> dict[str, Any]:
    """The assumptions as values of cells; raises InputError for unknown names and no numbers."""
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    for said, value in assume.items():
        name = said if said in ASSUMED else meaning(said) or said  # as a column may be called: tp
        if name not in ASSUMED:
            problems.append(Problem(said, "unknown name", nearest(said, ASSUMED)))
        elif name in TEXT:
            values[name] = stage("", str(value).lower()) if name == "zero" else str(value)
        elif not math.isfinite(read := number(value, units=UNITS.get(name, COUNT_UNITS))):
            problems.append(Problem(said, f"{value!r} is not a number", "give one, such as 8"))
        else:
            values[name] = read
    if problems:
        raise InputError("assume", problems)
    return values


def _cells(
    frame: pd.DataFrame, columns: Mapping[str, str], assumed: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """What the cells of each row say, numbers before words; a crash is said as its status."""
    rows: list[dict[str, Any]] = [{} for _ in range(len(frame))]
    for meant, column in columns.items():
        cells = frame[column].tolist()
        for row, cell, value in zip(rows, cells, column_values(meant, column, cells), strict=True):
            unknown = value is None or (value != value and meant in assumed)
            if not unknown:
                row[meant] = value
            if crashed(meant, cell):
                row["status"] = str(cell)
    texts = frame.to_numpy().tolist()
    other = [place for place, name in enumerate(frame.columns) if name not in columns.values()]
    said = [" ".join(str(cells[place]) for place in other) for cells in texts]
    return [_in_words(row, texts[at], said[at]) | row for at, row in enumerate(rows)]


def _in_words(row: Mapping[str, Any], cells: Sequence[Any], others: str) -> dict[str, Any]:
    """What the words of a row say: settings, also in `others` (the cells of columns without a
    meaning of their own), the number of its GPUs, adapters."""
    values = settings(
        " ".join([*(str(row.get(name, "")) for name in ("sharding", "remarks")), others])
    )
    if SHARED & row.keys():
        values.pop("sharding", None)
    if (gpus := ranks_of(row.get("gpu", ""))[0]) and math.isfinite(gpus):
        values["gpus"] = gpus
    if any(isinstance(cell, str) and ADAPTERS.search(cell) for cell in cells):
        values["adapters"] = True
    return values


@dataclass(frozen=True)
class FittedLayouts:
    """A law that was fitted to rows of one table and predicts rows of similar tables."""

    law: LayoutLaw
    table: LayoutTable
    assume: Mapping[str, Any]

    def predict(self, rows: str | Path | pd.DataFrame) -> pd.DataFrame:
        """Step time in s with its 95 % interval for each row that can be predicted.

        The index is the row's position. Columns: `step_s`, `low_s`, `high_s`, and the parts in s.
        Measured times of these rows are not used. Raises InputError.
        """
        table = read_layouts(rows, assume=self.assume, timed=False)
        cases = [row.case for row in table.rows]
        low, high = self.law.intervals(cases)
        parts = layout_terms.parts(layout_terms.quantities(cases), self.law.coefficients)
        content = {"step_s": self.law.predict(cases), "low_s": low, "high_s": high} | parts
        return pd.DataFrame(content, index=[row.place for row in table.rows])


def fit_layouts(
    rows: str | Path | pd.DataFrame, *, assume: Mapping[str, Any] | None = None
) -> FittedLayouts:
    """Fit the law of layouts to measured rows of any table: ten are enough if they vary.

    Columns are guessed by name: GPUs, nodes, dp, tp, pp, cp, ep, ZeRO stage, micro and global batch
    or accumulation, model or layers and width, sequence length, step time or tokens/s, memory,
    status. `assume` gives what the table does not say, such as {"gpu": "a100-40gb", "recomputed":
    "full"}. Rows that crashed are not used. Raises InputError if nothing can be read.
    """
    table = read_layouts(rows, assume=assume).with_measured()
    law = layout_law.fit(table.cases, table.step_s.tolist())
    return FittedLayouts(law, table, {**(assume or {}), **table.inferred})
