"""Calls on known clocks: what is stamped, and what all ranks' calls say together."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ranks import on_ranks
from torch import distributed as dist
from torch.distributed import _functional_collectives as functional

from lab.records.schema import Operation
from lab.worker.measure import collective_trace
from lab.worker.measure.clock import Clock
from lab.worker.measure.collective_trace import CallRecorder, Calls, _bytes
from lab.worker.measure.overlap import Exposure, bytes_by_step, counted, summary
from lab.worker.patch import around

NAN = float("nan")
# In different versions of torch.
GATHERS = ("all_gather_single", "all_gather_tensor")
SCATTERS = ("reduce_scatter_single", "reduce_scatter_tensor")


class Ticks(Clock):
    """A clock that reads 1 more each time, or what a test sets."""

    tick = 0.0

    def now(self) -> float:
        self.tick += 1
        return self.tick


def stepping(clock: Ticks) -> CallRecorder:
    recorder = CallRecorder(clock)
    clock.start()
    return recorder


def test_a_call_that_blocks_is_waited_for_from_its_launch_to_its_end() -> None:
    clock = Ticks()
    recorder = stepping(clock)
    with recorder.blocked("reduce", 100, members=4):
        clock.tick += 10
    clock.lap("backward")
    trace = recorder.take()
    assert (trace.launch.tolist(), trace.finish.tolist()) == ([2.0], [13.0])
    assert (trace.wait_begin.tolist(), trace.wait_end.tolist()) == ([2.0], [13.0])
    assert (trace.step.tolist(), trace.phase.tolist(), trace.operation.tolist()) == (
        [0],
        ["backward"],
        ["reduce"],
    )
    assert (trace.bytes.tolist(), trace.moved.tolist(), trace.members.tolist()) == (
        [100],
        [100.0],
        [4],
    )


def asynchronous(*, end_before_wait: bool | None) -> Calls:
    clock = Ticks()
    recorder = stepping(clock)
    call = recorder.launch("all_reduce", 100, members=4)
    recorder.expect([call], "key", call)
    if end_before_wait:
        recorder.finished(call)
    clock.tick += 10
    with recorder.waiting("key"):
        if end_before_wait is False:
            recorder.finished(call)
    clock.lap("forward")
    return recorder.take()


def test_what_arrived_before_anybody_waited_was_hidden() -> None:
    trace = asynchronous(end_before_wait=True)
    assert (trace.launch[0], trace.finish[0]) == (2.0, 3.0)
    assert trace.wait_end[0] == trace.wait_begin[0] == 14.0
    assert trace.moved[0] == pytest.approx(150)  # 2 (4 - 1) / 4


def test_what_arrives_while_the_rank_waits_is_there_when_it_goes_on() -> None:
    trace = asynchronous(end_before_wait=False)
    assert (trace.wait_begin[0], trace.wait_end[0], trace.finish[0]) == (13.0, 15.0, 15.0)


def test_an_end_that_nobody_saw_is_not_made_up() -> None:
    trace = asynchronous(end_before_wait=None)
    assert np.isnan(trace.finish[0]) and trace.wait_end[0] == 14.0
    exposed = Exposure.from_calls([trace], steps=1)
    assert np.isnan(exposed.total[0, 0]) and exposed.exposed.tolist() == [[1.0]]
    communication = summary(exposed, np.array([[20.0]]), warmup_steps=0)
    assert (
        communication.total is None
        and communication.overlap is None
        and communication.exposed is not None
        and communication.bytes == 100
    )


def test_calls_before_the_first_step_are_left_out() -> None:
    clock = Ticks()
    recorder = CallRecorder(clock)
    recorder.launch("broadcast", 8, members=2)
    clock.start()
    clock.lap("forward")
    assert len(recorder.take().step) == 0


def test_calls_between_steps_and_after_the_last_are_left_out() -> None:
    clock = Ticks()
    recorder = stepping(clock)
    for _ in range(2):
        with recorder.blocked("all_reduce", 100, members=2):
            pass
        clock.lap("backward")
        with recorder.blocked("all_gather", 8, members=2):  # of a checkpoint
            pass
        clock.start()
    clock.discard()
    with recorder.blocked("all_gather", 8, members=2):
        pass
    trace = recorder.take()
    assert trace.operation.tolist() == ["all_reduce"] * 2 and trace.step.tolist() == [0, 1]


def test_a_rank_that_is_the_only_member_of_a_group_exchanges_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collective_trace.dist, "get_world_size", lambda: 2)
    clock = Ticks()
    recorder = stepping(clock)
    gather = around(lambda *_: None, collective_trace._launch, "all_gather", 0)
    alone = Group()
    alone.size = lambda: 1  # type: ignore[method-assign]
    for group in (alone, Group()):
        gather(group, [torch.zeros(25)], BLOCKING)
    clock.lap("forward")
    assert recorder.take().members.tolist() == [2]


def test_bytes_are_those_of_all_tensors_in_lists_of_lists() -> None:
    tensor = torch.ones(10)
    assert _bytes(tensor) == 40 and _bytes([[tensor, tensor], [tensor]]) == 120


def calls(
    *rows: tuple[int, str, float, float, float, float], members: int = 2, phase: str = "forward"
) -> Calls:
    """Rows of step, operation, launch, wait_begin, wait_end, finish."""
    step, operation, launch, wait_begin, wait_end, finish = (
        list(column) for column in zip(*rows, strict=True)
    )
    size: Any = np.full(len(rows), 100)
    return Calls(
        step=np.array(step),
        operation=np.array(operation),
        members=np.full(len(rows), members),
        phase=np.array([phase] * len(rows)),
        launch=np.array(launch, dtype=float),
        finish=np.array(finish, dtype=float),
        wait_begin=np.array(wait_begin, dtype=float),
        wait_end=np.array(wait_end, dtype=float),
        bytes=size,
        moved=size / 2,
    )


def test_waits_until_the_last_rank_came_are_the_stragglers() -> None:
    early = calls((0, "all_reduce", 0, 0, 5, 5), (0, "all_gather", 6, 8, 10, 10))
    late = calls((0, "all_reduce", 3, 3, 5, 5), (0, "all_gather", 7, 7, 10, 10))
    exposure = Exposure.from_calls([early, late], steps=1)
    assert exposure.total.tolist() == [[9.0], [5.0]]
    assert exposure.exposed.tolist() == [[7.0], [5.0]]
    assert exposure.straggler.tolist() == [
        [3.0],
        [0.0],
    ]  # of the second call, both had come before the first rank waited
    assert exposure.exposed_in["forward"].tolist() == [[7.0], [5.0]]
    assert (exposure.bytes.tolist(), exposure.moved.tolist()) == (
        [[200.0], [200.0]],
        [[100.0], [100.0]],
    )


@pytest.mark.parametrize(
    "other",
    [
        calls((0, "send", 3, 3, 5, 5)),
        calls((0, "all_reduce", 3, 3, 5, 5), members=1),
        calls((0, "all_reduce", 3, 3, 5, 5), (0, "all_reduce", 6, 6, 7, 7)),
    ],
    ids=["another operation", "another group", "more calls"],
)
def test_where_ranks_do_different_things_nobody_is_the_straggler(other: Calls) -> None:
    exposure = Exposure.from_calls([calls((0, "all_reduce", 0, 0, 5, 5)), other], steps=1)
    assert np.isnan(exposure.straggler).all() and not np.isnan(exposure.exposed).any()
    communication = summary(exposure, np.array([[9.0], [8.0]]), warmup_steps=0)
    assert (
        communication.straggler is None
        and communication.transfer is None
        and communication.exposed is not None
        and communication.exposed.median == 5.0
    )
    assert communication.per_rank.keys() == {"total", "exposed"}


def test_a_step_without_calls_waits_for_nothing() -> None:
    exposure = Exposure.from_calls([calls((1, "all_reduce", 0, 0, 5, 5))], steps=2)
    assert exposure.total.tolist() == [[0.0, 5.0]] and exposure.exposed.tolist() == [[0.0, 5.0]]


def test_operations_are_counted_on_one_step() -> None:
    counts = counted(
        None,
        calls(
            (0, "send", 0, 0, 1, 1),
            (1, "send", 2, 2, 3, 3),
            (1, "receive", 4, 4, 5, 5),
            (1, "send", 6, 6, 7, 7),
            (2, "all_gather", 8, 8, 9, 9),  # as of an evaluation
        ),
        step=1,
    )
    assert counts == {
        "calls": 3,
        "operations": {
            "send": Operation(calls=2, bytes=200),
            "receive": Operation(calls=1, bytes=100),
        },
    }


def test_of_a_strategy_that_sends_nothing_nothing_is_counted() -> None:
    none = calls((0, "all_reduce", 0, 0, 1, 1)).of(1)
    assert counted(None, none, step=1) == {"calls": 0, "operations": {}}


def test_operations_of_a_cycle_are_means_over_its_steps() -> None:
    every_fourth = [(step, "all_reduce", 0.0, 0.0, 1.0, 1.0) for step in (3, 7)]
    assert counted(None, calls(*every_fourth), step=7, cycle=4) == {
        "calls": 0.25,
        "operations": {"all_reduce": Operation(calls=0.25, bytes=25)},
    }
    assert bytes_by_step(calls(*every_fourth), steps=8).tolist() == [0, 0, 0, 100] * 2


def test_messages_that_go_both_ways_at_once_are_waited_for_together() -> None:
    clock = Ticks()
    recorder = stepping(clock)
    group, work = Group(), Work()
    for name in ("send", "recv"):
        message = around(lambda *_: None, collective_trace._launch, name, 0)
        assert message(group, [torch.zeros(25)], 1, 0) is None
    end = around(lambda *_: work, collective_trace._end_coalescing)
    assert end(group, "cuda") is work
    clock.tick += 10
    collective_trace._wait(lambda _: setattr(clock, "tick", clock.tick + 5), id, work)
    clock.lap("forward")
    trace = recorder.take()
    assert trace.launch.tolist() == [2.0, 3.0] and trace.bytes.tolist() == [100, 100]
    assert (trace.wait_begin.tolist(), trace.wait_end.tolist()) == ([14.0] * 2, [20.0] * 2)
    assert np.isnan(trace.finish).all() and trace.phase.tolist() == ["forward"] * 2
    assert Exposure.from_calls([trace], steps=1).exposed.tolist() == [[6.0]]


def test_what_the_main_stream_waits_for_is_the_call_before_an_event_of_another_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # FSDP: a gather on a stream of its own, and the main stream waits for its event.
    current = ["gathers"]
    monkeypatch.setattr(torch.cuda, "Event", Work)
    monkeypatch.setattr(collective_trace, "_is_main", lambda stream: stream == "main")
    monkeypatch.setattr(
        collective_trace, "_side_stream", lambda: None if current[0] == "main" else current[0]
    )
    clock = Ticks()
    recorder = stepping(clock)
    record = around(lambda *_: Work(), collective_trace._record_event)
    take_5 = lambda *_: setattr(clock, "tick", clock.tick + 5)  # noqa: E731
    wait = around(take_5, collective_trace._wait_event)
    with recorder.blocked("all_gather", 100, members=2):
        clock.tick += 10
    done = record("gathers")
    current[0] = "main"
    wait("copies", done)  # of another side stream: nobody computes there
    wait("main", done)
    clock.lap("forward")
    wait("main", record("gathers"))  # what comes after the call on its stream
    wait("main", record("copies"))  # no call
    trace = recorder.take()
    assert (trace.launch.tolist(), trace.finish.tolist()) == ([2.0], [13.0])
    assert trace.wait_begin.tolist() == trace.wait_end.tolist() == [19.0]  # it was over before
    assert trace.phase.tolist() == ["forward"]


class Work:
    """In place of NCCL's, of which nothing but the identity counts."""


BLOCKING = SimpleNamespace(asyncOp=False)


class Group:
    """In place of a group of two."""

    def size(self) -> int:
        return 2


def test_ddps_broadcast_of_buffers_is_one_call_that_the_rank_waits_for() -> None:
    broadcasts = []
    traced = around(lambda *arguments: broadcasts.append(arguments), collective_trace._broadcast)
    group, buffers = Group(), [torch.zeros(25), torch.zeros(3, dtype=torch.int64)]
    collective_trace.trace_calls(None)
    traced(group, buffers, 250, 0)
    recorder = stepping(Ticks())
    traced(group, buffers, 250, 0)
    recorder.clock.lap("forward")
    calls = recorder.take()
    assert broadcasts == [(group, buffers, 250, 0)] * 2
    assert (calls.operation.tolist(), calls.bytes.tolist()) == (["broadcast"], [124])
    assert (calls.phase.tolist(), calls.members.tolist()) == (["forward"], [2])
    assert calls.wait_begin.tolist() == calls.launch.tolist() and calls.wait_end > calls.launch


def functional_collectives(rank: int, folder: str, *, traced: bool) -> Any:
    """The results of DTensor's collectives on two ranks, with what was recorded of them."""
    dist.init_process_group("gloo", f"file://{folder}/{traced}", rank=rank, world_size=2)
    recorder = stepping(Ticks()) if traced else None
    shard = rank + torch.arange(12.0).reshape(4, 3)
    group = dist.group.WORLD
    gather = next(getattr(functional, name) for name in GATHERS if hasattr(functional, name))
    scatter = next(getattr(functional, name) for name in SCATTERS if hasattr(functional, name))
    results = [
        functional.all_reduce(shard, "sum", group),
        gather(shard, 0, group),
        gather(shard, gather_dim=1, group=group),
        scatter(shard, "sum", 0, group),
        scatter(shard.T, reduceOp="sum", scatter_dim=1, group=group),
    ]
    values = [(result + 0).tolist() for result in results]  # which waits for them
    if recorder is None:
        return values
    recorder.clock.lap("forward")
    calls = recorder.take()
    return values, calls.operation.tolist(), calls.bytes.tolist(), calls.wait_end.tolist()


def test_collectives_of_dtensors_are_recorded_and_give_what_they_gave(tmp_path: Path) -> None:
    plain = on_ranks(2, partial(functional_collectives, folder=str(tmp_path), traced=False))
    traced = on_ranks(2, partial(functional_collectives, folder=str(tmp_path), traced=True))
    assert [values for values, *_ in traced] == plain
    for _, operations, sizes, ends in traced:
        assert operations == ["all_reduce", *["all_gather"] * 2, *["reduce_scatter"] * 2]
        assert sizes == [48, 96, 96, 48, 48] and not np.isnan(ends).any()


def test_a_collective_within_a_compiled_graph_is_noted_and_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = stepping(Ticks())
    monkeypatch.setattr(functional, "_are_we_tracing", lambda: True)

    def gather(tensor: torch.Tensor, group: str) -> tuple[torch.Tensor, str]:
        return tensor, group

    tensor = torch.ones(2)
    traced = around(gather, collective_trace._functional, collective_trace._all_gather)
    assert traced(tensor, "of all") == (tensor, "of all")
    assert recorder.compiled and not recorder.calls
