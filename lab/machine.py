"""This machine, without torch: usable cores, memory, GPUs, and running processes."""

from __future__ import annotations

import atexit
import functools
import gc
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import psutil

TRACKER = "multiprocessing.resource_tracker"
LEAVE_S = 1.0  # how long what a process started may take to see that it has ended
TRACKER_S = 5.0  # the longest wait for one, and for killed processes, to be gone
# Where control groups are, and which of them are this process's.
CGROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU as named by its driver; memory in bytes, None if not reported.

    `uuid` is its name in CUDA_VISIBLE_DEVICES.
    """

    name: str
    driver: str
    memory: int | None
    uuid: str = ""


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


@functools.cache  # asked for each run of a study
def _cpu_quota() -> float | None:
    """CPUs that this process may use at once; None without a limit."""
    return min(_cpu_quotas(), default=None)


def _cpu_quotas(mounted: Path = CGROUPS, own: Path = OWN_GROUPS) -> Iterator[float]:
    """Quotas of its control groups, in CPUs."""
    for group, is_v2 in _groups("cpu", mounted, own):
        names = ["cpu.max"] if is_v2 else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        with suppress(OSError, ValueError):  # "max" and -1 mean unlimited
            quota, period = " ".join((group / name).read_text() for name in names).split()
            if int(quota) > 0:
                yield int(quota) / int(period)


def cpu_model() -> str:
    """The processor's name as its vendor gives it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    return platform.processor() or platform.machine()


def memory_bytes() -> int:
    """Main memory in bytes: the machine's, or less where a container or a job is limited."""
    return min([int(psutil.virtual_memory().total), *_memory_limits()])


def _memory_limits(mounted: Path = CGROUPS, own: Path = OWN_GROUPS) -> Iterator[int]:
    """Limits of its control groups, in bytes."""
    for group, is_v2 in _groups("memory", mounted, own):
        with suppress(OSError, ValueError):  # "max" means unlimited
            yield int((group / ("memory.max" if is_v2 else "memory.limit_in_bytes")).read_text())


def _groups(controller: str, mounted: Path, own: Path) -> Iterator[tuple[Path, bool]]:
    """This process's control groups, those above them, and whether they are of cgroup v2."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, place in lines:
        if controllers and controller not in controllers.split(","):
            continue
        root = mounted / (controller if controllers else "")
        group = root / place.lstrip("/")  # a container may show its own group as the root only
        for folder in (group, *group.parents[: len(group.parts) - len(root.parts)]):
            yield folder, not controllers


def interfaces() -> tuple[str, ...]:
    """The names of the machine's network interfaces."""
    return tuple(psutil.net_if_addrs())


@functools.cache
def gpus() -> tuple[Gpu, ...]:
    """The NVIDIA GPUs visible to this process; empty if there is no driver.

    Numbers in CUDA_VISIBLE_DEVICES are taken in the driver's order; CUDA itself counts GPUs of
    different models in this order only with CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    rows = nvidia_smi("--query-gpu=uuid,name,driver_version,memory.total", "--format=csv,noheader")
    # For a GPU that fell off the bus the driver prints a message; CUDA does not count it either.
    devices = dict(_gpu(row) for row in rows if row.count(",") == 3)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not devices:
        return tuple(devices.values())
    chosen = []
    slices = _slices(devices) if "MIG-" in visible else {}
    for name in visible.split(","):
        gpu = _visible(name.strip(), devices, slices)
        if gpu is None:  # CUDA also ignores the first unknown one and all after it
            break
        chosen.append(gpu)
    return tuple(chosen)


def nvidia_smi(*arguments: str) -> list[str]:
    """The lines that nvidia-smi prints; none if it is missing, fails or does not answer."""
    program = shutil.which("nvidia-smi")
    try:
        output = subprocess.run(
            [program or "", *arguments], capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line for line in output.splitlines() if line.strip()]


def _gpu(row: str) -> tuple[str, Gpu]:
    """A GPU by its UUID, from a row such as `GPU-8f2a..., NVIDIA H100, 570.86, 81559 MiB`."""
    uuid, name, driver, memory = (cell.strip() for cell in row.split(","))
    mib = re.fullmatch(r"(\d+) MiB", memory)  # else a word such as [N/A] if it is the host's
    return uuid, Gpu(name, driver, int(mib[1]) * 2**20 if mib else None, uuid)


def _slices(devices: dict[str, Gpu]) -> dict[str, Gpu]:
    """The slices of GPUs (MIG) by their UUIDs, from the list that `nvidia-smi -L` prints."""
    slices, whole = {}, next(iter(devices.values()))
    for line in nvidia_smi("-L"):
        match = re.match(r"\s*(GPU \d+:|MIG (\S+)).*\(UUID: ([^)]+)\)", line)
        if match and match[2]:
            slices[match[3]] = Gpu(f"{whole.name} MIG {match[2]}", whole.driver, None, match[3])
        elif match:
            whole = devices.get(match[3], whole)
    return slices


def _visible(name: str, devices: dict[str, Gpu], slices: dict[str, Gpu]) -> Gpu | None:
    """The GPU of one entry of CUDA_VISIBLE_DEVICES, a number or the beginning of a UUID."""
    if name.isdecimal():
        return dict(enumerate(devices.values())).get(int(name))
    if not name.startswith(("GPU-", "MIG-")):
        return None
    matches = [gpu for uuid, gpu in (devices | slices).items() if uuid.startswith(name)]
    return matches[0] if len(matches) == 1 else None


def began(pid: int) -> float:
    """When a process began, in s of a local clock; distinguishes it from a later one with its id.

    On Linux this counts from the last boot, so setting the time of day has no effect (proc(5)).
    Raises psutil.NoSuchProcess.
    """
    if sys.platform != "linux":
        return float(psutil.Process(pid).create_time())
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        raise psutil.NoSuchProcess(pid) from None
    # The second field, the name in brackets, may itself contain brackets; `starttime` is the 22nd.
    return int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")


def age() -> float:
    """The age of this process, in s."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.time()
    return now - began(os.getpid())


def is_running(pid: int, since: float) -> bool:
    """Whether the process with this id and start time still runs; a zombie does not."""
    try:
        zombie = psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        return abs(began(pid) - since) < 0.05 and not zombie
    except psutil.Error:
        return False


def end_processes(processes: Sequence[psutil.Process], *, patience_s: float) -> list[str]:
    """Kill processes unless they end by themselves in time; returns the commands of those killed.

    A resource tracker of multiprocessing is left to free what the others shared, such as memory,
    and then ends.
    """
    late = _await_end(processes, patience_s)
    killed = {process: command for process in late if (command := _command(process))}
    for process in [one for one, command in killed.items() if TRACKER in command]:
        del killed[process]
    for process in killed:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _await_end(late, TRACKER_S)
    return list(killed.values())


def end_left(processes: Sequence[psutil.Process], *, by: str = "the rank") -> None:
    """End processes that this one, or `by`, left running, and say so in the log."""
    if ended := end_processes(processes, patience_s=LEAVE_S):
        own = " ".join(psutil.Process().cmdline())
        names = ["a fork of it" if command == own else command[:80] for command in ended]
        sys.stderr.write(f"lab: {by} left processes running, now ended: {'; '.join(names)}\n")
        sys.stderr.flush()


def _await_end(processes: Sequence[psutil.Process], patience_s: float) -> list[psutil.Process]:
    """Those that still run after this many seconds, if any."""
    deadline = time.monotonic() + patience_s
    while (alive := [one for one in processes if _command(one)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive


def _command(process: psutil.Process) -> str:
    """A process's command line; empty once it has ended, even if as a zombie."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@contextmanager
def loading() -> Iterator[None]:
    """Import modules without garbage collections, and exempt what they leave from later ones.

    Collections take an eighth of the time in which torch is imported, and find little.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class Interrupted(KeyboardInterrupt):
    """Raised by the handler of a signal, whose number is the argument."""


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Handle a signal by raising Interrupted, which code that raises KeyboardInterrupt does not."""
    raise Interrupted(number)


def exit_with(function: Callable[..., int | None], *arguments: object) -> NoReturn:
    """Call the function, and end this process with its result as `sys.exit` would.

    But the interpreter is not finalized: a gloo thread still waiting for its lock would then be
    ended by Python 3.11 and 3.12 where C++ permits no thread to end, and the process would abort.
    After a KeyboardInterrupt it dies of a signal, for its parent to see.
    """
    code: Any = 1
    number = 0
    try:
        code = function(*arguments)
    except SystemExit as exit_:
        code = exit_.code
    except KeyboardInterrupt as caught:
        traceback.print_exc()
        number = caught.args[0] if isinstance(caught, Interrupted) else signal.SIGINT
    except BaseException:  # noqa: BLE001 whatever it is, nothing else of the process may run after it
        traceback.print_exc()
    with suppress(Exception):
        # As multiprocessing ends its processes: first the threads, then the handlers.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if number:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(code if isinstance(code, int) else int(code is not None))
