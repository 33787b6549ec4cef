"""Where and with what a run was measured, and what else used the machine, read on each rank."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import platform
import resource
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
import psutil
import torch
from torch.utils._pytree import tree_leaves

from lab.machine import cpu_model, gpus, nvidia_smi
from lab.records.provenance import git_state
from lab.records.schema import FOREIGN_SHARE, Environment, GpuState
from lab.records.table import grouped
from lab.worker.context import RankContext
from lab.worker.data.dataset import Dataset

PERIOD_MS = 500
# The second name is used by drivers before release 535.
REASONS_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
# Bits of the throttling reasons, NVML's nvmlClocksEventReasons.
IDLE = 0x1
REASONS = {
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}


def environment(
    context: RankContext,
    *,
    device: torch.device,
    ranks: Sequence[RankUse],
    dataset: Dataset | None = None,
    parameters: int | None = None,
    attention: str | None = None,
    devices: int | None = None,
) -> Environment:
    """The environment as seen by rank 0, with what all ranks read from their machines.

    `attention` is the attention kernel; `devices` are those of the whole run, one per rank if None.
    """
    cuda = device.type == "cuda"
    commit, dirty = git_state()
    return Environment(
        cluster=context.cluster,
        cluster_file=context.cluster_file,
        hosts=[rank.host for rank in ranks],
        device=device.type,
        backend=None if context.world_size == 1 else backend(context),
        cpu=cpu_model(),
        cpu_count=os.cpu_count() or 1,
        cpus_granted=[list(rank.cores) for rank in ranks],
        threads_per_rank=torch.get_num_threads(),  # as used by torch, whatever was requested
        gpu=torch.cuda.get_device_name(device) if cuda else None,
        gpu_count=(devices or context.world_size) if cuda else 0,
        driver=next((gpu.driver for gpu in gpus()), None) if cuda else None,
        versions=versions_of(cuda=cuda),
        git_commit=commit,
        git_dirty=dirty,
        slurm_job_id=os.environ.get("SLURM_JOB_ID"),
        job_id=context.job_id,
        data_sha256=dataset.sha256 if dataset else None,
        data_description=dataset.description if dataset else None,
        train_samples=len(dataset.train) if dataset and dataset.train.epochs else None,
        parameters=parameters,
        attention=attention,
        foreign_cpu=background_cpu((rank.host, rank.cpu) for rank in ranks),
        gpu_states=[state for rank in ranks for state in rank.gpus] or None,
        emulated=context.emulated,
        shared_host=context.shared_host,
    )


def backend(context: RankContext) -> str:
    """The back end of this rank's collectives: the profile's choice, else what fits its device."""
    if context.backend == "auto":
        return "nccl" if context.device == "cuda" else "gloo"
    return context.backend


def versions_of(*, cuda: bool) -> dict[str, str]:
    """Versions, by name, of the software that a measurement depends on."""
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    versions["numpy"] = np.__version__
    try:
        versions["lab"] = importlib.metadata.version("scaling-lab")
    except importlib.metadata.PackageNotFoundError:
        versions["lab"] = "unknown"
    if cuda:
        # With an AMD GPU torch calls its devices CUDA too.
        rocm = getattr(torch.version, "hip", None)
        versions["rocm" if rocm else "cuda"] = str(rocm or torch.version.cuda)
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return versions


class StateBytes(NamedTuple):
    """Bytes that a rank holds throughout a step."""

    parameters: int | None  # None, as below, where a script does not show them
    optimizer: int | None  # its state


def state_bytes(
    parameters: Iterable[torch.Tensor], *optimizers: torch.optim.Optimizer
) -> StateBytes:
    """This rank's bytes of parameters and optimizer state, counting only its shards."""
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    # Also those in lists, in which LBFGS keeps its last steps.
    tensors = [value for value in tree_leaves(states) if isinstance(value, torch.Tensor)]
    return StateBytes(_bytes(parameters) or None, _bytes(tensors) if optimizers else None)


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(part.nbytes for tensor in tensors for part in plain_tensors(tensor))


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that make up one, such as a quantized one or a DTensor; itself if it is plain."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        part = getattr(tensor, name)
        if isinstance(part, torch.Tensor):  # and not the mesh of a DTensor
            yield from plain_tensors(part)


def reset_peak(device: torch.device) -> None:
    """Reset earlier memory peaks, such as a tokenizer's, if the system permits."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with contextlib.suppress(OSError, AttributeError):
        # First return the allocator's free pages to the system, or they would count as resident.
        ctypes.CDLL(None).malloc_trim(0)
        # proc(5): "5" resets the peak of the resident set.
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device, devices: int) -> list[int]:
    """Peak bytes: on CUDA the allocator's, per device of the process; on CPU the resident set's."""
    if device.type == "cuda":
        numbers = [device.index] if devices == 1 else range(devices)
        return [int(torch.cuda.max_memory_allocated(number)) for number in numbers]
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2)
    return [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit]


@dataclass(frozen=True)
class CpuUse:
    """Seconds between two moments: wall clock, CPU time of this process, busy time of its cores."""

    wall: float
    own: float
    busy: dict[int, float]  # empty if the system keeps no such count

    def since(self, earlier: CpuUse) -> CpuUse:
        """What was used since `earlier`."""
        busy = {
            core: seconds - earlier.busy[core]
            for core, seconds in self.busy.items()
            if core in earlier.busy
        }
        return CpuUse(self.wall - earlier.wall, self.own - earlier.own, busy)


def cpu_use(cores: Sequence[int]) -> CpuUse:
    """Current readings, each with its own starting point, so only differences are meaningful."""
    this, own = psutil.Process(), 0.0
    # A data loader's workers belong to the run, those that have ended and those that have not.
    for process in (this, *this.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            own += sum(process.cpu_times()[:4])  # user and system, of itself and of ended children
    return CpuUse(time.perf_counter(), own, _busy(cores))


class RankUse(NamedTuple):
    """What a rank reads from its machine: where it ran, and what was used meanwhile."""

    host: str
    cores: tuple[int, ...]
    cpu: CpuUse
    gpus: list[GpuState]
    peak_memory: list[int]  # since `reset_peak`, in bytes, of each device


class MachineWatch:
    """Watches a rank's cores, and its GPUs with nvidia-smi, from now on until `stop`.

    Only what was used since the last `restart` counts.
    """

    def __init__(self, context: RankContext, device: torch.device, devices: int = 1) -> None:
        self._cores, self._device, self._devices = context.cores, device, devices
        numbers = [device.index or 0] if devices == 1 else range(devices)
        self._uuids = [_uuid(number) for number in numbers] if device.type == "cuda" else []
        self._lines: list[str] = []  # of nvidia-smi
        self._sampler = self._sample()
        self.restart()

    def restart(self) -> None:
        """Forget what was used so far."""
        self._before = cpu_use(self._cores)
        self._first = len(self._lines)

    def stop(self) -> RankUse:
        """Stop watching; returns what was used."""
        gpus, cpu = self._gpu_states(), cpu_use(self._cores).since(self._before)
        peaks = peak_memory(self._device, self._devices)
        return RankUse(socket.gethostname(), self._cores, cpu, gpus, peaks)

    def _sample(self) -> subprocess.Popen[str] | None:
        """The process that samples the GPUs; None without any, or without its program."""
        # A driver supports one of the fields and rejects the other at once.
        queries = map(self._query, REASONS_FIELDS if self._uuids else ())
        query = next(filter(lambda query: nvidia_smi(*query), queries), None)
        if query is None:
            return None
        # It ends with this process, after which nobody reads its output.
        command = ["nvidia-smi", *query, f"--loop-ms={PERIOD_MS}"]
        sampler = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        # A thread reads, or the pipe would fill up in a long run.
        self._reader = threading.Thread(target=self._read, args=[sampler.stdout], daemon=True)
        self._reader.start()
        return sampler

    def _gpu_states(self) -> list[GpuState]:
        """End the sampling; returns the state of each GPU that could be sampled."""
        if self._sampler is None:
            return []
        processes = nvidia_smi("--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader")
        self._sampler.terminate()
        self._sampler.wait()
        self._reader.join()
        return parse_states(self._lines[self._first :], processes, uuids=self._uuids)

    def _read(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._lines.append(line)

    def _query(self, reasons: str) -> list[str]:
        fields = f"--query-gpu=uuid,clocks.sm,clocks.max.sm,{reasons}"
        return [f"--id={','.join(self._uuids)}", fields, "--format=csv,noheader,nounits"]


def background_cpu(uses: Iterable[tuple[str, CpuUse]]) -> float | None:
    """Cores used by other processes: busy time minus all ranks' own CPU time, over wall time.

    Takes each rank's host and use; None if the system keeps no count or the time is too short.
    """
    uses = list(uses)
    # In less time, a tick at each end would look like others' load.
    shortest_s = 2 / os.sysconf("SC_CLK_TCK") / FOREIGN_SHARE
    if not all(use.busy and use.wall >= shortest_s for _, use in uses):
        return None
    # A core shared by several ranks was read by each of them but counts once.
    readings = grouped(
        ((host, core), seconds) for host, use in uses for core, seconds in use.busy.items()
    )
    busy = sum(fmean(seconds) for seconds in readings.values())
    own = sum(use.own for _, use in uses)
    # Busy time is rounded to ticks of 10 ms, so on idle cores the difference may be negative.
    return max(busy - own, 0.0) / fmean(use.wall for _, use in uses)


def _busy(cores: Sequence[int]) -> dict[int, float]:
    """Seconds for which each core was not idle, proc(5)."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return {}
    tick = os.sysconf("SC_CLK_TCK")
    busy = {}
    for name, *fields in map(str.split, lines):
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            # Guest times, which follow these eight, are already part of user time.
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
            busy[int(name[3:])] = (user + nice + system + irq + softirq + steal) / tick
    return busy


def parse_states(
    samples: Iterable[str], processes: Iterable[str], *, uuids: Sequence[str]
) -> list[GpuState]:
    """The state of each GPU from nvidia-smi's output: samples, and its processes at the end.

    Lines of another form, such as errors, are ignored. A sample of an idle GPU says nothing about
    its clocks.
    """
    by_gpu: dict[str, list[_Sample]] = {uuid: [] for uuid in uuids}
    for line in samples:
        uuid, *cells = (cell.strip() for cell in line.split(","))
        if uuid in by_gpu and len(cells) == 3 and (sample := _Sample.of(*cells)):
            by_gpu[uuid].append(sample)
    pairs = (line.split(",")[:2] for line in processes)
    present = Counter(pair[0].strip() for pair in pairs if pair[-1].strip().isdigit())
    return [_state(by_gpu[uuid], present[uuid]) for uuid in uuids]


class _Sample(NamedTuple):
    clock: float  # MHz
    clock_max: float | None
    reasons: int

    @classmethod
    def of(cls, clock: str, clock_max: str, reasons: str) -> _Sample | None:
        """A sample, or None if the GPU was idle or its clock is not known, as on a MIG slice."""
        values = _number(clock), _number(clock_max), _number(reasons)
        if values[0] is None or int(values[2] or 0) & IDLE:
            return None
        return cls(values[0], values[1], int(values[2] or 0))


def _number(cell: str) -> float | None:
    """A decimal number or a hexadecimal mask; None for words such as [N/A]."""
    try:
        return float(int(cell, 16)) if cell.startswith("0x") else float(cell)
    except ValueError:
        return None


def _state(samples: Sequence[_Sample], processes: int) -> GpuState:
    clocks = [sample.clock for sample in samples]
    shares = {
        name: sum(bool(sample.reasons & bit) for sample in samples) / len(samples)
        for bit, name in REASONS.items()
        if samples
    }
    return GpuState(
        samples=len(samples),
        sm_clock=median(clocks) if clocks else None,
        sm_clock_low=min(clocks, default=None),
        sm_clock_max=samples[-1].clock_max if samples else None,
        reasons={name: share for name, share in shares.items() if share},
        # One is the rank itself; if not even that is listed, as in a container, no others are.
        other_processes=processes - 1 if processes else None,
    )


def _uuid(number: int) -> str:
    """A GPU's identifier for nvidia-smi, independent of CUDA_VISIBLE_DEVICES."""
    uuid = str(torch.cuda.get_device_properties(number).uuid)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
