"""Logs of training, and results saved as JSON, as tables."""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lab.records.table import grouped

Parsed = tuple[list[str], list[list[str]]]  # names and rows

FEWEST, LONGEST = 3, 5000  # lines of a log, and characters of one
# Where a line begins to report: "step: 10", "iteration 10/ 100", "Epoch: [0][ 10/5005]",
# "Epoch(train) [1][50/2693]", "Epoch[0] Batch [49]".
PROGRESS = re.compile(
    r"(?<![\w/])(?:(?:global_?)?steps?|iter(?:ation)?s?|epochs?(?:\(train\))?)\s*[:=]?"
    r"\s*(?=[\[(]?\s*\d)",
    re.IGNORECASE,
)
EPOCH = re.compile(
    r"epoch(?:\(train\))?\s*:?\s*\[\s*(\d+)\]\s*(?:batch\s*)?\[\s*(\d+)(?:/\s*\d+)?\]",
    re.IGNORECASE,
)
UNIT = r"%|[kKMGT]i?B|[mun]s|s(?:ec)?|it/s|(?:tok(?:en)?s?|samples?|im(?:g|age)s?)/s(?:ec)?"
PAIR = re.compile(
    r"(?<![\w/.@#-])(?P<name>[A-Za-z][\w/.@#-]*(?: [A-Za-z(][\w/.()-]*){0,6}?(?: ?\([\w/ ]+\))?)"
    r"\s*(?:[:=]\s*|\s)\[?\s*"
    rf"(?P<value>[-+]?(?:\d[\d,]*\d|\d)?(?:\.\d+|\d)(?:e[-+]?\d+)?)(?P<unit>\s?(?:{UNIT}))?"
    r"(?=[\s,;|:/)(}\]]|$)",
    re.IGNORECASE,
)
KEYED = re.compile(
    rf"(?<![\w/])(?P<name>[A-Za-z][\w/@%-]*)=(?P<value>[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)"
    rf"(?P<unit>{UNIT})?(?=[\s,;|)}}\]]|$)",
    re.IGNORECASE,
)
# As programs and launchers write it: "[Rank 3]", "[rank3]:", "3: ", "[3] ", "[1,3]<stdout>:".
RANK = re.compile(
    r"\brank\W{0,2}(\d{1,6})\b|^\[\w+,(\d{1,6})\]|^\[?(?:default)?(\d{1,6})(?=\]|:\s)",
    re.IGNORECASE,
)
# Names of steps, times and waits beside the number of a step in an epoch.
OF_A_STEP = {"time": "step time (s)", "data": "data time (s)"}


def find_log(lines: Sequence[str]) -> Parsed | None:
    """The lines that report the same numbers by name, the most frequent kind; None without any."""
    kinds = grouped(
        (tuple(reported), list(reported.values()))
        for line in lines
        if len(line) <= LONGEST and (reported := _reported(line))
    )
    names, rows = max(kinds.items(), key=lambda kind: len(kind[1]), default=((), []))
    return (list(names), rows) if len(rows) >= FEWEST else None


def _reported(line: str) -> dict[str, str]:
    """The numbers that a line reports, by name; empty for other lines."""
    text = line.strip()
    if text.startswith("{") and text.endswith("}"):
        return _scalars(_literal(text))
    start = PROGRESS.search(text)
    if start is None:
        keyed = list(KEYED.finditer(text))
        return {match["name"]: _value(match) for match in keyed} if len(keyed) > 1 else {}
    pairs: dict[str, str] = {}
    of_epoch = EPOCH.match(text, start.start())
    if of_epoch:
        pairs = {"epoch": of_epoch[1], "step": of_epoch[2]}
    for match in PAIR.finditer(text, of_epoch.end() if of_epoch else start.start()):
        name = " ".join(match["name"].split())
        name = OF_A_STEP.get(name.lower(), name) if of_epoch else name
        # "steps: 10" is where the training is, not how many there were.
        pairs.setdefault(name if pairs else name.rstrip("s"), _value(match))
    if len(pairs) < 2 + bool(of_epoch):
        return {}
    rank = RANK.search(text, 0, start.start())
    return {"rank": rank[rank.lastindex or 0], **pairs} if rank else pairs


def _value(match: re.Match[str]) -> str:
    return match["value"] + (match["unit"] or "")


def find_records(text: str) -> Parsed | None:
    """The records of a JSON file: a list of objects, perhaps by name, or an object of lists."""
    if not text.lstrip().startswith(("[", "{")):
        return None
    with contextlib.suppress(ValueError, RecursionError):
        for records in _candidates(json.loads(text)):
            rows = [row for record in records if (row := _scalars(record))]
            names = list(dict.fromkeys(name for row in rows for name in row))
            if rows and len(names) > 1:
                return names, [[row.get(name, "") for name in names] for row in rows]
    return None


def _candidates(content: Any) -> Iterator[list[Any]]:
    """Lists in a file's content that may be of records."""
    if isinstance(content, list):
        yield content
    elif isinstance(content, dict):
        columns = [value for value in content.values() if isinstance(value, list)]
        if len(columns) > 1 and len({len(column) for column in columns}) == 1:
            names = [name for name, value in content.items() if isinstance(value, list)]
            yield [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        yield from columns
        if all(isinstance(value, dict) for value in content.values()):
            yield [{"run": name, **value} for name, value in content.items()]


def _literal(text: str) -> Any:
    """What a line holds that was printed as JSON or by Python."""
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        return ast.literal_eval(text)
    return None


def _scalars(record: Any, prefix: str = "") -> dict[str, str]:
    """The numbers and words of a record by name, those of a record in it after its name."""
    cells: dict[str, str] = {}
    if not isinstance(record, Mapping):
        return cells
    for name, value in record.items():
        if isinstance(value, Mapping) and not prefix:
            cells |= _scalars(value, f"{name} ")
        elif isinstance(value, str | int | float | bool):
            cells[f"{prefix}{name}"] = str(value)
    return cells
