"""What a rule of the audit is, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from lab.analysis.audit.observations import Observations

Severity = Literal["error", "warning", "note"]
MOST_RECORDS = 50


class Finding(BaseModel):
    """A fault: which rule, how grave (error: wrong; warning: not to be trusted as it stands; note: worth knowing), where, why."""

    model_config = ConfigDict(frozen=True)

    rule: str
    severity: Severity
    records: tuple[str, ...]
    evidence: str
    advice: str


class Rule(NamedTuple):
    """A rule by its name: what it needs (of each group one column) and what it says about observations."""

    name: str
    needs: tuple[tuple[str, ...], ...]
    check: Callable[[Observations], Iterator[Finding]]


class UncheckedError(Exception):
    """A rule cannot be applied; `lacks` says what is missing."""

    def __init__(self, *lacks: str) -> None:
        self.lacks = lacks
        super().__init__(", ".join(lacks))


def found(
    rule: str, severity: Severity, records: Iterable[object], evidence: str, advice: str
) -> Finding:
    """A finding; of many records the first MOST_RECORDS are named."""
    names = tuple(dict.fromkeys(str(record) for record in records))
    if len(names) > MOST_RECORDS:
        names = (*names[:MOST_RECORDS], f"and {len(names) - MOST_RECORDS} more")
    return Finding(rule=rule, severity=severity, records=names, evidence=evidence, advice=advice)


def fixed(value: float) -> str:
    """A number for a sentence: enough digits to find it again in the table."""
    return f"{value:.2f}" if 0.1 <= abs(value) < 1e6 else f"{value:.3g}"


def seconds(value: float) -> str:
    """A time for a sentence, in s, ms or µs."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if abs(value) * scale >= 0.1:
            return f"{fixed(value * scale)} {unit}"
    return f"{fixed(value * 1e6)} µs" if value else "0 s"
