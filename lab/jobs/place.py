"""Where one rank of a job runs: all that the worker is told about the machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lab.emulation.profile import Emulated


class Progress(Protocol):
    """What the worker tells from time to time: a phase ("data", "warm-up", "measuring", "checkpoint", "evaluating"), steps
    done, steps in all, and while it trains this rank's loss, where that costs nothing to know.
    """

    def __call__(self, phase: str, step: int, steps: int, loss: float | None = None, /) -> None:
        """Tell it."""


@dataclass(frozen=True)
class Place:
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
    checkpoint_every_s: float | None = None  # how often the training's state is saved; None for never

    @property
    def start_timeout_s(self) -> float:
        """Patience until the first step, in s: torch may come from a slow file system, and ranks do not start together."""
        return max(self.timeout_s, 600.0)
