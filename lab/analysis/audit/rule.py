"""Audit rules and their findings."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict

from lab.analysis.audit.observations import Observations, UncheckedError

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)  # the gravest first
MOST_RECORDS = 50
SHOWN = 3  # faults of one cause for which a finding gives numbers


class Finding(BaseModel):
    """A fault: the rule, the place, the reason, and what to do.

    An error is wrong, a warning should not be trusted as it stands, a note is worth knowing.
    """

    model_config = ConfigDict(frozen=True)

    rule: str
    severity: Severity
    records: tuple[str, ...]
    evidence: str
    advice: str


class Fault(NamedTuple):
    """What a check yields: row labels, and any advice or severity other than its rule's."""

    records: Iterable[object]
    evidence: str
    advice: str = ""
    severity: Severity | None = None


Comparison = Generator[Fault, None, bool]  # returns whether anything could be compared


@dataclass(frozen=True)
class Rule:
    """A rule: the columns that it `needs`, such as "time or rate, world_size", and its check."""

    name: str
    needs: str
    severity: Severity
    advice: str
    check: Callable[[Observations], Iterator[Fault]]

    def apply(self, observations: Observations) -> list[Finding]:
        """The rule's findings. Raises UncheckedError with what is missing if it cannot apply."""
        needs = self.needs.split(", ")
        lacks = [need for need in needs if observations.known.isdisjoint(need.split(" or "))]
        if lacks:
            raise UncheckedError(*lacks)
        faults: dict[tuple[bool, str], list[Fault]] = {}
        try:
            # An overflow becomes NaN, which takes part in no comparison.
            with np.errstate(all="ignore"):
                for fault in self.check(observations):
                    noted = (fault.severity or self.severity) == "note"
                    faults.setdefault((noted, fault.advice), []).append(fault)
        except UncheckedError:
            if not faults:
                raise
        return [self._finding(alike) for alike in faults.values()]

    def _finding(self, alike: Sequence[Fault]) -> Finding:
        """Faults of one cause, that is with the same advice, as one finding, the gravest first."""
        alike = sorted(alike, key=lambda one: SEVERITIES.index(one.severity or self.severity))
        fault, sentences = alike[0], list(dict.fromkeys(each.evidence for each in alike))
        more = len(sentences) - SHOWN
        records = tuple(dict.fromkeys(str(record) for each in alike for record in each.records))
        evidence = " ".join(sentences[:SHOWN])
        evidence += f" And {more} more like these." if more > 0 else ""
        if len(records) > MOST_RECORDS:
            records = (*records[:MOST_RECORDS], f"and {len(records) - MOST_RECORDS} more")
        return Finding(
            rule=self.name,
            severity=fault.severity or self.severity,
            records=records,
            evidence=evidence,
            advice=fault.advice or self.advice,
        )


def rule(
    name: str, needs: str, *, severity: Severity = "warning", advice: str = ""
) -> Callable[[Callable[[Observations], Iterator[Fault]]], Rule]:
    """Make a check the rule `name`; `severity` and `advice` apply to faults without their own."""
    return lambda check: Rule(name, needs, severity, advice, check)


def seconds(value: float) -> str:
    """A time for a sentence, in s, ms or µs, with enough digits to find it in the table."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        amount = value * scale
        if abs(amount) >= 1 or (unit == "µs" and value):
            return f"{amount:.2f} {unit}" if 0.1 <= abs(amount) < 1e6 else f"{amount:.3g} {unit}"
    return "0 s"
