"""plan(): a study's runs on a cluster: what is measured, predicted, and what cannot run there."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lab.config.cluster import Cluster
from lab.config.run import Run
from lab.config.study import Study, Task
from lab.errors import InputError
from lab.launch.hours import Hours, charged, of_job, over_budget, spent
from lab.launch.preflight import state_bytes, usable
from lab.perfmodel.forecast import Forecast
from lab.perfmodel.frozen import basis_of
from lab.records.store import Record, Store


def plan(study: Study, cluster: str | Cluster = "local") -> list[dict[str, Any]]:
    """One row per run: measured repeats, their duration, what is predicted, what forbids it.

    `seconds` is the median duration of the measured repeats, None if there are none; `predicted_s`
    is its prediction, and `predicted_step_ms` that of one step. `state_mb` (MB, 1e6 bytes, per
    rank) counts weights, gradients and optimizer state; `predicted_mb` is a rank's peak memory.
    `core_hours` and `gpu_hours` are for one repeat, from `seconds` or else `predicted_s`. None if
    nothing can be predicted yet.
    """
    profile = usable(cluster)
    basis = basis_of(study, cluster)
    measured: dict[str, list[Record]] = defaultdict(list)
    for record in Store(study.out).records(study.tasks):
        if record.completed:
            measured[record.run_id].append(record)
    if profile.executor == "local":  # whose devices are counted once, not per run
        profile = profile.model_copy(update={"devices": profile.ranks_per_node})
    rows = []
    for run in study.runs:
        records = measured[run.id]
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
                "cannot run": obstacle(run, profile, peak),
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
    store = Store(study.out)
    missing = [t for t in study.tasks if not store.completed(t)] if tasks is None else tasks
    limit = cluster.time_limit_min * 60.0 if at_most else None
    planned_runs = {row["run"]: row for row in rows or plan(study, cluster)}
    hours = Hours()
    for task in missing:
        row = planned_runs[task.run.id]
        seconds = row["predicted_s"] if row["seconds"] is None else row["seconds"]
        hours += of_job(task.run, cluster, limit if seconds is None else seconds)
    return hours


def check_budget(study: Study, cluster: Cluster, tasks: Sequence[Task]) -> None:
    """Raise InputError, with the numbers, if these tasks would exceed the cluster's budget."""
    if cluster.budget is None or not tasks:
        return
    rows = plan(study, cluster)
    known = planned(study, cluster, tasks, rows=rows)
    most = planned(study, cluster, tasks, at_most=True, rows=rows) if known.unknown else known
    if problems := over_budget(cluster, charged(study, cluster), known, most):
        raise InputError(study.name, problems)


def hours_sentence(study: Study, cluster: Cluster, rows: Sequence[Mapping[str, Any]] = ()) -> str:
    """Spent and planned core- and GPU-hours, and the budget, for people; `rows` as in `planned`."""
    budget = cluster.budget.label if cluster.budget else ""
    allowed = f"; budget of {cluster.name}: {budget}" if budget else ""
    if cluster.budget and cluster.budget.per == "folder":
        allowed += f", of which {charged(study, cluster)}"
    return f"spent: {spent(study)}; planned: {planned(study, cluster, rows=rows)}{allowed}"


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
        return f"needs {run.world_size} ranks, but {cluster.name} has {profile.capacity}"
    try:
        profile.layout(run.processes, devices=run.devices)
    except InputError as error:
        return f"{error.problems[0].what}: {error.problems[0].advice}"
    available = cluster.memory_bytes_per_rank
    if available is None:
        return ""
    has = f"but a rank has {available / 1e9:.1f} GB"
    if (state := state_bytes(run)) and state > available:
        return f"needs {state / 1e9:.1f} GB for its training state alone, {has}"
    if peak_bytes is not None and peak_bytes > available:
        return f"predicted to need {peak_bytes / 1e9:.1f} GB at its peak, {has}"
    return ""
