"""The clock of a training step, and the statistics of its phases over all ranks.

A clock must not change what it measures. While the model trains it only takes marks: the host's
time on CPU, events on the current stream on CUDA, where waiting for the device at every phase would
prevent the overlap to be observed. The arithmetic is done when training is over.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter  # as a script may replace that of `time`
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch

from lab.records.schema import PHASES, Timing
from lab.records.statistics import stat

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

PHASES_TOLERANCE = 0.02
WAITING_MARKS = 4096  # in a CUDA clock: more than a host launches ahead of its device


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished everything launched on it; on a CPU, calls return finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of a call on the host's clock, until the device has done what the call launched."""
    synchronize(device)
    begin = perf_counter()
    call()
    synchronize(device)
    return perf_counter() - begin


def gpu_seconds_of(call: Callable[[], object], times: int = 1) -> float:
    """Seconds of what a call launches, repeated, by events on the GPU's current stream."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


@dataclass(frozen=True)
class Timestamped:
    """One rank's rows of timestamps, as columns of equal length; TIMES names those in s."""

    TIMES: ClassVar[tuple[str, ...]]

    step: IntArray

    def shifted(self, shift: Callable[[FloatArray], FloatArray]) -> Self:
        """The same rows on another clock."""
        times: dict[str, Any] = {name: shift(getattr(self, name)) for name in self.TIMES}
        return replace(self, **times)

    def where(self, rows: npt.NDArray[np.bool_] | IntArray) -> Self:
        """The rows for which this mask is true, or that have these numbers."""
        columns: dict[str, Any] = {name: column[rows] for name, column in vars(self).items()}
        return replace(self, **columns)

    def of(self, step: int) -> Self:
        """The rows of one step."""
        return self.where(self.step == step)

    def by_step(self, steps: int) -> list[Self]:
        """The rows of each of the first `steps` steps, which are all that there are."""
        order = np.argsort(self.step, kind="stable")
        cuts = np.searchsorted(self.step[order], np.arange(1, steps))
        return [self.where(rows) for rows in np.split(order, cuts)]


class Clock:
    """Splits each step into phases without waiting for anything.

    Its marks are times of the host, as on CPU ranks a call returns when its work is done.
    """

    def __init__(self) -> None:
        self._steps: list[list[tuple[str, Any]]] = []  # the start and laps of each step

    def now(self) -> Any:
        """A mark of this moment in the device's work, for `seconds` to read after training."""
        return perf_counter()

    def seconds(self, marks: Sequence[Any]) -> FloatArray:
        """Marks, each close to the one before it, as seconds of this host's `perf_counter`."""
        return np.asarray(marks, dtype=np.float64)  # one clock for all processes of a host

    def _between(self, begin: Any, end: Any) -> float:
        return end - begin

    def start(self) -> None:
        """Begin a step."""
        self._steps.append([("", self.now())])

    def lap(self, phase: str) -> None:
        """Count the time since the step's last mark as `phase`; the last lap ends the step."""
        self._steps[-1].append((phase, self.now()))

    def discard(self) -> None:
        """Discard the current step."""
        self._steps.pop()

    def position(self) -> tuple[int, int]:
        """The numbers of the current step and lap; step -1 before the first."""
        return len(self._steps) - 1, len(self._steps[-1]) if self._steps else 0

    def is_over(self, position: tuple[int, int]) -> bool:
        """Whether the position was within a lap of a step that counts, and that lap has ended."""
        step, lap = position
        return 0 <= step < len(self._steps) and lap < len(self._steps[step])

    def phase_of(self, position: tuple[int, int] | None) -> str:
        """The phase of a lap, whose name is known only at its end; empty before."""
        if position is None or not self.is_over(position):
            return ""
        step, lap = position
        return self._steps[step][lap][0]

    def phases(self, step: int) -> list[tuple[str, float, float]]:
        """The laps of a step: phase, begin and end in seconds of this host's `perf_counter`."""
        marks = [mark for _, mark in self._steps[step]]
        # From start to start: an event's 32-bit milliseconds lose precision over long distances.
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
                # From step to step, because of the 32-bit milliseconds as above.
                gap = self._between(self._steps[step - 1][-1][1], marks[0][1])
                end_of_last = laps["start"][step - 1] + laps["step_time"][step - 1]
                laps["start"][step] = end_of_last + gap
        # As the difference, so that the phases of a step add up to it exactly.
        laps["other"] = laps["step_time"] - sum(laps[phase] for phase in PHASES if phase != "other")
        return laps


@dataclass
class CudaMark:
    """A moment on a device: an event, or once it has passed, its s after the clock's first one."""

    event: torch.cuda.Event | None
    seconds: float = 0.0


class CudaClock(Clock):
    """The clock of CUDA ranks: events on the current stream.

    A phase is its time on the device, including waits for the host: `data` is the time for which
    the device waits for a batch, and zero if the host runs ahead of it. Two anchors, taken when the
    clock is created and when marks are read, tie the device's time to the host's. During a long
    training old events are converted to numbers, as each takes memory on host and device.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waiting: deque[CudaMark] = deque()  # marks that are still events, oldest first
        self._latest: tuple[torch.cuda.Event, float] | None = None  # that was converted to a number
        self._begin = self._anchor()

    def now(self) -> CudaMark:
        """An event on the current stream, which the host does not wait for."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        mark = CudaMark(event)
        self._waiting.append(mark)
        return mark

    def start(self) -> None:
        """Begin a step; if there are many marks, convert the oldest that the device has passed."""
        while len(self._waiting) > WAITING_MARKS and self._convert_oldest():
            pass
        super().start()

    def read(self) -> dict[str, FloatArray]:
        """As in the base class, once the device has passed all events."""
        self._convert_all()
        return super().read()

    def seconds(self, marks: Sequence[CudaMark]) -> FloatArray:
        """The marks on the host's clock; waits for the device."""
        mark, host = self._begin
        last_mark, last_host = self._anchor()
        self._convert_all()
        # The device's oscillator differs from the host's; their ratio is constant between anchors.
        rate = (last_host - host) / self._between(mark, last_mark)
        return host + rate * np.array([self._between(mark, one) for one in marks])

    def _between(self, begin: CudaMark, end: CudaMark) -> float:
        return end.seconds - begin.seconds

    def _convert_oldest(self) -> bool:
        """Turn the oldest event into its time, as the sum of distances; False if not passed yet."""
        mark = self._waiting[0]
        assert mark.event is not None
        if not mark.event.query():
            return False
        # From mark to mark: an event's 32-bit milliseconds lose precision over long distances.
        if self._latest is not None:
            event, seconds = self._latest
            mark.seconds = seconds + float(event.elapsed_time(mark.event)) / 1e3
        self._latest, mark.event = (mark.event, mark.seconds), None
        self._waiting.popleft()
        return True

    def _convert_all(self) -> None:
        torch.cuda.synchronize()
        while self._waiting and self._convert_oldest():
            pass

    def _anchor(self) -> tuple[CudaMark, float]:
        # On an idle device the event passes at once, so both clocks refer to the same moment.
        torch.cuda.synchronize()
        mark = self.now()
        assert mark.event is not None
        mark.event.synchronize()
        return mark, perf_counter()


def clock_for(device: torch.device) -> Clock:
    """The clock of a rank that computes on this device."""
    return CudaClock() if device.type == "cuda" else Clock()


def timing(
    laps: Mapping[str, FloatArray],
    *,
    warmup_steps: int,
    setup_time: float,
    samples_per_step: int | None,
    tokens_per_sample: int | None = None,
    flops_per_sample: float | None = None,
    peak_flops: float | None = None,
    peak_source: str | None = None,
    devices: int | None = None,
    phases: Collection[str] = PHASES,
    cycle: int = 1,
) -> Timing:
    """The record's timing from all ranks' clocks; `laps` are (ranks, steps) in s, with warm-up.

    A synchronous step ends with its slowest rank, so a step's time and phases are those of that
    rank. Rates are per median step. `peak_flops` is for one device; there is one per rank unless
    `devices` says otherwise. `phases` are those that were observed; `cycle` is as in `by_cycle`.
    """
    # Warm-up steps compile, allocate, rebuild DDP's buckets and fill caches.
    measured = {name: values[:, warmup_steps:] for name, values in laps.items()}
    ranks, steps = measured["step_time"].shape
    slowest = measured["step_time"].argmax(axis=0)
    # All phases from one rank, as the maxima of the phases would add up to more than the step.
    of_slowest = {
        name: by_cycle(values[slowest, np.arange(steps)], cycle)
        for name, values in measured.items()
    }
    step = stat(of_slowest["step_time"])
    wall = measured["start"][:, -1] + measured["step_time"][:, -1] - measured["start"][:, 0]
    rate = samples_per_step / step.median if samples_per_step else None
    flops_per_second = rate * flops_per_sample if rate and flops_per_sample else None
    of_all = peak_flops * (devices or ranks) if peak_flops else None
    if of_all and flops_per_second and flops_per_second > of_all:
        of_all = None  # then the measured peak is not a peak
    return Timing(
        step=step,
        phases={phase: stat(of_slowest[phase]) for phase in phases},
        per_rank={
            name: np.median(by_cycle(measured[column], cycle), axis=1).tolist()
            for name, column in {"step": "step_time", **{p: p for p in phases}}.items()
        },
        slowest_rank=int(np.bincount(slowest, minlength=ranks).argmax()),
        measured_steps=steps,
        warmup_steps=warmup_steps,
        setup_time=setup_time,
        train_time=float(wall.max()),
        samples_per_second=rate,
        tokens_per_second=rate * tokens_per_sample if rate and tokens_per_sample else None,
        flops_per_second=flops_per_second,
        mfu=flops_per_second / of_all if flops_per_second and of_all else None,
        peak_flops_per_second=peak_flops,
        peak_source=peak_source,
    )


def by_cycle(values: FloatArray, cycle: int) -> FloatArray:
    """The means over every `cycle` consecutive steps of (..., steps), aligned with the last step.

    If a strategy does something only in every fourth step, no median over steps would show it.
    """
    if cycle == 1:
        return values
    whole = values.shape[-1] // cycle
    last = values[..., values.shape[-1] - whole * cycle :]
    return last.reshape(*values.shape[:-1], whole, cycle).mean(axis=-1)


def phases_close(timing: Timing) -> bool:
    """Whether the named phases explain the step, with at most 2 % of it left to `other`."""
    # Each step adds up exactly; the medians of its phases need not if other load disturbs steps.
    return abs(timing.phases["other"].median) <= PHASES_TOLERANCE * timing.step.median
