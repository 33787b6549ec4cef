"""The rules of the audit: every `Rule` in a module of this package."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from lab.analysis.audit.rule import Rule

RULES = tuple(
    value
    for module in pkgutil.iter_modules(__path__)
    for value in vars(import_module(f"{__name__}.{module.name}")).values()
    if isinstance(value, Rule)
)
