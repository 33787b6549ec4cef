"""Synthetic records for tests: complete, valid, and with the numbers that a test asks for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lab.config.cluster import Cluster
from lab.config.run import Run
from lab.config.study import Study
from lab.perfmodel.calibration import Calibration, CollectiveTime, Part
from lab.perfmodel.frozen import Frozen
from lab.records.schema import PHASES, Communication, Environment, Failure, Gradient, Memory, Quality, Stat, Timing
from lab.records.store import Record, Status

SHARES = {"data": 0.01, "h2d": 0.0, "forward": 0.30, "backward": 0.55, "optimizer": 0.12, "other": 0.02}


def run(world_size: int = 1, global_batch_size: int = 64, **fields: Any) -> Run:
    """A run on a nano GPT; give `global_batch_size=None` and `micro_batch_size` for a batch per rank."""
    batch = {} if global_batch_size is None else {"global_batch_size": global_batch_size}
    return Run.model_validate({"model": "gpt-nano", "world_size": world_size, "steps": 30, "warmup_steps": 5, **batch, **fields})


def stat(median: float, *, spread: float = 0.02) -> Stat:
    return Stat(median=median, p10=median * (1 - spread), p90=median * (1 + spread), interval=(median * 0.99, median * 1.01))


def losses(steps: int, *, start: float = 8.3, floor: float = 3.0) -> list[float]:
    return [floor + (start - floor) * math.exp(-3 * step / steps) for step in range(steps)]


def environment(world_size: int = 1, *, device: str = "cpu", **fields: Any) -> Environment:
    content: dict[str, Any] = {
        "cluster": "local",
        "hosts": ["node1"] * world_size,
        "device": device,
        "backend": None if world_size == 1 else {"cpu": "gloo", "cuda": "nccl"}[device],
        "cpu": "Model CPU",
        "cpu_count": 8,
        "cpus_granted": [[rank] for rank in range(world_size)],
        "threads_per_rank": 1,
        "gpu": "Model GPU" if device == "cuda" else None,
        "gpu_count": world_size if device == "cuda" else 0,
        "versions": {"torch": "2.13.0", "python": "3.11.9"},
        "git_commit": "0" * 40,
        "git_dirty": False,
        "data_description": "Python sources",
        "parameters": 1_300_000,
        "foreign_cpu": 0.0,
    }
    return Environment.model_validate(content | fields)


def record(
    run: Run,
    repeat: int = 0,
    *,
    step_time: float = 0.1,
    phases: Mapping[str, float] | None = None,
    communication: tuple[float, float] | None = None,
    loss: Sequence[float] | None = None,
    status: Status = "completed",
    error: Failure | None = None,
    device: str = "cpu",
    **surroundings: Any,
) -> Record:
    """One repeat of a run. Times in s; `phases` completes SHARES of the step; `communication` is total and exposed.

    A status other than completed makes a record without measurements, with `error` or a plain one.
    Further keywords are fields of its Environment.
    """
    common: dict[str, Any] = {
        "run_id": run.id,
        "repeat": repeat,
        "run": run,
        "status": status,
        "started_at": "2025-01-01T00:00:00+00:00",
        "finished_at": "2025-01-01T00:01:00+00:00",
        "environment": environment(run.world_size, device=device, **surroundings),
    }
    if status != "completed":
        return Record(**common, error=error or Failure(type="RuntimeError", message="the loss is not finite", rank=0))
    parts = {phase: SHARES[phase] * step_time for phase in PHASES} | dict(phases or {})
    medians = {"step": step_time, **parts}
    samples_per_second = run.global_batch_size / step_time
    return Record(
        **common,
        timing=Timing(
            step=stat(step_time),
            phases={phase: stat(parts[phase]) for phase in PHASES},
            per_rank={name: [value] * run.world_size for name, value in medians.items()},
            slowest_rank=0,
            measured_steps=run.steps - run.warmup_steps,
            warmup_steps=run.warmup_steps,
            setup_time=2.0,
            train_time=step_time * (run.steps - run.warmup_steps),
            samples_per_second=samples_per_second,
            tokens_per_second=samples_per_second * getattr(run.architecture, "block_size", 0) or None,
            flops_per_second=samples_per_second * 1e9,
            mfu=None,
            peak_flops_per_second=None,
            peak_source=None,
        ),
        communication=Communication(total=stat(communication[0]), exposed=stat(communication[1])) if communication else None,
        memory=Memory(kind="resident", peak=[400_000_000] * run.world_size, parameters=5_200_000),
        quality=Quality(loss=list(loss) if loss is not None else losses(run.steps), validation_loss=3.4),
        checks={"loss_is_finite": True},
    )


def profile(run: Run, *, step_time: float = 0.1, megabytes: float = 8.0, **fields: Any) -> Record:
    """A record on one rank whose gradients are ready in four equal parts of its backward pass."""
    gradients = [Gradient(ready=(nth + 1) / 4, bytes=round(megabytes * 1e6 / 4)) for nth in range(4)]
    return record(run, step_time=step_time, **fields).model_copy(update={"gradients": gradients})


def calibration(*world_sizes: int, alpha_s: float = 1e-3, bytes_per_s: float = 1e8) -> Calibration:
    """All-reduces that take alpha and their bytes over the rate, on each world size alike."""
    parts = [
        Part(
            world_size=size,
            quick=False,
            measured_at=datetime.now(UTC),
            profile=Cluster(name="local"),
            environment=environment(size),
            times=tuple(
                CollectiveTime(
                    collective="all_reduce", world_size=size, bytes=count, seconds=alpha_s + count / bytes_per_s, calls=9
                )
                for count in (10**5, 10**6, 10**7)
            ),
        )
        for size in world_sizes
    ]
    return Calibration(cluster="local", wanted=world_sizes, parts=tuple(parts))


def repeats(run: Run, step_times: Sequence[float], **fields: Any) -> list[Record]:
    """Completed repeats of one run, one per step time in s."""
    return [record(run, repeat, step_time=step_time, **fields) for repeat, step_time in enumerate(step_times)]


def study(folder: Path, runs: Sequence[Run], **fields: Any) -> Study:
    """A study of these runs: strong scaling over one rank with three repeats, unless told otherwise."""
    content: dict[str, Any] = {
        "title": "A study",
        "question": "How far does it scale?",
        "scaling": "strong",
        "axes": ("global_batch_size", "world_size"),
        "repeats": 3,
        "baseline": {"world_size": 1},
    }
    return Study(folder=folder, runs=tuple(runs), **(content | fields))


def frozen(asked: Run, step_s: float, **changes: Any) -> Frozen:
    """A prediction of a run's step, with an interval of a tenth to both sides."""
    content = {
        "run_id": asked.id,
        "run": asked,
        "frozen_at": datetime.now(UTC),
        "cluster": "local",
        "step_s": step_s,
        "low_s": 0.9 * step_s,
        "high_s": 1.1 * step_s,
        "communication_s": 0.0,
        "exposed_s": 0.0,
        "parts": {},
        "limit": "compute",
        "memory_bytes": None,
        "basis": "records",
    }
    return Frozen.model_validate(content | changes)
