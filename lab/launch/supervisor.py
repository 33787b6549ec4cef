"""The parent of each rank: it records an end that the rank could not report, and leaves nothing.

Processes that the rank started and left running are ended, as they would disturb the next job.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType

import psutil

from lab.launch.attempt import present
from lab.machine import LEAVE_S, end_left

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_DOING = mmap.mmap(-1, 128)  # the rank's phase, in memory shared with its parent


def note(phase: str) -> None:
    """Tell this rank's parent what the rank is doing, at the cost of one copy in memory."""
    _DOING[:] = phase.encode()[: len(_DOING)].ljust(len(_DOING), b"\0")


def supervise(folder: Path) -> None:
    """Return in a child, which is a rank of the job in `folder`; the parent ends as the child does.

    Both end together, whichever is killed. Must be called before the process starts threads.
    """
    here, attempt = present(folder)
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    # Whatever the rank starts becomes a child of this process once its own parent has ended.
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    parent, child = os.getpid(), os.fork()
    if child == 0:
        _prctl(PR_SET_CHILD_SUBREAPER, 0)
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        if os.getppid() != parent:
            os._exit(1)
        return

    def forward(number: int, frame: FrameType | None) -> None:
        os.kill(child, number)

    for number in FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    code = _wait(child)
    if code:
        doing = bytes(_DOING).rstrip(b"\0").decode(errors="replace")
        try:
            attempt.observe_exit(here.global_rank, code, doing)
        except OSError:
            _end_job()
    end_left(psutil.Process().children(recursive=True), patience_s=LEAVE_S)
    if code < 0:
        with suppress(OSError):  # SIGKILL has no other handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(parent, -code)
    os._exit(abs(code))


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def _wait(child: int) -> int:
    """The exit code of a child; others that end meanwhile do not stay as zombies."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == child:
            return os.waitstatus_to_exitcode(status)


def _end_job() -> None:
    """End all ranks, as the others would wait for one whose end cannot be told: the disk is full.

    Slurm itself does so; on this machine the ranks' controller does if it is interrupted.
    """
    if os.environ.get("SUBMITIT_EXECUTOR") == "local":
        os.kill(os.getppid(), signal.SIGINT)
