"""Where and with what a run was measured, read inside the job."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence

import numpy as np
import torch

from lab.machine import cpu_model, gpus
from lab.place import Place
from lab.records import Environment
from lab.study import ROOT
from lab.worker.data.tokens import Tokens


def environment(
    place: Place,
    *,
    device: torch.device,
    hosts: Sequence[str],
    cores: Sequence[Sequence[int]],
    foreign_cpu: float | None,
    tokens: Tokens | None = None,
    parameters: int | None = None,
) -> Environment:
    """The environment as rank 0 sees it, with the hosts and the cores of all ranks; data and parameters where there are any."""
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
        data_sha256=tokens.sha256 if tokens else None,
        data_description=tokens.description if tokens else None,
        parameters=parameters,
        foreign_cpu=foreign_cpu,
        emulated=place.emulated,
    )


def backend(device: torch.device) -> str:
    """What carries collectives between devices of this kind."""
    return "nccl" if device.type == "cuda" else "gloo"


def git_state() -> tuple[str | None, bool | None]:
    """The commit of the lab's own repository and whether files differ from it; None where there is no repository or no git."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        return None, None
    commit = _output(git, "rev-parse", "HEAD")
    status = _output(git, "--no-optional-locks", "status", "--porcelain")
    return commit, None if commit is None or status is None else bool(status)


def _output(program: str, *arguments: str) -> str | None:
    try:
        done = subprocess.run([program, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


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
