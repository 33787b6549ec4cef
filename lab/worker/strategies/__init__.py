"""Strategies, one module each: how several devices train one model together."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from lab.config.run import Run
from lab.config.strategies import STRATEGIES
from lab.errors import InputError, LabError, Problem, nearest
from lab.worker import own
from lab.worker.strategies.base import Strategy


def of(run: Run) -> Strategy[Any]:
    """The run's strategy, one of the lab's or one made by the user's factory.

    Raises LabError if the result is not a Strategy.
    """
    if run.own_strategy is None:
        return get(run.strategy)
    strategy = own.make(run.own_strategy)
    if not isinstance(strategy, Strategy):
        what = f"{run.strategy} returned {type(strategy).__name__!r}"
        raise LabError(f"{what}, not an instance of the lab's Strategy")
    return strategy


def get(name: str) -> Strategy[Any]:
    """The STRATEGY of the module of this name; raises InputError that suggests the nearest one."""
    if name not in STRATEGIES:
        problem = Problem("strategy", f"unknown strategy {name!r}", nearest(name, STRATEGIES))
        raise InputError("strategy", [problem])
    strategy: Strategy[Any] = import_module(f"{__name__}.{name}").STRATEGY
    return strategy
