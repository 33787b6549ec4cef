"""The audit: rules that a trustworthy study obeys, applied to observations of anybody's results."""

from __future__ import annotations

import html

import numpy as np
from pydantic import BaseModel, ConfigDict

from lab.analysis.observations import Observations
from lab.analysis.rule import Finding, UncheckedError
from lab.analysis.rules import RULES

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
            lines += [f"{finding.severity.upper():7} {finding.rule}: {finding.evidence}", f"        {finding.advice}"]
            lines.append(f"        in {_few(finding.records)}")
        lines += [f"not checked: {rule.rule} lacks {', '.join(rule.lacks)}" for rule in self.not_checked]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        cells = [(f.severity, f.rule, f.evidence, f.advice, _few(f.records)) for f in self.findings]
        head = "".join(f"<th>{name}</th>" for name in ("severity", "rule", "evidence", "what to do", "records"))
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in cells)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if cells else ""
        unchecked = "; ".join(html.escape(f"{rule.rule} (lacks {', '.join(rule.lacks)})") for rule in self.not_checked)
        return f"<p>{html.escape(self._summary())}</p>{table}" + (f"<p>Not checked: {unchecked}.</p>" if unchecked else "")

    def _summary(self) -> str:
        checked = len(RULES) - len(self.not_checked)
        counts = [(word, sum(finding.severity == word for finding in self.findings)) for word in ORDER]
        told = ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for word, count in counts if count)
        return f"{checked} of {len(RULES)} rules checked: {told or 'nothing found'}."


def audit(seen: Observations) -> Audit:
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
            with np.errstate(all="ignore"):  # what overflows is no number and takes part in no comparison
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
