"""A few more steps under torch's profiler, after all that is timed.

They are the first of a new training, so that the profiler sees every allocation from the model's
on. What the lab's own clock and recorder mark in them goes into the same file, on one time axis for
all ranks, in Chrome's trace format, which Perfetto (https://ui.perfetto.dev) opens.
"""

from __future__ import annotations

import gc
import gzip
import json
import tempfile
import time
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from torch.profiler import ProfilerActivity, profile, record_function

from lab.files import write_atomically
from lab.records.schema import Event, RankMemory, Trace
from lab.worker.distributed import RankJob
from lab.worker.measure.clock import FloatArray
from lab.worker.measure.overlap import Shift, events
from lab.worker.train import train

FILE = "trace.json.gz"
# Steps that are traced but not kept: DDP rebuilds its buckets after the first of them, and with
# PowerSGD compresses from the third on.
BEFORE, KEPT = 4, 3
ANCHOR, ANCHORS = "lab: anchor", 20  # marks whose times on the host's clock are known
ALLOCATION = "[memory]"  # the profiler's name of an allocation or release
ON_CPU, ON_CUDA = 0, 1  # its numbers of kinds of devices
COMMUNICATES = ("c10d::", "_c10d_functional::", "gloo:", "nccl:")
AROUND = "autograd::"  # around hooks, which may wait
LEVELS = 300  # parts of a step, each with the most memory in it
PAUSE = 0.01  # of the step; in shorter gaps the host prepares the next operator

ChromeEvent = Mapping[str, Any]


@dataclass(frozen=True)
class RankTrace:
    """What one rank has traced; times in s on rank 0's clock."""

    events: list[dict[str, Any]]  # the profiler's, with `ts` in s
    bars: list[list[Event]]  # the lab's, by kept step
    begin: float  # of the first kept step
    levels: list[tuple[float, float]]  # times and bytes after each change of memory
    memory: RankMemory  # in the last kept step, which the record describes
    operators: list[tuple[float, float]]


def trace(job: RankJob, *, shift: Shift) -> RankTrace:
    """Trace a few steps; all ranks must call it. `shift` maps times to rank 0's clock.

    A second model and optimizer are made for it, so the first ones should be gone.
    """
    on_gpu = job.device.type == "cuda"
    gc.collect()  # models have cycles

    def progress(phase: str, step: int, steps: int, loss: float | None = None, /) -> None:
        job.progress("tracing", step, steps)

    run = job.run.model_copy(update={"steps": BEFORE + KEPT, "warmup_steps": BEFORE})
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities, profile_memory=True) as profiler:
        marks = [_mark() for _ in range(ANCHORS)]
        training = train(replace(job, run=run, progress=progress))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        traced = json.loads(path.read_bytes())["traceEvents"]
    _set_clock(traced, marks, shift)
    rank, clock = job.context.rank, training.clock
    steps = [
        events(rank, step, clock=clock, sent=training.sent, shift=shift)
        for step in range(BEFORE, BEFORE + KEPT)
    ]
    last = clock.phases(BEFORE + KEPT - 1)
    start, end = shift(np.array([last[0][1], last[-1][2]])).tolist()
    times, totals = allocated(traced, device=(job.device.index or 0) if on_gpu else None)
    begin = steps[0][0]
    return RankTrace(
        events=[
            event
            for event in traced
            if event["ph"] == "M" or (event["ph"] == "X" and event["ts"] >= begin)
        ],
        bars=[bars for _, bars in steps],
        begin=begin,
        levels=[
            (at, total)
            for at, total in zip(times.tolist(), totals.tolist(), strict=True)
            if at >= begin
        ],
        memory=memory_over(times, totals, start=start, end=end),
        operators=busy(traced, start=start, end=end),
    )


def _set_clock(traced: Sequence[dict[str, Any]], marks: Sequence[float], shift: Shift) -> None:
    """Give events the times of rank 0's clock in s, by anchors with `marks` on the host's clock."""
    anchors = sorted(
        (event for event in traced if event.get("name") == ANCHOR), key=itemgetter("ts")
    )
    # The shortest, as the process may be interrupted in any of them.
    anchor, here = min(zip(anchors, marks, strict=True), key=lambda pair: pair[0]["dur"])
    stamps = np.array([event.get("ts", 0.0) for event in traced])
    passed = 1e-6 * (stamps - anchor["ts"] - anchor["dur"] / 2)
    for event, at in zip(traced, shift(here + passed).tolist(), strict=True):
        event["ts"] = at


def _mark() -> float:
    with record_function(ANCHOR):
        return time.perf_counter()


def allocated(
    traced: Iterable[ChromeEvent], *, device: int | None
) -> tuple[FloatArray, FloatArray]:
    """When memory was allocated or released on a GPU, None for the CPU, and the bytes after it."""
    place = (ON_CUDA, device) if device is not None else (ON_CPU, -1)
    changes = sorted(
        (event for event in traced if event.get("name") == ALLOCATION and _device(event) == place),
        key=itemgetter("ts"),
    )
    times = np.array([event["ts"] for event in changes])
    if device is not None:
        totals = [event["args"]["Total Allocated"] for event in changes]
    else:
        totals = _totals((event["args"]["Addr"], event["args"]["Bytes"]) for event in changes)
    return times, np.array(totals, dtype=np.float64)


def _device(event: ChromeEvent) -> tuple[int, int]:
    return event["args"]["Device Type"], event["args"]["Device Id"]


def _totals(changes: Iterable[tuple[int, int]]) -> list[float]:
    """Bytes after each change of an address; a negative size is a release.

    Not the profiler's own sum: on a CPU it misses what other threads release, such as gloo's. That
    is noticed here once the memory is used again.
    """
    blocks: dict[int, int] = {}
    starts: list[int] = []  # of the blocks, sorted; they do not overlap
    total, totals = 0.0, []
    for start, size in changes:
        if size > 0:
            first = max(bisect_right(starts, start) - 1, 0)
            for other in starts[first : bisect_left(starts, start + size)]:
                if other + blocks[other] > start:
                    starts.remove(other)
                    total -= blocks.pop(other)
            insort(starts, start)
            blocks[start] = size
            total += size
        elif start in blocks:
            starts.remove(start)
            total -= blocks.pop(start)
        totals.append(total)
    return totals


def memory_over(
    times: FloatArray, totals: FloatArray, *, start: float, end: float, parts: int = LEVELS
) -> RankMemory:
    """The memory from start to end (s), from the bytes after each change; nothing before them."""
    after = np.concatenate([[0.0], totals])
    edges = np.linspace(start, end, parts + 1)
    # A part holds at least what it began with.
    most = after[np.searchsorted(times, edges[:-1], side="right")]
    inside = (times >= start) & (times < end)
    part = np.searchsorted(edges, times[inside], side="right") - 1
    np.maximum.at(most, part, totals[inside])
    before = after[np.searchsorted(times, start, side="right")]
    return RankMemory(start=start, end=end, held=int(before), bytes=most.astype(int).tolist())


def busy(traced: Sequence[ChromeEvent], *, start: float, end: float) -> list[tuple[float, float]]:
    """When a rank computed, from start to end (s): its kernels, or without any its operators.

    Operators that communicate are left out, and those around them, which contain the wait. Gaps of
    less than a hundredth of the time count as computing.
    """
    kernels = [event for event in traced if event.get("cat") == "kernel"]
    computing = [event for event in kernels if "nccl" not in event["name"].lower()] or list(
        _without_waits([event for event in traced if event.get("cat") == "cpu_op"])
    )
    stretches: list[tuple[float, float]] = []
    for one in sorted(computing, key=itemgetter("ts")):
        begin, finish = max(one["ts"], start), min(_end(one), end)
        if finish < begin:
            continue
        if stretches and begin - stretches[-1][1] < PAUSE * (end - start):
            begin, finish = stretches[-1][0], max(stretches.pop()[1], finish)
        stretches.append((begin, finish))
    return stretches


def _without_waits(operators: Sequence[ChromeEvent]) -> Iterator[ChromeEvent]:
    calls = defaultdict(list)  # when they begin, by thread
    for one in sorted(operators, key=itemgetter("ts")):
        if one["name"].startswith(COMMUNICATES):
            calls[one["tid"]].append(one["ts"])
    for one in operators:
        of_thread = calls[one["tid"]]
        inside = bisect_left(of_thread, one["ts"]) < bisect_right(of_thread, _end(one))
        if not inside and not one["name"].startswith(AROUND):
            yield one


def _end(event: ChromeEvent) -> float:
    return float(event["ts"] + 1e-6 * event["dur"])


def write_trace(ranks: Sequence[RankTrace], folder: Path) -> Trace:
    """Write the trace of all ranks into the repeat's folder, and return the record's part of it."""
    memories = [one.memory for one in ranks]
    begin, origin = min(one.begin for one in ranks), min(memory.start for memory in memories)
    rows = [row for rank, one in enumerate(ranks) for row in _rows(rank, one, begin)]
    content = json.dumps({"displayTimeUnit": "ms", "traceEvents": rows}).encode()
    write_atomically(folder / FILE, gzip.compress(content, mtime=0))
    return Trace(
        file=FILE,
        timeline=[bar.later(-origin) for one in ranks for bar in one.bars[-1]],
        operators=[
            Event(rank=rank, name="operators", start=start - origin, end=end - origin)
            for rank, one in enumerate(ranks)
            for start, end in one.operators
        ],
        memory=[
            memory.model_copy(update={"start": memory.start - origin, "end": memory.end - origin})
            for memory in memories
        ],
    )


def _rows(rank: int, one: RankTrace, origin: float) -> Iterator[dict[str, Any]]:
    """A rank's part of the file: the lab's bars, the profiler's events, its memory as a counter."""
    complete = [event for event in one.events if event["ph"] == "X"]
    # Process numbers may be the same on two hosts; those of GPUs are small, some others are words.
    own = next((event["pid"] for event in complete if event.get("cat") == "cpu_op"), None)
    others = sorted({event["pid"] for event in complete} - {own}, key=str)
    numbers = {pid: 1000 * rank + nth for nth, pid in enumerate([own, *others])}
    yield _named("process_name", numbers[own], 0, name=f"rank {rank}")
    in_lanes = list(_lanes([bar for step in one.bars for bar in step]))
    for bar, lane in in_lanes:
        times = {"ts": 1e6 * (bar.start - origin), "dur": 1e6 * (bar.end - bar.start)}
        about = {"bytes": bar.bytes} if bar.bytes else {}
        place = {"pid": numbers[own], "tid": 1 + lane}
        yield {"ph": "X", "cat": "lab", "name": bar.name, **times, **place, "args": about}
    for lane in sorted({lane for _, lane in in_lanes}):
        name = f"lab: {'link' if lane else 'compute'}"
        yield _named("thread_name", numbers[own], 1 + lane, name=name)
        yield _named("thread_sort_index", numbers[own], 1 + lane, sort_index=lane - 1000)
    for event in one.events:
        at = 1e6 * (event["ts"] - origin)
        if event["pid"] not in numbers:
            continue
        pid = numbers[event["pid"]]
        if event["ph"] == "X":
            yield event | {"pid": pid, "ts": at}
        elif event["name"] == "thread_name" or (event["name"] == "process_name" and pid % 1000):
            yield event | {"pid": pid, "ts": 0}
    for at, total in one.levels:
        level = {"ts": 1e6 * (at - origin), "args": {"MB": total / 1e6}}
        yield {"ph": "C", "name": "memory", "pid": numbers[own], "tid": 0, **level}


def _named(what: str, pid: int, tid: int, **value: object) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": value}


def _lanes(bars: Sequence[Event]) -> Iterator[tuple[Event, int]]:
    """Each bar with its lane: 0 for compute, for the link the first one that is free by then."""
    ends: list[float] = []
    for bar in sorted(bars, key=lambda bar: bar.start):
        if bar.bytes is None:
            yield bar, 0
            continue
        free = next((nth for nth, end in enumerate(ends) if end <= bar.start), len(ends))
        ends[free : free + 1] = [bar.end]
        yield bar, 1 + free
