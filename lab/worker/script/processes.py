"""Keeps a script's training in the rank's own process, and sees how that process ends."""

from __future__ import annotations

import ast
import inspect
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlparse

import psutil
from torch import distributed as dist
from torch import multiprocessing
from torch.distributed import distributed_c10d
from torch.multiprocessing.spawn import ProcessContext, ProcessRaisedException

from lab.errors import LabError
from lab.formatting import count
from lab.machine import end_left
from lab.worker.patch import around, replaced

OWN_RANKS = (
    "a process that the script starts forms a process group, but the lab starts the ranks, as "
    "torchrun does: call the training function itself, with RANK and WORLD_SIZE from the "
    "environment, and set world_size (--ranks of `lab measure`)"
)


@contextmanager
def one_process() -> Iterator[None]:
    """Keep a script's training in this process, and let `os._exit` end it as `sys.exit` does."""
    spawning: Any = sys.modules["torch.multiprocessing.spawn"]  # a function has this name, too
    in_this_process = around(spawning.start_processes, _in_this_process)
    rendezvous: Any = distributed_c10d.rendezvous  # type: ignore[attr-defined]
    anywhere = around(rendezvous, _anywhere, os.environ.get("MASTER_PORT"))
    here = os.getpid(), threading.get_ident()
    with replaced(
        (BaseProcess, "start", around(BaseProcess.start, _without_ranks)),
        (ProcessContext, "join", around(ProcessContext.join, _explained)),
        (spawning, "start_processes", in_this_process),  # which `spawn` calls
        (multiprocessing, "start_processes", in_this_process),
        (distributed_c10d, "rendezvous", anywhere),
        (dist, "rendezvous", anywhere),  # which RPC calls
        (os, "_exit", around(os._exit, _like_sys_exit, here)),
    ):
        yield


def end_children(script: str) -> None:
    """End the processes for which Python would wait at exit.

    A script that is ended early has not reached the line that ends them.
    """
    started = [one.pid for one in multiprocessing.active_children() if not one.daemon]
    running = [psutil.Process(pid) for pid in started if psutil.pid_exists(pid)]
    end_left(running, by=script)


def _without_ranks(start: Callable[..., None], process: Any) -> None:
    """Start a process that cannot form a process group."""
    _require_guard(process)
    # In torchrun's environment, rank 0 of that group would wait for a store that nobody opens.
    if dist.is_torchelastic_launched() and getattr(process, "_target", None):
        process._target = partial(_call_without_ranks, process._target)
    start(process)


def _require_guard(process: Any) -> None:
    """Raise LabError for a process that would run the script again, and so start one like itself.

    Python ends such a process with an error, of which a pool starts another one, without end.
    """
    method = process._start_method or multiprocessing.get_start_method()
    frames = (frame for frame, _ in traceback.walk_stack(inspect.currentframe()))
    top = next((f for f in frames if f.f_code.co_name == "<module>" and _is_main(f)), None)
    if method == "fork" or top is None:
        return
    tree = ast.parse(Path(top.f_code.co_filename).read_bytes())
    guards = [node for node in tree.body if isinstance(node, ast.If) and _names_module(node.test)]
    if not any(one.lineno <= top.f_lineno <= (one.end_lineno or 0) for one in guards):
        raise LabError(
            f"a process started by {method} imports the script and would start one itself: put "
            f'what line {top.f_lineno} does under `if __name__ == "__main__":`'
        )


def _is_main(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == "__main__" and "__file__" in frame.f_globals


def _names_module(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(test))


def _call_without_ranks(target: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    # What `init_process_group` and `init_rpc` call, as a script may have imported those by name.
    modules: list[Any] = [distributed_c10d, dist]
    for module in modules:
        module.rendezvous = _refuse
    target(*arguments, **options)


def _refuse(*_: Any, **__: Any) -> None:
    raise LabError(OWN_RANKS)


def _explained(join: Callable[..., bool], *arguments: Any, **options: Any) -> bool:
    """The end of `torch.multiprocessing.spawn`, with this module's error instead of its text."""
    try:
        return join(*arguments, **options)
    except ProcessRaisedException as error:
        if OWN_RANKS not in str(error):
            raise
        raise LabError(OWN_RANKS) from error


def _in_this_process(
    start_processes: Callable[..., Any],
    fn: Callable[..., None],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    *rest: Any,
    **more: Any,
) -> Any:
    """Torch's `start_processes`, which calls the function of a rank in this process."""
    try:
        if nprocs > 0 or not dist.is_torchelastic_launched():
            return start_processes(fn, args, nprocs, *rest, **more)
    except LabError:  # only now is it known that these processes are ranks
        pass
    ranks = int(os.environ["LOCAL_WORLD_SIZE"])
    if nprocs != ranks:
        # Nothing but ranks is started as often as there are GPUs.
        started = count(nprocs, "rank") if nprocs else "0 ranks (no GPU found?)"
        raise LabError(
            f"the script itself starts {started}, but is measured on {ranks}: tell it the "
            "number, such as by an argument {world_size}"
        )
    fn(int(os.environ["LOCAL_RANK"]), *args)
    return None


def _anywhere(
    rendezvous: Callable[..., Any], port: str | None, url: str, *arguments: Any, **options: Any
) -> Any:
    """Torch's rendezvous, in which rank 0 listens at an address that the script itself sets.

    `port` is where the lab already listens.
    """
    if port is not None and dist.is_torchelastic_launched():
        target = urlparse(url).port if url.startswith("tcp:") else os.environ["MASTER_PORT"]
        # Torch reads this to learn whether somebody is listening there already.
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = str(str(target) == port)
    return rendezvous(url, *arguments, **options)


def _like_sys_exit(end: Callable[[int], None], own: tuple[int, int], status: int) -> None:
    # Forked processes and other threads, such as the lab's watchdog, end at once.
    if (os.getpid(), threading.get_ident()) != own:
        end(status)
    raise SystemExit(status)
