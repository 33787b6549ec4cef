"""Collectives and messages of a strategy: a recorder of them, and what it found.

DDP's buckets have a recorder of their own (`communication.py`), as its C++ reducer does not pass through `interception.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
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
        self.pending: dict[
            object, tuple[object, Call]
        ] = {}  # works and tensors by identity, kept until they are waited for
        tell(self)

    def launch(self, operation: str, size: int, *, members: int, blocking: bool = False) -> Call:
        """Begin a call of `size` bytes between `members` ranks."""
        call = Call(
            operation, size, members, self.clock.position(), self.clock.now(), blocking=blocking
        )
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
        tell(None)
        calls = [
            call for call in self.calls if call.position[0] >= 0
        ]  # not those that prepared the first step
        self.calls = []
        self.pending.clear()
        marks = [(call.launch, *(call.wait or (None, None)), call.finish) for call in calls]
        known = [mark for of_call in marks for mark in of_call if mark is not None]
        read = iter(self.clock.seconds(known).tolist() if known else [])
        times = np.array(
            [[np.nan if mark is None else next(read) for mark in of_call] for of_call in marks]
        ).reshape(-1, 4)
        # A wait that began after the end was none; one that did not ends when the rank goes on, and so does the call.
        launch, wait_begin, wait_end, finish = times.T
        wait_end, finish = (
            np.where(finish < wait_begin, wait_begin, wait_end),
            np.where(finish >= wait_begin, wait_end, finish),
        )
        return Calls(
            step=np.array([call.position[0] for call in calls], dtype=np.int64),
            operation=np.array([call.operation for call in calls], dtype=np.str_),
            members=np.array([call.members for call in calls], dtype=np.int64),
            phase=np.array(
                [self.clock.phase_of(call.waited_in) if call.wait else "" for call in calls],
                dtype=np.str_,
            ),
            launch=launch,
            finish=finish,
            wait_begin=wait_begin,
            wait_end=wait_end,
            bytes=np.array([call.bytes for call in calls], dtype=np.int64),
            moved=np.array([call.bytes * _factor(call) for call in calls]),
        )


def _factor(call: Call) -> float:
    if call.operation in RINGS:
        return bus_factor(call.operation, call.members)
    return 0.0 if call.operation == "receive" else 1.0


def _on_main_stream() -> bool:
    return (
        not torch.cuda.is_available() or torch.cuda.current_stream() == torch.cuda.default_stream()
    )


# Methods of a process group: what they do, and which argument holds the tensors that give the bytes.
METHODS = {
    method: (name, place) for name, ring in RINGS.items() for method, place in ring.methods.items()
} | {"send": ("send", 0), "recv": ("receive", 0)}
_recorder: CallRecorder | None = None
_installed = False


def tell(recorder: CallRecorder | None) -> None:
    """Let this recorder know of every call from now on, or nobody; torch's classes are changed once and stay so."""
    global _recorder, _installed
    _recorder = recorder
    if _installed:
        return
    _installed = True
    group: Any = dist.ProcessGroup
    for name, (operation, place) in METHODS.items():
        if hasattr(group, name):
            setattr(group, name, _stamped(getattr(group, name), operation, place))
    work: Any = dist.Work
    work.wait = _stamped_wait(work.wait)
    functional.all_reduce = _stamped_functional(functional.all_reduce)
    functional.wait_tensor = _stamped_wait_tensor(functional.wait_tensor)


def _stamped(method: Callable[..., Any], operation: str, place: int) -> Callable[..., Any]:
    @wraps(method)
    def launch(group: Any, *arguments: Any, **options: Any) -> Any:
        recorder = _recorder
        if recorder is None:
            return method(group, *arguments, **options)
        tensors = arguments[place]
        size = sum(
            tensor.nbytes
            for tensor in (tensors if isinstance(tensors, list | tuple) else [tensors])
        )
        # A call that blocks may do its work on the caller's stream, where the wait for it takes no time: it begins here.
        blocking = getattr(arguments[-1], "asyncOp", True) is False
        call = recorder.launch(operation, size, members=group.size(), blocking=blocking)
        work = method(group, *arguments, **options)
        if (
            work is None
        ):  # done, or one of several messages that are sent together: their times are not known
            recorder.expect(call, id(call), call)
            if blocking:
                with recorder.waiting(id(call)):
                    pass
            return work
        recorder.expect(call, id(work), work)
        if not blocking:
            with suppress(
                RuntimeError
            ):  # messages over gloo have no future, and nothing tells when they have arrived
                work.get_future().then(lambda future: recorder.finished(call))
        return work

    return launch


def _stamped_wait(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def wait(work: Any, *arguments: Any) -> Any:
        recorder = _recorder
        if recorder is None:
            return method(work, *arguments)
        with recorder.waiting(id(work)):
            return method(work, *arguments)

    return wait


def _stamped_functional(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def launch(tensor: torch.Tensor, reduceOp: str, group: Any, tag: str = "") -> Any:  # noqa: N803 torch's own name
        recorder = _recorder
        if recorder is None:
            return function(tensor, reduceOp, group, tag)
        members = group[0].get_group(group[1]) if isinstance(group, tuple) else group
        reduced = tensor.contiguous().clone()
        work = dist.all_reduce(
            reduced, getattr(dist.ReduceOp, reduceOp.upper()), group=members, async_op=True
        )
        recorder.rename(id(work), reduced.data_ptr(), reduced)
        torch._C._distributed_c10d._register_work(reduced, work)
        return functional._maybe_wrap_tensor(reduced)

    return launch


def _stamped_wait_tensor(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def wait(tensor: torch.Tensor) -> Any:
        recorder = _recorder
        if recorder is None:
            return function(tensor)
        with recorder.waiting(tensor.data_ptr()):
            return function(tensor)

    return wait
