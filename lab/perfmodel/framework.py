"""Known properties of training frameworks that a table may name: their pipelines and costs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Framework:
    """How a framework splits its pipelines, and how it differs from the general expectation.

    Stages of a `balanced` pipeline have equal FLOPs, including the head's; others equal layers.
    Tensor parallelism may also be `sequence_parallel`, unless a table says otherwise.
    Launches and products hide each other as a p-norm with exponent `hides`: the higher it is, the
    more the longer one alone counts. `hides_sums` says that launches hide the sums of tensor
    parallelism as well. On more nodes than its `reach`, the hops of a pipeline are delayed.
    `coefficients` are those of the law of layouts with different expectations, with the deviation
    of their logarithm.
    """

    name: str = ""
    balanced: bool = False
    sequence_parallel: bool = False
    hides: float = 2.0
    hides_sums: bool = False
    reach: float = math.inf
    coefficients: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)


ANY = Framework()
# nanotron: a fit to the 336 layouts of one model on H100s that `lab bench public` finds undisturbed
# (Ultra-Scale Playbook 2025; tp <= 8). Launching a pass of
# a layer takes at least 1.2 ms, which a long enough layer hides completely; tensor-parallel sums
# hide behind launches, and the ranks of a pipeline across nodes wait for each other. `stall` is the
# median of 45 pipelines that took over twice as long as that fit: each hop 0.3 to 0.5 s instead of
# 0.2 ms, in 18 of 19 pipelines on 64 nodes, 14 of 39 on 32, and 8 of 50 on 16.
NANOTRON = Framework(
    name="nanotron",
    balanced=True,
    sequence_parallel=True,
    hides=8.0,
    hides_sums=True,
    reach=32,
    coefficients={
        "flops": (1.55, 0.15),
        "launch": (1.2e-3, 0.3),
        "memory": (5.7, 0.3),
        "head": (0.95, 0.3),
        "tensor_bytes": (0.72, 0.5),
        "tensor_messages": (1.3, 0.5),
        "data": (2.1, 0.5),
        "crossing": (6e-4, 0.5),
        "nodes": (1.2e-3, 0.7),
        "stall": (0.4, 0.3),
    },
)
FRAMEWORKS = {framework.name: framework for framework in (NANOTRON,)}


def named_framework(text: str) -> Framework:
    """The framework named in some words, or the general one if none is recognized."""
    names = (name for name in FRAMEWORKS if re.search(rf"\b{name}\b", text, re.IGNORECASE))
    return FRAMEWORKS.get(next(names, ""), ANY)
