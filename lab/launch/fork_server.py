"""Processes that start with torch loaded, as forks of a process that has loaded it.

Loading torch takes longer than many runs train. A driver keeps one server that loads it once, and
each process requested from it is a fork of the server. Such processes share only what existed
before the first of them.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
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


class Process:
    """A process forked by the server: its id, and how it ended."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server

    def poll(self) -> int | None:
        """Its exit code; None while it runs, or if the server ended first."""
        return self._server.exit_code(self.pid)


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
        self._codes: dict[int, int] = {}
        self._lock = threading.Lock()

    def start(
        self,
        function: Callable[..., int],
        arguments: Mapping[str, object],
        environment: Mapping[str, str],
    ) -> Process:
        """Fork a process that calls the function; raises OSError if the server has ended."""
        request = {
            "function": [function.__module__, function.__qualname__],
            "arguments": dict(arguments),
            "folder": str(Path.cwd()),
            "environment": dict(environment),
            "umask": _umask(),
        }
        with self._lock:
            self._connection.sendall(json.dumps(request).encode())
            while "code" in (answer := self._read()):
                self._codes[answer["pid"]] = answer["code"]
            return Process(self, answer["pid"])

    def exit_code(self, pid: int) -> int | None:
        """How a process ended; None if that is not known."""
        with self._lock, suppress(OSError, ValueError), selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            while pid not in self._codes and selector.select(0):
                answer = self._read()
                self._codes[answer["pid"]] = answer["code"]
        return self._codes.get(pid)

    def ended(self) -> bool:
        """Whether the server has ended; always true in a fork of the driver, which has none."""
        return self._process.poll() is not None

    def close(self) -> None:
        """End the server; its processes continue."""
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
    """This process's umask; umask(2) cannot read it without changing it for all threads."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Umask:")), 8)


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
) -> Process | None:
    """Call a function of a module in a fork of a server that has loaded `modules`.

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
    # Signals from children that have ended wake the selector.
    woken, wake = socket.socketpair()
    for end_ in (woken, wake):
        end_.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: set[int] = set()
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while (events := selector.select(IDLE_S)) or children:
            for key, _ in events:
                if key.fileobj is woken:
                    woken.recv(MOST_BYTES)
                    for pid, code in _ended_children():
                        children.discard(pid)
                        _answer(connection, pid=pid, code=code)
                elif message := connection.recv(MOST_BYTES):
                    pid = fork(_begin, connection, json.loads(message))
                    children.add(pid)
                    _answer(connection, pid=pid)
                else:
                    return


def _ended_children() -> Iterator[tuple[int, int]]:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended[0], os.waitstatus_to_exitcode(ended[1])


def _answer(connection: socket.socket, **answer: int) -> None:
    with suppress(OSError):  # the driver is gone: the next event shows it
        connection.sendall(json.dumps(answer).encode())


def _begin(connection: socket.socket, request: dict[str, Any]) -> int:
    """Carry out a request in the process forked for it."""
    connection.close()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir(request["folder"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # as the driver's TMPDIR may have changed
    module, name = request["function"]
    code: int = getattr(import_module(module), name)(**request["arguments"])
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
    return os.fork() or exit_with(function, *arguments)


if __name__ == "__main__":
    main()
