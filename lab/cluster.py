"""Cluster: where runs execute, read from a profile in slurm/*.yaml. It knows nothing of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from lab import machine
from lab.errors import InputError, Problem, nearest
from lab.inputs import problems_of, read_yaml, unknown_keys
from lab.study import ROOT
from lab.workloads import Frozen


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
        if self.device == "cuda" and not machine.gpus():
            return [Problem("device", "'cuda', and no GPU is visible here", "set device: auto, or see `lab doctor`")]
        if self.devices != "auto" and not 1 <= self.devices <= self._devices_here():
            return [Problem("devices", f"{self.devices}, and there are {self._devices_here()} here", "set devices: auto")]
        return []

    def _devices_here(self) -> int:
        return len(machine.gpus()) if self.device_kind == "cuda" else len(machine.cores()) // self.cores_per_rank

    @property
    def device_kind(self) -> Literal["cpu", "cuda"]:
        """What a rank computes on."""
        if self.device == "auto":
            return "cuda" if machine.gpus() else "cpu"
        return self.device

    def on(self, device: Literal["any", "cpu", "cuda"]) -> Cluster | None:
        """The same for runs that need this kind of device; None where the cluster has none."""
        if device in {"any", self.device_kind}:
            return self
        return self.model_copy(update={"device": "cpu", "devices": "auto"}) if device == "cpu" else None

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
        return f"{self.name}: {self.capacity} {unit}{'s' if self.capacity != 1 else ''}, {self.executor} executor"


def find_profile(profile: str | Path) -> Path:
    """The file of a profile, by its name under `slurm/` or by its path; raises InputError with the nearest name."""
    named = [Path(folder) / f"{profile}.yaml" for folder in ("slurm", ROOT / "slurm")]
    for path in [Path(profile), *named]:
        if path.suffix in {".yaml", ".yml"} and path.is_file():
            return path
    names = {path.stem for root in (Path("slurm"), ROOT / "slurm") for path in root.glob("*.yaml")}
    raise InputError(str(profile), [Problem("cluster", "no such profile", nearest(Path(profile).stem, names))])
