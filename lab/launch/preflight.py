"""What is found out before anything is submitted: what the cluster cannot run, and what cannot be read or written."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from lab.config import paths
from lab.config.cluster import Cluster
from lab.config.emulation import Emulated
from lab.config.run import Run
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
    problems = [
        Problem(
            "cluster",
            f"{task.run.label} needs {task.run.world_size} {'ranks' if task.run.processes > 1 else 'devices'}, {cluster.description}",
            "use a larger cluster, fewer ranks or --quick",
        )
        for task in tasks
        if task.run.world_size > cluster.capacity and task.repeat == 0
    ]
    shapes = sorted(
        {
            (task.run.processes, task.run.devices)
            for task in tasks
            if task.run.world_size <= cluster.capacity
        }
    )
    for ranks, devices in shapes:
        try:
            cluster.layout(ranks, devices=devices)
        except InputError as error:
            problems += error.problems
    runs = {task.run.id: task.run for task in tasks}.values()
    for run in runs:
        paths.resolve_inputs(run, study.folder)
    if cluster.compute is not None:
        problems += [
            _awake(run, cluster)
            for run in runs
            if run.task != "train" or not STRATEGIES[run.strategy].emulable
        ]
    records = Store(study.out).records(study.tasks)
    elsewhere = {record.environment.cluster for record in records if record.environment} - {
        cluster.name
    }
    if elsewhere and not fresh:
        problems.append(
            Problem(
                "cluster",
                f"records here were measured on {', '.join(sorted(elsewhere))}",
                f"name that cluster, or --fresh to measure all on {cluster.name}",
            )
        )
    problems += _unwritable(study.out)
    if not problems and cluster.executor == "slurm":
        from lab.launch.slurm.refusals import refusals

        problems += refusals(cluster, shapes)
    if problems:
        raise InputError(study.name, problems)


def _awake(run: Run, cluster: Cluster) -> Problem:
    emulable = ", ".join(name for name, facts in STRATEGIES.items() if facts.emulable)
    what = f"{run.label}: its compute cannot be emulated, as {cluster.name} does"
    return Problem(
        "cluster",
        what,
        f"train with one of {emulable}, or on a cluster without compute",
    )


def check_emulation(study: Study, cluster: Cluster) -> None:
    """Raise InputError where the records of a study are of another link or compute than this cluster's.

    They must not stand for each other: where all is measured already, nothing would be run that could tell.
    """
    places = [
        record.environment for record in Store(study.out).records(study.tasks) if record.environment
    ]
    for place in places:
        emulated = place.emulated or Emulated()
        if (emulated.link, emulated.compute) != (cluster.link, cluster.compute):
            kind = f"emulated: {emulated.label}" if place.emulated else "not emulated"
            raise InputError(
                study.name,
                [
                    Problem(
                        "cluster",
                        f"records here were measured on {place.cluster} ({kind}); {cluster.description}",
                        "use a copy of the study's folder for each, and `lab compare` for both, or --fresh to measure all again",
                    )
                ],
            )


def _unwritable(out: Path) -> list[Problem]:
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / f".writable-{os.getpid()}"
        probe.write_text(json.dumps(0))
        probe.unlink()
    except OSError as error:
        return [
            Problem(
                str(out),
                f"cannot be written: {error.strerror}",
                "make the folder writable, or copy the study elsewhere",
            )
        ]
    return []
