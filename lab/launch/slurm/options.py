"""How a job of a shape is asked for: a profile as submitit's parameters."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.config.cluster import Cluster, find_profile
from lab.config.run import Run
from lab.config.study import Study, Task
from lab.errors import InputError, Problem
from lab.files import ROOT, write_atomically
from lab.launch.slurm.array import TAKE_WORK

# How long before its time limit a job is told, at most, in s; that is when it saves its state.
NOTICE_S = 90


def parameters(cluster: Cluster, ranks: int, folder: Path, *, devices: int = 1) -> dict[str, Any]:
    """The parameters of submitit's Slurm executor for an array whose files lie in `folder`, of ranks with so many devices.

    `signal_delay_s` is a tenth of the time limit where that is short.
    """
    layout = cluster.layout(ranks, devices=devices)
    on_node = layout.ranks_per_node * devices
    modules = [f"module load {shlex.join(cluster.modules)}"] if cluster.modules else []
    memory = cluster.memory_mb(on_node)
    asked = {
        "partition": cluster.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "constraint": cluster.constraint,
        "time": cluster.time_limit_min,
        "nodes": layout.nodes,
        "ntasks_per_node": layout.ranks_per_node,
        "cpus_per_task": cluster.cpus_per_rank * devices,
        "mem": None if memory is None else f"{memory}M",
        "array_parallelism": cluster.array_limit,
        **_gpus(cluster, on_node),
    }
    return {key: value for key, value in asked.items() if value is not None} | {
        "setup": [*modules, *cluster.setup, TAKE_WORK % shlex.quote(str(folder))],
        "signal_delay_s": min(NOTICE_S, 6 * cluster.time_limit_min),
        "stderr_to_stdout": True,
        "additional_parameters": _more(cluster),
    }


def interpreter(cluster: Cluster) -> str | None:
    """The command that runs Python on the nodes; None for the interpreter of this process."""
    if cluster.container is None:
        return cluster.python
    return f"{cluster.container} {cluster.python or 'python3'}"


def _gpus(cluster: Cluster, count: int) -> dict[str, str]:
    if not cluster.gpus_per_node:
        return {}
    asked = f"{cluster.gpu_type}:{count}" if cluster.gpu_type else str(count)
    return {"gres": f"gpu:{asked}"} if cluster.gpu_flag == "gres" else {"gpus_per_node": asked}


def _more(cluster: Cluster) -> dict[str, Any]:
    """What submitit has no parameter for; without `requeue` a preempted job would be lost on many a site."""
    more: dict[str, Any] = {"requeue": True}
    if cluster.reservation:
        more["reservation"] = cluster.reservation
    return more | {
        key.replace("_", "-"): value for key, value in cluster.extra.items() if value is not False
    }


Options = dict[str, str | int | bool]
WHY = {
    "ntasks-per-node": "one process for each rank",
    "cpus-per-task": "for each rank",
    "mem": "of each node: the ranks' share",
    "time": "minutes",
    "array": "a job for each line of `tasks`; after %, how many of them run at once",
    "requeue": "after a preemption or a node's failure it starts again",
}


def options(cluster: Cluster, ranks: int, *, devices: int = 1) -> Options:
    """The options of sbatch for a job of so many ranks with so many devices each.

    Raises InputError where the cluster cannot lay them out.
    """
    nodes, on_node = cluster.layout(ranks, devices=devices)
    named = {
        key: getattr(cluster, key)
        for key in ("partition", "account", "qos", "constraint", "reservation")
    }
    asked: Options = {key: value for key, value in named.items() if value is not None}
    asked |= {
        "nodes": nodes,
        "ntasks-per-node": on_node,
        "cpus-per-task": cluster.cpus_per_rank * devices,
    }
    if cluster.gpus_per_node:
        gpus = on_node * devices
        count = f"{cluster.gpu_type}:{gpus}" if cluster.gpu_type else str(gpus)
        asked |= (
            {"gres": f"gpu:{count}"} if cluster.gpu_flag == "gres" else {"gpus-per-node": count}
        )
    memory = cluster.memory_mb(on_node * devices)
    if memory is not None:
        asked["mem"] = f"{memory}M"
    return asked | {"time": cluster.time_limit_min} | cluster.extra


def setup_lines(cluster: Cluster) -> list[str]:
    """Shell commands that make a node ready: modules, the site's commands, variables."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in cluster.variables.items()]
    return [
        *(f"module load {shlex.quote(module)}" for module in cluster.modules),
        *cluster.setup,
        *exports,
    ]


def script_interpreter(cluster: Cluster, default: str = "python") -> str:
    """The command that runs Python on a node, inside the container where there is one."""
    return " ".join(
        shlex.quote(word)
        for part in (cluster.container, cluster.python or default)
        for word in shlex.split(part or "")
    )


def scripts(study: Study, profile: str | Path) -> dict[str, str]:
    """Every script of a study by its file name: one for each configuration, and `study/` with one for each world size.

    Raises InputError for a profile of another executor, and for runs that do not fit on its nodes.
    """
    path = find_profile(profile)
    cluster = Cluster.load(path)
    if cluster.executor != "slurm":
        raise InputError(
            str(path),
            [
                Problem(
                    "executor",
                    f"{cluster.executor!r} knows no sbatch",
                    "take a profile with executor: slurm",
                )
            ],
        )
    _check(study, cluster)
    texts = {
        f"{name}.sbatch": _script(
            study, cluster, path, [task for task in study.tasks if task.run == run], run.label
        )
        for run, name in _names(study).items()
    }
    for processes, devices in dict.fromkeys((run.processes, run.devices) for run in study.runs):
        tasks = [
            task
            for task in study.tasks
            if (task.run.processes, task.run.devices) == (processes, devices)
        ]
        what = (
            f"all runs of {processes} rank{'s' * (processes > 1)}"
            if devices == 1
            else f"all runs of one process with {devices} devices"
        )
        texts[f"study/x{processes * devices}{'-one-process' * (devices > 1)}.sbatch"] = _script(
            study, cluster, path, tasks, what
        )
    return texts


def write_scripts(study: Study, profile: str | Path, folder: Path) -> list[Path]:
    """Write the scripts of a study into a folder; returns their paths."""
    written = []
    for name, text in scripts(study, profile).items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode())
        except OSError as error:
            raise InputError(
                str(path),
                [Problem("folder", f"cannot be written: {error.strerror}", "name another one")],
            ) from None
        written.append(path)
    return written


def _check(study: Study, cluster: Cluster) -> None:
    problems = {}
    for run in study.runs:
        try:
            cluster.layout(run.processes, devices=run.devices)
        except InputError as error:
            problems[run.world_size] = error.problems[0]
    if problems:
        raise InputError(cluster.name, list(problems.values()))


def _names(study: Study) -> dict[Run, str]:
    """A file name for each configuration, from what the grid varies; its id where that is no plain value."""
    found: dict[Run, str] = {}
    for run in study.runs:
        values = [(axis, getattr(run, axis)) for axis in study.axes if axis != "world_size"]
        parts = [f"{axis.replace('global_batch_size', 'batch')}-{value}" for axis, value in values]
        name = "-".join([f"x{run.world_size}", *parts])
        plain = re.fullmatch(r"[\w.-]{1,80}", name) and name not in found.values()
        found[run] = name if plain else f"x{run.world_size}-{run.id}"
    return found


def _script(study: Study, cluster: Cluster, profile: Path, tasks: Sequence[Task], what: str) -> str:
    asked = options(cluster, tasks[0].run.processes, devices=tasks[0].run.devices)
    limit = f"%{cluster.array_limit}" if cluster.array_limit else ""
    lines = [
        "#!/bin/bash",
        f"# {_comment(study.title)}: {what}.",
        "# Submit it in the lab's folder: sbatch FILE. `lab report` reads the records that it leaves.",
        _directive("job-name", f"{_slug(study.name)}-x{tasks[0].run.world_size}"),
        *(_directive(key, value) for key, value in asked.items()),
        _directive("array", f"0-{len(tasks) - 1}{limit}"),
        _directive("output", "%x-%A_%a.log"),
        _directive("requeue", True),
        "",
        "tasks=(  # the run's id and the number of its repeat",
        *(f"  '{task.run.id} {task.repeat}'  # {_comment(task.label)}" for task in tasks),
        ")",
        'read -r run repeat <<<"${tasks[SLURM_ARRAY_TASK_ID]}"',
        "",
    ]
    if ready := setup_lines(cluster):
        lines += [*ready, ""]
    lines += [
        "# Where ranks meet: torchrun and scripts with init_method='env://' read these two. The lab's rank 0 takes a free port",
        "# instead, and tells the others through a file beside the record.",
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))",
        "export MASTER_ADDR MASTER_PORT",
        "",
        "# srun starts every rank; when one fails, it ends the others.",
        f"srun --kill-on-bad-exit=1 --cpus-per-task={asked['cpus-per-task']} \\",
        f'  {script_interpreter(cluster)} -m lab.launch.job {shlex.quote(_shown(study.folder))} "$run" "$repeat" \\',
        f"  --cluster {shlex.quote(_shown(profile))}{' --quick' if study.quick else ''}",
    ]
    return "\n".join(lines) + "\n"


def _directive(key: str, value: str | int | bool) -> str:
    name = key.replace("_", "-")
    text = f"#SBATCH --{name}" + ("" if value is True else f"={shlex.quote(str(value))}")
    return f"{text:<42}  # {WHY[name]}" if name in WHY else text


def _shown(path: Path) -> str:
    """A path as seen from the lab's folder, where it lies there."""
    path = path.resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def _comment(text: str) -> str:
    return " ".join(text.split())


def _slug(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-") or "study"
