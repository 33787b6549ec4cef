"""Which process is meant: its id, and when it began by a clock that nobody sets."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil


def began(pid: int) -> float:
    """When a process began, in s of a clock of this machine; tells it from a later one with its id.

    On Linux that is since the last boot, which does not change when the time of day is set (proc(5)). Raises
    psutil.NoSuchProcess where there is none.
    """
    if sys.platform != "linux":
        return float(psutil.Process(pid).create_time())
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        raise psutil.NoSuchProcess(pid) from None
    # The name stands in brackets and may hold any of them; after it begins the third field, of which we want the 22nd.
    return int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")


def age() -> float:
    """How long this process has lived, in s."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.time()
    return now - began(os.getpid())


def is_running(pid: int, since: float) -> bool:
    """Whether the process that had this id and beginning still runs; a zombie does not."""
    try:
        return abs(began(pid) - since) < 0.05 and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
