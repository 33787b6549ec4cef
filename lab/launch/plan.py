"""plan(): a study's runs on a cluster: what is measured, predicted, and what cannot run there."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from lab.config.cluster import Cluster
from lab.config.models import PythonModel
from lab.config.run import Run
from lab.config.study import Study
from lab.errors import InputError
from lab.launch.preflight import usable
from lab.perfmodel.flops import model_cost
from lab.perfmodel.forecast import Forecast
from lab.perfmodel.frozen import basis_of
from lab.records.store import Record, Store

# All in fp32: weights, and of those that train gradients and AdamW's two moments.
BYTES_PER_PARAMETER, TRAINING_BYTES_PER_PARAMETER = 4, 12


def plan(study: Study, cluster: str | Cluster = "local") -> list[dict[str, Any]]:
    """One row per run: measured repeats, their duration, what is predicted, what forbids it.

    `seconds` is the median duration of the repeats that are measured, None where there are none;
    `predicted_s` the same as predicted, and `predicted_step_ms` one step of it. `state_mb` (MB, 1e6
    bytes, per rank) counts weights, gradients and optimizer state; `predicted_mb` all that a rank
    takes at its peak. None where nothing can be predicted yet.
    """
    profile = usable(cluster)
    store, basis = Store(study.out), basis_of(study, cluster)
    rows = []
    for run in study.runs:
        records = [r for r in store.records(t for t in study.tasks if t.run == run) if r.completed]
        forecast = basis.forecast(run)
        durations = [record.duration_s for record in records if record.duration_s is not None]
        peak = forecast.memory_bytes
        rows.append(
            {
                "run": run.id,
                "configuration": run.label,
                "measured": f"{len(records)}/{study.repeats}",
                "seconds": round(statistics.median(durations), 1) if durations else None,
                **_predicted(forecast, basis.records),
                "state_mb": round(state / 1e6, 1) if (state := state_bytes(run)) else None,
                "predicted_mb": None if peak is None else round(peak / 1e6, 1),
                "cannot run": obstacle(run, profile, peak),
            }
        )
    return rows


def _predicted(forecast: Forecast, records: Sequence[Record]) -> dict[str, float | None]:
    """Predicted seconds of a step and of a whole repeat, whose start takes what it took before."""
    if forecast.prediction is None:
        return {"predicted_s": None, "predicted_step_ms": None}
    starts = [r.timing.setup_time for r in records if r.timing and r.timing.setup_time is not None]
    step = forecast.prediction.step_s
    whole = round(statistics.median(starts) + step * forecast.run.steps, 1) if starts else None
    return {"predicted_s": whole, "predicted_step_ms": round(step * 1e3, 2)}


def state_bytes(run: Run) -> int | None:
    """Bytes of weights, gradients and optimizer state on one rank; None for a model of one's own.

    That is known once it has been measured.
    """
    if isinstance(run.architecture, PythonModel):
        return None
    cost = model_cost(run)
    return BYTES_PER_PARAMETER * cost.parameters + TRAINING_BYTES_PER_PARAMETER * cost.trainable


def obstacle(run: Run, cluster: Cluster, peak_bytes: float | None) -> str:
    """What forbids a run whose ranks are predicted to take `peak_bytes`; empty where it can run."""
    profile = cluster.on(run.device_needed)
    if profile is None:
        return f"left out: it needs {run.device_needed.upper()}, {cluster.name} has none"
    if run.world_size > profile.capacity:
        return f"needs {run.world_size} ranks, {cluster.name} has {profile.capacity}"
    try:
        profile.layout(run.processes, devices=run.devices)
    except InputError as error:
        return f"{error.problems[0].what}: {error.problems[0].advice}"
    available = cluster.memory_bytes_per_rank
    if available is None:
        return ""
    has = f"a rank has {available / 1e9:.1f} GB"
    if (state := state_bytes(run)) and state > available:
        return f"needs {state / 1e9:.1f} GB for its training state alone, {has}"
    if peak_bytes is not None and peak_bytes > available:
        return f"predicted to need {peak_bytes / 1e9:.1f} GB at its peak, {has}"
    return ""
