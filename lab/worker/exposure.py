"""What the buckets of all ranks say about a run: total and exposed communication, and what the exposed part waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.records import Communication
from lab.worker.communication import Buckets
from lab.worker.timing import FloatArray, stat


@dataclass(frozen=True)
class Exposure:
    """Communication by rank and step, each array (ranks, steps); times in s.

    `total` is the union of the intervals from launch to finish of a step's buckets, `exposed` its part after the rank's
    last bucket was ready, `straggler` what of that would be gone if every rank had brought each bucket when this one did.
    """

    ready: FloatArray  # when the rank's last bucket was
    total: FloatArray
    exposed: FloatArray
    straggler: FloatArray
    bytes: FloatArray

    @classmethod
    def of(cls, ranks: Sequence[Buckets]) -> Exposure:
        """From the buckets of all ranks on one clock, of equally many steps each."""
        steps = [_steps(buckets) for buckets in ranks]
        ready = np.array([[part.ready.max() for part in parts] for parts in steps])
        exposed = np.array([[union(p.launch, p.finish, since=p.ready.max()) for p in parts] for parts in steps])
        met = [np.max([part.launch for part in parts], axis=0) for parts in zip(*steps, strict=True)]
        waited = np.array([[_waited(p, m) for p, m in zip(parts, met, strict=True)] for parts in steps])
        return cls(
            ready=ready,
            total=np.array([[union(part.launch, part.finish) for part in parts] for parts in steps]),
            exposed=exposed,
            straggler=np.minimum(waited, exposed),
            bytes=np.array([[part.bytes.sum() for part in parts] for parts in steps], dtype=np.float64),
        )

    def columns(self, rank: int) -> dict[str, FloatArray]:
        """The columns of steps.parquet for one rank."""
        return {f"communication_{name}": getattr(self, name)[rank] for name in ("total", "exposed", "straggler")}


def union(begin: FloatArray, end: FloatArray, *, since: float = -np.inf) -> float:
    """The time covered by at least one of the intervals, after `since`."""
    begin, end = np.maximum(begin, since), np.maximum(end, since)
    order = np.argsort(begin)
    begin, reached = begin[order], np.maximum.accumulate(end[order])
    gaps = np.maximum(begin[1:] - reached[:-1], 0.0)
    return float(reached[-1] - begin[0] - gaps.sum())


def _waited(step: _Step, met: FloatArray) -> float:
    """How much earlier the last bucket would have been there without waiting for ranks that came later, at `met`.

    Replays the step on a link that takes buckets in turn: each needs the time that it took once all ranks had brought
    it and the one before it was through.
    """
    through = replayed = -np.inf
    for launch, all_there, finish in zip(step.launch.tolist(), met.tolist(), step.finish.tolist(), strict=True):
        needed = max(finish - max(all_there, through), 0.0)
        through, replayed = max(through, finish), max(launch, replayed) + needed
    return max(through - replayed, 0.0)


def summary(ranks: Sequence[Buckets], exposure: Exposure, step_time: FloatArray, *, warmup_steps: int) -> Communication:
    """The record's part: statistics of the slowest rank of each measured step, as in the record's timing.

    `step_time` is (ranks, steps) with warm-up, as are the exposures.
    """
    measured = {name: getattr(exposure, name)[:, warmup_steps:] for name in ("total", "exposed", "straggler", "bytes")}
    measured["transfer"] = measured["exposed"] - measured["straggler"]
    measured["overlap"] = measured["total"] - measured["exposed"]
    slowest = step_time[:, warmup_steps:].argmax(axis=0)
    steps = np.arange(len(slowest))
    sent = ranks[0]
    of_slowest = {name: stat(values[slowest, steps]) for name, values in measured.items() if name != "bytes"}
    found = Communication(
        bytes=int(np.median(measured["bytes"])),
        buckets=sent.bytes[sent.step == sent.step[-1]].tolist(),
        per_rank={name: np.median(measured[name], axis=1).tolist() for name in ("total", "exposed", "straggler")},
    )
    return found.model_copy(update=of_slowest)


@dataclass(frozen=True)
class _Step:
    ready: FloatArray
    launch: FloatArray
    finish: FloatArray
    bytes: FloatArray


def _steps(buckets: Buckets) -> list[_Step]:
    cuts = np.flatnonzero(np.diff(buckets.step)) + 1
    columns = (buckets.ready, buckets.launch, buckets.finish, buckets.bytes)
    return [_Step(*parts) for parts in zip(*(np.split(column, cuts) for column in columns), strict=True)]
