"""The audit of a study, of records, or of any results table: what in it cannot be trusted."""

from __future__ import annotations

import difflib
import html
import math
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from lab.analysis.audit.formats import spreadsheet
from lab.analysis.audit.observations import Observations, UncheckedError
from lab.analysis.audit.rule import SEVERITIES, Finding
from lab.analysis.audit.rules import RULES
from lab.analysis.audit.text_table import STREAM, left_out, read_table, read_tables
from lab.config.study import STUDY_FILE, Study
from lab.errors import InputError, items, require_type
from lab.formatting import count, html_table, listed
from lab.records.store import Record, load_records
from lab.records.table import grouped, python_strings

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["RULES", "Audit", "Finding", "NotChecked", "audit", "is_table"]

TABLE_SUFFIXES = {".csv", ".tsv", ".txt", ".dat", ".tab", ".md", ".tex", ".html", ".parquet"}
TABLE_SUFFIXES |= spreadsheet.SUFFIXES | spreadsheet.OTHERS
COLUMNS = "columns by the quantities that they hold, such as {'world_size': 'workers'}"
NAMED = 4  # records that a sentence names before "and more"
FEWEST_CHECKED = 3  # rules; with fewer, finding no fault means nothing


def audit(
    source: Study | Sequence[Record] | pd.DataFrame | str | Path | IO[Any],
    *,
    columns: Mapping[str, str] | None = None,
    calibration: float | Mapping[int, float] | None = None,
    records: Sequence[Record] | None = None,
    number: int | None = None,
) -> Audit:
    """Audit a study, records or a table: report what cannot be trusted.

    `source` is a study or its name or folder, records, a DataFrame, or the path or open stream of
    tables, of which those that say most of scaling are audited, or only the one of that `number`.
    `columns` maps canonical names to columns of a table; the rest is guessed. `calibration` is the
    bus bandwidth of the links in bytes/s, one number or by world size. `records` are those of the
    study, if they are already loaded.

    Raises InputError for a source that cannot be read and for a mapping that does not match it.
    """
    if isinstance(source, str | Path) and not is_table(source) and not columns:
        source = Study.load(source)
    if isinstance(source, Study):
        about = "records", "the records of the study"
        records = load_records(source) if records is None else items(records, Record, *about)
        calibration = _calibration(records) if calibration is None else calibration
    require_type(columns, Mapping | None, "columns", COLUMNS)
    wanted = "bytes/s, or a mapping of world sizes to them"
    require_type(calibration, Mapping | Real | None, "calibration", wanted)
    observed = _observations(source, columns, records or (), number)
    if calibration is not None:
        by_size = calibration if isinstance(calibration, Mapping) else {0: float(calibration)}
        _require_bandwidths(by_size)
        observed = [replace(observations, calibrated=by_size) for observations in observed]
    audits = [*map(apply_rules, observed)]
    return audits[0] if len(audits) == 1 else _together(audits)


def _require_bandwidths(by_size: Mapping[int, float]) -> None:
    for size, rate in by_size.items():
        if not (isinstance(rate, Real) and 0 < rate < math.inf):
            where = f"calibration[{size}]" if size else "calibration"
            advice = "give a positive number of bytes/s"
            raise InputError.of("argument", where, f"cannot be {rate!r}", advice)


def is_table(source: object) -> bool:
    """Whether this is the path of a file that is not a study's, or looks like that of a table."""
    if not isinstance(source, str | Path) or (path := Path(source)).name == STUDY_FILE:
        return False
    like_one = difflib.get_close_matches(path.suffix.lower(), TABLE_SUFFIXES, cutoff=0.75)
    return path.is_file() or (bool(like_one) and not path.is_dir())


def _observations(
    source: Any,
    columns: Mapping[str, str] | None,
    loaded: Sequence[Record],
    number: int | None,
) -> list[Observations]:
    """Those of each table, or of the records; `loaded` are a study's."""
    import pandas as pd

    from lab.analysis.audit.records import from_records
    from lab.analysis.audit.table import from_table

    if hasattr(source, "read") or is_table(source):
        name = STREAM if hasattr(source, "read") else str(source)
        one = [] if number is None else [read_table(source, columns, number=number)]
        return _of_tables(one or read_tables(source, columns), columns, name)
    if number is not None:
        raise InputError.of("audit", "number", "is only for the tables of a text", "leave it out")
    if isinstance(source, pd.DataFrame):
        return [from_table(source, columns=columns)]
    if columns:
        raise InputError.of(
            "columns", "columns", "can be mapped only for tables", "records name their own columns"
        )
    if isinstance(source, Study):
        return [from_records(loaded, scaling=source.scaling, baseline=source.baseline)]
    source = items(source, Record, "source", "a study, a table or a list of records")
    for item in source:
        if item.reported is not None:
            raise InputError.of(
                "source", "source", "records of a table", "audit the table itself, which holds more"
            )
    # Whether a script keeps its work equal is known only to its study.
    unknown = bool(source) and all(record.run.script for record in source)
    return [from_records(source, scaling="none" if unknown else None)]


def _of_tables(
    frames: Sequence[pd.DataFrame], columns: Mapping[str, str] | None, source: str
) -> list[Observations]:
    from lab.analysis.audit.table import from_table

    tables: list[Observations] = []
    errors: list[InputError] = []
    for frame in frames:
        try:
            tables.append(from_table(frame, columns=columns, source=source))
        except InputError as error:
            errors.append(error)
    if not tables:
        raise errors[0]
    tables[0] = replace(tables[0], assumptions=[*tables[0].assumptions, *left_out(errors)])
    # Speedups and efficiencies may have tables of their own.
    counted = [table.given.get("world_size") for table in tables]
    timed = [bool({"time", "rate"} & table.known) for table in tables]
    alone = {
        name
        for table, name, of_times in zip(tables, counted, timed, strict=True)
        if of_times and (table.frame["world_size"] == 1).any()
    }
    return [
        replace(table, one_elsewhere=not of_times and name in alone)
        for table, name, of_times in zip(tables, counted, timed, strict=True)
    ]


def _calibration(records: Sequence[Record]) -> dict[int, float]:
    """All-reduce bus bandwidth in bytes/s by world size, if the study's one cluster has any.

    What was measured beside other processes is left out: it is no limit of the link.
    """
    from lab.perfmodel.calibration import find_calibration

    clusters = {record.environment.profile for record in records if record.environment}
    if len(clusters) != 1:
        return {}
    calibration = find_calibration(clusters.pop())
    if calibration is None:
        return {}
    best: dict[int, float] = {}
    quiet = {part.world_size for part in calibration.parts if not part.disturbed}
    for row in calibration.rows:
        if row.collective == "all_reduce" and row.world_size in quiet:
            best[row.world_size] = max(best.get(row.world_size, 0.0), row.busbw)
    return best


class NotChecked(BaseModel):
    """A rule that could not be applied, and what was missing for it."""

    model_config = ConfigDict(frozen=True)

    rule: str
    lacks: tuple[str, ...]


class Audit(BaseModel):
    """The findings, most severe first, and which rules were and were not checked.

    `reading` states how each column of a table was interpreted, `assumptions` what was assumed,
    `configurations` names those of records by run id. If several tables of a text were audited,
    `tables` has the audit of each, whose `number` and `place` say which it is.
    """

    model_config = ConfigDict(frozen=True)

    findings: tuple[Finding, ...]
    not_checked: tuple[NotChecked, ...]
    checked: tuple[str, ...] = ()
    reading: dict[str, str] = Field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    configurations: dict[str, str] = Field(default_factory=dict, exclude=True)
    number: int = Field(default=1, exclude=True)
    place: str = Field(default="", exclude_if=operator.not_)
    tables: tuple[Audit, ...] = Field(default=(), exclude_if=operator.not_)

    @property
    def trustworthy(self) -> bool:
        """Whether no finding is an error or a warning; notes do not count."""
        return all(finding.severity == "note" for finding in self.findings)

    @property
    def gaps(self) -> str:
        """Which rules were not checked, and what each lacks."""
        rules = (f"{rule.rule} (lacks {', '.join(rule.lacks)})" for rule in self.not_checked)
        return f"Not checked: {'; '.join(rules)}."

    @property
    def conclusive(self) -> bool:
        """Whether a fault was found, or enough was checked for a clean result to mean something."""
        return len(self.checked) >= FEWEST_CHECKED or not self.trustworthy

    def __str__(self) -> str:
        lines = [self.summary, *self._index()]
        for heading, audit in self._parts():
            lines += ([f"{heading}:"] if heading else []) + audit._lines()
        lines += [
            f"not checked: {rule.rule} lacks {', '.join(rule.lacks)}" for rule in self.not_checked
        ]
        return "\n".join(lines)

    def _parts(self) -> list[tuple[str, Audit]]:
        """The audit of each table with its heading, or the only one without."""
        if not self.tables:
            return [("", self)]
        return [(f"table {audit.number}, {audit.place}", audit) for audit in self.tables]

    def _index(self) -> list[str]:
        """In which of several tables the errors and warnings are."""
        places = grouped(
            ((finding.severity, finding.rule), str(table.number))
            for table in self.tables
            for finding in table.findings
            if finding.severity != "note"
        )
        return [
            f"{severity} {rule} in {'table' if len(tables) == 1 else 'tables'} {', '.join(tables)}"
            for (severity, rule), tables in places.items()
        ]

    def _lines(self) -> list[str]:
        lines = [f"read: {self._read()}"] if self.reading else []
        lines += [f"assumed: {assumption}" for assumption in self.assumptions]
        for finding in self.findings:
            lines += [
                f"{finding.severity.upper():7} {finding.rule}: {finding.evidence}",
                f"        {finding.advice}",
                f"        in {listed(finding.records, NAMED)}",
            ]
        return lines + self._legend()

    def _legend(self) -> list[str]:
        """The configurations whose run ids the findings show."""
        shown = " ".join(f"{one.evidence} {listed(one.records, NAMED)}" for one in self.findings)
        return [
            f"{run_id} is {name}" for run_id, name in self.configurations.items() if run_id in shown
        ]

    def _repr_html_(self) -> str:
        page = "".join(f"<p>{html.escape(line)}</p>" for line in (self.summary, *self._index()))
        for heading, audit in self._parts():
            page += (f"<p><b>{html.escape(heading)}</b></p>" if heading else "") + audit._html()
        if self.not_checked:
            page += f"<p>{html.escape(self.gaps)}</p>"
        return page

    def _html(self) -> str:
        page = f"<p>Read: {html.escape(self._read())}.</p>" if self.reading else ""
        if self.assumptions:
            page += f"<p>Assumed: {html.escape('; '.join(self.assumptions))}.</p>"
        if self.findings:
            page += html_table(
                {
                    "severity": one.severity,
                    "rule": one.rule,
                    "evidence": one.evidence,
                    "what to do": one.advice,
                    "records": listed(one.records, NAMED),
                }
                for one in self.findings
            )
        if legend := self._legend():
            page += f"<p>{html.escape('; '.join(legend))}.</p>"
        return page

    @property
    def summary(self) -> str:
        """How many rules were checked, and how many findings of each severity there are."""
        severities = [finding.severity for finding in self.findings]
        counts = {severity: severities.count(severity) for severity in SEVERITIES}
        summary = ", ".join(
            count(number, severity) for severity, number in counts.items() if number
        )
        checked = f"Checked {len(RULES) - len(self.not_checked)} of {len(RULES)} rules"
        checked += f" in {len(self.tables)} tables" if self.tables else ""
        if self.conclusive:
            return f"{checked}: {summary or 'nothing found'}."
        verdict = f"{checked}: too little to say{f' ({summary})' if summary else ''}."
        lacks = Counter(lack for rule in self.not_checked for lack in rule.lacks)
        helpful = [f"{lack} ({count(rules, 'rule')})" for lack, rules in lacks.most_common(NAMED)]
        return f"{verdict} More rules could be checked with: {'; '.join(helpful)}."

    def _read(self) -> str:
        return ", ".join(f"{column!r} as {meaning}" for column, meaning in self.reading.items())


@python_strings()
def apply_rules(observations: Observations) -> Audit:
    """Apply every rule; one that lacks its columns is listed as not checked, never as passed."""
    findings: list[Finding] = []
    unchecked: list[NotChecked] = []
    checked: list[str] = []
    for rule in RULES:
        try:
            findings += rule.apply(observations)
            checked.append(rule.name)
        except UncheckedError as error:
            unchecked.append(NotChecked(rule=rule.name, lacks=error.args))
    return Audit(
        findings=_gravest_first(findings),
        not_checked=tuple(unchecked),
        checked=tuple(checked),
        reading=dict(observations.reading),
        assumptions=tuple(observations.assumptions),
        configurations=dict(observations.configurations),
        number=observations.number,
        place=observations.place,
    )


def _gravest_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def _together(tables: Sequence[Audit]) -> Audit:
    """The audits of several tables as one, whose records name their table.

    A rule counts as not checked if it was in none of them.
    """
    findings = [
        finding.model_copy(
            update={"records": tuple(f"table {table.number}, {one}" for one in finding.records)}
        )
        for table in tables
        for finding in table.findings
    ]
    checked = {rule for table in tables for rule in table.checked}
    lacking = {rule.rule: rule for table in tables for rule in table.not_checked}
    return Audit(
        findings=_gravest_first(findings),
        not_checked=tuple(rule for name, rule in lacking.items() if name not in checked),
        checked=tuple(rule.name for rule in RULES if rule.name in checked),
        reading={name: read for table in reversed(tables) for name, read in table.reading.items()},
        assumptions=tuple(dict.fromkeys(one for table in tables for one in table.assumptions)),
        tables=tuple(tables),
    )
