"""Anybody's results in one form: canonical columns in base units, one row per rank or configuration, and what was assumed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import pandas as pd

Kind = Literal["records", "table", "collectives"]


@dataclass(frozen=True)
class Observations:
    """Measurements in canonical columns.

    `frame` has the columns of `lab.analysis.naming.CANONICAL`, NaN where unknown, times in s, sizes in bytes; `label` names
    a row, `aggregate` says that it stands for all ranks of others; columns that start with `key:` tell configurations
    apart. `given` are the names of the table's own columns by canonical name, `derived` what followed from others, `calibrated` bus
    bandwidths in bytes/s by world size.
    """

    frame: pd.DataFrame
    kind: Kind
    per: Literal["step", "epoch", "total"] = "step"
    scaling: Literal["strong", "weak", "none"] | None = None
    baseline: Mapping[str, object] = field(default_factory=dict)
    calibrated: Mapping[int, float] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    derived: frozenset[str] = frozenset()
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    summarised: bool = False
    memo: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)  # what several rules compute

    @cached_property
    def known(self) -> frozenset[str]:
        """Canonical columns that hold at least one value."""
        return frozenset(str(column) for column in self.frame.columns if self.frame[column].notna().any())

    @property
    def keys(self) -> list[str]:
        """Columns that tell configurations apart, world size and batch aside."""
        return [str(column) for column in self.frame.columns if str(column).startswith("key:")]

    def said(self, pattern: str) -> re.Match[str] | None:
        """The first match in what the table's notes say: a hint, never a measurement."""
        return next((found for note in self.notes if (found := re.search(pattern, note, re.IGNORECASE))), None)
