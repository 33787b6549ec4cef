"""Jobs on this machine's CPUs as forks of a process that has torch loaded.

Loading torch takes longer than many a run trains. A driver keeps one server that loads it once;
each job is a fork of the server, submitit's controller, and each rank is a fork of the controller.
Repeats share no process: every fork begins with what was there before the first run.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from lab.machine import exit_with

# What every training on CPUs imports; an optimizer and DDP import torch._dynamo when they are made.
LOADED = ("submitit.local.local", "torch", "torch._dynamo", "lab.launch.job", "lab.worker.main")
# Variables that a library may read while it is loaded: where they differ, another server starts.
READ_ON_LOADING = (
    *("ATEN_", "DNNL_", "GOMP_", "KMP_", "LD_", "MALLOC_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_"),
    *("LC_", "LANG", "PYTHON", "PYTORCH_", "TORCH"),
)
MOST_BYTES = 2**20  # of a message: a job's whole environment
LOAD_S = 300.0  # of a shared file system, torch may take minutes; then ranks try it themselves
CONTROLLER_LOG = "controller.log"  # in a job's folder: what its controller prints
IDLE_S = 600.0  # a server without jobs for so long ends, as it holds memory


class Controller:
    """A job's controller, forked by the server: its process id, and how it ended."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server

    def poll(self) -> int | None:
        """Its exit code; None while it runs, and where the server ended before it."""
        return self._server.exit_code(self.pid)


class ForkServer:
    """The driver's side of a server."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        # A packet is one whole message; one too long for the socket raises OSError.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-u", "-m", __name__, str(theirs.fileno())],
                env=dict(environment),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # the terminal's Ctrl-C is the driver's
            )
        ours.settimeout(LOAD_S)
        self._connection = ours
        self._codes: dict[int, int] = {}
        self._lock = threading.Lock()

    def start(self, log: Path, environment: Mapping[str, str]) -> Controller:
        """Fork a controller whose files lie in `log`; raises OSError where the server has ended."""
        request = {
            "log": str(log),
            "folder": str(Path.cwd()),
            "environment": dict(environment),
            "umask": _umask(),
        }
        with self._lock:
            self._connection.sendall(json.dumps(request).encode())
            while "code" in (answer := self._read()):
                self._codes[answer["pid"]] = answer["code"]
            return Controller(self, answer["pid"])

    def exit_code(self, pid: int) -> int | None:
        """How a controller ended; None where that is not known."""
        with self._lock, suppress(OSError, ValueError), selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            while pid not in self._codes and selector.select(0):
                answer = self._read()
                self._codes[answer["pid"]] = answer["code"]
        return self._codes.get(pid)

    def close(self) -> None:
        """End the server; jobs go on."""
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def _read(self) -> dict[str, int]:
        message = self._connection.recv(MOST_BYTES)
        if not message:
            raise OSError("the server has ended")
        answer: dict[str, int] = json.loads(message)
        return answer


def _umask() -> int:
    """This process's umask, which no call tells without changing it for all threads."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Umask:")), 8)


_LOCK = threading.Lock()
_server: tuple[object, ForkServer] | None = None


def start(log: Path, environment: Mapping[str, str]) -> Controller | None:
    """Start submitit's controller of a job by a fork; None where that is not possible.

    A job gets its whole `environment`. What lies in PYTHONPATH may run when Python starts, which a
    fork does not: such a job is not forked, nor is any with LAB_PRELOAD=0.
    """
    global _server
    if sys.platform != "linux" or environment.get("LAB_PRELOAD") == "0":
        return None
    if environment.get("PYTHONPATH"):
        return None
    read = {key: value for key, value in environment.items() if key.startswith(READ_ON_LOADING)}
    kind = (os.getpid(), read)
    with _LOCK:
        for _ in range(2):
            if _server is None or _server[0] != kind:
                end()
                _server = kind, ForkServer(environment)
            try:
                return _server[1].start(log, environment)
            except (OSError, ValueError):  # it was idle for long, or killed
                end()
    return None


@atexit.register
def end() -> None:
    """End this process's server."""
    global _server
    # A fork of the driver, such as a loader's worker, has no server of its own.
    if _server is not None and _server[1]._process.poll() is None:
        _server[1].close()
    _server = None


def main() -> None:
    """Load torch, then fork a controller for each request until the driver is gone."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    for module in LOADED:
        import_module(module)
    os.close(os.pidfd_open(os.getpid()))  # where the kernel has none, end before anything is forked
    gc.collect()
    gc.freeze()  # forks share these pages for as long as no collection writes to them
    children: set[int] = set()
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        while (events := selector.select(IDLE_S)) or children:
            for key, _ in events:
                if key.fileobj is not connection:
                    selector.unregister(key.fileobj)
                    os.close(key.fd)
                    children.remove(key.data)
                    code = os.waitstatus_to_exitcode(os.waitpid(key.data, 0)[1])
                    _answer(connection, pid=key.data, code=code)
                elif message := connection.recv(MOST_BYTES):
                    pid = fork(_control, connection, json.loads(message))
                    children.add(pid)
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
                    _answer(connection, pid=pid)
                else:
                    return


def _answer(connection: socket.socket, **answer: int) -> None:
    with suppress(OSError):  # the driver has gone: the next event says so
        connection.sendall(json.dumps(answer).encode())


def _control(connection: socket.socket, request: dict[str, Any]) -> int:
    """Be the controller of a job."""
    connection.close()
    os.setsid()
    os.chdir(request["folder"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # as the driver's TMPDIR may be another by now
    log = Path(request["log"])
    _redirect(log / CONTROLLER_LOG)
    _controller()(log).run()
    return 0


def _controller() -> type[Any]:
    """submitit's controller with forks as its tasks."""
    from submitit.core.utils import JobPaths
    from submitit.local.local import Controller as Submitits

    from lab.launch import work

    class Forking(Submitits):
        def start_tasks(self) -> None:
            for rank in range(self.ntasks):
                variables = {
                    "SUBMITIT_LOCAL_LOCALID": str(rank),
                    "SUBMITIT_LOCAL_GLOBALID": str(rank),
                    "SUBMITIT_LOCAL_JOB_ID": self.pid,
                }
                output = JobPaths(self.folder, self.pid, rank).stdout
                task: Any = Task(fork(self._be_rank, variables, output))
                self.tasks.append(task)

        def _be_rank(self, variables: dict[str, str], output: Path) -> int:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.environ.update(variables)
            _redirect(output)
            return work.main(self.command[-2:])

    return Forking


class Task:
    """A fork as submitit's controller uses a subprocess."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


def _redirect(path: Path) -> None:
    """Let this process write what it prints to the end of a file."""
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)


def fork(function: Callable[..., int], *arguments: object) -> int:
    """The id of a fork of this process that calls a function and exits with what it returns."""
    return os.fork() or exit_with(function, *arguments)


if __name__ == "__main__":
    main()
