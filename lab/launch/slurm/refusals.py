"""What Slurm would refuse, asked before anything is submitted, and the key of the profile that is to blame."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from lab.config.cluster import Cluster
from lab.errors import InputError, LabError, Problem
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
    "time limit": ("time_limit_min", "`sinfo -o '%P %l'` lists the partitions' limits"),
}


def refusals(cluster: Cluster, shapes: Sequence[tuple[int, int]]) -> list[Problem]:
    """The problems of jobs of so many ranks and devices of each on this cluster; raises LabError where Slurm is not there or does not answer."""
    found: dict[str, Problem] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "submission.sh"
        for world_size, devices in shapes:
            path.write_text(
                script(
                    Path(folder),
                    submitit_parameters(cluster, world_size, Path(folder), devices=devices),
                )
            )
            try:
                sbatch(["--test-only", str(path)])
            except SlurmSilentError as error:
                raise LabError(
                    f"{cluster.name}: {error}; is this a machine from which jobs are submitted?"
                ) from None
            except RefusedError as error:
                if problem := complaint(cluster, world_size * devices, str(error)):
                    found.setdefault(problem.where, problem)
    return list(found.values())


def refused(cluster: Cluster, world_size: int, error: RefusedError) -> LabError:
    """What to say of a job that Slurm did not take."""
    problem = complaint(cluster, world_size, str(error))
    return (
        InputError(cluster.name, [problem])
        if problem
        else LabError(f"{cluster.name}: sbatch: {error}")
    )


def complaint(cluster: Cluster, world_size: int, told: str) -> Problem | None:
    """What Slurm's complaint is about; None where it is about the present state of the cluster, which may pass."""
    words = " ".join(told.replace("sbatch: error:", "").replace("allocation failure:", "").split())
    said = f"Slurm refuses a job of {world_size} rank{'s' * (world_size > 1)}: {words}"
    for part, (key, advice) in COMPLAINTS.items():
        if part in told.lower():
            return Problem(key, said, advice)
    # Slurm says the same of nodes that are too small and of nodes that are drained.
    return _too_much(cluster, world_size, said)


def _too_much(cluster: Cluster, world_size: int, said: str) -> Problem | None:
    """The key by which a job asks for more than any node has, whatever state the nodes are in."""
    chosen = [f"--partition={cluster.partition}"] if cluster.partition else []
    lines = {
        line
        for line in ask(
            "sinfo", "--noheader", "--Node", *chosen, "--format=%N|%c|%m|%G"
        ).splitlines()
        if line.strip()
    }
    nodes = [line.split("|") for line in lines]
    layout = cluster.layout(world_size)
    memory = cluster.memory_mb(layout.ranks_per_node) or 0
    cpus = "cpus_per_gpu" if cluster.gpus_per_node else "cores_per_node"
    asked = [
        ("nodes", layout.nodes, len({name for name, *_ in nodes}), "nodes"),
        (
            "gpus_per_node",
            layout.ranks_per_node if cluster.gpus_per_node else 0,
            _most(_gpus(node[3]) for node in nodes),
            "GPUs",
        ),
        (
            cpus,
            layout.ranks_per_node * cluster.cpus_per_rank,
            _most(_number(node[1]) for node in nodes),
            "CPUs",
        ),
        ("mem_gb", memory, _most(_number(node[2]) for node in nodes), "MiB"),
    ]
    for key, wanted, there, unit in asked:
        if wanted > there:
            place = "in all" if key == "nodes" else "on its largest node"
            return Problem(
                key,
                f"{said}: it asks for {wanted} {unit}, the partition has {there} {place}",
                "lower it, or `sinfo -N -l`",
            )
    return None


def _most(numbers: Iterable[int]) -> int:
    return max(numbers, default=0)


def _number(text: str) -> int:
    return int(text.rstrip("+"))  # sinfo marks the smallest of unequal ones with a plus


def _gpus(resources: str) -> int:
    """The GPUs in `gpu:4`, `gpu:h100:4(S:0-1),gpu:a30:2` or `(null)`."""
    return sum(int(count) for count in re.findall(r"gpu:(?:[^:,(]+:)?(\d+)", resources))
