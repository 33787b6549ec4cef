"""Noise: how far results can be trusted, given other processes and the spread of repeats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from lab.analysis.audit import Audit
from lab.analysis.scaling_curves import Estimate, rows_of
from lab.config.run import distinct_labels
from lab.config.study import Study
from lab.formatting import count, listed, percent, range_of
from lab.records.schema import FOREIGN_SHARE, Environment, GpuState
from lab.records.store import Record
from lab.records.table import by_run

MOST = 0.5  # share of a configuration's repeats that may be disturbed before none is trusted
NAMED = 4  # configurations in a sentence


@dataclass(frozen=True)
class Noise:
    """What disturbed completed repeats, and the spread within each configuration.

    `steps` are the median step (in s) or, without steps, the rate of each run id, with intervals;
    `again` is the command that measures disturbed repeats again.
    """

    records: tuple[Record, ...]
    steps: Mapping[str, Estimate]
    again: str

    def trustworthy(self, run_ids: Iterable[str]) -> bool:
        """Whether conclusions can be drawn from all of these configurations."""
        return self.loud.keys().isdisjoint(run_ids)

    def quiet(self, summary: pd.DataFrame) -> pd.DataFrame:
        """The rows of a summary that, with their baselines, support conclusions."""
        loud = summary["run_id"].isin(self.loud) | summary["baseline_run_id"].isin(self.loud)
        return summary[~loud]

    @cached_property
    def loud(self) -> dict[str, list[Record]]:
        """The disturbed repeats of configurations in which most repeats were disturbed."""
        loud = {}
        for run_id, records in self._by_run.items():
            noisy = [record for record in records if record.noisy]
            judged = [place for place in _places(records) if place.was_watched]
            if len(noisy) > MOST * len(judged):
                loud[run_id] = noisy
        return loud

    @property
    def sentence(self) -> str:
        """What is too noisy to explain, and which repeats to measure again; else empty."""
        if not self.loud:
            return ""
        noisy = [record for records in self.loud.values() for record in records]
        labels, _ = distinct_labels([records[0].run for records in self._by_run.values()])
        names = [f"{labels[one[0].run]} ({_repeats(one)})" for one in self.loud.values()]
        of_loud = [one for run_id in self.loud for one in self._by_run[run_id]]
        known = " whose load is known" * (not all(place.was_watched for place in _places(of_loud)))
        return (
            f"Too noisy to explain: {disturbances(_places(noisy))} in most repeats{known} of "
            f"{len(self.loud)} of {count(len(self._by_run), 'configuration')}: "
            f"{listed(names, NAMED)}{self._command}."
        )

    @property
    def caveats(self) -> list[str]:
        """What was measured again, and what is too noisy, or else what was disturbed at all."""
        total, sentences = len(self.records), []
        if again := sum(record.disturbed is not None for record in self.records):
            sentences.append(
                f"Disturbed and measured again: {again} of {total} repeats; the quieter of the two "
                "attempts counts, and the other is kept."
            )
        noisy = [record for record in self.records if record.noisy]
        if self.loud:
            sentences.append(self.sentence)
        elif noisy:
            sentences.append(
                f"In {len(noisy)} of {total} repeats {disturbances(_places(noisy))}: their "
                f"times may be too long{self._command}."
            )
        return sentences

    def strip(self, audit: Audit | None = None, *, run_ids: Iterable[str] | None = None) -> str:
        """One line: repeats, interval, other load, and the audit's worst finding.

        It covers all configurations, or some; `audit` is the study's, left out if None.
        """
        ids = set(self._by_run) if run_ids is None else set(run_ids)
        groups = [records for run_id, records in self._by_run.items() if run_id in ids]
        if not groups:
            return "no completed repeat"
        records = [record for group in groups for record in group]
        places = _places(records)
        spread_given = any(record.reported and record.reported.interval for record in records)
        repeats = "repeats not given" if spread_given else range_of(map(len, groups), "repeat")
        parts = [repeats, *self._interval(ids), _load(places, "at most")]
        if gpus := _gpus(places):
            parts += _troubles(gpus) or ["GPUs neither shared nor throttled"]
            parts += _at_power_limit(gpus)
        return " · ".join([*parts, *([_worst(audit)] if audit else [])])

    @cached_property
    def _by_run(self) -> dict[str, list[Record]]:
        return by_run(self.records)

    @property
    def _command(self) -> str:
        return f"; {self.again} measures them again" if self.again else ""

    def _interval(self, run_ids: Iterable[str]) -> list[str]:
        """The widest interval of these steps; empty if no steps were timed."""
        steps = [self.steps[run_id] for run_id in run_ids if run_id in self.steps]
        if not steps:
            return []
        widths = [(high - low) / 2 / step for step, low, high in steps if high >= low]
        if not widths:
            return ["no interval"]
        some = "interval" if len(steps) == 1 else "intervals up to"
        return [f"{some} ±{100 * max(widths):.1f} %"]


def judge(records: Sequence[Record], summary: pd.DataFrame, *, study: Study | None = None) -> Noise:
    """The noise in records and their summary; `study` names what to measure again."""
    completed = tuple(record for record in records if record.completed)
    clusters = {record.environment.profile for record in completed if record.environment}
    again = f"{study.command('run', clusters, public=True)} --repeat-disturbed" if study else ""
    steps = {
        row["run_id"]: row.estimate("step_time" if row["step_time"] > 0 else "samples_per_second")
        for row in rows_of(summary)
    }
    return Noise(completed, steps, again)


def disturbances(places: Sequence[Environment]) -> str:
    """What disturbed the measurements of these environments, in a clause."""
    taken = [place for place in places if (place.foreign_share or 0.0) > FOREIGN_SHARE]
    clauses = [_load(taken, "up to")] if taken else []
    return " and ".join([*clauses, *_troubles(_gpus(places))])


def _places(records: Iterable[Record]) -> list[Environment]:
    return [record.environment for record in records if record.environment]


def _gpus(places: Iterable[Environment]) -> list[GpuState]:
    return [state for place in places for state in place.gpu_states or ()]


def _troubles(gpus: Sequence[GpuState]) -> list[str]:
    """What shared or slowed the GPUs, in clauses."""
    shared = any(gpu.other_processes for gpu in gpus)
    names = sorted({name for gpu in gpus for name in gpu.throttled})
    throttled = [f"GPUs were throttled ({', '.join(names)})"] if names else []
    return [*["other processes used the ranks' GPUs"] * shared, *throttled]


def _at_power_limit(gpus: Sequence[GpuState]) -> list[str]:
    """How often power limited the clock of a GPU: no disturbance, but a reason for a low MFU."""
    most = max(gpu.reasons.get("sw_power_cap", 0.0) for gpu in gpus)
    return [f"power limited clocks in up to {percent(most)} of samples"] * (most > FOREIGN_SHARE)


def _load(places: Sequence[Environment], limit: str) -> str:
    """The largest share that other processes took of the cores in any of these environments."""
    shares = [place.foreign_share for place in places if place.foreign_share is not None]
    if not shares:
        return "load from other processes not known"
    most = 100 * max(shares)
    share = "less than 1 %" if most < 0.5 else f"{limit} {most:.0f} %"
    return f"other processes took {share} of the ranks' cores"


def _repeats(records: Sequence[Record]) -> str:
    numbers = [str(record.repeat) for record in records]
    return f"repeat{'s' * (len(numbers) > 1)} {', '.join(numbers)}"


def _worst(audit: Audit) -> str:
    if not audit.conclusive:
        return "audit: too little to say"
    grave = [finding for finding in audit.findings if finding.severity != "note"]
    if not grave:
        return "audit: no warning"
    more = f" and {len(grave) - 1} more" if len(grave) > 1 else ""
    return f"audit: {grave[0].severity} {grave[0].rule}{more}"
