from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.records.schema import PHASES, Timing
from lab.worker.measure import overlap
from lab.worker.measure.clock import Clock, CudaClock, FloatArray, phases_close, stat, timing
from lab.worker.measure.overlap import Exposure, merge_adjacent


class Readings(Clock):
    """A clock that reads the times it was given."""

    def __init__(self, times: list[float]) -> None:
        super().__init__()
        self._times = iter(times)

    def now(self) -> float:
        return next(self._times)


def test_laps_add_up_over_micro_batches_and_the_rest_is_other() -> None:
    clock = Readings([10.0, 10.5, 11.0, 13.0, 13.25, 16.25, 16.5, 20.0, 21.0])
    clock.start()
    for phase in ("data", "forward", "backward", "data", "forward", "other"):
        clock.lap(phase)
    clock.start()
    clock.lap("optimizer")
    laps = clock.read()
    assert laps["data"].tolist() == [0.75, 0.0]
    assert laps["forward"].tolist() == [3.5, 0.0]
    assert laps["backward"].tolist() == [2.0, 0.0]
    assert laps["optimizer"].tolist() == [0.0, 1.0]
    assert laps["other"].tolist() == [0.25, 0.0]
    assert laps["step_time"].tolist() == [6.5, 1.0]
    assert laps["start"].tolist() == [0.0, 10.0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_the_cuda_clock_sees_what_the_device_does_and_not_what_the_host_queues() -> None:
    clock = CudaClock()
    a = torch.randn(4096, 4096, device="cuda")
    clock.start()
    for _ in range(20):
        a @ a
    clock.lap("forward")
    clock.lap("other")
    laps = clock.read()
    assert laps["forward"][0] > 0.9 * laps["step_time"][0] > 0


def readings(phases: dict[str, list[list[float]]]) -> dict[str, FloatArray]:
    """Laps of ranks whose steps follow without a gap; phases that are not named take no time."""
    shape = np.shape(next(iter(phases.values())))
    laps = {
        phase: np.array(phases.get(phase, np.zeros(shape)), dtype=np.float64) for phase in PHASES
    }
    laps["step_time"] = np.sum([laps[phase] for phase in PHASES], axis=0)
    laps["start"] = np.cumsum(laps["step_time"], axis=1) - laps["step_time"]
    return laps


def summary(
    laps: dict[str, FloatArray],
    warmup_steps: int = 0,
    peak_flops: float | None = None,
    cycle: int = 1,
) -> Timing:
    return timing(
        laps,
        warmup_steps=warmup_steps,
        setup_time=1.0,
        samples_per_step=12,
        tokens_per_sample=100,
        flops_per_sample=700,
        peak_flops=peak_flops,
        peak_source=None,
        cycle=cycle,
    )


def test_a_step_is_that_of_its_slowest_rank_and_so_are_its_phases() -> None:
    laps = readings(
        {"forward": [[9, 1, 4, 1], [9, 2, 1, 2]], "backward": [[9, 1, 4, 1], [9, 4, 1, 2]]}
    )
    timing = summary(laps, warmup_steps=1, peak_flops=1400.0)
    assert timing.step.median == 6.0  # of 6 (rank 1), 8 (rank 0), 4 (rank 1)
    assert timing.phases["forward"].median == 2.0
    assert timing.phases["backward"].median == 4.0
    assert timing.phases["data"].median == 0.0
    assert timing.per_rank["step"] == [2.0, 4.0]
    assert timing.per_rank["forward"] == [1.0, 2.0]
    assert timing.slowest_rank == 1
    assert (timing.measured_steps, timing.warmup_steps) == (3, 1)
    assert timing.train_time == 12.0  # rank 0: 2 + 8 + 2; rank 1: 6 + 2 + 4
    assert timing.samples_per_second == 2.0
    assert timing.tokens_per_second == 200.0
    assert timing.flops_per_second == 1400.0
    assert timing.mfu == 0.5  # two ranks
    assert timing.step.interval is None  # three steps are too few


def test_what_only_some_steps_of_a_cycle_do_is_in_all_of_them() -> None:
    # Every fourth step takes 5 s, the others 1 s; warm-up is a step that begins no cycle.
    laps = readings({"optimizer": [[9, 1, 1, 1, 5, 1, 1, 1, 5]]})
    by_step, by_cycle = summary(laps, warmup_steps=1), summary(laps, warmup_steps=1, cycle=4)
    assert (by_step.step.median, by_cycle.step.median) == (1.0, 2.0)
    assert by_cycle.phases["optimizer"].median == by_cycle.per_rank["optimizer"][0] == 2.0
    assert by_cycle.samples_per_second == 6.0 and by_cycle.train_time == 16.0
    assert by_cycle.measured_steps == 8
    unknown = np.full((1, 9), np.nan)
    sent = np.array([[0, 0, 0, 0, 400, 0, 0, 0, 400]])
    exposure = Exposure(*[sent / 100] * 2, unknown, sent, sent, {"optimizer": sent / 100})
    communication = overlap.summary(exposure, laps["step_time"], warmup_steps=1, cycle=4)
    assert (communication.bytes, communication.exposed_in) == (100, {"optimizer": 1.0})
    assert communication.exposed and communication.exposed.median == 1.0


def test_mfu_is_none_where_the_peak_is_unknown() -> None:
    assert summary(readings({"forward": [[1.0] * 6]})).mfu is None


def test_train_time_holds_the_pauses_between_steps() -> None:
    laps = readings({"forward": [[1.0, 1.0, 1.0]]})
    laps["start"] += np.array([[0.0, 0.5, 1.0]])
    assert summary(laps).train_time == 4.0


def test_phases_close_where_they_explain_all_but_two_per_cent() -> None:
    assert phases_close(
        summary(readings({"forward": [[1.0] * 6], "backward": [[2.0] * 6], "other": [[0.05] * 6]}))
    )
    assert not phases_close(
        summary(readings({"forward": [[1.0] * 6], "backward": [[2.0] * 6], "other": [[0.1] * 6]}))
    )


def test_intervals_hold_the_median_and_do_not_change_from_call_to_call() -> None:
    values = np.random.default_rng(3).lognormal(size=200)
    spread = stat(values)
    assert spread == stat(values)
    assert spread.interval is not None
    assert spread.interval[0] < spread.median < spread.interval[1]
    assert (spread.p10, spread.p90) == (np.percentile(values, 10), np.percentile(values, 90))


def test_intervals_of_the_median_cover_it_as_often_as_they_say() -> None:
    generator = np.random.default_rng(5)
    intervals = [stat(generator.exponential(size=40)).interval for _ in range(100)]
    covered = sum(
        interval is not None and interval[0] <= np.log(2) <= interval[1] for interval in intervals
    )
    assert 88 <= covered <= 100


def test_equal_values_have_an_interval_of_no_width() -> None:
    assert stat(np.full(20, 0.25)).interval == (0.25, 0.25)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_no_rank_is_slower_than_the_step(ranks: int, steps: int, seed: int) -> None:
    drawn = np.random.default_rng(seed).random((3, ranks, steps))
    laps = readings(dict(zip(("data", "forward", "optimizer"), drawn.tolist(), strict=True)))
    timing = summary(laps)
    assert timing.step.median >= max(timing.per_rank["step"]) - 1e-12
    assert timing.samples_per_second * timing.step.median == pytest.approx(12)
    assert timing.train_time == pytest.approx(laps["step_time"].sum(axis=1).max())


def test_a_backward_pass_and_the_wait_after_it_are_one_bar() -> None:
    phases = [
        ("forward", 0.0, 1.0),
        ("backward", 1.0, 3.0),
        ("forward", 3.0, 4.0),
        ("backward", 4.0, 6.0),
        ("backward", 6.0, 6.5),
    ]
    assert merge_adjacent(phases) == [*phases[:3], ("backward", 4.0, 6.5)]


CLOCK = "lab.worker.measure.clock"


class Event:
    """In place of a CUDA event: the time of a made-up device when the event was recorded."""

    now, passed = 0.0, float("inf")

    def __init__(self, enable_timing: bool) -> None:
        self.at = -1.0

    def record(self) -> None:
        type(self).now += 1.0
        self.at = type(self).now

    def query(self) -> bool:
        return self.at <= type(self).passed

    def synchronize(self) -> None:
        assert self.query()

    def elapsed_time(self, later: Event) -> float:
        return float(np.float32(1e3 * (later.at - self.at)))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> type[Event]:
    class Device(Event):
        pass

    monkeypatch.setattr(torch.cuda, "Event", Device)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(f"{CLOCK}.perf_counter", lambda: 100 + 2 * Device.now)
    return Device


def test_events_of_a_long_training_become_numbers_and_its_times_stay_the_same(
    device: type[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained() -> tuple[CudaClock, list[int]]:
        device.now = 0.0
        kept: list[int] = []
        cuda = CudaClock()
        for _ in range(50):
            cuda.start()
            cuda.lap("forward")
            cuda.lap("backward")
            kept.append(sum(mark.event is not None for mark in cuda._waiting))
        return cuda, kept

    whole, kept = trained()
    monkeypatch.setattr(f"{CLOCK}.WAITING_MARKS", 10)
    converted, few = trained()
    assert max(kept) == 151 and max(few) == 13
    expected, laps = whole.read(), converted.read()
    assert laps["forward"].tolist() == [1.0] * 50 and laps["step_time"].tolist() == [2.0] * 50
    assert all(np.array_equal(expected[name], laps[name]) for name in laps)
    # The host's clock goes twice as fast as this device's.
    marks = [mark for _, mark in converted._steps[30]]
    assert converted.seconds(marks).tolist() == [100 + 2 * (2 + 90 + place) for place in range(3)]


def test_marks_that_the_device_has_not_reached_stay_events(
    device: type[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{CLOCK}.WAITING_MARKS", 2)
    cuda = CudaClock()
    device.passed = 3.0
    for _ in range(5):
        cuda.start()
    assert [mark.event is None for _, mark in (step[0] for step in cuda._steps)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    device.passed = float("inf")
    assert cuda.read()["start"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
