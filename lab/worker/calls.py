"""Collectives and messages of a strategy: a recorder of them, and what it found.

DDP's buckets have a recorder of their own (`communication.py`), as its C++ reducer does not pass through `interception.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lab.analysis.links import bus_factor
from lab.worker import interception
from lab.worker.timing import Clock, FloatArray

IntArray = npt.NDArray[np.int64]


@dataclass
class Call:
    """One call under way; marks are of the clock, None where unknown."""

    operation: str
    bytes: int
    members: int
    position: tuple[int, int]  # in the clock's steps and laps
    launch: Any
    finish: Any = None
    wait: list[Any] = field(default_factory=list)  # begin and end
    waited_in: tuple[int, int] = (0, 0)
    blocking: bool = False


@dataclass(frozen=True)
class Calls:
    """What one rank sent and received, in the order of launches; times in s, NaN where they cannot be known.

    `bytes` are those of the tensor of a message or an all-reduce, of the whole tensor where ranks gather or scatter
    parts; `moved` what a rank sends for it, on a ring (`analysis.links.bus_factor`). `finish` is when the data were
    there; from `wait_begin` to `wait_end` the rank did nothing but wait for them, in the phase `phase` of its step.
    """

    step: IntArray
    operation: npt.NDArray[np.str_]
    members: IntArray
    phase: npt.NDArray[np.str_]
    launch: FloatArray
    finish: FloatArray
    wait_begin: FloatArray
    wait_end: FloatArray
    bytes: IntArray
    moved: FloatArray

    def shifted(self, shift: Callable[[FloatArray], FloatArray]) -> Calls:
        """The same on another clock."""
        return replace(
            self,
            launch=shift(self.launch),
            finish=shift(self.finish),
            wait_begin=shift(self.wait_begin),
            wait_end=shift(self.wait_end),
        )

    def of(self, step: int) -> Calls:
        """Of one step alone."""
        its = self.step == step
        return Calls(*(getattr(self, column.name)[its] for column in fields(self)))


class CallRecorder:
    """Keeps the stamps of one rank's calls, from its making until they are taken; no stamp waits for anything."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.calls: list[Call] = []
        self.pending: dict[object, tuple[object, Call]] = {}  # works and tensors by identity, kept until they are waited for
        interception.tell(self)

    def launch(self, operation: str, size: int, *, members: int, blocking: bool = False) -> Call:
        """Begin a call of `size` bytes between `members` ranks."""
        call = Call(operation, size, members, self.clock.position(), self.clock.now(), blocking=blocking)
        self.calls.append(call)
        return call

    def expect(self, call: Call, key: object, holder: object) -> None:
        """The wait for this call will be known by this key; the holder of the key lives until then."""
        self.pending[key] = holder, call

    def rename(self, key: object, new: object, holder: object) -> None:
        """Know the wait for a pending call by another key."""
        _, call = self.pending.pop(key)
        self.pending[new] = holder, call

    @contextmanager
    def waiting(self, key: object) -> Iterator[None]:
        """Stamp the wait for a pending call, where there is one of this key."""
        _, call = self.pending.pop(key, (None, None))
        if call is None:
            yield
            return
        begin = call.launch if call.blocking else self.clock.now()
        yield
        end = self.clock.now()
        # From a side stream of a GPU, another stream's wait for it is not seen.
        if _on_main_stream():
            call.wait, call.waited_in = [begin, end], self.clock.position()
        if call.blocking:
            call.finish = end

    def finished(self, call: Call) -> None:
        """Stamp that the data of a call are there."""
        call.finish = self.clock.now()

    @contextmanager
    def blocked(self, operation: str, size: int, *, members: int) -> Iterator[None]:
        """Stamp a part of the program as one call that the rank waits for from begin to end."""
        call = self.launch(operation, size, members=members, blocking=True)
        self.expect(call, id(call), call)
        with self.waiting(id(call)):
            yield

    def take(self) -> Calls:
        """What was stamped, in seconds of this host's `perf_counter`; on CUDA it waits for the device. Nothing is stamped later."""
        interception.tell(None)
        calls = [call for call in self.calls if call.position[0] >= 0]  # not those that prepared the first step
        self.calls = []
        self.pending.clear()
        marks = [(call.launch, *(call.wait or (None, None)), call.finish) for call in calls]
        known = [mark for of_call in marks for mark in of_call if mark is not None]
        read = iter(self.clock.seconds(known).tolist() if known else [])
        times = np.array([[np.nan if mark is None else next(read) for mark in of_call] for of_call in marks]).reshape(-1, 4)
        # A wait that began after the end was none; one that did not ends when the rank goes on, and so does the call.
        launch, wait_begin, wait_end, finish = times.T
        wait_end, finish = np.where(finish < wait_begin, wait_begin, wait_end), np.where(finish >= wait_begin, wait_end, finish)
        return Calls(
            step=np.array([call.position[0] for call in calls], dtype=np.int64),
            operation=np.array([call.operation for call in calls], dtype=np.str_),
            members=np.array([call.members for call in calls], dtype=np.int64),
            phase=np.array([self.clock.phase_of(call.waited_in) if call.wait else "" for call in calls], dtype=np.str_),
            launch=launch,
            finish=finish,
            wait_begin=wait_begin,
            wait_end=wait_end,
            bytes=np.array([call.bytes for call in calls], dtype=np.int64),
            moved=np.array([call.bytes * _factor(call) for call in calls]),
        )


def _factor(call: Call) -> float:
    if call.operation in {"all_reduce", "all_gather", "reduce_scatter", "broadcast"}:
        return bus_factor(call.operation, call.members)  # type: ignore[arg-type]
    return 0.0 if call.operation == "receive" else 1.0


def _on_main_stream() -> bool:
    return not torch.cuda.is_available() or torch.cuda.current_stream() == torch.cuda.default_stream()
