"""What this machine has, what is missing, and the command that gets it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from lab import machine
from lab.config.emulation import WAYS, Link
from lab.files import ROOT
from lab.launch import netem


@dataclass(frozen=True)
class Check:
    """One thing that was looked at; `needed` ones must be there for the lab to work at all."""

    name: str
    found: str
    present: bool = True
    needed: bool = True
    remedy: str = ""


def doctor() -> list[Check]:
    """Look at everything that the lab uses, without importing torch."""
    return [*_machine(), *_emulation(), *_packages(), *_programs()]


def _machine() -> list[Check]:
    cores, gpus = machine.cores(), machine.gpus()
    free = shutil.disk_usage(Path.cwd()).free
    supported = (3, 11) <= sys.version_info[:2] <= (3, 12)
    return [
        Check(
            "python",
            sys.version.split()[0],
            supported,
            remedy="use Python 3.11 or 3.12: `make env PYTHON=python3.12`",
        ),
        Check("processor", f"{machine.cpu_model()}, {len(cores)} cores for ranks"),
        Check("memory", f"{machine.memory_bytes() / 1e9:.0f} GB"),
        Check(
            "disk",
            f"{free / 1e9:.0f} GB free",
            free > 2e9,
            remedy="free at least 2 GB for records, caches and reports",
        ),
        Check(
            "gpu",
            ", ".join(f"{gpu.name} (driver {gpu.driver})" for gpu in gpus)
            or "none: runs use CPU processes and gloo",
            bool(gpus),
            needed=False,
            remedy=""
            if gpus
            else "with an NVIDIA card, install its driver so that `nvidia-smi` works",
        ),
    ]


def _emulation() -> list[Check]:
    """Whether ranks of this machine can be put behind slow links, as the profiles slurm/local-*.yaml do."""
    links = {
        "emulated links": Link(bandwidth_gbit=1.0),
        "emulated latency": Link(bandwidth_gbit=1.0, latency_ms=1.0),
    }
    return [_link(name, link) for name, link in links.items()]


def _link(name: str, link: Link) -> Check:
    way = netem.way_for(link)
    if way is None:
        return Check(
            name, netem.obstacle(link), present=False, needed=False, remedy=netem.advice(link)
        )
    return Check(name, f"by {WAYS[way]}", needed=False)


def _packages() -> list[Check]:
    names = (
        "torch",
        "submitit",
        "papermill",
        "nbconvert",
        "jupyterlab",
        "ipywidgets",
        "tokenizers",
        "pypandoc_binary",
        "typst",
    )
    return [_package(name) for name in names]


def _package(name: str) -> Check:
    try:
        return Check(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Check(
            name,
            "missing",
            present=False,
            remedy=f"`make env` in {ROOT.name}, or `pip install {name}`",
        )


def _programs() -> list[Check]:
    programs = {
        "sbatch": "on a cluster's login node, or practise with slurm/testcluster",
        "chromium": "only the tests need it: `apt install chromium`",
        "g++": "only `compile: true` needs it: `apt install g++`",
        "git": "records then hold the commit of the code: `apt install git`",
    }
    found = {name: shutil.which(name) for name in programs}
    return [
        Check(
            name,
            path or "missing",
            path is not None,
            needed=False,
            remedy="" if path else programs[name],
        )
        for name, path in found.items()
    ]
