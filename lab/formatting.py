"""Numbers as text, with as many digits as their intervals support."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple, TypeGuard

NOT_MEASURED = "not measured"
DIGITS_ALONE = 3  # significant digits of a value without an interval
DIGITS_MOST = 4  # no measurement here supports more


class Unit(NamedTuple):
    """A unit of time: how many of it make a second."""

    name: str
    per_second: float


UNITS = (Unit("s", 1.0), Unit("ms", 1e3), Unit("µs", 1e6))


def rounded(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """A value and its interval, such as `1.84 [1.80, 1.90]`; `not measured` for None and NaN.

    The last digit shown is the first one of half the interval's width, or the third significant one
    without an interval; never more than four significant digits, and at least one of the value.
    """
    if not _known(value):
        return NOT_MEASURED
    if not (_known(low) and _known(high)):
        return _fixed(value, _leading(value) - DIGITS_ALONE + 1)
    if not (value or low or high):
        return "0"
    finest = _leading(value) - DIGITS_MOST + 1
    place = min(max(_leading((high - low) / 2), finest), _leading(value)) if high > low else finest
    return f"{_fixed(value, place)} [{_fixed(low, place)}, {_fixed(high, place)}]"


def percent(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """A ratio and its interval in per cent, such as `46 [45, 48] %`."""
    return _scaled(value, low, high, Unit("%", 100.0))


def format_seconds(
    value: float | None,
    low: float | None = None,
    high: float | None = None,
    *,
    unit: Unit | None = None,
) -> str:
    """A duration in s and its interval, such as `153 [150, 157] ms`; the unit fits the value."""
    return _scaled(value, low, high, unit or unit_for([value]))


def unit_for(values: Iterable[float | None]) -> Unit:
    """The unit in which the largest of these durations (s) is at least 1; ms where all are 0."""
    largest = max((abs(value) for value in values if _known(value)), default=0.0)
    if not largest:
        return UNITS[1]
    return next((unit for unit in UNITS if largest * unit.per_second >= 1), UNITS[-1])


def _scaled(value: float | None, low: float | None, high: float | None, unit: Unit) -> str:
    scaled = [
        number * unit.per_second if number is not None else None for number in (value, low, high)
    ]
    return f"{rounded(*scaled)} {unit.name}" if _known(value) else NOT_MEASURED


def _known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _leading(value: float) -> int:
    """The power of ten of a number's first digit; 0.1 computed as 0.0999... counts as 0.1."""
    return math.floor(math.log10(abs(value)) + 1e-9) if value else 0


def _fixed(value: float, place: int) -> str:
    text = f"{round(value, -place):.{max(-place, 0)}f}"
    return text.removeprefix("-") if not float(text) else text
