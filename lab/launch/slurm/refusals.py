"""What Slurm would reject, by `sbatch --test-only`, and the profile's key to blame."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lab.config.cluster import Cluster
from lab.errors import InputError, LabError, Problem
from lab.formatting import count
from lab.launch.slurm.array import RefusedError, sbatch, script
from lab.launch.slurm.controller import SlurmSilentError, ask
from lab.launch.slurm.options import submitit_parameters

# A part of Slurm's complaint, the profile's key, and what to do.
COMPLAINTS = {
    "invalid partition": ("partition", "`sinfo -s` lists the partitions"),
    "invalid account": ("account", "`sacctmgr show associations user=$USER` lists your accounts"),
    "invalid qos": ("qos", "`sacctmgr show qos` lists them"),
    "invalid feature": ("constraint", "`sinfo -o '%N %f'` lists the nodes' features"),
    "reservation": ("reservation", "`scontrol show reservation` lists them"),
    "unrecognized option": ("extra", "`sbatch --help` lists the options"),
    "invalid option": ("extra", "`sbatch --help` lists the options"),
    "time limit": ("time_limit_min", "`sinfo -o '%P %l'` lists the partitions' limits"),
}


def refusals(cluster: Cluster, shapes: Sequence[tuple[int, int]]) -> list[Problem]:
    """Problems of jobs with these (ranks, devices); raises LabError without an answer."""
    problems: dict[str, Problem] = {}
    try:
        for ranks, devices in shapes:
            if problem := _refusal(cluster, ranks, devices):
                problems.setdefault(problem.where, problem)
    except SlurmSilentError as error:
        message = f"{cluster.name}: {error}; can jobs be submitted from this machine?"
        raise LabError(message) from None
    return list(problems.values())


def _refusal(cluster: Cluster, ranks: int, devices: int) -> Problem | None:
    parameters = submitit_parameters(cluster, ranks, devices=devices)
    try:
        sbatch(["--test-only"], script(Path(tempfile.gettempdir()), parameters, "true"))
    except RefusedError as error:
        return complaint(cluster, ranks * devices, str(error))
    return None


def refused(cluster: Cluster, world_size: int, error: RefusedError) -> LabError:
    """The error for a job that Slurm rejected."""
    with suppress(SlurmSilentError):
        if problem := complaint(cluster, world_size, str(error)):
            return InputError(cluster.name, [problem])
    return LabError(f"{cluster.name}: sbatch: {error}")


def complaint(cluster: Cluster, world_size: int, answer: str) -> Problem | None:
    """Slurm's complaint; None if it is due to the cluster's current state, which may pass.

    Raises SlurmSilentError if its nodes must be known and Slurm does not answer.
    """
    text = " ".join(answer.replace("sbatch: error:", "").replace("allocation failure:", "").split())
    what = f"Slurm refuses a job of {count(world_size, 'rank')}: {text}"
    for part, (key, advice) in COMPLAINTS.items():
        if part in answer.lower():
            return Problem(key, what, advice)
    # Slurm gives the same message for nodes that are too small and for drained nodes.
    return _oversized(cluster, world_size, what)


def _oversized(cluster: Cluster, world_size: int, what: str) -> Problem | None:
    """The key that requests more than any node has, whatever state the nodes are in."""
    partition = [f"--partition={cluster.partition}"] if cluster.partition else []
    lines = ask("sinfo", "--noheader", "--Node", *partition, "--format=%N|%c|%m|%G").splitlines()
    nodes = {tuple(line.split("|")) for line in lines if line.strip()}
    layout = cluster.layout(world_size)
    ranks = layout.ranks_per_node
    cpus = "cpus_per_gpu" if cluster.gpus_per_node else "cores_per_node"
    needs = {
        "gpus_per_node": (
            ranks if cluster.gpus_per_node else 0,
            [_gpus(n[3]) for n in nodes],
            "GPUs",
        ),
        cpus: (ranks * cluster.cpus_per_rank, [_number(n[1]) for n in nodes], "CPUs"),
        "mem_gb": (cluster.memory_mb(ranks) or 0, [_number(n[2]) for n in nodes], "MiB"),
    }
    available = len({name for name, *_ in nodes})
    advice = "lower it; `sinfo -N -l` lists the nodes"
    if layout.nodes > available:
        size = f"it requests {layout.nodes} nodes, but the partition has {available} in all"
        return Problem("nodes", f"{what}: {size}", advice)
    for key, (requested, sizes, unit) in needs.items():
        if requested > (largest := max(sizes, default=0)):
            size = f"it requests {requested} {unit}, but the partition's largest node has {largest}"
            return Problem(key, f"{what}: {size}", advice)
    return None


def _number(text: str) -> int:
    return int(text.rstrip("+"))  # sinfo marks the smallest of unequal values with a plus


def _gpus(resources: str) -> int:
    """The GPUs in `gpu:4`, `gpu:h100:4(S:0-1),gpu:a30:2` or `(null)`."""
    return sum(int(count) for count in re.findall(r"gpu:(?:[^:,(]+:)?(\d+)", resources))
