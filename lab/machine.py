"""This machine without torch: the cores that may be used, memory, GPUs, and which processes run."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU as its driver names it; memory in bytes."""

    name: str
    driver: str
    memory: int


def allowed_cpus() -> tuple[int, ...]:
    """The logical CPUs on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def cores() -> tuple[int, ...]:
    """One logical CPU of each physical core that this process may use, up to its CPU quota.

    Two ranks on the two threads of one core would slow each other and look like bad scaling.
    """
    by_core: dict[frozenset[int], int] = {}
    for cpu in allowed_cpus():
        by_core.setdefault(_siblings(cpu), cpu)
    quota = _cpu_quota()
    return tuple(by_core.values())[: max(int(quota), 1) if quota else None]


def _siblings(cpu: int) -> frozenset[int]:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        ranges = [part.split("-") for part in path.read_text().strip().split(",")]
    except OSError:
        return frozenset({cpu})
    return frozenset(cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1))


def _cpu_quota() -> float | None:
    """CPUs that the control group may use at once (cgroup v2, then v1); None without a limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            base = Path("/sys/fs/cgroup/cpu")
            quota, period = (
                (base / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period")
            )
        except OSError:
            return None
    return None if quota in {"max", "-1"} else int(quota) / int(period)


def cpu_model() -> str:
    """The processor's name as its vendor gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    except OSError:
        pass
    return platform.processor() or platform.machine()


def memory_bytes() -> int:
    """Main memory of the machine in bytes."""
    return int(psutil.virtual_memory().total)


@functools.cache
def gpus() -> tuple[Gpu, ...]:
    """The NVIDIA GPUs that this process may see; empty where there is no driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    fields = "--query-gpu=name,driver_version,memory.total"
    query = [program, fields, "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(
            query, capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    rows = [map(str.strip, line.split(",")) for line in output.splitlines() if line.strip()]
    devices = tuple(Gpu(name, driver, int(float(mib)) * 2**20) for name, driver, mib in rows)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return devices
    return devices[: len([index for index in visible.split(",") if index.strip()])]


def began(pid: int) -> float:
    """When a process began, in s of a clock of this machine; tells it from a later one with its id.

    On Linux since the last boot, which does not change when the time of day is set (proc(5)).
    Raises psutil.NoSuchProcess.
    """
    if sys.platform != "linux":
        return float(psutil.Process(pid).create_time())
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        raise psutil.NoSuchProcess(pid) from None
    # The second field, the name in brackets, may hold brackets itself; `starttime` is the 22nd.
    return int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")


def age() -> float:
    """How long this process has lived, in s."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.time()
    return now - began(os.getpid())


def is_running(pid: int, since: float) -> bool:
    """Whether the process that had this id and beginning still runs; a zombie does not."""
    try:
        zombie = psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        return abs(began(pid) - since) < 0.05 and not zombie
    except psutil.Error:
        return False
