"""Trace of the collectives and messages of every strategy but DDP, whose reducer is in C++.

Methods of torch's process groups are replaced by ones that timestamp the launch of a call, the wait
for it and its end.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d

from lab.perfmodel.collectives import RINGS, bus_factor
from lab.worker.measure.clock import Clock, FloatArray, IntArray, Timestamped
from lab.worker.patch import around

# Methods of a process group: the collective and the argument whose bytes count.
METHODS = {
    method: (name, place) for name, ring in RINGS.items() for method, place in ring.methods.items()
} | {
    "send": ("send", 0),
    "recv": ("receive", 0),
    "recv_anysource": ("receive", 0),
    **dict.fromkeys(("all_to_all_single", "alltoall_base", "alltoall"), ("all_to_all", 0)),
    "reduce": ("reduce", 0),
    "gather": ("gather", 1),
    "scatter": ("scatter", 0),
}


@dataclass
class Call:
    """One call; marks are those of the clock, None if unknown."""

    operation: str
    bytes: int
    members: int
    position: tuple[int, int]  # in the clock's steps and laps
    launch: Any
    blocking: bool
    finish: Any = None
    wait: tuple[Any, Any] = (None, None)  # begin and end
    waited_in: tuple[int, int] | None = None  # known once it was waited for


@dataclass(frozen=True)
class Calls(Timestamped):
    """One rank's calls in launch order; times in s, NaN if they cannot be known.

    `bytes` is the size of the tensor of a message or an all-reduce, or of the whole tensor of a
    gather or scatter; `moved` is what a rank sends for it on a ring
    (`perfmodel.collectives.bus_factor`). `finish` is when the data arrived; from `wait_begin` to
    `wait_end` the rank only waited for them, in the phase `phase` of its step.
    """

    TIMES = ("launch", "finish", "wait_begin", "wait_end")

    operation: npt.NDArray[np.str_]
    members: IntArray
    phase: npt.NDArray[np.str_]
    launch: FloatArray
    finish: FloatArray
    wait_begin: FloatArray
    wait_end: FloatArray
    bytes: IntArray
    moved: FloatArray


class CallRecorder:
    """Keeps one rank's call timestamps until they are taken; taking a timestamp never waits."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.calls: list[Call] = []
        self.compiled = False  # whether there are more within compiled graphs
        # By a key of the awaited work or tensor, with what keeps that alive, as Python reuses the
        # id of a dead object.
        self.pending: dict[object, tuple[object, list[Call]]] = {}
        self.together: list[Call] = []  # messages that NCCL will send together
        self.last_on: dict[object, Call] = {}  # by a GPU's side stream
        trace_calls(self)

    def launch(self, operation: str, size: int, *, members: int, blocking: bool = False) -> Call:
        """Begin a call of `size` bytes between `members` ranks."""
        now = self.clock.now()
        call = Call(operation, size, members, self.clock.position(), now, blocking)
        self.calls.append(call)
        if (stream := _side_stream()) is not None:
            self.last_on[stream] = call
        return call

    def expect(self, calls: Sequence[Call], key: object, holder: object) -> None:
        """Associate the wait for these calls with a key, whose holder is kept alive until then."""
        self.pending[key] = holder, list(calls)

    @contextmanager
    def waiting(self, key: object) -> Iterator[None]:
        """Stamp the wait for the pending calls of this key, if there are any."""
        _, calls = self.pending.pop(key, (None, []))
        if not calls:
            yield
            return
        blocking = calls[0].blocking and calls[0].finish is None
        begin = calls[0].launch if blocking else self.clock.now()
        yield
        end = self.clock.now()
        for call in calls:
            # On a GPU's side stream nothing waits yet: the main stream will, for an event on it.
            if _side_stream() is None:
                call.wait, call.waited_in = (begin, end), self.clock.position()
            if blocking:
                call.finish = end

    def finished(self, call: Call) -> None:
        """Record that a call's data have arrived."""
        call.finish = self.clock.now()

    @contextmanager
    def blocked(self, operation: str, size: int, *, members: int) -> Iterator[None]:
        """Record a part of the program as one call that the rank waits for from begin to end."""
        call = self.launch(operation, size, members=members, blocking=True)
        self.expect([call], id(call), call)
        with self.waiting(id(call)):
            yield

    def take(self) -> Calls:
        """The calls, in s of `perf_counter`; ends the trace, and on CUDA waits for the device."""
        trace_calls(None)
        # Others precede or follow the steps: parameter broadcasts, agreement about checkpoints.
        calls = [call for call in self.calls if self.clock.is_over(call.position)]
        self.calls = []
        self.pending.clear()
        self.together.clear()
        self.last_on.clear()
        marks = [mark for call in calls for mark in (call.launch, *call.wait, call.finish)]
        times = np.full(len(marks), np.nan)
        places = [number for number, mark in enumerate(marks) if mark is not None]
        if places:
            times[places] = self.clock.seconds([marks[number] for number in places])
        launch, begin, end, finish = times.reshape(-1, 4).T
        # Data that arrived before the wait were not waited for. Data that arrived during it count
        # from when the rank continues: between their arrival and that, a back-end thread wakes
        # the rank.
        wait_end = np.where(finish < begin, begin, end)
        finish = np.where(finish >= begin, end, finish)
        return Calls(
            step=np.array([call.position[0] for call in calls], dtype=np.int64),
            operation=np.array([call.operation for call in calls], dtype=np.str_),
            members=np.array([call.members for call in calls], dtype=np.int64),
            phase=np.array([self.clock.phase_of(call.waited_in) for call in calls], dtype=np.str_),
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


def _side_stream() -> Any:
    """A GPU's current stream unless it is the main one, on which the model computes."""
    if not torch.cuda.is_initialized():
        return None
    stream = torch.cuda.current_stream()
    return None if _is_main(stream) else stream


def _is_main(stream: Any) -> bool:
    return bool(stream == torch.cuda.default_stream())


_recorder: CallRecorder | None = None
_installed = False
_signature = cache(inspect.signature)


def trace_calls(recorder: CallRecorder | None) -> None:
    """Record every call with this recorder from now on, or none; torch is patched only once."""
    global _recorder, _installed
    _recorder = recorder
    if _installed:
        return
    _installed = True
    group: Any = dist.ProcessGroup
    for name, (operation, argument) in METHODS.items():
        if hasattr(group, name):
            setattr(group, name, around(getattr(group, name), _launch, operation, argument))
    work: Any = dist.Work
    work.wait = around(work.wait, _wait, id)
    # NCCL combines messages in both directions, and they are waited for together.
    group._end_coalescing = around(group._end_coalescing, _end_coalescing)
    # By which DDP makes buffers, as those of batch norm, equal before a forward pass.
    module: Any = dist
    broadcast = around(module._broadcast_coalesced, _broadcast)
    # Of a compiled module, the original breaks the graph too.
    module._broadcast_coalesced = torch.compiler.disable(broadcast)
    # FSDP's calls run on separate streams, for whose events the main stream waits.
    stream: Any = torch.cuda.Stream
    stream.record_event = around(stream.record_event, _record_event)
    stream.wait_event = around(stream.wait_event, _wait_event)
    # DTensor's collectives and waits are C++ operators, which bypass Python methods.
    for name, launch in FUNCTIONAL.items():
        if hasattr(functional, name):
            setattr(functional, name, around(getattr(functional, name), _functional, launch))
    functional.wait_tensor = around(functional.wait_tensor, _wait, torch.Tensor.data_ptr)


@contextmanager
def untraced() -> Iterator[None]:
    """Record none of the calls inside, as they are recorded in another way."""
    global _recorder
    recorder, _recorder = _recorder, None
    try:
        yield
    finally:
        _recorder = recorder


def _launch(
    method: Callable[..., Any],
    operation: str,
    argument: int,
    group: Any,
    *arguments: Any,
    **options: Any,
) -> Any:
    recorder = _recorder
    # The only member of a group within several ranks exchanges nothing.
    if recorder is None or group.size() == 1 < dist.get_world_size():
        return method(group, *arguments, **options)
    size = _bytes(arguments[argument])
    # A blocking call may do its work on the caller's own stream, where waiting for it takes no
    # time, so it counts as one wait from its launch.
    blocking = getattr(arguments[-1], "asyncOp", True) is False
    call = recorder.launch(operation, size, members=group.size(), blocking=blocking)
    work = method(group, *arguments, **options)
    if work is not None:
        recorder.expect([call], id(work), work)
        if not blocking:
            # Messages over gloo have no future, so their arrival cannot be observed.
            with suppress(RuntimeError):
                work.get_future().then(lambda future: recorder.finished(call))
    elif blocking:
        recorder.expect([call], id(call), call)
        with recorder.waiting(id(call)):
            pass  # the call is done
    else:
        recorder.together.append(call)
    return work


def _end_coalescing(method: Callable[..., Any], group: Any, *arguments: Any) -> Any:
    work = method(group, *arguments)
    if (recorder := _recorder) is not None:
        if work is not None:
            recorder.expect(recorder.together, id(work), work)
        # When each arrives is not known: the work of all has no future.
        recorder.together = []
    return work


def _broadcast(
    function: Callable[..., None], group: Any, tensors: Sequence[torch.Tensor], *arguments: Any
) -> None:
    if (recorder := _recorder) is None:
        function(group, tensors, *arguments)
        return
    with recorder.blocked("broadcast", _bytes(tensors), members=group.size()):
        function(group, tensors, *arguments)


def _record_event(method: Callable[..., Any], stream: Any, event: Any = None) -> Any:
    event = method(stream, event)
    if _recorder is not None and isinstance(event, torch.cuda.Event):
        vars(event)["follows"] = _recorder.last_on.get(stream)
    return event


def _wait_event(method: Callable[..., Any], stream: Any, event: Any) -> None:
    recorder, call = _recorder, getattr(event, "follows", None)
    # A second wait, such as for work after a scatter on its stream, is not for the link.
    if recorder is None or call is None or call.waited_in or not _is_main(stream):
        method(stream, event)
        return
    recorder.expect([call], id(event), event)
    with recorder.waiting(id(event)):
        method(stream, event)


def _wait(
    method: Callable[..., Any], key_of: Callable[[Any], int], awaited: Any, *arguments: Any
) -> Any:
    recorder = _recorder
    if recorder is None or functional._are_we_tracing():
        return method(awaited, *arguments)
    with recorder.waiting(key_of(awaited)):
        return method(awaited, *arguments)


def _functional(
    function: Callable[..., Any],
    launch: Callable[..., Any],
    *arguments: Any,
    **options: Any,
) -> Any:
    """A collective of DTensor's, which runs through the traced methods unless it is compiled."""
    recorder = _recorder
    if recorder is None or functional._are_we_tracing():
        if recorder is not None and not torch.compiler.is_dynamo_compiling():
            recorder.compiled = True
        return function(*arguments, **options)
    values = _signature(function).bind(*arguments, **options).arguments
    name = functional._resolve_group_name(values.pop("group"), values.pop("tag", ""))
    group = distributed_c10d._resolve_process_group(name)  # type: ignore[attr-defined]
    result, work = launch(*values.values(), group=group)
    # torch waits for the tensor, not for the work, so the result is identified by its memory.
    # Nothing was recorded within a group of one rank.
    _, calls = recorder.pending.pop(id(work), (None, []))
    recorder.expect(calls, result.data_ptr(), result)
    torch._C._distributed_c10d._register_work(result, work)
    result = functional._maybe_wrap_tensor(result)
    if dim := values.get("gather_dim"):
        result = torch.cat(result.chunk(group.size()), dim)
    return result


def _all_reduce(tensor: torch.Tensor, operation: str, *, group: Any) -> tuple[torch.Tensor, Any]:
    # On a copy, as the functional one keeps its argument.
    reduced = tensor.contiguous().clone()
    return reduced, dist.all_reduce(reduced, _reduction(operation), group, async_op=True)


def _all_gather(tensor: torch.Tensor, _: int, *, group: Any) -> tuple[torch.Tensor, Any]:
    rows, *rest = tensor.shape
    gathered = tensor.new_empty((rows * group.size(), *rest))
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return gathered, all_gather(gathered, tensor.contiguous(), group, async_op=True)


def _reduce_scatter(
    tensor: torch.Tensor, operation: str, dim: int, *, group: Any
) -> tuple[torch.Tensor, Any]:
    whole = torch.cat(tensor.chunk(group.size(), dim)) if dim else tensor.contiguous()
    rows, *rest = whole.shape
    part = tensor.new_empty((rows // group.size(), *rest))
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return part, reduce_scatter(part, whole, _reduction(operation), group, async_op=True)


def _reduction(name: str) -> Any:
    return getattr(dist.ReduceOp, name.upper())


# By their names in different versions of torch, of which one calls the other.
FUNCTIONAL: dict[str, Callable[..., tuple[torch.Tensor, Any]]] = {
    "all_reduce": _all_reduce,
    "all_gather_single": _all_gather,
    "all_gather_tensor": _all_gather,
    "reduce_scatter_single": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter,
}


def _bytes(tensors: Any) -> int:
    """Bytes of a tensor, or of all tensors in a possibly nested list."""
    if isinstance(tensors, torch.Tensor):
        return tensors.nbytes
    return sum(map(_bytes, tensors))
