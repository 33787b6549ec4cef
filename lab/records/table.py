"""A record as a row of the table: what each column holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lab.config.run import InferenceSettings, Run
from lab.records.schema import PHASES, Communication, Stat
from lab.records.store import OneStudy, Record, load_records

if TYPE_CHECKING:
    import pandas as pd

# What every run is asked for comes first, what only inference is asked for last.
_FIELDS = [
    key for key in Run.model_fields if key not in {"model", "data", *InferenceSettings.model_fields}
]
_FIELDS += list(InferenceSettings.model_fields)


def table(source: OneStudy) -> pd.DataFrame:
    """One row per repeat, one column per quantity of a record; times in s, memory in bytes.

    What was not measured is NaN or None, never zero; failed runs are rows too, with their `status`.
    """
    import pandas as pd

    return pd.DataFrame([row(record) for record in load_records(source)], columns=None)


def row(record: Record) -> dict[str, Any]:
    """One repeat as columns, in the order of the table."""
    run, timing = record.run, record.timing
    return {
        "run_id": record.run_id,
        "repeat": record.repeat,
        "status": record.status,
        **run.names,
        **{key: getattr(run, key) for key in _FIELDS},
        "nodes": _nodes(record),
        "device": record.environment.device if record.environment else None,
        "cluster": record.environment.cluster if record.environment else None,
        "replay": record.environment.replay if record.environment else None,
        "emulated": record.environment.emulated.label
        if record.environment and record.environment.emulated
        else None,
        "step_time": timing.step.median if timing else None,
        "step_time_p10": timing.step.p10 if timing else None,
        "step_time_p90": timing.step.p90 if timing else None,
        **{
            f"{phase}_time": _median(timing.phases.get(phase)) if timing else None
            for phase in PHASES
        },
        **_communication_columns(record.communication),
        "samples_per_second": timing.samples_per_second if timing else None,
        "tokens_per_second": timing.tokens_per_second if timing else None,
        "mfu": timing.mfu if timing else None,
        "queue_time": record.allocation.queue_time if record.allocation else None,
        "requeues": record.allocation.requeues if record.allocation else None,
        "setup_time": timing.setup_time if timing else None,
        "train_time": timing.train_time if timing else None,
        "peak_memory": max(record.memory.peak) if record.memory else None,
        "final_loss": record.quality.loss[-1] if record.quality and record.quality.loss else None,
        "accuracy": record.quality.accuracy if record.quality else None,
        "validation_loss": record.quality.validation_loss if record.quality else None,
        "error": f"{record.error.type}: {record.error.message}" if record.error else None,
    }


def _median(stat: Stat | None) -> float | None:
    return stat.median if stat else None


def _nodes(record: Record) -> int | None:
    if record.allocation:
        return len(record.allocation.nodes)
    return len(set(record.environment.hosts)) if record.environment else None


def _communication_columns(communication: Communication | None) -> dict[str, float | None]:
    columns = {
        "communication_time": "total",
        "exposed_communication_time": "exposed",
        "straggler_time": "straggler",
        "transfer_time": "transfer",
        "overlap_time": "overlap",
        "sync_cost_time": "sync_cost",
        "stolen_compute_time": "stolen_compute",
        "ddp_overhead_time": "ddp_overhead_time",
    }
    stats = {
        column: getattr(communication, field) if communication else None
        for column, field in columns.items()
    }
    waits = {
        f"exposed_{phase}_time": _exposed_in(communication, phase)
        for phase in ("forward", "backward", "optimizer")
    }
    sent = {
        "communication_bytes": communication.bytes if communication else None,
        "bytes_moved": communication.bytes_moved if communication else None,
        "communication_calls": communication.calls if communication else None,
    }
    return {column: stat.median if stat else None for column, stat in stats.items()} | waits | sent


def _exposed_in(communication: Communication | None, phase: str) -> float | None:
    if communication is None or communication.exposed is None:
        return None
    # Records from before there was a choice are DDP's, which waits at the end of its backward pass.
    return (communication.exposed_in or {"backward": communication.exposed.median}).get(phase, 0.0)
