"""Logs of training, and results saved as JSON, as tables."""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lab.analysis.audit.columns import COUNTED_RANKS, MEASURED, quantities
from lab.analysis.audit.formats.grid import Table
from lab.analysis.audit.formats.markdown import FENCE
from lab.records.table import grouped

FEWEST, LONGEST = 3, 5000  # lines of a log, and characters of one
LONGEST_CELL = 80  # characters of what is said of several records
STATISTICS = ("min", "max", "mean", "stddev", "median")  # of pytest-benchmark, in s
MLPERF = ":::MLL"
STEPS = {"step", "epoch"}
DEEPEST = 6  # levels of a JSON file
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
    rf"(?<![\w/$])(?P<name>[A-Za-z][\w/@%-]*)= *(?P<value>[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)"
    rf"(?P<unit>{UNIT})?(?=[\s,;|)}}\]]|$)",
    re.IGNORECASE,
)
# Parts of "Threads: 4   Throughput(Kops/s): 426.2" and of "4 processes | time: 3.47 s".
PART = re.compile(
    r"(?P<name>[A-Za-z][^:=]{0,40}?)\s*[:=]\s*(?P<value>\S[^:=]{0,30})"
    r"|(?P<number>\d{1,6}) (?P<of>[A-Za-z][A-Za-z ]{1,30})"
)
BETWEEN = re.compile(r"\s{2,}|\t|\s*[|;]\s*|,\s+")
# As programs and launchers write it: "[Rank 3]", "[rank3]:", "3: ", "[3] ", "[1,3]<stdout>:".
RANK = re.compile(
    r"\brank\W{0,2}(\d{1,6})\b|^\[\w+,(\d{1,6})\]|^\[?(?:default)?(\d{1,6})(?=\]|:\s)",
    re.IGNORECASE,
)
SENTENCE = re.compile(r"[^\W\d]\w*,?(?: \S+){5,}[.:]")
# Names of steps, times and waits beside the number of a step in an epoch.
OF_A_STEP = {"time": "step time (s)", "data": "data time (s)"}


def find_log(lines: Sequence[str]) -> Table | None:
    """The lines that report the same numbers by name, the most frequent kind; None without any.
    Those of steps or epochs are of one code block, as a page may show several trainings."""
    fenced = itertools.accumulate(bool(FENCE.match(line)) for line in lines)
    said = itertools.accumulate(bool(SENTENCE.fullmatch(line)) for line in lines)
    counts = zip(lines, fenced, said, strict=True)
    # Code is indented between the sentences of a page, too.
    blocks = ((fences, line.startswith("    ") and after) for line, fences, after in counts)
    kinds = grouped(
        ((tuple(reported), bool(quantities(reported) & STEPS) and block), list(reported.values()))
        for line, block in zip(lines, blocks, strict=True)
        if len(line) <= LONGEST and (reported := _reported(line))
    )
    none: tuple[tuple[str, ...], Any] = ((), 0)
    (names, _), rows = max(kinds.items(), key=lambda kind: len(kind[1]), default=(none, []))
    return Table(list(names), rows, logged=True) if len(rows) >= FEWEST else None


def _reported(line: str) -> dict[str, str]:
    """The numbers that a line reports, by name; empty for other lines."""
    text = line.strip()
    if text.startswith(MLPERF):
        return _of_mlperf(_literal(text.partition(" ")[2]))
    if text.startswith("{") and text.endswith("}"):
        return _scalars(_literal(text))
    start = PROGRESS.search(text)
    if start is None:
        keyed = [match for match in KEYED.finditer(text) if not _is_option(match)]
        return {match["name"]: _value(match) for match in keyed} if len(keyed) > 1 else _parts(text)
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


def _is_option(match: re.Match[str]) -> bool:
    """Whether a value is that of an option such as --time=60, which limits what is measured."""
    option = match.string[: match.start()].endswith("-")
    return option and bool(quantities([match["name"]]) & MEASURED)


def _parts(text: str) -> dict[str, str]:
    """The values by name of a line of nothing else, if one of them was measured on a number of
    ranks, threads or cores that is another."""
    split = BETWEEN.split(re.sub(r"(?<=[:=])\s+", " ", text))
    parts = [PART.fullmatch(part) for part in split]
    if len(parts) < 2 or not all(parts):
        return {}
    pairs = {
        (part["name"] or part["of"]).strip(): (part["value"] or part["number"]).strip()
        for part in parts
        if part
    }
    known = quantities(pairs)
    return pairs if known & {*COUNTED_RANKS} and known & MEASURED else {}


def _of_mlperf(record: Any) -> dict[str, str]:
    """What a line of MLPerf reports beside the samples, steps or epochs that are done."""
    if not isinstance(record, Mapping):
        return {}
    value = record.get("value")
    done = _scalars(record.get("metadata"))
    done = {
        name: cell for name, cell in done.items() if re.search("_num$|step|samples|epoch", name)
    }
    values = _scalars(value) or _scalars({str(record.get("key")): value})
    return values | done if values and done else {}


def _value(match: re.Match[str]) -> str:
    return match["value"] + (match["unit"] or "")


def find_records(text: str) -> list[Table]:
    """The records of a JSON file that may be a table: lists of objects, objects by name, or an
    object of lists, also inside of others, whose own numbers and words then belong to each."""
    if not text.lstrip().startswith(("[", "{")):
        return []
    tables = []
    with contextlib.suppress(ValueError, RecursionError):
        for records in _candidates(json.loads(text), {}):
            rows = [row for record in records if (row := _of_benchmark(_scalars(record)))]
            names = list(dict.fromkeys(name for row in rows for name in row))
            if rows and len(names) > 1:
                cells = [[row.get(name, "") for name in names] for row in rows]
                tables.append(Table(names, cells))
    return tables


def _candidates(content: Any, above: dict[str, Any], depth: int = 0) -> Iterator[list[Any]]:
    """Lists of what may be records, each with the numbers and words `above` it."""
    if isinstance(content, list):
        yield [record | (above | record) for record in content if isinstance(record, dict)]
        inner: dict[str, list[Any]] = {}
        for record in content if depth < DEEPEST else ():
            for name, value in record.items() if isinstance(record, dict) else ():
                if isinstance(value, list):
                    own = above | _plain(record)
                    inner.setdefault(name, []).extend(
                        one | (own | one) for one in value if isinstance(one, dict)
                    )
        for records in inner.values():
            yield from _candidates(records, {}, depth + 1)
    elif isinstance(content, dict):
        lists = {name: value for name, value in content.items() if isinstance(value, list)}
        if len(lists) > 1 and len({*map(len, lists.values())}) == 1:
            yield [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
        own = above | _plain(content)
        for value in lists.values():
            yield from _candidates(value, own, depth + 1)
        objects = {name: value for name, value in content.items() if isinstance(value, dict)}
        if len(objects) == len(content):
            yield [{"run": name, **value} for name, value in content.items()]
        for value in objects.values() if depth < DEEPEST else ():
            yield from _candidates(value, own, depth + 1)


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers and words of a record, without what is inside of others."""
    plain = {name: value for name, value in record.items() if isinstance(value, str | int | float)}
    return {name: value for name, value in plain.items() if len(str(value)) <= LONGEST_CELL}


def _of_benchmark(row: dict[str, str]) -> dict[str, str]:
    """A row of Google Benchmark with the unit of its time, none for a statistic over others; one of
    pytest-benchmark by names with units, and parameters by their own; others as they are."""
    if {"real_time", "time_unit", "iterations"} <= set(row):
        unit = row.pop("time_unit")
        if row.pop("run_type", "") == "aggregate":
            return {}
        unused = re.compile("iterations|.*_index|run_name|repetitions")
        row["real_time"] = f"{row['real_time']} {unit}"
        return {name: cell for name, cell in row.items() if not unused.fullmatch(name)}
    if {"stats mean", "stats rounds"} <= set(row):
        timed = {f"stats {name}": f"{name} time (s)" for name in STATISTICS}
        params = {name: name.removeprefix("params ") for name in row if name.startswith("params ")}
        kept = timed | params | {"name": "name", "stats rounds": "repeats"}
        return {kept[name]: cell for name, cell in row.items() if name in kept}
    return row


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
