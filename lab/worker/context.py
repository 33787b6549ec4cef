"""Where one rank of a job runs: all that the worker is told about the machine."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

from lab.config.emulation import Emulated
from lab.records.inference import Inference
from lab.records.schema import Communication, Environment, Gradient, Memory, Quality, Timing


class Progress(Protocol):
    """What the worker tells from time to time: a phase ("data", "warm-up", "measuring", "checkpoint", "evaluating"), steps
    done, steps in all, and while it trains this rank's loss, where that costs nothing to know.
    """

    def __call__(self, phase: str, step: int, steps: int, loss: float | None = None, /) -> None:
        """Tell it."""


@dataclass(frozen=True)
class RankContext:
    """One rank's share of a cluster, decided before torch is imported."""

    rank: int
    world_size: int
    local_rank: int
    device: str  # "cpu" or "cuda"
    cores: tuple[int, ...]  # the cores that this rank may use; its affinity is already set to them
    threads: int  # intra-op threads of torch
    cluster: str  # the profile's name
    rendezvous: Path  # a file that does not exist yet; rank 0 publishes its address there, the others wait for it
    host: str = "127.0.0.1"  # the address under which the others reach rank 0
    timeout_s: float = 300.0  # a collective that takes longer is a hang
    job_id: str | None = None
    emulated: Emulated | None = None  # what of this rank is not real
    backend: str = "auto"  # "gloo", "nccl", or what fits the device
    checkpoint_every_s: float | None = (
        None  # how often the training's state is saved; None for never
    )

    @property
    def start_timeout_s(self) -> float:
        """Patience until the first step, in s: torch may come from a slow file system, and ranks do not start together."""
        return max(self.timeout_s, 600.0)


_given = False


def listen_for_preemption() -> None:
    """Take the signals by which Slurm gives notice; whoever saves its state does so then, and works on until it is killed.

    A job that ended by itself would count as one that failed, and not be put back into the queue.
    """
    for number in (signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, _note)


def preemption_noticed() -> bool:
    """Whether notice was given."""
    return _given


def _note(signum: int, frame: FrameType | None) -> None:
    global _given
    _given = True


@dataclass(frozen=True)
class Measurement:
    """All of a record that is measured inside the job."""

    timing: Timing | None
    communication: Communication | None
    memory: Memory
    quality: Quality | None
    environment: Environment
    checks: dict[str, bool]
    gradients: list[Gradient] | None = None
    inference: Inference | None = None
