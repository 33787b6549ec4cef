"""Statistics of repeated measurements: what is behind every interval of the lab."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lab.records.schema import Stat

BATCH = 1_000_000  # numbers resampled at a time, so that memory stays bounded

MIN_STEPS_FOR_INTERVAL = 5
RESAMPLES = 2000
_LARGEST_RESAMPLING = 20_000_000  # numbers drawn for one interval at most


def bootstrap_interval(
    samples: Sequence[np.ndarray[Any, Any]],
    statistic: Callable[..., Any],
    *,
    resamples: int,
    seed: int = 0,
) -> tuple[Any, Any]:
    """Both ends of a statistic's 95 % percentile-bootstrap interval (Efron 1979), on the last axis.

    Several samples are resampled independently. `statistic(*samples, axis=-1)` must be vectorized;
    each sample needs at least two values. The seed is fixed, so that the same values always have
    the same interval. The numbers are those of scipy.stats.bootstrap, without its import, which
    would delay every rank and every notebook by half a second.
    """
    rng = np.random.default_rng(seed)
    batch = max(BATCH // max(sample.shape[-1] for sample in samples), 1)
    values = []
    for start in range(0, resamples, batch):
        count = min(batch, resamples - start)
        lengths = [sample.shape[-1] for sample in samples]
        drawn = [
            s[..., rng.integers(0, n, (count, n))] for s, n in zip(samples, lengths, strict=True)
        ]
        values.append(statistic(*drawn, axis=-1))
    low, high = np.percentile(np.concatenate(values, axis=-1), [2.5, 97.5], axis=-1)
    return low, high


def median_interval(values: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """Both ends of a median's 95 % interval by order statistics, on the last axis.

    The axis holds two or more values. The interval is interpolated between the two pairs of order
    statistics whose exact coverages enclose 95 % (Hettmansperger and Sheather 1986), which holds
    for any distribution of independent values. Up to five values have no wider pair than their
    range, which covers 1 - 2^(1 - n).
    """
    count, ordered = values.shape[-1], np.sort(values, axis=-1)
    rank = np.arange(1, count // 2 + 1)
    log_binomial = np.cumsum([-count * np.log(2), *np.log((count - rank + 1) / rank)])
    # Of the intervals from the lowest value, the second lowest and so on to their mirror images.
    coverages = 1 - 2 * np.cumsum(np.exp(log_binomial))
    outer = max(int(np.sum(coverages >= 0.95)) - 1, 0)
    excess = max(coverages[outer] - 0.95, 0) / (coverages[outer] - coverages[outer + 1])
    below = outer + 1
    weight = (count - below) * excess / (below + (count - 2 * below) * excess)
    low, high = (
        (1 - weight) * side[..., outer] + weight * side[..., below]
        for side in (ordered, ordered[..., ::-1])
    )
    return low, high


def share_interval(share: float, samples: int) -> tuple[float, float]:
    """Wilson's 95 % interval (1927) of a share observed in `samples` samples, at least 1."""
    z2 = 1.959964**2
    middle = (share + z2 / (2 * samples)) / (1 + z2 / samples)
    variance = share * (1 - share) / samples + z2 / (4 * samples**2)
    half = (z2 * variance) ** 0.5 / (1 + z2 / samples)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def stat(values: np.ndarray[Any, Any]) -> Stat:
    """Median, percentiles and the median's bootstrap interval, None for too few values."""
    p10, median, p90 = (float(value) for value in np.percentile(values, [10, 50, 90]))
    interval = None
    if len(values) >= MIN_STEPS_FOR_INTERVAL:
        resamples = int(np.clip(_LARGEST_RESAMPLING // len(values), 200, RESAMPLES))
        low, high = bootstrap_interval([values], np.median, resamples=resamples)
        interval = (float(low), float(high))
    return Stat(median=median, p10=p10, p90=p90, interval=interval)
