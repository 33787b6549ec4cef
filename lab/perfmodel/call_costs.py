"""A step's cost beyond its parts: costs per call and per byte of its strategy, and a factor.

DTensor dispatches every operation, FSDP gathers, copies and frees each unit, and a pipeline walks
through its schedule. These costs are derived from the calibration's reference steps under each
strategy.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lab.config.run import Run
from lab.perfmodel.calibration import Calibration, ReferenceStep
from lab.perfmodel.layout import MICRO_BATCH, Links
from lab.perfmodel.memory import calls_of, profile_of
from lab.perfmodel.simulate import EXACT, Conditions, Deviation, predict_run, spread

# Expected relative errors of a reference step, and of the step model without one.
STEP_ERROR, MODEL_ERROR = 0.03, 0.05


@dataclass(frozen=True)
class CallCost:
    """The ratio of a step to its parts, and additional s per call and per byte.

    Bytes are those of the model's gradients.
    """

    factor: float = 1.0
    call_s: float = 0.0
    byte_s: float = 0.0
    deviation: Deviation = EXACT

    def seconds(self, calls: int, size: int) -> float:
        """The cost of this many calls for this many bytes."""
        return self.call_s * calls + self.byte_s * size


@dataclass(frozen=True)
class Residual:
    """A reference step: s by the step model, s as measured, its strategy's calls, its bytes."""

    modelled_s: float
    measured_s: float
    calls: int
    bytes: int = 0


def call_cost(
    calibration: Calibration, run: Run, *, like: str, links: Links, conditions: Conditions
) -> CallCost | None:
    """The cost of the run's strategy, for predictions from one-rank steps of the strategy `like`.

    Reference steps are modelled under the same `conditions`, so that nothing is counted twice.
    The cost includes what ranks cost each other apart from messages: `contention.neighbours` limits
    how far the factor may be from 1. None if the reference steps of either are unknown, as in older
    calibrations.
    """
    part = calibration.with_steps(run.world_size)
    if part is None:
        return None
    contention = conditions.contention
    same = Conditions(replace(contention, neighbours=1.0), processes=conditions.processes)
    residuals = [
        _residual(step, alone, links, same)
        for step in part.steps
        if step.run.strategy == run.strategy
        and step.run.world_size == part.world_size
        and (alone := calibration.alone(step.run, like))
    ]
    if not residuals:
        return None
    slowdown, _ = neighbours(calibration, run.world_size) or (1.0, EXACT)
    model_error = math.hypot(MODEL_ERROR, contention.neighbours - 1)
    # Each rank computes as a single rank does, without waiting within a pass.
    if run.facts.splits == "samples" and "weights" not in run.facts.sharded:
        # Consecutive calls after the backward pass find the other ranks awake, and take less
        # time than the isolated ones that were calibrated.
        in_a_row = run.strategy == "naive_ddp"
        latency_s = links.data("all_reduce", 1) if in_a_row else 0.0
        return fitted(residuals, model_error=model_error, expected=slowdown, latency_s=latency_s)
    return fitted(residuals, model_error=model_error)


def fitted(
    residuals: Sequence[Residual],
    *,
    model_error: float = MODEL_ERROR,
    expected: float = 1.0,
    latency_s: float = 0.0,
) -> CallCost:
    """The factor, at least 1, and the non-negative costs that best explain the measured steps.

    Least squares of relative errors, with the `expected` factor as one more observation with error
    `model_error`. A call may take up to `latency_s` less than modelled. The deviation is that of
    each step from the fit to the others, because a predicted step is not part of the fit either.
    """
    import numpy as np
    from scipy.optimize import nnls

    def solve(steps: Sequence[Residual]) -> CallCost:
        rows = [
            [
                value / one.measured_s / STEP_ERROR
                for value in (one.modelled_s, one.calls, one.bytes)
            ]
            for one in steps
        ]
        matrix = np.array([*rows, [1 / model_error, 0.0, 0.0]])
        observed = np.array([*[1 / STEP_ERROR] * len(steps), expected / model_error])
        scale = np.maximum(np.linalg.norm(matrix, axis=0), 1e-30)
        # nnls keeps the excess of the factor and calls over their minimum from going negative: no
        # rank computes faster beside others than alone.
        beyond, _ = nnls(matrix / scale, observed - matrix @ [1.0, -latency_s, 0.0])
        factor, call_s, byte_s = (beyond / scale).tolist()
        return CallCost(1.0 + factor, call_s - latency_s, byte_s)

    errors = []
    for at, one in enumerate(residuals):
        cost = solve([*residuals[:at], *residuals[at + 1 :]])
        step_s = cost.factor * one.modelled_s + cost.seconds(one.calls, one.bytes)
        errors.append(step_s / one.measured_s - 1)
    squares = statistics.fmean(error**2 for error in errors)
    # The fit to all lies between the leave-one-out fits, and is known no better than a step.
    deviation = Deviation(max(math.sqrt(squares) / 2, STEP_ERROR), freedom=len(residuals))
    return replace(solve(residuals), deviation=deviation)


def neighbours(calibration: Calibration, world_size: int) -> tuple[float, Deviation] | None:
    """How many times longer a whole step takes while all ranks train; None if not measured."""
    part = calibration.with_steps(world_size)
    if part is None:
        return None
    ratios = [
        together.median / alone.median
        for together in part.steps
        if together.run.world_size == 1 and (alone := calibration.alone(together.run, "single"))
    ]
    if not ratios:
        return None
    deviation = spread([ratios]) or Deviation(STEP_ERROR)
    ratio = math.exp(statistics.fmean(map(math.log, ratios)))
    return max(ratio, 1.0), deviation.times(1 / math.sqrt(len(ratios)))


def _residual(
    step: ReferenceStep, alone: ReferenceStep, links: Links, conditions: Conditions
) -> Residual:
    run, profile = step.run, profile_of(alone.phases, alone.gradients)
    profile = replace(profile, spread=alone.spread).scaled(1 / run.passes, MICRO_BATCH)
    modelled = predict_run(run, profile, links, conditions=conditions)
    return Residual(modelled.step_s, step.median, calls_of(run, profile), profile.gradient_bytes)
