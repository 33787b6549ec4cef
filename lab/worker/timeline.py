"""One step of all ranks as bars on one time axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lab.records import Event
from lab.worker.calls import Calls
from lab.worker.communication import Buckets
from lab.worker.timing import Clock, FloatArray

SHOWN = ("forward", "backward", "optimizer")


def representative(step_time: FloatArray, *, warmup_steps: int) -> int:
    """The measured step whose slowest rank took nearest to the median; `step_time` is (ranks, steps)."""
    slowest = step_time[:, warmup_steps:].max(axis=0)
    return warmup_steps + int(np.abs(slowest - np.median(slowest)).argmin())


def events(
    rank: int, step: int, *, clock: Clock, sent: Buckets | Calls, shift: Callable[[FloatArray], FloatArray]
) -> tuple[float, list[Event]]:
    """The start of a rank's step and its bars, in s; `shift` takes times of this host to those of rank 0."""
    phases = joined(clock.phases(step))
    times = shift(np.array([bounds for _, *bounds in phases])).tolist()
    bars = [
        Event(rank=rank, name=name, start=begin, end=end)
        for (name, *_), (begin, end) in zip(phases, times, strict=True)
        if name in SHOWN
    ]
    return times[0][0], bars + (
        _buckets(rank, sent.of(step), shift) if isinstance(sent, Buckets) else _calls(rank, sent.of(step), shift)
    )


def joined(phases: Sequence[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """Phases (name, begin, end) with each that goes on where one of its name ends as one, such as a backward pass and its wait."""
    found: list[tuple[str, float, float]] = []
    for name, begin, end in phases:
        if found and found[-1][0] == name:
            found[-1] = (name, found[-1][1], end)
        else:
            found.append((name, begin, end))
    return found


def _buckets(rank: int, sent: Buckets, shift: Callable[[FloatArray], FloatArray]) -> list[Event]:
    shifted = sent.shifted(shift)
    return [
        Event(rank=rank, name=f"bucket {number}", ready=ready, start=launch, end=finish, bytes=size)
        for number, ready, launch, finish, size in zip(
            *(getattr(shifted, name).tolist() for name in ("bucket", "ready", "launch", "finish", "bytes")), strict=True
        )
    ]


def _calls(rank: int, calls: Calls, shift: Callable[[FloatArray], FloatArray]) -> list[Event]:
    """A call whose end is not known ends with the wait for it; without either it is not shown."""
    shifted = calls.shifted(shift)
    ends = np.where(np.isnan(shifted.finish), shifted.wait_end, shifted.finish)
    return [
        Event(rank=rank, name=operation, start=launch, end=end, bytes=size)
        for operation, launch, end, size in zip(
            shifted.operation.tolist(), shifted.launch.tolist(), ends.tolist(), shifted.bytes.tolist(), strict=True
        )
        if not np.isnan(end)
    ]


def timeline(ranks: Sequence[tuple[float, Sequence[Event]]]) -> list[Event]:
    """The bars of all ranks from the earliest start of the step on."""
    origin = min(begin for begin, _ in ranks)
    return [_later(event, -origin) for _, bars in ranks for event in bars]


def _later(event: Event, by: float) -> Event:
    ready = None if event.ready is None else event.ready + by
    return event.model_copy(update={"start": event.start + by, "end": event.end + by, "ready": ready})
