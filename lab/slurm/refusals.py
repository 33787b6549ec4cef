"""What Slurm would refuse, asked before anything is submitted, and the key of the profile that is to blame."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from lab.cluster import Cluster
from lab.errors import InputError, LabError, Problem
from lab.slurm.array import RefusedError, sbatch, script
from lab.slurm.controller import SlurmSilentError
from lab.slurm.parameters import parameters

# A part of Slurm's complaint, the profile's key, and what to do. What is in none of these may pass with time.
COMPLAINTS = {
    "invalid partition": ("partition", "`sinfo -s` lists the partitions"),
    "invalid account": ("account", "`sacctmgr show associations user=$USER` lists your accounts"),
    "invalid qos": ("qos", "`sacctmgr show qos` lists them"),
    "invalid feature": ("constraint", "`sinfo -o '%N %f'` lists the nodes' features"),
    "reservation": ("reservation", "`scontrol show reservation` lists them"),
    "time limit": ("time_limit_min", "`sinfo -o '%P %l'` lists the partitions' limits"),
    "memory specification": ("mem_gb", "`sinfo -o '%N %m'` lists the nodes' memory in MB"),
    "generic resource": ("gpus_per_node", "`sinfo -o '%N %G'` lists the nodes' GPUs"),
    "node count": ("nodes", "`sinfo -s` lists the partitions' nodes"),
    "node configuration is not available": (
        "gpus_per_node",
        "no node has so many GPUs, CPUs or so much memory: see `sinfo -N -l`",
    ),
}


def refusals(cluster: Cluster, world_sizes: Sequence[int]) -> list[Problem]:
    """The problems of jobs of these sizes on this cluster; raises LabError where Slurm is not there or does not answer."""
    found: dict[str, Problem] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "submission.sh"
        for world_size in world_sizes:
            path.write_text(script(Path(folder), parameters(cluster, world_size, Path(folder))))
            try:
                sbatch(["--test-only", str(path)])
            except SlurmSilentError as error:
                raise LabError(f"{cluster.name}: {error}; is this a machine from which jobs are submitted?") from None
            except RefusedError as error:
                if problem := complaint(str(error), world_size):
                    found.setdefault(problem.where, problem)
    return list(found.values())


def complaint(told: str, world_size: int) -> Problem | None:
    """What Slurm's complaint is about; None where it is about the present state of the cluster."""
    words = " ".join(told.replace("sbatch: error:", "").replace("allocation failure:", "").split())
    for part, (key, advice) in COMPLAINTS.items():
        if part in told.lower():
            return Problem(key, f"Slurm refuses a job of {world_size} rank{'s' * (world_size > 1)}: {words}", advice)
    return None


def refused(cluster: Cluster, world_size: int, error: RefusedError) -> LabError:
    """What to say of a job that Slurm did not take."""
    problem = complaint(str(error), world_size)
    return InputError(cluster.name, [problem]) if problem else LabError(f"{cluster.name}: sbatch: {error}")
