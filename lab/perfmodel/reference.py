"""Reference steps: short trainings of small fixed GPTs, by which a calibration knows whole steps.

Collectives and products tell what the parts of a step cost; how far a step of these parts is from
one that was measured, and how much the same step varies from process to process, only steps tell.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, Field

from lab.config.models import GPT
from lab.config.run import Run
from lab.config.strategies import STRATEGIES
from lab.records.schema import Gradient

# Two, so that what each call costs and what grows with the step can be told apart.
MODELS = tuple(
    GPT(layers=layers, heads=layers, width=width, block_size=64)
    for layers, width in ((2, 64), (4, 128))
)
SAMPLES = 4
STEPS, WARMUP_STEPS = 12, 3


class ReferenceStep(BaseModel):
    """Medians in s of a reference run's step, one per fresh process, or per round of one.

    `phases` and `gradients` are those of a record on one rank.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    run: Run
    seconds: tuple[float, ...] = Field(min_length=1)
    phases: dict[str, float] = {}
    gradients: tuple[Gradient, ...] = ()

    @property
    def median(self) -> float:
        """Of all processes or rounds."""
        return statistics.median(self.seconds)


def reference_runs(world_size: int) -> list[Run]:
    """Each model by each strategy that has a process per rank, and alone as it runs on one rank."""
    names = [name for name, facts in STRATEGIES.items() if not facts.single_process]
    return [
        Run.model_validate(
            {
                "model": model.model_dump(),
                "data": {"kind": "synthetic", "vocab_size": 512},
                "strategy": name,
                "world_size": 1 if name == "single" else world_size,
                "micro_batch_size": SAMPLES,
                "steps": STEPS,
                "warmup_steps": WARMUP_STEPS,
                "lr_warmup_steps": 0,
            }
        )
        for model in MODELS
        for name in ("single", *names)
    ]


def pooled(steps: Iterable[ReferenceStep]) -> ReferenceStep | None:
    """The same run of several processes as one, its phases their medians; None without any."""
    steps = list(steps)
    if not steps:
        return None
    phases = {
        name: statistics.median(step.phases[name] for step in steps) for name in steps[0].phases
    }
    seconds = tuple(second for step in steps for second in step.seconds)
    return steps[0].model_copy(update={"seconds": seconds, "phases": phases})
