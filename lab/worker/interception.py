"""Where collectives and messages pass through torch.distributed: the process group's methods, stamped for a recorder.

Python code of torch (FSDP, pipelines) and of the lab calls these methods; functional collectives, which DTensor uses,
reach the group in C++ and are sent through them here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist
from torch.distributed import _functional_collectives as functional

if TYPE_CHECKING:
    from lab.worker.calls import CallRecorder

# Methods of a process group by what they do, and which argument holds the tensors that give the bytes. Two names of one
# collective belong to two versions of torch.
METHODS = {
    "allreduce": ("all_reduce", 0),
    "broadcast": ("broadcast", 0),
    "all_gather_single": ("all_gather", 0),
    "_allgather_base": ("all_gather", 0),
    "reduce_scatter_single": ("reduce_scatter", 1),
    "_reduce_scatter_base": ("reduce_scatter", 1),
    "send": ("send", 0),
    "recv": ("receive", 0),
}
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
        size = sum(tensor.nbytes for tensor in (tensors if isinstance(tensors, list | tuple) else [tensors]))
        # A call that blocks may do its work on the caller's stream, where the wait for it takes no time: it begins here.
        blocking = getattr(arguments[-1], "asyncOp", True) is False
        call = recorder.launch(operation, size, members=group.size(), blocking=blocking)
        work = method(group, *arguments, **options)
        if work is None:  # done, or one of several messages that are sent together: their times are not known
            recorder.expect(call, id(call), call)
            if blocking:
                with recorder.waiting(id(call)):
                    pass
            return work
        recorder.expect(call, id(work), work)
        if not blocking:
            with suppress(RuntimeError):  # messages over gloo have no future, and nothing tells when they have arrived
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
        work = dist.all_reduce(reduced, getattr(dist.ReduceOp, reduceOp.upper()), group=members, async_op=True)
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
