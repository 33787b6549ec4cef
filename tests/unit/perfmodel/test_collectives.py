"""Fits and bandwidths of collectives: known answers, noise, and laws for any link."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.perfmodel.collectives import (
    COLLECTIVES,
    RINGS,
    Collective,
    bus_factor,
    busbw,
    fit_link,
    interpolate,
    ring_time,
)

SIZES = [4096 * 4**power for power in range(8)]
alphas = st.floats(0, 1e-1)
rates = st.floats(1e6, 1e12)


def test_bus_bandwidth_by_hand() -> None:
    assert busbw("all_reduce", 4, 8e9, 2.0) == pytest.approx(6e9)
    assert (
        busbw("all_gather", 4, 8e9, 2.0)
        == busbw("reduce_scatter", 4, 8e9, 2.0)
        == pytest.approx(3e9)
    )
    assert busbw("broadcast", 4, 8e9, 2.0) == 4e9
    assert {bus_factor(name, 1) for name in COLLECTIVES} == {0}


def test_every_collective_has_its_row() -> None:
    assert set(RINGS) == set(get_args(Collective))


def test_torch_knows_every_collective_by_one_of_its_methods() -> None:
    known = dir(torch.distributed.ProcessGroup)
    assert all(set(ring.methods) & set(known) for ring in RINGS.values())


def test_unknown_collective_and_impossible_world_size() -> None:
    with pytest.raises(ValueError, match="all_reduce, all_gather"):
        bus_factor("all_to_all", 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1, not 0"):
        bus_factor("all_reduce", 0)


def test_ring_all_reduce_by_hand() -> None:
    # 4 ranks: 6 messages of 2 GB at 1 GB/s, 10 ms each to begin.
    assert ring_time("all_reduce", 8e9, 4, 0.01, 1e9) == pytest.approx(6 * (2 + 0.01))
    # The others go round once; a broadcast sends all 8 GB over each link.
    assert ring_time("all_gather", 8e9, 4, 0.01, 1e9) == pytest.approx(3 * (2 + 0.01))
    assert ring_time("broadcast", 8e9, 4, 0.01, 1e9) == pytest.approx(8 + 3 * 0.01)
    assert {ring_time(name, 8e9, 1, 0.01, 1e9) for name in COLLECTIVES} == {0}


@settings(deadline=None)  # the first call imports scipy
@given(alpha=alphas, rate=rates)
def test_a_line_is_found_again(alpha: float, rate: float) -> None:
    seconds = [alpha + size / rate for size in SIZES]
    fit = fit_link(SIZES, seconds)
    # How well the parts can be told apart depends on what each weighs in the times.
    assert fit.largest_relative_error < 1e-6
    assert fit.alpha_s == pytest.approx(alpha, rel=1e-5, abs=1e-6 * seconds[0])
    assert 1 / fit.bytes_per_s == pytest.approx(
        1 / rate, rel=1e-5, abs=1e-6 * seconds[-1] / SIZES[-1]
    )
    assert (fit.smallest_bytes, fit.largest_bytes) == (SIZES[0], SIZES[-1])


def test_noise_of_five_per_cent_leaves_alpha_and_rate_within_fifteen() -> None:
    noise = np.random.default_rng(0).normal(1, 0.05, (40, len(SIZES)))
    fits = [
        fit_link(SIZES, list((230e-6 + np.array(SIZES) / 1.45e9) * factors)) for factors in noise
    ]
    assert np.median([fit.alpha_s for fit in fits]) == pytest.approx(230e-6, rel=0.02)
    assert np.median([fit.bytes_per_s for fit in fits]) == pytest.approx(1.45e9, rel=0.02)
    assert all(
        fit.alpha_s == pytest.approx(230e-6, rel=0.15)
        and fit.bytes_per_s == pytest.approx(1.45e9, rel=0.15)
        for fit in fits
    )


def test_small_sizes_count_as_much_as_large_ones() -> None:
    """One large outlier: plain least squares would give an alpha below zero and be hundreds of per
    cent off at 4 KiB.
    """
    seconds = [2e-4 + size / 1e9 for size in SIZES]
    seconds[-1] *= 1.3
    line = np.polyfit(SIZES, seconds, 1)
    assert line[1] < 0 and abs(np.polyval(line, SIZES[0]) / seconds[0] - 1) > 3
    fit = fit_link(SIZES, seconds)
    assert fit.alpha_s == pytest.approx(2e-4, rel=0.1) and fit.largest_relative_error < 0.25
    assert fit.largest_relative_error == pytest.approx(
        max(abs(fit.time(b) / t - 1) for b, t in zip(SIZES, seconds, strict=True))
    )


def test_alpha_is_never_negative() -> None:
    assert fit_link([1e3, 1e6], [1e-6, 2e-3]).alpha_s == 0


@pytest.mark.parametrize(
    ("sizes", "seconds", "message"),
    [
        ([1e3], [1e-3], "two or more different sizes"),
        ([1e3, 1e3], [1e-3, 2e-3], "two or more different sizes"),
        ([1e3, 1e6], [1e-3, 0.0], "positive times"),
        ([1e3, 1e6], [1e-3, float("nan")], "positive times"),
        ([1e3, 1e6], [1e-3, 1e-3], "do not grow"),
        ([1e3, 1e6], [2e-3, 1e-3], "do not grow"),
    ],
)
def test_what_cannot_be_fitted_is_refused(
    sizes: list[float], seconds: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fit_link(sizes, seconds)


@settings(deadline=None)  # the first call imports scipy
@given(alpha=alphas, rate=rates, world_size=st.integers(2, 512), size=st.floats(1, 1e10))
def test_one_link_of_a_ring_gives_the_line_back(
    alpha: float, rate: float, world_size: int, size: float
) -> None:
    fit = fit_link(SIZES, [alpha + size / rate for size in SIZES])
    assert ring_time(
        "all_reduce", size, world_size, *fit.of_one_link("all_reduce", world_size)
    ) == pytest.approx(fit.time(size))


def test_there_is_no_link_within_one_rank() -> None:
    fit = fit_link([1e3, 1e6], [1e-6, 2e-3])
    with pytest.raises(ValueError, match="no link"):
        fit.of_one_link("all_reduce", 1)


@settings(deadline=None)
@given(
    alpha=st.floats(1e-6, 1e-2),
    rate=st.floats(1e7, 1e12),
    noise=st.lists(st.floats(0.8, 1.25), min_size=len(SIZES), max_size=len(SIZES)),
    size=st.floats(1, 1e11),
)
def test_times_between_and_beyond_measured_sizes(
    alpha: float, rate: float, noise: list[float], size: float
) -> None:
    seconds = [(alpha + at / rate) * factor for at, factor in zip(SIZES, noise, strict=True)]
    fit = fit_link(SIZES, [alpha + at / rate for at in SIZES])
    for at, time in zip(SIZES, seconds, strict=True):
        assert interpolate(at, SIZES, seconds, fit) == pytest.approx(time)
    between = interpolate(size, SIZES, seconds, fit)
    assert 0.79 * (alpha + size / rate) <= between <= 1.26 * (alpha + size / rate)
    assert interpolate(size * (1 + 1e-9), SIZES, seconds, fit) == pytest.approx(
        between, rel=1e-6
    )  # no jump


def test_no_bytes_take_no_measurable_time() -> None:
    with pytest.raises(ValueError, match="some bytes"):
        interpolate(0, SIZES, [1.0] * len(SIZES), fit_link([1e3, 1e6], [1e-6, 2e-3]))


@given(world_size=st.integers(1, 4096))
def test_all_reduce_is_reduce_scatter_and_all_gather(world_size: int) -> None:
    parts = bus_factor("reduce_scatter", world_size) + bus_factor("all_gather", world_size)
    assert bus_factor("all_reduce", world_size) == pytest.approx(parts)
    assert all(0 <= bus_factor(name, world_size) < 2 for name in COLLECTIVES)
