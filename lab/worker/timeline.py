"""One step of all ranks as bars on one time axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lab.records import Event
from lab.worker.communication import Buckets
from lab.worker.timing import Clock, FloatArray

SHOWN = ("forward", "backward", "optimizer")


def representative(step_time: FloatArray, *, warmup_steps: int) -> int:
    """The measured step whose slowest rank took nearest to the median; `step_time` is (ranks, steps)."""
    slowest = step_time[:, warmup_steps:].max(axis=0)
    return warmup_steps + int(np.abs(slowest - np.median(slowest)).argmin())


def events(
    rank: int, step: int, *, clock: Clock, buckets: Buckets, shift: Callable[[FloatArray], FloatArray]
) -> tuple[float, list[Event]]:
    """The start of a rank's step and its bars, in s; `shift` takes times of this host to those of rank 0."""
    phases = clock.phases(step)
    times = shift(np.array([bounds for _, *bounds in phases])).tolist()
    bars = [
        Event(rank=rank, name=name, start=begin, end=end)
        for (name, *_), (begin, end) in zip(phases, times, strict=True)
        if name in SHOWN
    ]
    of_step = buckets.of(step).moved(shift)
    bars += [
        Event(rank=rank, name=f"bucket {number}", ready=ready, start=launch, end=finish, bytes=size)
        for number, ready, launch, finish, size in zip(
            *(getattr(of_step, name).tolist() for name in ("bucket", "ready", "launch", "finish", "bytes")), strict=True
        )
    ]
    return times[0][0], bars


def timeline(ranks: Sequence[tuple[float, Sequence[Event]]]) -> list[Event]:
    """The bars of all ranks from the earliest start of the step on."""
    origin = min(begin for begin, _ in ranks)
    return [_later(event, -origin) for _, bars in ranks for event in bars]


def _later(event: Event, by: float) -> Event:
    ready = None if event.ready is None else event.ready + by
    return event.model_copy(update={"start": event.start + by, "end": event.end + by, "ready": ready})
