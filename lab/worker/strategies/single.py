"""One process with the whole model: the reference that every other strategy is compared with."""

from __future__ import annotations

from torch import nn

from lab.worker.strategies.base import Setup, Strategy


class Single(Strategy[nn.Module]):
    """The model itself."""

    needs_group = False

    def wrap(self, model: nn.Module, setup: Setup) -> nn.Module:
        """The model unchanged."""
        return model


STRATEGY = Single()
