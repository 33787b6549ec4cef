"""Sentences for the report, each made from numbers; where numbers support none, there is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from lab.analysis.bottlenecks import limits
from lab.analysis.laws import fit_amdahl
from lab.analysis.scaling_curves import curves, ranks
from lab.config.run import Run
from lab.config.study import Study
from lab.formatting import format_seconds, percent, rounded
from lab.records.schema import FOREIGN_CPU, PHASES
from lab.records.store import Record

EXPOSED = "exposed communication"
STATUS_WORDS = {
    "failed": "failed",
    "oom": "out of memory",
    "timeout": "timed out",
    "preempted": "preempted",
    "cancelled": "cancelled",
}


def answer(study: Study, summary: pd.DataFrame, records: Sequence[Record]) -> str:
    """The answer to the study's question in one sentence: the highest throughput, and the speedup at the most ranks.

    Where some results are emulated and others measured, it is that of the measured ones.
    """
    if summary.empty:
        return f"There is no answer yet: no run has completed ({len(study.runs)} asked for, {len(records)} records)."
    summary = _apart(summary)[0]
    best = _fastest(summary)
    labels = _labels(summary)
    rate = _with_interval(best, "samples_per_second")
    opening = f"The highest throughput measured is {rate} samples/s, on {_place(best, labels)}"
    beyond = summary[summary["speedup"].notna() & (summary["run_id"] != summary["baseline_run_id"])]
    if beyond.empty:
        return f"{opening}; no speedup can be stated, because {_why_no_speedup(study, summary)}."
    widest = beyond[beyond["world_size"] == beyond["world_size"].max()]
    row = _fastest(widest)
    where = "there" if row["run_id"] == best["run_id"] else f"on {_place(row, labels)}"
    return f"{opening}; {where}, {_speedup(row, summary, labels)}."


def findings(study: Study, summary: pd.DataFrame, records: Sequence[Record]) -> list[str]:
    """What else the numbers support, one sentence each, in a stable order."""
    if summary.empty:
        return []
    return [
        *emulated(records),
        *(sentence for part in _apart(summary) for sentence in _of_numbers(study, part)),
        *few_repeats(summary),
        *shared_cores(records),
        *disturbed(records),
    ]


def _of_numbers(study: Study, summary: pd.DataFrame) -> Iterator[str]:
    yield from _speedups(summary)
    yield from _serial_fractions(summary) if study.scaling == "strong" else ()
    yield from _lost_time(summary)
    yield from limits(summary)
    yield from _batches(summary)


def _apart(summary: pd.DataFrame) -> list[pd.DataFrame]:
    """Measured results and those of each emulation: nothing is said of one by another."""
    return [part for _, part in summary.groupby("emulated")]


def holes(
    study: Study, records: Sequence[Record], *, obstacles: Mapping[str, str] | None = None
) -> list[str]:
    """What was asked for and is not there: one sentence per run and cause, with the repeats that it concerns.

    `obstacles` say by run id why the cluster cannot run it.
    """
    found = {(record.run_id, record.repeat): record for record in records}
    causes: dict[tuple[str, str], list[int]] = {}
    for task in study.tasks:
        record = found.get((task.run.id, task.repeat))
        if record is None or not record.completed:
            causes.setdefault(
                (task.run.label, _cause(record, task.run, (obstacles or {}).get(task.run.id))), []
            ).append(task.repeat)
    return [
        f"{label}, {_listed('repeat', which)}: {cause}." for (label, cause), which in causes.items()
    ]


def _cause(record: Record | None, run: Run, obstacle: str | None) -> str:
    if record is None:
        needed = (
            ""
            if run.device_needed == "any"
            else f"it needs a cluster with {run.device_needed.upper()}"
        )
        reason = needed or (obstacle or "").removeprefix("left out: ")
        return f"not run: {reason}" if reason else "not run yet"
    word = STATUS_WORDS[record.status]
    if record.error is None:
        return word
    rank = f" on rank {record.error.rank}" if record.error.rank is not None else ""
    message = record.error.message.strip().split("\n")[0].rstrip(".")
    return f"{word}{rank}: {record.error.type}" + (f": {message}" if message else "")


def _listed(word: str, numbers: Sequence[int]) -> str:
    *most, last = [str(number) for number in numbers]
    return f"{word}s {', '.join(most)} and {last}" if most else f"{word} {last}"


def _labels(summary: pd.DataFrame) -> dict[str, str]:
    return {run_id: label for label, points in curves(summary) for run_id in points["run_id"]}


def _fastest(rows: pd.DataFrame) -> pd.Series[Any]:
    return rows.sort_values("samples_per_second").iloc[-1]


def _place(row: Any, labels: dict[str, str]) -> str:
    return f"{ranks(row['device'], row['world_size'])} at {labels[row['run_id']]}"


def _with_interval(row: Any, name: str, text: Any = rounded) -> str:
    return str(text(row[name], row[f"{name}_low"], row[f"{name}_high"]))


def _why_no_speedup(study: Study, summary: pd.DataFrame) -> str:
    wanted = ", ".join(f"{key} {value}" for key, value in study.baseline.items())
    if summary["baseline_run_id"].notna().any():
        return f"nothing that compares with the baseline ({wanted}) has completed"
    return f"no run of the baseline ({wanted}) has completed"


def _speedup(row: Any, summary: pd.DataFrame, labels: dict[str, str]) -> str:
    """What one configuration does against its baseline, and whether the intervals support it."""
    base = summary.set_index("run_id").loc[row["baseline_run_id"]].rename(None)
    same_line = labels[row["run_id"]] == labels[row["baseline_run_id"]]
    over = ranks(base["device"], base["world_size"]) + (
        "" if same_line else f" at {labels[row['baseline_run_id']]}"
    )
    what = (
        "the throughput is {} times that of {}"
        if row["scaling"] == "weak"
        else "a step is {} times as fast as on {}"
    )
    said = what.format(_with_interval(row, "speedup"), over)
    return (
        f"{said} (efficiency {_with_interval(row, 'efficiency', percent)}), {_verdict(row, base)}"
    )


def _verdict(row: Any, base: Any) -> str:
    fewest = min(row["repeats"], base["repeats"])
    if fewest < FEWEST_REPEATS:
        return f"but {'one repeat is' if fewest == 1 else f'{fewest} repeats are'} too few to tell this from chance"
    if row["speedup_low"] > 1:
        return "a gain that the interval supports"
    if row["speedup_high"] < 1:
        return "a loss that the interval supports"
    return "which the interval does not tell from no change"


def _speedups(summary: pd.DataFrame) -> Iterator[str]:
    labels = _labels(summary)
    for _, points in curves(summary):
        beyond = points[points["speedup"].notna() & (points["run_id"] != points["baseline_run_id"])]
        if len(beyond):
            row = beyond.iloc[-1]
            yield f"On {_place(row, labels)}, {_speedup(row, summary, labels)}."


def _serial_fractions(summary: pd.DataFrame) -> Iterator[str]:
    for label, points in curves(summary):
        base = points[points["run_id"] == points["baseline_run_id"]]
        known = points[points["speedup"].notna()]
        if len(base) != 1 or set(known["baseline_run_id"]) != set(base["run_id"]):
            continue
        fit = fit_amdahl(
            list(known["world_size"] / base["world_size"].iloc[0]), list(known["speedup"])
        )
        if fit is None or not fit.low or fit.high is None:
            continue
        bound = rounded(1 / fit.serial_fraction, 1 / fit.high, 1 / fit.low)
        yield (
            f"Amdahl's law with a serial fraction of {percent(fit.serial_fraction, fit.low, fit.high)} meets the speedups of "
            f"{label} within {100 * fit.largest_error:.1f} %; by it, no number of {ranks(points['device'].iloc[0])} exceeds a "
            f"speedup of {bound}."
        )


def _lost_time(summary: pd.DataFrame) -> Iterator[str]:
    """The part that keeps the largest configuration of a line furthest from ideal, where intervals lie apart."""
    for label, points in curves(summary):
        base, row = points.iloc[0], points.iloc[-1]
        if row["baseline_run_id"] != base["run_id"] or row["run_id"] == base["run_id"]:
            continue
        share = 1.0 if row["scaling"] == "weak" else base["world_size"] / row["world_size"]
        lost = _lost(row, base, share)
        phase = max(lost, key=lambda name: lost[name])
        total = row["step_time"] - share * base["step_time"]
        ends = ("step", "exposed_communication" if phase == EXPOSED else phase)
        apart = all(
            row[f"{name}_time_low"] > share * _or_nothing(base[f"{name}_time_high"])
            for name in ends
        )
        held = (
            ", waits for communication included"
            if phase == "backward" and EXPOSED not in lost
            else ""
        )
        if apart and min(row["repeats"], base["repeats"]) >= FEWEST_REPEATS:
            yield (
                f"At {label}, a step on {ranks(row['device'], row['world_size'])} takes {format_seconds(total)} longer than "
                f"ideal; the largest part of it, {format_seconds(lost[phase])}, is spent in {phase}{held}."
            )


def _lost(row: Any, base: Any, share: float) -> dict[str, float]:
    """Seconds beyond the ideal by phase, and of exposed communication, which is taken from the phases, where it was measured."""
    lost = {phase: row[f"{phase}_time"] - share * base[f"{phase}_time"] for phase in PHASES}
    if pd.notna(row["exposed_communication_time"]):
        for phase in ("forward", "backward", "optimizer"):
            lost[phase] -= _or_nothing(row[f"exposed_{phase}_time"]) - share * _or_nothing(
                base[f"exposed_{phase}_time"]
            )
        lost[EXPOSED] = row["exposed_communication_time"] - share * _or_nothing(
            base["exposed_communication_time"]
        )
    return lost


def _or_nothing(seconds: float) -> float:
    return 0.0 if pd.isna(seconds) else seconds


def _batches(summary: pd.DataFrame) -> Iterator[str]:
    """Which batch gives the most throughput at the largest world size, where its interval lies above all others."""
    widest = summary[summary["world_size"] == summary["world_size"].max()].sort_values(
        "samples_per_second"
    )
    if len(widest) < 2 or widest["repeats"].min() < FEWEST_REPEATS:
        return
    best, others, labels = widest.iloc[-1], widest.iloc[:-1], _labels(summary)
    if best["samples_per_second_low"] > others["samples_per_second_high"].max():
        slowest = others.iloc[0]
        times = rounded(best["samples_per_second"] / slowest["samples_per_second"])
        yield (
            f"With {ranks(best['device'], best['world_size'])}, {labels[best['run_id']]} gives the most samples per second, "
            f"{times} times those of {labels[slowest['run_id']]}; the intervals lie apart."
        )


# Ranges of n and n repeats of equal runs lie apart by chance in 2 / binomial(2n, n): 1 in 3 for two repeats, 1 in 10 for three.
FEWEST_REPEATS = 3


def emulated(records: Sequence[Record]) -> Iterator[str]:
    """What was not real."""
    places = (record.environment for record in records if record.completed)
    for told in dict.fromkeys(
        place.emulated.description for place in places if place and place.emulated
    ):
        yield f"These are results of an emulation and not of a real machine: {told}."


def few_repeats(summary: pd.DataFrame) -> Iterator[str]:
    """Configurations with too few repeats for any claim."""
    few = int((summary["repeats"] < FEWEST_REPEATS).sum())
    if few:
        verb = "has" if few == 1 else "have"
        least = f"fewer than {FEWEST_REPEATS} completed repeats"
        yield f"{few} of {len(summary)} configurations {verb} {least}: no difference is claimed there."


def shared_cores(records: Sequence[Record]) -> Iterator[str]:
    """World sizes at which the threads of CPU ranks outnumber the cores that they were granted on a host."""
    crowded: dict[int, tuple[int, int]] = {}
    for record in records:
        where = record.environment
        if (
            not record.completed
            or where is None
            or where.device != "cpu"
            or (where.emulated and where.emulated.compute)
        ):
            continue  # what sleeps needs no core
        hosts = (
            where.hosts
            if len(where.hosts) == len(where.cpus_granted)
            else where.hosts[:1] * len(where.cpus_granted)
        )
        for host in set(hosts) if len(set(hosts)) == len(set(where.hosts)) else ():
            granted = [
                cores for name, cores in zip(hosts, where.cpus_granted, strict=True) if name == host
            ]
            threads, cores = (
                len(granted) * where.threads_per_rank,
                len({core for rank in granted for core in rank}),
            )
            if threads > cores:
                crowded[record.run.world_size] = (threads, cores)
    for world_size, (threads, cores) in sorted(crowded.items()):
        between = "1 core" if cores == 1 else f"{cores} cores"
        yield (
            f"At world size {world_size}, {threads} threads of the ranks had {between} between them: "
            "its times do not show what a core per thread would give."
        )


def disturbed(records: Sequence[Record]) -> Iterator[str]:
    """Repeats in which other processes took cores from the ranks."""
    environments = [
        record.environment
        for record in records
        if record.completed and record.environment is not None
    ]
    loads = [where.foreign_cpu for where in environments if where.foreign_cpu is not None]
    high = [load for load in loads if load > FOREIGN_CPU]
    again = sum(record.disturbed is not None for record in records)
    if again:
        yield f"Disturbed by other processes and measured again, with the first results kept: {again} of {len(loads)} repeats."
    if high:
        yield (
            f"In {len(high)} of {len(loads)} repeats other processes took more than {FOREIGN_CPU} of a core from the ranks, "
            f"at most {rounded(max(high))} cores: these times may be too long."
        )
