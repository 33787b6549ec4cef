"""Executing parameterized notebooks with papermill, one after the other in one kernel."""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from lab.errors import InputError, LabError, Problem, nearest
from lab.files import private_folder, unwritable

STARTUP_S = 300  # a kernel may take on a busy machine
OUTPUT_S = 300  # the output of a cell may take longer than the cell
CLIENT = "lab.report.client.Client"
ENDING_S = 10  # the thread may take to notice that its kernel was ended
# Between two notebooks: no name of the first is left, and cells are counted from 1 again.
_RESET = "get_ipython().reset(new_session=True)"
# Slow to import; this leaves no name.
_PRELOADED = (
    "with __import__('lab.machine').machine.loading(): __import__('lab.report.study_sections')"
)
# A kernel imports nothing from the current folder, into which others may have put a pandas.py;
# what it starts itself is not affected.
_SAFE_PATH = "PYTHONSAFEPATH"
_FORGET = f"__import__('os').environ.pop('{_SAFE_PATH}', None) and None"
_PREFIX = "lab-kernel-"
LONGEST_SOCKET = 103  # bytes of a socket's path on macOS; Linux takes 107
_ARGUMENTS = [
    "--IPKernelApp.log_level=50",
    "--IPKernelApp.ignore_cwd=True",
    f"--IPKernelApp.exec_lines={_PRELOADED}",
    f"--IPKernelApp.exec_lines={_FORGET}",
]


@dataclass(frozen=True)
class Execution:
    """A parameterized notebook, its parameters, and where its executed copy is written."""

    template: Path
    target: Path
    parameters: Mapping[str, Any]


def execute(template: Path, target: Path, parameters: Mapping[str, Any]) -> Path:
    """Execute a parameterized notebook; an undeclared parameter name is an InputError.

    So is a folder that cannot be written. If a cell fails, LabError names it and the partial
    notebook, which is kept beside the target.
    """
    with executing([Execution(template, target, parameters)]):
        return target


@contextmanager
def executing(executions: Iterable[Execution]) -> Iterator[None]:
    """Execute notebooks in a kernel while the body of the `with` statement runs.

    After a failure, as of `execute`, or in the body, or Ctrl-C, the kernel is ended and it is
    raised. In the main thread, nbclient would handle Ctrl-C itself and report it as a dead kernel.
    """
    waiting = list(executions)
    if not waiting:
        yield
        return
    _import_all()
    pool = ThreadPoolExecutor(max_workers=1)
    future = pool.submit(_execute_each, waiting)
    try:
        yield
        future.result()
    except BaseException:
        # Not without end: the thread may wait for what Ctrl-C interrupted, such as an import.
        end = time.monotonic() + ENDING_S
        while not future.done() and time.monotonic() < end:
            _end_kernels()
            time.sleep(0.1)
        raise
    finally:
        pool.shutdown(wait=False)


def _import_all() -> None:
    """Import what the thread needs, before there is one.

    If Ctrl-C interrupts an import of the main thread, Python may keep the module's lock, and a
    thread that imports the same module waits for it forever.
    """
    for name in ("lab.report.client", "papermill"):
        importlib.import_module(name)


class _Kernels:
    """Kernels that wait for their next notebook, until all of them are ended."""

    def __init__(self, ended_by: ExitStack) -> None:
        self._ended_by, self._idle = ended_by, deque[Any]()

    @contextmanager
    def one(self) -> Iterator[Any]:
        """A kernel in the current folder; after a failure it is not used again."""
        try:
            kernel = self._idle.popleft()
            move = f"__import__('os').chdir({str(Path.cwd())!r})"
            kernel.client().execute(move, silent=True)
        except IndexError:
            kernel = self._ended_by.enter_context(started_kernel())
        yield kernel
        self._idle.append(kernel)


_shared: _Kernels | None = None


@contextmanager
def shared_kernels() -> Iterator[None]:
    """Let all reports that are made meanwhile share kernels, which load modules only once."""
    global _shared
    with ExitStack() as stack:
        outer, _shared = _shared, _Kernels(stack)
        try:
            yield
        finally:
            _shared = outer


def _execute_each(waiting: Iterable[Execution]) -> None:
    """Execute what waits in one kernel, which loads what they import only once."""
    with started_kernel() if _shared is None else _shared.one() as kernel:
        for execution in waiting:
            execute_in(kernel, execution)


def execute_in(kernel: Any, execution: Execution) -> None:
    """Execute a notebook, as `execute` does, in a kernel that executes others before or after."""
    template, target = execution.template, execution.target
    _check_parameters(template, execution.parameters)
    if problems := unwritable(target.parent):
        raise InputError(target.name, problems)
    partial = target.with_name(f"{target.stem}.partial.ipynb")
    with _unfinished(target) as unfinished:
        if failure := _failure(execution, unfinished, kernel):
            unfinished.replace(partial)
            raise LabError(f"{template.name}{failure}; partial notebook: {partial}")
        unfinished.replace(target)
    partial.unlink(missing_ok=True)  # of an earlier failure
    # Requests are served in their order, so what comes next need not wait for this one.
    kernel.client().execute(_RESET, silent=True)


@contextmanager
def _unfinished(target: Path) -> Iterator[Path]:
    """Where a file is written until it is complete: others who may write beside it cannot there."""
    folder = private_folder(target.with_name(f".{target.stem}.building"))
    try:
        yield folder / target.name
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _failure(execution: Execution, unfinished: Path, kernel: Any) -> str:
    """Execute a notebook; what went wrong in it, empty if nothing did."""
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    template = execution.template
    try:
        papermill.execute_notebook(
            str(template),
            str(unfinished),
            parameters={name: plain(value) for name, value in execution.parameters.items()},
            kernel_name="python3",
            progress_bar=False,
            log_output=False,
            request_save_on_cell_execute=False,
            autosave_cell_every=0,
            cwd=str(Path.cwd()),
            start_timeout=STARTUP_S,
            iopub_timeout=OUTPUT_S,
            km=kernel,
        )
    except papermill.PapermillExecutionError as error:
        return f", cell {error.exec_count}: {error.ename}: {error.evalue}"
    except DeadKernelError:
        return ": its kernel died (out of memory?)"
    except CellTimeoutError:
        return f": the output of a cell was incomplete {OUTPUT_S} s after its end (too much of it?)"
    except RuntimeError as error:
        advice = "is the machine overloaded? The same command resumes from here"
        raise LabError(f"{template.name}: {error}; {advice}") from None
    except OSError as error:
        error.filename = error.filename or str(execution.target)  # which papermill leaves out
        raise
    return ""


@contextmanager
def started_kernel() -> Iterator[Any]:
    """A kernel that has begun to start, and its one client for all notebooks."""
    from jupyter_core.utils import run_sync

    from lab.report.client import Manager

    with kernel_settings() as config:
        manager = Manager(kernel_name="python3", config=config)
        try:
            # Before the first notebook asks for it: this process has much to import itself.
            env = os.environ | {_SAFE_PATH: "1"}
            arguments = [*_ARGUMENTS, separate_profile(config)]
            run_sync(manager.start_kernel)(extra_arguments=arguments, env=env)
            yield manager
        finally:
            if manager.the_client:
                manager.the_client.stop_channels()
            if manager.has_kernel:
                run_sync(manager.shutdown_kernel)(now=True)


@contextmanager
def kernel_settings() -> Iterator[Any]:
    """A client that notices every answer, and sockets in a separate folder per kernel.

    So there are no open ports, and none in each other's way. Until the end, remarks are muted.
    """
    from traitlets.config import Config

    with _quiet(), tempfile.TemporaryDirectory(prefix=_PREFIX, dir=socket_folder()) as sockets:
        settings = {"transport": "ipc", "ip": f"{sockets}/kernel", "client_factory": CLIENT}
        yield Config({"KernelManager": settings})


def separate_profile(settings: Any) -> str:
    """The argument by which a kernel reads no settings and startup files of its user's IPython."""
    return f"--IPKernelApp.ipython_dir={Path(settings.KernelManager.ip).parent}"


def socket_folder() -> str:
    """Where sockets may lie: in TMPDIR, unless its path leaves no room for them (unix(7))."""
    usual = tempfile.gettempdir()
    longest = f"{usual}/{_PREFIX}12345678/kernel-1234"
    return usual if len(os.fsencode(longest)) <= LONGEST_SOCKET else "/tmp"  # noqa: S108


def _end_kernels() -> None:
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if "ipykernel_launcher" in child.cmdline():
                child.kill()


def _check_parameters(template: Path, parameters: Mapping[str, Any]) -> None:
    import papermill

    declared = papermill.inspect_notebook(str(template))
    unknown = [
        Problem(name, "unknown parameter of the notebook", nearest(name, declared))
        for name in parameters
        if name not in declared
    ]
    if unknown:
        raise InputError(str(template), unknown)


def plain(value: Any) -> Any:
    """A value that papermill can pass: numpy scalars become numbers, paths text, tuples lists."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return value.item() if hasattr(value, "item") else value


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep remarks of papermill and its kernel off the terminal; errors are raised, not logged."""
    loggers = [logging.getLogger(name) for name in ("papermill", "traitlets", "blib2to3")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
