"""The form of the bench, and its runs, kept as studies: one per configuration."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import ValidationError

from lab.config import datasets, models
from lab.config.cluster import Cluster, profile_names
from lab.config.emulation import Emulated
from lab.config.paths import DOWNLOADS
from lab.config.run import PrecisionName, Run
from lab.config.strategies import STRATEGIES
from lab.config.study import Study, find_folder
from lab.errors import InputError, LabError, Problem
from lab.files import read_yaml, write_atomically
from lab.launch.preflight import usable
from lab.launch.slurm.controller import SlurmSilentError, ask
from lab.perfmodel.calibration import load_calibration
from lab.perfmodel.forecast import Basis
from lab.perfmodel.frozen import error_so_far
from lab.records.store import Record, Store

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
    except SlurmSilentError as error:
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
    usable = [network.name for network in offered if not network.obstacle]
    first: dict[str, Any] = {name: choices[0] for name, choices in options.items() if choices}
    local = "local" if "local" in usable else next(iter(usable), None)
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


TITLE = "Tried on the bench: {run}"
QUESTION = "How long does a step of this configuration take, and what does a further rank bring?"
REPEATS = 3  # of a study written from a configuration


@dataclass(frozen=True)
class Bench:
    """A folder of studies, `<cluster>/<id of the equal run at world size 1>`."""

    folder: Path

    def study(self, run: Run, cluster: str) -> Study:
        """The study that a run belongs to, with only this run; writes nothing."""
        base = alone(run)
        return Study(
            folder=self.folder.resolve() / cluster / base.id,
            title=TITLE.format(run=base.label),
            question=QUESTION,
            scaling="strong",
            runs=(run,),
            axes=("world_size",),
            repeats=1,
            baseline={"world_size": 1},
        )

    def keep(self, study: Study) -> None:
        """Write the study file of a run, or add the run's world size to the existing one.

        World size 1 is always included, so that the study has its baseline.
        """
        path, run = study.folder / "study.yaml", study.runs[0]
        content = read_yaml(path) if path.exists() else _content(run, study.title, repeats=1)
        grid = content.setdefault("grid", {})
        sizes = sorted({1, run.world_size, *grid.get("world_size", ())})
        if sizes != grid.get("world_size"):
            grid["world_size"] = sizes
            write_atomically(path, yaml.safe_dump(content, sort_keys=False).encode())

    def studies(self) -> list[Study]:
        """The kept studies, by cluster; a study file that cannot be read is left out."""
        studies = []
        for path in sorted(self.folder.glob("*/*/study.yaml")):
            try:
                studies.append(Study.load(path.parent))
            except LabError:
                continue
        return studies

    def basis(self, cluster: Cluster) -> Basis:
        """The basis of predictions on a cluster: runs on one rank, calibration, earlier errors.

        A run on one rank uses no link, so it counts for every cluster of this machine whose ranks
        compute the same way.
        """
        studies = self.studies()
        records = [
            record
            for study in studies
            for record in Store(study.out).records()
            if _is_profile(record, cluster, of=study.folder.parent)
        ]
        own = [study for study in studies if study.folder.parent.name == cluster.name]
        return Basis(tuple(records), load_calibration(cluster), error_so_far(*own))


def _is_profile(record: Record, cluster: Cluster, *, of: Path) -> bool:
    """Whether a one-rank record computed as the cluster's ranks do; `of` is the record's folder."""
    place, run = record.environment, record.run
    if not (record.completed and run.world_size == 1 and run.task == "train" and place):
        return False
    compute = place.emulated.compute if place.emulated else None
    here = of.name == cluster.name or (
        cluster.executor == "local" and set(place.hosts) == {socket.gethostname()}
    )
    alike = (cluster.device_kind, cluster.threads_per_rank, cluster.compute)
    return here and (place.device, place.threads_per_rank, compute) == alike


def alone(run: Run) -> Run:
    """The equal run at world size 1: the same global batch in as many micro-batches per rank."""
    return Run.model_validate(run.model_dump(exclude={"micro_batch_size", "world_size"}))


def _content(run: Run, title: str, *, repeats: int, **fields: Any) -> dict[str, Any]:
    """A strong-scaling study file with an empty grid; `fields` limits the settings it states."""
    base = run.model_dump(
        mode="json", **(fields or {"exclude": {"micro_batch_size", "world_size"}})
    )
    content = {"title": title, "question": QUESTION, "scaling": "strong", "base": base, "grid": {}}
    return content | {"repeats": repeats, "baseline": {"world_size": 1}}


def suggested(run: Run) -> str:
    """A name for the study of a run: the words of its label."""
    return re.sub(r"[^a-z0-9]+", "-", run.label.lower()).strip("-")


def send(run: Run, *, name: str, reports: Path) -> Study:
    """Write `<reports>/<name>/study.yaml`; raises InputError for an invalid or taken name."""
    folder = reports.resolve() / name
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,99}", name):
        problem = Problem("name", f"invalid study name {name!r}", "small letters, digits and -")
        raise InputError("send", [problem])
    if folder.exists() and any(folder.iterdir()):
        problem = Problem("name", f"{folder.name} already exists", "choose another name")
        raise InputError("send", [problem])
    folder.mkdir(parents=True, exist_ok=True)
    fields = set(OF_RUN) - {"world_size"}
    content = _content(run, f"How {run.label} scales", repeats=REPEATS, include=fields)
    content["grid"] = {"world_size": world_sizes(run)}
    text = yaml.safe_dump(content, sort_keys=False, width=120)
    write_atomically(folder / "study.yaml", text.encode())
    return Study.load(folder)


def world_sizes(run: Run) -> list[int]:
    """1, 2, 4 and so on up to the run's own, as far as its batch can be divided."""
    doubling = {2**power for power in range(run.world_size.bit_length())}
    return [size for size in sorted(doubling | {run.world_size}) if _possible(run, size)]


def _possible(run: Run, world_size: int) -> bool:
    try:
        Run.model_validate(run.model_dump(include=set(OF_RUN)) | {"world_size": world_size})
    except ValidationError:
        return False
    return True


def command(study: Study, cluster: str) -> str:
    """The command that measures a study."""
    try:
        named = find_folder(study.name) == study.folder
    except LabError:
        named = False
    return f"lab run {study.name if named else study.folder} --cluster {cluster}"
