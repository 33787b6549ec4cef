"""What is known of programs that train, where a table names one: their pipelines and costs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Framework:
    """How a program cuts its pipelines, and how it differs from what is expected of any.

    Stages of a `balanced` pipeline have equal FLOPs, the head's among them; others equal layers.
    Tensor parallelism may be `sequence_parallel`, too, unless a table says otherwise.
    Launches and products hide each other by the root of the sum of their powers `hides`: the higher
    it is, the more the longer alone counts. `coefficients` are those of the law of layouts that are
    expected otherwise, with the deviation of their logarithm.
    """

    name: str = ""
    balanced: bool = False
    sequence_parallel: bool = False
    hides: float = 2.0
    coefficients: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)


ANY = Framework()
# nanotron: by 525 layouts of one model on H100s (Ultra-Scale Playbook 2025). A pass of a layer is
# launched in no less than 1.1 ms, which a layer that is long enough hides wholly; sums of tensor
# parallelism hide behind products, and ranks of a pipeline across nodes wait for each other.
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
    """The framework that words name; for none that is known what holds for any."""
    names = (name for name in FRAMEWORKS if re.search(rf"\b{name}\b", text, re.IGNORECASE))
    return FRAMEWORKS.get(next(names, ""), ANY)
