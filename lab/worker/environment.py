"""Where and with what a run was measured, read inside the job."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence

import numpy as np
import torch

from lab.machine import cpu_model, gpus
from lab.place import Place
from lab.records import Environment
from lab.snapshot import git_state
from lab.worker.data.tokens import Tokens


def environment(
    place: Place,
    *,
    device: torch.device,
    tokens: Tokens,
    parameters: int,
    hosts: Sequence[str],
    cores: Sequence[Sequence[int]],
    foreign_cpu: float | None,
) -> Environment:
    """The environment as rank 0 sees it, with the hosts and the cores of all ranks."""
    cuda = device.type == "cuda"
    commit, dirty = git_state()
    return Environment(
        cluster=place.cluster,
        hosts=list(hosts),
        device=device.type,
        backend=None if place.world_size == 1 else backend(device),
        cpu=cpu_model(),
        cpu_count=os.cpu_count() or 1,
        cpus_granted=[list(granted) for granted in cores],
        threads_per_rank=torch.get_num_threads(),
        gpu=torch.cuda.get_device_name(device) if cuda else None,
        gpu_count=place.world_size if cuda else 0,
        driver=next((gpu.driver for gpu in gpus()), None) if cuda else None,
        versions=versions_of(cuda=cuda),
        git_commit=commit,
        git_dirty=dirty,
        slurm_job_id=os.environ.get("SLURM_JOB_ID"),
        job_id=place.job_id,
        data_sha256=tokens.sha256,
        data_description=tokens.description,
        parameters=parameters,
        foreign_cpu=foreign_cpu,
    )


def backend(device: torch.device) -> str:
    """What carries collectives between devices of this kind."""
    return "nccl" if device.type == "cuda" else "gloo"


def versions_of(*, cuda: bool) -> dict[str, str]:
    """Versions of what a measurement depends on, by name."""
    versions = {"python": platform.python_version(), "torch": str(torch.__version__), "numpy": np.__version__}
    try:
        versions["lab"] = importlib.metadata.version("scaling-lab")
    except importlib.metadata.PackageNotFoundError:
        versions["lab"] = "unknown"
    if cuda:
        versions["cuda"] = str(torch.version.cuda)
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return versions
