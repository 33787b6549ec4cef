"""The lab's own records as observations: the quoted values of a repeat in one row, each rank of it in another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pandas as pd

from lab.analysis import naming
from lab.analysis.links import bus_factor
from lab.analysis.observations import Observations
from lab.records import ClassificationPoint, Communication, Environment, Point, Record, Timing
from lab.study import Run
from lab.words import names

# Fields of a run that follow from the world size or that a rule compares by itself.
NO_KEYS = {
    "world_size",
    "global_batch_size",
    "micro_batch_size",
    "grad_accum",
    "steps",
    "warmup_steps",
    "lr_warmup_steps",
    "eval_batches",
}
EXTRA_NUMERIC = ("total_steps", "phase_sum", "p10", "p90", "median_low", "median_high")
EXTRA = (*EXTRA_NUMERIC, "depends_on_split", "run_id", "phases_checked", "loss_curve", "status")
FACTS = (
    "device",
    "cpu",
    "gpu",
    "backend_versions",
    "threads",
    "commit",
    "driver",
    "host",
    "data_sha256",
    "dirty",
    "foreign_cpu",
    "cluster",
    "emulated",
)


def from_records(
    records: Sequence[Record],
    *,
    scaling: Literal["strong", "weak", "none"] | None = None,
    baseline: Mapping[str, object] | None = None,
) -> Observations:
    """Completed records as observations, times per step in s; what a failed run did not measure is not there."""
    rows: list[dict[str, Any]] = []
    for record in records:
        if record.completed and record.timing is not None:
            common = _common(record)
            rows.append(common | _quoted(record.timing, record.communication, record.run.world_size) | {"aggregate": True})
            rows += [common | row for row in _ranks(record.timing, common["label"])]
        elif record.completed and record.inference is not None:
            common = _common(record)
            points: list[Point | ClassificationPoint] = [*record.inference.points, *record.inference.classifications]
            rows += [common | _inferred(point, record.run_id) for point in points]
    numeric, rest = list(naming.NUMERIC), [*naming.TEXT, *EXTRA, *FACTS]
    keys = sorted({name for row in rows for name in row if name.startswith("key:")})
    columns = list(dict.fromkeys([*numeric, *rest, "rank", "aggregate", "label", *keys]))
    frame = pd.DataFrame(rows, columns=columns)
    for name in (*numeric, *EXTRA_NUMERIC, "rank", "foreign_cpu"):
        frame[name] = pd.to_numeric(frame[name], errors="coerce").astype(float)
    return Observations(
        frame=frame, kind="records", per="step", scaling=scaling, baseline=baseline or {}, derived=frozenset({"micro_batch_size"})
    )


def _common(record: Record) -> dict[str, Any]:
    run, quality = record.run, record.quality
    row: dict[str, Any] = {
        "label": f"{record.run_id}/{record.repeat}",
        "run_id": record.run_id,
        "repeat": str(record.repeat),
        "world_size": run.world_size,
        "global_batch_size": run.global_batch_size,
        "micro_batch_size": run.micro_batch_size * run.grad_accum,
        "total_steps": run.steps,
        "warmup": run.warmup_steps,
        "compile": str(run.compile),
        "precision": run.precision,
        "strategy": run.strategy,
        "phases_checked": record.checks.get("phases_close"),
        "loss_curve": quality.loss if quality else None,
        "loss": quality.loss[-1] if quality and quality.loss else None,
        "accuracy": quality.accuracy if quality else None,
        "depends_on_split": quality.depends_on_split if quality else None,
        "loader_workers": run.loader_workers if run.loader == "classic" else None,
    }
    row |= {f"key:{name}": str(getattr(run, name)) for name in Run.model_fields if name not in NO_KEYS}
    row |= {f"key:{name}": called for name, called in names(run).items()}
    return row | (_facts(record.environment, run) if record.environment else {})


def _facts(environment: Environment, run: Run) -> dict[str, Any]:
    return {
        "device": environment.device,
        "key:device": environment.device,
        "cpu": environment.cpu,
        "gpu": environment.gpu,
        "version": ", ".join(f"{name} {version}" for name, version in sorted(environment.versions.items())),
        "threads": str(environment.threads_per_rank),
        "commit": environment.git_commit,
        "dirty": environment.git_dirty,
        "driver": environment.driver,
        "host": ", ".join(sorted(set(environment.hosts))),
        "nodes": len(set(environment.hosts)) or None,
        "data_sha256": environment.data_sha256,
        "cluster": environment.cluster,
        "emulated": environment.emulated.label if environment.emulated else "no",
        "link": environment.emulated.link.label if environment.emulated and environment.emulated.link else None,
        "key:emulated": environment.emulated.label if environment.emulated else "",
        "foreign_cpu": environment.foreign_cpu,
        "parameters": environment.parameters,
        "cpus": len({core for cores in environment.cpus_granted for core in cores}) or None
        if len(set(environment.hosts)) == 1
        else None,
    }


def _inferred(point: Point | ClassificationPoint, run_id: str) -> dict[str, Any]:
    """One point of an inference record: the time for one batch with the quantized model."""
    if isinstance(point, Point):
        total, prompt, name = point.quantized.total, str(point.prompt_tokens), f"{run_id}, prompt {point.prompt_tokens}"
    else:
        total, prompt, name = point.quantized, "", run_id
    return {
        "run_id": f"{name}, batch {point.batch_size}",
        "time": total.median,
        "p10": total.p10,
        "p90": total.p90,
        "global_batch_size": point.batch_size,
        "micro_batch_size": None,
        "total_steps": None,
        "aggregate": True,
        "key:prompt": prompt,
    }


def _quoted(timing: Timing, communication: Communication | None, world_size: int) -> dict[str, Any]:
    phases = {name: stat.median for name, stat in timing.phases.items()}
    row: dict[str, Any] = {
        "time": timing.step.median,
        "p10": timing.step.p10,
        "p90": timing.step.p90,
        "rate": timing.samples_per_second,
        "phase_sum": math.fsum(phases.values()),
        **_parts(phases),
    }
    if communication is not None:
        row["communication"] = communication.total.median if communication.total else None
        row["exposed"] = communication.exposed.median if communication.exposed else None
        row["bytes"] = _as_all_reduce(communication, world_size) or None
    return row


def _as_all_reduce(communication: Communication, world_size: int) -> float | None:
    """The bytes whose all-reduce would move as many: rules of bandwidth know no other collective."""
    if communication.bytes_moved is None or world_size == 1:
        return communication.bytes
    return communication.bytes_moved / bus_factor("all_reduce", world_size)


def _ranks(timing: Timing, label: str) -> list[dict[str, Any]]:
    steps = timing.per_rank.get("step", [])
    low, high = timing.step.interval or (None, None)
    rows = []
    for rank, step in enumerate(steps):
        phases = {name: values[rank] for name, values in timing.per_rank.items() if name != "step" and rank < len(values)}
        known = {name: value for name, value in phases.items() if name in timing.phases}
        about = {"rank": rank, "aggregate": False, "label": f"{label} rank {rank}"}
        rows.append(about | {"time": step, "median_low": low, "median_high": high} | _parts(known))
    return rows


def _parts(phases: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in phases.items() if name in naming.PHASES}
