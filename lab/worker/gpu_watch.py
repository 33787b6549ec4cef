"""What disturbed a rank's GPUs while it measured: other processes, low clocks, throttling."""

from __future__ import annotations

import subprocess
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

import torch

from lab.machine import nvidia_smi
from lab.records.schema import GpuState

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


class GpuWatch:
    """Samples this process's GPUs with nvidia-smi until `stop`; does nothing on CPUs."""

    def __init__(self, device: torch.device, devices: int = 1) -> None:
        numbers = [device.index or 0] if devices == 1 else range(devices)
        on_gpus = device.type == "cuda"
        self._uuids = [_uuid(number) for number in numbers] if on_gpus else []
        self._sampler: subprocess.Popen[str] | None = None
        self._lines: list[str] = []
        # A driver supports one of the fields and rejects the other at once.
        queries = map(self._query, REASONS_FIELDS if self._uuids else ())
        query = next(filter(lambda query: nvidia_smi(*query), queries), None)
        if query is None:
            return
        # It ends with this process, after which nobody reads its output.
        command = ["nvidia-smi", *query, f"--loop-ms={PERIOD_MS}"]
        self._sampler = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        # A thread reads, or the pipe would fill up in a long run.
        self._reader = threading.Thread(target=self._read, args=[self._sampler.stdout], daemon=True)
        self._reader.start()

    def stop(self) -> list[GpuState]:
        """Stop sampling; returns the state of each GPU that could be sampled."""
        if self._sampler is None:
            return []
        processes = nvidia_smi("--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader")
        self._sampler.terminate()
        self._sampler.wait()
        self._reader.join()
        return parse_states(self._lines, processes, uuids=self._uuids)

    def _read(self, lines: Iterable[str]) -> None:
        self._lines.extend(lines)

    def _query(self, reasons: str) -> list[str]:
        fields = f"--query-gpu=uuid,clocks.sm,clocks.max.sm,{reasons}"
        return [f"--id={','.join(self._uuids)}", fields, "--format=csv,noheader,nounits"]


def parse_states(
    samples: Iterable[str], processes: Iterable[str], *, uuids: Sequence[str]
) -> list[GpuState]:
    """The state of each GPU from nvidia-smi's output: samples, and its processes at the end.

    Lines of another form, such as errors, are ignored. A sample of an idle GPU, before the first
    step, says nothing about its clocks.
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
