"""Trace of the collectives and messages of every strategy but DDP, whose reducer is C++.

Methods of torch's process groups are replaced by ones that stamp the launch of a call, the wait for
it and its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed as dist
from torch.distributed import _functional_collectives as functional

from lab.perfmodel.collectives import RINGS, bus_factor
from lab.worker.measure.clock import Clock, FloatArray

IntArray = npt.NDArray[np.int64]

# Methods of a process group: the collective, and the argument whose bytes count.
METHODS = {
    method: (name, place) for name, ring in RINGS.items() for method, place in ring.methods.items()
} | {"send": ("send", 0), "recv": ("receive", 0)}
_TIMES = ("launch", "finish", "wait_begin", "wait_end")


@dataclass
class Call:
    """One call; marks are of the clock, None where unknown."""

    operation: str
    bytes: int
    members: int
    position: tuple[int, int]  # in the clock's steps and laps
    launch: Any
    blocking: bool
    finish: Any = None
    wait: tuple[Any, Any] = (None, None)  # begin and end
    waited_in: tuple[int, int] | None = None


@dataclass(frozen=True)
class Calls:
    """One rank's calls in the order of launches; times in s, NaN where they cannot be known.

    `bytes` are those of the tensor of a message or an all-reduce, of the whole tensor of a gather
    or scatter; `moved` what a rank sends for it on a ring (`perfmodel.collectives.bus_factor`).
    `finish` is when the data were there; from `wait_begin` to `wait_end` the rank did nothing but
    wait for them, in the phase `phase` of its step.
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
        times: dict[str, Any] = {name: shift(getattr(self, name)) for name in _TIMES}
        return replace(self, **times)

    def of(self, step: int) -> Calls:
        """Of one step."""
        rows = self.step == step
        return Calls(*(getattr(self, column.name)[rows] for column in fields(self)))


class CallRecorder:
    """Keeps the stamps of one rank's calls until they are taken; no stamp waits for anything."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.calls: list[Call] = []
        # By a key of the work or the tensor that is waited for, with what keeps that alive: Python
        # gives the id of a dead object to the next one.
        self.pending: dict[object, tuple[object, Call]] = {}
        trace_calls(self)

    def launch(self, operation: str, size: int, *, members: int, blocking: bool = False) -> Call:
        """Begin a call of `size` bytes between `members` ranks."""
        now = self.clock.now()
        call = Call(operation, size, members, self.clock.position(), now, blocking)
        self.calls.append(call)
        return call

    def expect(self, call: Call, key: object, holder: object) -> None:
        """Know the wait for this call by a key, whose holder is kept alive until then."""
        self.pending[key] = holder, call

    @contextmanager
    def waiting(self, key: object) -> Iterator[None]:
        """Stamp the wait for the pending call of this key, if there is one."""
        _, call = self.pending.pop(key, (None, None))
        if call is None:
            yield
            return
        begin = call.launch if call.blocking else self.clock.now()
        yield
        end = self.clock.now()
        # On a side stream of a GPU the events do not show another stream's wait.
        if not torch.cuda.is_available() or _on_default_stream():
            call.wait, call.waited_in = (begin, end), self.clock.position()
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
        """The stamps, in s of `perf_counter`; ends the trace, and on CUDA waits for the device."""
        trace_calls(None)
        # Calls before the first step prepared it: broadcasts of parameters and the like.
        calls = [call for call in self.calls if call.position[0] >= 0]
        self.calls = []
        self.pending.clear()
        marks = [mark for call in calls for mark in (call.launch, *call.wait, call.finish)]
        times = np.full(len(marks), np.nan)
        known = [number for number, mark in enumerate(marks) if mark is not None]
        if known:
            times[known] = self.clock.seconds([marks[number] for number in known])
        launch, begin, end, finish = times.reshape(-1, 4).T
        # Data that came before the wait were not waited for. Data that came during it are there
        # when the rank goes on: between their arrival and that, a thread of the back end wakes the
        # rank.
        wait_end = np.where(finish < begin, begin, end)
        finish = np.where(finish >= begin, end, finish)
        phase_of = self.clock.phase_of
        return Calls(
            step=np.array([call.position[0] for call in calls], dtype=np.int64),
            operation=np.array([call.operation for call in calls], dtype=np.str_),
            members=np.array([call.members for call in calls], dtype=np.int64),
            phase=np.array(
                [phase_of(call.waited_in) if call.waited_in else "" for call in calls],
                dtype=np.str_,
            ),
            launch=launch,
            finish=finish,
            wait_begin=begin,
            wait_end=wait_end,
            bytes=np.array([call.bytes for call in calls], dtype=np.int64),
            moved=np.array([call.bytes * _factor(call) for call in calls]),
        )


def _factor(call: Call) -> float:
    if call.operation in RINGS:
        return bus_factor(call.operation, call.members)
    return 0.0 if call.operation == "receive" else 1.0


def _on_default_stream() -> bool:
    return bool(torch.cuda.current_stream() == torch.cuda.default_stream())


_recorder: CallRecorder | None = None
_installed = False


def trace_calls(recorder: CallRecorder | None) -> None:
    """Stamp every call with this recorder from here on, or none; torch's classes change once."""
    global _recorder, _installed
    _recorder = recorder
    if _installed:
        return
    _installed = True
    group: Any = dist.ProcessGroup
    for name, (operation, argument) in METHODS.items():
        if hasattr(group, name):
            setattr(group, name, _traced_launch(getattr(group, name), operation, argument))
    work: Any = dist.Work
    work.wait = _traced_wait(work.wait, id)
    # DTensor's all-reduces and waits are C++ operators, which no Python method sees.
    functional.all_reduce = _traced_functional(functional.all_reduce)
    functional.wait_tensor = _traced_wait(functional.wait_tensor, torch.Tensor.data_ptr)


def _traced_launch(method: Callable[..., Any], operation: str, argument: int) -> Callable[..., Any]:
    @wraps(method)
    def launch(group: Any, *arguments: Any, **options: Any) -> Any:
        recorder = _recorder
        if recorder is None:
            return method(group, *arguments, **options)
        tensors = arguments[argument]
        tensors = tensors if isinstance(tensors, list | tuple) else [tensors]
        size = sum(tensor.nbytes for tensor in tensors)
        # A blocking call may do its work on the caller's own stream, where the wait for it takes no
        # time: it is one wait from its launch on.
        blocking = getattr(arguments[-1], "asyncOp", True) is False
        call = recorder.launch(operation, size, members=group.size(), blocking=blocking)
        work = method(group, *arguments, **options)
        if work is not None:
            recorder.expect(call, id(work), work)
            if not blocking:
                # Messages over gloo have no future, and nothing tells when they arrive.
                with suppress(RuntimeError):
                    work.get_future().then(lambda future: recorder.finished(call))
        elif blocking:
            recorder.expect(call, id(call), call)
            with recorder.waiting(id(call)):
                pass  # the call is done
        # Else it is one of several messages that are sent together: its times are not known.
        return work

    return launch


def _traced_wait(method: Callable[..., Any], key_of: Callable[[Any], int]) -> Callable[..., Any]:
    @wraps(method)
    def wait(awaited: Any, *arguments: Any) -> Any:
        recorder = _recorder
        if recorder is None:
            return method(awaited, *arguments)
        with recorder.waiting(key_of(awaited)):
            return method(awaited, *arguments)

    return wait


def _traced_functional(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def launch(tensor: torch.Tensor, reduceOp: str, group: Any, tag: str = "") -> Any:  # noqa: N803 torch's own name
        recorder = _recorder
        if recorder is None:
            return function(tensor, reduceOp, group, tag)
        members = group[0].get_group(group[1]) if isinstance(group, tuple) else group
        # The same through the traced method, on a copy: the functional one keeps its argument.
        reduced = tensor.contiguous().clone()
        operation = getattr(dist.ReduceOp, reduceOp.upper())
        work = dist.all_reduce(reduced, operation, group=members, async_op=True)
        # torch waits for the tensor, not for the work: the result is known by its memory.
        _, call = recorder.pending.pop(id(work))
        recorder.expect(call, reduced.data_ptr(), reduced)
        torch._C._distributed_c10d._register_work(reduced, work)
        return functional._maybe_wrap_tensor(reduced)

    return launch
