"""The proof that strategies differ in their time and not in what they learn: their losses beside those of `single`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
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
    "steps": 12,
    "warmup_steps": 2,
    "lr_warmup_steps": 2,
    "eval_batches": 1,
    "grad_clip": 0.5,  # low enough that most steps are clipped, by the norm of the whole model
}
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "naive_ddp": [{"flat": True}],
    "fsdp": [{"reshard_after_forward": False}],
    "pipeline_parallel": [{"schedule": "1f1b", "microbatches": 4}],
}
# Block activations computed again inside each kind of wrapper.
CHECKPOINTED = ("single", "ddp", "fsdp", "tensor_parallel", "pipeline_parallel", "vanilla_data_parallel")


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
    """What to change in a run for each strategy, by a name: sizes, settings, and unless `quick` also accumulation, checkpointing, bf16."""
    found: dict[str, dict[str, Any]] = {REFERENCE: {"strategy": "single"}}
    for strategy in get_args(Strategy)[1:]:
        found |= {f"{strategy} {size}": {"strategy": strategy, "world_size": size} for size in world_sizes}
        for settings in VARIANTS.get(strategy, []):
            changes = {"strategy": strategy, "world_size": max(world_sizes), **settings}
            found[_name(changes)] = changes
    return found if quick else found | dict(_combined(max(world_sizes)))


def _combined(size: int) -> Iterator[tuple[str, dict[str, Any]]]:
    for strategy in get_args(Strategy):
        changes = {"strategy": strategy, "world_size": 1 if strategy in {"single", "data_parallel"} else size}
        also: list[dict[str, Any]] = [{"precision": "bf16"}]
        if strategy != "pipeline_parallel":  # it accumulates over microbatches
            also.append({"grad_accum": 2})
        if strategy in CHECKPOINTED:
            also.append({"activation_checkpointing": True})
        yield from ((_name(changes | settings), changes | settings) for settings in also)


def _name(changes: dict[str, Any]) -> str:
    settings = (f"{key}={value}" for key, value in changes.items() if key not in {"strategy", "world_size"})
    return " ".join([changes["strategy"], str(changes["world_size"]), *settings])


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
    known = "reason" not in answer
    pairs = (
        zip([*answer["loss"], answer["validation_loss"]], [*reference["loss"], reference["validation_loss"]], strict=True)
        if known
        else ()
    )
    return EqualLoss(
        name=name,
        strategy=run.strategy,
        world_size=run.world_size,
        precision=run.precision,
        final_loss=answer["loss"][-1] if known else None,
        validation_loss=answer["validation_loss"] if known else None,
        difference=max(abs(value / expected - 1) for value, expected in pairs) if known else None,
        tolerance=TOLERANCES[run.precision],
        reason=answer.get("reason", ""),
    )
