"""Processes that start with torch loaded, as forks of a process that has loaded it.

Loading torch takes longer than many runs train. A driver keeps one server that loads it once, and
each process requested from it is a fork of the server. Such processes share only what existed
before the first of them.
"""

from __future__ import annotations

import atexit
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from lab.machine import exit_with, loading

# Variables that a library may read while loading; if they differ, another server is started.
READ_ON_LOADING = (
    *("ATEN_", "DNNL_", "GOMP_", "KMP_", "LD_", "MALLOC_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_"),
    *("LC_", "LANG", "PYTHON", "PYTORCH_", "TORCH"),
)
MOST_BYTES = 2**20  # of a message, which holds a process's whole environment
LOAD_S = 300.0  # on a shared file system, torch may take minutes; then ranks load it themselves
IDLE_S = 600.0  # a server without processes for this long ends, because it holds memory


class ForkServer:
    """The driver's side of a server that loads `modules`, started through the command `within`."""

    def __init__(
        self, environment: Mapping[str, str], modules: Sequence[str], within: Sequence[str]
    ) -> None:
        # A packet is one whole message; sending one too long for the socket raises OSError.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            python = [sys.executable, "-P", "-u", "-m", __name__]
            self._process = subprocess.Popen(
                [*within, *python, str(theirs.fileno()), *modules],
                env=dict(environment),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # the terminal's Ctrl-C is for the driver
            )
        ours.settimeout(LOAD_S)
        self._connection = ours

    def start(
        self,
        function: Callable[..., int],
        arguments: Mapping[str, object],
        environment: Mapping[str, str],
    ) -> int:
        """The id of a new process that calls the function; OSError if the server has ended."""
        request = {
            "function": f"{function.__module__}:{function.__qualname__}",
            "arguments": dict(arguments),
            "folder": str(Path.cwd()),
            "environment": dict(environment),
        }
        self._connection.sendall(json.dumps(request).encode())
        answer = self._connection.recv(MOST_BYTES)
        if not answer:
            raise OSError("the server has ended")
        return int(answer)

    def ended(self) -> bool:
        """Whether the server has ended; always true in a fork of the driver, which has none."""
        return self._process.poll() is not None

    def close(self) -> None:
        """End the server; its processes continue."""
        self._connection.close()
        self._process.kill()
        self._process.wait()


_LOCK = threading.Lock()
# What each server was started with, and the server, by its modules and the command around it.
_servers: dict[tuple[str, ...], tuple[object, ForkServer]] = {}


def start(
    function: Callable[..., int],
    arguments: Mapping[str, object],
    environment: Mapping[str, str],
    *,
    modules: Sequence[str],
    within: Sequence[str] = (),
) -> int | None:
    """Call a function of a module in a fork of a server that has loaded `modules`; its process id.

    It gets the whole `environment`; its arguments travel as JSON, and it returns its exit code.
    `within` is a command that runs another, such as `unshare --net`. None if no process can be
    forked this way.
    """
    if sys.platform != "linux":
        return None
    read = {key: value for key, value in environment.items() if key.startswith(READ_ON_LOADING)}
    kind, key = (os.getpid(), read), (*within, *modules)
    with _LOCK:
        for _ in range(2):
            if key not in _servers or _servers[key][0] != kind:
                _end(key)
                _servers[key] = kind, ForkServer(environment, modules, within)
            try:
                return _servers[key][1].start(function, arguments, environment)
            except (OSError, ValueError):  # it was idle for too long, or killed
                _end(key)
    return None


def _end(key: tuple[str, ...]) -> None:
    _, server = _servers.pop(key, (None, None))
    # A fork of the driver, such as a loader's worker, must not end its parent's servers.
    if server is not None and not server.ended():
        server.close()


@atexit.register
def end() -> None:
    """End this process's servers."""
    for key in list(_servers):
        _end(key)


def main() -> None:
    """Load the modules, then fork a process for each request until the driver is gone."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    driver = os.getppid()
    with loading():  # forks share these pages as long as no collection writes to them
        for module in sys.argv[2:]:
            import_module(module)
            if os.getppid() != driver:  # killed: nobody will ask for a process
                return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # none stays as a zombie
    connection.settimeout(IDLE_S)
    while message := _request(connection):
        pid = fork(_begin, connection, json.loads(message))
        connection.sendall(str(pid).encode())


def _request(connection: socket.socket) -> bytes:
    """The next request; none if the driver is gone, or after IDLE_S without a process."""
    with suppress(ChildProcessError):
        while True:
            with suppress(TimeoutError):
                return connection.recv(MOST_BYTES)
            os.waitpid(-1, os.WNOHANG)  # raises unless there are some
    return b""


def _begin(connection: socket.socket, request: dict[str, Any]) -> int:
    """Carry out a request in the process forked for it."""
    connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # as the driver's TMPDIR may have changed
    code: int = pkgutil.resolve_name(request["function"])(**request["arguments"])
    return code


class Child:
    """A fork of this process, used like a subprocess.Popen."""

    def __init__(self, function: Callable[..., int | None], *arguments: object) -> None:
        self.pid = fork(function, *arguments)
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        code = self._wait(0)
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _wait(self, options: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, options)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


def redirect(path: Path) -> None:
    """Append this process's output to a file."""
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)


def fork(function: Callable[..., int | None], *arguments: object) -> int:
    """Fork a process that calls a function and exits with its result; returns the process id."""
    # What Python calls in the new process would swallow a KeyboardInterrupt: Ctrl-C waits for it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    def unmasked() -> int | None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return function(*arguments)

    pid = os.fork() or exit_with(unmasked)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid


if __name__ == "__main__":
    main()
