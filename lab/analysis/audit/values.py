"""Cells of tables as numbers: thousands separators, units, per cent, a spread after ±."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from lab.analysis.audit.languages import COUNTED_WORDS, by_word, in_english

EMPTY = {"", "-", "--", "–", "—", "?", "...", "na", "n/a", "#n/a", "nan", "none", "null", "tbd"}
EMPTY |= {"<na>", "nat"}  # as pandas writes them
MISSING = EMPTY | {"oom", "failed", "fail", "error", "x"}
NUMBER = re.compile(r"[-+]?(?:\d[\d.,'\u202f\u2009\u00a0_]*\d|\d|\.\d+)(?:[eE][-+]?\d+)?")
PLAIN = re.compile(r"\d+\.\d+")
# 1:02:03.5, 42:18, and with days 1-02:03:04 or 1 day, 2:03:04.
CLOCK = re.compile(r"(?:(?:(\d+)(?:-|\s*days?,?\s+))?(\d+):)?(\d{1,3}):(\d{2}(?:\.\d+)?)")
CLOCK_OF_HOURS = re.compile(r"(?<=:\d\d)\s*(?:h|hr|hrs|hours?)$")
THOUSANDS = re.compile(r"(?<=\d)(?<!\b0),(?=\d{3}(?!\d))")  # not of 0,827
MILLIONS = re.compile(r"[\d.,]+\s*M")  # 6.6 M are no minutes
AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)[\s,]*")
_GROUPS = r" (?=\d{3}(?: \d{3})*"
# Of 1 253,6 and 11 724; 224 224 are two numbers.
SPACED = re.compile(rf"(?<=\d){_GROUPS},\d)|(?:(?<=^\d)|(?<=^\d\d)){_GROUPS}$)")
# Of 2.4 x 10^-2, also in LaTeX.
POWER = re.compile(r"(?<=\d)\s*(?:\\times|\\cdot|[x×·*])\s*10\^\{?([-+]?\d{1,3})\}?")
PLUS_MINUS = r"±|\+/-|\\pm"
BRACKETS = re.compile(r"\([^)]*\)|\[[^]]*\]")
ABOUT = " ~≈约"
ABOUT_WORD = re.compile(r"^(?:about|approx(?:\.|imately)?|around|roughly|circa|ca\.?)\s+(?=\d)")
RANGE = re.compile(
    r"(\d+(?:\.\d+)?)\s*(?:-|–|—|--)\s*(\d+(?:\.\d+)?)(?!\S*[-–—\d])"
)  # of 12.8–13.7 s
PRODUCT = re.compile(r"\d{1,9}\s*[x×*]\s*\d{1,9}")
GRID = re.compile(r"\(?\d{1,9}(?:\s*[,x×*]\s*\d{1,9})+\)?")  # of "(1, 4)" and "64x64x64"
WIDEST = 1.5  # range of a measurement, which 2-4 is not
APPROXIMATE = re.compile(r"\s*[~≈]")
SYMBOL = re.compile("n?p|n|t")  # of "p=4"
PER_SECOND = re.compile(r"([kKMGT])b(?:ps|/s)\b")
ARROWS, SUPERSCRIPTS = "↑↓→←▲▼⬆⬇", "¹²³⁴⁵⁶⁷⁸⁹⁰"
# Signs and digits of East Asian keyboards, such as （+23%）.
WIDE = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}


TIME_UNITS = by_word(
    {
        1.0: "s sec secs second seconds segundos seg segs sekunden secondi secondes saniye sn",
        1e-3: "ms msec msecs millisecond milliseconds milisegundos millisekunden millisecondes",
        1e-6: "us usec usecs microsecond microseconds microsegundos mikrosekunden microsecondes",
        1e-9: "ns nsec nanosecond nanoseconds",
        60.0: "mins minute minutes minutos minuten minuti minuty",
        3600.0: "h hr hrs hour hours stunden stunde horas hora heures heure",
    }
)
# In a cell, unlike in a name, "min" does not mean minimum and "m" does not mean million.
CELL_TIMES = TIME_UNITS | by_word({60.0: "m min", 86400.0: "d day days"})
CELL_TIME = "|".join(sorted(CELL_TIMES, key=len, reverse=True))
BYTE_UNITS = by_word(
    {1.0: "b byte bytes", 1e3: "kb", 1e6: "mb", 1e9: "gb", 1e12: "tb"}
    | {2.0**10: "kib", 2.0**20: "mib", 2.0**30: "gib"}
)
BANDWIDTH_UNITS = {
    unit: factor * scale
    for prefix, factor in (("k", 1e3), ("m", 1e6), ("g", 1e9), ("t", 1e12))
    for name, scale in (("b", 1.0), ("byte", 1.0), ("bytes", 1.0), ("bit", 1 / 8), ("bits", 1 / 8))
    for unit in (f"{prefix}{name}/s", f"{prefix}{name}/sec")
} | {"gib/s": 2.0**30, "mib/s": 2.0**20}
COUNT_UNITS = by_word({1e3: "k", 1e6: "m million millions", 1e9: "bn billion billions"})
COUNTED_UNITS = COUNT_UNITS | by_word({1.0: f"thread threads core cores {COUNTED_WORDS}"})
PARAMETER_UNITS = COUNT_UNITS | {"b": 1e9, "t": 1e12}
FLOPS_UNITS = {
    f"{prefix}flop{end}": factor
    for prefix, factor in (("g", 1e9), ("t", 1e12), ("p", 1e15))
    for end in ("", "s", "/s", "s/s", "/s/gpu", "s/gpu", "s/s/gpu")
}
# What ranks are called.
RANK = "[ghint]pu|gcd|rank|device|dev|worker|chip|card|accelerator|process|proc"
RANKS = rf"(?:{RANK})s?|processes"
NODE = "(?:node|host|server|machine)"
# Ranks as words in a cell: n1g8, 2n_8g, 2 nodes x 8; 8x A100, 8 A100s, 8 GPUs; A100 x8. Of N4C32,
# the cards are those of all nodes.
_UNIT = rf"{RANKS}|pcs|p"
_NAME = r"(?!x\d|(?:and|or|to)\b)(?:nvidia |amd |ml\.|standard_)?[a-z][a-z-]*\s?-?\d[\w .()-]*"
NODES_TIMES = re.compile(
    r"n(\d+)_?g(\d+)|(\d+)[_ ]?n[_ ]?(\d+)[_ ]?(?:g(?![a-z])\w*|gpus?)"
    rf"|(\d+)\s*{NODE}s?\s*(?:[x×*,@]|of|with)?\s*(\d+)\s*x?\s*(?:{_UNIT}|{_NAME})?"
    rf"|(\d+)\s*[x×*]\s*(\d+)\s*(?:[x×*]?\s*(?:{_UNIT}|(?P<name>{_NAME})))?"
)
RANKS_TIMES = re.compile(
    rf"(?:.*\()?(\d+)\s*(?:[x×*]\s*|\s)((?:{_NAME}|{_UNIT}))\)?|(\d+)({_UNIT})"
)
# GPUs called by a number of their model.
GEFORCE = re.compile(r"(?:rtx\s?)?[1-5]0[5-9]0(?:\s?(?:ti|d|super))*", re.IGNORECASE)
TIMES_GEFORCE = re.compile(rf"(\d+)\s*[x×*]\s*({GEFORCE.pattern})")
CELL_UNITS = {"", "x", "×", "times", "s", "it", "sypd", "sdpd"}  # where the column has no unit
NEARLY = 0.02  # relative: of a ratio of two rounded rates, or a batch that ranks share
MOST_OF_A_NODE = 192  # ranks; 224x224 are the pixels of an image
# Of 8 A100s and 2 V100 GPUs, which are GPUs of the same model as 1 A100 and 1 V100 GPU.
PLURAL_NAME = re.compile(r"(?<=[abghv]\d00)s$|(?<=\w)\s(?:gpu|card)s?$")
CARDS = re.compile(rf"(?:({_NAME}?)\s*[x×*]\s*)?n\d+_?c(\d+)")
SLICE = re.compile(r"((?:(?:cloud )?tpu[ _-]?)?v\d[a-z]*)-(\d+)")  # TPU v3-32
# Of one number against another, such as -7.4 %.
CHANGE = re.compile(r"[*_]*[+\-−–±]\s*\d[\d.,]*\s*(?:%|pp|points?|pts?)[*_]*", re.IGNORECASE)
OF_MATRIX = re.compile(r"(?:^|\s)\d+\s*$")  # of "matrices 1024*1024"
RANKS_AFTER = re.compile(rf"({_NAME}?)\s*\(?[x×*]\s*(\d+)\)?")


def number(cell: object, *, units: dict[str, float] | None = None, factor: float = 1.0) -> float:
    """A cell in base units, NaN if not a number; its own unit overrides the column's `factor`."""
    if isinstance(cell, bool) or cell is None:
        return math.nan
    if isinstance(cell, int | float | np.number):
        return float(cell) * factor if math.isfinite(cell) else math.nan
    text = str(cell).translate(WIDE).strip()
    if units is BANDWIDTH_UNITS:  # in which only the case tells bits from bytes
        text = PER_SECOND.sub(r"\1bit/s", text).replace("Bps", "B/s")
    text = POWER.sub(r"e\1", SPACED.sub("", text))
    text = ABOUT_WORD.sub("~", text.lower().replace("µ", "u").replace("μ", "u"))
    if between := _range(text):
        low, high = between
        text = RANGE.sub(f"{(low + high) / 2:.15g}", text)
    if units is TIME_UNITS and math.isfinite(time := duration(text, factor)):
        return time
    match = NUMBER.search(text)
    before = text[: match.start()].strip(f" ~<>=≈x×*${ARROWS}") if match else ""
    before = "" if SYMBOL.fullmatch(before) and "=" in text else before
    if not match or before not in {"", "-", "+"}:
        return math.nan
    value = _decimal(match.group())
    rest, *deviation = re.split(PLUS_MINUS, BRACKETS.sub("", text[match.end() :]))
    if re.search(r"\d", rest):
        return math.nan  # two numbers, such as one for each precision
    if deviation and not rest.strip():
        rest = NUMBER.sub("", deviation[0], count=1)  # the unit of 12.3 ± 0.4 ms
    unit = re.split(r"\(|\[", rest)[0].strip(f" *†‡§^$\\{ARROWS}{SUPERSCRIPTS}")
    if unit.startswith(("%", "percent", "pct")):
        return value / 100
    first = re.split(r"[\s/]", unit)[0]  # of "k/sec" and "s/it"
    if units and (unit in units or first in units):
        return value * units[unit if unit in units else first]
    known = unit in CELL_UNITS or (units is not None and not unit.isalnum())
    return value * factor if known else math.nan


def _range(text: str) -> tuple[float, float] | None:
    """The ends of a range such as 12.8–13.7, which a cell holds instead of a number."""
    match = RANGE.match(text.lstrip(ABOUT))
    low, high = (float(match[1]), float(match[2])) if match else (0.0, 0.0)
    return (low, high) if 0 < low < high <= WIDEST * low else None


def volume(cell: object, sides: re.Pattern[str] = GRID) -> object:
    """How many ranks or points the sides of a grid in a cell make, or samples a product such as
    32 * 8; any other cell as it is."""
    match = sides.fullmatch(str(cell).strip())
    return math.prod(map(int, re.findall(r"\d+", match[0]))) if match else cell


def duration(cell: object, factor: float = 1.0) -> float:
    """Seconds in a cell that carries its own unit, such as 1:02:03, 42:18, 1h 12m 30s; else NaN.

    In a column of hours, with a `factor` of 3600, 9:41 means hours and minutes.
    """
    text = in_english(BRACKETS.sub("", str(cell).translate(WIDE)).strip(ABOUT)).strip()
    if MILLIONS.fullmatch(text):
        return math.nan
    text = text.lower()
    of_hours = CLOCK_OF_HOURS.search(text)  # 5:58h
    if clock := CLOCK.fullmatch(CLOCK_OF_HOURS.sub("", text)):
        days, hours, minutes, seconds = (float(part or 0) for part in clock.groups())
        if clock[2] is None and (of_hours or factor == CELL_TIMES["h"]):
            hours, minutes, seconds = minutes, seconds, 0.0
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    text = re.sub(r"(?<=\d),(?=\d)", ".", THOUSANDS.sub("", text))
    text = re.sub(r"(?<=[a-z]) and (?=\d)", " ", text)  # of 9 hours and 47 minutes
    amounts = AMOUNT.findall(text)
    spoken = amounts and not AMOUNT.sub("", text) and all(unit in CELL_TIMES for _, unit in amounts)
    return sum(float(amount) * CELL_TIMES[unit] for amount, unit in amounts) if spoken else math.nan


def ranks_of(cell: object) -> tuple[float, str]:
    """The number of ranks in a cell such as "8x A100" or "2 nodes x 8", and what they are; NaN and
    "" if it names none."""
    text = re.sub(r"^(?:single|one) (?=gpu|card)", "1 ", in_english(str(cell)).strip().lower())
    if match := TIMES_GEFORCE.fullmatch(text):
        return float(match[1]), match[2]
    if match := NODES_TIMES.fullmatch(text):
        nodes, each = (float(number) for number in match.groups() if number and number.isdigit())
        of_image = text.removesuffix(str(int(each))).endswith(("x", "x ")) and each > MOST_OF_A_NODE
        return math.nan if of_image else nodes * each, match["name"] or ""
    if match := CARDS.fullmatch(text):
        return float(match[2]), (match[1] or "").strip()
    if match := RANKS_TIMES.fullmatch(text):
        name = match[2] or ""
        name = "" if re.fullmatch(_UNIT, name) else name.strip()
        name = name if "(" in name else PLURAL_NAME.sub("", name.rstrip(" )"))
        return float(match[1] or match[3]), name
    if match := SLICE.fullmatch(text) or RANKS_AFTER.fullmatch(text):
        of_matrix = OF_MATRIX.search(match[1]) and int(match[2]) > MOST_OF_A_NODE
        return (math.nan, "") if of_matrix else (float(match[2]), match[1].strip())
    if match := re.fullmatch(r"([^(]+?)\s*\([^()]*\)", text):  # 16 GPUs (2 nodes)
        return ranks_of(match[1])
    return math.nan, ""


def rounding(cell: object) -> float:
    """Half of the last digit of a cell, as a share of its value: 0.05 of "10"; 0 where unknown."""
    text = str(cell).strip().lower()
    if between := _range(text):
        low, high = between
        return (high - low) / (high + low)
    amounts = AMOUNT.findall(text) if not AMOUNT.sub("", text) else []
    if ":" in text or len(amounts) > 1:  # of 1:02:03 and 1h 12m
        units = [CELL_TIMES[unit] for _, unit in amounts if unit in CELL_TIMES]
        total = duration(text)
        return 0.5 * min(units, default=1.0) / total if total > 0 else 0.0
    digits = text
    if not PLAIN.fullmatch(text):
        match = NUMBER.search(text)
        digits = _digits(match.group()).partition("e")[0] if match else ""
    whole, _, decimals = digits.strip("-+").partition(".")
    if not (whole + decimals).isdigit() or not float(digits):
        return 0.0
    # In 17,400 the zeros may or may not be significant; in "~40" they are not.
    zeros = 0 if decimals else len(whole) - len(whole.rstrip("0"))
    if not APPROXIMATE.match(text):
        zeros = max(min(zeros, len(whole) - 3), 0)
    return float(0.5 * 10.0 ** (zeros - len(decimals)) / abs(float(digits)))


def _decimal(text: str) -> float:
    try:
        return float(_digits(text))
    except ValueError:
        return math.nan


def _digits(text: str) -> str:
    """Digits without separators; if there are two kinds, the last is the decimal separator."""
    digits = re.sub(r"['\u202f\u2009\u00a0_]", "", text)
    if "," in digits and "." in digits:
        group, point = (",", ".") if digits.rfind(".") > digits.rfind(",") else (".", ",")
        digits = digits.replace(group, "").replace(point, ".")
    elif re.fullmatch(r"[-+]?[1-9]\d{0,2}(,\d{3})+", digits) or digits.count(",") > 1:
        digits = digits.replace(",", "")
    else:
        digits = digits.replace(",", ".")
    return digits


def spread(cell: object, *, factor: float = 1.0) -> float:
    """The deviation in a cell such as `12.3 ± 0.4`, NaN if it has none."""
    parts = re.split(PLUS_MINUS, str(cell))
    return number(parts[1], units=TIME_UNITS, factor=factor) if len(parts) == 2 else math.nan


def numbers(
    column: pd.Series, *, units: dict[str, float] | None = None, factor: float = 1.0
) -> pd.Series:
    """A column in base units; NaN where a cell is not a number, or too large for one."""

    def value(cell: Any) -> float:
        try:
            return float(cell) * factor
        except (TypeError, ValueError):
            return number(cell, units=units, factor=factor)

    if is_numeric_dtype(column):
        with np.errstate(over="ignore"):
            values = column.to_numpy(dtype=float, na_value=np.nan) * factor
    else:
        cells = column.tolist()
        read = {text: value(text) for text in {cell for cell in cells if isinstance(cell, str)}}
        values = np.array(
            [read[cell] if isinstance(cell, str) else value(cell) for cell in cells], dtype=float
        )
    values[~np.isfinite(values)] = np.nan
    return pd.Series(values, column.index, name=column.name)


def roundings(column: pd.Series) -> pd.Series:
    """`rounding` of each cell; 0 if it is not text."""
    if is_numeric_dtype(column):
        return pd.Series(0.0, column.index)
    pairs = zip(column.tolist(), column.isna().tolist(), strict=True)
    texts = [None if empty else str(cell) for cell, empty in pairs]
    shares = {text: rounding(text) if text is not None else math.nan for text in set(texts)}
    return pd.Series([shares[text] for text in texts], column.index)
