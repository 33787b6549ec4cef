"""Wide tables made long: columns such as `time_1gpu`, `one_gpu_s` and `ddp_s`, or `time_b64`, become rows with a world size or a batch."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

import pandas as pd

from lab.analysis.audit.columns import NUMERIC, TIMES, guess, normal, take_apart
from lab.analysis.audit.values import TIME_UNITS, numbers

WORDS = {"one": 1, "single": 1, "two": 2, "three": 3, "four": 4, "eight": 8, "sixteen": 16}
RANKS = "gpus?|ranks?|procs?|process(?:es)?|devices?|workers?|cards?|cores?|nodes?"
BEFORE = re.compile(rf"(?:^|_)(?P<n>\d+|{'|'.join(WORDS)})_?(?:{RANKS}|x)(?=_|$)")
AFTER = re.compile(rf"(?:^|_)(?:{RANKS}|nprocs?|np|n|x|ws|world_?size)_?(?P<n>\d+)(?=_|$)")
BATCH = re.compile(r"(?:^|_)(?:(?:batch(?:_?size)?|bs)_?|b_?(?=\d\d))(?P<n>\d{1,9})(?=_|$)")
SHORT = re.compile(r"(?P<t>t)_?(?P<n>\d+)|(?P<n2>\d+)")
PARALLEL = r"dp|ddp|fsdp\d?|zero\d?|deepspeed|horovod|mpi|tp|pp|parallel|multi|openmp|omp|multigpu"
SERIAL = r"serial|single|sequential|one"
HINTS = (
    re.compile(r"(?:^|[_\W])(\d+)\s*x\s*(?:[a-z]+\s*)?[a-z]*\d", re.IGNORECASE),
    re.compile(r"(\d+)\s*(?:x\s+)?(?:gpus?|processes|ranks|procs|workers)\b", re.IGNORECASE),
)


class Spread(NamedTuple):
    """A column of a wide table: its world size (None: not named), what it holds, and the setting that the rest names."""

    column: str
    world_size: float | None
    canonical: str
    factor: float | None
    setting: str


def hinted_ranks(name: str, notes: Sequence[str]) -> tuple[int, str] | None:
    """A number of ranks that the file's name or its notes speak of, and which of them does."""
    for text, where in [(name, "the name of the table"), *((note, "its notes") for note in notes)]:
        found = next((match for pattern in HINTS if (match := pattern.search(text))), None)
        if found and 1 < int(found[1][:7]) <= 1_000_000:
            return int(found[1]), where
    return None


def by_batch(
    frame: pd.DataFrame, *, mapped: Collection[str] = ()
) -> tuple[pd.DataFrame, str] | None:
    """A table with columns for each of several batches as a long one with a column `batch size`, and what was assumed.

    None where there are no such columns, or a batch stands in a column of its own. Columns that are `mapped` stay.
    """
    found = {
        str(column): match
        for column in frame.columns
        if (match := BATCH.search(normal(column))) and column not in mapped
    }
    others = [column for column in frame.columns if str(column) not in found]
    told = {guessed.canonical for column in others if (guessed := guess(str(column)))}
    if len({match["n"] for match in found.values()}) < 2 or told & {
        "batch",
        "global_batch_size",
        "micro_batch_size",
    }:
        return None
    parts: dict[int, pd.DataFrame] = {}
    for column, match in found.items():
        part = parts.setdefault(int(match["n"]), frame[others].copy())
        rest = "_".join(
            filter(None, (match.string[: match.start()], match.string[match.end() :].strip("_")))
        )
        name = f"time_{rest}".strip("_") if not rest or rest in TIME_UNITS else rest
        if name in part:
            return None  # two columns would be one
        part[name] = frame[column]
    long = pd.concat(
        [part.assign(**{"batch size": size}) for size, part in parts.items()], ignore_index=True
    )
    named = ", ".join(repr(column) for column in list(found)[:4])
    return long, f"the batches are read from the column names {named}"


def lengthened(
    frame: pd.DataFrame, hint: tuple[int, str] | None, *, mapped: Collection[str] = ()
) -> tuple[pd.DataFrame, str] | None:
    """A wide table as a long one with columns `world_size`, `setting` and quantities in base units, and what was assumed.

    None where the table is not wide. Columns that are `mapped` stay.
    """
    found = [
        spread
        for column in frame.columns
        if column not in mapped and (spread := _spread(str(column)))
    ]
    sized = [item for item in found if item.world_size is not None]
    if len({item.world_size for item in sized}) < 2 and (not sized or len(found) < 2):
        return None
    found = (
        found
        if any(item.world_size is None for item in found) and len(found) > len(sized)
        else sized
    )
    said = f"the world sizes are read from the column names {', '.join(repr(item.column) for item in found[:4])}"
    if len(found) > len(sized):
        said += f"; {hint[0]} ranks by {hint[1]}" if hint else ", where not all name one"
    units = {item.column for item in found if item.factor is None and item.canonical in TIMES}
    if units:
        said += "; no unit is named"
    kept = [
        column for column in frame.columns if str(column) not in {item.column for item in found}
    ]
    parts = []
    for (size, setting), group in _groups(found, hint).items():
        part = frame[kept].copy()
        part["world_size"], part["setting"] = size, setting
        for item in group:
            factor = item.factor if item.factor is not None else 1.0
            unit = "_s" if item.canonical in TIMES and item.factor is not None else ""
            part[item.canonical + unit] = numbers(
                frame[item.column], units=TIME_UNITS if unit else None, factor=factor
            )
        parts.append(part)
    long = pd.concat(parts, ignore_index=True)
    return long.drop(columns="setting") if not long["setting"].astype(bool).any() else long, said


def _groups(
    found: Sequence[Spread], hint: tuple[int, str] | None
) -> dict[tuple[float, str], list[Spread]]:
    groups: dict[tuple[float, str], list[Spread]] = {}
    for item in found:
        size = (
            item.world_size
            if item.world_size is not None
            else float(hint[0])
            if hint
            else float("nan")
        )
        groups.setdefault((size, item.setting), []).append(item)
    return groups


def _spread(column: str) -> Spread | None:
    text = normal(column)
    match = BEFORE.search(text) or AFTER.search(text)
    if match is None:
        short = SHORT.fullmatch(text)
        if short:
            size = float(int((short["n"] or short["n2"])[:9]))
            return Spread(column, size, "time", None, "") if size else None
        name = take_apart(column)
        if name.family == "time" and re.search(rf"(?:^|_)(?:{PARALLEL})(?=_|$)", name.stem):
            return Spread(column, None, "time", name.factor, name.stem)
        return None
    size = WORDS.get(match["n"]) or int(match["n"][:9])
    rest = (text[: match.start()] + "_" + text[match.end() :]).strip("_")
    told = guess(rest) if rest else None
    if not size or (rest and re.search(r"(?:^|_)per(?=_|$)|batch", rest)):
        return None
    if told and told.canonical in NUMERIC and told.canonical not in {"world_size", "nodes"}:
        return Spread(column, float(size), told.canonical, told.factor, "")
    name = take_apart(rest)
    is_time = name.family == "time"
    return Spread(column, float(size), "time", name.factor if is_time else None, name.stem)
