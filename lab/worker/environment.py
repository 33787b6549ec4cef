"""Where and with what a run was measured, read inside the job."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import platform
import resource
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from lab.machine import cpu_model, gpus
from lab.records.provenance import git_state
from lab.records.schema import Environment
from lab.worker.context import RankContext
from lab.worker.data.dataset import Dataset


def environment(
    place: RankContext,
    *,
    device: torch.device,
    hosts: Sequence[str],
    cores: Sequence[Sequence[int]],
    foreign_cpu: float | None,
    dataset: Dataset | None = None,
    parameters: int | None = None,
    devices: int | None = None,
) -> Environment:
    """The environment as rank 0 sees it, with the hosts and the cores of all ranks.

    `devices` are those of the whole run, one per rank where it is None; data and parameters are given where there are any.
    """
    cuda = device.type == "cuda"
    commit, dirty = git_state()
    return Environment(
        cluster=place.cluster,
        hosts=list(hosts),
        device=device.type,
        backend=None if place.world_size == 1 else backend(place),
        cpu=cpu_model(),
        cpu_count=os.cpu_count() or 1,
        cpus_granted=[list(granted) for granted in cores],
        threads_per_rank=torch.get_num_threads(),
        gpu=torch.cuda.get_device_name(device) if cuda else None,
        gpu_count=(devices or place.world_size) if cuda else 0,
        driver=next((gpu.driver for gpu in gpus()), None) if cuda else None,
        versions=versions_of(cuda=cuda),
        git_commit=commit,
        git_dirty=dirty,
        slurm_job_id=os.environ.get("SLURM_JOB_ID"),
        job_id=place.job_id,
        data_sha256=dataset.sha256 if dataset else None,
        data_description=dataset.description if dataset else None,
        train_samples=len(dataset.train) if dataset and dataset.train.epochs else None,
        parameters=parameters,
        foreign_cpu=foreign_cpu,
        emulated=place.emulated,
    )


def backend(place: RankContext) -> str:
    """What carries the collectives of this rank: the profile's choice, else what fits its device."""
    if place.backend == "auto":
        return "nccl" if place.device == "cuda" else "gloo"
    return place.backend


def versions_of(*, cuda: bool) -> dict[str, str]:
    """Versions of what a measurement depends on, by name."""
    versions = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }
    try:
        versions["lab"] = importlib.metadata.version("scaling-lab")
    except importlib.metadata.PackageNotFoundError:
        versions["lab"] = "unknown"
    if cuda:
        versions["cuda"] = str(torch.version.cuda)
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return versions


class StateBytes(NamedTuple):
    """Bytes that a rank holds at every moment of a step."""

    parameters: int
    optimizer: int  # its state


def reset_peak(device: torch.device) -> None:
    """Forget earlier peaks, such as that of building a tokenizer, where the system lets us."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # gives freed memory back to the system
        Path("/proc/self/clear_refs").write_text(
            "5"
        )  # proc(5): resets the peak of the resident set


def peak_memory(device: torch.device, devices: int = 1) -> list[int]:
    """Bytes: the allocator's peak on CUDA, on each device where the process drives several; the resident set's on CPU."""
    if device.type == "cuda":
        numbers = [device.index] if devices == 1 else range(devices)
        return [int(torch.cuda.max_memory_allocated(number)) for number in numbers]
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2)
    return [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit]


def state_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> StateBytes:
    """What this rank holds of the parameters and of the optimizer's state, its shares where they are divided."""
    state = [
        value
        for values in optimizer.state.values()
        for value in values.values()
        if isinstance(value, torch.Tensor)
    ]
    return StateBytes(sum(map(_bytes, model.parameters())), sum(map(_bytes, state)))


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.to_local().nbytes if isinstance(tensor, DTensor) else tensor.nbytes)


@dataclass(frozen=True)
class CpuUse:
    """Seconds between two moments: wall clock, CPU time of this process, busy time of each of its cores."""

    wall: float
    own: float
    busy: dict[int, float]  # empty where the system does not tell

    def since(self, earlier: CpuUse) -> CpuUse:
        """What was used since `earlier`."""
        busy = {
            core: seconds - earlier.busy[core]
            for core, seconds in self.busy.items()
            if core in earlier.busy
        }
        return CpuUse(self.wall - earlier.wall, self.own - earlier.own, busy)


def cpu_use(cores: Sequence[int]) -> CpuUse:
    """Readings as of now, each since a moment of its own: only differences mean anything."""
    own = os.times()
    return CpuUse(
        time.perf_counter(),
        own.user + own.system + own.children_user + own.children_system,
        _busy(cores),
    )


def background_cpu(uses: Iterable[tuple[str, CpuUse]]) -> float | None:
    """Cores' worth of others: busy time of the ranks' cores less the ranks' own, over wall time; None where not known.

    Takes each rank's host and use. A core that several ranks share counts once.
    """
    uses = list(uses)
    if not all(use.busy and use.wall > 0 for _, use in uses):
        return None
    readings: dict[tuple[str, int], list[float]] = {}
    for host, use in uses:
        for core, seconds in use.busy.items():
            readings.setdefault((host, core), []).append(seconds)
    busy = sum(fmean(seconds) for seconds in readings.values())
    own = sum(use.own for _, use in uses)
    return max(busy - own, 0.0) / fmean(use.wall for _, use in uses)


def _busy(cores: Sequence[int]) -> dict[int, float]:
    """Seconds that each core was not idle, proc(5); guests are part of user time already."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return {}
    tick = os.sysconf("SC_CLK_TCK")
    found = {}
    for line in lines:
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            user, nice, system, _idle, _iowait, irq, softirq, steal = (
                int(field) for field in fields[:8]
            )
            found[int(name[3:])] = (user + nice + system + irq + softirq + steal) / tick
    return found
