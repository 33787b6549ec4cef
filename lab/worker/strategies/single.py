"""One process with the whole model: the reference that every other strategy is compared with."""

from __future__ import annotations

from lab.worker.strategies.base import Strategy


class Single(Strategy):
    """The model itself."""

    needs_group = False


STRATEGY = Single()
