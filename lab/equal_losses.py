"""The proof that strategies differ in their time and not in what they learn: their losses beside those of `single`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from lab import machine
from lab.errors import LabError
from lab.study import Run, Strategy

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
LEFT_OUT = {("pipeline_parallel", "accumulated"), *((name, "checkpointed") for name in ("naive_ddp", "zero1", "data_parallel"))}


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
    found: dict[str, dict[str, Any]] = {REFERENCE: {"strategy": "single"}}
    for strategy in get_args(Strategy):
        sizes = () if strategy == "single" else world_sizes
        # torch's DataParallel needs GPUs for more than one device.
        widest = 1 if strategy in {"single", "data_parallel"} else max(world_sizes)
        several = {} if quick else {word: more for word, more in COMBINED.items() if (strategy, word) not in LEFT_OUT}
        for size in sizes:
            found[f"{strategy} {size}"] = {"strategy": strategy, "world_size": size}
        for word, settings in (OWN.get(strategy, {}) | several).items():
            found[f"{strategy} {widest} {word}"] = {"strategy": strategy, "world_size": widest, **settings}
    return found


def equal_losses(*, quick: bool = False) -> list[EqualLoss]:
    """Train a small GPT by every strategy, on the GPUs of this machine or on two CPU ranks, and compare the losses.

    Raises LabError where a run fails otherwise than by saying that it cannot be made here.
    """
    device, most = ("cuda", len(machine.gpus())) if machine.gpus() else ("cpu", 2)
    asked = {name: BASE | changes for name, changes in cases(sorted({1, min(most, 2)}), quick=quick).items()}
    done = subprocess.run(
        [sys.executable, "-m", "lab.worker.losses", device, json.dumps(asked)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise LabError(f"the ranks of the comparison failed:\n{done.stderr.strip()[-2000:]}")
    return compared(asked, json.loads(done.stdout))


def compared(asked: dict[str, dict[str, Any]], answers: dict[str, dict[str, Any]]) -> list[EqualLoss]:
    """Each run against `single` in fp32: `answers` hold `loss` by step and `validation_loss`, or the `reason` for not running."""
    reference = answers[REFERENCE]
    return [_row(name, Run.model_validate(changes), answers[name], reference) for name, changes in asked.items()]


def _row(name: str, run: Run, answer: dict[str, Any], reference: dict[str, Any]) -> EqualLoss:
    row: dict[str, Any] = {"name": name, "strategy": run.strategy, "world_size": run.world_size, "precision": run.precision}
    tolerance = TOLERANCES[run.precision]
    if "reason" in answer:
        return EqualLoss(
            **row, final_loss=None, validation_loss=None, difference=None, tolerance=tolerance, reason=answer["reason"]
        )
    found, expected = ([*losses["loss"], losses["validation_loss"]] for losses in (answer, reference))
    return EqualLoss(
        **row,
        final_loss=answer["loss"][-1],
        validation_loss=answer["validation_loss"],
        difference=max(abs(value / known - 1) for value, known in zip(found, expected, strict=True)),
        tolerance=tolerance,
    )
