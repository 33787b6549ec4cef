"""Anybody's results in one form: canonical columns in base units, one row per rank or configuration, and what was assumed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import pandas as pd

from lab.analysis.audit import columns
from lab.analysis.audit.columns import NUMERIC, TEXT
from lab.config.run import Run
from lab.perfmodel.collectives import bus_factor
from lab.records.inference import ClassificationPoint, Point
from lab.records.schema import Communication, Environment, Timing
from lab.records.store import Record

Kind = Literal["records", "table", "collectives"]


@dataclass(frozen=True)
class Observations:
    """Measurements in canonical columns.

    `frame` has the columns of `lab.analysis.audit.columns.CANONICAL`, NaN where unknown, times in s, sizes in bytes; `label` names
    a row, `aggregate` says that it stands for all ranks of others; columns that start with `key:` tell configurations
    apart. `given` are the names of the table's own columns by canonical name, `derived` what followed from others, `calibrated` bus
    bandwidths in bytes/s by world size.
    """

    frame: pd.DataFrame
    kind: Kind
    per: Literal["step", "epoch", "total"] = "step"
    scaling: Literal["strong", "weak", "none"] | None = None
    baseline: Mapping[str, object] = field(default_factory=dict)
    calibrated: Mapping[int, float] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    derived: frozenset[str] = frozenset()
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    summarised: bool = False
    memo: dict[str, Any] = field(
        default_factory=dict, compare=False, repr=False
    )  # what several rules compute

    @cached_property
    def known(self) -> frozenset[str]:
        """Canonical columns that hold at least one value."""
        return frozenset(
            str(column) for column in self.frame.columns if self.frame[column].notna().any()
        )

    @property
    def keys(self) -> list[str]:
        """Columns that tell configurations apart, world size and batch aside."""
        return [str(column) for column in self.frame.columns if str(column).startswith("key:")]

    def said(self, pattern: str) -> re.Match[str] | None:
        """The first match in what the table's notes say: a hint, never a measurement."""
        return next(
            (found for note in self.notes if (found := re.search(pattern, note, re.IGNORECASE))),
            None,
        )


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
            rows.append(
                common
                | _quoted(record.timing, record.communication, record.run.world_size)
                | {"aggregate": True}
            )
            rows += [common | row for row in _ranks(record.timing, common["label"])]
        elif record.completed and record.inference is not None:
            common = _common(record)
            points: list[Point | ClassificationPoint] = [
                *record.inference.points,
                *record.inference.classifications,
            ]
            rows += [common | _inferred(point, record.run_id) for point in points]
    numeric, rest = list(NUMERIC), [*TEXT, *EXTRA, *FACTS]
    keys = sorted({name for row in rows for name in row if name.startswith("key:")})
    columns = list(dict.fromkeys([*numeric, *rest, "rank", "aggregate", "label", *keys]))
    frame = pd.DataFrame(rows, columns=columns)
    for name in (*numeric, *EXTRA_NUMERIC, "rank", "foreign_cpu"):
        frame[name] = pd.to_numeric(frame[name], errors="coerce").astype(float)
    return Observations(
        frame=frame,
        kind="records",
        per="step",
        scaling=scaling,
        baseline=baseline or {},
        derived=frozenset({"micro_batch_size"}),
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
    row |= {
        f"key:{name}": str(getattr(run, name)) for name in Run.model_fields if name not in NO_KEYS
    }
    row |= {f"key:{name}": called for name, called in run.names.items()}
    return row | (_facts(record.environment, run) if record.environment else {})


def _facts(environment: Environment, run: Run) -> dict[str, Any]:
    return {
        "device": environment.device,
        "key:device": environment.device,
        "cpu": environment.cpu,
        "gpu": environment.gpu,
        "version": ", ".join(
            f"{name} {version}" for name, version in sorted(environment.versions.items())
        ),
        "threads": str(environment.threads_per_rank),
        "commit": environment.git_commit,
        "dirty": environment.git_dirty,
        "driver": environment.driver,
        "host": ", ".join(sorted(set(environment.hosts))),
        "nodes": len(set(environment.hosts)) or None,
        "data_sha256": environment.data_sha256,
        "cluster": environment.cluster,
        "emulated": environment.emulated.label if environment.emulated else "no",
        "link": environment.emulated.link.label
        if environment.emulated and environment.emulated.link
        else None,
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
        total, prompt, name = (
            point.quantized.total,
            str(point.prompt_tokens),
            f"{run_id}, prompt {point.prompt_tokens}",
        )
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
        phases = {
            name: values[rank]
            for name, values in timing.per_rank.items()
            if name != "step" and rank < len(values)
        }
        known = {name: value for name, value in phases.items() if name in timing.phases}
        about = {"rank": rank, "aggregate": False, "label": f"{label} rank {rank}"}
        rows.append(about | {"time": step, "median_low": low, "median_high": high} | _parts(known))
    return rows


def _parts(phases: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in phases.items() if name in columns.PHASES}


SAMPLES = r"(\d[\d,]*)\s+(?:training\s+|train\s+)?(?:samples|examples|images|sequences)"


def samples_said(seen: Observations) -> float:
    """Samples of an epoch by the table's notes, NaN where they name none."""
    told = seen.said(SAMPLES)
    return float(told[1].replace(",", "")) if told else math.nan
