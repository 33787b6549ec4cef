"""Laws of scaling: Amdahl, Gustafson, and the Karp-Flatt metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

CLOSE = 0.1  # a law with a larger error in any speedup says nothing about other numbers of ranks


def amdahl_speedup(n: float, serial_fraction: float) -> float:
    """Speedup on `n` ranks for a fixed amount of work: `1 / (s + (1 - s) / n)` (Amdahl 1967).

    Raises ValueError for n < 1 or a serial fraction outside [0, 1].
    """
    _check(n, serial_fraction)
    return 1 / (serial_fraction + (1 - serial_fraction) / n)


def gustafson_speedup(n: float, serial_fraction: float) -> float:
    """Scaled speedup on `n` ranks with work that grows with n: `s + (1 - s) n` (Gustafson 1988).

    Raises ValueError for n < 1 or a serial fraction outside [0, 1].
    """
    _check(n, serial_fraction)
    return serial_fraction + (1 - serial_fraction) * n


def gustafson_fraction(speedup: float, n: float) -> float:
    """Serial fraction of a scaled speedup on `n` ranks: `(n - S) / (n - 1)` (Gustafson 1988).

    Negative if the speedup is above n. Raises ValueError for n <= 1.
    """
    if n <= 1:
        raise ValueError(f"Gustafson's fraction needs n > 1, not n = {n}")
    return (n - speedup) / (n - 1)


def karp_flatt(speedup: float, n: float) -> float:
    """Serial fraction of a speedup on `n` ranks: `(1/S - 1/n) / (1 - 1/n)` (Karp and Flatt 1990).

    Negative if the speedup is above n. Raises ValueError for n <= 1 or a speedup <= 0.
    """
    if n <= 1 or speedup <= 0:
        raise ValueError(
            f"Karp-Flatt needs n > 1 and a speedup > 0, not n = {n}, speedup = {speedup}"
        )
    return (1 / speedup - 1 / n) / (1 - 1 / n)


class AmdahlFit(NamedTuple):
    """Serial fraction, 95 % interval (None from one point), largest relative error of a speedup.

    The last is that of the law through the baseline, which has no error there.
    """

    serial_fraction: float
    low: float | None
    high: float | None
    largest_error: float


def fit_amdahl(world_sizes: Sequence[float], speedups: Sequence[float]) -> AmdahlFit | None:
    """Fit Amdahl's law to speedups over one rank; None if there is no point beyond one rank.

    Least squares in the relative errors of the times `1/S = A + B/n`, that on one rank among them,
    where `s = A / (A + B)`: every time has its own chance error, and the first one's is in all
    speedups. The interval is Student's, by the delta method. Both are kept within [0, 1]. If the
    baseline has more than one rank, give world sizes as multiples of it.

    Raises ValueError if the lengths differ, a world size is below 1 or a speedup is <= 0.
    """
    n, speedup = np.asarray(world_sizes, dtype=float), np.asarray(speedups, dtype=float)
    if n.shape != speedup.shape or bool((n < 1).any()) or not bool((speedup > 0).all()):
        raise ValueError("fit_amdahl needs as many world sizes (each >= 1) as speedups (each > 0)")
    if not (n > 1).any():
        return None
    if not (n == 1).any():
        n, speedup = np.append(n, 1), np.append(speedup, 1)
    terms = np.column_stack([speedup, speedup / n])
    serial, parallel = parts = np.linalg.lstsq(terms, np.ones(n.size), rcond=None)[0]
    fraction = float(max(serial, 0) / (max(serial, 0) + max(parallel, 0)))
    low = high = None
    if n.size > 2:
        from scipy.special import stdtrit  # takes a tenth of the import time of scipy.stats

        variance = float(np.sum((terms @ parts - 1) ** 2)) / (n.size - 2)
        slopes = np.array([1 - fraction, -fraction]) / (serial + parallel)
        spread = (variance * slopes @ np.linalg.inv(terms.T @ terms) @ slopes) ** 0.5
        half = float(stdtrit(n.size - 2, 0.975)) * spread
        low, high = (float(np.clip(fraction + side * half, 0, 1)) for side in (-1, 1))
    fitted = 1 / (fraction + (1 - fraction) / n)
    return AmdahlFit(fraction, low, high, float(np.max(np.abs(fitted / speedup - 1))))


def fit_gustafson(world_sizes: Sequence[float], speedups: Sequence[float]) -> tuple[float, float]:
    """Fit Gustafson's law: the serial fraction, within [0, 1], and the largest relative error.

    Least squares in the relative errors of the speedups `n - s (n - 1)`. If the baseline has more
    than one rank, give world sizes as multiples of it. Raises ValueError if the lengths differ, or
    no size is above 1.
    """
    n, speedup = np.asarray(world_sizes, dtype=float), np.asarray(speedups, dtype=float)
    if n.shape != speedup.shape or not bool((n > 1).any()):
        raise ValueError("fit_gustafson needs as many world sizes, one above 1, as speedups")
    n, speedup = n[n > 1], speedup[n > 1]
    lost, gap = (n - 1) / speedup, n / speedup - 1
    fraction = float(np.clip(lost @ gap / (lost @ lost), 0, 1))
    fitted = fraction + (1 - fraction) * n
    return fraction, float(np.max(np.abs(fitted / speedup - 1)))


def _check(n: float, serial_fraction: float) -> None:
    if n < 1:
        raise ValueError(f"n is the number of ranks, at least 1, not {n}")
    if not 0 <= serial_fraction <= 1:
        raise ValueError(f"a serial fraction lies within 0 and 1, not {serial_fraction}")
