"""Where and with what a run was measured, read inside the job."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence

import numpy as np
import torch

from lab.jobs.place import Place
from lab.jobs.snapshot import git_state
from lab.machine import cpu_model, gpus
from lab.records import Environment
from lab.worker.data.dataset import Dataset


def environment(
    place: Place,
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


def backend(place: Place) -> str:
    """What carries the collectives of this rank: the profile's choice, else what fits its device."""
    if place.backend == "auto":
        return "nccl" if place.device == "cuda" else "gloo"
    return place.backend


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
