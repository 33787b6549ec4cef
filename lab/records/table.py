"""The table of records: one row for each repeat, one column for each quantity."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from lab.config.run import InferenceSettings, Run
from lab.formatting import PERIODS
from lab.records.schema import PHASES, Reported
from lab.records.store import OneStudy, Record, load_records

if TYPE_CHECKING:
    import pandas as pd

K = TypeVar("K")
V = TypeVar("V")


@contextmanager
def python_strings() -> Iterator[None]:
    """Tables made within it hold Python's strings.

    Those of Arrow, the default where it is installed, take longer in tables of any size: most
    operations convert them to Python's and back.
    """
    import pandas as pd

    with pd.option_context("mode.string_storage", "python"):
        yield


@python_strings()
def table(source: OneStudy) -> pd.DataFrame:
    """One row per repeat, one column per quantity of a record; times in s, memory in bytes.

    Values not measured are NaN or None, never zero; failed runs are also rows, with their `status`.
    Records of a third-party table have additional columns: `configuration`, `scaling`, `unit`,
    `time` for what `per` names, `rate` of what `rate_of` names in the period `rate_per`, both with
    `_low` and `_high`, and `baseline`; `peak_memory` and `mfu` are as the table gives them.
    """
    import pandas as pd

    return pd.DataFrame([row(record) for record in load_records(source)])


def row(record: Record) -> dict[str, Any]:
    """One repeat as columns, in the order of the table."""
    return {
        "run_id": record.run_id,
        "repeat": record.repeat,
        "status": record.status,
        **dict.fromkeys(_NAMED),
        **{key: getattr(record.run, key, None) for key in _SETTINGS},  # a table may leave it open
        "global_batch_size": record.global_batch_size,
        **record.run.names,
        **{
            column: value_at(record, source) if isinstance(source, str) else source(record)
            for column, source in _COLUMNS.items()
        },
        **(_reported(record.reported) if record.reported else {}),
    }


def _reported(reported: Reported) -> dict[str, Any]:
    """What a third-party table reports, and the corresponding quantities of the lab."""
    columns = reported.model_dump(exclude={"interval", "parts"})
    low, high = reported.interval or (None, None)
    columns |= dict.fromkeys(("time_low", "time_high", "rate_low", "rate_high"))
    quantity = "rate" if reported.time is None else "time"
    columns |= {f"{quantity}_low": low, f"{quantity}_high": high}
    if reported.per == "step":
        columns["step_time"] = reported.time
    if reported.rate_of in {"samples", "tokens"}:
        per_second = None if reported.rate is None else reported.rate / PERIODS[reported.rate_per]
        columns[f"{reported.rate_of}_per_second"] = per_second
    return columns


def value_at(value: Any, path: str) -> Any:
    """The value at a path of fields and keys; None if one of them was not measured."""
    for name in path.split("."):
        if value is not None:
            value = value.get(name) if isinstance(value, dict) else getattr(value, name)
    return value


def median(records: Sequence[Record], quantity: str | Callable[[Record], Any]) -> float | None:
    """The median over repeats of a quantity, by a path such as `timing.step.median` or a function.

    None if no repeat has it.
    """
    read = quantity if callable(quantity) else lambda record: value_at(record, quantity)
    values = [value for record in records if (value := read(record)) is not None]
    return statistics.median(values) if values else None


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, in their order."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def by_run(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The repeats of each run, by its id."""
    return grouped((record.run_id, record) for record in records)


def steps_by_run(records: Iterable[Record]) -> dict[str, list[float]]:
    """The median step of each completed repeat in s, by run id."""
    return grouped(
        (record.run_id, record.timing.step.median)
        for record in records
        if record.completed and record.timing
    )


def _nodes(record: Record) -> int | None:
    if record.allocation:
        return len(record.allocation.nodes)
    return len(set(record.environment.hosts)) if record.environment else None


def _exposed_in(record: Record, *, phase: str) -> float | None:
    communication = record.communication
    if communication is None or communication.exposed is None:
        return None
    # Records without phases come from DDP, which waits at the end of its backward pass.
    return (communication.exposed_in or {"backward": communication.exposed.median}).get(phase, 0.0)


# The settings of every run come first, those only for inference last.
_INFERENCE = tuple(InferenceSettings.model_fields)
_NAMED = ("model", "data", "own_strategy")
_TRAINING = [key for key in Run.model_fields if key not in {*_NAMED, *_INFERENCE}]
_SETTINGS = (*_TRAINING, *_INFERENCE)
_COLUMNS: dict[str, str | Callable[[Record], Any]] = {
    "nodes": _nodes,
    "device": "environment.device",
    "cluster": "environment.cluster",
    "replay": "environment.replay",
    "emulated": "environment.emulated.label",
    "step_time": "timing.step.median",
    "step_time_p10": "timing.step.p10",
    "step_time_p90": "timing.step.p90",
    **{f"{phase}_time": f"timing.phases.{phase}.median" for phase in PHASES},
    "communication_time": "communication.total.median",
    "exposed_communication_time": "communication.exposed.median",
    "straggler_time": "communication.straggler.median",
    "transfer_time": "communication.transfer.median",
    "overlap_time": "communication.overlap.median",
    "sync_cost_time": "communication.sync_cost.median",
    "stolen_compute_time": "communication.stolen_compute.median",
    "ddp_overhead_time": "communication.ddp_overhead_time.median",
    **{
        f"exposed_{phase}_time": partial(_exposed_in, phase=phase)
        for phase in ("forward", "backward", "optimizer")
    },
    "communication_bytes": "communication.bytes",
    "bytes_moved": "communication.bytes_moved",
    "communication_calls": "communication.calls",
    "samples_per_second": "timing.samples_per_second",
    "tokens_per_second": "timing.tokens_per_second",
    "mfu": "timing.mfu",
    "queue_time": "allocation.queue_time",
    "requeues": "allocation.requeues",
    "setup_time": "timing.setup_time",
    "train_time": "timing.train_time",
    "peak_memory": "peak_memory",
    "final_loss": "final_loss",
    "accuracy": "quality.accuracy",
    "validation_loss": "quality.validation_loss",
    "error": "error.cause",
}
