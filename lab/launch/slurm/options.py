"""What a job requests from Slurm: a profile translated to sbatch options, and two output formats.

One format is submitit's parameters, with which `lab run` submits; the other is scripts for people
who submit by hand. A new plain option of sbatch needs only a key in `lab.config.slurm`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.config.cluster import Cluster, find_profile
from lab.config.run import Run
from lab.config.slurm import SBATCH_OPTIONS, command_for_shell, for_shell
from lab.config.study import Study, Task
from lab.errors import InputError
from lab.files import ROOT, write_atomically
from lab.formatting import count

# The longest time before its limit at which a job is warned, in s; it then saves its state.
NOTICE_S = 90
COMMENTS = {
    "ntasks-per-node": "one process for each rank",
    "cpus-per-task": "for each rank",
    "mem": "of each node: the ranks' share",
    "time": "minutes",
    "signal": "a warning, in seconds before the limit: training saves its state",
    "requeue": "after a preemption or a node's failure it starts again",
    "open-mode": "and writes on in the same log",
    "array": "a job for each line of `tasks`; after %, how many run at once",
}

Options = dict[str, str | int | bool]


def sbatch_options(
    cluster: Cluster, ranks: int, *, devices: int = 1, jobs: int | None = None
) -> Options:
    """sbatch options of a job of `ranks` ranks with `devices` GPUs each, or of an array of them.

    True marks an option without a value. Raises InputError if the ranks do not fit.
    """
    nodes, ranks_per_node = cluster.layout(ranks, devices=devices)
    slots = ranks_per_node * devices
    extra = {key.replace("_", "-"): value for key, value in cluster.extra.items()}
    gpus = _gpu_options(cluster, nodes=nodes, gpus_per_node=slots, gpus_per_task=devices)
    if "gres" in gpus and "gres" in extra:
        extra["gres"] = f"{gpus['gres']},{extra['gres']}"
    memory = cluster.memory_mb(slots)
    limit = f"%{cluster.array_limit}" if cluster.array_limit else ""
    options = {
        **{name: getattr(cluster, key) for name, key in SBATCH_OPTIONS.items()},
        "nodes": nodes,
        "ntasks-per-node": ranks_per_node,
        "cpus-per-task": cluster.cpus_per_rank * devices,
        **gpus,
        "mem": None if memory is None else f"{memory}M",
        "time": cluster.time_limit_min,
        # A tenth of the time limit if that is short.
        "signal": f"USR2@{min(NOTICE_S, 6 * cluster.time_limit_min)}",
        # Without it a preempted job would be lost on many sites. Of two contradictory options the
        # last counts, and submitit sorts them.
        "requeue": extra.get("no-requeue") is not True,
        "open-mode": "append",
        "array": None if jobs is None else f"0-{jobs - 1}{limit}",
        **extra,
    }
    # Not by equality, because 0 is a value.
    return {name: value for name, value in options.items() if not (value is None or value is False)}


def _gpu_options(
    cluster: Cluster, *, nodes: int, gpus_per_node: int, gpus_per_task: int
) -> dict[str, str]:
    """The option that asks for the GPUs of a job; none without GPUs, or if they need none."""
    counts = {
        "gres": gpus_per_node,
        "gpus-per-node": gpus_per_node,
        "gpus": nodes * gpus_per_node,
        "gpus-per-task": gpus_per_task,
    }
    flag = cluster.gpu_flag
    if flag == "none" or not cluster.gpus_per_node:
        return {}
    kind = [cluster.gpu_type] if cluster.gpu_type else []
    return {flag: ":".join([*(["gpu"] if flag == "gres" else []), *kind, str(counts[flag])])}


def srun_options(cluster: Cluster, ranks: int, *, devices: int = 1) -> list[str]:
    """Options of the srun that starts the ranks of a job, each as one word."""
    nodes, ranks_per_node = cluster.layout(ranks, devices=devices)
    # A rank that could not start would let the others wait for it. Since Slurm 22.05, srun does not
    # inherit the number of CPUs from sbatch.
    step: Options = {"kill-on-bad-exit": 1, "cpus-per-task": cluster.cpus_per_rank * devices}
    if "ntasks-per-node" not in sbatch_options(cluster, ranks, devices=devices):
        step |= {"nodes": nodes, "ntasks-per-node": ranks_per_node}
    step |= {key.replace("_", "-"): value for key, value in cluster.srun.items()}
    return [
        f"--{name}" if value is True else f"--{name}={value}"
        for name, value in step.items()
        if value is not False
    ]


def setup_commands(cluster: Cluster) -> list[str]:
    """Shell commands that make a node ready: modules, then the site's own.

    Without one of its modules a job might still run, but with another network or library.
    """
    loads = (f"module load {shlex.quote(name)}" for name in cluster.modules)
    return [
        *(f"{load} || {{ echo {shlex.quote(f'{load} failed')}; exit 1; }}" for load in loads),
        *cluster.setup,
    ]


def _exports(variables: Mapping[str, str]) -> list[str]:
    return [f"export {name}={for_shell(value)}" for name, value in variables.items()]


def interpreter(cluster: Cluster, default: str) -> str:
    """The shell command for Python on a node; `default` unless the profile sets another."""
    if cluster.container is None:
        return command_for_shell(cluster.python) if cluster.python else default
    return command_for_shell(f"{cluster.container} {cluster.python or 'python3'}")


def submitit_parameters(
    cluster: Cluster, ranks: int, *, devices: int = 1, jobs: int | None = None
) -> dict[str, Any]:
    """The same as parameters of submitit's script."""
    options = sbatch_options(cluster, ranks, devices=devices, jobs=jobs)
    # submitit computes with these three; it writes the others unchanged.
    own = {
        name.replace("-", "_"): options.pop(name, None)
        for name in ("nodes", "ntasks-per-node", "time")
    }
    return own | {
        "additional_parameters": options,
        # A rank sets the other variables itself, and says which of those that they use is not set.
        "setup": [*setup_commands(cluster), *_exports(cluster.variables_at_start)],
        "srun_args": srun_options(cluster, ranks, devices=devices),
        "stderr_to_stdout": True,
        "wckey": None,
    }


def scripts(study: Study, profile: str | Path | Cluster) -> dict[str, str]:
    """Scripts of a study by file name: one per configuration, and `study/` with one per world size.

    Raises InputError for a profile with another executor, and for runs that do not fit its nodes.
    """
    cluster = Cluster.of(profile)
    path = find_profile(cluster.reference)
    if cluster.executor != "slurm":
        what = f"executor {cluster.executor!r} does not use sbatch"
        advice = "name a profile with executor: slurm, as with --cluster mysite"
        raise InputError.of(path, "executor", what, advice)
    shapes = list(dict.fromkeys((run.processes, run.devices) for run in study.runs))
    if problems := cluster.misfits(shapes):
        raise InputError(cluster.name, problems)
    groups = {
        f"{name}.sbatch": (run.label, [task for task in study.tasks if task.run == run])
        for run, name in _names(study).items()
    }
    for ranks, devices in shapes:
        shape = count(ranks, "rank")
        if devices > 1:
            shape = f"one process with {devices} devices"
        name = f"study/x{ranks * devices}{'-one-process' * (devices > 1)}.sbatch"
        tasks = [t for t in study.tasks if (t.run.processes, t.run.devices) == (ranks, devices)]
        groups[name] = (f"all runs of {shape}", tasks)
    return {name: _script(study, cluster, path, *group) for name, group in groups.items()}


def write_scripts(
    study: Study | str | Path, profile: str | Path | Cluster, folder: str | Path
) -> list[Path]:
    """Write the scripts of a study into a folder; returns their paths."""
    texts = {Path(folder, name): text for name, text in scripts(Study.of(study), profile).items()}
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode())
        except OSError as error:
            raise InputError.of(
                path, "folder", f"cannot be written: {error.strerror}", "name another one"
            ) from None
    return list(texts)


def _names(study: Study) -> dict[Run, str]:
    """A file name for each configuration: from the grid's axes, or its id."""
    names: dict[Run, str] = {}
    words = {axis: axis.replace("global_batch_size", "batch") for axis in study.axes}
    words.pop("world_size", None)
    for run in study.runs:
        parts = [f"{word}-{getattr(run, axis)}" for axis, word in words.items()]
        name = "-".join([f"x{run.world_size}", *parts])
        plain = re.fullmatch(r"[\w.-]{1,80}", name) and name not in names.values()
        names[run] = name if plain else f"x{run.world_size}-{run.id}"
    return names


def _script(study: Study, cluster: Cluster, profile: Path, what: str, tasks: Sequence[Task]) -> str:
    run = tasks[0].run
    options = sbatch_options(cluster, run.processes, devices=run.devices, jobs=len(tasks))
    slug = re.sub(r"[^\w.-]+", "-", study.name).strip("-") or "study"
    setup = [*setup_commands(cluster), *_exports(cluster.variables)]
    srun = shlex.join(srun_options(cluster, run.processes, devices=run.devices))
    quick = " --quick" if study.quick else ""
    where, paths = "in any folder", [study.folder.resolve(), profile.resolve()]
    if paths[0].is_relative_to(ROOT):  # a checkout, which may lie elsewhere tomorrow
        where = "in the lab's folder"
        paths = [path.relative_to(ROOT) if path.is_relative_to(ROOT) else path for path in paths]
    folder, path = (shlex.quote(str(path)) for path in paths)
    lines = [
        "#!/bin/bash",
        f"# {_one_line(study.title)}: {what}.",
        f"# Submit it {where}: sbatch FILE. `lab report` reads the records it leaves.",
        _directive("job-name", f"{slug}-x{run.world_size}"),
        *(_directive(name, value) for name, value in options.items()),
        _directive("output", "%x-%A_%a.log"),
        "",
        "tasks=(  # the run's id and the number of its repeat",
        *(f"  '{task.run.id} {task.repeat}'  # {_one_line(task.label)}" for task in tasks),
        ")",
        'read -r run repeat <<<"${tasks[SLURM_ARRAY_TASK_ID]}"',
        "",
        *([*setup, ""] if setup else []),
        "# Where ranks meet: torchrun and scripts with init_method='env://' read these two.",
        "# The lab's rank 0 takes a free port, and publishes it in a file beside the record.",
        f"MASTER_ADDR=$({_first_node(cluster)})",
        "MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))",
        "export MASTER_ADDR MASTER_PORT",
        "",
        "# srun starts every rank; when one fails, it ends the others.",
        f"srun {srun} \\",
        f'  {interpreter(cluster, "python")} -m lab.launch.job {folder} "$run" "$repeat" \\',
        f"  --cluster {path}{quick}",
    ]
    return "\n".join(lines) + "\n"


def _first_node(cluster: Cluster) -> str:
    """A command for the address of this node, the first; its name may lead to a slower network."""
    if cluster.interfaces:
        name = shlex.quote(cluster.interfaces[0])
        return f"ip -4 -oneline address show {name} | awk -F '[ /]+' '{{print $4; exit}}'"
    return 'scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1'


def _directive(name: str, value: str | int | bool) -> str:
    text = f"#SBATCH --{name}" + ("" if value is True else f"={shlex.quote(str(value))}")
    return f"{text:<42}  # {COMMENTS[name]}" if name in COMMENTS else text


def _one_line(text: str) -> str:
    return " ".join(text.split())
