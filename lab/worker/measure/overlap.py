"""What the buckets or calls of all ranks say about a run: total and exposed communication, and what the latter waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lab.perfmodel.collectives import bus_factor
from lab.records.schema import Communication, Event, Operation
from lab.worker.measure.clock import Clock, FloatArray, stat
from lab.worker.measure.collective_trace import Calls
from lab.worker.measure.ddp_hook import Buckets


@dataclass(frozen=True)
class Exposure:
    """Communication by rank and step, each array (ranks, steps); times in s, NaN where they cannot be known.

    `total` is the union of the intervals from launch to finish, `exposed` the time in which the rank did nothing but wait
    for them, `straggler` what of that would be gone if every rank had come when this one did.
    """

    ready: FloatArray  # when the rank's last bucket was
    total: FloatArray
    exposed: FloatArray
    straggler: FloatArray
    bytes: FloatArray
    moved: FloatArray  # bytes that the rank sends on a ring
    exposed_in: dict[str, FloatArray]  # by phase

    @classmethod
    def from_buckets(cls, ranks: Sequence[Buckets]) -> Exposure:
        """From the buckets of all ranks on one clock, of equally many steps each.

        A rank waits from its last bucket on; the straggler's part is found by replaying the step on a link of one queue.
        """
        steps = [_steps(buckets) for buckets in ranks]
        ready = np.array([[part.ready.max() for part in parts] for parts in steps])
        exposed = np.array(
            [[union(p.launch, p.finish, since=p.ready.max()) for p in parts] for parts in steps]
        )
        met = [
            np.max([part.launch for part in parts], axis=0) for parts in zip(*steps, strict=True)
        ]
        waited = np.array(
            [[_waited(p, m) for p, m in zip(parts, met, strict=True)] for parts in steps]
        )
        size = np.array([[part.bytes.sum() for part in parts] for parts in steps], dtype=np.float64)
        return cls(
            ready=ready,
            total=np.array(
                [[union(part.launch, part.finish) for part in parts] for parts in steps]
            ),
            exposed=exposed,
            straggler=np.minimum(waited, exposed),
            bytes=size,
            moved=size * bus_factor("all_reduce", len(ranks)),
            exposed_in={"backward": exposed},
        )

    @classmethod
    def from_calls(cls, ranks: Sequence[Calls], *, steps: int) -> Exposure:
        """From the calls of all ranks on one clock.

        The straggler's part of a wait lasts until the last rank has launched the same call; it is known only where every
        call is one of all ranks.
        """
        split = [[calls.of(step) for step in range(steps)] for calls in ranks]
        together = _same_calls(ranks)
        met = [
            np.max([part.launch for part in parts], axis=0) if together else None
            for parts in zip(*split, strict=True)
        ]

        def each(measure: Callable[[Calls], float]) -> FloatArray:
            return np.array(
                [[measure(part) for part in parts] for parts in split], dtype=np.float64
            )

        return cls(
            ready=np.full((len(ranks), steps), np.nan),
            total=each(lambda part: union(part.launch, part.finish)),
            exposed=each(lambda part: union(part.wait_begin, part.wait_end)),
            straggler=np.array(
                [[_late(p, m) for p, m in zip(parts, met, strict=True)] for parts in split]
            ),
            bytes=each(lambda part: part.bytes.sum()),
            moved=each(lambda part: part.moved.sum()),
            exposed_in={
                phase: each(lambda part, phase=phase: _waited_in(part, phase))  # type: ignore[misc]
                for phase in sorted({str(phase) for calls in ranks for phase in calls.phase} - {""})
            },
        )

    def columns(self, rank: int) -> dict[str, FloatArray]:
        """The columns of steps.parquet for one rank."""
        return {
            f"communication_{name}": getattr(self, name)[rank]
            for name in ("total", "exposed", "straggler")
        }


def union(begin: FloatArray, end: FloatArray, *, since: float = -np.inf) -> float:
    """The time covered by at least one of the intervals, after `since`; NaN where one of them is not known."""
    if not len(begin) or np.isnan(begin).any() or np.isnan(end).any():
        return np.nan if len(begin) else 0.0
    begin, end = np.maximum(begin, since), np.maximum(end, since)
    order = np.argsort(begin)
    begin, reached = begin[order], np.maximum.accumulate(end[order])
    gaps = np.maximum(begin[1:] - reached[:-1], 0.0)
    return float(reached[-1] - begin[0] - gaps.sum())


def _same_calls(ranks: Sequence[Calls]) -> bool:
    """Whether all ranks did the same at each call, each of them with all others."""
    first = ranks[0]
    return all(
        len(calls.step) == len(first.step)
        and bool((calls.members == len(ranks)).all())
        and all(
            np.array_equal(getattr(calls, name), getattr(first, name))
            for name in ("step", "operation", "bytes")
        )
        for calls in ranks
    )


def _late(part: Calls, met: FloatArray | None) -> float:
    """The part of the waits that lies before `met`, when the last rank came to the call."""
    if met is None:
        return np.nan
    return union(part.wait_begin, np.clip(met, part.wait_begin, part.wait_end))


def _waited_in(part: Calls, phase: str) -> float:
    its = part.phase == phase
    return union(part.wait_begin[its], part.wait_end[its])


def _waited(step: _Step, met: FloatArray) -> float:
    """How much earlier the last bucket would have been there without waiting for ranks that came later, at `met`.

    Replays the step on a link that takes buckets in turn: each needs the time that it took once all ranks had brought
    it and the one before it was through.
    """
    through = replayed = -np.inf
    for launch, all_there, finish in zip(
        step.launch.tolist(), met.tolist(), step.finish.tolist(), strict=True
    ):
        needed = max(finish - max(all_there, through), 0.0)
        through, replayed = max(through, finish), max(launch, replayed) + needed
    return max(through - replayed, 0.0)


def summary(exposure: Exposure, step_time: FloatArray, *, warmup_steps: int) -> Communication:
    """The record's part: statistics of the slowest rank of each measured step, as in the record's timing.

    `step_time` is (ranks, steps) with warm-up, as are the exposures. What is not known of every measured step is None.
    """
    measured = {
        name: getattr(exposure, name)[:, warmup_steps:]
        for name in ("total", "exposed", "straggler")
    }
    measured["transfer"] = measured["exposed"] - measured["straggler"]
    measured["overlap"] = measured["total"] - measured["exposed"]
    known = {name: values for name, values in measured.items() if not np.isnan(values).any()}
    slowest = step_time[:, warmup_steps:].argmax(axis=0)
    steps = np.arange(len(slowest))
    found = Communication(
        bytes=int(np.median(exposure.bytes[:, warmup_steps:])),
        bytes_moved=int(np.median(exposure.moved[:, warmup_steps:])),
        exposed_in={
            phase: float(np.median(values[:, warmup_steps:][slowest, steps]))
            for phase, values in exposure.exposed_in.items()
            if "exposed" in known
        },
        per_rank={
            name: np.median(known[name], axis=1).tolist()
            for name in ("total", "exposed", "straggler")
            if name in known
        },
    )
    return found.model_copy(
        update={name: stat(values[slowest, steps]) for name, values in known.items()}
    )


def count_buckets(sent: Buckets, *, operation: str | None) -> dict[str, object]:
    """Fields of Communication that count the buckets of a step; `operation` is None where each takes several."""
    sizes = sent.bytes[sent.step == sent.step[-1]].tolist()
    if operation is None:
        return {"buckets": sizes}
    return {
        "buckets": sizes,
        "calls": len(sizes),
        "operations": {operation: Operation(calls=len(sizes), bytes=sum(sizes))},
    }


def count_calls(calls: Calls) -> dict[str, object]:
    """Fields of Communication that count the calls of a step."""
    last = calls.of(int(calls.step[-1]))
    operations = {
        str(name): Operation(calls=int(its.sum()), bytes=int(last.bytes[its].sum()))
        for name in dict.fromkeys(last.operation.tolist())
        for its in [last.operation == name]
    }
    return {"calls": len(last.step), "operations": operations}


@dataclass(frozen=True)
class _Step:
    ready: FloatArray
    launch: FloatArray
    finish: FloatArray
    bytes: FloatArray


def _steps(buckets: Buckets) -> list[_Step]:
    cuts = np.flatnonzero(np.diff(buckets.step)) + 1
    columns = (buckets.ready, buckets.launch, buckets.finish, buckets.bytes)
    return [
        _Step(*parts) for parts in zip(*(np.split(column, cuts) for column in columns), strict=True)
    ]


SHOWN = ("forward", "backward", "optimizer")


def representative_step(step_time: FloatArray, *, warmup_steps: int) -> int:
    """The measured step whose slowest rank took nearest to the median; `step_time` is (ranks, steps)."""
    slowest = step_time[:, warmup_steps:].max(axis=0)
    return warmup_steps + int(np.abs(slowest - np.median(slowest)).argmin())


def events(
    rank: int,
    step: int,
    *,
    clock: Clock,
    sent: Buckets | Calls,
    shift: Callable[[FloatArray], FloatArray],
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
        _buckets(rank, sent.of(step), shift)
        if isinstance(sent, Buckets)
        else _calls(rank, sent.of(step), shift)
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
            *(
                getattr(shifted, name).tolist()
                for name in ("bucket", "ready", "launch", "finish", "bytes")
            ),
            strict=True,
        )
    ]


def _calls(rank: int, calls: Calls, shift: Callable[[FloatArray], FloatArray]) -> list[Event]:
    """A call whose end is not known ends with the wait for it; without either it is not shown."""
    shifted = calls.shifted(shift)
    ends = np.where(np.isnan(shifted.finish), shifted.wait_end, shifted.finish)
    return [
        Event(rank=rank, name=operation, start=launch, end=end, bytes=size)
        for operation, launch, end, size in zip(
            shifted.operation.tolist(),
            shifted.launch.tolist(),
            ends.tolist(),
            shifted.bytes.tolist(),
            strict=True,
        )
        if not np.isnan(end)
    ]


def timeline(ranks: Sequence[tuple[float, Sequence[Event]]]) -> list[Event]:
    """The bars of all ranks from the earliest start of the step on."""
    origin = min(begin for begin, _ in ranks)
    return [_later(event, -origin) for _, bars in ranks for event in bars]


def _later(event: Event, by: float) -> Event:
    ready = None if event.ready is None else event.ready + by
    return event.model_copy(
        update={"start": event.start + by, "end": event.end + by, "ready": ready}
    )
