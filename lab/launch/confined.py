"""Ranks that run a learner's code within limits on time, memory, files, processes and network.

A supervisor in its own network namespace starts them and reads from kernel counters how much they
send each other. If this machine permits no such namespace, the ranks still cannot open a socket,
and nothing is counted. All are forks of a server that has loaded torch and runs no learner's code.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import re
import resource
import signal
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from lab import machine
from lab.files import private_folder, read_json, write_atomically
from lab.launch import fork_server
from lab.launch.attempt import Attempt, claim
from lab.launch.netem import UNSHARE, trial_failure

LOADED = ("torch", "torch._dynamo", "lab.worker.rungs", __name__)
VARIABLES = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
REPORT, LOG = "report.json", "supervisor.log"
START_S = 120.0  # until the ranks have connected, on a busy machine
GRACE_S = 3.0  # for the other ranks, once one has failed or is late
MEMORY = 2 << 30  # most bytes that a rank may allocate
OUTPUT = 64 << 20  # bytes of its largest file
DESCRIPTORS = 512
_UP, _SET_FLAGS = 0x1, 0x8914  # IFF_UP, SIOCSIFFLAGS


@dataclass(frozen=True)
class Ended:
    """How ranks ended: the archives that they left, by rank, and what stopped them.

    `stacks` are those of ranks ended by the time limit; `sent` is the number of bytes that the
    kernel carried between the ranks, None if they were not counted.
    """

    archives: list[bytes]
    stacks: list[str]
    codes: list[int]
    sent: int | None


def run_ranks(inputs: Sequence[bytes], *, folder: Path, limit_s: float) -> Ended:
    """Run `lab.worker.rungs` with one rank per input, in a new folder private to this user.

    Returns what the ranks left. Raises OSError if they could not be started.
    """
    ranks = range(len(inputs))
    for rank, content in enumerate(inputs):
        _input(folder, rank).write_bytes(content)
    own_network = has_spaces()
    arguments = {"folder": str(folder), "ranks": len(inputs), "limit_s": limit_s}
    attempt = Attempt(folder, "ranks")
    private_folder(attempt.log)
    with claim(attempt, names=None):
        supervisor = fork_server.start(
            supervise,
            arguments | {"own_network": own_network},
            os.environ | VARIABLES,
            modules=LOADED,
            within=UNSHARE if own_network else (),
        )
        if supervisor is None:
            reason = "this machine forks no processes for them"
            raise OSError(f"the ranks could not be started: {reason}")
        with contextlib.suppress(psutil.NoSuchProcess):
            _end_within(psutil.Process(supervisor), 2 * START_S + limit_s)
    report = read_json(folder / REPORT)
    if report is None:
        reason = _read(folder / LOG).decode(errors="replace")[-500:]
        raise OSError(f"the ranks could not be started: {reason or 'their supervisor ended'}")
    return Ended(
        archives=[_read(folder / f"rank{rank}.npz") for rank in ranks],
        stacks=[_read(_stack(folder, rank)).decode(errors="replace") for rank in ranks],
        codes=report["codes"],
        sent=report["sent"],
    )


def _end_within(leader: psutil.Process, limit_s: float) -> None:
    """Wait for a process, and kill its group if it takes too long or this is interrupted."""
    try:
        with contextlib.suppress(psutil.TimeoutExpired):
            leader.wait(limit_s)
    finally:
        if leader.is_running():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader.pid, signal.SIGKILL)


def _input(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.input"


def _stack(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.stack"


@functools.cache
def has_spaces() -> bool:
    """Whether this machine permits this user to create a network namespace."""
    return not trial_failure([*UNSHARE, "true"])


def line_in(stack: str, file: str) -> tuple[int, str] | None:
    """A rank's position in a file: line and function; None if it was elsewhere."""
    # The main thread comes last; its innermost frame comes first.
    place = re.search(rf'File "{re.escape(file)}", line (\d+) in (\S+)', stack)
    return (int(place[1]), place[2]) if place else None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def set_limits() -> None:
    """Limit the resources of a new process before its program starts."""
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
    return int(psutil.net_io_counters(pernic=True, nowrap=False)["lo"].bytes_recv)


def supervise(folder: str, *, ranks: int, limit_s: float, own_network: bool) -> int:
    """Start the ranks, each with only its own input, and end those that take too long."""
    place = Path(folder)
    fork_server.redirect(place / LOG)
    if own_network:
        _loopback_up()
    before = _carried() if own_network else 0
    # No rank can read another's: only open descriptors remain, and each rank closes all others.
    inputs = [os.open(_input(place, rank), os.O_RDONLY) for rank in range(ranks)]
    for rank in range(ranks):
        _input(place, rank).unlink()
    stacks = [_stack(place, rank) for rank in range(ranks)]
    children = [fork_server.Child(_be_rank, place, rank, inputs[rank]) for rank in range(ranks)]
    end = time.monotonic() + START_S + limit_s
    while any(child.poll() is None for child in children) and time.monotonic() < end:
        # A rank leaves its stack when its time is up.
        if any(child.poll() for child in children) or any(map(_read, stacks)):
            end = min(end, time.monotonic() + GRACE_S)  # the others may be waiting for this one
        time.sleep(0.02)
    for child in children:
        child.send_signal(signal.SIGKILL)
    codes = [child.wait() for child in children]
    sent = _carried() - before if own_network else None
    write_atomically(place / REPORT, json.dumps({"codes": codes, "sent": sent}).encode())
    return 0


def _be_rank(folder: Path, rank: int, descriptor: int) -> None:
    from lab.worker import rungs

    cores = machine.cores()
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    os.dup2(descriptor, 0)
    fork_server.redirect(folder / f"rank{rank}.log")
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    set_limits()
    rungs.main()
