"""What can be chosen on the bench: the form's controls, and the networks that this machine can serve."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from lab.config import datasets, models
from lab.config.cluster import Cluster
from lab.config.emulation import Emulated
from lab.config.run import Run
from lab.config.strategies import STRATEGIES
from lab.errors import InputError, LabError, Problem
from lab.files import ROOT
from lab.launch.preflight import usable

# What the form starts with, from the quickstart's smallest form: a few seconds of training on one core.
START = {"world_size": 1, "global_batch_size": 8, "grad_accum": 1, "steps": 12, "warmup_steps": 4}
NAMES = {
    "model": ("Model", "a preset"),
    "data": ("Data set", "what it is trained on"),
    "strategy": ("Strategy", "how the ranks share the work"),
    "precision": ("Precision", "number format of the forward and backward pass"),
    "world_size": ("World size", "ranks, of as many as the cluster can run at once"),
    "global_batch_size": ("Global batch size", "samples of one optimizer step, over all ranks"),
    "grad_accum": ("Gradient accumulation", "micro-batches of a rank for one optimizer step"),
    "steps": ("Steps", "optimizer steps in all"),
    "warmup_steps": ("Warm-up steps", "the first steps, left out of every measure"),
    "cluster": ("Network", "the cluster profile of slurm/ whose ranks and links the run has"),
}
# The controls that are fields of Run.
OF_RUN = tuple(name for name in NAMES if name != "cluster")


@dataclass(frozen=True)
class Network:
    """A cluster profile as a choice: what it is called in the list, and what stands against it here, if anything."""

    name: str
    label: str
    obstacle: str = ""


def networks() -> list[Network]:
    """The profiles of `slurm/`: those that can be served from here by name, then the others."""
    names = {
        path.stem for folder in (Path("slurm"), ROOT / "slurm") for path in folder.glob("*.yaml")
    }
    partitions = _partitions()
    found = [_network(name, partitions) for name in names]
    return sorted(
        found,
        key=lambda network: (
            bool(network.obstacle),
            not network.name.startswith("local"),
            network.name,
        ),
    )


def _partitions() -> set[str] | str:
    """Those of a Slurm that answers from here, else what stands against it."""
    try:
        # A controller that is down would be waited for.
        told = subprocess.run(
            ["sinfo", "-h", "-o", "%R"], capture_output=True, text=True, timeout=3, check=True
        )
    except FileNotFoundError:
        return "Slurm's commands are not on this machine"
    except (OSError, subprocess.SubprocessError):
        return "no controller of Slurm answers"
    return set(told.stdout.split())


def _network(name: str, partitions: set[str] | str) -> Network:
    try:
        cluster = usable(name)
    except InputError as error:
        return Network(name, f"{name} (not here)", "; ".join(map(in_words, error.problems)))
    except LabError as error:
        return Network(name, f"{name} (not here)", str(error))
    if cluster.executor == "replay":
        return Network(
            name,
            f"{name} (not here)",
            "it replays a table that others published, and measures nothing",
        )
    if cluster.executor == "slurm" and (told := _slurm_obstacle(cluster, partitions)):
        return Network(
            name,
            f"{name} (not here)",
            f"{told} (send it to a study, and run that where jobs are submitted)",
        )
    if cluster.emulates:
        return Network(
            name, f"{name}: emulated {Emulated(link=cluster.link, compute=cluster.compute).label}"
        )
    return Network(name, cluster.description.removesuffix(", local executor"))


def _slurm_obstacle(cluster: Cluster, partitions: set[str] | str) -> str:
    if isinstance(partitions, str):
        return partitions
    known = cluster.partition is None or cluster.partition in partitions
    return "" if known else f"this Slurm has no partition {cluster.partition!r}"


def controls(offered: list[Network]) -> dict[str, Any]:
    """The form's controls by field of Run, and `cluster` with the offered networks."""
    import ipywidgets as widgets

    options: dict[str, list[Any]] = {
        "model": list(models.MODELS),
        "data": list(datasets.DATASETS),
        "strategy": list(STRATEGIES),
        "precision": list(get_args(Run.model_fields["precision"].annotation)),
        "cluster": [(network.label, network.name) for network in offered],
    }
    usable = [network.name for network in offered if not network.obstacle]
    first: dict[str, Any] = {name: choices[0] for name, choices in options.items() if choices}
    first |= {
        "strategy": "ddp",
        "cluster": "local" if "local" in usable else next(iter(usable), None),
    }
    made: dict[str, Any] = {}
    for name, (label, tip) in NAMES.items():
        # Wide enough for the longest name of its options.
        width = "40em" if name == "cluster" else "22em"
        look = {
            "description": label,
            "tooltip": tip,
            "style": {"description_width": "12em"},
            "layout": {"width": width},
        }
        if name in options:
            made[name] = widgets.Dropdown(options=options[name], value=first[name], **look)
        else:
            made[name] = widgets.IntText(value=START[name], continuous_update=True, **look)
    return made


def in_words(problem: Problem) -> str:
    """A problem with the name of its control."""
    where = f"{NAMES[problem.where][0]}: " if problem.where in NAMES else ""
    return f"{where}{problem.what}" + (f" ({problem.advice})" if problem.advice else "")
