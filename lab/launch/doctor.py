"""doctor(): what this machine has, what is missing, and the command that installs it."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from lab import machine
from lab.config.emulation import WAYS, Link
from lab.formatting import count
from lab.launch import netem

PACKAGES = (
    "torch submitit papermill nbconvert jupyterlab ipywidgets tokenizers pypandoc_binary typst"
)
PROGRAMS = {
    "sbatch": "use a cluster's login node, or practise with slurm/testcluster",
    "chromium": "only the tests need it: `apt install chromium`",
    "g++": "only `compile: true` needs it: `apt install g++`",
    "git": "lets records hold the commit of the code: `apt install git`",
}
# The links that the profiles slurm/local-*.yaml emulate.
LINKS = {
    "emulated links": Link(bandwidth_gbit=1.0),
    "emulated latency": Link(bandwidth_gbit=1.0, latency_ms=1.0),
}


@dataclass(frozen=True)
class Check:
    """One item that was looked for; the lab does not work without a `needed` one."""

    name: str
    found: str
    present: bool = True
    needed: bool = True
    remedy: str = ""


def doctor() -> list[Check]:
    """Look for everything the lab uses, without importing torch."""
    return [
        *_machine(),
        *(_link(name, link) for name, link in LINKS.items()),
        *map(_package, PACKAGES.split()),
        *(_program(name, remedy) for name, remedy in PROGRAMS.items()),
    ]


def _machine() -> list[Check]:
    gpus = [f"{gpu.name} (driver {gpu.driver})" for gpu in machine.gpus()]
    free = shutil.disk_usage(Path.cwd()).free
    python = (3, 11) <= sys.version_info[:2] <= (3, 13)
    update = "use Python 3.11, 3.12 or 3.13: `make env PYTHON=python3.12`"
    space = "free at least 2 GB for records, caches and reports"
    driver = "with an NVIDIA card, install its driver so that `nvidia-smi` works"
    none = "none: runs use CPU processes and gloo"
    if Path("/dev/kfd").exists():  # the device file of AMD's driver
        none += "; AMD GPUs with ROCm are untried"
    return [
        Check("python", sys.version.split()[0], python, remedy=update),
        Check(
            "processor", f"{machine.cpu_model()}, {count(len(machine.cores()), 'core')} for ranks"
        ),
        Check("memory", f"{machine.memory_bytes() / 1e9:.0f} GB"),
        Check("disk", f"{free / 1e9:.0f} GB free", free > 2e9, remedy=space),
        Check(
            "gpu", ", ".join(gpus) or none, bool(gpus), needed=False, remedy="" if gpus else driver
        ),
    ]


def _link(name: str, link: Link) -> Check:
    """Whether ranks on this machine can be put behind such a link."""
    if way := netem.way_for(link):
        return Check(name, f"by {WAYS[way]}", needed=False)
    return Check(name, netem.obstacle(link), False, needed=False, remedy=netem.advice(link))


def _package(name: str) -> Check:
    try:
        return Check(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        remedy = f"`make env` in a checkout, or `pip install {name}`"
        return Check(name, "missing", present=False, remedy=remedy)


def _program(name: str, remedy: str) -> Check:
    path = shutil.which(name)
    return Check(name, path or "missing", bool(path), needed=False, remedy="" if path else remedy)
