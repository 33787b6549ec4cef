"""Reference steps: short trainings of small fixed GPTs that calibrate whole steps.

Collectives and products give the cost of a step's parts. Only whole steps show how far the sum of
these parts is from a measured step, and how much a step varies from process to process.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lab.config.models import GPT
from lab.config.run import Run
from lab.config.strategies import STRATEGIES
from lab.records.schema import Gradient


@dataclass(frozen=True)
class Reference:
    """What reference steps train: a model, samples per step, and the vocabulary of the tokens."""

    model: GPT
    samples: int
    vocabulary: int = 512


def _gpt(layers: int, width: int, block_size: int) -> GPT:
    return GPT(layers=layers, heads=4, width=width, block_size=block_size)


# The first two need little memory, one deep and one wide, so that the cost of a call and that of a
# byte can be separated; the others fill caches as real steps do, and show what grows with samples.
REFERENCES = (
    Reference(_gpt(4, 128, 64), samples=4),
    Reference(_gpt(2, 256, 64), samples=4),
    Reference(_gpt(5, 128, 64), samples=8, vocabulary=4096),
    Reference(_gpt(3, 160, 96), samples=8, vocabulary=4096),
)
STEPS, WARMUP_STEPS = 8, 2
# Every calibration measures these: the cost of another strategy is computed from them.
PLAIN = ("single", "ddp")


class ReferenceStep(BaseModel):
    """Medians in s of a reference run's step, one per fresh process, or per round of one.

    `spread` is the relative standard deviation of a process's steps; `phases` and `gradients` are
    those of a record on one rank.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    run: Run
    seconds: tuple[float, ...] = Field(min_length=1)
    spread: float = Field(default=0.0, ge=0)
    phases: dict[str, float] = {}
    gradients: tuple[Gradient, ...] = ()

    @property
    def median(self) -> float:
        """The median over all processes or rounds."""
        return statistics.median(self.seconds)


def reference_runs(world_size: int) -> list[Run]:
    """Each model with each strategy that has a process per rank, and alone on one rank.

    Models with too few layers or heads for this many ranks are left out.
    """
    names = [name for name, facts in STRATEGIES.items() if not facts.single_process]
    settings = {"steps": STEPS, "warmup_steps": WARMUP_STEPS, "lr_warmup_steps": 0}
    runs = []
    for reference in REFERENCES:
        trained = {
            "model": reference.model.model_dump(),
            "data": {"kind": "synthetic", "vocab_size": reference.vocabulary},
            "micro_batch_size": reference.samples,
        }
        for name in ("single", *names):
            own = {"strategy": name, "world_size": 1 if name == "single" else world_size}
            with suppress(ValidationError):
                runs.append(Run.model_validate(settings | own | trained))
    return runs


def pooled(steps: Iterable[ReferenceStep]) -> ReferenceStep | None:
    """Merge one run's processes, with median phases and the first one's gradients, if any."""
    steps = list(steps)
    if not steps:
        return None
    phases = {
        name: statistics.median(step.phases[name] for step in steps) for name in steps[0].phases
    }
    seconds = tuple(second for step in steps for second in step.seconds)
    spread = statistics.median(step.spread for step in steps)
    return steps[0].model_copy(update={"seconds": seconds, "phases": phases, "spread": spread})
