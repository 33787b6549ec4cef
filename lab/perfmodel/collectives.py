"""Collectives: bytes on links, alpha-beta fits, and algorithm costs on hierarchical networks.

Throughout, `bytes` is the size of the whole tensor: the one that all-reduce sums, all-gather
assembles, reduce-scatter splits, or broadcast sends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast"]


@dataclass(frozen=True)
class Ring:
    """A collective as a ring: it goes round `passes` times, with `n - 1` messages each.

    A `split` tensor travels in n parts, one of which each rank already has. `methods` are its names
    in different versions of torch's `ProcessGroup`, each with the position of the argument that
    holds the bytes.
    """

    passes: int
    split: bool
    methods: Mapping[str, int]


RINGS: dict[Collective, Ring] = {
    "all_reduce": Ring(2, True, {"allreduce": 0, "allreduce_coalesced": 0}),
    "all_gather": Ring(1, True, {"all_gather_single": 0, "_allgather_base": 0, "allgather": 0}),
    "reduce_scatter": Ring(
        1, True, {"reduce_scatter_single": 1, "_reduce_scatter_base": 1, "reduce_scatter": 1}
    ),
    "broadcast": Ring(1, False, {"broadcast": 0}),
}
COLLECTIVES: tuple[Collective, ...] = tuple(RINGS)
# Seconds of a collective on `size` bytes, among the ranks of one group.
CollectiveSeconds = Callable[[Collective, float], float]
# Backward takes two matrix products for each one in the forward pass; communication hides behind
# it.
BACKWARD_SHARE = 2 / 3


def bus_factor(collective: Collective, world_size: int) -> float:
    """Bytes that cross the busiest link of a ring per byte of the tensor: NCCL's busbw / algbw.

    Raises ValueError for an unknown collective or a world size below 1.
    """
    if world_size < 1:
        raise ValueError(f"world size must be at least 1, not {world_size}")
    if collective not in RINGS:
        raise ValueError(f"unknown collective {collective!r}; choose one of {', '.join(RINGS)}")
    ring = RINGS[collective]
    share = (world_size - 1) / world_size if ring.split else float(world_size > 1)
    return ring.passes * share


def busbw(collective: Collective, world_size: int, size: float, seconds: float) -> float:
    """Bus bandwidth in bytes/s, comparable over world sizes: algbw times the bus factor."""
    return size / seconds * bus_factor(collective, world_size)


def ring_time(
    collective: Collective, size: float, world_size: int, alpha_s: float, bytes_per_s: float
) -> float:
    """Seconds of a ring collective; alpha (s) and bytes/s are per message on one link.

    For an all-reduce `2 (n-1)/n * bytes/B + 2 (n-1) * alpha`: no other algorithm between ranks
    alone moves fewer bytes per link (Patarasuk and Yuan 2009).
    """
    messages = RINGS[collective].passes * (world_size - 1)
    return messages * alpha_s + bus_factor(collective, world_size) * size / bytes_per_s


@dataclass(frozen=True)
class LinkFit:
    """A linear fit to times of one collective at one world size: `alpha_s + bytes / bytes_per_s`.

    It was fitted from `smallest_bytes` to `largest_bytes`, with `largest_relative_error` on these
    times.
    """

    alpha_s: float
    bytes_per_s: float
    largest_relative_error: float
    smallest_bytes: int
    largest_bytes: int

    def time(self, size: float) -> float:
        """Seconds for `size` bytes."""
        return self.alpha_s + size / self.bytes_per_s

    def of_one_link(self, collective: Collective, world_size: int) -> tuple[float, float]:
        """Alpha (s) and bytes/s of one message on one ring link; other world sizes follow.

        `ring_time` with these reproduces the line. Raises ValueError for world sizes below 2.
        """
        if world_size < 2:
            raise ValueError(f"no link between {world_size} ranks")
        messages = RINGS[collective].passes * (world_size - 1)
        return self.alpha_s / messages, self.bytes_per_s * bus_factor(collective, world_size)


def fit_link(sizes: Sequence[float], seconds: Sequence[float]) -> LinkFit:
    """Fit alpha >= 0 and bytes/s to times by size, by least squares of the relative errors.

    With absolute errors the largest size would dominate and alphas could be negative. Raises
    ValueError for fewer than two different sizes, for sizes or times that are not positive, and for
    times that do not grow with the size.
    """
    import numpy as np
    from scipy.optimize import nnls

    b, t = np.asarray(sizes, dtype=float), np.asarray(seconds, dtype=float)
    usable = b.shape == t.shape and len(set(b)) >= 2
    if not (usable and (np.isfinite(b) & np.isfinite(t) & (b > 0) & (t > 0)).all()):
        raise ValueError("fit_link needs positive times of two or more different sizes")
    columns = np.column_stack([1 / t, b / t])
    scale = np.linalg.norm(columns, axis=0)
    solution, _ = nnls(columns / scale, np.ones(len(t)))
    alpha, per_byte = (float(value) for value in solution / scale)
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

    The ratio of measured to fitted time is interpolated over log(size) and constant beyond the
    ends: exact at measured sizes, and without a jump where the fit takes over. Raises ValueError
    for a size that is not positive.
    """
    import numpy as np

    if not size > 0:
        raise ValueError(f"a collective moves some bytes, not {size}")
    ratios = np.log([time / fit.time(at) for at, time in zip(sizes, seconds, strict=True)])
    return float(fit.time(size) * np.exp(np.interp(np.log(size), np.log(sizes), ratios)))


@dataclass(frozen=True)
class Level:
    """One level of a network: its number of parts, s per message, bytes/s of a part's link.

    A part of the lowest level is a rank; a part of the next level is a group that the lower level
    joins, such as a node with all of its network cards. `sums_per_s` are the bytes/s of an
    all-reduce that the level's switch sums; 0 if it cannot.
    """

    parts: int
    alpha_s: float
    bytes_per_s: float
    sums_per_s: float = 0.0

    def seconds(self, collective: Collective, size: float) -> float:
        """Seconds of a collective on `size` bytes within the level, by a ring or by its switch.

        Each rank of a ring sends `2 (n-1)/n` of an all-reduce's bytes. Through a switch that sums
        (NVLS, for NVLink SHARP) it sends each byte once and receives each sum once (Klenk et al.
        2020, "An in-network architecture for accelerating shared-memory multiprocessor
        collectives").
        """
        ring = ring_time(collective, size, self.parts, self.alpha_s, self.bytes_per_s)
        if collective != "all_reduce" or not self.sums_per_s or self.parts < 2:
            return ring
        return min(ring, 2 * self.alpha_s + size / self.sums_per_s)


def collective_seconds(collective: Collective, size: float, levels: Sequence[Level]) -> float:
    """Seconds of a collective on `size` bytes over all ranks of the levels, lowest level first.

    Libraries choose the fastest algorithm by size.
    """
    levels = [level for level in levels if level.parts > 1]
    if not levels or size <= 0:
        return 0.0
    return min(seconds_by_algorithm(collective, size, levels).values())


def seconds_by_algorithm(
    collective: Collective, size: float, levels: Sequence[Level]
) -> dict[str, float]:
    """The same for levels of several parts each, with each of three algorithms.

    A ring passes through all ranks and is as fast as its slowest link (Patarasuk and Yuan 2009). A
    tree takes a number of messages that grows with the logarithm of the ranks; two trees that share
    the links move an all-reduce's bytes up and down at full rate (Sanders, Speck and Traff 2009). A
    hierarchy scatters the tensor in the lower level first, so that the parts of an upper level
    exchange every byte once (Thakur, Rabenseifner and Gropp 2005).
    """
    ranks = math.prod(level.parts for level in levels)
    alpha, rate = max(level.alpha_s for level in levels), min(level.bytes_per_s for level in levels)
    # Halving and doubling, or a broadcast in pieces; an all-reduce goes up and down the trees.
    rounds = RINGS[collective].passes * math.ceil(math.log2(ranks))
    factor = 2 if collective == "all_reduce" else bus_factor(collective, ranks)
    return {
        "ring": ring_time(collective, size, ranks, alpha, rate),
        "tree": rounds * alpha + factor * size / rate,
        "hierarchical": sum(level.seconds(collective, size) for level in levels),
    }


def efficiency_without_overlap(r: float) -> float:
    """Efficiency if compute and communication take turns: `R / (1 + R)`; ValueError for R < 0."""
    if r < 0:
        raise ValueError(f"R {r} is negative")
    return r / (1 + r)


def efficiency_with_overlap(r: float) -> float:
    """Efficiency if communication hides behind the backward pass as far as possible.

    With b for BACKWARD_SHARE the step is `max(T_compute, (1 - b) T_compute + T_communication)`, so
    the efficiency is `1 / max(1, 1 - b + 1 / R)`. Raises ValueError for a negative R.
    """
    if r < 0:
        raise ValueError(f"R {r} is negative")
    return 0.0 if r == 0 else 1 / max(1.0, 1 - BACKWARD_SHARE + 1 / r)
