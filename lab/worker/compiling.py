"""torch.compile, as the lab calls it."""

from __future__ import annotations

from typing import Any

import torch

LONGEST = 4096  # elements of a row that a block of threads holds at once


def compiled(forward: Any) -> Any:
    """A module or function that is compiled when it is called first."""
    configure_inductor()
    return torch.compile(forward)


def configure_inductor() -> None:
    """Before anything is compiled on a GPU: avoid kernels whose results may be wrong."""
    if torch.cuda.is_available():
        # Imported only here, as it takes a second.
        import torch._inductor.config as inductor

        if hasattr(inductor, "inductor_choices_class"):  # which old versions of torch lack
            inductor.inductor_choices_class = _whole_rows


def _whole_rows() -> Any:
    """How inductor reduces rows: without a loop, if they are not too long.

    By default it does so up to 1,024 elements. Beyond that, a kernel may store what it reads again
    in a second loop before all threads see it (github.com/pytorch/pytorch/issues/190517). With
    such loops gpt2-large, whose layer norms are 1,280 wide, learned something else on an H200 than
    uncompiled; without them it learned the same.
    """
    from torch._inductor.choices import InductorChoices
    from torch._inductor.runtime.hints import ReductionHint
    from torch._inductor.virtualized import V

    class WholeRows(InductorChoices):
        @staticmethod
        def should_use_persistent_reduction(features: Any, cooperative_reduction: bool) -> bool:
            inner = features.get_reduction_hint() == ReductionHint.INNER
            short = V.graph.sizevars.statically_known_leq(features.reduction_numel, LONGEST)
            if inner and short and not cooperative_reduction:
                return True
            return InductorChoices.should_use_persistent_reduction(features, cooperative_reduction)

        def uuid(self) -> str:
            return f"rows up to {LONGEST}"

    return WholeRows()
