"""How a job of a shape is asked for: a profile as submitit's parameters."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from lab.cluster import Cluster
from lab.slurm.array import TAKE_WORK


def parameters(cluster: Cluster, world_size: int, folder: Path) -> dict[str, Any]:
    """The parameters of submitit's Slurm executor; what the array needs of `folder` is in the setup of its script."""
    import os

    nodes = int(os.environ.get("X_NODES", 1))
    return {
        "nodes": nodes,
        "ntasks_per_node": world_size // nodes if world_size >= nodes else 1,
        "time": cluster.time_limit_min,
        "cpus_per_task": 1,
        "stderr_to_stdout": True,
        "array_parallelism": 64,
        "mem_per_cpu": "1000M",
        "setup": [TAKE_WORK % shlex.quote(str(folder)), *os.environ.get("X_SETUP", "").split("\n")],
        "signal_delay_s": 60,
        "gres": os.environ.get("X_GRES"),
        "partition": os.environ.get("X_PART"),
        "additional_parameters": {"requeue": True},
    }
