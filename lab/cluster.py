"""Cluster: where runs execute, read from a profile in slurm/*.yaml. It knows nothing of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from lab import machine, network
from lab.emulation import Compute, Emulated, Link
from lab.errors import InputError, Problem, nearest
from lab.inputs import problems_of, read_yaml, unknown_keys
from lab.study import ROOT
from lab.workloads import Frozen

MOST_SLEEPING = 16  # ranks whose compute is emulated: each still holds a model, and moves its gradients


class Cluster(Frozen):
    """A profile: the executor and what it gives to each rank.

    `device: auto` takes GPUs where there are any, else CPU cores. `devices` is how many ranks run at once: GPUs, or
    groups of `cores_per_rank` physical cores.
    """

    name: str
    executor: Literal["local"] = "local"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    devices: int | Literal["auto"] = Field(default="auto")
    cores_per_rank: int = Field(default=1, ge=1, le=1024)
    time_limit_min: int = Field(default=120, ge=1, description="a run that takes longer is ended")
    hang_timeout_s: int = Field(default=300, ge=5, description="a run without progress for so long is ended")
    environment: dict[str, str] = Field(default={}, description="variables set for every rank")
    link: Link | None = Field(default=None, description="emulated between the ranks of one machine")
    compute: Compute | None = Field(default=None, description="emulated: ranks sleep, and may outnumber the cores")

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
            raise InputError(str(path), problems + [p for _, p in problems_of(error, cls, {"int": None})]) from None
        problems += cluster._problems_here()
        if problems:
            raise InputError(str(path), problems)
        return cluster

    def _problems_here(self) -> list[Problem]:
        if self.emulates and self.device == "cuda":
            return [Problem("device", "'cuda', and links and compute are emulated for CPU ranks", "set device: cpu")]
        if self.link is not None and network.way_for(self.link) is None:
            against = "; ".join(network.ways(self.link).values())
            advice = "another machine, a link without latency, or the published tables of notebooks/lessons"
            return [Problem("link", f"cannot be emulated here: {against}", advice)]
        if self.device == "cuda" and not machine.gpus():
            return [Problem("device", "'cuda', and no GPU is visible here", "set device: auto, or see `lab doctor`")]
        if self.devices != "auto" and not 1 <= self.devices <= self._devices_here():
            return [Problem("devices", f"{self.devices}, and there are {self._devices_here()} here", "set devices: auto")]
        return []

    def _devices_here(self) -> int:
        if self.compute is not None:
            return MOST_SLEEPING
        return len(machine.gpus()) if self.device_kind == "cuda" else len(machine.cores()) // self.cores_per_rank

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
            return "cuda" if machine.gpus() else "cpu"
        return self.device

    @property
    def capacity(self) -> int:
        """How many ranks this cluster can run at once."""
        return self._devices_here() if self.devices == "auto" else self.devices

    def cores_of(self, local_rank: int) -> tuple[int, ...]:
        """The cores of one rank: as many at every world size, so that the baseline is not a stronger machine."""
        cores = machine.cores()
        share = self.cores_per_rank if self.device_kind == "cpu" else max(len(cores) // self.capacity, 1)
        first = local_rank * share % len(cores)
        return cores[first : first + share]

    @property
    def threads_per_rank(self) -> int:
        """Threads of a rank: one for each of its cores."""
        return len(self.cores_of(0))

    @property
    def memory_bytes_per_rank(self) -> int:
        """Memory of one rank: its GPU's, or its share of main memory when all ranks run."""
        if self.device_kind == "cuda":
            return min(gpu.memory for gpu in machine.gpus())
        return machine.memory_bytes() // max(self.capacity, 1)

    @property
    def description(self) -> str:
        """One line for people."""
        unit = "GPU" if self.device_kind == "cuda" else "CPU rank"
        line = f"{self.name}: {self.capacity} {unit}{'s' if self.capacity != 1 else ''}, {self.executor} executor"
        if not self.emulates:
            return line
        way = network.way_for(self.link) if self.link else None
        return f"{line}, emulated: {Emulated(link=self.link, way=way, compute=self.compute and self.compute.emulated).label}"


def find_profile(profile: str | Path) -> Path:
    """The file of a profile, by its name under `slurm/` or by its path; raises InputError with the nearest name."""
    named = [Path(folder) / f"{profile}.yaml" for folder in ("slurm", ROOT / "slurm")]
    for path in [Path(profile), *named]:
        if path.suffix in {".yaml", ".yml"} and path.is_file():
            return path
    names = {path.stem for root in (Path("slurm"), ROOT / "slurm") for path in root.glob("*.yaml")}
    raise InputError(str(profile), [Problem("cluster", "no such profile", nearest(Path(profile).stem, names))])
