"""Strategies, one module each: how several devices train one model together."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from lab.config.strategies import STRATEGIES
from lab.errors import InputError, Problem, nearest
from lab.worker.strategies.base import Strategy


def get(name: str) -> Strategy[Any]:
    """The STRATEGY of the module of this name; raises InputError with the nearest one."""
    if name not in STRATEGIES:
        problem = Problem("strategy", f"unknown strategy {name!r}", nearest(name, STRATEGIES))
        raise InputError("strategy", [problem])
    strategy: Strategy[Any] = import_module(f"{__name__}.{name}").STRATEGY
    return strategy
