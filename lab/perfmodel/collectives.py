"""Links: what a collective costs by its bytes and ranks; alpha-beta fits, bandwidths, the ring's bound.

`bytes` is everywhere the size of the whole tensor: what all-reduce sums, what all-gather puts together, what
reduce-scatter takes apart, what broadcast sends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)


def bus_factor(collective: Collective, world_size: int) -> float:
    """Bytes that cross the busiest link of a ring per byte of the tensor; NCCL's tests call busbw what is scaled so.

    Raises ValueError for a collective without such a factor or a world size below 1.
    """
    if world_size < 1:
        raise ValueError(f"a world size is at least 1, not {world_size}")
    share = (world_size - 1) / world_size
    factors = {
        "all_reduce": 2 * share,
        "all_gather": share,
        "reduce_scatter": share,
        "broadcast": 1.0,
    }
    if collective not in factors:
        raise ValueError(f"no collective {collective!r} is known, only {', '.join(COLLECTIVES)}")
    return factors[collective]


def algbw(size: float, seconds: float) -> float:
    """Algorithm bandwidth in bytes/s: the bytes of the tensor over the time of the collective."""
    return size / seconds


def busbw(collective: Collective, world_size: int, size: float, seconds: float) -> float:
    """Bus bandwidth in bytes/s: algbw times the bytes that the busiest link carries, comparable over world sizes."""
    return algbw(size, seconds) * bus_factor(collective, world_size)


def ring_steps(collective: Collective, world_size: int) -> int:
    """Messages one after the other in a ring; a broadcast passes through it once."""
    return (world_size - 1) * (2 if collective == "all_reduce" else 1)


def ring_all_reduce_time(size: float, world_size: int, alpha_s: float, bytes_per_s: float) -> float:
    """Seconds of a ring all-reduce: `2 (n-1)/n * bytes/B + 2 (n-1) * alpha`, alpha and B of one message on one link.

    Bandwidth-optimal: no all-reduce moves fewer bytes per link (Patarasuk and Yuan 2009).
    """
    return (
        bus_factor("all_reduce", world_size) * size / bytes_per_s
        + ring_steps("all_reduce", world_size) * alpha_s
    )


@dataclass(frozen=True)
class LinkFit:
    """A line through times of one collective at one world size: `alpha_s + bytes / bytes_per_s`.

    `largest_relative_error` is that of the fitted times over the sizes from `smallest_bytes` to `largest_bytes`, on
    which the line was fitted.
    """

    alpha_s: float
    bytes_per_s: float
    largest_relative_error: float
    smallest_bytes: int
    largest_bytes: int

    def time(self, size: float) -> float:
        """Seconds for so many bytes."""
        return self.alpha_s + size / self.bytes_per_s

    def of_one_link(self, collective: Collective, world_size: int) -> tuple[float, float]:
        """Alpha in s and bytes/s of one message on one link, if the collective is a ring: what other world sizes take.

        `ring_all_reduce_time` of these gives the line back. Raises ValueError for world sizes below 2.
        """
        if world_size < 2:
            raise ValueError(f"there is no link between {world_size} ranks")
        return self.alpha_s / ring_steps(collective, world_size), self.bytes_per_s * bus_factor(
            collective, world_size
        )


def fit_link(sizes: Sequence[float], seconds: Sequence[float]) -> LinkFit:
    """Fit alpha and bytes/s to times by size: least squares of the relative errors, with alpha >= 0.

    Absolute errors would let the largest size decide alone and give alphas below zero. Raises ValueError for fewer than
    two different sizes, for sizes or times that are not positive, and for times that do not grow with the size.
    """
    import numpy as np
    from scipy.optimize import nnls

    b, t = np.asarray(sizes, dtype=float), np.asarray(seconds, dtype=float)
    if (
        b.shape != t.shape
        or len(set(b)) < 2
        or not (np.isfinite(b) & np.isfinite(t) & (b > 0) & (t > 0)).all()
    ):
        raise ValueError("fit_link needs positive times of two or more different sizes")
    columns = np.column_stack([1 / t, b / t])
    scale = np.linalg.norm(columns, axis=0)
    found, _ = nnls(columns / scale, np.ones(len(t)))
    alpha, per_byte = (float(value) for value in found / scale)
    if per_byte <= 1e-12 * float(t.max()) / float(b.max()):
        raise ValueError(
            f"times do not grow from {b.min():.0f} to {b.max():.0f} bytes: measure larger sizes"
        )
    error = float(np.abs((alpha + per_byte * b) / t - 1).max())
    return LinkFit(alpha, 1 / per_byte, error, int(b.min()), int(b.max()))


def interpolate(
    size: float, sizes: Sequence[float], seconds: Sequence[float], fit: LinkFit
) -> float:
    """Seconds for any size, from measured sizes (ascending) and their fit.

    The ratio of measured to fitted time is interpolated over log(size) and held beyond the ends: exact at the measured
    sizes, exact between them where the line is, without a jump where the fit takes over. Raises ValueError for a size
    that is not positive.
    """
    import numpy as np

    if not size > 0:
        raise ValueError(f"a collective moves some bytes, not {size}")
    ratios = np.log([time / fit.time(at) for at, time in zip(sizes, seconds, strict=True)])
    return float(fit.time(size) * np.exp(np.interp(np.log(size), np.log(sizes), ratios)))


Algorithm = Literal["ring", "tree", "hierarchical", "fastest"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
# Seconds of a collective on so many bytes, among the ranks of one group.
CollectiveSeconds = Callable[[Collective, float], float]


@dataclass(frozen=True)
class Level:
    """One level of a network: how many parts meet there, s per message, and bytes/s of the link of one part.

    A part of the lowest level is a rank; a part of the next one is what the lower level joins, such as a node with all
    of its network cards.
    """

    parts: int
    alpha_s: float
    bytes_per_s: float


def collective_seconds(
    collective: Collective, size: float, levels: Sequence[Level], algorithm: Algorithm = "fastest"
) -> float:
    """Seconds of a collective on a tensor of `size` bytes over all ranks of the levels, the lowest first; 0 on one rank.

    A ring passes through all ranks and is as fast as its slowest link (Patarasuk and Yuan 2009). A tree takes a number
    of messages that grows with the logarithm of the ranks; two trees that share the links move an all-reduce's bytes
    up and down at full rate (Sanders, Speck and Traff 2009). A hierarchy scatters the tensor in the lower level first,
    so that the parts of an upper level exchange every byte once (Thakur, Rabenseifner and Gropp 2005). Libraries take
    the fastest by size. Raises ValueError for another algorithm.
    """
    met = [level for level in levels if level.parts > 1]
    if not met or size <= 0:
        return 0.0
    if algorithm == "fastest":
        return min(_by(collective, size, met, name) for name in ALGORITHMS if name != "fastest")
    return _by(collective, size, met, algorithm)


def _by(
    collective: Collective, size: float, levels: Sequence[Level], algorithm: Algorithm
) -> float:
    if algorithm == "hierarchical":
        return sum(
            _ring(collective, size, level.parts, level.alpha_s, level.bytes_per_s)
            for level in levels
        )
    ranks = math.prod(level.parts for level in levels)
    alpha, rate = max(level.alpha_s for level in levels), min(level.bytes_per_s for level in levels)
    if algorithm == "ring":
        return _ring(collective, size, ranks, alpha, rate)
    if algorithm == "tree":
        rounds = math.ceil(math.log2(ranks))
        if collective == "all_reduce":
            return 2 * rounds * alpha + 2 * size / rate
        return (
            rounds * alpha + bus_factor(collective, ranks) * size / rate
        )  # halving and doubling; a broadcast in pieces
    raise ValueError(f"no algorithm {algorithm!r} is known, only {', '.join(ALGORITHMS)}")


def _ring(collective: Collective, size: float, ranks: int, alpha: float, rate: float) -> float:
    return ring_steps(collective, ranks) * alpha + bus_factor(collective, ranks) * size / rate


def on_levels(levels: Sequence[Level], algorithm: Algorithm = "fastest") -> CollectiveSeconds:
    """The cost of collectives among all ranks of these levels."""
    return lambda collective, size: collective_seconds(collective, size, levels, algorithm)


def nodes_of(world_size: int, ranks_per_node: int, inner: Level, outer: Level) -> tuple[Level, ...]:
    """The two levels of so many ranks; `parts` of the given ones do not matter.

    Where ranks do not fill the nodes, the nodes hold equal parts of them as far as that is possible.
    """
    nodes = math.ceil(world_size / max(ranks_per_node, 1))
    inside = math.ceil(world_size / nodes)
    return (
        Level(min(inside, world_size), inner.alpha_s, inner.bytes_per_s),
        Level(nodes, outer.alpha_s, outer.bytes_per_s),
    )


# Backward costs twice the forward pass (two products of matrices for one), so two thirds of compute can hide communication.
BACKWARD_SHARE = 2 / 3


def efficiency_without_overlap(r: float) -> float:
    """Efficiency where compute and communication take turns: `R / (1 + R)`.

    Raises ValueError for a negative R.
    """
    _check(r)
    return r / (1 + r)


def efficiency_with_overlap(r: float, *, backward_share: float = BACKWARD_SHARE) -> float:
    """Efficiency where communication hides behind the backward pass as far as that reaches.

    The step is `max(T_compute, (1 - backward_share) T_compute + T_communication)`, so the efficiency is
    `1 / max(1, 1 - backward_share + 1 / R)`. Raises ValueError for a negative R or a share outside [0, 1].
    """
    _check(r)
    if not 0 <= backward_share <= 1:
        raise ValueError(f"backward_share {backward_share} is outside [0, 1]")
    return 0.0 if r == 0 else 1 / max(1.0, 1 - backward_share + 1 / r)


def _check(r: float) -> None:
    if r < 0:
        raise ValueError(f"R {r} is negative")
