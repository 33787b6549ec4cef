"""Checks before anything is submitted: does the cluster fit, are files readable and writable?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lab.config import paths
from lab.config.cluster import Cluster
from lab.config.emulation import Emulated
from lab.config.strategies import STRATEGIES
from lab.config.study import Study, Task
from lab.errors import InputError, Problem
from lab.launch import netem
from lab.records.store import Store


def usable(cluster: str | Path | Cluster) -> Cluster:
    """A profile, by name or path, that this machine can provide.

    Raises InputError for a profile that is wrong, and for a link that cannot be emulated here.
    """
    profile = cluster if isinstance(cluster, Cluster) else Cluster.load(cluster)
    if profile.link is not None and netem.way_for(profile.link) is None:
        message = f"{profile.link.label} cannot be emulated here: {netem.obstacle(profile.link)}"
        raise InputError(profile.name, [Problem("link", message, netem.advice(profile.link))])
    return profile


def check(study: Study, cluster: Cluster, tasks: Sequence[Task], *, fresh: bool) -> None:
    """Raise InputError with all that keeps these tasks from being run on this cluster."""
    problems, shapes = [], set()
    for run in dict.fromkeys(task.run for task in tasks):
        if run.world_size > cluster.capacity:
            unit = "ranks" if run.processes > 1 else "devices"
            what = f"{run.label} needs {run.world_size} {unit}, {cluster.description}"
            advice = "use a larger cluster, fewer ranks or --quick"
            problems.append(Problem("cluster", what, advice))
        else:
            shapes.add((run.processes, run.devices))
        paths.resolve_inputs(run, study.folder)
    for ranks, devices in sorted(shapes):
        try:
            cluster.layout(ranks, devices=devices)
        except InputError as error:
            problems += error.problems
    if cluster.compute is not None:
        emulable = [name for name, facts in STRATEGIES.items() if facts.emulable]
        advice = f"train with one of {', '.join(emulable)}, or on a cluster without compute"
        for run in dict.fromkeys(task.run for task in tasks):
            if run.task != "train" or run.strategy not in emulable:
                what = f"{run.label}: its compute cannot be emulated, as {cluster.name} does"
                problems.append(Problem("cluster", what, advice))
    records = Store(study.out).records(study.tasks)
    clusters = {record.environment.cluster for record in records if record.environment}
    if (others := sorted(clusters - {cluster.name})) and not fresh:
        what = f"records here were measured on {', '.join(others)}"
        advice = f"name that cluster, or --fresh to measure all on {cluster.name}"
        problems.append(Problem("cluster", what, advice))
    problems += _unwritable(study.out)
    if not problems and cluster.executor == "slurm":
        from lab.launch.slurm.refusals import refusals

        problems += refusals(cluster, sorted(shapes))
    if problems:
        raise InputError(study.name, problems)


def check_emulation(study: Study, cluster: Cluster) -> None:
    """Raise InputError where records of a study are of another link or compute than the cluster's.

    Where all is measured already, no run would show that they are not of this cluster.
    """
    for record in Store(study.out).records(study.tasks):
        if record.environment is None:
            continue
        emulated = record.environment.emulated or Emulated()
        if (emulated.link, emulated.compute) != (cluster.link, cluster.compute):
            kind = f"emulated: {emulated.label}" if record.environment.emulated else "not emulated"
            measured = f"records here were measured on {record.environment.cluster} ({kind})"
            advice = (
                "use a copy of the study's folder for each, and `lab compare` for both, "
                "or --fresh to measure all again"
            )
            problem = Problem("cluster", f"{measured}; {cluster.description}", advice)
            raise InputError(study.name, [problem])


def _unwritable(out: Path) -> list[Problem]:
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        advice = "make the folder writable, or copy the study elsewhere"
        return [Problem(str(out), f"cannot be written: {error.strerror}", advice)]
    return []
