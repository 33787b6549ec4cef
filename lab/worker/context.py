"""Where a rank runs and what it returns; importable before torch, whose threads it determines."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lab.config.emulation import Emulated
from lab.errors import LabError
from lab.files import read_own
from lab.records import schema


class Progress(Protocol):
    """Called with a phase such as "measuring", steps done, all steps, this rank's loss or None."""

    def __call__(self, phase: str, step: int, steps: int, loss: float | None = None, /) -> None:
        """Report progress."""


# The phase after the last step of a script, until the script has ended.
ENDING = "ending the script"


def silent(phase: str, step: int, steps: int, loss: float | None = None, /) -> None:
    """Report no progress."""


@dataclass(frozen=True)
class RankContext:
    """One rank's share of a cluster, decided before torch is imported."""

    rank: int
    world_size: int
    local_rank: int
    device: str  # "cpu" or "cuda"
    cores: tuple[int, ...]  # its affinity is already set to them
    threads: int  # intra-op threads of torch
    cluster: str  # the profile's name
    rendezvous: Path  # rank 0 creates this file with its address; the others wait for it
    host: str = "127.0.0.1"  # the address at which other ranks reach this one
    nodes: int = 1  # of the job
    timeout_s: float = 300.0  # a collective that takes longer is a hang
    job_id: str | None = None
    emulated: Emulated | None = None  # what is emulated on this rank
    cluster_file: str | None = None  # the profile's, unless its name finds it
    shared_host: bool = False  # other jobs may run beside this one, on other devices
    backend: str = "auto"  # "gloo", "nccl", or "auto", chosen by the device
    checkpoint_every_s: float | None = None  # None for never
    waited_s: float = 0.0  # since its start, for other jobs on the same devices

    @property
    def interface(self) -> str | None:
        """The network interface that has the address of this rank, if Linux knows it."""
        import psutil

        if sys.platform != "linux":
            return None
        for name, addresses in psutil.net_if_addrs().items():
            if any(each.address == self.host for each in addresses):
                return str(name)
        return None

    @property
    def start_timeout_s(self) -> float:
        """Time limit for the first step, in s: torch on a shared disk may take minutes to load."""
        return max(self.timeout_s, 600.0)


def from_rank_0(path: Path, what: str, patience_s: float) -> bytes:
    """The content of a file that rank 0 writes; LabError if it does not appear in time."""
    end = time.monotonic() + patience_s
    while not path.exists():
        if time.monotonic() > end:
            raise LabError(
                f"Timed out waiting {patience_s:.0f} s for {what} of rank 0 in {path}: "
                "did it start?"
            )
        time.sleep(0.02)
        if path.parent.is_dir():
            list(path.parent.iterdir())  # makes NFS query the server instead of its cache
    return read_own(path)


_notices: list[int] = []  # signals of preemption that have arrived


def listen_for_preemption() -> None:
    """Note the signals with which Slurm announces the end of a job, and continue until killed."""
    # A job that ended by itself would count as failed and not be requeued.
    for number in (signal.SIGUSR2, signal.SIGTERM):
        # Nothing else, as this may interrupt any line: all ranks save their state between steps.
        signal.signal(number, lambda number, _: _notices.append(number))


def preemption_noticed() -> bool:
    """Whether such a signal has arrived."""
    return bool(_notices)


@dataclass(frozen=True)
class Measurement:
    """All parts of a record that are measured inside the job."""

    memory: schema.Memory
    environment: schema.Environment
    checks: dict[str, bool] = field(default_factory=dict)
    timing: schema.Timing | None = None
    communication: schema.Communication | None = None
    quality: schema.Quality | None = None
    gradients: list[schema.Gradient] | None = None
    inference: schema.Inference | None = None
    script: schema.Observed | None = None
    trace: schema.Trace | None = None


# Records what its argument measures, or its error, like the end of a job; returns the exit status.
Conclude = Callable[[Callable[[], Measurement | None]], int]
