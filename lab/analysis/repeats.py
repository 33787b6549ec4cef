"""The repeats of a run, and medians of their quantities."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lab.config.run import Run
from lab.records.store import Record

Quantity = str | Callable[[Record], float | None]


def trained(runs: Iterable[Run], records: Sequence[Record]) -> dict[Run, list[Record]]:
    """The completed records of each training run, in the order of the runs."""
    done = [record for record in records if record.completed and record.timing is not None]
    return {
        run: [record for record in done if record.run_id == run.id]
        for run in runs
        if run.task == "train"
    }


def median(records: Sequence[Record], quantity: Quantity) -> float | None:
    """The median over repeats of a quantity; None where no repeat has it.

    A quantity is a function, or a path in a record such as `timing.step.median`.
    Raises AttributeError for a path that no record has.
    """
    read = quantity if callable(quantity) else lambda record: _value(record, quantity)
    values = [value for record in records if (value := read(record)) is not None]
    return statistics.median(values) if values else None


def _value(record: Record, path: str) -> Any:
    value: Any = record
    for name in path.split("."):
        if value is None:
            return None
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name)
    return value
