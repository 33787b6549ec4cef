"""Numbers as people write them in tables: thousands separators, units in the cell, per cent, a spread after ±."""

from __future__ import annotations

import math
import re

import numpy as np
import pandas as pd

MISSING = {
    "",
    "-",
    "--",
    "–",
    "—",
    "na",
    "n/a",
    "nan",
    "none",
    "null",
    "?",
    "oom",
    "failed",
    "fail",
    "error",
    "tbd",
    "#n/a",
    "...",
}
NUMBER = re.compile(r"[-+]?(?:\d[\d.,'\u202f\u00a0_]*\d|\d|\.\d+)(?:[eE][-+]?\d+)?")
TIME_UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "usec", "usecs", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nsec", "nanosecond", "nanoseconds"), 1e-9),
    **dict.fromkeys(("mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
}
BYTE_UNITS = {
    **dict.fromkeys(("b", "byte", "bytes"), 1.0),
    "kb": 1e3,
    "mb": 1e6,
    "gb": 1e9,
    "tb": 1e12,
    "kib": 2.0**10,
    "mib": 2.0**20,
    "gib": 2.0**30,
}
COUNT_UNITS = {
    "k": 1e3,
    "m": 1e6,
    "million": 1e6,
    "millions": 1e6,
    "bn": 1e9,
    "billion": 1e9,
    "billions": 1e9,
}
CLOCK = re.compile(r"(?:(\d+):)?(\d{1,3}):(\d{2}(?:\.\d+)?)")


def number(text: object, *, units: dict[str, float] | None = None, factor: float = 1.0) -> float:
    """A cell as a float in base units, NaN where it holds none; a unit in the cell goes before `factor`, that of its column."""
    if isinstance(text, bool) or text is None:
        return math.nan
    if isinstance(text, int | float | np.number):
        return _finite(float(text) * factor)
    cell = str(text).strip().lower().replace("µ", "u").replace("μ", "u")
    clock = CLOCK.fullmatch(cell)
    if clock and units is TIME_UNITS:
        hours, minutes, seconds = clock.groups()
        return int(hours or 0) * 3600.0 + int(minutes) * 60.0 + float(seconds)
    found = NUMBER.search(cell)
    if (
        cell in MISSING
        or not found
        or cell[: found.start()].strip(" ~<>=≈x*$") not in {"", "-", "+"}
    ):
        return math.nan
    value = _plain(found.group())
    rest = re.split(r"±|\+/-|\(|\[", cell[found.end() :])[0].strip(" *")
    if rest.startswith(("%", "percent", "pct")):
        return _finite(value / 100)
    if units and rest in units:
        return _finite(value * units[rest])
    return (
        _finite(value * factor)
        if rest in {"", "x", "×", "s", "it"} or (units is not None and not rest.isalnum())
        else math.nan
    )


def spread(text: object, *, factor: float = 1.0) -> float:
    """What a cell such as `12.3 ± 0.4` says after the ±, NaN where it says nothing."""
    parts = re.split(r"±|\+/-", str(text))
    return number(parts[1], units=TIME_UNITS, factor=factor) if len(parts) == 2 else math.nan


def numbers(
    column: pd.Series, *, units: dict[str, float] | None = None, factor: float = 1.0
) -> pd.Series:
    """A column of cells as floats in base units; plain numbers go the fast way."""
    values = pd.to_numeric(column, errors="coerce").astype(float) * factor
    odd = values.isna() & column.notna()
    values = values.mask(~np.isfinite(values))
    if odd.any():
        read = [number(cell, units=units, factor=factor) for cell in column[odd]]
        values = values.where(~odd, pd.Series(read, index=column.index[odd]))
    return values


def _plain(text: str) -> float:
    """Digits with separators as a float: the last of two kinds of separator is the decimal one."""
    digits = re.sub(r"['\u202f\u00a0_]", "", text)
    if "," in digits and "." in digits:
        group, point = (",", ".") if digits.rfind(".") > digits.rfind(",") else (".", ",")
        digits = digits.replace(group, "").replace(point, ".")
    elif re.fullmatch(r"[-+]?[1-9]\d{0,2}(,\d{3})+", digits) or digits.count(",") > 1:
        digits = digits.replace(",", "")
    else:
        digits = digits.replace(",", ".")
    try:
        return float(digits)
    except ValueError:
        return math.nan


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.nan
