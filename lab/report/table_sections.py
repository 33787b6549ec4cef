"""Sections of the report on a results table; what the table does not support is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from lab.analysis import proposal
from lab.analysis.audit.columns import PHASES
from lab.analysis.reported import Kind, ReportedTable, Scaling
from lab.analysis.results import StudyResults
from lab.analysis.scaling import MEASURED
from lab.analysis.scaling_curves import (
    baseline_name,
    borrowed_rows,
    device_of,
    measured_rows,
    memory_name,
    ranks,
    rate_name,
    time_name,
    time_units,
)
from lab.figures.scaling import quantities
from lab.formatting import (
    NOT_MEASURED,
    bytes_unit,
    capitalized,
    count,
    format_bytes,
    format_seconds,
    listed,
    percent,
    sentence,
    unit_for,
)
from lab.report import paper, references, sections
from lab.report.blocks import Figure, Markdown, Table, figure

Blocks = list[Markdown | Table | Figure]
MOST_CURVES = 6  # in a figure: as many colours as can be told apart
MOST_SENTENCES = 16
MOST_ROWS = 60  # of a table on a page
MOST_LEFT_OUT = 3  # rows that are named
SHOWN_NOTES = 6
HEADINGS = {"strong": "Strong scaling", "weak": "Weak scaling", "": "Scaling"}
ORIGIN = (
    "All numbers in this report are those of the table or follow from them: nothing was run for "
    "it, and what the table does not give is left out."
)
OPEN = (
    "The table does not say whether the work stays the same on more ranks (strong scaling) or "
    "grows with them (weak scaling), and its times do not show it, so no speedup can be stated. "
    "Give the batch in a column, or use --scaling strong or --scaling weak."
)
GUESSED = {
    "strong": "A time is read as that of equal work on all numbers of ranks (strong scaling).",
    "weak": "The batch per rank is read as fixed (weak scaling).",
    "": "With rates alone, a speedup is their ratio, in strong scaling or in weak scaling.",
}
SAME_SAMPLES = (
    "{time} is read as the time for the same samples on all numbers of ranks. If they grow with "
    "the ranks, say so by --scaling weak."
)
SPREAD = (
    "an interval in brackets is the range that the table gives, or two standard deviations to "
    "either side"
)
OVER_REPEATS = (
    "medians over repeats, with 95 % intervals by order statistics, those of ratios bootstrap "
    "intervals (of two to four repeats their range)"
)
BASELINE = "The baseline is by default the fewest ranks that the table has of a configuration."


@dataclass(frozen=True)
class TableReport:
    """A table with the options of its report."""

    table: ReportedTable
    title: str
    file: str
    command: str
    request: proposal.Request | None = None

    @cached_property
    def parts(self) -> dict[Scaling, StudyResults]:
        """Results by kind of scaling."""
        return {kind: StudyResults(self.table.of_kind(kind)) for kind in self.table.kinds}

    def labelled(self, kind: Scaling, text: str) -> str:
        """A sentence on one kind of scaling, which it names if there are several."""
        return f"{HEADINGS[kind]}: {text}" if len(self.parts) > 1 else text

    @property
    def answers(self) -> list[str]:
        """The headline of each kind of scaling."""
        headlines = {kind: proposal.headline(part.summary) for kind, part in self.parts.items()}
        answers = [self.labelled(kind, text) for kind, text in headlines.items() if text]
        return answers or ["No two rows can be compared, so this table permits no speedup."]

    @property
    def kinds(self) -> list[Scaling]:
        """The kinds of scaling for which a speedup can be stated."""
        return [kind for kind, p in self.parts.items() if p.summary["speedup"].notna().any()]


def head(report: TableReport) -> Blocks:
    """Title, origin, the answer in a sentence or two, and how far to trust it."""
    table = report.table
    rows = f"{count(len(table.frame), 'row')} of {report.file}"
    return [
        Markdown.of(report.title, heading=1),
        Markdown.of(*report.answers, strong=True),
        sections.strip(StudyResults(table)),
        Markdown.of(f"From {rows}. {ORIGIN}"),
        *_notes(table),
    ]


def _notes(table: ReportedTable) -> Blocks:
    notes = [note for note in table.observations.notes if note.strip()]
    if not notes:
        return []
    return [Markdown.of("The table's own notes:"), Markdown.bullets(notes[:SHOWN_NOTES])]


def scaling(report: TableReport) -> Blocks:
    """A section for each kind of scaling: figures, and a row for each configuration."""
    return [
        block for kind, part in report.parts.items() for block in _kind(report.table, kind, part)
    ]


def _kind(table: ReportedTable, kind: Scaling, results: StudyResults) -> Blocks:
    blocks: Blocks = [Markdown(f"## {HEADINGS[kind]}")]
    if results.summary["speedup"].isna().all():
        blocks.append(Markdown.of(OPEN))
    suffix = f"-{kind}" if kind else ""
    if lines := [curve for curve in results.curves if len(curve.points) > 1]:
        # Those most informative about scaling: the most sizes, then the most ranks.
        lines.sort(key=lambda line: (-len(line.points), -line.points["world_size"].max()))
        ids = {run_id for line in lines[:MOST_CURVES] for run_id in line.points["run_id"]}
        records = tuple(record for record in results.records if record.run_id in ids)
        left_out = len(results.curves) - len(lines[:MOST_CURVES])
        drawn = StudyResults(replace(table, records=records))
        blocks.append(_figure(drawn, suffix=suffix, left_out=left_out))
    return [*blocks, _results(results, label=f"tbl-results{suffix}", table=table.name)]


def _figure(results: StudyResults, *, suffix: str, left_out: int) -> Figure:
    """All quantities of the table by number of ranks, with a caption that holds for it."""
    summary, shown = results.summary, len(results.curves)
    columns = {one.column: one.name(summary) for one in quantities(results)}
    names = [name for column, name in columns.items() if column not in {"speedup", "efficiency"}]
    what = [f"{', '.join(names)} as the table gives {'them' if len(names) > 1 else 'it'}"]
    if "speedup" in columns:
        base = baseline_name(summary)
        what.insert(0, f"speedup over {base} and the ideal (dashed), efficiency against {base}")
    lows = summary.filter([f"{column}_low" for column in columns])
    how = f" Bars are intervals: {_how(summary)}." * bool(lows.notna().any(axis=None))
    drawn = figure("overview", results)
    text = f"{'; '.join(what)}; by number of {ranks(device_of(summary))}"
    few = f"{shown} of {shown + left_out} configurations are drawn, those with the most numbers"
    caption = f"{capitalized(text)}.{how}" + f" {few} of ranks." * bool(left_out)
    return replace(drawn, caption=caption, label=drawn.label + suffix)


def _how(summary: pd.DataFrame) -> str:
    """What the values and intervals of a summary mean."""
    if summary["repeats"].max() > 1:
        return OVER_REPEATS
    given = summary[[f"{name}_low" for name in MEASURED]].notna().any(axis=None)
    return SPREAD if given else "one value per configuration"


def _results(results: StudyResults, *, label: str, table: str) -> Table:
    summary = results.summary
    units, of_memory = time_units(summary), bytes_unit(summary["peak_memory"])
    over = f"speedup over {baseline_name(summary)}"
    size = ranks(device_of(summary))
    rows = [
        {
            "configuration": row.label,
            size: str(row["world_size"]),
            time_name(summary): row.text("step_time", units),
            rate_name(summary): row.text("samples_per_second"),
            over: "1 (baseline)" if row.is_baseline else row.text("speedup"),
            "efficiency": row.text("efficiency"),
            memory_name(summary): format_bytes(row["peak_memory"], unit=of_memory),
            "MFU": row.text("mfu"),
            "repeats": str(row["repeats"]),
        }
        for row in measured_rows(summary)
    ]
    return _table(f"Results: {_how(summary)}", rows, label=label, table=table)


def _table(caption: str, rows: list[dict[str, str]], *, label: str, table: str = "") -> Table:
    """A table without columns that are empty, and without `repeats` if all are 1.

    A configuration that all rows share is in the caption, unless it is only called as the `table`.
    """
    useless = {"repeats"} if all(row.get("repeats") == "1" for row in rows) else set()
    if len(rows) > 1 and all(row["configuration"] == table for row in rows):
        useless.add("configuration")
    cells = [{name: row[name] for name in row if name not in useless} for row in rows]
    result = Table.of_rows(caption, cells, shared="configuration", label=label)
    return replace(result, frame=result.frame.replace(NOT_MEASURED, "-"), most=MOST_ROWS)


def parts(report: TableReport) -> Blocks:
    """Where the time goes, if the table says so."""
    rows = []
    names = report.table.observations.given
    measured = [record.reported.parts for record in report.table.records if record.reported]
    units = {part: unit_for(parts.get(part) for parts in measured) for part in PHASES}
    for kind, results in report.parts.items():
        by_run = {record.run_id: record.reported for record in results.records}
        for row in measured_rows(results.summary):
            reported = by_run[row["run_id"]]
            if reported is None or not reported.parts:
                continue
            cells = {"configuration": report.labelled(kind, f"{row.label}, {row.ranks}")}
            for part in PHASES:
                value, whole = reported.parts.get(part), row["step_time"]
                cells[part] = format_seconds(value, unit=units[part], given=True)
                if value is not None and whole > 0:
                    cells[part] += f" ({percent(value / whole)})"
            rows.append(cells)
    if not rows:
        return []
    columns = ", ".join(repr(names[part]) for part in PHASES if part in names)
    caption = f"Parts of the time as the table gives them ({columns}), and their share of it"
    return [Markdown("## Where the time goes"), _table(caption, rows, label="tbl-parts")]


def stop(report: TableReport) -> Blocks:
    """Where to stop, by efficiency and by the law that fits the speedups."""
    sentences = [
        report.labelled(kind, text)
        for kind, results in report.parts.items()
        for say in (proposal.stops, proposal.fits, proposal.step_laws)
        for text in say(results.summary)
    ]
    if not sentences:
        return []
    text = references.cited(Markdown.bullets(sentences, most=MOST_SENTENCES).markdown)
    return [Markdown("## Where to stop"), Markdown(text)]


def request(report: TableReport) -> Blocks:
    """The statements of a compute-time proposal: job sizes and their hours."""
    blocks: Blocks = []
    for kind, results in report.parts.items():
        rows = proposal.costs(results.summary, report.request)
        if not rows:
            continue
        about = f", {HEADINGS[kind].lower()}" if len(report.parts) > 1 else ""
        in_cores = proposal.counts_cores(results.summary, report.request)
        threads = in_cores and bool(results.summary["cores_per_rank"].max() > 1)
        size = ranks(device_of(results.summary))
        product = f"time x {size}{' x threads, each of which counts as a core' * threads}"
        caption = f"Job sizes and their cost: {product}{about}"
        cost = _table(caption, rows, label=f"tbl-cost-{kind or 'open'}", table=report.table.name)
        blocks.append(cost)
        if report.request:
            requests = proposal.requests(results.summary, report.request)
            blocks += [Markdown.bullets(requests, most=MOST_SENTENCES)] if requests else []
    return [Markdown("## For a compute-time proposal"), *blocks] if blocks else []


def audit(report: TableReport) -> Blocks:
    """What in the table cannot be trusted; findings name its rows, not runs."""
    rows = StudyResults(replace(report.table, records=()))
    return [Markdown("## Threats to validity"), *paper.audit(rows)]


def method(report: TableReport) -> Blocks:
    """How the table was read, and the formulas of its speedups."""
    table = report.table
    names = [str(name) for name in table.frame.columns]
    reading = table.observations.reading
    rows = [{"column": name, "read as": reading[name]} for name in names if name in reading]
    turned = " ".join(table.observations.assumptions)  # these name the columns that became rows
    read = {row["column"] for row in rows}
    unread = [name for name in names if name not in read and repr(name) not in turned]
    blocks: Blocks = [Markdown("## How the table was read")]
    if rows:
        blocks.append(Table.of_rows("Columns, as they were read", rows, label="tbl-columns"))
    sentences = [*table.observations.assumptions, *_readings(report)]
    keys = [name for name in unread if f"key:{name}" in table.observations.frame]
    unread = [name for name in unread if name not in keys]
    if keys:
        sentences.append(f"configurations differ in: {', '.join(keys)}")
    if unread and rows:
        sentences.append(f"no quantity was read from: {', '.join(unread)}")
    if sentences:
        blocks.append(Markdown.bullets(sentence(capitalized(text)) for text in sentences))
    texts = [*(sections.LAWS[kind] for kind in report.kinds), BASELINE]
    if report.kinds:
        blocks.append(Markdown(references.cited("\n\n".join(texts))))
    return blocks


def _readings(report: TableReport) -> list[str]:
    """The assumption about the kind of scaling if the table does not declare it."""
    declared = report.table.observations.frame["scaling"].notna().any()
    readings = [] if declared else [GUESSED[kind] for kind in report.kinds]
    reported = [record.reported for record in report.table.records if record.reported]
    units = {one.unit for one in reported}
    observed = report.table.observations
    borrowed = {
        f"{row.label} on {row.ranks} is that of {row['configuration']}"
        for results in report.parts.values()
        for row in borrowed_rows(results.summary)
    }
    if borrowed:
        readings.append(f"As the baseline, {listed(sorted(borrowed), MOST_LEFT_OUT)}.")
    weak = [one for one in reported if one.scaling == "weak"]
    if weak and observed.per != "step" and all(one.time and one.work == 1 for one in weak):
        readings.append(SAME_SAMPLES.format(time=repr(observed.given["time"])))
    empty = observed.frame[["time", "rate"]].isna().all(axis=1)
    if empty.any():
        rows = listed(list(observed.frame.loc[empty, "label"]), MOST_LEFT_OUT)
        readings.append(f"Without a time or rate, and left out: {rows}.")
    sized = any(one.gradient_bytes for one in reported)
    if sized and "bytes" not in observed.given:
        readings.append("Gradients are counted as 4 bytes for each parameter.")
    request, parts = report.request, report.parts.values()
    in_cores = any(proposal.counts_cores(part.summary, request) for part in parts)
    if request and units == {"rank"} and not in_cores:
        readings.append(f"For {request.unit}-hours, each rank counts as one {request.unit}.")
    return readings


def reproduce(report: TableReport) -> list[Markdown]:
    """The references, and the command that reproduces this report, if one made it."""
    command = report.command.replace("```", "'''")
    blocks = [Markdown(f"## Reproduce\n\n```\n{command}\n```")] * bool(command)
    summaries = (part.summary for part in report.parts.values())
    cites = {"strong", "weak"} & set(report.kinds) or OVER_REPEATS in map(_how, summaries)
    return [*([Markdown("## References"), paper.bibliography()] if cites else []), *blocks]


def appendix(report: TableReport) -> Blocks:
    """The table as it was read."""
    frame = report.table.frame.astype(str)
    caption = f"The table as it was read: {report.file}"
    table = Table(caption, frame, index=False, label="tbl-given", most=MOST_ROWS)
    return [Markdown("## Appendix: the table"), table]


def load(
    file: str,
    *,
    columns: Mapping[str, str] | None = None,
    scaling: Kind = "auto",
    baseline: int | None = None,
    title: str = "",
    request: Sequence[Any] | None = None,
    command: str = "",
    number: int | None = None,
) -> TableReport:
    """A file of results, read for its report; `request` is its hours and their unit.

    Raises InputError.
    """
    table = ReportedTable.read(
        file, columns=columns, scaling=scaling, baseline=baseline, number=number
    )
    name = Path(file).name
    applied = proposal.Request(*request) if request else None
    return TableReport(table, title or f"Scaling by {name}", name, command, applied)
