"""Networks: what a collective costs on links in levels (in a node, between nodes), by ring, tree and hierarchy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from lab.analysis.links import Collective, bus_factor, ring_steps

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


def collective_seconds(collective: Collective, size: float, levels: Sequence[Level], algorithm: Algorithm = "fastest") -> float:
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


def _by(collective: Collective, size: float, levels: Sequence[Level], algorithm: Algorithm) -> float:
    if algorithm == "hierarchical":
        return sum(_ring(collective, size, level.parts, level.alpha_s, level.bytes_per_s) for level in levels)
    ranks = math.prod(level.parts for level in levels)
    alpha, rate = max(level.alpha_s for level in levels), min(level.bytes_per_s for level in levels)
    if algorithm == "ring":
        return _ring(collective, size, ranks, alpha, rate)
    if algorithm == "tree":
        rounds = math.ceil(math.log2(ranks))
        if collective == "all_reduce":
            return 2 * rounds * alpha + 2 * size / rate
        return rounds * alpha + bus_factor(collective, ranks) * size / rate  # halving and doubling; a broadcast in pieces
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
