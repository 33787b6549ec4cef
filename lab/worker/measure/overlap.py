"""Overlap of communication and compute: total and exposed communication, and stragglers.

It is computed from the buckets or calls of all ranks, on rank 0's clock. Total time is a union of
intervals: buckets queue behind each other on one link, so the sum of their durations would count
the same time more than once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from lab.perfmodel.collectives import bus_factor
from lab.records.schema import Communication, Event, Operation
from lab.records.statistics import stat
from lab.records.table import grouped
from lab.worker.measure.clock import Clock, FloatArray, IntArray, by_cycle
from lab.worker.measure.collective_trace import Calls
from lab.worker.measure.ddp_hook import Buckets

Shift = Callable[[FloatArray], FloatArray]

KINDS = ("total", "exposed", "straggler")
SHOWN = ("forward", "backward", "optimizer")  # phases of a step shown in the timeline


@dataclass(frozen=True)
class Exposure:
    """Communication by rank and step, arrays (ranks, steps); times in s, NaN if unknown.

    `total` is the union of the intervals from launch to finish, `exposed` the time in which the
    rank only waited for them, `straggler` the part of that which would disappear if every rank had
    arrived when this one did.
    """

    total: FloatArray
    exposed: FloatArray
    straggler: FloatArray
    bytes: FloatArray
    moved: FloatArray  # bytes that the rank sends on a ring
    exposed_in: dict[str, FloatArray]  # by phase

    @classmethod
    def from_buckets(cls, ranks: Sequence[Buckets], passes: Sequence[IntArray] = ()) -> Exposure:
        """Build it from the buckets of all ranks on one clock, with equally many steps each.

        A step may have several backward passes, each of which ends with a wait for its own buckets:
        `passes` are then their numbers, from 0, by bucket.
        """
        if passes:
            steps, first = ranks[0].step, np.unique(passes[0], return_index=True)[1]
            by_pass = [replace(rank, step=of) for rank, of in zip(ranks, passes, strict=True)]
            begins = np.searchsorted(steps[first], np.unique(steps))
            of_passes = cls.from_buckets(by_pass)
            add = partial(np.add.reduceat, indices=begins, axis=1)
            return cls(
                exposed_in={phase: add(times) for phase, times in of_passes.exposed_in.items()},
                **{name: add(getattr(of_passes, name)) for name in (*KINDS, "bytes", "moved")},
            )
        split = [buckets.by_step(int(buckets.step[-1]) + 1) for buckets in ranks]
        each = partial(_each, split)
        # An all-reduce begins to move data when the last rank has its bucket ready.
        met = [
            np.max([step.launch for step in steps], axis=0) for steps in zip(*split, strict=True)
        ]
        late = np.array([[*map(_wait_for_later_ranks, steps, met)] for steps in split])
        # Whatever is on the link before the last bucket is ready hides behind the backward pass.
        exposed = each(lambda step: union(step.launch, step.finish, since=step.ready.max()))
        size = each(lambda step: step.bytes.sum())
        return cls(
            total=each(lambda step: union(step.launch, step.finish)),
            exposed=exposed,
            straggler=np.minimum(late, exposed),
            bytes=size,
            moved=size * bus_factor("all_reduce", len(ranks)),
            exposed_in={"backward": exposed},
        )

    @classmethod
    def from_calls(cls, ranks: Sequence[Calls], *, steps: int) -> Exposure:
        """Build it from the calls of all ranks on one clock.

        The straggler's part of a wait lasts until the last rank has launched the same call; it is
        known only if every call involves all ranks.
        """
        split = [calls.by_step(steps) for calls in ranks]
        each = partial(_each, split)

        def exposed_in(phase: str) -> FloatArray:
            inside = [[part.where(part.phase == phase) for part in parts] for parts in split]
            return _each(inside, lambda part: union(part.wait_begin, part.wait_end))

        straggler = np.full((len(ranks), steps), np.nan)
        if _same_calls(ranks):
            for step, parts in enumerate(zip(*split, strict=True)):
                met = np.max([part.launch for part in parts], axis=0)
                for rank, part in enumerate(parts):
                    late = np.clip(met, part.wait_begin, part.wait_end)
                    straggler[rank, step] = union(part.wait_begin, late)
        phases = sorted({str(phase) for calls in ranks for phase in calls.phase} - {""})
        return cls(
            total=each(lambda part: union(part.launch, part.finish)),
            exposed=each(lambda part: union(part.wait_begin, part.wait_end)),
            straggler=straggler,
            bytes=each(lambda part: part.bytes.sum()),
            moved=each(lambda part: part.moved.sum()),
            exposed_in={phase: exposed_in(phase) for phase in phases},
        )

    def with_calls(self, buckets: Sequence[Buckets], calls: Sequence[Calls]) -> Exposure:
        """That of a DDP and of all other calls in the same steps, from that of its buckets."""
        steps, nothing = self.total.shape[1], np.zeros_like(self.total)
        other = Exposure.from_calls(calls, steps=steps)
        pairs = [
            [*zip(own.by_step(steps), more.by_step(steps), strict=True)]
            for own, more in zip(buckets, calls, strict=True)
        ]
        sums = {
            name: getattr(self, name) + getattr(other, name)
            for name in ("exposed", "straggler", "bytes", "moved")
        }
        return Exposure(
            total=_each(
                pairs,
                lambda pair: union(
                    np.concatenate([part.launch for part in pair]),
                    np.concatenate([part.finish for part in pair]),
                ),
            ),
            exposed_in={
                phase: self.exposed_in.get(phase, nothing) + other.exposed_in.get(phase, nothing)
                for phase in self.exposed_in | other.exposed_in
            },
            **sums,
        )

    def columns(self, rank: int) -> dict[str, FloatArray]:
        """The columns of steps.parquet for one rank."""
        return {f"communication_{kind}": getattr(self, kind)[rank] for kind in KINDS}


def union(begin: FloatArray, end: FloatArray, *, since: float = -np.inf) -> float:
    """The time covered by any of the intervals after `since`; NaN if one is unknown."""
    # Leaving out an unknown interval would silently make the union too small.
    if not len(begin) or np.isnan(begin).any() or np.isnan(end).any():
        return np.nan if len(begin) else 0.0
    begin, end = np.maximum(begin, since), np.maximum(end, since)
    order = np.argsort(begin)
    begin, reached = begin[order], np.maximum.accumulate(end[order])
    gaps = np.maximum(begin[1:] - reached[:-1], 0.0)
    return float(reached[-1] - begin[0] - gaps.sum())


def _same_calls(ranks: Sequence[Calls]) -> bool:
    """Whether all ranks made the same calls, each with all other ranks."""
    first = ranks[0]
    return all(
        bool((calls.members == len(ranks)).all())
        and all(
            np.array_equal(getattr(calls, name), getattr(first, name))
            for name in ("step", "operation", "bytes")
        )
        for calls in ranks
    )


def _each(split: Sequence[Sequence[Any]], measure: Callable[[Any], float]) -> FloatArray:
    """A measure of each rank's part of each step."""
    return np.array([[measure(part) for part in parts] for parts in split], dtype=np.float64)


def _wait_for_later_ranks(step: Buckets, met: FloatArray) -> float:
    """How much earlier the last bucket would have arrived had no rank come later, at `met`.

    Replays the step on a link that takes buckets in turn: each needs the time that it took once all
    ranks had it ready and the previous one was through.
    """
    through = replayed = -np.inf
    for launch, all_there, finish in np.stack([step.launch, met, step.finish]).T.tolist():
        needed = max(finish - max(all_there, through), 0.0)
        through, replayed = max(through, finish), max(launch, replayed) + needed
    return max(through - replayed, 0.0)


def summary(
    exposure: Exposure, step_time: FloatArray, *, warmup_steps: int, cycle: int = 1
) -> Communication:
    """The record's statistics of the slowest rank in each measured step, as in `timing`.

    `step_time` is (ranks, steps) with warm-up, as are the exposures. A quantity not known for every
    measured step is None. `cycle` is as in `by_cycle`.
    """
    measured = {kind: getattr(exposure, kind)[:, warmup_steps:] for kind in KINDS}
    measured["transfer"] = measured["exposed"] - measured["straggler"]
    measured["overlap"] = measured["total"] - measured["exposed"]
    complete = {kind: values for kind, values in measured.items() if not np.isnan(values).any()}
    # As in `timing`, so that a step's phases and its communication are those of one rank.
    slowest = step_time[:, warmup_steps:].argmax(axis=0)
    steps = np.arange(len(slowest))
    exposed_in = {
        phase: float(np.median(by_cycle(values[:, warmup_steps:][slowest, steps], cycle)))
        for phase, values in exposure.exposed_in.items()
        if "exposed" in complete
    }
    return Communication(
        bytes=int(np.median(by_cycle(exposure.bytes[:, warmup_steps:], cycle))),
        bytes_moved=int(np.median(by_cycle(exposure.moved[:, warmup_steps:], cycle))),
        exposed_in=exposed_in,
        per_rank={
            kind: np.median(by_cycle(complete[kind], cycle), axis=1).tolist()
            for kind in KINDS
            if kind in complete
        },
    ).model_copy(
        update={
            kind: stat(by_cycle(values[slowest, steps], cycle)) for kind, values in complete.items()
        }
    )


def counted(
    buckets: Buckets | None,
    calls: Calls | None,
    *,
    step: int,
    cycle: int = 1,
    operation: str | None = "all_reduce",
) -> dict[str, object]:
    """Fields of Communication that count the buckets of a step and the calls beside them.

    Calls are means over `cycle` steps, of which `step` is the last. `operation` is a bucket's; with
    None, for several each, only buckets are counted.
    """
    sizes: list[int] = buckets.of(step).bytes.tolist() if buckets else []
    fields: dict[str, object] = {"buckets": sizes} if buckets else {}
    if operation is None:
        return fields
    pairs = [(operation, size) for size in sizes]
    if calls is not None:
        end = max(step + 1, cycle)
        own = calls.where((calls.step >= end - cycle) & (calls.step < end))
        pairs += zip(own.operation.tolist(), own.bytes.tolist(), strict=True)

    def mean(count: int) -> int | float:
        return count / cycle if count % cycle else count // cycle

    operations = {
        name: Operation(calls=mean(len(sent)), bytes=round(sum(sent) / cycle))
        for name, sent in grouped(pairs).items()
    }
    return fields | {"calls": mean(len(pairs)), "operations": operations}


def bytes_by_step(sent: Buckets | Calls, *, steps: int) -> FloatArray:
    """The bytes that a rank handed to the link in each step."""
    return np.bincount(sent.step, weights=sent.bytes, minlength=steps).astype(np.float64)


def representative_step(
    step_time: FloatArray, *, warmup_steps: int, sent: FloatArray, cycle: int = 1
) -> int:
    """The measured step whose slowest rank is closest to the median, from (ranks, steps).

    With a `cycle`, as in `by_cycle`, only steps at the place in it that sends most are considered;
    `sent` holds the bytes, also (ranks, steps).
    """
    steps: int = step_time.shape[-1]
    first = steps - (steps - warmup_steps) // cycle * cycle
    sends_most = int(sent[:, first:].reshape(-1, cycle).sum(axis=0).argmax())
    slowest = step_time[:, first + sends_most :: cycle].max(axis=0)
    return first + sends_most + cycle * int(np.abs(slowest - np.median(slowest)).argmin())


def events(
    rank: int, step: int, *, clock: Clock, sent: Buckets | Calls | None, shift: Shift
) -> tuple[float, list[Event]]:
    """The start of a rank's step and its bars, in s; `shift` maps times to rank 0's clock."""
    phases = merge_adjacent(clock.phases(step))
    times = shift(np.array([ends for _, *ends in phases])).tolist()
    bars = [
        Event(rank=rank, name=name, start=begin, end=end)
        for (name, *_), (begin, end) in zip(phases, times, strict=True)
        if name in SHOWN
    ]
    if sent is not None:
        bars += sent_events(rank, sent.of(step).shifted(shift))
    return times[0][0], bars


def sent_events(rank: int, of_step: Buckets | Calls) -> list[Event]:
    """A bar for each bucket or call of a step whose end is known."""
    if isinstance(of_step, Buckets):
        names = [f"bucket {number}" for number in of_step.bucket]
        ready, ends = of_step.ready.tolist(), of_step.finish
    else:
        names, ready = of_step.operation.tolist(), [None] * len(of_step.step)
        # A call with unknown end ends with the wait for it; without either it is not shown.
        ends = np.where(np.isnan(of_step.finish), of_step.wait_end, of_step.finish)
    rows = zip(
        names, ready, of_step.launch.tolist(), ends.tolist(), of_step.bytes.tolist(), strict=True
    )
    return [
        Event(rank=rank, name=name, ready=when, start=launch, end=end, bytes=size)
        for name, when, launch, end, size in rows
        if not np.isnan(end)
    ]


def merge_adjacent(phases: Sequence[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """Phases (name, begin, end) with equal neighbours joined, such as a backward and its wait."""
    runs = [list(run) for _, run in groupby(phases, key=itemgetter(0))]
    return [(run[0][0], run[0][1], run[-1][2]) for run in runs]


def timeline(ranks: Sequence[tuple[float, Sequence[Event]]]) -> list[Event]:
    """The bars of all ranks, counted from the earliest start of the step."""
    origin = min(begin for begin, _ in ranks)
    return [bar.later(-origin) for _, bars in ranks for bar in bars]
