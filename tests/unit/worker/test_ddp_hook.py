"""The maths of communication on buckets whose times are known."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lab.records.schema import Communication, Operation, Stat
from lab.worker.distributed import ClockOffset, on_clock_of_rank_0
from lab.worker.measure.clock import Clock
from lab.worker.measure.collective_trace import Calls
from lab.worker.measure.ddp_hook import BucketRecorder, Buckets, Sent
from lab.worker.measure.overlap import (
    Exposure,
    counted,
    events,
    representative_step,
    summary,
    timeline,
    union,
)
from lab.worker.sync_cost import Probe, costs, methods_agree

Row = tuple[int, int, float, float, float]  # step, bucket, ready, launch, finish


def buckets(*rows: Row) -> Buckets:
    step, bucket, ready, launch, finish = (np.array(column) for column in zip(*rows, strict=True))
    return Buckets(
        step,
        bucket,
        ready.astype(float),
        launch.astype(float),
        finish.astype(float),
        np.full(len(rows), 100),
    )


INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15)), min_size=1, max_size=8)


@given(INTERVALS, st.integers(-1, 60))
def test_a_union_is_the_seconds_that_any_interval_covers(
    drawn: list[tuple[int, int]], since: int
) -> None:
    begin = np.array([start for start, _ in drawn], dtype=float)
    end = begin + np.array([length for _, length in drawn])
    covered = {
        second
        for start, length in drawn
        for second in range(start, start + length)
        if second >= since
    }
    assert union(begin, end, since=since) == pytest.approx(len(covered))


def test_total_and_exposed_of_buckets_that_queue() -> None:
    # The third bucket is on the link alone; the gap before it is no communication.
    exposure = Exposure.from_buckets(
        [buckets((0, 0, 1, 1, 4), (0, 1, 2, 2, 6), (0, 2, 8, 8, 11), (1, 0, 20, 21, 25))]
    )
    assert exposure.total.tolist() == [[8.0, 4.0]]
    assert exposure.exposed.tolist() == [
        [3.0, 4.0]
    ]  # what is done between ready and launch is compute
    assert exposure.bytes.tolist() == [[300.0, 100.0]]
    assert exposure.straggler.tolist() == [[0.0, 0.0]]


def test_one_bucket_waits_for_the_rank_that_comes_later() -> None:
    exposure = Exposure.from_buckets([buckets((0, 0, 1, 1, 9)), buckets((0, 0, 5, 5, 9))])
    assert exposure.exposed.tolist() == [[8.0], [4.0]]
    assert exposure.straggler.tolist() == [[4.0], [0.0]]


def test_a_late_first_bucket_pushes_all_others_back() -> None:
    """Each bucket needs 3 s; rank 1 brings everything 2 s later than rank 0."""
    early = buckets((0, 0, 1, 1, 6), (0, 1, 2, 2, 9), (0, 2, 3, 3, 12))
    late = buckets((0, 0, 3, 3, 6), (0, 1, 4, 4, 9), (0, 2, 5, 5, 12))
    exposure = Exposure.from_buckets([early, late])
    assert exposure.exposed.tolist() == [[9.0], [7.0]]
    assert exposure.straggler.tolist() == [[2.0], [0.0]]


def test_a_late_rank_behind_a_busy_link_costs_nothing() -> None:
    early = buckets((0, 0, 1, 1, 6), (0, 1, 2, 2, 11))
    late = buckets((0, 0, 1, 1, 6), (0, 1, 5, 5, 11))
    assert Exposure.from_buckets([early, late]).straggler.tolist() == [[0.0], [0.0]]


def test_the_waits_of_a_step_with_several_passes_add_up() -> None:
    # Two passes, the second through two DDPs, whose first bucket hides behind its other half.
    early = buckets((0, 0, 1, 1, 4), (0, 0, 11, 11, 13), (0, 0, 15, 15, 20), (1, 0, 31, 31, 33))
    late = buckets((0, 0, 2, 2, 4), (0, 0, 11, 11, 13), (0, 0, 15, 15, 20), (1, 0, 31, 31, 33))
    passes = [np.array([0, 1, 1, 2])] * 2
    exposure = Exposure.from_buckets([early, late], passes)
    assert exposure.exposed.tolist() == [[3.0 + 5.0, 2.0], [2.0 + 5.0, 2.0]]
    assert exposure.total.tolist() == [[3.0 + 7.0, 2.0], [2.0 + 7.0, 2.0]]
    assert exposure.straggler.tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert exposure.bytes.tolist() == [[300.0, 100.0]] * 2
    assert exposure.exposed_in["backward"].tolist() == exposure.exposed.tolist()


def test_calls_beside_buckets_count_where_they_are_waited_for() -> None:
    """In two steps of a DDP, each rank calls once while a bucket is on the link, and once after."""
    own = buckets((0, 0, 1, 1, 4), (1, 0, 11, 11, 14))
    times = np.array([2.0, 6.0, 12.0, 16.0])
    beside = Calls(
        step=np.array([0, 0, 1, 1]),
        operation=np.array(["broadcast", "all_reduce"] * 2),
        members=np.full(4, 2),
        phase=np.array(["backward", "optimizer"] * 2),
        launch=times,
        finish=times + 1,
        wait_begin=times,
        wait_end=times + np.array([0, 1, 0, 1]),
        bytes=np.array([10, 20, 10, 20]),
        moved=np.array([10.0, 20.0, 10.0, 20.0]),
    )
    exposure = Exposure.from_buckets([own, own]).with_calls([own, own], [beside, beside])
    assert exposure.total.tolist() == [[4.0, 4.0]] * 2
    assert exposure.exposed.tolist() == [[4.0, 4.0]] * 2
    assert exposure.straggler.tolist() == [[0.0, 0.0]] * 2
    assert exposure.bytes.tolist() == [[130.0, 130.0]] * 2
    in_phases = {phase: times[0, 0] for phase, times in exposure.exposed_in.items()}
    assert in_phases == {"backward": 3.0, "optimizer": 1.0}
    assert counted(own, beside, step=1) == {
        "buckets": [100],
        "calls": 3,
        "operations": {
            "all_reduce": Operation(calls=2, bytes=120),
            "broadcast": Operation(calls=1, bytes=10),
        },
    }


@given(
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 2**32 - 1),
    st.floats(-1e4, 1e4, allow_nan=False),
)
def test_parts_hold_together_on_any_link_of_one_queue(
    ranks: int, count: int, steps: int, seed: int, moved: float
) -> None:
    draw = np.random.default_rng(seed)
    launch = np.sort(draw.random((ranks, steps, count)), axis=2)
    finish = np.zeros((steps, count))
    for step in range(steps):
        free = -np.inf
        for bucket in range(count):
            free = finish[step, bucket] = max(free, launch[:, step, bucket].max()) + draw.random()
    sent = [
        buckets(
            *(
                (s, b, launch[r, s, b] + 10 * s, launch[r, s, b] + 10 * s, finish[s, b] + 10 * s)
                for s, b in np.ndindex(steps, count)
            )
        )
        for r in range(ranks)
    ]
    exposure = Exposure.from_buckets(sent)
    assert (exposure.exposed >= 0).all() and (exposure.exposed <= exposure.total + 1e-9).all()
    assert (exposure.straggler >= 0).all() and (exposure.straggler <= exposure.exposed).all()
    if ranks == 1:
        assert exposure.straggler.max() == pytest.approx(0, abs=1e-9)
    shifted = Exposure.from_buckets([rank.shifted(lambda times: times + moved) for rank in sent])
    for name in ("total", "exposed", "straggler"):
        assert getattr(shifted, name) == pytest.approx(getattr(exposure, name), abs=1e-8)


def test_the_record_speaks_of_the_slowest_rank_of_each_measured_step() -> None:
    one = buckets((0, 0, 0, 0, 99), (1, 0, 1, 1, 2), (2, 0, 1, 1, 3), (3, 0, 1, 1, 4))
    other = buckets((0, 0, 0, 0, 99), (1, 0, 1, 1, 2), (2, 0, 2, 2, 3), (3, 0, 3, 3, 4))
    ranks = [one, other]
    step_time = np.array([[9.0, 2.0, 1.0, 1.0], [9.0, 1.0, 2.0, 2.0]])
    communication = summary(Exposure.from_buckets(ranks), step_time, warmup_steps=1)
    assert communication.exposed is not None and communication.exposed.median == 1.0
    assert communication.straggler is not None and communication.straggler.median == 0.0
    assert communication.per_rank == {
        "total": [2.0, 1.0],
        "exposed": [2.0, 1.0],
        "straggler": [1.0, 0.0],
    }
    assert (communication.bytes, communication.bytes_moved) == (
        100,
        100,
    )  # two ranks: each sends as much as the buckets hold
    assert communication.exposed_in == {"backward": 1.0}
    assert counted(one, None, step=3) == {
        "buckets": [100],
        "calls": 1,
        "operations": {"all_reduce": Operation(calls=1, bytes=100)},
    }


def rounds(sync: list[float], plain: list[float], start: float = 0.0) -> np.ndarray:
    return np.array(
        [[[start, start + a], [start, start + b]] for a, b in zip(sync, plain, strict=True)]
    )


def test_costs_are_differences_of_the_slowest_rank_round_by_round() -> None:
    sync, plain = [5.0] * 6, [3.0, 3.0, 3.5, 3.0, 3.0, 3.0]
    fast = Probe(
        rounds(sync, [value - 1 for value in plain]), buckets(*((n, 0, 2, 2, 5) for n in range(6)))
    )
    slow = Probe(rounds(sync, plain), buckets(*((n, 0, 3.5, 3.5, 5) for n in range(6))))
    communication = Communication().model_copy(update=costs([fast, slow]))
    assert communication.sync_cost is not None and (
        communication.sync_cost.median,
        communication.sync_cost.p10,
    ) == (
        2.0,
        1.75,
    )
    assert (
        communication.sync_exposed is not None and communication.sync_exposed.median == 1.5
    )  # of the rank that others wait for
    assert communication.stolen_compute is not None and communication.stolen_compute.median == 0.5
    assert methods_agree(communication)


def test_methods_disagree_where_more_was_exposed_than_synchronising_cost() -> None:
    cost = Stat(median=1.0, p10=0.9, p90=1.1, interval=(0.9, 1.1))
    more = Stat(median=2.0, p10=1.9, p90=2.1, interval=(1.9, 2.1))
    assert methods_agree(Communication(sync_cost=cost, sync_exposed=more)) is False
    assert methods_agree(Communication(sync_cost=more, sync_exposed=cost)) is True
    assert methods_agree(Communication(sync_cost=cost)) is None


def test_one_rank_has_the_overhead_of_its_wrapper_and_nothing_else() -> None:
    by_field = costs([Probe(rounds([3.0] * 5, [2.5] * 5), None)])
    assert set(by_field) == {"ddp_overhead_time"} and by_field["ddp_overhead_time"].median == 0.5


@given(st.floats(-1e3, 1e3), st.floats(-1e-4, 1e-4), st.lists(st.floats(0, 1e3), min_size=1))
def test_a_clock_that_is_off_and_drifts_is_read_as_that_of_rank_0(
    off: float, drift: float, true: list[float]
) -> None:
    def here(moment: float) -> float:
        return moment * (1 + drift) + off

    readings = [ClockOffset(here(moment), moment - here(moment)) for moment in (0.0, 1000.0)]
    moved = on_clock_of_rank_0(np.array([here(moment) for moment in true]), readings)
    assert moved == pytest.approx(np.array(true), abs=1e-6)


class Ticks(Clock):
    """A clock that reads 1, 2, 3, ..."""

    ticks = 0

    def now(self) -> float:
        self.ticks += 1
        return float(self.ticks)


class Bucket:
    def __init__(self, index: int) -> None:
        self.number = index

    def index(self) -> int:
        return self.number


def test_a_recorder_keeps_three_stamps_of_each_bucket_in_its_own_place() -> None:
    futures: list[torch.futures.Future[list[torch.Tensor]]] = []

    def exchange(bucket: object) -> Sent:
        futures.append(torch.futures.Future())
        return Sent(futures[-1], 8 * len(futures))

    recorder = BucketRecorder(Ticks())
    recorder.exchange = exchange
    answers = [recorder.send(Bucket(index)) for index in (0, 1, 0)]  # type: ignore[arg-type]
    for number in (1, 0, 2):  # they need not finish in order
        futures[number].set_result([torch.tensor(number)])
    assert [int(answer.wait()) for answer in answers] == [0, 1, 2]
    trace = recorder.take()
    assert (trace.step.tolist(), trace.bucket.tolist(), trace.bytes.tolist()) == (
        [0, 0, 1],
        [0, 1, 0],
        [8, 16, 24],
    )
    assert (trace.ready.tolist(), trace.launch.tolist()) == ([1.0, 3.0, 5.0], [2.0, 4.0, 6.0])
    assert trace.finish.tolist() == [8.0, 7.0, 9.0]
    assert len(recorder.take().step) == 0
    assert trace.after(1).step.tolist() == [0] and trace.of(0).bucket.tolist() == [0, 1]


def test_the_timeline_begins_where_the_first_rank_does() -> None:
    clock = Ticks()
    for _ in range(2):
        clock.start()
        for phase in ("data", "forward", "backward", "optimizer"):
            clock.lap(phase)
    sent = buckets((0, 0, 0, 0, 0), (1, 0, 8.25, 8.5, 9.0))
    begin, bars = events(1, 1, clock=clock, sent=sent, shift=lambda times: times + 100)
    assert begin == 106.0
    shown = timeline([(105.0, []), (begin, bars)])
    assert [(bar.name, bar.start, bar.end) for bar in shown] == [
        ("forward", 2.0, 3.0),
        ("backward", 3.0, 4.0),
        ("optimizer", 4.0, 5.0),
        ("bucket 0", 3.5, 4.0),
    ]
    assert shown[-1].ready == 3.25
    assert shown[-1].bytes == 100


def test_the_representative_step_is_measured_and_in_the_middle() -> None:
    step_time = np.array([[5.0, 1.0, 3.0, 9.0], [5.0, 1.0, 2.0, 4.0]])
    assert representative_step(step_time, warmup_steps=1, sent=np.ones((2, 4))) == 2


def test_of_a_cycle_the_representative_step_is_one_that_sends() -> None:
    # One step of warm-up; of three, the last sends, once slowly.
    step_time = np.array([[9.0, 1.0, 1.0, 3.0, 1.0, 1.0, 9.0, 1.0, 1.0, 4.0]])
    sent = np.array([[8.0, 0.0, 0.0, 8.0, 0.0, 0.0, 8.0, 0.0, 0.0, 8.0]])
    assert representative_step(step_time, warmup_steps=1, sent=sent, cycle=3) == 9


def test_communication_of_older_records_is_read() -> None:
    old = {"total": None, "exposed": None, "bytes": None, "buckets": None}
    assert Communication.model_validate_json(json.dumps(old)) == Communication()
