"""Sentences for the report, made only from numbers that support them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from lab.analysis.bottlenecks import limits
from lab.analysis.laws import fit_amdahl
from lab.analysis.noise import judge
from lab.analysis.scaling import FEWEST_REPEATS
from lab.analysis.scaling_curves import curves, ranks
from lab.analysis.verdict import (
    against_baseline,
    by_emulation,
    farthest,
    labels_of,
    place,
)
from lab.analysis.waterfall import waterfalls
from lab.config.run import Run
from lab.config.study import Study
from lab.formatting import count, percent, rounded
from lab.records.schema import Environment
from lab.records.store import Record

STATUS_LABELS = {"oom": "out of memory", "timeout": "timed out"}


def findings(study: Study, summary: pd.DataFrame, records: Sequence[Record]) -> list[str]:
    """What else the numbers support, and what casts doubt on them, one sentence each."""
    supports = supported(study, summary, records)
    return [*supports, *caveats(study, summary, records)]


def supported(study: Study, summary: pd.DataFrame, records: Sequence[Record]) -> list[str]:
    """What else the numbers support, one sentence each, in a stable order."""
    if summary.empty:
        return []
    sentences: list[str] = []
    noise = judge(records, summary, study=study)
    for part in by_emulation(noise.quiet(summary)):
        sentences += _speedups(part)
        sentences += _serial_fractions(part) if study.scaling == "strong" else ()
        sentences += [*limits(part, waterfalls(part, records)), *_best_batch(part)]
    return [*_emulations(records), *sentences]


def caveats(study: Study, summary: pd.DataFrame, records: Sequence[Record]) -> list[str]:
    """What makes the numbers hard to believe: few repeats, shared cores, noise."""
    if summary.empty:
        return []
    noise = judge(records, summary, study=study)
    return [*_few_repeats(summary), *_shared_cores(records), *noise.caveats]


def _speedups(summary: pd.DataFrame) -> Iterator[str]:
    labels = labels_of(summary)
    for row in farthest(summary):
        yield f"On {place(row, labels)}, {against_baseline(row, summary, labels)}."


def _serial_fractions(summary: pd.DataFrame) -> Iterator[str]:
    for label, points in curves(summary):
        base = points[points["run_id"] == points["baseline_run_id"]]
        known = points[points["speedup"].notna()]
        if len(base) != 1 or set(known["baseline_run_id"]) != set(base["run_id"]):
            continue
        sizes = known["world_size"] / base["world_size"].iloc[0]
        fit = fit_amdahl(list(sizes), list(known["speedup"])) if sizes.min() >= 1 else None
        if fit is None or not fit.low or fit.high is None:
            continue
        bound = rounded(1 / fit.serial_fraction, 1 / fit.high, 1 / fit.low)
        yield (
            "Amdahl's law with a serial fraction of "
            f"{percent(fit.serial_fraction, fit.low, fit.high)} fits the speedups of {label} "
            f"within {100 * fit.largest_error:.1f} %; under it, no number of "
            f"{ranks(points['device'].iloc[0])} exceeds a speedup of {bound}."
        )


def _best_batch(summary: pd.DataFrame) -> Iterator[str]:
    """The best batch at the largest world size, if its interval lies above all others."""
    widest = summary[summary["world_size"] == summary["world_size"].max()]
    widest = widest.sort_values("samples_per_second")
    if len(widest) < 2 or widest["repeats"].min() < FEWEST_REPEATS:
        return
    slowest, best, labels = widest.iloc[0], widest.iloc[-1], labels_of(summary)
    if best["samples_per_second_low"] > widest["samples_per_second_high"].iloc[:-1].max():
        times = rounded(best["samples_per_second"] / slowest["samples_per_second"])
        yield (
            f"With {ranks(best['device'], best['world_size'])}, {labels[best['run_id']]} gives "
            f"the most samples per second, {times} times those of {labels[slowest['run_id']]}; "
            "the intervals lie apart."
        )


def holes(
    study: Study, records: Sequence[Record], *, obstacles: Mapping[str, str] | None = None
) -> list[str]:
    """What was requested and is missing: a sentence per run and cause, with its repeats.

    `obstacles` maps run ids to why the cluster cannot run them.
    """
    known = {(record.run_id, record.repeat): record for record in records}
    missing: dict[tuple[str, str], list[str]] = {}
    for task in study.tasks:
        record = known.get((task.run.id, task.repeat))
        if record is None or not record.completed:
            cause = _cause(record, task.run, (obstacles or {}).get(task.run.id, ""))
            missing.setdefault((task.run.label, cause), []).append(str(task.repeat))
    sentences = []
    for (label, cause), (*most, last) in missing.items():
        repeats = f"repeats {', '.join(most)} and {last}" if most else f"repeat {last}"
        sentences.append(f"{label}, {repeats}: {cause}.")
    return sentences


def _cause(record: Record | None, run: Run, obstacle: str) -> str:
    if record is None:
        reason = obstacle.removeprefix("left out: ")
        if run.device_needed != "any":
            reason = f"it needs a cluster with {run.device_needed.upper()}"
        return f"not run: {reason}" if reason else "not run yet"
    label = STATUS_LABELS.get(record.status, record.status)
    if record.error is None:
        return label
    rank = f" on rank {record.error.rank}" if record.error.rank is not None else ""
    cause = record.error.cause.strip().split("\n")[0].rstrip(".")
    return f"{label}{rank}: {cause}"


def _few_repeats(summary: pd.DataFrame) -> Iterator[str]:
    few = int((summary["repeats"] < FEWEST_REPEATS).sum())
    if few:
        yield (
            f"{few} of {len(summary)} configurations {'has' if few == 1 else 'have'} fewer than "
            f"{FEWEST_REPEATS} completed repeats: no difference is claimed there."
        )


def _shared_cores(records: Sequence[Record]) -> Iterator[str]:
    """World sizes at which threads of CPU ranks outnumber their cores on a host."""
    crowded: dict[int, tuple[int, int]] = {}
    for record in records:
        for threads, cores in _threads_and_cores(record.environment) if record.completed else ():
            if threads > cores:
                crowded[record.run.world_size] = (threads, cores)
    for world_size, (threads, cores) in sorted(crowded.items()):
        yield (
            f"At world size {world_size}, {threads} threads of the ranks had "
            f"{count(cores, 'core')} between them: "
            "its times do not show what a core per thread would give."
        )


def _threads_and_cores(place: Environment | None) -> Iterator[tuple[int, int]]:
    """Threads per host, if it is known which ranks ran there; a sleeping thread needs no core."""
    if place is None or place.device != "cpu" or (place.emulated and place.emulated.compute):
        return
    hosts, granted = place.hosts, place.cpus_granted
    if len(hosts) != len(granted):
        if len(set(hosts)) > 1:
            return
        hosts = hosts[:1] * len(granted)
    for host in set(hosts):
        cores = [cores for name, cores in zip(hosts, granted, strict=True) if name == host]
        yield len(cores) * place.threads_per_rank, len(set().union(*cores))


def _emulations(records: Sequence[Record]) -> Iterator[str]:
    places = [record.environment for record in records if record.completed]
    descriptions = [place.emulated.description for place in places if place and place.emulated]
    for description in dict.fromkeys(descriptions):
        yield f"These results come from an emulation, not from a real machine: {description}."
