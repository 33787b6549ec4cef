"""What ranks send to rank 0 about their steps, and the parts of a record built from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lab.config.run import Run
from lab.records.schema import Communication, Event, GpuState, Memory
from lab.worker.environment import CpuUse, StateBytes
from lab.worker.measure import overlap, parquet
from lab.worker.measure.clock import FloatArray
from lab.worker.measure.collective_trace import Calls
from lab.worker.measure.ddp_hook import Buckets
from lab.worker.sync_cost import Probe, costs


@dataclass(frozen=True)
class RankReport:
    """What a rank sends to rank 0 when it is done; times are on rank 0's clock."""

    host: str
    cores: tuple[int, ...]
    steps: dict[str, FloatArray]  # the columns of steps.parquet
    start: float  # of the first step
    sent: Buckets | Calls | None
    bars: tuple[float, list[Event]] | None  # of the timeline's step
    bars_step: int | None  # from 0, the first that this job made
    probe: Probe | None
    use: CpuUse
    gpus: list[GpuState]
    peak_flops: float | None
    peak_memory: list[int]
    state: StateBytes
    fingerprint: tuple[float, float] | None


def communication_of(
    run: Run, reports: Sequence[RankReport], folder: Path, *, first_step: int, cycle: int = 1
) -> Communication | None:
    """The record's communication; puts all ranks' steps and communication on one time axis.

    `cycle` is the strategy's.
    """
    probes = [report.probe for report in reports if report.probe]
    update: dict[str, object] = dict(costs(probes)) if probes else {}
    origin = reports[0].start
    buckets = [report.sent for report in reports if isinstance(report.sent, Buckets)]
    calls = [report.sent for report in reports if isinstance(report.sent, Calls)]
    if buckets:
        path = folder / "buckets.parquet"
        parquet.write_buckets(buckets, path, origin=origin, first_step=first_step)
        exposure = overlap.Exposure.from_buckets(buckets)
        # PowerSGD takes several collectives per bucket, which the hook does not see.
        operation = None if run.compression == "powersgd" else "all_reduce"
        update |= overlap.count_buckets(buckets[0], operation=operation)
    elif calls:
        path, steps = folder / "calls.parquet", run.steps - first_step
        parquet.write_calls(calls, path, origin=origin, first_step=first_step)
        exposure = overlap.Exposure.from_calls(calls, steps=steps)
        update |= overlap.count_calls(calls[0], steps=steps, cycle=cycle)
        if cycle > 1:
            sent = overlap.bytes_by_step(calls[0], steps=steps)
            update["cycle"] = sent[-cycle:].astype(int).tolist()
    else:
        return Communication().model_copy(update=update) if update else None
    for rank, report in enumerate(reports):
        report.steps["start"] += report.start - origin
        report.steps.update(exposure.columns(rank))
    step_time = np.stack([report.steps["step_time"] for report in reports])
    if reports[0].bars_step is not None:
        update["timeline_step"] = first_step + reports[0].bars_step + 1
    update["timeline"] = overlap.timeline([report.bars for report in reports if report.bars])
    summary = overlap.summary(exposure, step_time, warmup_steps=run.warmup_steps, cycle=cycle)
    return summary.model_copy(update=update)


def memory_of(reports: Sequence[RankReport], device: torch.device) -> Memory:
    """The record's memory: peaks of all ranks, and the most model state kept by one, in bytes."""
    return Memory(
        kind="cuda_allocated" if device.type == "cuda" else "resident",
        peak=[peak for report in reports for peak in report.peak_memory],
        parameters=max(report.state.parameters for report in reports),
        optimizer=max(report.state.optimizer for report in reports),
    )
