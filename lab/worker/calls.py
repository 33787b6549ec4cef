"""Collectives and messages of a strategy, stamped where they pass through torch.distributed, and what was stamped.

DDP's buckets have a hook of their own (`communication.py`), as its C++ reducer does not pass here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial, wraps
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed as dist
from torch.distributed import _functional_collectives as functional

from lab.analysis.links import bus_factor
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
        _listen(self)

    def launch(self, operation: str, size: int, *, members: int, blocking: bool = False) -> Call:
        """Begin a call of `size` bytes between `members` ranks."""
        call = Call(operation, size, members, self.clock.position(), self.clock.now(), blocking=blocking)
        self.calls.append(call)
        return call

    def expect(self, call: Call, key: object, holder: object) -> None:
        """The wait for this call will be known by this key; the holder of the key lives until then."""
        self.pending[key] = holder, call

    @contextmanager
    def waiting(self, key: object, *, over: bool = False) -> Iterator[None]:
        """Stamp the wait for a pending call; `over`: its data are there already, nobody knows since when."""
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
        if call.finish is None and not over:
            call.finish = end

    @contextmanager
    def blocked(self, operation: str, size: int, *, members: int) -> Iterator[None]:
        """Stamp a part of the program as one call that the rank waits for from begin to end."""
        call = self.launch(operation, size, members=members, blocking=True)
        self.expect(call, id(call), call)
        with self.waiting(id(call)):
            yield

    def take(self) -> Calls:
        """What was stamped, in seconds of this host's `perf_counter`; on CUDA it waits for the device. Nothing is stamped later."""
        _listen(None)
        calls = [call for call in self.calls if call.position[0] >= 0]  # not those that prepared the first step
        self.calls = []
        self.pending.clear()
        marks = [(call.launch, *(call.wait or (None, None)), call.finish) for call in calls]
        known = [mark for of_call in marks for mark in of_call if mark is not None]
        read = iter(self.clock.seconds(known).tolist() if known else [])
        times = np.array([[np.nan if mark is None else next(read) for mark in of_call] for of_call in marks]).reshape(-1, 4)
        return Calls(
            step=np.array([call.position[0] for call in calls], dtype=np.int64),
            operation=np.array([call.operation for call in calls], dtype=np.str_),
            members=np.array([call.members for call in calls], dtype=np.int64),
            phase=np.array([self.clock.phase_of(call.waited_in) if call.wait else "" for call in calls], dtype=np.str_),
            launch=times[:, 0],
            finish=times[:, 3],
            wait_begin=times[:, 1],
            wait_end=times[:, 2],
            bytes=np.array([call.bytes for call in calls], dtype=np.int64),
            moved=np.array([call.bytes * _factor(call) for call in calls]),
        )


def _factor(call: Call) -> float:
    if call.operation in {"all_reduce", "all_gather", "reduce_scatter", "broadcast"}:
        return bus_factor(call.operation, call.members)  # type: ignore[arg-type]
    return 0.0 if call.operation == "receive" else 1.0


# Methods of a process group: the operation, and which argument holds the tensors that give its bytes.
_METHODS = {
    "allreduce": ("all_reduce", 0),
    "broadcast": ("broadcast", 0),
    "all_gather_single": ("all_gather", 0),
    "_allgather_base": ("all_gather", 0),
    "reduce_scatter_single": ("reduce_scatter", 1),
    "_reduce_scatter_base": ("reduce_scatter", 1),
    "send": ("send", 0),
    "recv": ("receive", 0),
}
_listening: CallRecorder | None = None
_installed = False


def _listen(recorder: CallRecorder | None) -> None:
    """Tell the stamps where to go; the first call puts them into torch's classes, which are shared by all groups."""
    global _listening, _installed
    _listening = recorder
    if _installed:
        return
    _installed = True
    group: Any = dist.ProcessGroup
    for name in _METHODS:
        if hasattr(group, name):
            setattr(group, name, _stamped(getattr(group, name), *_METHODS[name]))
    work: Any = dist.Work
    work.wait = _stamped_wait(work.wait)
    # Functional collectives, which tensor parallelism uses, reach the group in C++.
    functional.all_reduce = _stamped_functional(functional.all_reduce)
    functional.wait_tensor = _stamped_wait_tensor(functional.wait_tensor)


def _stamped(method: Callable[..., Any], operation: str, place: int) -> Callable[..., Any]:
    @wraps(method)
    def launch(group: Any, *arguments: Any, **options: Any) -> Any:
        recorder = _listening
        if recorder is None:
            return method(group, *arguments, **options)
        tensors = arguments[place]
        size = sum(tensor.nbytes for tensor in (tensors if isinstance(tensors, list | tuple) else [tensors]))
        # A call that blocks may do its work on the caller's stream, where its wait takes no time.
        blocking = getattr(arguments[-1], "asyncOp", True) is False
        call = recorder.launch(operation, size, members=group.size(), blocking=blocking)
        work = method(group, *arguments, **options)
        recorder.expect(call, id(work), work)
        with suppress(RuntimeError):  # messages over gloo have no future: their end is seen by who waits for it
            work.get_future().then(partial(_finish, recorder, call))
        return work

    return launch


def _finish(recorder: CallRecorder, call: Call, future: Any) -> None:
    call.finish = recorder.clock.now()


def _stamped_wait(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def wait(work: Any, *arguments: Any) -> Any:
        recorder = _listening
        if recorder is None or id(work) not in recorder.pending:
            return method(work, *arguments)
        with recorder.waiting(id(work), over=work.is_completed()):
            return method(work, *arguments)

    return wait


def _stamped_functional(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def launch(tensor: torch.Tensor, reduceOp: str, group: Any, tag: str = "") -> Any:  # noqa: N803 torch's own name
        recorder = _listening
        if recorder is None:
            return function(tensor, reduceOp, group, tag)
        call = recorder.launch("all_reduce", tensor.nbytes, members=_size(group))
        reduced = function(tensor, reduceOp, group, tag)
        inner = getattr(reduced, "elem", reduced)
        recorder.expect(call, inner.data_ptr(), inner)
        return reduced

    return launch


def _stamped_wait_tensor(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def wait(tensor: torch.Tensor) -> Any:
        recorder = _listening
        if recorder is None:
            return function(tensor)
        with recorder.waiting(tensor.data_ptr()):
            return function(tensor)

    return wait


def _size(group: Any) -> int:
    """Of a process group, or of one dimension of a device mesh."""
    return int(group[0].size(group[1]) if isinstance(group, tuple) else group.size())


def _on_main_stream() -> bool:
    return not torch.cuda.is_available() or torch.cuda.current_stream() == torch.cuda.default_stream()
