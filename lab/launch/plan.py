"""plan(): a study's runs on a cluster: what is measured or predicted, and core- and GPU-hours."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from operator import add
from pathlib import Path
from typing import Any

from lab.config.cluster import Cluster
from lab.config.run import Run
from lab.config.study import OUT, STUDY_FILE, Study, Task
from lab.errors import InputError, Problem
from lab.formatting import count, rounded
from lab.launch.preflight import refusals_of, state_bytes, usable
from lab.perfmodel.forecast import Forecast
from lab.perfmodel.frozen import basis_of
from lab.records.store import RECORD, Record, Store, read_record
from lab.records.table import by_run


@dataclass(frozen=True)
class Hours:
    """Core-hours and GPU-hours of a number of jobs; for `unknown` more jobs they are not known."""

    core: float = 0.0
    gpu: float = 0.0
    jobs: int = 0
    unknown: int = 0

    def __add__(self, other: Hours) -> Hours:
        return Hours(*map(add, astuple(self), astuple(other)))

    def __str__(self) -> str:
        """For people: `1.20 GPU-hours and 9.60 core-hours in 6 jobs, 2 more unknown`."""
        jobs = count(self.jobs, "job")
        if not self.jobs:
            if not self.unknown:
                return "nothing"
            return f"{count(self.unknown, 'job')} of unknown length"
        sizes = [f"{rounded(self.gpu)} GPU-hours"] if self.gpu else []
        text = f"{' and '.join([*sizes, f'{rounded(self.core)} core-hours'])} in {jobs}"
        return f"{text}, {self.unknown} more of unknown length" if self.unknown else text


def spent(study: Study, records: Iterable[Record] = ()) -> Hours:
    """Hours used by a study's jobs: each record's wall time times its ranks' cores and GPUs.

    Repeats that were set aside or replaced count, as do failures; a job that left no record does
    not. `records` are those already loaded.
    """
    store = Store(study.out)
    loaded = {store.folder(record.task) / RECORD: record for record in records}
    return _spent_in(study.out, loaded)


def charged(study: Study, cluster: Cluster) -> Hours:
    """Hours spent from a cluster's budget by the study, or by all studies beside it."""
    if cluster.budget is None or cluster.budget.per == "study":
        return spent(study)
    folders = sorted(path.parent for path in study.folder.parent.glob(f"*/{STUDY_FILE}"))
    return sum((_spent_in(folder / OUT, {}) for folder in folders), Hours())


def _spent_in(out: Path, loaded: Mapping[Path, Record]) -> Hours:
    paths = sorted(out.rglob(f"*{RECORD}"))
    every = [loaded[path] if path in loaded else read_record(path) for path in paths]
    return sum((_of_record(record) for record in every if record), Hours())


def _of_record(record: Record) -> Hours:
    place = record.environment
    if place is not None and place.replay:
        return Hours()  # no job of this study
    seconds, allocation = record.duration_s, record.allocation
    if seconds is None:  # it started nothing
        return Hours(unknown=1)
    cores = (allocation and allocation.cpus) or (place and place.core_count)
    cores = cores or record.run.processes  # each has at least one, wherever it ran
    # A job may have been given more GPUs than its ranks used, such as those of a whole node.
    granted = len(allocation.gpus) * len(allocation.nodes) if allocation else 0
    gpus = max(place.gpu_count if place else 0, granted)
    return Hours(cores * seconds / 3600, gpus * seconds / 3600, 1)


def of_job(run: Run, cluster: Cluster, seconds: float | None) -> Hours:
    """What a job of a run takes on a cluster; nothing if the run is left out there."""
    profile = cluster.on(run.device_needed)
    if profile is None or cluster.executor == "replay":
        return Hours()
    if seconds is None:
        return Hours(unknown=1)
    hours = seconds / 3600
    # Ranks that compute on the CPUs of nodes with GPUs are given these too.
    has_gpus = profile.device_kind == "cuda" or profile.gpus_per_node
    ranks, gpus = run.processes, run.world_size if has_gpus else 0
    if profile.whole_nodes:
        ranks = math.ceil(run.world_size / profile.ranks_per_node) * profile.ranks_per_node
        gpus = ranks if profile.gpus_per_node else 0
    return Hours(ranks * profile.threads_per_rank * hours, gpus * hours, 1)


def plan(study: Study | str | Path, cluster: str | Cluster = "local") -> list[dict[str, Any]]:
    """One row per run: measured repeats, their duration, what is predicted, what forbids it.

    `seconds` is the median duration of the measured repeats, None if there are none; `predicted_s`
    is its prediction, and `predicted_step_ms` that of one step. `state_mb` (MB, 1e6 bytes, per
    rank) counts weights, gradients and optimizer state; `predicted_mb` is a rank's peak memory.
    `core_hours` and `gpu_hours` are for one repeat, from `seconds` or else `predicted_s`. None if
    nothing can be predicted yet.
    """
    study, profile = Study.of(study), usable(cluster)
    basis = basis_of(study, cluster)
    done = (record for record in Store(study.out).records(study.tasks) if record.completed)
    measured = by_run(done)
    if profile.executor == "local":  # whose devices are counted once, not per run
        profile = profile.model_copy(update={"devices": profile.ranks_per_node})
    rows = []
    for run in study.runs:
        records = measured.get(run.id, [])
        forecast = basis.forecast(run)
        durations = [record.duration_s for record in records if record.duration_s is not None]
        seconds = round(statistics.median(durations), 1) if durations else None
        times = _predicted(forecast, basis.records)
        job = of_job(run, profile, times["predicted_s"] if seconds is None else seconds)
        peak = forecast.memory_bytes
        rows.append(
            {
                "run": run.id,
                "configuration": run.label,
                "measured": f"{len(records)}/{study.repeats}",
                "seconds": seconds,
                **times,
                "core_hours": None if job.unknown else round(job.core, 4),
                "gpu_hours": None if job.unknown else round(job.gpu, 4),
                "state_mb": round(state / 1e6, 1) if (state := state_bytes(run)) else None,
                "predicted_mb": None if peak is None else round(peak / 1e6, 1),
                "cannot run": obstacle(run, profile, peak) or _refusal(run, study, profile),
            }
        )
    return rows


def planned(
    study: Study,
    cluster: Cluster,
    tasks: Iterable[Task] | None = None,
    *,
    at_most: bool = False,
    rows: Sequence[Mapping[str, Any]] = (),
) -> Hours:
    """Hours that a study's missing tasks, or these, will take, from earlier repeats or predictions.

    If neither is known, `at_most` counts the time limit, which no job exceeds. `rows` are those of
    `plan`, if they are known.
    """
    missing = _missing(study) if tasks is None else tasks
    limit = cluster.time_limit_min * 60.0 if at_most else None
    planned_runs = {row["run"]: row for row in rows or plan(study, cluster)}
    hours = Hours()
    for task in missing:
        row = planned_runs[task.run.id]
        seconds = row["predicted_s"] if row["seconds"] is None else row["seconds"]
        hours += of_job(task.run, cluster, limit if seconds is None else seconds)
    return hours


def _missing(study: Study) -> list[Task]:
    store = Store(study.out)
    return [task for task in study.tasks if not store.completed(task)]


def check_budget(study: Study, cluster: Cluster, tasks: Sequence[Task]) -> None:
    """Raise InputError, with the numbers, if these tasks would exceed the cluster's budget."""
    budget = cluster.budget
    if budget is None or not tasks:
        return
    rows, done = plan(study, cluster), charged(study, cluster)
    expected = planned(study, cluster, tasks, rows=rows)
    most = planned(study, cluster, tasks, at_most=True, rows=rows)
    problems = []
    for unit, allowed in (("core", budget.core_hours), ("GPU", budget.gpu_hours)):
        name = unit.lower()
        used, more, limit = (float(getattr(hours, name)) for hours in (done, expected, most))
        if allowed is None or used + limit <= allowed:
            continue
        what = (
            f"{rounded(allowed)} {unit}-hours, of which {rounded(used)} are spent, but the runs "
            f"still missing take {rounded(limit)} more"
        )
        if expected.unknown:
            jobs = count(expected.unknown, "job")
            what += (
                f" at most: {rounded(more)} by prediction or earlier repeats, and {jobs} of "
                f"unknown length up to time_limit_min ({cluster.time_limit_min} min)"
            )
        advice = "use --yes to run it all the same, plan fewer runs or repeats, or raise the budget"
        problems.append(Problem(f"budget.{name}_hours", what, advice))
    if problems:
        raise InputError(study.name, problems)


def _refusal(run: Run, study: Study, cluster: Cluster) -> str:
    """Why `lab run` would refuse a run that the cluster has the devices and memory for."""
    for problem in refusals_of(run, study, cluster):
        what = problem.what.removeprefix(f"{run.label}: ")
        return f"{what}; {problem.advice}"
    return ""


def hours_sentence(study: Study, cluster: Cluster, rows: Sequence[Mapping[str, Any]]) -> str:
    """Spent and planned core- and GPU-hours, and the budget, for people, by the rows of `plan`."""
    budget = cluster.budget.label if cluster.budget else ""
    allowed = f"; budget of {cluster.name}: {budget}" if budget else ""
    if cluster.budget and cluster.budget.per == "folder":
        allowed += f", of which {charged(study, cluster)}"
    refused = {row["run"] for row in rows if row["cannot run"]}
    tasks = [task for task in _missing(study) if task.run.id not in refused]
    without = f", without {count(len(refused), 'run')} that cannot run" if refused else ""
    hours = planned(study, cluster, tasks, rows=rows)
    return f"spent: {spent(study)}; planned: {hours}{without}{allowed}"


def _predicted(forecast: Forecast, records: Sequence[Record]) -> dict[str, float | None]:
    """Predicted seconds of a step and of a whole repeat, whose startup is assumed as before."""
    if forecast.prediction is None:
        return {"predicted_s": None, "predicted_step_ms": None}
    starts = [r.timing.setup_time for r in records if r.timing and r.timing.setup_time is not None]
    step = forecast.prediction.step_s
    whole = round(statistics.median(starts) + step * forecast.run.steps, 1) if starts else None
    return {"predicted_s": whole, "predicted_step_ms": round(step * 1e3, 2)}


def obstacle(run: Run, cluster: Cluster, peak_bytes: float | None) -> str:
    """What prevents a run whose ranks are predicted to use `peak_bytes`; empty if it can run."""
    profile = cluster.on(run.device_needed)
    if profile is None:
        return f"left out: it needs {run.device_needed.upper()}, but {cluster.name} has none"
    if run.world_size > profile.capacity:
        return f"needs {count(run.world_size, 'rank')}, but {cluster.name} has {profile.capacity}"
    for problem in profile.misfits([(run.processes, run.devices)]):
        return f"{problem.what}; {problem.advice}"
    available = profile.memory_bytes_per_rank
    if available is None:
        return ""
    has = f"but a rank has {available / 1e9:.1f} GB"
    if (state := state_bytes(run)) and state > available:
        return f"needs {state / 1e9:.1f} GB for its training state alone, {has}"
    if peak_bytes is not None and peak_bytes > available:
        return f"predicted to need {peak_bytes / 1e9:.1f} GB at its peak, {has}"
    return ""
