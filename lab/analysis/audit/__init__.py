"""The audit of a study, of records, or of a table that anybody wrote."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from lab.analysis.audit.observations import Observations
from lab.analysis.audit.rule import Finding, UncheckedError
from lab.analysis.audit.rules import RULES
from lab.analysis.audit.text_table import read_table
from lab.config.study import Study
from lab.errors import InputError, Problem
from lab.records.store import Record, load_records

if TYPE_CHECKING:
    import pandas as pd


TABLE_SUFFIXES = {".csv", ".tsv", ".txt", ".dat", ".tab"}


def audit(
    source: Study | Sequence[Record] | pd.DataFrame | str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    calibration: float | Mapping[int, float] | None = None,
) -> Audit:
    """What in a study, in records or in a table cannot be trusted.

    `source` is a study or its name or folder, records, a DataFrame, or the path of a CSV file; `columns` says which
    column of a table is what, as {canonical name: column}, and the rest is guessed; `calibration` is the bus bandwidth
    of the links in bytes/s, alone or by world size.

    Raises InputError for a source that cannot be read and for a mapping that does not fit.
    """

    seen = _observed(source, columns)
    if calibration is None and isinstance(source, Study):
        calibration = _calibrated(source)
    if calibration:
        by_size = dict(calibration) if isinstance(calibration, Mapping) else {0: float(calibration)}
        seen = replace(seen, calibrated=by_size)
    return apply_rules(seen)


def _observed(source: Any, columns: Mapping[str, str] | None) -> Observations:
    import pandas as pd

    from lab.analysis.audit.observations import from_records
    from lab.analysis.audit.table import from_table

    if isinstance(source, pd.DataFrame):
        return from_table(source, columns=columns)
    if isinstance(source, str | Path) and _is_table(Path(source)):
        return from_table(read_table(source, columns), columns=columns, source=str(source))
    if columns:
        raise InputError(
            "columns",
            [Problem("columns", "a mapping is for tables", "records name their own columns")],
        )
    study = Study.load(source) if isinstance(source, str | Path) else source
    if isinstance(study, Study):
        return from_records(load_records(study), scaling=study.scaling, baseline=study.baseline)
    records = list(study)
    wrong = next((item for item in records if not isinstance(item, Record)), None)
    if wrong is not None:
        raise InputError(
            "source",
            [
                Problem(
                    "source",
                    f"a {type(wrong).__name__} is no record",
                    "give records, a study or a table",
                )
            ],
        )
    return from_records(records)


def _calibrated(study: Study) -> dict[int, float]:
    """Bus bandwidth in bytes/s of all-reduce by world size, where the study's one cluster is calibrated."""
    from lab.perfmodel.calibration import load_calibration

    clusters = {record.environment.cluster for record in load_records(study) if record.environment}
    if len(clusters) != 1:
        return {}
    try:
        found = load_calibration(clusters.pop())
    except InputError:
        return {}
    best: dict[int, float] = {}
    for row in found.rows if found else ():
        if row.collective == "all_reduce":
            best[row.world_size] = max(best.get(row.world_size, 0.0), row.busbw)
    return best


def _is_table(path: Path) -> bool:
    return not path.is_dir() and (path.is_file() or path.suffix.lower() in TABLE_SUFFIXES)


__all__ = ["Audit", "Finding", "NotChecked", "audit"]
ORDER = {"error": 0, "warning": 1, "note": 2}
NAMED = 4  # records that people read before "and more"


class NotChecked(BaseModel):
    """A rule that could not be applied, and what it lacks."""

    model_config = ConfigDict(frozen=True)

    rule: str
    lacks: tuple[str, ...]


class Audit(BaseModel):
    """What in a study or table cannot be trusted, the gravest first, and what could not be checked."""

    model_config = ConfigDict(frozen=True)

    findings: tuple[Finding, ...]
    not_checked: tuple[NotChecked, ...]

    @property
    def trustworthy(self) -> bool:
        """Whether no finding is an error or a warning; notes do not count."""
        return all(finding.severity == "note" for finding in self.findings)

    def __str__(self) -> str:
        lines = [self._summary()]
        for finding in self.findings:
            lines += [
                f"{finding.severity.upper():7} {finding.rule}: {finding.evidence}",
                f"        {finding.advice}",
            ]
            lines.append(f"        in {_few(finding.records)}")
        lines += [
            f"not checked: {rule.rule} lacks {', '.join(rule.lacks)}" for rule in self.not_checked
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        cells = [(f.severity, f.rule, f.evidence, f.advice, _few(f.records)) for f in self.findings]
        head = "".join(
            f"<th>{name}</th>" for name in ("severity", "rule", "evidence", "what to do", "records")
        )
        body = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in cells
        )
        table = (
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if cells else ""
        )
        unchecked = "; ".join(
            html.escape(f"{rule.rule} (lacks {', '.join(rule.lacks)})") for rule in self.not_checked
        )
        return f"<p>{html.escape(self._summary())}</p>{table}" + (
            f"<p>Not checked: {unchecked}.</p>" if unchecked else ""
        )

    def _summary(self) -> str:
        checked = len(RULES) - len(self.not_checked)
        counts = [
            (word, sum(finding.severity == word for finding in self.findings)) for word in ORDER
        ]
        told = ", ".join(
            f"{count} {word}{'' if count == 1 else 's'}" for word, count in counts if count
        )
        return f"{checked} of {len(RULES)} rules checked: {told or 'nothing found'}."


def apply_rules(seen: Observations) -> Audit:
    """Apply every rule; one that lacks its columns is listed as not checked, never as passed."""
    findings: list[Finding] = []
    unchecked: list[NotChecked] = []
    for rule in RULES:
        missing = tuple(" or ".join(group) for group in rule.needs if not seen.known & set(group))
        if missing:
            unchecked.append(NotChecked(rule=rule.name, lacks=missing))
            continue
        told: list[Finding] = []
        try:
            with np.errstate(
                all="ignore"
            ):  # what overflows is no number and takes part in no comparison
                told.extend(rule.check(seen))
        except UncheckedError as error:
            if not told:
                unchecked.append(NotChecked(rule=rule.name, lacks=error.lacks))
        findings += told
    findings.sort(key=lambda finding: ORDER[finding.severity])
    return Audit(findings=tuple(findings), not_checked=tuple(unchecked))


def _few(records: tuple[str, ...]) -> str:
    more = len(records) - NAMED
    return "; ".join(records[:NAMED]) + (f"; and {more} more" if more > 0 else "")
