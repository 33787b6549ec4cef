"""Cluster: where runs execute, read from a profile in slurm/*.yaml. It knows nothing of runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError

from lab import machine
from lab.config.emulation import Compute, Emulated, Link
from lab.config.replay import Published
from lab.config.slurm import Layout, SlurmKeys, Word, lay_out, slurm_problems
from lab.errors import InputError, Problem, nearest
from lab.files import ROOT, problems_of, read_yaml, unknown_keys

MOST_SLEEPING = (
    16  # ranks whose compute is emulated: each still holds a model, and moves its gradients
)


def _variable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"{name!r} is no name of a variable || letters, digits and _ are possible")
    return name


class Cluster(SlurmKeys):
    """A profile: the executor and what it gives to each rank.

    `device: auto` takes GPUs where there are any, else CPU cores. Locally `devices` is how many ranks run at once: GPUs,
    or groups of `cores_per_rank` physical cores.
    """

    name: str
    executor: Literal["local", "slurm", "replay"] = "local"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    backend: Literal["auto", "gloo", "nccl"] = Field(
        default="auto", description="auto: nccl on GPUs, else gloo"
    )
    devices: int | Literal["auto"] = Field(default="auto")
    cores_per_rank: int = Field(default=1, ge=1, le=1024)
    time_limit_min: int = Field(default=120, ge=1, description="a run that takes longer is ended")
    hang_timeout_s: int = Field(
        default=300, ge=5, description="a run without progress for so long is ended"
    )
    checkpoint_every_min: float = Field(
        default=10.0, gt=0, description="how much of a long run its sudden end may cost"
    )
    repeat_disturbed: bool = Field(
        default=False,
        description="a repeat during which other processes took the ranks' cores is measured once more",
    )
    environment: dict[Annotated[str, AfterValidator(_variable)], str] = Field(
        default={}, description="variables set for every rank"
    )
    published: Published | None = Field(
        default=None, description="the table that executor: replay shows"
    )
    network_interface: Word | None = Field(
        default=None, description="over which gloo and NCCL talk, such as ib0"
    )
    link: Link | None = Field(default=None, description="emulated, between ranks of one machine")
    compute: Compute | None = Field(
        default=None, description="emulated: ranks sleep, and may outnumber the cores"
    )

    @classmethod
    def load(cls, profile: str | Path = "local") -> Cluster:
        """Read a profile by its name under `slurm/` or by its path; raises InputError with every problem at once."""
        path = find_profile(profile)
        content = read_yaml(path)
        problems = unknown_keys(content, set(cls.model_fields) - {"name"})
        known = {key: value for key, value in content.items() if key in cls.model_fields}
        try:
            cluster = cls.model_validate(known | {"name": path.stem})
        except ValidationError as error:
            # Pydantic puts the members of a union and the marks of a mapping's key into its paths.
            tags = dict.fromkeys(
                (
                    "int",
                    "str",
                    "bool",
                    "[key]",
                    "function-after[_word(), str]",
                    "function-after[_command(), str]",
                )
            )
            raise InputError(
                str(path), problems + [p for _, p in problems_of(error, cls, tags)]
            ) from None
        problems += cluster._misplaced()
        if cluster.executor == "replay":
            told = "missing: the table that is replayed"
            problems += (
                []
                if cluster.published
                else [Problem("published", told, "give its source, gpu and rows")]
            )
        else:
            problems += (
                cluster._problems_here() if cluster.executor == "local" else slurm_problems(cluster)
            )
        if cluster.backend == "nccl" and cluster.device_kind == "cpu":
            problems.append(
                Problem("backend", "'nccl', and ranks compute on CPUs", "set backend: gloo or auto")
            )
        if problems:
            raise InputError(str(path), problems)
        return cluster

    def _misplaced(self) -> list[Problem]:
        emulation = {"devices", "link", "compute"}
        own = {"slurm": set(SlurmKeys.model_fields), "local": emulation, "replay": {"published"}}
        return [
            Problem(key, f"a key of executor: {other}", f"leave it out, or set executor: {other}")
            for other, keys in own.items()
            if other != self.executor
            for key in sorted(keys & self.model_fields_set)
        ]

    def _problems_here(self) -> list[Problem]:
        if self.emulates and self.device == "cuda":
            return [
                Problem(
                    "device",
                    "'cuda', and links and compute are emulated for CPU ranks",
                    "set device: cpu",
                )
            ]
        if self.device == "cuda" and not machine.gpus():
            return [
                Problem(
                    "device",
                    "'cuda', and no GPU is visible here",
                    "set device: auto, or see `lab doctor`",
                )
            ]
        if self.devices != "auto" and not 1 <= self.devices <= self._devices_here():
            return [
                Problem(
                    "devices",
                    f"{self.devices}, and there are {self._devices_here()} here",
                    "set devices: auto",
                )
            ]
        return []

    def _devices_here(self) -> int:
        if self.compute is not None:
            return MOST_SLEEPING
        return (
            len(machine.gpus())
            if self.device_kind == "cuda"
            else len(machine.cores()) // self.cores_per_rank
        )

    @property
    def emulates(self) -> bool:
        """Whether anything here is emulated."""
        return self.link is not None or self.compute is not None

    @property
    def device_kind(self) -> Literal["cpu", "cuda"]:
        """What a rank computes on."""
        if self.emulates:
            return "cpu"
        if self.device == "auto":
            return (
                "cuda"
                if (self.gpus_per_node if self.executor == "slurm" else machine.gpus())
                else "cpu"
            )
        return self.device

    def on(self, device: Literal["any", "cpu", "cuda"]) -> Cluster | None:
        """The same for runs that need this kind of device; None where the cluster has none."""
        if device in {"any", self.device_kind}:
            return self
        return (
            self.model_copy(update={"device": "cpu", "devices": "auto"})
            if device == "cpu"
            else None
        )

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
        """Nodes and ranks on each of them, where each rank drives so many devices.

        Raises InputError where the ranks do not fit, leave nodes half empty, or would have devices on several nodes.
        """
        found = lay_out(ranks * devices, slots=self.ranks_per_node, nodes=self.nodes)
        if isinstance(found, Layout) and devices > found.ranks_per_node:
            found = Problem(
                "world_size",
                f"one process cannot drive {devices} devices on {found.nodes} nodes",
                f"at most {self.ranks_per_node}",
            )
        if isinstance(found, Problem):
            raise InputError(self.name, [found])
        return Layout(found.nodes, found.ranks_per_node // devices)

    @property
    def cpus_per_rank(self) -> int:
        """CPUs that Slurm is asked for, for each rank."""
        return self.cpus_per_gpu or self.cores_per_rank

    def memory_mb(self, ranks_on_node: int) -> int | None:
        """The share of a node's memory that so many ranks get, in MiB; None where the profile leaves it to the site."""
        return (
            None
            if self.mem_gb is None
            else max(int(self.mem_gb * 1024 * ranks_on_node / self.ranks_per_node), 1)
        )

    @property
    def variables(self) -> dict[str, str]:
        """Environment of every rank: the profile's own variables and what its other keys stand for."""
        interface = self.network_interface
        chosen = (
            {}
            if interface is None
            else {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
        )
        return chosen | self.environment

    def cores_of(self, local_rank: int) -> tuple[int, ...]:
        """The cores of one rank: as many at every world size, so that the baseline is not a stronger machine.

        On Slurm they are those that the job may use: binding ranks to cores is the site's.
        """
        cores = machine.cores()
        if self.executor == "slurm":
            return cores
        share = (
            self.cores_per_rank
            if self.device_kind == "cpu"
            else max(len(cores) // self.capacity, 1)
        )
        first = local_rank * share % len(cores)
        return cores[first : first + share]

    @property
    def threads_per_rank(self) -> int:
        """Threads of a rank: one for each of its cores."""
        return self.cpus_per_rank if self.executor == "slurm" else len(self.cores_of(0))

    @property
    def memory_bytes_per_rank(self) -> int | None:
        """Memory of one rank: its GPU's, or its share of main memory when all ranks run; None where it is not known here."""
        if self.executor == "replay":
            return None
        if self.executor == "slurm":
            known = self.memory_mb(1) if self.device_kind == "cpu" else None
            return None if known is None else known * 2**20
        if self.device_kind == "cuda":
            return min(gpu.memory for gpu in machine.gpus())
        return machine.memory_bytes() // max(self.capacity, 1)

    @property
    def description(self) -> str:
        """One line for people."""
        if self.published is not None:
            return f"{self.name}: a replay of {self.published.source}, up to {self.capacity} ranks of {self.published.gpu}"
        unit = "GPU" if self.device_kind == "cuda" else "CPU rank"
        spread = f" on {self.nodes} nodes" if self.nodes > 1 else ""
        line = f"{self.name}: {self.capacity} {unit}{'s' if self.capacity != 1 else ''}{spread}, {self.executor} executor"
        if not self.emulates:
            return line
        return f"{line}, emulated: {Emulated(link=self.link, compute=self.compute).label}"


def find_profile(profile: str | Path) -> Path:
    """The file of a profile, by its name under `slurm/` or by its path; raises InputError with the nearest name."""
    named = [Path(folder) / f"{profile}.yaml" for folder in ("slurm", ROOT / "slurm")]
    for path in [Path(profile), *named]:
        if path.suffix in {".yaml", ".yml"} and path.is_file():
            return path
    names = {path.stem for root in (Path("slurm"), ROOT / "slurm") for path in root.glob("*.yaml")}
    raise InputError(
        str(profile), [Problem("cluster", "no such profile", nearest(Path(profile).stem, names))]
    )
