"""What strategies cost per call, derived from steps of which the answer is known."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from factories import calibration, environment, profile, run

from lab.config.cluster import Cluster
from lab.config.run import Run
from lab.perfmodel.calibration import Calibration, Part, ReferenceStep, pooled, reference_runs
from lab.perfmodel.call_costs import STEP_ERROR, Residual, call_cost, fitted, neighbours
from lab.perfmodel.forecast import Basis, MeasuredLinks
from lab.perfmodel.simulate import Conditions
from lab.records.schema import PHASES, Gradient

PHASE_S = dict.fromkeys(PHASES, 0.0) | {
    "forward": 0.010,
    "backward": 0.020,
    "optimizer": 0.002,
}
STEP_S = 0.032


def test_a_cost_per_call_and_a_factor_are_told_apart() -> None:
    # 1.05 times the model and 2 ms per call.
    steps = [Residual(s, 1.05 * s + 0.002 * n, n) for s, n in ((0.01, 4), (0.05, 6), (0.2, 2))]
    cost = fitted(steps)
    assert cost.factor == pytest.approx(1.05, rel=0.02)
    assert cost.call_s == pytest.approx(0.002, rel=0.1)
    assert cost.deviation.sd == STEP_ERROR  # no fit knows more than its steps


def test_a_cost_per_byte_is_told_apart_from_one_per_call() -> None:
    # 0.5 ms per call and 2 ms per MB.
    sizes = ((0.01, 9, 5 * 10**5), (0.03, 15, 35 * 10**5), (0.03, 9, 68 * 10**5))
    cost = fitted([Residual(s, s + 5e-4 * n + 2e-9 * b, n, b) for s, n, b in sizes])
    assert cost.call_s == pytest.approx(5e-4, rel=0.05)
    assert cost.byte_s == pytest.approx(2e-9, rel=0.05)
    assert cost.seconds(10, 10**6) == pytest.approx(0.007, rel=0.05)


def test_nothing_is_added_where_the_model_is_right_and_never_a_negative_cost() -> None:
    right = fitted([Residual(0.1, 0.1, 10), Residual(0.3, 0.3, 20)])
    assert right.factor == pytest.approx(1.0) and right.call_s == pytest.approx(0.0, abs=1e-9)
    fast = fitted([Residual(0.1, 0.08, 10), Residual(0.3, 0.27, 20)])
    assert fast.call_s == 0.0 and fast.factor == 1.0


def test_calls_in_a_row_take_less_than_lone_ones_but_not_less_than_nothing() -> None:
    # Modelled with 2 ms per call, of which the ranks take 1.2.
    steps = [Residual(s + 0.002 * n, s + 0.0012 * n, n) for s, n in ((0.03, 50), (0.1, 28))]
    assert fitted(steps, latency_s=0.002).call_s == pytest.approx(-0.0008, rel=0.1)
    assert fitted(steps).call_s == 0.0 and fitted(steps, latency_s=0.0005).call_s >= -0.0005


def test_steps_that_contradict_each_other_deviate() -> None:
    assert fitted([Residual(0.1, 0.1, 1), Residual(0.1, 0.15, 1)]).deviation.sd > 0.1


def reference(
    world_size: int, seconds: float, *, beside: float = STEP_S
) -> tuple[ReferenceStep, ...]:
    """All strategies' steps of `seconds`, and those of a rank alone of `beside`."""
    gradients = tuple(Gradient(ready=share, bytes=10**5) for share in (0.5, 1.0))
    return tuple(
        ReferenceStep(
            run=one,
            seconds=(beside if one.strategy == "single" else seconds,),
            phases=PHASE_S,
            gradients=gradients,
        )
        for one in reference_runs(world_size)
    )


def calibrated(seconds: float, *, beside: float = STEP_S) -> Calibration:
    """Links that take next to no time, and the reference steps of one and of two ranks."""
    (links,) = calibration(2, alpha_s=1e-9, bytes_per_s=1e15).parts
    alone = Part(
        world_size=1,
        quick=True,
        measured_at=datetime.now(UTC),
        profile=Cluster(name="local"),
        environment=environment(1),
        steps=reference(1, STEP_S),
    )
    pair = links.model_copy(update={"steps": reference(2, seconds, beside=beside)})
    return Calibration(cluster="local", wanted=(1, 2), parts=(alone, pair))


def forecast(calibration: Calibration, wanted: Run) -> tuple[float, float]:
    prediction = Basis((profile(run(1, 8)),), calibration, repeats=3).forecast(wanted).prediction
    assert prediction is not None
    return prediction.step_s, prediction.parts["call_overhead"]


@pytest.mark.parametrize("strategy", ["ddp", "naive_ddp", "fsdp", "tensor_parallel"])
def test_reference_steps_that_took_longer_than_their_parts_lengthen_predictions(
    strategy: str,
) -> None:
    wanted = run(2, 16 if strategy != "tensor_parallel" else 8, strategy=strategy)
    plain, _ = forecast(calibrated(STEP_S), wanted)
    slow, overhead = forecast(calibrated(2 * STEP_S), wanted)
    assert slow > 1.2 * plain and overhead > 0


def test_ranks_that_slow_each_other_lengthen_compute() -> None:
    crowded = calibrated(1.5 * STEP_S, beside=1.5 * STEP_S)
    ratio, _ = neighbours(crowded, 2) or (0.0, None)
    assert ratio == pytest.approx(1.5)
    assert neighbours(calibration(2), 2) is None
    # Ratios of 1 and 4, twice each: a mean of 2, and a deviation known from three differences.
    alone, pair = calibrated(STEP_S).parts
    factors = iter((1.0, 4.0, 1.0, 4.0))
    steps = tuple(
        step.model_copy(update={"seconds": (STEP_S * next(factors),)})
        for step in pair.steps
        if step.run.strategy == "single"
    )
    parts = (alone, pair.model_copy(update={"steps": steps}))
    ratio, deviation = neighbours(Calibration(cluster="local", wanted=(1, 2), parts=parts), 2)
    assert ratio == pytest.approx(2.0)
    assert deviation.sd == pytest.approx(math.log(2) * math.sqrt(4 / 3) / math.sqrt(4))
    assert deviation.freedom == 3
    quiet, _ = forecast(calibrated(STEP_S), run(2, 16))
    assert forecast(crowded, run(2, 16))[0] == pytest.approx(1.5 * quiet, rel=0.2)


def test_what_the_slowest_process_costs_is_not_counted_in_the_factor_too() -> None:
    slow = calibrated(1.2 * STEP_S)

    def factor(**known: Any) -> float:
        conditions = Conditions(**known)
        links = MeasuredLinks(lambda collective, size: 1e-9).links
        cost = call_cost(slow, run(2, 16), like="ddp", links=links, conditions=conditions)
        assert cost is not None
        return cost.factor + cost.call_s / STEP_S

    # Ranks whose processes differ by 20 % lose about half of that to the slowest of two.
    assert factor(processes=0.2) < factor() - 0.05


def test_a_disturbed_calibration_widens_the_interval_and_is_said() -> None:
    quiet = calibrated(STEP_S)
    noisy = environment(2, foreign_cpu=0.6)
    parts = (quiet.parts[0], quiet.parts[1].model_copy(update={"environment": noisy}))
    loud = quiet.model_copy(update={"parts": parts})
    calm, disturbed = (
        Basis((profile(run(1, 8)),), one, repeats=3).forecast(run(2, 16)) for one in (quiet, loud)
    )
    assert calm.prediction and disturbed.prediction
    assert not calm.extrapolated and "30 % of the ranks' cores" in disturbed.extrapolated[0]
    # A rank that had half of its core to itself takes half the time with all of it.
    assert disturbed.prediction.low_s < 0.55 * disturbed.prediction.step_s < calm.prediction.low_s


def test_processes_of_one_run_are_pooled() -> None:
    first, second = (reference(1, seconds)[1] for seconds in (0.03, 0.05))
    together = pooled([first, second])
    assert together and together.seconds == (0.03, 0.05) and together.median == 0.04


def test_many_ranks_leave_out_the_models_that_they_cannot_split() -> None:
    names = {one.strategy for one in reference_runs(2)}
    assert {one.strategy for one in reference_runs(1)} == names and "single" in names
    eight = reference_runs(8)  # more than heads and layers
    assert {one.strategy for one in eight} == names - {"tensor_parallel", "pipeline_parallel"}


def test_no_rank_is_faster_than_alone() -> None:
    # Small steps that are mostly calls would have a larger one shrink.
    residuals = [Residual(0.01, 0.03, 10), Residual(0.02, 0.034, 10), Residual(0.04, 0.05, 10)]
    assert fitted(residuals, model_error=1.0).factor == pytest.approx(1.0)
