"""Benchmarks of the lab itself: what its measuring costs."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import machine
from lab.config.models import GPT, MODELS
from lab.config.run import Run
from lab.config.strategies import STRATEGIES
from lab.config.study import Study
from lab.errors import LabError
from lab.launch.calibrate import calibrate
from lab.launch.launcher import launch
from lab.perfmodel.frozen import Score, mean_absolute_error, scores, scores_table
from lab.perfmodel.hardware import Described
from lab.perfmodel.hardware import machine as described_machine
from lab.perfmodel.planner import Space, best
from lab.perfmodel.predict import predict
from lab.perfmodel.simulate import Conditions
from lab.records.schema import Stat
from lab.records.store import Record, load_records

LIMIT = 1.01  # of the step time with measuring to that without
WARMUP = 5
RATIOS = ("ratio", "control", "cpu_ratio", "cpu_control")


@dataclass(frozen=True)
class Overhead:
    """Step time of the lab's training loop over that of a plain one, paired round by round; `control` is plain over plain."""

    world_size: int
    rounds: int
    ratio: Stat
    control: Stat
    cpu_ratio: Stat  # the same of CPU time, all ranks together
    cpu_control: Stat
    step_s: dict[str, float]  # medians of "instrumented", "plain", "control"
    largest_loss_difference: float  # between the two loops, over all steps

    @property
    def within_limit(self) -> bool:
        """Whether the ratio is LIMIT at most."""
        return self.ratio.median <= LIMIT

    def __str__(self) -> str:
        ratio, control, cpu = (
            f"{found.median:.4f}{_interval(found)}"
            for found in (self.ratio, self.control, self.cpu_ratio)
        )
        step = f"{self.step_s['instrumented'] * 1e3:.1f} ms against {self.step_s['plain'] * 1e3:.1f} ms"
        return (
            f"instrumented / plain: {ratio}, limit {LIMIT}; plain / plain: {control}; CPU time: {cpu}; "
            f"{self.rounds} rounds on {self.world_size} ranks, median step {step}"
        )


def overhead(*, world_size: int = 2, rounds: int = 200, quick: bool = False) -> Overhead:
    """Measure what measuring costs a small GPT on CPU ranks of this machine, in `rounds` rounds (`quick`: 40).

    Raises LabError where the ranks fail.
    """
    steps = WARMUP + 1 + (40 if quick else rounds)
    asked = {
        "micro_batch_size": 8,
        "world_size": world_size,
        "steps": steps,
        "warmup_steps": WARMUP,
    }
    run = Run.model_validate(asked)
    done = subprocess.run(
        [sys.executable, "-m", "lab.worker.selftest", "overhead", run.model_dump_json()],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise LabError(f"the ranks of the benchmark failed:\n{done.stderr.strip()[-2000:]}")
    found = json.loads(done.stdout)
    return Overhead(**found | {name: Stat.model_validate(found[name]) for name in RATIOS})


def _interval(found: Stat) -> str:
    return "" if found.interval is None else f" [{found.interval[0]:.4f}, {found.interval[1]:.4f}]"


# Relative, on the whole curve and the validation loss. Sums in another order round differently, and AdamW lets it grow.
TOLERANCES = {"fp32": 2e-4, "bf16": 2e-2}
REFERENCE = "single"
BASE: dict[str, Any] = {
    "model": {"kind": "gpt", "layers": 2, "heads": 2, "width": 64, "block_size": 64},
    "global_batch_size": 8,
    "steps": 8,
    "warmup_steps": 2,
    "lr_warmup_steps": 2,
    "eval_batches": 1,
    "grad_clip": 0.5,  # low enough that most steps are clipped, by the norm of the whole model
}
# Settings by a word for the table; those of a strategy, and those that go with many.
OWN: dict[str, dict[str, dict[str, Any]]] = {
    "naive_ddp": {"flat": {"flat": True}},
    "fsdp": {"not resharded": {"reshard_after_forward": False}},
    "pipeline_parallel": {"1f1b": {"schedule": "1f1b", "microbatches": 4}},
}
COMBINED: dict[str, dict[str, Any]] = {
    "bf16": {"precision": "bf16"},
    "accumulated": {"grad_accum": 2},
    "checkpointed": {"activation_checkpointing": True},
}
# A pipeline accumulates over its microbatches; checkpointing is tried inside each kind of wrapper.
LEFT_OUT = {
    ("pipeline_parallel", "accumulated"),
    *((name, "checkpointed") for name in ("naive_ddp", "zero1", "data_parallel")),
}


@dataclass(frozen=True)
class EqualLoss:
    """One run beside `single` in the same precision; the losses are None where it did not run, for `reason`."""

    name: str
    strategy: str
    world_size: int
    precision: str
    final_loss: float | None
    validation_loss: float | None
    difference: float | None  # the largest, relative, over all steps and the validation loss
    tolerance: float
    reason: str = ""

    @property
    def equal(self) -> bool | None:
        """Whether the difference is within the tolerance; None where the run was not made."""
        return None if self.difference is None else self.difference <= self.tolerance


def cases(world_sizes: Sequence[int] = (1, 2), *, quick: bool = False) -> dict[str, dict[str, Any]]:
    """What to change in a run for each strategy, by a name: its sizes, its settings, and unless `quick` what goes with many."""
    found: dict[str, dict[str, Any]] = {REFERENCE: {"strategy": REFERENCE}}
    for strategy, facts in STRATEGIES.items():
        sizes = () if strategy == REFERENCE else world_sizes
        widest = 1 if strategy == REFERENCE or facts.gpus_only else max(world_sizes)
        several = (
            {}
            if quick
            else {word: more for word, more in COMBINED.items() if (strategy, word) not in LEFT_OUT}
        )
        for size in sizes:
            found[f"{strategy} {size}"] = {"strategy": strategy, "world_size": size}
        for word, settings in (OWN.get(strategy, {}) | several).items():
            found[f"{strategy} {widest} {word}"] = {
                "strategy": strategy,
                "world_size": widest,
                **settings,
            }
    return found


def equal_losses(*, quick: bool = False) -> list[EqualLoss]:
    """Train a small GPT by every strategy, on the GPUs of this machine or on two CPU ranks, and compare the losses.

    Raises LabError where a run fails otherwise than by saying that it cannot be made here.
    """
    device, most = ("cuda", len(machine.gpus())) if machine.gpus() else ("cpu", 2)
    asked = {
        name: BASE | changes
        for name, changes in cases(sorted({1, min(most, 2)}), quick=quick).items()
    }
    done = subprocess.run(
        [sys.executable, "-m", "lab.worker.selftest", "losses", json.dumps(asked), device],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise LabError(f"the ranks of the comparison failed:\n{done.stderr.strip()[-2000:]}")
    return compared(asked, json.loads(done.stdout))


def compared(
    asked: dict[str, dict[str, Any]], answers: dict[str, dict[str, Any]]
) -> list[EqualLoss]:
    """Each run against `single` in fp32: `answers` hold `loss` by step and `validation_loss`, or the `reason` for not running."""
    reference = answers[REFERENCE]
    return [
        _row(name, Run.model_validate(changes), answers[name], reference)
        for name, changes in asked.items()
    ]


def _row(name: str, run: Run, answer: dict[str, Any], reference: dict[str, Any]) -> EqualLoss:
    row: dict[str, Any] = {
        "name": name,
        "strategy": run.strategy,
        "world_size": run.world_size,
        "precision": run.precision,
    }
    tolerance = TOLERANCES[run.precision]
    if "reason" in answer:
        return EqualLoss(
            **row,
            final_loss=None,
            validation_loss=None,
            difference=None,
            tolerance=tolerance,
            reason=answer["reason"],
        )
    found, expected = (
        [*losses["loss"], losses["validation_loss"]] for losses in (answer, reference)
    )
    return EqualLoss(
        **row,
        final_loss=answer["loss"][-1],
        validation_loss=answer["validation_loss"],
        difference=max(
            abs(value / known - 1) for value, known in zip(found, expected, strict=True)
        ),
        tolerance=tolerance,
    )


ERROR_LIMIT = 0.05  # mean absolute error of the step time
STUDY = "held-out"


@dataclass(frozen=True)
class HeldOut:
    """The scored runs of a study, and the cores' worth of others on its ranks' cores meanwhile, by run id."""

    study: Study
    scores: tuple[Score, ...]
    foreign: dict[str, float]

    @property
    def error(self) -> float:
        """Mean absolute error of the step time, relative."""
        return mean_absolute_error(list(self.scores)) or 0.0

    @property
    def memory_error(self) -> float | None:
        """That of a rank's peak memory."""
        errors = [
            abs(score.memory_error) for score in self.scores if score.memory_error is not None
        ]
        return statistics.fmean(errors) if errors else None

    @property
    def within_limit(self) -> bool:
        """Whether the error is LIMIT at most."""
        return self.error <= ERROR_LIMIT

    def table(self) -> list[dict[str, Any]]:
        """One row per run, for people."""
        kept = (
            "predicted",
            "measured",
            "error",
            "exposed, predicted",
            "exposed, measured",
            "memory error",
        )
        rows = scores_table(list(self.scores)).to_dict("records")
        return [
            {"model": score.frozen.run.label_parts[0], "batch": score.frozen.run.global_batch_size}
            | {"buckets": f"{score.frozen.run.bucket_cap_mb:g} MiB"}
            | {name: row[name] for name in kept}
            | {"foreign CPU": f"{self.foreign.get(score.frozen.run_id, 0.0):.2f}"}
            for score, row in zip(self.scores, rows, strict=True)
        ]

    def __str__(self) -> str:
        memory = "" if self.memory_error is None else f"; of memory {100 * self.memory_error:.1f} %"
        return (
            f"mean absolute error of the step over {len(self.scores)} held-out runs: {100 * self.error:.2f} %, "
            f"limit {100 * ERROR_LIMIT:.0f} %{memory}; predictions, records and logs are in {self.study.out}"
        )


def held_out(
    cluster: str = "local", *, quick: bool = False, fresh: bool = False, progress: bool = True
) -> HeldOut:
    """Calibrate, measure every repeat on one rank, freeze predictions of the runs on several, measure those, score.

    What is measured already is kept unless `fresh`. Raises InputError for a cluster with fewer than two ranks, LabError
    where runs fail or nothing could be predicted.
    """
    study = Study.load(STUDY, quick=quick)
    calibrate(cluster, world_sizes=[1, 2], quick=quick, progress=progress)
    for several in (False, True):
        tasks = [task for task in study.tasks if (task.run.world_size > 1) == several]
        records = launch(study, cluster, tasks=tasks, fresh=fresh).wait(progress=progress)
        if failed := [record.task.label for record in records if not record.completed]:
            raise LabError(f"these runs failed, so that nothing can be scored: {', '.join(failed)}")
    found = scores(study)
    if not found:
        raise LabError("no run was predicted before it was measured: measure anew with --fresh")
    return HeldOut(study, tuple(found), _foreign(load_records(study)))


def _foreign(records: list[Record]) -> dict[str, float]:
    seen: dict[str, list[float]] = {}
    for record in records:
        if record.environment and record.environment.foreign_cpu is not None:
            seen.setdefault(record.run_id, []).append(record.environment.foreign_cpu)
    return {run_id: statistics.median(values) for run_id, values in seen.items()}


MACHINE = "h100x8:nvlink4:infiniband-ndr"
RANKS = 4096
PREDICTION_LIMIT_S, SEARCH_LIMIT_S = 1.0, 10.0


@dataclass(frozen=True)
class Speed:
    """Seconds of one prediction for RANKS ranks, and of a search over so many candidates."""

    prediction_s: float
    candidates: int
    search_s: float

    @property
    def within_limit(self) -> bool:
        """Whether both take no longer than their limits."""
        return self.prediction_s <= PREDICTION_LIMIT_S and self.search_s <= SEARCH_LIMIT_S

    def __str__(self) -> str:
        return (
            f"a prediction for {RANKS} ranks: {self.prediction_s:.3f} s, limit {PREDICTION_LIMIT_S:g} s; "
            f"{self.candidates:,} candidates: {self.search_s:.2f} s, limit {SEARCH_LIMIT_S:g} s"
        )


def planner_speed() -> Speed:
    """Predict and plan the training of GPT-2 XL on a described machine."""
    model = MODELS["gpt2-xl"]
    assert isinstance(model, GPT)
    run = Run.model_validate(
        {"model": "gpt2-xl", "data": "synthetic", "precision": "bf16", "global_batch_size": RANKS}
    )
    study = Study(
        folder=Path(),
        title="",
        question="",
        scaling="strong",
        runs=(run,),
        axes=(),
        repeats=1,
        baseline={"world_size": RANKS},
    )
    began = time.perf_counter()
    predict(study, machine=MACHINE, world_sizes=[RANKS])
    predicted = time.perf_counter()
    space = Space(
        layers=model.layers,
        activation_bytes_per_sample=2 * model.block_size * model.width,
        tensor=(1, 5, 25),
        pipeline=(1, 2, 4, 8, 16),
        precisions=("bf16", "fp32"),
        buckets_mb=(1.0, 5.0, 10.0, 25.0, 50.0, 100.0),
    )
    costing = Described(model, 0, described_machine(MACHINE))
    plan = best(costing, space, world_size=6400, global_batch=6400 * 64, conditions=Conditions())
    return Speed(predicted - began, plan.searched, time.perf_counter() - predicted)
