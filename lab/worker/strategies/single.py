"""One process, nothing between it and the model: the baseline of a baseline."""

from __future__ import annotations

from lab.worker.strategies.strategy import Strategy


class Single(Strategy):
    """The model itself."""

    needs_group = False
