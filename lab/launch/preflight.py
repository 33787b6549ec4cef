"""Checks before anything is submitted: does the cluster fit, are files readable and writable?"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from lab import machine
from lab.config import paths
from lab.config.base import InvalidValueError
from lab.config.cluster import Cluster, is_found_by_name
from lab.config.datasets import Synthetic
from lab.config.emulation import Emulated
from lab.config.models import CNN, PythonModel
from lab.config.own import Script
from lab.config.paths import DOWNLOADS
from lab.config.run import Run
from lab.config.slurm import expand
from lab.config.strategies import STRATEGIES
from lab.config.study import Study, Task
from lab.errors import InputError, Problem, nearest
from lab.files import unwritable
from lab.launch import netem
from lab.perfmodel.flops import model_cost
from lab.perfmodel.memory import FP32, layout_of, state_memory
from lab.records.schema import Environment
from lab.records.store import Store

# What Slurm, or submitit on this machine, replaces in the paths of logs, such as %j by a job's id.
REPLACED = {"slurm": r"[%\\\n]", "local": "%[jtAa]"}
TOKEN_BYTES, STORED_TOKEN_BYTES = 8, 2  # in a batch, and in the cache


def usable(cluster: str | Path | Cluster) -> Cluster:
    """A profile, by name or path, that this machine can provide.

    Raises InputError for an invalid profile, and for a link that cannot be emulated here.
    """
    profile = Cluster.of(cluster)
    if profile.link is not None and netem.way_for(profile.link) is None:
        message = f"{profile.link.label} cannot be emulated here: {netem.obstacle(profile.link)}"
        raise InputError.of(profile.name, "link", message, netem.advice(profile.link))
    return profile


def check(study: Study, cluster: Cluster, tasks: Sequence[Task], *, fresh: bool) -> None:
    """Raise InputError with everything that prevents these tasks from running on this cluster."""
    runs = list(dict.fromkeys(task.run for task in tasks))
    problems = [problem for run in runs for problem in refusals_of(run, study, cluster)]
    fitting = [run for run in runs if run.world_size <= cluster.capacity]
    shapes = sorted({(run.processes, run.devices) for run in fitting})
    problems += cluster.misfits(shapes)
    records = Store(study.out).records(study.tasks)
    places = [record.environment for record in records if record.environment]
    others = sorted({place.profile for place in places if not _is_of(place, cluster)})
    if others and not fresh:
        what = f"records here were measured on {', '.join(others)}"
        advice = f"name that cluster, or use --fresh to measure again on {cluster.reference}"
        problems.append(Problem("cluster", what, advice))
    problems += _unreachable(study, cluster)
    problems += _not_fetched(study, cluster, tasks)
    if not problems and cluster.executor == "slurm":
        from lab.launch.slurm.executor import refusals

        problems += refusals(cluster, shapes)
    # Last, as it makes the folder: a study that is refused leaves nothing behind.
    if problems := problems or unwritable(study.out):
        raise InputError(study.name, problems)


def refusals_of(run: Run, study: Study, cluster: Cluster) -> Iterator[Problem]:
    """What prevents one run of a study from running on a cluster."""
    if run.world_size > cluster.capacity:
        unit = "ranks" if run.processes > 1 else "devices"
        what = f"{run.label} needs {run.world_size} {unit}; {cluster.description}"
        advice = "use a larger cluster or fewer ranks"
        if study.has_quick_form and not study.quick:
            advice = "use a larger cluster, fewer ranks, or --quick"
        if cluster.executor == "local" and cluster.device_kind == "cuda":
            advice += "; `--cluster cpu` has a rank for each core"
        elif cluster.executor == "local" and run.facts.emulable and not cluster.emulates:
            advice += "; `--cluster local-8ranks` emulates ranks beyond the cores"
        yield Problem("cluster", what, advice)
    elif what := _too_large(run, cluster):
        advice = "use a smaller model or batch, or a cluster with more memory"
        yield Problem("base", f"{run.label}: {what}", advice)
    if cluster.compute is not None and (run.task != "train" or not run.facts.emulable):
        emulable = [name for name, facts in STRATEGIES.items() if facts.emulable]
        what = f"{run.label}: its compute cannot be emulated, as {cluster.name} would"
        advice = f"train with one of {', '.join(emulable)}, or use a profile without compute"
        yield Problem("cluster", what, advice)
    try:
        paths.resolve_inputs(run, study.folder)
    except InputError as error:
        for problem in error.problems:
            yield replace(problem, where=f"{error.source}.{problem.where}")


def _is_of(place: Environment, cluster: Cluster) -> bool:
    """Whether a record was measured with this profile, and not another file of the same name."""
    if place.cluster != cluster.name or place.cluster_file:
        return place.profile == cluster.reference
    # Earlier versions kept the stem alone, also of a file that it does not find.
    return cluster.file is None or not is_found_by_name(cluster.name)


def check_emulation(study: Study, cluster: Cluster) -> None:
    """Raise InputError if a study's records use another link or compute than the cluster's.

    If everything is already measured, no run would show that the records are of another cluster.
    """
    for record in Store(study.out).records(study.tasks):
        if record.environment is None:
            continue
        emulated = record.environment.emulated or Emulated()
        if (emulated.link, emulated.compute) != (cluster.link, cluster.compute):
            kind = f"emulated: {emulated.label}" if record.environment.emulated else "not emulated"
            measured = f"records here were measured on {record.environment.profile} ({kind})"
            advice = (
                "use a copy of the study's folder for each, and `lab compare` for both, "
                "or use --fresh to measure all again"
            )
            raise InputError.of(study.name, "cluster", f"{measured}; {cluster.description}", advice)


def state_bytes(run: Run) -> int | None:
    """Most bytes of weights, gradients and optimizer state on a rank; all are fp32.

    Sharded state counts with the rank's share, a split model with its largest part. None for a
    user's own model or strategy, for which it is known only after a measurement.
    """
    if isinstance(run.architecture, PythonModel | Script) or run.own_strategy is not None:
        return None
    cost, sharers = model_cost(run), run.shard_size or run.world_size
    state = state_memory(
        cost.trainable,
        frozen=cost.parameters - cost.trainable,
        sharded=run.facts.sharded,
        ranks=sharers,
        state=FP32,
    )
    split = run.facts.splits in {"tensors", "layers"}
    part = layout_of(run).parameter_share if split else 1.0
    return round(state.total * part)


def _too_large(run: Run, cluster: Cluster) -> str:
    """What part of a run exceeds all memory that its job can have; empty if nothing does."""
    has, samples = _memory_bytes(run, cluster), 0
    if has is None or isinstance(run.architecture, PythonModel | Script):
        return ""
    if isinstance(run.dataset, Synthetic) and cluster.executor == "local":
        samples = run.dataset.samples
    batch, stored = _sample_bytes(run)
    # A pipeline's other stages hold less than the largest.
    pipelined = run.facts.splits == "layers"
    ranks = 1 / layout_of(run).parameter_share if pipelined else run.processes
    parts = {
        "its weights, gradients and optimizer state": (state_bytes(run) or 0) * ranks,
        "one micro-batch on each rank": (
            run.stated.micro_batch_size * batch * run.data_parallel_size
        ),
        "its synthetic samples": samples * stored,
    }
    what, size = max(parts.items(), key=lambda part: part[1])
    if size <= has:
        return ""
    return f"{what} take {size / 1e9:,.0f} GB, but {cluster.name} has {has / 1e9:,.0f} GB"


def _memory_bytes(run: Run, cluster: Cluster) -> int | None:
    """Total memory of the devices of a run's job; None if it is not known."""
    profile = cluster.on(run.device_needed)
    if profile is None or profile.executor == "replay":
        return None
    if profile.executor == "local" and profile.device_kind == "cpu":
        return machine.memory_bytes() + int(psutil.swap_memory().total)
    rank = profile.memory_bytes_per_rank
    return None if rank is None else rank * run.world_size


def _sample_bytes(run: Run) -> tuple[int, int]:
    """The fewest bytes that a sample's input takes in a batch, and in storage."""
    model, data = run.architecture, run.dataset
    if isinstance(model, CNN):
        size = getattr(data, "image_size", 1)
        return 4 * size**2, size**2
    block = getattr(model, "block_size", 1)
    return TOKEN_BYTES * block, STORED_TOKEN_BYTES * block


def _unreachable(study: Study, cluster: Cluster) -> Iterator[Problem]:
    """Names and addresses that would end jobs before they could report a problem."""
    for name in cluster.interfaces if cluster.executor == "local" else ():
        if name not in (here := machine.interfaces()):
            yield Problem("network_interface", f"no {name!r} here", nearest(name, here))
    replaced = REPLACED.get(cluster.executor)
    if replaced and (wrong := re.search(replaced, str(study.folder))):
        what = f"no logs can be written into a folder with {wrong[0]!r} in its name"
        yield Problem(str(study.folder), what, "rename it")


def _not_fetched(study: Study, cluster: Cluster, tasks: Sequence[Task]) -> Iterator[Problem]:
    """Downloads missing on the nodes of a cluster, most of which have no network."""
    if cluster.executor != "slurm":
        return
    try:
        variables = {name: expand(value, os.environ) for name, value in cluster.environment.items()}
    except InvalidValueError:
        return  # only the nodes know where their cache lies
    roots = paths.cache_roots({**os.environ, **variables})
    for kind in sorted({task.run.dataset.kind for task in tasks}):
        missing = [
            download
            for download in DOWNLOADS.get(kind, ())
            if not any(os.access(root / "downloads" / download.file, os.R_OK) for root in roots)
        ]
        if missing:
            size = sum(download.size for download in missing) / 1e6
            what = f"{kind} ({size:.0f} MB) is not in {roots[0]}, and nodes may have no network"
            command = study.command("fetch", [cluster.reference])
            yield Problem("data", what, f"run `{command}` on this machine")
