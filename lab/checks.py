"""What is found out before anything is submitted: what the cluster cannot run, and what cannot be read or written."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from lab import textfiles
from lab.cluster import Cluster
from lab.errors import InputError, Problem
from lab.records import Store
from lab.study import Study, Task


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
    shapes = sorted({(task.run.processes, task.run.devices) for task in tasks if task.run.world_size <= cluster.capacity})
    for ranks, devices in shapes:
        try:
            cluster.layout(ranks, devices=devices)
        except InputError as error:
            problems += error.problems
    for run in {task.run.id: task.run for task in tasks}.values():
        textfiles.resolve_inputs(run, study.folder)
    records = Store(study.out).records(study.tasks)
    elsewhere = {record.environment.cluster for record in records if record.environment} - {cluster.name}
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
        from lab.slurm.refusals import refusals

        problems += refusals(cluster, shapes)
    if problems:
        raise InputError(study.name, problems)


def _unwritable(out: Path) -> list[Problem]:
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / f".writable-{os.getpid()}"
        probe.write_text(json.dumps(0))
        probe.unlink()
    except OSError as error:
        return [
            Problem(str(out), f"cannot be written: {error.strerror}", "make the folder writable, or copy the study elsewhere")
        ]
    return []
