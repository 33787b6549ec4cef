"""Intervals against draws of which everything is known: nineteen of twenty must fall inside."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from lab.perfmodel.intervals import (
    EXACT,
    UNKNOWN_SPREAD,
    Deviation,
    half_width,
    of_foreign_load,
    of_processes,
    spread,
)

DRAWS = 1000


def test_known_deviations_join_as_independent_normal_ones() -> None:
    assert half_width([]) == half_width([EXACT]) == 0.0
    assert half_width([Deviation(0.03), Deviation(0.04)]) == pytest.approx(1.96 * 0.05, rel=1e-3)
    # Four degrees of freedom: 2.776 standard deviations, by any table of Student's t.
    assert half_width([Deviation(0.1, 4)]) == pytest.approx(0.2776, rel=1e-3)
    # A part that is known well makes the sum better known than its worst part.
    assert half_width([Deviation(0.1, 4), Deviation(0.1)]) < 2.776 * 0.1 * math.sqrt(2)


def test_the_spread_is_that_within_groups() -> None:
    assert spread([[0.1], [0.2]]) is None
    pooled = spread([[1.0, math.exp(0.02)], [10.0, 10.0 * math.exp(0.04)], [3.0]])
    assert pooled and pooled.freedom == 2
    assert pooled.sd == pytest.approx(math.sqrt((0.02**2 + 0.04**2) / 2 / 2))


@pytest.mark.parametrize(("basis", "starts", "repeats"), [(1, 3, 1), (2, 5, 3), (1, 4, 2)])
@pytest.mark.parametrize("sd", [0.02, 0.15])
def test_nineteen_of_twenty_measurements_fall_inside(
    basis: int, starts: int, repeats: int, sd: float
) -> None:
    draws = np.random.default_rng(basis + 10 * starts + 100 * repeats)
    inside = 0
    for _ in range(DRAWS):
        # A step of 100 ms in so many processes: of the basis, of the calibration, of the run.
        records, calibrated, run = (
            (0.1 * np.exp(draws.normal(0.0, sd, count))).tolist()
            for count in (basis, starts, repeats)
        )
        known = spread([records, calibrated])
        width = half_width([of_processes(known, basis=basis, measured=repeats)])
        predicted, measured = statistics.median(records), statistics.median(run)
        inside += predicted / (1 + width) <= measured <= predicted * (1 + width)
    assert 0.90 <= inside / DRAWS <= 0.99


def test_without_a_spread_that_of_quiet_cores_is_assumed() -> None:
    assert of_processes(None, basis=1, measured=1).sd == pytest.approx(
        UNKNOWN_SPREAD * math.sqrt(2)
    )
    assert of_processes(None, basis=3, measured=3).sd < of_processes(None, basis=1, measured=3).sd


def test_an_interval_reaches_down_to_the_step_without_the_foreign_load() -> None:
    assert of_foreign_load(0.0) == EXACT
    # Others had half of the cores: by itself the step takes half as long.
    assert 1 + half_width([of_foreign_load(0.5)]) == pytest.approx(2.0, rel=1e-3)
    assert half_width([of_foreign_load(0.99)]) == half_width([of_foreign_load(0.5)])
