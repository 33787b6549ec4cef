"""Ranks that run a learner's code: within limits of time, memory, files, processes and network.

A supervisor in a network namespace of its own starts them and counts, by the kernel, what they send
each other. Where this machine permits no such namespace, the ranks still can open no socket, and
nothing is counted.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import machine
from lab.launch.attempt import Attempt, claim

START_S = 120.0  # until the ranks have met, on a busy machine
GRACE_S = 3.0  # of the other ranks, once one has failed
MEMORY = 2 << 30  # bytes that a rank may allocate
OUTPUT = 64 << 20  # bytes of its largest file
DESCRIPTORS = 512
_SPACES = ("unshare", "--user", "--map-root-user", "--net")
_UP, _SET_FLAGS = 0x1, 0x8914  # IFF_UP, SIOCSIFFLAGS


@dataclass(frozen=True)
class Ended:
    """How ranks ended: the archives that they left, by rank, and what stopped them.

    `stacks` are those of ranks that were ended by the time limit; `sent` are the bytes that the
    kernel carried between the ranks, None where nobody counted.
    """

    archives: list[bytes]
    stacks: list[str]
    outputs: list[str]
    codes: list[int]
    sent: int | None


def run_ranks(
    inputs: Sequence[bytes], *, folder: Path, limit_s: float, module: str = "lab.worker.rungs"
) -> Ended:
    """Run a module on one rank for each input, in a new folder, and return what they left."""
    lengths = [len(content) for content in inputs]
    order = {"folder": str(folder), "limit_s": limit_s, "module": module, "lengths": lengths}
    order["own_network"] = has_spaces()
    command = [sys.executable, "-m", "lab.launch.confined", json.dumps(order)]
    with claim(folder, Attempt(folder, "ranks"), devices=True):
        process = subprocess.Popen(
            [*(_SPACES if has_spaces() else ()), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            answer, errors = process.communicate(b"".join(inputs), timeout=2 * START_S + limit_s)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if process.returncode:
        raise OSError(f"the ranks could not be started: {errors.decode(errors='replace')[-500:]}")
    report = json.loads(answer)
    ranks = range(len(inputs))
    return Ended(
        archives=[_read(folder / f"rank{rank}.npz") for rank in ranks],
        stacks=[_read(folder / f"rank{rank}.stack").decode(errors="replace") for rank in ranks],
        outputs=[_read(folder / f"rank{rank}.log").decode(errors="replace") for rank in ranks],
        codes=report["codes"],
        sent=report["sent"],
    )


@functools.cache
def has_spaces() -> bool:
    """Whether this machine permits a network namespace to this user."""
    if shutil.which("unshare") is None:
        return False
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        trial = subprocess.run([*_SPACES, "true"], capture_output=True, timeout=20, check=False)
        return trial.returncode == 0
    return False


def line_in(stack: str, file: str) -> str:
    """Where a rank stood, as `line 12, in synchronize`; empty where it was not in that file."""
    # The main thread is the last; its innermost frame stands first.
    place = re.search(rf'File "{re.escape(file)}", line (\d+) in (\S+)', stack)
    return f"line {place[1]}, in {place[2]}" if place else ""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def set_limits() -> None:
    """In a new process, before its program starts: limits of what it may use."""
    for kind, most in (
        (resource.RLIMIT_DATA, MEMORY),
        (resource.RLIMIT_FSIZE, OUTPUT),
        (resource.RLIMIT_NOFILE, DESCRIPTORS),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP))


def _carried() -> int:
    rows = Path("/proc/net/dev").read_text().splitlines()
    row = next(row for row in rows if row.strip().startswith("lo:"))
    return int(row.split(":")[1].split()[0])


def supervise(order: dict[str, Any]) -> dict[str, Any]:
    """Start the ranks, each with its input alone, and end those that take too long."""
    if own_network := order["own_network"]:
        _loopback_up()
    folder, cores = Path(order["folder"]), machine.cores()
    contents = [sys.stdin.buffer.read(length) for length in order["lengths"]]
    processes = []
    for rank, content in enumerate(contents):
        core = cores[rank % len(cores)]
        with (folder / f"rank{rank}.log").open("wb") as log, tempfile.TemporaryFile() as given:
            given.write(content)
            given.seek(0)
            process = subprocess.Popen(
                [sys.executable, "-m", order["module"]],
                stdin=given,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=set_limits,
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            )
        os.sched_setaffinity(process.pid, {core})
        processes.append(process)
    end = time.monotonic() + START_S + order["limit_s"]
    while any(process.poll() is None for process in processes) and time.monotonic() < end:
        if any(process.poll() for process in processes):
            end = min(end, time.monotonic() + GRACE_S)  # the others may wait for this one
        time.sleep(0.02)
    for process in processes:
        process.kill()
    codes = [process.wait() for process in processes]
    return {"codes": codes, "sent": _carried() if own_network else None}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(supervise(json.loads(sys.argv[1]))))
