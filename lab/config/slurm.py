"""What a job asks of Slurm: the keys of a profile with `executor: slurm`, and how ranks are laid out on nodes."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field

from lab.config.base import Frozen
from lab.errors import Problem

# Options of sbatch that the lab sets itself, with the key of a profile that they follow; `extra` may not hold them.
_TAKEN = {
    "time": "time_limit_min",
    "nodes": "nodes",
    "ntasks": "nodes and gpus_per_node or cores_per_node",
    "ntasks-per-node": "gpus_per_node or cores_per_node",
    "cpus-per-task": "cpus_per_gpu or cores_per_rank",
    "cpus-per-gpu": "cpus_per_gpu",
    "gres": "gpus_per_node with gpu_flag: gres",
    "gpus": "gpus_per_node",
    "gpus-per-node": "gpus_per_node",
    "gpus-per-task": "gpus_per_node",
    "mem": "mem_gb",
    "mem-per-cpu": "mem_gb",
    "mem-per-gpu": "mem_gb",
    "array": "array_limit",
    "export": "environment",
    **dict.fromkeys(
        ("job-name", "output", "error", "open-mode", "signal", "requeue", "wrap", "chdir"),
        "nothing: the lab sets it",
    ),
}


def _word(value: str) -> str:
    """A value of an option of sbatch: it stands in a script's header, where nothing can be quoted."""
    if not re.fullmatch(r"[\w.,:@+&|*()\[\]/%=-]+", value) or value.startswith("-"):
        raise ValueError(
            f"{value!r} is no plain word || letters, digits and . , : @ + & | * ( ) [ ] / % = - are possible"
        )
    return value


def _command(value: str) -> str:
    """A command line whose quotes are closed, with at least one word."""
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise ValueError(
            f"{value!r} is no command: {str(error).lower()} || close the quotes"
        ) from None
    if not words or "\n" in value:
        raise ValueError(
            f"{value!r} is no command || give one line, such as 'apptainer exec --nv lab.sif'"
        )
    return value


Word = Annotated[str, AfterValidator(_word)]
Command = Annotated[str, AfterValidator(_command)]


# A key that is marked so becomes the option of sbatch of the same name.
SBATCH = Field(json_schema_extra={"sbatch": True})


class Layout(NamedTuple):
    """How the ranks of one job lie on nodes."""

    nodes: int
    ranks_per_node: int


class SlurmKeys(Frozen):
    """The keys that only Slurm knows. A node is filled before the next one is taken."""

    partition: Annotated[Word | None, SBATCH] = None
    account: Annotated[Word | None, SBATCH] = None
    qos: Annotated[Word | None, SBATCH] = None
    constraint: Annotated[Word | None, SBATCH] = None
    reservation: Annotated[Word | None, SBATCH] = None
    nodes: int = Field(default=1, ge=1, le=100_000, description="at most so many in one job")
    gpus_per_node: int = Field(default=0, ge=0, le=1024, description="one rank for each")
    cores_per_node: int = Field(
        default=0,
        ge=0,
        le=4096,
        description="of nodes without GPUs: one rank for each cores_per_rank",
    )
    gpu_flag: Literal["gres", "gpus-per-node"] = "gpus-per-node"
    gpu_type: Word | None = Field(default=None, description="as `sinfo -o %G` names it")
    cpus_per_gpu: int | None = Field(default=None, ge=1, le=1024)
    mem_gb: float | None = Field(
        default=None, gt=0, description="of a whole node, in GiB; a job gets its ranks' share"
    )
    setup: tuple[Command, ...] = Field(
        default=(), strict=False, description="shell commands, run once before the ranks start"
    )
    modules: tuple[Word, ...] = Field(default=(), strict=False, description="loaded before `setup`")
    container: Command | None = Field(
        default=None, description="the command that runs another one inside an image"
    )
    python: Command | None = Field(
        default=None, description="the interpreter on the nodes, where it is not this one"
    )
    array_limit: int | None = Field(
        default=None, ge=1, description="so many jobs of a study run at once"
    )
    extra: dict[str, str | int | bool] = Field(
        default={}, description="further options of sbatch, passed on as they are"
    )


# The keys so marked, by their option.
SBATCH_OPTIONS = {
    key.replace("_", "-"): key
    for key, field in SlurmKeys.model_fields.items()
    if field.json_schema_extra == {"sbatch": True}
}


def slurm_problems(asked: SlurmKeys) -> Iterator[Problem]:
    """What does not fit together among the keys of Slurm."""
    if not asked.gpus_per_node and not asked.cores_per_node:
        yield Problem(
            "gpus_per_node",
            "missing",
            "say how many GPUs a node has, or cores_per_node where it has none",
        )
    if asked.gpus_per_node and asked.cores_per_node:
        yield Problem(
            "cores_per_node",
            "given beside gpus_per_node",
            "ranks go by GPUs then: use cpus_per_gpu",
        )
    for key in ("cpus_per_gpu", "gpu_type"):
        if not asked.gpus_per_node and getattr(asked, key) is not None:
            yield Problem(key, "there are no GPUs", "set gpus_per_node, or leave it out")
    for key, value in asked.extra.items():
        if taken := (SBATCH_OPTIONS | _TAKEN).get(key.replace("_", "-")):
            yield Problem(f"extra.{key}", "the lab sets this option", f"use {taken}")
        elif not re.fullmatch(r"[a-z][a-z0-9_-]*", key):
            yield Problem(
                f"extra.{key}",
                "no option of sbatch has such a name",
                "write it as in `sbatch --help`, less the dashes",
            )
        elif isinstance(value, str) and ("\n" in value or not value):
            yield Problem(
                f"extra.{key}",
                f"{value!r} is not one line of text",
                "true stands for an option without a value",
            )


def lay_out(world_size: int, *, slots: int, nodes: int) -> Layout | Problem:
    """Ranks on nodes of so many slots, or what forbids it: whole nodes where one is not enough."""
    if world_size <= slots:
        return Layout(1, world_size)
    if world_size > slots * nodes:
        return Problem(
            "world_size",
            f"{world_size} ranks do not fit on {nodes} nodes of {slots}",
            f"{slots * nodes} at most",
        )
    if world_size % slots:
        below, above = world_size // slots * slots, math.ceil(world_size / slots) * slots
        return Problem(
            "world_size",
            f"{world_size} ranks do not fill nodes of {slots}",
            f"nearest that do: {below} or {above}",
        )
    return Layout(world_size // slots, slots)
