"""How a job of a shape is asked for: a profile as submitit's parameters."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from lab.cluster import Cluster
from lab.slurm.array import TAKE_WORK

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
    return more | {key.replace("_", "-"): value for key, value in cluster.extra.items() if value is not False}
