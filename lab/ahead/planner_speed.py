"""How long looking ahead takes: a curve up to thousands of ranks, and a search over ten thousand ways to train."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from lab.ahead.predicting import predict
from lab.analysis.described import Described
from lab.analysis.machines import machine
from lab.analysis.planner import Space, best
from lab.analysis.predict import Conditions
from lab.study import Run, Study
from lab.workloads import GPT, MODELS

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
    run = Run.model_validate({"model": "gpt2-xl", "data": "synthetic", "precision": "bf16", "global_batch_size": RANKS})
    study = Study(
        folder=Path(), title="", question="", scaling="strong", runs=(run,), axes=(), repeats=1, baseline={"world_size": RANKS}
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
    costing = Described(model, 0, machine(MACHINE))
    plan = best(costing, space, world_size=6400, global_batch=6400 * 64, conditions=Conditions())
    return Speed(predicted - began, plan.searched, time.perf_counter() - predicted)
