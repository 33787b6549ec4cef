"""A column whose name says nothing, beside ranks and no other measurement, by its numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pandas as pd

from lab.analysis.audit.columns import (
    IDEAL,
    NOT_TRAINING,
    OUTCOME,
    PROBLEM,
    ROUNDED,
    TIMES,
    Guess,
    normal,
    parse_name,
)
from lab.analysis.audit.observations import ROW
from lab.analysis.audit.reshape import GROWN, are_timed
from lab.analysis.audit.values import COUNT_UNITS, TIME_UNITS, numbers

COUNTS = ("world_size", "nodes", "threads", "cpus")
OF_SPEED = {*TIMES, *ROUNDED} - {"efficiency"}
NOT_MEASURED = re.compile(rf"{NOT_TRAINING}|{IDEAL}|{OUTCOME.pattern}")
HALF = 0.5


def by_numbers(frame: pd.DataFrame, meanings: Mapping[str, Guess]) -> dict[str, Guess]:
    """The only such column and its meaning: a time if its unit says so, a rate if an efficiency is
    quoted and it grows with the ranks; empty if there is none, or several."""
    kinds = {meaning.canonical: column for column, meaning in meanings.items()}
    counts = next((kinds[name] for name in COUNTS if name in kinds), None)
    unknown = [str(name) for name in frame if name not in meanings]
    others = [name for name in unknown if _may_be_measured(frame[name])]
    if counts is None or kinds.keys() & OF_SPEED or len(others) != 1:
        return {}
    cells, name = frame[others[0]], parse_name(others[0])
    if are_timed(cells) or name.family == "time":
        return {others[0]: Guess("time", name.factor if name.family else None, "total")}
    grown = "efficiency" in kinds and name.family is None and _grows(cells, frame[counts])
    return {others[0]: Guess("rate", 1.0)} if grown else {}


def _may_be_measured(cells: pd.Series) -> bool:
    """Whether a column's name and cells may be those of a time or a rate."""
    name, known = normal(str(cells.name)), cells.dropna()
    if cells.name == ROW or NOT_MEASURED.search(name) or PROBLEM.fullmatch(name):
        return False
    return len(known) > 1 and bool(numbers(known, units=TIME_UNITS).notna().mean() > HALF)


def _grows(cells: pd.Series, counts: pd.Series) -> bool:
    """Whether numbers grow with the ranks as much as those of a rate."""
    values = pd.DataFrame({"ranks": numbers(counts), "of": numbers(cells, units=COUNT_UNITS)})
    values = values.dropna().sort_values("ranks")
    if values["ranks"].nunique() < 2 or (values <= 0).any(axis=None):
        return False
    growth = values.iloc[-1] / values.iloc[0] - 1
    return bool(growth["of"] > GROWN * growth["ranks"])
