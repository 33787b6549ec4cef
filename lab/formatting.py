"""Numbers as text, with as many digits as their intervals support."""

from __future__ import annotations

import html
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

NOT_MEASURED = "not measured"
KIB, MIB = 2**10, 2**20  # bytes
MILLION = 1e6
PERIODS = {"s": 1.0, "min": 60.0, "h": 3600.0, "day": 86400.0}  # of rates, in s
DIGITS_ALONE = 3  # significant digits of a value without an interval
DIGITS_OF_INTERVAL = 2  # of half its width, which are the meaningful ones of the value
LEAST_OF_UNIT = 1e-3  # anything less has more zeros than digits
LEAST_WIDTH = 1e-9  # of an interval, relative to its ends: less is an error of rounding
DIGITS_MOST = 5  # no measurement here supports more
LONGEST_LINE = 600  # characters, enough for a cause with advice; a library may write a page
MOST_QUOTED = 200  # characters of a line of a log

# Terminal escape sequences (ECMA-48), including links and titles, and control characters.
_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


class Unit(NamedTuple):
    """A unit, and the factor from seconds, or from bytes, to it."""

    name: str
    factor: float


UNITS = (Unit("h", 1 / 3600), Unit("s", 1.0), Unit("ms", 1e3), Unit("µs", 1e6), Unit("ns", 1e9))


def rounded(
    value: float | None, low: float | None = None, high: float | None = None, *, given: bool = False
) -> str:
    """A value and its interval, such as `87 [71, 93]`; `not measured` for None and NaN.

    Value and ends have the decimals that show two significant digits of half the interval's width,
    and at most five of the largest of them; without an interval or with one of no width, three of
    the value. No number below 1000 is rounded to tens. A `given` value, which was read and not
    computed, keeps its own digits if it has no interval: all those of whole units, at most five
    where it has a fraction.
    """
    if not _known(value):
        return NOT_MEASURED
    alone = _leading(value, DIGITS_ALONE) - DIGITS_ALONE + 1
    if not (_known(low) and _known(high)):
        if given:
            finest = _leading(value, DIGITS_MOST) - DIGITS_MOST + 1
            return _without_zeros(_fixed(value, min(finest, 0)))
        return _fixed(value, alone)
    largest = max(abs(number) for number in (value, low, high))
    if not largest:
        return "0"
    finest = _leading(largest, DIGITS_MOST) - DIGITS_MOST + 1
    half = (high - low) / 2
    wide = half > LEAST_WIDTH * largest
    place = _leading(half, DIGITS_OF_INTERVAL) - DIGITS_OF_INTERVAL + 1 if wide else alone
    place = min(max(place, finest), max(alone, 0))
    return f"{_fixed(value, place)} [{_fixed(low, place)}, {_fixed(high, place)}]"


def plain(value: float) -> str:
    """A number with at most three significant digits and no exponent: `20`, `1.33`, `1990`."""
    return _without_zeros(rounded(value))


def listed(names: Sequence[str], most: int) -> str:
    """The first names and how many more there are, such as `a; b; and 3 more`."""
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return "; ".join([*names[:most], *more])


def joined(names: Iterable[str], word: str = "and") -> str:
    """Names in a sentence, such as `a, b and c`; empty if there are none."""
    *most, last = [*names] or [""]
    return f"{', '.join(most)} {word} {last}" if most else last


def extent(values: Sequence[Sequence[float]]) -> str:
    """Of values with their intervals, the least and the largest value: `0.8 to 0.9`.

    Of one value it is the value with its interval, and one number if both look the same.
    """
    if len(values) == 1:
        return rounded(*values[0])
    known = sorted(value[0] for value in values)
    return " to ".join(dict.fromkeys(map(rounded, (known[0], known[-1]))))


def range_of(counts: Iterable[int], noun: str) -> str:
    """The least and the largest of some counts with their noun, such as `2 to 3 runs`."""
    known = sorted(counts)
    return f"{known[0]} to " * (known[0] < known[-1]) + count(known[-1], noun)


def value_of(text: str) -> str:
    """A formatted number without its interval, with the same digits: `87 [71, 93] ms` is `87 ms`.

    Used if the interval already stands beside it.
    """
    return re.sub(r" \[[^\]]*\]", "", text)


def drawn_value(
    text: Callable[..., str], value: float | None, low: float | None, high: float | None
) -> str:
    """A value beside its drawn interval: with the digits that this supports, but at most three."""
    return min(text(value), value_of(text(value, low, high)), key=len)


def interval_of(text: str) -> str:
    """A formatted number without its value: `300 [0, 600] ms` is `[0, 600] ms`."""
    return text[text.index("[") :]


def capitalized(text: str) -> str:
    """A text whose first letter is a capital, as at the beginning of a sentence."""
    return f"{text[:1].upper()}{text[1:]}"


def sentence(text: str) -> str:
    """A text with a full stop, unless it ends with a mark already."""
    return text if text.rstrip("'\")”’»").endswith((".", "?", "!", "…")) else f"{text}."


def log_end(line: str) -> str:
    """The last line of a log as the end of a sentence about whoever wrote it; "" without one."""
    return f'; the last line of its log is "{line[:MOST_QUOTED]}"' if line else ""


def brief(text: str) -> str:
    """A text in one line of at most LONGEST_LINE characters."""
    return textwrap.shorten(text, LONGEST_LINE)


def count(number: int, noun: str) -> str:
    """A number with its noun, such as `1 job` or `2 jobs`."""
    return f"{number} {noun}{'s' * (number != 1)}"


def in_words(value: float, low: float = math.nan, high: float = math.nan) -> str:
    """A large number with the digits that its interval supports: `950`, `17,800`, `18 billion`.

    It is rounded down below a million, where it counts whole things.
    """
    for name, factor in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
        if value >= factor:
            ends = (value / factor, low / factor, high / factor)
            return f"{value_of(rounded(*ends))} {name}"
    whole = math.floor(value)
    place = 10 ** max(len(str(whole)) - DIGITS_ALONE, 0)
    return f"{whole // place * place:,}"


def percent(*value: float | None, given: bool = False) -> str:
    """A ratio in per cent, perhaps with the ends of its interval: `46.0 [45.0, 48.0] %`."""
    return _scaled(Unit("%", 100.0), value, given=given)


def format_seconds(*value: float | None, unit: Unit | None = None, given: bool = False) -> str:
    """A duration in s, perhaps with the ends of its interval: `153.2 [150.0, 157.0] ms`.

    A `unit` that it shares with others is not used if it is below LEAST_OF_UNIT there.
    """
    if unit is not None:
        largest = max((abs(end) for end in value if _known(end)), default=0.0)
        if 0 < largest * unit.factor < LEAST_OF_UNIT:
            unit = None
    return _scaled(unit or unit_for(value[:1]), value, given=given)


def unit_for(values: Iterable[float | None]) -> Unit:
    """The unit in which the largest of these durations (s) is at least 1; ms if all are 0."""
    largest = max((abs(value) for value in values if _known(value)), default=0.0)
    if not largest:
        return Unit("ms", 1e3)
    return next((unit for unit in UNITS if largest * unit.factor >= 1), UNITS[-1])


def format_bytes(value: float | None, *, unit: Unit) -> str:
    """A number of bytes in a unit of `bytes_unit`, such as `512 MB`."""
    return _scaled(unit, [value])


def bytes_unit(values: Iterable[float | None]) -> Unit:
    """GB (1e9) if the largest of these numbers of bytes is at least 10 GB, else MB (1e6)."""
    largest = max((value for value in values if _known(value)), default=0.0)
    return Unit("GB", 1e-9) if largest >= 1e10 else Unit("MB", 1e-6)


def message_size(size: float) -> str:
    """A number of bytes in powers of 1024, in which messages are measured: `64 KiB`."""
    for unit, factor in (("MiB", MIB), ("KiB", KIB)):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size:g} B"


def model_size(parameters: float) -> str:
    """A number of parameters in short: `124M`, `70.6B`, `1T`."""
    units = (("T", 1e12), ("B", 1e9), ("M", 1e6))
    unit, scale = next((unit for unit in units if parameters >= unit[1]), units[-1])
    return f"{plain(parameters / scale)}{unit}"


def _scaled(unit: Unit, value: Sequence[float | None], *, given: bool = False) -> str:
    """A value and perhaps its interval in a unit."""
    scaled = [number * unit.factor if number is not None else None for number in value]
    return f"{rounded(*scaled, given=given)} {unit.name}" if _known(value[0]) else NOT_MEASURED


def _known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _leading(value: float, digits: int) -> int:
    """The power of ten of a number's first digit after rounding to this many digits."""
    return math.floor(math.log10(float(f"{abs(value):.{digits - 1}e}"))) if value else 0


def _fixed(value: float, place: int) -> str:
    text = f"{round(value, -place):.{max(-place, 0)}f}"
    return text.removeprefix("-") if not float(text) else text


def _without_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def printable(text: str) -> str:
    """Text without terminal escape sequences and control characters."""
    return _ESCAPES.sub("", text)


def html_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows of the same columns as an HTML table for a notebook; all text is escaped."""
    rows = [*rows]

    def row(tag: str, cells: Iterable[Any]) -> str:
        begin = f'<{tag} style="text-align: left">'  # JupyterLab aligns cells to the right
        return f"<tr>{''.join(f'{begin}{html.escape(str(cell))}</{tag}>' for cell in cells)}</tr>"

    head = row("th", rows[0]) if rows else ""
    body = "".join(row("td", one.values()) for one in rows)
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"
