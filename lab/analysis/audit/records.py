"""Records of this lab as observations: one row for each repeat over all ranks, and one per rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pandas as pd

from lab.analysis.audit.columns import COLUMNS, NUMERIC, PHASES
from lab.analysis.audit.observations import Observations
from lab.analysis.audit.points import ROUNDINGS
from lab.config.run import Run, distinct_labels
from lab.perfmodel.collectives import bus_factor
from lab.records.schema import ClassificationPoint, Communication, Environment, Point, Timing
from lab.records.store import Record
from lab.records.table import python_strings

# Settings of a run that follow from the world size or that have their own rule.
NO_KEYS = {
    *("world_size", "global_batch_size", "micro_batch_size", "grad_accum"),
    *("steps", "warmup_steps", "lr_warmup_steps", "eval_batches"),
}
# What an environment calls as the audit does.
SAME_NAMES = (
    *("device", "cpu", "gpu", "driver", "data_sha256", "cluster"),
    *("foreign_share", "disturbed", "parameters"),
)
# Numbers that only records have.
RECORD_NUMBERS = (
    *("total_steps", "phase_sum", "step_spread", "median_low", "median_high"),
    *("foreign_share", "disturbed"),
)


@python_strings()
def from_records(
    records: Sequence[Record],
    *,
    scaling: Literal["strong", "weak", "none"] | None = None,
    baseline: Mapping[str, object] | None = None,
) -> Observations:
    """Completed records as observations, times per step in s."""
    rows: list[dict[str, Any]] = []
    runs = list(dict.fromkeys(record.run for record in records if record.completed))
    for record in records:
        if record.completed and record.timing is not None:
            common = _common(record)
            quoted = _quoted(record.timing, record.communication, record.run.world_size)
            rows.append(common | quoted | {"aggregate": True})
            rows += [common | row for row in _ranks(record.timing, common["label"])]
        elif record.completed and record.inference is not None:
            common = _common(record)
            points: list[Point | ClassificationPoint] = [*record.inference.points]
            points += record.inference.classifications
            rows += [common | _inference(point, record.run_id) for point in points]
    frame = pd.DataFrame(rows)
    names = dict.fromkeys([*COLUMNS, *RECORD_NUMBERS, *ROUNDINGS, *frame.columns])
    frame = frame.reindex(columns=list(names))
    for name in (*NUMERIC, *RECORD_NUMBERS, *ROUNDINGS, "rank"):
        if frame[name].dtype != float:
            frame[name] = pd.to_numeric(frame[name], errors="coerce").astype(float)
    return Observations(
        frame=frame.copy(),  # in one piece for each type: rows are taken from it again and again
        kind="records",
        scaling=scaling,
        baseline=baseline or {},
        derived=frozenset({"micro_batch_size"}),
        configurations={run.id: label for run, label in distinct_labels(runs)[0].items()},
        # A published row is one record, whatever it averages.
        summarised=any(record.environment and record.environment.replay for record in records),
    )


def _common(record: Record) -> dict[str, Any]:
    run, quality = record.run, record.quality
    row: dict[str, Any] = {
        "label": f"{record.run_id}/{record.repeat}",
        "run_id": record.run_id,
        "repeat": str(record.repeat),
        "world_size": run.world_size,
        "global_batch_size": record.global_batch_size,
        # For a script it may be unknown.
        "micro_batch_size": run.micro_batch_size and run.micro_batch_size * run.grad_accum,
        "grad_accum": run.grad_accum,
        "total_steps": run.steps,
        "warmup": run.warmup_steps,
        "compile": str(run.compile),
        "precision": run.precision,
        "strategy": run.strategy,
        # Each step of a script adds up, as the rest of it is `other`, however long.
        "phases_checked": record.checks.get("phases_close", bool(record.script) or None),
        "one_model": record.checks.get("same_parameters"),
        "loss_curve": quality.loss if quality else None,
        "loss": record.final_loss,
        "accuracy": quality.accuracy if quality else None,
        "depends_on_split": quality.depends_on_split if quality else None,
        "loader_workers": run.loader_workers if run.loader == "classic" else None,
    }
    settings = {name: str(getattr(run, name)) for name in Run.model_fields if name not in NO_KEYS}
    row |= {f"key:{name}": value for name, value in (settings | run.names).items()}
    return row | (_environment(record.environment) if record.environment else {})


def _environment(environment: Environment) -> dict[str, Any]:
    hosts = sorted(set(environment.hosts))
    cores = {core for cores in environment.cpus_granted for core in cores}
    emulated = environment.emulated
    versions = sorted(environment.versions.items())
    return {name: getattr(environment, name) for name in SAME_NAMES} | {
        "key:device": environment.device,
        "version": ", ".join(f"{name} {version}" for name, version in versions),
        "threads": str(environment.threads_per_rank),
        "commit": environment.git_commit,
        "dirty": environment.git_dirty,
        "host": ", ".join(hosts),
        "nodes": len(hosts) or None,
        "emulated": emulated.label if emulated else "no",
        "link": emulated.link.label if emulated and emulated.link else None,
        "key:emulated": emulated.label if emulated else "",
        "cpus": len(cores) or None if len(hosts) == 1 else None,
    }


def _inference(point: Point | ClassificationPoint, run_id: str) -> dict[str, Any]:
    """One point of an inference record: the time of one batch with the quantized model."""
    if isinstance(point, Point):
        total, prompt = point.quantized.total, str(point.prompt_tokens)
        name = f"{run_id}, prompt {prompt}"
    else:
        total, prompt, name = point.quantized, "", run_id
    return {
        "run_id": f"{name}, batch {point.batch_size}",
        "time": total.median,
        "global_batch_size": point.batch_size,
        "micro_batch_size": None,
        "total_steps": None,
        "aggregate": True,
        "key:prompt": prompt,
    }


def _quoted(timing: Timing, communication: Communication | None, world_size: int) -> dict[str, Any]:
    phases = {name: stat.median for name, stat in timing.phases.items()}
    step, peak = timing.step, timing.peak_flops_per_second
    row: dict[str, Any] = {
        "time": step.median,
        "step_spread": _spread(timing) / step.median if step.median else None,
        "rate": timing.samples_per_second,
        # Not the MFU itself: a measured peak, and with it the MFU, differs between repeats.
        "flops_per_rank": peak * timing.mfu if peak and timing.mfu else None,
        "peak_flops": peak,
        "phase_sum": math.fsum(phases.values()) if phases else None,
        **_canonical(phases),
    }
    if communication is not None:
        total, exposed = communication.total, communication.exposed
        size: float | None = communication.bytes
        if communication.bytes_moved is not None and world_size > 1:
            # Bandwidth rules assume an all-reduce: the size of one that moves as many bytes.
            size = communication.bytes_moved / bus_factor("all_reduce", world_size)
        if "forward" in row:  # without what it waits for, as if weights or activations are sent
            waited = (communication.exposed_in or {}).get("forward", 0.0)
            row["forward"] = max(row["forward"] - waited, 0.0)
        row["communication"] = total.median if total else None
        row["exposed"] = exposed.median if exposed else None
        row["bytes"] = size or None
    return row


def _spread(timing: Timing) -> float:
    """Within what medians of the parts add up, in s: equal steps may have unequal parts, such as
    those that wait for their batch and those that find it ready."""
    step, *parts = ((one.p90 - one.p10) / 2 for one in (timing.step, *timing.phases.values()))
    return max(step, math.fsum(parts))


def _ranks(timing: Timing, label: str) -> list[dict[str, Any]]:
    low, high = timing.step.interval or (None, None)
    rows = []
    for rank, step in enumerate(timing.per_rank.get("step", [])):
        phases = {
            name: values[rank]
            for name, values in timing.per_rank.items()
            if name in timing.phases and rank < len(values)
        }
        row = {"rank": rank, "aggregate": False, "label": f"{label} rank {rank}"}
        rows.append(
            row | {"time": step, "median_low": low, "median_high": high} | _canonical(phases)
        )
    return rows


def _canonical(phases: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in phases.items() if name in PHASES}
