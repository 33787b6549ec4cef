"""The clock of a step, and what its readings on all ranks say about the run."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from lab.records.schema import PHASES, Stat, Timing
from lab.records.statistics import bootstrap_interval

FloatArray = npt.NDArray[np.float64]
Mark = TypeVar("Mark")

PHASES_TOLERANCE = 0.02
MIN_STEPS_FOR_INTERVAL = 5
_RESAMPLES = 2000
_LARGEST_RESAMPLING = 20_000_000  # numbers drawn for one interval at most


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has done all that was launched on it; on CPU each call returns when its work is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Clock(Protocol):
    """Splits each step into phases without waiting for anything."""

    def start(self) -> None:
        """Begin a step."""

    def lap(self, phase: str) -> None:
        """Count what passed since the last mark of this step as `phase`; a step ends with its last lap."""

    def read(self) -> dict[str, FloatArray]:
        """Seconds by step for each phase, `step_time`, and `start` as seen from the first step's start."""

    def now(self) -> Any:
        """A mark of this moment in the work of the device, to be read with `seconds` when training is over."""

    def seconds(self, marks: Sequence[Any]) -> FloatArray:
        """Marks, each near the one before it, as seconds of this host's `perf_counter`."""

    def phases(self, step: int) -> list[tuple[str, float, float]]:
        """The laps of one step with begin and end in seconds of this host's `perf_counter`."""

    def position(self) -> tuple[int, int]:
        """The step and the lap of it that are under way; a step of -1 before the first."""

    def phase_of(self, position: tuple[int, int]) -> str:
        """What a lap was counted as, now that it is over."""


class _MarkingClock(Generic[Mark]):
    """Keeps marks in time while training and does the arithmetic afterwards."""

    def __init__(self) -> None:
        self._steps: list[list[tuple[str, Mark]]] = []

    def _now(self) -> Mark:
        raise NotImplementedError

    def _seconds(self, begin: Mark, end: Mark) -> float:
        raise NotImplementedError

    def now(self) -> Mark:
        return self._now()

    def seconds(self, marks: Sequence[Mark]) -> FloatArray:
        raise NotImplementedError

    def phases(self, step: int) -> list[tuple[str, float, float]]:
        marks = self._steps[step]
        # Over the starts of all steps before it, for the sake of CUDA's 32-bit milliseconds.
        times = self.seconds(
            [*(earlier[0][1] for earlier in self._steps[:step]), *(mark for _, mark in marks)]
        )[step:].tolist()
        return [
            (phase, begin, end)
            for (phase, _), (begin, end) in zip(marks[1:], itertools.pairwise(times), strict=True)
        ]

    def position(self) -> tuple[int, int]:
        return len(self._steps) - 1, len(self._steps[-1]) if self._steps else 0

    def phase_of(self, position: tuple[int, int]) -> str:
        step, lap = position
        return self._steps[step][lap][0]

    def start(self) -> None:
        self._steps.append([("", self._now())])

    def lap(self, phase: str) -> None:
        self._steps[-1].append((phase, self._now()))

    def read(self) -> dict[str, FloatArray]:
        laps = {name: np.zeros(len(self._steps)) for name in (*PHASES, "step_time", "start")}
        for number, marks in enumerate(self._steps):
            for (_, begin), (phase, end) in itertools.pairwise(marks):
                laps[phase][number] += self._seconds(begin, end)
            laps["step_time"][number] = self._seconds(marks[0][1], marks[-1][1])
            if number:
                # From step to step: the distance to the first would lose digits in CUDA's 32-bit milliseconds.
                last = self._steps[number - 1]
                gap = self._seconds(last[-1][1], marks[0][1])
                laps["start"][number] = (
                    laps["start"][number - 1] + laps["step_time"][number - 1] + gap
                )
        laps["other"] = laps["step_time"] - sum(laps[phase] for phase in PHASES if phase != "other")
        return laps


class HostClock(_MarkingClock[float]):
    """The clock for CPU ranks, where each call returns when its work is done."""

    def _now(self) -> float:
        return time.perf_counter()

    def _seconds(self, begin: float, end: float) -> float:
        return end - begin

    def seconds(self, marks: Sequence[float]) -> FloatArray:
        """The marks as they are: `perf_counter` is one clock for all processes of a host."""
        return np.asarray(marks, dtype=np.float64)


class CudaClock(_MarkingClock[torch.cuda.Event]):
    """The clock for CUDA ranks: events on the current stream, read when training is over.

    A phase is the time that it takes on the device, with waits for the host: `data` is what the device waits for
    a batch, and nothing where the host is ahead of it. Host and device meet in two anchors, when the clock is made
    and when marks are read.
    """

    def __init__(self) -> None:
        super().__init__()
        self._begin = self._anchor()

    def _anchor(self) -> tuple[torch.cuda.Event, float]:
        torch.cuda.synchronize()
        event = self._now()
        event.synchronize()
        return event, time.perf_counter()

    def _now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(begin.elapsed_time(end)) / 1e3

    def read(self) -> dict[str, FloatArray]:
        """Wait for the device, then as the other clocks."""
        torch.cuda.synchronize()
        return super().read()

    def seconds(self, marks: Sequence[torch.cuda.Event]) -> FloatArray:
        """Wait for the device, then sum the distances from mark to mark, at the rate of the two clocks between the anchors."""
        event, host = self._begin
        last_event, last_host = self._anchor()
        rate = (last_host - host) / self._seconds(event, last_event)
        distances = [
            self._seconds(begin, end) for begin, end in itertools.pairwise([event, *marks])
        ]
        times: FloatArray = host + rate * np.cumsum(distances)
        return times


def clock_for(device: torch.device) -> Clock:
    """The clock that is honest on this device."""
    return CudaClock() if device.type == "cuda" else HostClock()


def stat(values: FloatArray) -> Stat:
    """Median, percentiles and the percentile-bootstrap interval of the median (Efron, 1979); the interval's seed is fixed."""
    p10, median, p90 = (float(value) for value in np.percentile(values, [10, 50, 90]))
    interval = None
    if len(values) >= MIN_STEPS_FOR_INTERVAL:
        resamples = int(np.clip(_LARGEST_RESAMPLING // len(values), 200, _RESAMPLES))
        low, high = bootstrap_interval([values], np.median, resamples=resamples)
        interval = (float(low), float(high))
    return Stat(median=median, p10=p10, p90=p90, interval=interval)


def timing(
    laps: Mapping[str, FloatArray],
    *,
    warmup_steps: int,
    setup_time: float,
    samples_per_step: int,
    tokens_per_sample: int | None,
    flops_per_sample: int,
    peak_flops: float | None,
    peak_source: str | None,
    devices: int | None = None,
) -> Timing:
    """What all ranks' readings say together; each array is (ranks, steps), in seconds, warm-up included.

    A synchronous step ends with its slowest rank, so a step's time and phases are those of that rank. Rates are per
    median step. `peak_flops` is that of one device; there are as many as ranks where `devices` does not say otherwise.
    """
    measured = {name: values[:, warmup_steps:] for name, values in laps.items()}
    ranks, steps = measured["step_time"].shape
    slowest = measured["step_time"].argmax(axis=0)
    of_slowest = {name: values[slowest, np.arange(steps)] for name, values in measured.items()}
    step = stat(of_slowest["step_time"])
    wall = measured["start"][:, -1] + measured["step_time"][:, -1] - measured["start"][:, 0]
    samples_per_second = samples_per_step / step.median
    flops_per_second = samples_per_second * flops_per_sample
    return Timing(
        step=step,
        phases={phase: stat(of_slowest[phase]) for phase in PHASES},
        per_rank={
            "step": np.median(measured["step_time"], axis=1).tolist(),
            **{phase: np.median(measured[phase], axis=1).tolist() for phase in PHASES},
        },
        slowest_rank=int(np.bincount(slowest, minlength=ranks).argmax()),
        measured_steps=steps,
        warmup_steps=warmup_steps,
        setup_time=setup_time,
        train_time=float(wall.max()),
        samples_per_second=samples_per_second,
        tokens_per_second=samples_per_second * tokens_per_sample if tokens_per_sample else None,
        flops_per_second=flops_per_second,
        mfu=flops_per_second / (peak_flops * (devices or ranks)) if peak_flops else None,
        peak_flops_per_second=peak_flops,
        peak_source=peak_source,
    )


def phases_close(timing: Timing) -> bool:
    """The check of the same name: the named phases explain the step, what is left to `other` is 2 % of it at most.

    Step by step the phases and `other` add up exactly; their medians need not, least where other load disturbs steps.
    """
    return abs(timing.phases["other"].median) <= PHASES_TOLERANCE * timing.step.median
