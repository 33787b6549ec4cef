"""Cluster: where runs execute, read from a profile in slurm/*.yaml; it knows nothing of runs.

A profile with `executor: replay` holds a published table in place of a machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from lab import machine
from lab.config.base import Frozen, InvalidValueError, Words, problems_of, unknown_keys
from lab.config.emulation import MEASURED, Compute, Emulated, Link
from lab.config.slurm import (
    VARIABLE_NAME,
    Layout,
    SlurmKeys,
    Word,
    advice_on_unknown,
    check_variables,
    slurm_problems,
)
from lab.config.variables import doubtful_variables
from lab.errors import InputError, Problem, nearest, require_type
from lab.files import SHARED, USER, read_yaml
from lab.formatting import count

NOTICE = "Replay of published numbers: nothing was measured here"
Seconds = Annotated[float, Field(gt=0)]


class Row(BaseModel):
    """One published time: `step_s` of the step in s, a list where each rank has its own.

    Any other key is a field of a run or of its model, and the run must have that value:
    `{layers: 12, world_size: 2}`.
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, allow_inf_nan=False)

    world_size: int = Field(ge=1)
    steps: int = Field(ge=1)  # over which the table's time was measured
    step_s: Seconds | Annotated[list[Seconds], Field(min_length=1)]

    @property
    def times(self) -> list[float]:
        """Times by rank, in s; the same for all if the table has only one."""
        return self.step_s if isinstance(self.step_s, list) else [self.step_s] * self.world_size

    @property
    def where(self) -> dict[str, Any]:
        """The values that a run must have."""
        return {"world_size": self.world_size, **(self.model_extra or {})}


class AllReduce(Frozen):
    """A published time of an all-reduce, in s."""

    world_size: int = Field(ge=2)
    bytes: int = Field(gt=0)
    seconds: Seconds


class Published(Frozen):
    """A published table: its source, device, what is needed to interpret it, and its rows."""

    source: Words = Field(max_length=500)
    gpu: Words = Field(max_length=100)
    note: str = Field(default="", max_length=500)
    rows: list[Row] = []
    all_reduce: list[AllReduce] = []

    @property
    def largest(self) -> int:
        """The most ranks of any row."""
        rows: list[Row | AllReduce] = [*self.rows, *self.all_reduce]
        return max((row.world_size for row in rows), default=1)


class Budget(Frozen):
    """Core-hours and GPU-hours that a study may take, unless it is run with --yes.

    With `per: folder`, all studies that lie beside each other share them, such as a learner's.
    """

    core_hours: float | None = Field(default=None, gt=0)
    gpu_hours: float | None = Field(default=None, gt=0)
    per: Literal["study", "folder"] = "study"

    @property
    def label(self) -> str:
        """For people: `20 GPU-hours and 500 core-hours`."""
        parts = {"GPU": self.gpu_hours, "core": self.core_hours}
        label = " and ".join(f"{hours:g} {unit}-hours" for unit, hours in parts.items() if hours)
        return f"{label} for all studies in the same folder" if self.per == "folder" else label


# Beginnings of variables that a rank sets too late: srun, the dynamic linker and Python read them
# when they start.
READ_AT_START = ("SLURM_", "SRUN_", "LD_", "PYTHON")
MOST_SLEEPING = 16  # emulated ranks, each of which still holds a model and sends its gradients


def _value(value: str) -> str:
    if "\0" in value:
        raise InvalidValueError(f"{value!r}: a variable cannot hold a NUL", "leave it out")
    return check_variables(value)


def _variable(name: str) -> str:
    if not re.fullmatch(VARIABLE_NAME, name):
        what = f"{name!r} is not a valid name of an environment variable"
        raise InvalidValueError(what, "use letters, digits and _")
    return name


class Cluster(SlurmKeys):
    """A profile: the executor and what it gives to each rank.

    `device: auto` uses GPUs if there are any, else CPU cores. Locally `devices` is the number of
    ranks that run at once: GPUs, or groups of `cores_per_rank` physical cores.
    """

    name: str
    file: str | None = None  # set by `load` for a profile that is not found by its name
    executor: Literal["local", "slurm", "replay"] = "local"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    backend: Literal["auto", "gloo", "nccl"] = "auto"  # auto: nccl on GPUs, else gloo
    devices: int | Literal["auto"] = "auto"
    cores_per_rank: int = Field(default=1, ge=1, le=1024)
    # All ranks of a job and their loader processes share this many cores, however many ranks there
    # are, as in a job that requested too few CPUs.
    cores_per_job: int | None = Field(default=None, ge=1, le=1024)
    # A run that takes longer is ended; at most a year.
    time_limit_min: int = Field(default=120, ge=1, le=525_600)
    # A run without progress for this long is ended; at most a day.
    hang_timeout_s: int = Field(default=300, ge=5, le=86_400)
    # How much of a long run may be lost if it ends suddenly.
    checkpoint_every_min: float = Field(default=10.0, gt=0, le=525_600)
    # A repeat during which other processes used the ranks' cores is measured once more.
    repeat_disturbed: bool = False
    # Local jobs on GPUs, or on emulated ones, run beside each other, each on devices of its own.
    pack_jobs: bool = False
    budget: Budget | None = None  # what a study may take, unless it is run with --yes
    # Variables set for every rank; `$NAME` and `~` in their values are expanded on its node.
    environment: dict[
        Annotated[str, AfterValidator(_variable)], Annotated[str, AfterValidator(_value)]
    ] = {}
    published: Published | None = None  # the table that executor: replay shows
    # Used by gloo and NCCL, such as ib0; several are separated by commas.
    network_interface: Word | None = None
    link: Link | None = None  # emulated, between ranks of one machine
    compute: Compute | None = None  # emulated: ranks sleep, and may outnumber the cores

    @classmethod
    def load(cls, profile: str | Path = "local") -> Cluster:
        """Read a profile by its name or path; raises InputError with all its problems."""
        path = find_profile(profile)
        content = read_yaml(path)
        names = set(cls.model_fields) - {"name", "file"}
        problems = unknown_keys(content, names)
        if content.get("executor") == "slurm":
            problems = [replace(p, advice=advice_on_unknown(p.where, names)) for p in problems]
        fields = {key: value for key, value in content.items() if key in cls.model_fields}
        try:
            # Two files may have one stem; a profile that its stem finds needs no path.
            file = None if is_found_by_name(path.stem, path) else str(path.resolve())
            cluster = cls.model_validate(fields | {"name": path.stem, "file": file})
        except ValidationError as error:
            problems += [problem for _, problem in problems_of(error, cls, fields)]
            raise InputError(str(path), problems) from None
        if problems := [*problems, *cluster._problems()]:
            raise InputError(str(path), problems)
        if os.environ.get("LAB_REPEAT_DISTURBED") == "0":
            return cluster.model_copy(update={"repeat_disturbed": False})
        return cluster

    @classmethod
    def of(cls, cluster: str | Path | Cluster) -> Cluster:
        """`cluster` itself if it is loaded, otherwise what `load` reads."""
        return cluster if isinstance(cluster, Cluster) else cls.load(cluster)

    def _problems(self) -> Iterator[Problem]:
        here = {"devices", "cores_per_job", "link", "compute", "pack_jobs"}
        own = {"slurm": set(SlurmKeys.model_fields), "local": here, "replay": {"published"}}
        for other, keys in own.items():
            for key in sorted(keys & self.model_fields_set) if other != self.executor else ():
                advice = f"leave it out, or set executor: {other}"
                yield Problem(key, f"is only for executor: {other}", advice)
        if self.executor == "slurm":
            yield from slurm_problems(self)
        elif self.executor == "local":
            yield from self._problems_here()
        elif not self.published:
            what = "missing: the table to replay"
            yield Problem("published", what, "give its source, gpu and rows")
        for name in self.variables_at_start if self.executor != "slurm" else ():
            what = "it is read before a rank can set it"
            yield Problem(f"environment.{name}", what, "set it for `lab run`")
        # Only slips of the pen, as LAB_DATA may be meant for the script.
        for doubt in doubtful_variables(self.environment, likeness=0.8):
            yield replace(doubt, where=f"environment.{doubt.where}")
        if self.backend == "nccl" and self.device_kind == "cpu":
            what = "'nccl', but ranks compute on CPUs"
            yield Problem("backend", what, "set backend: gloo or auto")

    def _problems_here(self) -> Iterator[Problem]:
        if self.emulates and self.device == "cuda":
            what = "'cuda', but links and compute are emulated for CPU ranks only"
            yield Problem("device", what, "set device: cpu")
        elif self.device == "cuda" and not machine.gpus():
            what = "'cuda', but no GPU is visible here"
            yield Problem("device", what, "set device: auto, or see `lab doctor`")
        elif self.devices != "auto" and not 1 <= self.devices <= self._devices_here():
            what = f"{self.devices}, but there are {self._devices_here()} here"
            yield Problem("devices", what, "set devices: auto")
        if self.cores_per_job and self.cores_per_job > len(machine.cores()):
            what = f"{self.cores_per_job}, but there are {len(machine.cores())} here"
            yield Problem("cores_per_job", what, f"use at most {len(machine.cores())}")
        if self.pack_jobs and self.cores_per_job:
            what = "true, but with cores_per_job all ranks have the same cores"
            yield Problem("pack_jobs", what, "leave one of them out")
        elif self.pack_jobs and "CUDA_VISIBLE_DEVICES" in self.environment:
            what = "true, but CUDA_VISIBLE_DEVICES names each job's own GPUs"
            yield Problem("pack_jobs", what, "leave it out of environment, or set it for `lab run`")
        elif self.pack_jobs and not self.packs and (self.emulates or self.device == "cpu"):
            what = "true, but jobs that compute on CPUs would disturb each other"
            yield Problem("pack_jobs", what, "leave it out, or emulate a GPU's compute by its name")

    def _devices_here(self) -> int:
        if self.compute is not None:
            return MOST_SLEEPING
        if self.device_kind == "cuda":
            return len(machine.gpus())
        return len(machine.cores()) // self.cores_per_rank

    @property
    def reference(self) -> str:
        """What finds the profile: its name, or the path of its file."""
        return self.file or self.name

    @property
    def emulates(self) -> bool:
        """Whether anything here is emulated."""
        return self.link is not None or self.compute is not None

    @property
    def packs(self) -> bool:
        """Whether jobs run beside each other; with `device: auto`, where there are GPUs."""
        described = self.compute is not None and self.compute.emulated != MEASURED
        return self.pack_jobs and (self.device_kind == "cuda" or described)

    @property
    def device_kind(self) -> Literal["cpu", "cuda"]:
        """The kind of device that a rank computes on."""
        if self.emulates:
            return "cpu"
        if self.device != "auto":
            return self.device
        gpus = self.gpus_per_node if self.executor == "slurm" else machine.gpus()
        return "cuda" if gpus else "cpu"

    def on(self, device: Literal["any", "cpu", "cuda"]) -> Cluster | None:
        """The same cluster for runs that need this kind of device; None if it has none."""
        if device in {"any", self.device_kind}:
            return self
        if device == "cuda":
            return None
        return self.model_copy(update={"device": "cpu", "devices": "auto"})

    @property
    def settled(self) -> Cluster:
        """The same cluster with this machine's GPUs counted, as jobs may see fewer of them."""
        if self.executor != "local" or self.device_kind == "cpu":
            return self
        return self.model_copy(update={"device": "cuda", "devices": self.ranks_per_node})

    @property
    def ranks_per_node(self) -> int:
        """How many ranks one node can run at once."""
        if self.published is not None:
            return self.published.largest
        if self.executor == "slurm":
            return self.gpus_per_node or self.cores_per_node // self.cores_per_rank
        return self._devices_here() if self.devices == "auto" else self.devices

    @property
    def capacity(self) -> int:
        """How many ranks one job can have on this cluster."""
        return self.ranks_per_node * self.nodes

    def layout(self, ranks: int, *, devices: int = 1) -> Layout:
        """Nodes and ranks on each of them, if each rank drives `devices` devices.

        A node is filled before the next one is used. Raises InputError if the ranks do not fit,
        would leave nodes half empty, or would have devices on several nodes.
        """
        total, slots = ranks * devices, self.ranks_per_node
        if total > self.capacity:
            what = f"{count(total, 'rank')} do not fit on {count(self.nodes, 'node')} of {slots}"
            advice = f"use at most {self.capacity}"
        elif total <= slots:
            return Layout(1, ranks)
        elif total % slots:
            below = total // slots * slots
            what = f"{total} ranks do not fill nodes of {slots}"
            advice = f"nearest that fill them: {below} or {below + slots}"
        elif devices > slots:
            what = f"one process cannot drive {devices} devices on {total // slots} nodes"
            advice = f"use at most {slots}"
        else:
            return Layout(total // slots, slots // devices)
        raise InputError.of(self.name, "world_size", what, advice)

    def misfits(self, shapes: Iterable[tuple[int, int]]) -> list[Problem]:
        """Problems of jobs that cannot be laid out, given as (ranks, devices of each rank)."""
        problems: list[Problem] = []
        for ranks, devices in shapes:
            try:
                self.layout(ranks, devices=devices)
            except InputError as error:
                problems += error.problems
        return problems

    @property
    def whole_nodes(self) -> bool:
        """Whether a job has all GPUs and CPUs of its nodes, however few of them its ranks use."""
        unasked = bool(self.gpus_per_node) and self.gpu_flag == "none"
        return self.executor == "slurm" and (unasked or self.extra.get("exclusive") is True)

    @property
    def cpus_per_rank(self) -> int:
        """CPUs requested from Slurm for each rank."""
        return self.cpus_per_gpu or self.cores_per_rank

    def memory_mb(self, ranks_on_node: int) -> int | None:
        """These ranks' share of a node's memory, in MiB; None if the site decides."""
        if self.mem_gb is None:
            return None
        return max(int(self.mem_gb * 1024 * ranks_on_node / self.ranks_per_node), 1)

    @property
    def interfaces(self) -> list[str]:
        """The names of the interfaces that ranks use to reach each other; none if not given."""
        return self.network_interface.split(",") if self.network_interface else []

    @property
    def variables(self) -> dict[str, str]:
        """Environment of every rank: the profile's own variables, and those of its other keys."""
        if self.network_interface is None:
            return dict(self.environment)
        names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        return dict.fromkeys(names, self.network_interface) | self.environment

    @property
    def variables_at_start(self) -> dict[str, str]:
        """Those of the variables that must be set before srun starts a rank."""
        return {n: value for n, value in self.variables.items() if n.startswith(READ_AT_START)}

    def cores_of(self, local_rank: int) -> tuple[int, ...]:
        """The cores of one rank; on Slurm those of its job, as the site binds ranks to cores.

        Their number is the same at every world size, so that the baseline is not measured on a
        stronger machine; with `cores_per_job` all ranks have the same cores.
        """
        cores = machine.cores()
        if self.executor == "slurm":
            return cores
        if self.cores_per_job is not None:
            return cores[: self.cores_per_job]
        on_gpus = self.device_kind == "cuda"
        share = max(len(cores) // self.capacity, 1) if on_gpus else self.cores_per_rank
        first = local_rank * share % len(cores)
        return cores[first : first + share]

    @property
    def threads_per_rank(self) -> int:
        """Threads of a rank: one for each core that it has to itself."""
        if self.executor == "slurm":
            return self.cpus_per_rank
        return self.cores_per_rank if self.cores_per_job else len(self.cores_of(0))

    @property
    def memory_bytes_per_rank(self) -> int | None:
        """Memory of a rank: its GPU's, or its share of main memory; None if unknown."""
        if self.executor == "replay":
            return None
        if self.executor == "slurm":
            mib = self.memory_mb(1) if self.device_kind == "cpu" else None
            return None if mib is None else mib * 2**20
        if self.device_kind == "cuda":
            sizes = [gpu.memory for gpu in machine.gpus()]
            return min((size for size in sizes if size), default=None) if all(sizes) else None
        return machine.memory_bytes() // max(self.capacity, 1)

    @property
    def description(self) -> str:
        """One line for people."""
        if self.published is not None:
            ranks = f"up to {count(self.capacity, 'rank')} of {self.published.gpu}"
            return f"{self.name}: a replay of {self.published.source}, {ranks}"
        units = count(self.capacity, "GPU" if self.device_kind == "cuda" else "CPU rank")
        units += f" on {self.nodes} nodes" if self.nodes > 1 else ""
        line = f"{self.name}: {units}, {self.executor} executor"
        if self.emulates:
            line += f", emulated: {Emulated(link=self.link, compute=self.compute).label}"
        return line


def profile_folders() -> tuple[Path, ...]:
    """Where profiles lie: `slurm/` here, the user's configuration, and those of the lab."""
    return Path("slurm"), USER / "slurm", SHARED / "slurm"


def profile_names() -> set[str]:
    """The names of all profiles in these folders."""
    return {path.stem for folder in profile_folders() for path in folder.glob("*.yaml")}


def find_profile(profile: str | Path) -> Path:
    """The file of a profile, by its path or its name in a folder of profiles; InputError."""
    require_type(profile, str | Path, "cluster", "a profile by its name or path")
    for path in (Path(profile), *(folder / f"{profile}.yaml" for folder in profile_folders())):
        if path.suffix in {".yaml", ".yml"} and path.is_file():
            return path
    raise InputError.of(
        profile, "cluster", "no such profile", nearest(Path(profile).stem, profile_names())
    )


def is_found_by_name(name: str, path: Path | None = None) -> bool:
    """Whether a folder of profiles holds one of this name, and it is the one at `path`."""
    try:
        profile = find_profile(name)
    except InputError:
        return False
    return path is None or profile.samefile(path)
