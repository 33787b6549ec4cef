"""The form of the bench: its controls, and the cluster profiles usable from this machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from lab.config import datasets, models
from lab.config.cluster import Cluster, profile_names
from lab.config.emulation import Emulated
from lab.config.paths import DOWNLOADS
from lab.config.run import PrecisionName
from lab.config.strategies import STRATEGIES
from lab.errors import InputError, LabError, Problem
from lab.launch.preflight import usable
from lab.launch.slurm.controller import SlurmCommandError, ask

# The form's first values, of the quickstart's quick form: seconds of training on one core.
START = {"world_size": 1, "global_batch_size": 8, "grad_accum": 1, "steps": 12, "warmup_steps": 4}
NAMES = {
    "model": ("Model", "a preset"),
    "data": ("Data set", "what it is trained on"),
    "strategy": ("Strategy", "how the ranks share the work"),
    "precision": ("Precision", "number format of the forward and backward pass"),
    "world_size": ("World size", "ranks, up to as many as the cluster can run at once"),
    "global_batch_size": ("Global batch size", "samples of one optimizer step, over all ranks"),
    "grad_accum": ("Gradient accumulation", "micro-batches of a rank for one optimizer step"),
    "steps": ("Steps", "optimizer steps in all"),
    "warmup_steps": ("Warm-up steps", "the first steps, left out of all measurements"),
    "cluster": ("Network", "the cluster profile of slurm/ whose ranks and links the run uses"),
}
# The controls that are fields of Run.
OF_RUN = tuple(name for name in NAMES if name != "cluster")


@dataclass(frozen=True)
class Network:
    """A cluster profile as a choice: its name in the list, and why it cannot be used here."""

    name: str
    label: str
    obstacle: str = ""


def networks() -> list[Network]:
    """The profiles of `slurm/`: those usable from here by name, then the others."""
    partitions = _partitions()
    offered = [_network(name, partitions) for name in profile_names()]
    return sorted(
        offered, key=lambda it: (bool(it.obstacle), not it.name.startswith("local"), it.name)
    )


def _partitions() -> set[str] | str:
    """The Slurm partitions, or why Slurm does not answer."""
    try:
        return set(ask("sinfo", "-h", "-o", "%R", timeout_s=3.0).split())
    except SlurmCommandError as error:
        return str(error)


def _network(name: str, partitions: set[str] | str) -> Network:
    try:
        cluster = usable(name)
        obstacle = _obstacle(cluster, partitions)
    except InputError as error:
        obstacle = "; ".join(map(in_words, error.problems))
    except LabError as error:
        obstacle = str(error)
    if obstacle:
        return Network(name, f"{name} (not here)", obstacle)
    if cluster.emulates:
        emulated = Emulated(link=cluster.link, compute=cluster.compute).label
        return Network(name, f"{name}: emulated {emulated}")
    return Network(name, cluster.description.removesuffix(", local executor"))


def _obstacle(cluster: Cluster, partitions: set[str] | str) -> str:
    """Why nothing can be measured on a cluster from here; empty if it can."""
    if cluster.executor == "replay":
        return "it replays a table that others published, and measures nothing"
    if cluster.executor == "local":
        return ""
    if isinstance(partitions, set):
        if cluster.partition is None or cluster.partition in partitions:
            return ""
        partitions = f"this Slurm has no partition {cluster.partition!r}"
    return f"{partitions} (send it to a study, and run that where jobs are submitted)"


def data_for(model: str) -> list[str]:
    """The data sets that a preset can be trained on, first those that need no download."""
    preset = models.MODELS[model]
    fitting = [
        name for name, data in datasets.DATASETS.items() if datasets.misfit(preset, data) is None
    ]
    return sorted(fitting, key=lambda name: name in DOWNLOADS)


def controls(offered: list[Network]) -> dict[str, Any]:
    """The form's controls by field of Run, and `cluster` with the offered networks."""
    import ipywidgets as widgets

    options: dict[str, list[Any]] = {
        "model": list(models.MODELS),
        "data": data_for(next(iter(models.MODELS))),
        "strategy": list(STRATEGIES),
        "precision": list(get_args(PrecisionName)),
        "cluster": [(network.label, network.name) for network in offered],
    }
    here = [network.name for network in offered if not network.obstacle]
    first: dict[str, Any] = {name: choices[0] for name, choices in options.items() if choices}
    local = "local" if "local" in here else next(iter(here), None)
    first |= {"strategy": "ddp", "cluster": local}
    widgets_by_name: dict[str, Any] = {}
    for name, (label, tip) in NAMES.items():
        # Wide enough for the longest name of its options.
        width = "40em" if name == "cluster" else "22em"
        style = {"description_width": "12em"}
        layout = {"width": width, "max_width": "calc(100% - 4px)"}
        look = {"description": label, "tooltip": tip, "style": style, "layout": layout}
        if name in options:
            widgets_by_name[name] = widgets.Dropdown(
                options=options[name], value=first[name], **look
            )
        else:
            widgets_by_name[name] = widgets.IntText(
                value=START[name], continuous_update=True, **look
            )
    widgets_by_name["model"].observe(partial(_offer_data, widgets_by_name["data"]), "value")
    return widgets_by_name


def _offer_data(data: Any, change: Any) -> None:
    """Offer the data that fits the chosen model; data that was chosen stays if it fits."""
    chosen, fitting = data.value, data_for(change["new"])
    data.options = fitting  # chooses the first
    if chosen in fitting:
        data.value = chosen


def in_words(problem: Problem) -> str:
    """A problem with the name of its control."""
    where = f"{NAMES[problem.where][0]}: " if problem.where in NAMES else ""
    return f"{where}{problem.what}" + (f" ({problem.advice})" if problem.advice else "")
