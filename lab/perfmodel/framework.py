"""Known properties of training frameworks that a table may name: their pipelines and costs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Framework:
    """How a framework splits its pipelines, and how it differs from the general expectation.

    Stages of a `balanced` pipeline have equal FLOPs, including the head's; others equal layers.
    Tensor parallelism may also be `sequence_parallel`, unless a table says otherwise.
    Launches and products hide each other as a p-norm with exponent `hides`: the higher it is, the
    more the longer one alone counts. `coefficients` are those of the law of layouts with different
    expectations, with the deviation of their logarithm.
    """

    name: str = ""
    balanced: bool = False
    sequence_parallel: bool = False
    hides: float = 2.0
    coefficients: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)


ANY = Framework()
# nanotron: from 525 layouts of one model on H100s (Ultra-Scale Playbook 2025). Launching a pass of
# a layer takes at least 1.1 ms, which a long enough layer hides completely; tensor-parallel sums
# hide behind products, and the ranks of a pipeline across nodes wait for each other.
NANOTRON = Framework(
    name="nanotron",
    balanced=True,
    sequence_parallel=True,
    hides=8.0,
    coefficients={
        "flops": (1.6, 0.15),
        "launch": (1.1e-3, 0.3),
        "crossing": (6e-4, 0.5),
        "tensor_bytes": (0.48, 0.5),
        "tensor_messages": (1.6, 0.5),
        "data": (2.5, 0.5),
        "nodes": (2e-3, 0.7),
    },
)
FRAMEWORKS = {framework.name: framework for framework in (NANOTRON,)}


def named_framework(text: str) -> Framework:
    """The framework named in some words, or the general one if none is recognized."""
    names = (name for name in FRAMEWORKS if re.search(rf"\b{name}\b", text, re.IGNORECASE))
    return FRAMEWORKS.get(next(names, ""), ANY)
