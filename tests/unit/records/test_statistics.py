"""Intervals against resampling and counting by hand, and one seed for every caller."""

from __future__ import annotations

import numpy as np
import pytest

from lab.analysis.scaling import RESAMPLES, SEED, ratio
from lab.records.statistics import bootstrap_interval, median_interval
from lab.worker.inference.quantize import _mean
from lab.worker.measure.clock import stat

VALUES = np.random.default_rng(3).lognormal(size=50)


def by_hand(values: np.ndarray, statistic: object, *, resamples: int, seed: int = 0) -> list[float]:
    generator, count = np.random.default_rng(seed), len(values)
    draws = [values[generator.integers(0, count, size=count)] for _ in range(resamples)]
    return [float(end) for end in np.percentile([statistic(draw) for draw in draws], [2.5, 97.5])]


@pytest.mark.parametrize("statistic", [np.mean, np.median])
@pytest.mark.parametrize("count", [2, 7, 50])
def test_the_interval_is_that_of_resampling_by_hand(statistic: object, count: int) -> None:
    interval = bootstrap_interval([VALUES[:count]], statistic, resamples=2000)
    assert interval == pytest.approx(by_hand(VALUES[:count], statistic, resamples=2000), rel=1e-12)


def test_every_caller_has_its_interval_from_there() -> None:
    assert stat(VALUES).interval == pytest.approx(by_hand(VALUES, np.median, resamples=2000))
    share = _mean(VALUES)
    assert (share.low, share.high) == pytest.approx(by_hand(VALUES, np.mean, resamples=2000))
    # The ratio to a constant is that of the median alone: the first sample is drawn first.
    ends = ratio(VALUES, np.ones(2))[1:]
    assert ends == pytest.approx(by_hand(VALUES, np.median, resamples=RESAMPLES, seed=SEED))


def test_rows_are_resampled_together() -> None:
    rows = np.stack([VALUES, 2 * VALUES])
    low, high = bootstrap_interval([rows], np.median, resamples=200)
    assert (low[1], high[1]) == pytest.approx((2 * low[0], 2 * high[0]))


@pytest.mark.parametrize("count", [2, 30, 600])
def test_the_interval_is_that_of_scipy(count: int) -> None:
    from scipy import stats  # half a second, of each process that collects this file

    samples = [VALUES[:1].repeat(count) + np.arange(count), np.arange(1.0, 9.0)]

    def quotient(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
        return np.median(a, axis=axis) / np.median(b, axis=axis)

    interval = stats.bootstrap(
        samples,
        quotient,
        n_resamples=500,
        vectorized=True,
        method="percentile",
        rng=np.random.default_rng(5),
    ).confidence_interval
    assert bootstrap_interval(samples, quotient, resamples=500, seed=5) == pytest.approx(
        (interval.low, interval.high), rel=1e-12
    )


@pytest.mark.parametrize("count", [2, 5, 6, 7, 20, 21, 2000])
def test_the_ends_of_a_median_lie_between_the_order_statistics_around_95_percent(
    count: int,
) -> None:
    from scipy import stats

    ordered = np.arange(1.0, count + 1)
    low, high = median_interval(np.random.default_rng(1).permutation(ordered))
    assert high == pytest.approx(count + 1 - low)
    # The interval from the k-th value on leaves out the median if fewer than k values are below it.
    outer, inner = np.floor(low), np.floor(low) + 1
    assert low == 1 or 2 * stats.binom.cdf(outer - 1, count, 0.5) <= 0.05
    assert 2 * stats.binom.cdf(inner - 1, count, 0.5) > 0.05
    assert (low == 1) == (count <= 5)


def test_a_median_of_ten_values_has_the_interval_interpolated_by_hand() -> None:
    # From the second value to the ninth 97.85 % are covered (1 - 2 * 11 / 1024), to the eighth 89 %.
    excess = (0.978515625 - 0.95) / (0.978515625 - 0.890625)
    weight = (10 - 2) * excess / (2 + (10 - 2 * 2) * excess)
    assert median_interval(np.arange(1.0, 11.0)) == pytest.approx((2 + weight, 9 - weight))
