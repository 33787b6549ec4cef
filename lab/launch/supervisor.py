"""The parent of each rank, which records how the rank ended if the rank could not do so itself."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType

from lab.launch.attempt import present

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
PR_SET_PDEATHSIG = 1  # prctl(2)
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
    parent, child = os.getpid(), os.fork()
    if child == 0:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        if os.getppid() != parent:
            os._exit(1)
        return

    def forward(number: int, frame: FrameType | None) -> None:
        os.kill(child, number)

    for number in FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        doing = bytes(_DOING).rstrip(b"\0").decode(errors="replace")
        attempt.observe_exit(here.global_rank, code, doing)
    if code < 0:
        with suppress(OSError):  # SIGKILL has no other handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(parent, -code)
    os._exit(abs(code))
