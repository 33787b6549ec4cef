"""Processes that begin with torch loaded: forks of a process that has loaded it.

Loading torch takes longer than many a run trains. A driver keeps one server that loads it once, and
each process that it asks for is a fork of the server. Such processes share nothing but what was
there before the first of them.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from lab.machine import exit_with

# Variables that a library may read while it is loaded: where they differ, another server starts.
READ_ON_LOADING = (
    *("ATEN_", "DNNL_", "GOMP_", "KMP_", "LD_", "MALLOC_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_"),
    *("LC_", "LANG", "PYTHON", "PYTORCH_", "TORCH"),
)
MOST_BYTES = 2**20  # of a message: a process's whole environment
LOAD_S = 300.0  # of a shared file system, torch may take minutes; then ranks try it themselves
IDLE_S = 600.0  # a server without processes for so long ends, as it holds memory


class Process:
    """A process that the server forked: its id, and how it ended."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server

    def poll(self) -> int | None:
        """Its exit code; None while it runs, and where the server ended before it."""
        return self._server.exit_code(self.pid)


class ForkServer:
    """The driver's side of a server that loads `modules`, started by the command `within`."""

    def __init__(
        self, environment: Mapping[str, str], modules: Sequence[str], within: Sequence[str]
    ) -> None:
        # A packet is one whole message; one too long for the socket raises OSError.
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
                start_new_session=True,  # the terminal's Ctrl-C is the driver's
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
        """Fork a process that calls the function; raises OSError where the server has ended."""
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
        """How a process ended; None where that is not known."""
        with self._lock, suppress(OSError, ValueError), selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            while pid not in self._codes and selector.select(0):
                answer = self._read()
                self._codes[answer["pid"]] = answer["code"]
        return self._codes.get(pid)

    def ended(self) -> bool:
        """Whether the server has ended; always so in a fork of the driver, which has none."""
        return self._process.poll() is not None

    def close(self) -> None:
        """End the server; its processes go on."""
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
# By what they load and the command that starts them: what they were started with, and the server.
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
    `within` is a command that runs another, such as `unshare --net`. None where nothing can be
    forked so.
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
            except (OSError, ValueError):  # it was idle for long, or killed
                _end(key)
    return None


def _end(key: tuple[str, ...]) -> None:
    _, server = _servers.pop(key, (None, None))
    # A fork of the driver, such as a loader's worker, ends no server of its parent's.
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
    for module in sys.argv[2:]:
        import_module(module)
    # Signals of children that ended wake the selector.
    woken, wake = socket.socketpair()
    for end_ in (woken, wake):
        end_.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    gc.collect()
    gc.freeze()  # forks share these pages for as long as no collection writes to them
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
    with suppress(OSError):  # the driver has gone: the next event says so
        connection.sendall(json.dumps(answer).encode())


def _begin(connection: socket.socket, request: dict[str, Any]) -> int:
    """Do what a request asks for, in the process forked for it."""
    connection.close()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir(request["folder"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # as the driver's TMPDIR may be another by now
    module, name = request["function"]
    code: int = getattr(import_module(module), name)(**request["arguments"])
    return code


class Child:
    """A fork of this process, used as a subprocess.Popen is."""

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
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _wait(self, options: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, options)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


def redirect(path: Path) -> None:
    """Let this process write what it prints to the end of a file."""
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)


def fork(function: Callable[..., int | None], *arguments: object) -> int:
    """The id of a fork of this process that calls a function and exits with what it returns."""
    return os.fork() or exit_with(function, *arguments)


if __name__ == "__main__":
    main()
