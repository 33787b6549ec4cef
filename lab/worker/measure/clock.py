"""The clock of a training step, and the statistics of its phases over all ranks.

A clock must not change what it measures. It only takes marks while the model trains: the host's
time on CPU, events on the current stream on CUDA, where waiting for the device at every phase would
forbid the overlap that is to be seen. The arithmetic is done when training is over.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lab.records.schema import PHASES, Stat, Timing
from lab.records.statistics import bootstrap_interval

FloatArray = npt.NDArray[np.float64]

PHASES_TOLERANCE = 0.02
MIN_STEPS_FOR_INTERVAL = 5
_RESAMPLES = 2000
_LARGEST_RESAMPLING = 20_000_000  # numbers drawn for one interval at most


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has done all that was launched on it; a CPU has when a call returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Clock:
    """Splits each step into phases without waiting for anything; subclasses choose the marks."""

    def __init__(self) -> None:
        self._steps: list[list[tuple[str, Any]]] = []  # of each step its start and its laps

    def now(self) -> Any:
        """A mark of this moment in the work of the device, for `seconds` to read after training."""
        raise NotImplementedError

    def seconds(self, marks: Sequence[Any]) -> FloatArray:
        """Marks, each near the one before it, as seconds of this host's `perf_counter`."""
        raise NotImplementedError

    def _between(self, begin: Any, end: Any) -> float:
        raise NotImplementedError

    def start(self) -> None:
        """Begin a step."""
        self._steps.append([("", self.now())])

    def lap(self, phase: str) -> None:
        """Count the time since the step's last mark as `phase`; its last lap ends a step."""
        self._steps[-1].append((phase, self.now()))

    def position(self) -> tuple[int, int]:
        """The numbers of the step and of its lap under way; step -1 before the first."""
        return len(self._steps) - 1, len(self._steps[-1]) if self._steps else 0

    def phase_of(self, position: tuple[int, int]) -> str:
        """The phase of a lap that is over: its name is known only at its end."""
        step, lap = position
        return self._steps[step][lap][0]

    def phases(self, step: int) -> list[tuple[str, float, float]]:
        """The laps of a step: phase, begin and end in seconds of this host's `perf_counter`."""
        marks = [mark for _, mark in self._steps[step]]
        # From start to start: an event's 32-bit milliseconds lose digits over a long distance.
        starts = [laps[0][1] for laps in self._steps[:step]]
        times = self.seconds([*starts, *marks])[step:].tolist()
        names = [phase for phase, _ in self._steps[step][1:]]
        return [(name, *ends) for name, ends in zip(names, itertools.pairwise(times), strict=True)]

    def read(self) -> dict[str, FloatArray]:
        """Seconds by step: each phase, `step_time`, and `start` after that of the first step."""
        laps = {name: np.zeros(len(self._steps)) for name in (*PHASES, "step_time", "start")}
        for step, marks in enumerate(self._steps):
            for (_, begin), (phase, end) in itertools.pairwise(marks):
                laps[phase][step] += self._between(begin, end)
            laps["step_time"][step] = self._between(marks[0][1], marks[-1][1])
            if step:
                # From step to step, for the sake of 32-bit milliseconds as above.
                gap = self._between(self._steps[step - 1][-1][1], marks[0][1])
                end_of_last = laps["start"][step - 1] + laps["step_time"][step - 1]
                laps["start"][step] = end_of_last + gap
        # By difference, so that the phases of a step add up to it exactly.
        laps["other"] = laps["step_time"] - sum(laps[phase] for phase in PHASES if phase != "other")
        return laps


class HostClock(Clock):
    """The clock of CPU ranks, where a call returns when its work is done."""

    def now(self) -> float:
        """The time of the host."""
        return time.perf_counter()

    def seconds(self, marks: Sequence[float]) -> FloatArray:
        """The marks as they are: `perf_counter` is one clock for all processes of a host."""
        return np.asarray(marks, dtype=np.float64)

    def _between(self, begin: float, end: float) -> float:
        return end - begin


class CudaClock(Clock):
    """The clock of CUDA ranks: events on the current stream.

    A phase is its time on the device, waits for the host included: `data` is what the device waits
    for a batch, and nothing where the host runs ahead of it. Two anchors, taken when the clock is
    made and when marks are read, tie the device's time to the host's.
    """

    def __init__(self) -> None:
        super().__init__()
        self._begin = self._anchor()

    def now(self) -> torch.cuda.Event:
        """An event on the current stream, which the host does not wait for."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def read(self) -> dict[str, FloatArray]:
        """As the base class, once the device has passed all events."""
        torch.cuda.synchronize()
        return super().read()

    def seconds(self, marks: Sequence[torch.cuda.Event]) -> FloatArray:
        """The sum of the distances from mark to mark; waits for the device."""
        event, host = self._begin
        last_event, last_host = self._anchor()
        # The device's oscillator is not the host's: their rate is even between the anchors.
        rate = (last_host - host) / self._between(event, last_event)
        pairs = itertools.pairwise([event, *marks])
        return host + rate * np.cumsum([self._between(begin, end) for begin, end in pairs])

    def _between(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(begin.elapsed_time(end)) / 1e3  # from ms

    def _anchor(self) -> tuple[torch.cuda.Event, float]:
        # With an idle device the event passes at once, so that both clocks speak of one moment.
        torch.cuda.synchronize()
        event = self.now()
        event.synchronize()
        return event, time.perf_counter()


def stat(values: FloatArray) -> Stat:
    """Median, percentiles and the bootstrap interval of the median, None for too few values."""
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
    flops_per_sample: float | None,
    peak_flops: float | None,
    peak_source: str | None,
    devices: int | None = None,
) -> Timing:
    """The record's timing from all ranks' clocks; `laps` are (ranks, steps) in s, with warm-up.

    A synchronous step ends with its slowest rank, so a step's time and phases are those of that
    rank. Rates are per median step. `peak_flops` is that of one device; there are as many as ranks
    unless `devices` says otherwise.
    """
    # Warm-up steps compile, allocate, rebuild DDP's buckets and fill caches.
    measured = {name: values[:, warmup_steps:] for name, values in laps.items()}
    ranks, steps = measured["step_time"].shape
    slowest = measured["step_time"].argmax(axis=0)
    # All phases from one rank: each phase's own maximum would add up to more than the step.
    of_slowest = {name: values[slowest, np.arange(steps)] for name, values in measured.items()}
    step = stat(of_slowest["step_time"])
    wall = measured["start"][:, -1] + measured["step_time"][:, -1] - measured["start"][:, 0]
    samples_per_second = samples_per_step / step.median
    flops_per_second = samples_per_second * flops_per_sample if flops_per_sample else None
    of_all = peak_flops * (devices or ranks) if peak_flops else None
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
        mfu=flops_per_second / of_all if flops_per_second and of_all else None,
        peak_flops_per_second=peak_flops,
        peak_source=peak_source,
    )


def phases_close(timing: Timing) -> bool:
    """Whether the named phases explain the step: at most 2 % of it are left to `other`."""
    # Each step adds up exactly; medians of its phases need not, where other load disturbs steps.
    return abs(timing.phases["other"].median) <= PHASES_TOLERANCE * timing.step.median
