"""The repeats of a run: its completed records, and medians over them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from lab.records import Record
from lab.study import Run

Quantity = Callable[[Record], float | None]


def trained(runs: Iterable[Run], records: Sequence[Record]) -> dict[Run, list[Record]]:
    """The completed records of each run that trains, in the order of the runs; none where none completed."""
    done = [record for record in records if record.completed and record.timing is not None]
    return {run: [record for record in done if record.run_id == run.id] for run in runs if run.task == "train"}


def median(records: Sequence[Record], quantity: Quantity) -> float | None:
    """The median over repeats of a quantity of each; None where no repeat has it."""
    values = [value for record in records if (value := quantity(record)) is not None]
    return statistics.median(values) if values else None


def step(record: Record) -> float | None:
    """The median step of the slowest rank, in s."""
    return record.timing.step.median if record.timing else None


def phase(name: str) -> Quantity:
    """The quantity that is the median of a phase of the step, in s."""
    return lambda record: record.timing.phases[name].median if record.timing and name in record.timing.phases else None


def link(name: str) -> Quantity:
    """The quantity that is a number or the median of a part of Communication."""

    def read(record: Record) -> float | None:
        found = getattr(record.communication, name, None)
        return getattr(found, "median", found)

    return read
