"""What a study would do on a cluster: its runs, what is measured already, and what cannot run there."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from lab.config.cluster import Cluster
from lab.config.run import Run
from lab.config.study import Study
from lab.errors import InputError
from lab.launch.preflight import usable
from lab.perfmodel.flops import model_cost
from lab.perfmodel.forecast import Forecast
from lab.perfmodel.frozen import basis_of
from lab.records.store import Record, Store

# All in fp32, as the training loop keeps them: weights, and of those that train gradients and AdamW's two moments.
BYTES_PER_PARAMETER, TRAINING_BYTES_PER_PARAMETER = 4, 12


def plan(study: Study, cluster: str | Cluster = "local") -> list[dict[str, Any]]:
    """One row per run: how many repeats are measured, how long one takes, what is predicted, what forbids it.

    `seconds` is the median duration of the repeats that are measured, None where there are none; `predicted_s` the same
    as predicted, and `predicted_step_ms` one step of it. `state_mb` (MB, 1e6 bytes, per rank) counts weights, gradients
    and optimizer state; `predicted_mb` all that a rank takes at its peak. None where nothing can be predicted yet.
    """
    profile = usable(cluster)
    store, basis = Store(study.out), basis_of(study, cluster)
    rows = []
    for run in study.runs:
        records = [
            record
            for record in store.records(task for task in study.tasks if task.run == run)
            if record.completed
        ]
        forecast = basis.forecast(run)
        durations = [record.duration_s for record in records if record.duration_s is not None]
        rows.append(
            {
                "run": run.id,
                "configuration": run.label,
                "measured": f"{len(records)}/{study.repeats}",
                "seconds": round(statistics.median(durations), 1) if durations else None,
                **_expected(forecast, basis.records),
                "state_mb": round(state_bytes(run) / 1e6, 1),
                "predicted_mb": None
                if forecast.memory_bytes is None
                else round(forecast.memory_bytes / 1e6, 1),
                "cannot run": obstacle(run, profile, forecast.memory_bytes),
            }
        )
    return rows


def _expected(forecast: Forecast, measured: Sequence[Record]) -> dict[str, float | None]:
    """Predicted seconds of a step and of a whole repeat, whose start takes what it took before."""
    if forecast.prediction is None:
        return {"predicted_s": None, "predicted_step_ms": None}
    starts = [
        record.timing.setup_time
        for record in measured
        if record.timing and record.timing.setup_time is not None
    ]
    step = forecast.prediction.step_s
    whole = statistics.median(starts) + step * forecast.run.steps if starts else None
    return {
        "predicted_s": None if whole is None else round(whole, 1),
        "predicted_step_ms": round(step * 1e3, 2),
    }


def state_bytes(run: Run) -> int:
    """Bytes of weights, gradients and optimizer state on one rank."""
    cost = model_cost(run)
    return BYTES_PER_PARAMETER * cost.parameters + TRAINING_BYTES_PER_PARAMETER * cost.trainable


def obstacle(run: Run, cluster: Cluster, predicted: float | None) -> str:
    """What forbids a run on a cluster, in words, where a rank is `predicted` to take so many bytes; nothing where it can run."""
    own = cluster.on(run.device_needed)
    if own is None:
        return f"left out: it needs {run.device_needed.upper()}, {cluster.name} has none"
    if run.world_size > own.capacity:
        return f"needs {run.world_size} ranks, {cluster.name} has {own.capacity}"
    try:
        own.layout(run.processes, devices=run.devices)
    except InputError as error:
        return f"{error.problems[0].what}: {error.problems[0].advice}"
    available = cluster.memory_bytes_per_rank
    if available is not None and state_bytes(run) > available:
        return f"needs {state_bytes(run) / 1e9:.1f} GB for its training state alone, a rank has {available / 1e9:.1f} GB"
    if available is not None and predicted is not None and predicted > available:
        return f"predicted to need {predicted / 1e9:.1f} GB at its peak, a rank has {available / 1e9:.1f} GB"
    return ""
