"""Strategies, one module each: how several devices train one model together."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from lab.config.run import Run
from lab.errors import LabError
from lab.worker import own
from lab.worker.strategies.base import Strategy


@cache  # several modules ask for it, and a user's factory makes one per run
def of(run: Run) -> Strategy[Any]:
    """The run's strategy: STRATEGY of the module of its name, or what the user's factory makes.

    Raises LabError if the result is not a Strategy.
    """
    if run.own_strategy is None:
        return import_module(f"{__name__}.{run.strategy}").STRATEGY
    strategy = own.make(run.own_strategy)
    if not isinstance(strategy, Strategy):
        what = f"{run.strategy} returned {type(strategy).__name__!r}"
        raise LabError(f"{what}, not an instance of the lab's Strategy")
    return strategy
