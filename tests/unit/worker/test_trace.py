"""What is computed from a profiler's events: memory over a step, stretches of compute, the file of all ranks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.records.schema import Event, RankMemory
from lab.worker.trace import RankTrace, allocated, busy, memory_over, write_trace


def operator(name: str, ts: float, ms: float, *, tid: int = 7, cat: str = "cpu_op") -> Any:
    """An event as the profiler has it, with `ts` in s."""
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 42,
        "tid": tid,
        "ts": ts,
        "dur": 1e3 * ms,
        "args": {},
    }


def allocation(
    ts: float, size: int, *, at: int = 64, total: int = 0, device: tuple[int, int] = (0, -1)
) -> Any:
    about = {"Bytes": size, "Addr": at, "Total Allocated": total}
    about |= {"Device Type": device[0], "Device Id": device[1]}
    return {"ph": "i", "name": "[memory]", "pid": 42, "tid": 7, "ts": ts, "args": about}


def test_allocations_of_one_device_in_the_order_of_time() -> None:
    made = [allocation(2.0, -7), allocation(1.0, 7), operator("aten::mm", 1.0, 1.0)]
    made.append(allocation(1.5, 9, total=30, device=(1, 0)))
    times, totals = allocated(made, device=None)
    assert times.tolist() == [1.0, 2.0] and totals.tolist() == [7, 0]
    assert allocated(made, device=0)[1].tolist() == [30]  # with what was there before
    assert allocated(made, device=1)[1].tolist() == []


def test_what_another_thread_released_is_noticed_when_it_is_used_again() -> None:
    made = [
        allocation(1.0, 100, at=1000),
        allocation(2.0, 50, at=1100),
        allocation(3.0, 20, at=1040),  # within the first block, whose release nobody recorded
        allocation(4.0, 60, at=1060),  # beside it, and upon the second one
        allocation(5.0, -60, at=1060),
        allocation(6.0, -5, at=7),  # from before the trace
    ]
    assert allocated(made, device=None)[1].tolist() == [100, 150, 70, 80, 20, 20]


def test_memory_over_a_step_by_hand() -> None:
    times, totals = np.array([0.5, 1.1, 1.2, 1.6, 3.5]), np.array([10.0, 30.0, 20.0, 5.0, 99.0])
    memory = memory_over(times, totals, start=1.0, end=3.0, parts=4)
    assert memory.held == 10
    assert memory.bytes == [30, 20, 5, 5]  # each part's most, at least what it began with


@given(
    changes=st.lists(
        st.tuples(st.floats(0, 4), st.integers(0, 10**12)), max_size=30, unique_by=lambda c: c[0]
    ),
    parts=st.integers(1, 40),
)
def test_no_peak_is_lost_in_the_parts_of_a_step(
    changes: list[tuple[float, int]], parts: int
) -> None:
    changes.sort()
    times, totals = np.array(changes, dtype=float).reshape(-1, 2).T
    memory = memory_over(times, totals, start=1.0, end=3.0, parts=parts)
    before = [total for at, total in changes if at <= 1]
    inside = [total for at, total in changes if 1 <= at < 3]
    assert memory.held == (before[-1] if before else 0)
    assert max(memory.bytes) == max([memory.held, *inside]) and len(memory.bytes) == parts


def test_a_rank_computes_while_an_operator_runs_that_does_not_wait() -> None:
    made = [
        operator("aten::linear", 0.0, 20),
        operator("aten::addmm", 0.001, 18),  # inside
        operator("aten::relu", 0.0205, 9.5),  # a gap of half a hundredth of the step
        operator("autograd::engine::evaluate_function: Mean", 0.03, 30),  # which waits in a hook
        operator("aten::mul", 0.05, 10),
        operator("aten::all_reduce_inside", 0.065, 15),
        operator("c10d::allreduce_", 0.066, 13),
        operator("gloo:all_reduce", 0.03, 40, tid=8),
        operator("aten::add", 0.095, 50),  # into the next step
    ]
    stretches = busy(made, start=0.0, end=0.1)
    assert np.array(stretches) == pytest.approx(np.array([[0, 0.03], [0.05, 0.06], [0.095, 0.1]]))


def test_a_gpu_computes_while_a_kernel_runs_that_is_not_nccl_s() -> None:
    made = [
        operator("aten::mm", 0.0, 100),
        operator("gemm", 0.02, 10, cat="kernel"),
        operator("ncclDevKernel_AllReduce", 0.05, 10, cat="kernel"),
    ]
    assert np.array(busy(made, start=0.0, end=0.1)) == pytest.approx(np.array([[0.02, 0.03]]))


def test_the_file_holds_all_ranks_on_one_time_axis(tmp_path: Path) -> None:
    def rank(number: int, begin: float) -> RankTrace:
        bars = [
            Event(rank=number, name="forward", start=begin, end=begin + 1),
            Event(rank=number, name="bucket 0", start=begin + 0.5, end=begin + 0.8, bytes=8),
            Event(rank=number, name="bucket 1", start=begin + 0.6, end=begin + 0.9, bytes=8),
        ]
        later = [bar.later(2.0) for bar in bars]
        thread = {"ph": "M", "name": "thread_name", "pid": 42, "tid": 7, "ts": 0, "args": {}}
        return RankTrace(
            events=[
                thread,
                operator("aten::mm", begin, 500),
                allocation(begin, 1, total=4_000_000),
            ],
            bars=[bars, later],
            begin=begin,
            levels=[(begin, 4e6)],
            memory=RankMemory(start=begin + 2, end=begin + 3, held=1, bytes=[1, 2]),
            operators=[(begin + 2.1, begin + 2.6)],
        )

    trace = write_trace([rank(0, 100.0), rank(1, 100.25)], tmp_path)
    assert [bar.start for bar in trace.timeline if bar.name == "forward"] == [0.0, 0.25]
    assert [memory.end for memory in trace.memory] == [1.0, 1.25]
    assert trace.idle(0) == pytest.approx(0.5) and trace.idle(1) == pytest.approx(0.5)
    events = json.loads(gzip.decompress((tmp_path / trace.file).read_bytes()))["traceEvents"]
    forward = [event["ts"] for event in events if event["name"] == "forward"]
    assert forward == [0.0, 2e6, 0.25e6, 2.25e6]  # µs, from the first traced step of any rank
    products = [event for event in events if event["name"] == "aten::mm"]
    assert [event["ts"] for event in products] == [0.0, 0.25e6]
    assert len({event["pid"] for event in products}) == 2  # though both had the same number
    # Buckets that are on the link together would hide each other in one row.
    lanes = {event["tid"] for event in events if event["name"].startswith("bucket")}
    assert len(lanes) == 2
    assert [event["args"] for event in events if event["ph"] == "C"] == [{"MB": 4.0}] * 2
