"""Wide tables in long form: columns such as `time_1gpu`, `ddp_s` or `time_b64` become rows."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from lab.analysis.audit.columns import (
    CLOCKED,
    IDEAL,
    NUMERIC,
    PARALLEL,
    RANK,
    SECOND,
    THINGS,
    TIMES,
    WORDS,
    Guess,
    guess,
    normal,
    parse_name,
    quantities,
    setting_of,
)
from lab.analysis.audit.other_scripts import in_english
from lab.analysis.audit.plausible import are_collectives
from lab.analysis.audit.values import (
    COUNT_UNITS,
    MISSING,
    TIME_UNITS,
    duration,
    numbers,
    ranks_of,
)

RANKS = "gpus?|ranks?|procs?|process(?:es)?|devices?|workers?|cards?|cores?|threads?|nodes?"
BEFORE = re.compile(rf"(?:^|_)(?P<n>\d+|{'|'.join(WORDS)})_?(?:{RANKS}|x)(?=_|$)")
# A single "rank 5" is one of them, or the fifth guess of a classifier.
AFTER = re.compile(
    rf"(?:^|_)(?:(?!rank_?\d)(?:{RANKS})|nprocs?|np|n|x(?!_?10_\d)|ws|world_?size)_?(?P<n>\d+)"
    r"(?=_|$)(?!_(?:bins?|bits?|[gm]i?b|[gm]?hz|w|watts?)(?:_|$))"
)
BATCH = re.compile(
    r"(?:^|_)(?:(?:max_)?(?:batch(?:_?size)?|bsz?)_?|b_?(?=\d\d))(?P<n>\d{1,9})(?=_|$)"
)
BATCHES = {"batch", "global_batch_size", "micro_batch_size"}
NO_RANKS = set(NUMERIC) - {"world_size", "nodes"}
HINTS = (
    re.compile(r"(?:^|[_\W])(\d+)\s*x\s*(?:[a-z]+\s*)?[a-z]*\d", re.IGNORECASE),
    re.compile(r"(\d+)\s*(?:x\s+)?(?:gpus?|processes|ranks|procs|workers)\b", re.IGNORECASE),
)
NUMBERED = re.compile(r"(?:^|_)(?:seed|run|trial|repeat|fold|attempt)s?(?=_|$)")  # not ranks
OVER_ONE = re.compile(  # of "speedup vs 1 thread"
    r"(?:^|_)(?:vs|versus|over|than|relative_to|compared_to)_(?:\d+|one|a|single)_?[a-z]"
)
SYMBOL = re.compile(r"[^\W\d_a-zA-Z]")  # β1 names no ranks, 8 in another script may
OF_A_RUN = re.compile(r"(?:^|_)(?:epochs?|steps?|iter(?:ation)?s?|loss)(?=_|$)")
MAX_RANKS = 1_000_000
OF_PROBLEMS = 100  # N=100, N=200, ... are sizes of problems, as few measure no fewer ranks
INDEXED = re.compile(r"(?P<what>rank|gpu|device|worker|proc(?:ess)?)_?(?P<n>\d{1,6})(?=_|$)")
NOTED_RATE = re.compile(rf"throughput|({THINGS})\s*(/|per|a)\s*(s|sec|seconds?)\b", re.IGNORECASE)
NOTED_PER_RANK = re.compile(
    rf"\bTGS\b|({THINGS})\b[^.,;|]{{0,20}}(/|\bper)\s*({RANK})\b", re.IGNORECASE
)
NOTED_TIME = re.compile(rf"\b({CLOCKED})s?\b", re.IGNORECASE)
NAMED = 4  # columns in a sentence
MOST_NAMES = 20  # columns whose words are looked at
GROWN = 0.5  # of the ranks' own growth: a rate grows like this, a time does not
MOST_LABELS = 50  # different cells that are looked at
AGAIN = re.compile(r"(?P<name>.+) \(\d+\)")  # a column of the name of an earlier one


class Spread(NamedTuple):
    """A column of a wide table: its world size (NaN if not named), its content, its setting."""

    column: str
    world_size: float
    canonical: str
    factor: float | None
    setting: str = ""


def named_ranks(column: str) -> float:
    """The number of ranks in a column's name, such as "8 GPUs" or "ranks=8"; NaN without one."""
    text = normal(column)
    match = BEFORE.search(text) or AFTER.search(text)
    if match is None or INDEXED.search(text):
        return ranks_of(column)[0]
    return float(WORDS.get(match["n"]) or match["n"][:9])


def hinted_ranks(name: str, notes: Sequence[str]) -> tuple[int, str] | None:
    """A number of ranks given in the file's name or its notes, and which of the two gives it."""
    for text, where in [(name, "the name of the table"), *((note, "its notes") for note in notes)]:
        match = next((match for hint in HINTS if (match := hint.search(text))), None)
        if match and 1 < int(match[1][:7]) <= MAX_RANKS:
            return int(match[1]), where
    return None


def noted_quantity(name: str, notes: Sequence[str]) -> str:
    """What unnamed numbers are: times if the notes mention one, else rates if they do, else ""."""
    texts = in_english(" ".join([name, *notes]))
    rest = NOTED_RATE.sub("", texts)
    if NOTED_TIME.search(rest):
        return "time"
    rated = "rate_per_rank" if NOTED_PER_RANK.search(texts) else "rate"
    return rated if rest != texts else ""


def turned(frame: pd.DataFrame, mapped: Collection[str]) -> tuple[pd.DataFrame, list[str]]:
    """Transpose a table with a row for each quantity and a column for each number of ranks; leave
    other tables as they are."""
    first, *others = frame.columns
    names = frame[first].astype(str)
    sizes = [_whole(column) for column in others]
    if not all(sizes):  # below "Throughput on 8 GPUs", but not below "Core 0"
        rest = [column.removeprefix(shared_words(others)) for column in others]
        sizes = ["" if name.isdecimal() else _whole(name) for name in rest]
    if mapped or len(others) < 2 or not all(sizes) or names.duplicated().any():
        return frame, []
    if are_collectives(names) and not all(are_timed(frame[name]) for name in others):
        return frame, []  # whose bandwidths these may be
    meanings = [meaning.canonical for name in names if (meaning := guess(name))]
    named = not all(map(str.isdecimal, sizes))
    several = named and len(set(meanings) & {*MEASURED, "loss", "accuracy"}) > 1
    most = 2 * len(meanings) >= len(names) and set(meanings) <= set(NUMERIC)
    most = most and not (named and len(set(meanings)) < len(meanings))  # a row for each model
    if first in set(names) or not meanings or not (most or several):
        return frame, []
    meaning = guess(first)
    ranks = first if meaning and meaning.canonical in {"world_size", "nodes"} else "world_size"
    sideways = frame.drop(columns=first).T.reset_index(drop=True)
    sideways.columns = pd.Index(names)
    sideways = sideways[[name for name in names if guess(name)]]  # no others are settings
    sideways.insert(0, ranks, sizes)
    return sideways, [f"each row is read as a quantity, and the columns as the {ranks}"]


def shared_words(names: Sequence[str]) -> str:
    """The words that all names begin with, such as "Throughput on " of numbers of GPUs."""
    words = [name.split(" ") for name in names]
    shared = itertools.takewhile(lambda several: len(set(several)) == 1, zip(*words, strict=False))
    return "".join(f"{word} " for word, *_ in shared)


def _whole(column: str) -> str:
    """A column's name if all of it denotes ranks, such as "8 GPUs" or "8x A100"; else ""."""
    name = normal(column)  # of a problem's size, such as N=1000, more digits
    if size := re.fullmatch(rf"(?:np?|p)_(\d{{1,3}})|(\d{{1,7}})(?:_?(?:{RANKS}))?", name):
        return size[1] or size[2]
    return column if ranks_of(column)[0] > 0 else ""


def by_rank(frame: pd.DataFrame, mapped: Collection[str]) -> tuple[pd.DataFrame, list[str]]:
    """Turn a table with a time column per rank into a long one with a column `rank`, in which any
    other time covers all ranks; leave other tables as they are."""
    matches = {
        column: match
        for column in frame.columns
        if (match := INDEXED.match(normal(column))) and column not in mapped
    }
    indices = sorted(int(match["n"]) for match in matches.values())
    named = all(match["what"] == "rank" for match in matches.values())
    first = int(named and indices[:1] == [1])  # what is called rank may be numbered from 1
    if len(indices) < 2 or indices != list(range(first, first + len(indices))):
        return frame, []
    others = [column for column in frame.columns if column not in matches]
    whole = next((name for name in others if (guess(name) or Guess("", 1)).canonical == "time"), "")
    parts = [frame.assign(rank="all")[[*others, "rank"]]] if whole else []
    for column, match in matches.items():
        times = in_seconds(frame[column], _without(match))
        part = frame[others].assign(rank=match["n"], **{whole or "time_s": times})
        parts.append(part[times.notna()])
    assumption = f"the ranks are read from the column names {listed(matches)}"
    return pd.concat(parts, ignore_index=True), [assumption]


def in_seconds(times: pd.Series, name: str) -> pd.Series:
    """Times as texts with their unit, if they have none by that in a column's name; None where
    unknown."""
    known = numbers(times, units=TIME_UNITS, factor=parse_name(name).factor)
    return known.map("{:.15e} s".format).where(known.notna(), None)


def by_batch(frame: pd.DataFrame, mapped: Collection[str]) -> tuple[pd.DataFrame, list[str]]:
    """Turn a table with columns for several batches into a long one with a column `batch size`, and
    state what that assumes; leave other tables as they are. `mapped` columns stay."""
    matches = {
        column: match
        for column in frame.columns
        if (match := BATCH.search(normal(column))) and column not in mapped
    }
    others = [column for column in frame.columns if column not in matches]
    numbered = any(re.match(r"b_?\d(?!\d)", normal(column)) for column in others)  # B0 and B10
    sizes = {match["n"] for match in matches.values()}
    if len(sizes) < 2 or quantities(others) & BATCHES or numbered:
        return frame, []
    parts: dict[int, dict[str, str]] = {}
    for column, match in matches.items():
        part, name = parts.setdefault(int(match["n"]), {}), _without(match)
        if not name or name in TIME_UNITS:
            name = f"time_{name}".strip("_")
        if name in {*others, *part}:
            return frame, []  # two columns would become one
        part[name] = column
    assumption = f"the batches are read from the column names {listed(matches)}"
    return stacked(frame, parts, "batch size"), [assumption]


def stacked(
    frame: pd.DataFrame, parts: Mapping[Any, Mapping[str, str]], index: str
) -> pd.DataFrame:
    """The rows once for each of the parts, which are columns by their new names: a column `index`
    holds its key, and columns of no part stay in all."""
    rest = frame.drop(columns=[column for part in parts.values() for column in part.values()])
    long = [
        rest.assign(**{index: key}, **{name: frame[column] for name, column in part.items()})
        for key, part in parts.items()
    ]
    return pd.concat(long, ignore_index=True)


MEASURED = {"rate", "rate_per_rank", "time", "speedup", "efficiency", "mfu", "hfu"}
UNIT_OF_RATE = re.compile(r"\d\s*(?:[kmgt](?=\s|i?b))?\s*((?:[a-z]+/s\w*|%|[tp]flops?)(?=\W|$))")
TIMES_X = re.compile(r"\d\s*[x×]\W*$", re.IGNORECASE)
RATED = re.compile(rf"\d\s*[km]?\s*(?:{THINGS})\s*(?:/|per)\s*(?:{SECOND})\b", re.IGNORECASE)
BY_CELLS = (
    ("rate", RATED),
    ("time", re.compile(r"\d\s*(?:ms|s|sec|seconds|min|minutes|h|hrs?|hours)\b", re.IGNORECASE)),
)


def is_known(cell: object) -> bool:
    """Whether a cell holds anything."""
    return cell is not None and cell == cell and str(cell).strip() not in {"", "-"}


def _first_texts(cells: pd.Series) -> list[str]:
    """The first different cells as text; those of a Parquet file may also be lists."""
    return [str(text) for text in cells.dropna().astype(str).unique()[:MOST_LABELS]]


def by_world_size(
    frame: pd.DataFrame,
    hint: tuple[int, str] | None,
    mapped: Collection[str],
    quantity: str = "",
) -> tuple[pd.DataFrame, list[str]]:
    """Turn a table with columns for several world sizes into a long one with columns `world_size`,
    `setting` and quantities in base units, and state what that assumes; leave other tables as is.

    Columns that name no quantity hold `quantity`; if that is "", what their rows or values suggest.
    """
    alone, assumptions = _without_ratios(frame)
    spreads = _spreads(alone, [name for name in alone.columns if name not in mapped], quantity)
    sizes = [spread.world_size for spread in spreads if not math.isnan(spread.world_size)]
    if len(set(sizes)) < 2 and (not sizes or len(spreads) < 2):
        return frame, []
    bare_n = all(re.fullmatch(r"n_?\d+", normal(spread.column)) for spread in spreads)
    if bare_n and min(sizes) >= OF_PROBLEMS:
        return frame, []
    frame = alone
    names = listed(spread.column for spread in spreads)
    assumption = f"the world sizes are read from the column names {names}"
    if len(spreads) > len(sizes):
        assumption += f"; {hint[0]} ranks by {hint[1]}" if hint else ", but not all name one"
    bare = [one.column for one in spreads if one.factor is None and one.canonical in TIMES]
    if not all(are_timed(frame[column]) for column in bare):
        assumption += "; no unit is named"
    rest = frame.drop(columns=[spread.column for spread in spreads])
    ratios = [name for name in map(str, rest) if _quantity(name) in {"speedup", "efficiency"}]
    parts: dict[tuple[float, str], pd.DataFrame] = {}
    for column, size, canonical, factor, setting in spreads:
        size = float(hint[0]) if hint and math.isnan(size) else size
        new = rest.assign(world_size=size, setting=setting)
        if sizes and size < max(sizes):  # a ratio beside several sizes is that of the most ranks
            new = new.assign(**dict.fromkeys(ratios))
        timed = canonical in TIMES and (factor is not None or are_timed(frame[column]))
        units = TIME_UNITS if timed else COUNT_UNITS
        part = parts.setdefault((size, setting), new)
        values = numbers(frame[column], units=units, factor=1.0 if factor is None else factor)
        part[f"{canonical}_s" if timed else canonical] = values
    long = pd.concat(parts.values(), ignore_index=True)
    long = long if long["setting"].any() else long.drop(columns="setting")
    return long, [assumption, *assumptions]


def _without_ratios(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The table without rows such as "speedup", which compare the configurations above them, if
    its columns say of what they are the number."""
    bare = any(normal(str(column)).isdecimal() for column in frame.columns)
    labels = frame[frame.columns[0]].astype(str)
    ratios = labels.map(_quantity).isin({"speedup", "efficiency"})
    if (
        bare
        or not ratios.any()
        or labels[~ratios].map(_quantity).any()
        or ratios.sum() >= len(frame) - 1
    ):
        return frame, []
    return frame[~ratios], [f"{listed(labels[ratios])} compares other rows and is left out"]


def _spreads(frame: pd.DataFrame, columns: Sequence[str], quantity: str) -> list[Spread]:
    """The columns for world sizes, with what they hold; none where other rows or columns show that
    they are something else."""
    first = frame[columns[0]] if columns else pd.Series(dtype=str)
    texts = [name for name in columns[:MOST_NAMES] if not _spread(name, "", bare=True)]
    # Words after the sizes are remarks.
    sized = [place for place, name in enumerate(columns) if name not in texts]
    labels = [name for name in texts if not sized or columns.index(name) < sized[0]]
    rows = [{_quantity(label) for label in _first_texts(frame[name])} for name in labels]
    of_rows = set().union(*(named - {""} for named in rows))
    mixed = len(of_rows) > 1 or any(len(named) > 1 for named in rows if named - {""})
    units = {unit for name in columns if name not in texts for unit in _units(frame[name])}
    collective = any(are_collectives(_first_texts(frame[name])) for name in texts)
    if mixed or of_rows - MEASURED or len(units) > 1 or (collective and units != {"time"}):
        return []  # a row for each quantity, for losses, or bandwidths
    quantity = "".join(of_rows) or quantity
    values = [name for name in columns if name not in texts]
    numbered = [match["n"] for name in columns if (match := AFTER.search(normal(name)))]
    if "0" in numbered:
        return []  # Core 0 is one of them
    if values and all(are_timed(frame[name]) for name in values):
        quantity = "time"
    bare = not any(_numbers_other(column, first) for column in columns[:1])
    spreads = [spread for column in columns if (spread := _spread(column, quantity, bare=bare))]
    numerals = [spread.world_size for spread in spreads if normal(spread.column).isdecimal()]
    if any(size % min(numerals) for size in numerals):
        return []  # 40, 250 and 4000 are no ranks, unlike 2, 4 and 8
    return _with_quantity(spreads, frame)


def are_timed(cells: pd.Series) -> bool:
    """Whether cells are times with units of their own, such as 41 days 4 hours."""
    return _are(lambda text: math.isfinite(duration(text)), cells)


def by_cells(frame: pd.DataFrame, mapped: Collection[str]) -> tuple[pd.DataFrame, list[str]]:
    """Turn a table of ranks with several columns of times with units, named after what was timed,
    into a long one with a column `setting`; leave other tables as they are."""
    known = quantities(frame.columns)
    timed = [name for name in frame.columns if not guess(name) and are_timed(frame[name])]
    ranks = known & {"world_size", "threads"}
    if mapped or len(timed) < 2 or not ranks or known & {*TIMES, *MEASURED}:
        return frame, []
    long = stacked(frame, {name: {"time": name} for name in timed}, "setting")
    return long, [f"{listed(timed)} are read as times of what their names say"]


def by_group(frame: pd.DataFrame, mapped: Collection[str]) -> tuple[pd.DataFrame, list[str]]:
    """Turn a table with several columns of each of the same names, "img/s" and "img/s (2)", into a
    long one with a column `setting`, named by a first row of words; leave others as they are."""
    again = {column: match for column in frame.columns if (match := AGAIN.fullmatch(column))}
    names = {match["name"]: [match["name"]] for match in again.values()}
    for column, match in again.items():
        names[match["name"]].append(column)
    groups = list(zip(*names.values(), strict=False))
    here = set(names) <= set(frame.columns)
    even = here and len({len(columns) for columns in names.values()}) == 1
    measured = quantities(names) & {"rate", "time", "rate_per_rank"}
    if mapped or len(names) < 2 or not even or not measured:
        return frame, []
    labels = [set(frame.loc[0, list(group)]) for group in groups]
    worded = all(len(label) == 1 and re.match(r"[^\W\d]", str(*label)) for label in labels)
    parts = {
        (str(*label) if worded else str(n)): dict(zip(names, group, strict=True))
        for n, (label, group) in enumerate(zip(labels, groups, strict=True), start=1)
    }
    long = stacked(frame[int(worded) :], parts, "setting")
    return long, [f"{listed(names)} occur {len(groups)} times, each time for another setting"]


def _with_quantity(spreads: Sequence[Spread], frame: pd.DataFrame) -> list[Spread]:
    """Unnamed numbers as rates if they grow with the ranks, else as times."""
    unnamed = [spread for spread in spreads if not spread.canonical and spread.world_size > 0]
    values = {
        spread.world_size: numbers(frame[spread.column], units=COUNT_UNITS) for spread in unnamed
    }
    quantity = "time"
    if len(values) > 1:
        least, most = min(values), max(values)
        ideal = values[least] * (most / least - 1)
        grown = (values[most] - values[least]) / ideal
        among = grown.max() > GROWN and grown.min() > 0  # no time grows that much
        quantity = "rate" if grown.median() > GROWN or among else "time"
    if any(_are(RATED.search, frame[spread.column]) for spread in unnamed):
        quantity = "rate"
    elif all(_are(TIMES_X.search, frame[spread.column]) for spread in unnamed):
        quantity = "speedup"
    return [spread._replace(canonical=spread.canonical or quantity) for spread in spreads]


def _units(cells: pd.Series) -> set[str]:
    """The units of rates and shares in cells, "time" for those of times."""
    units = {"time" if are_timed(cells) else ""}
    for text in map(str.lower, _first_texts(cells)):
        if unit := UNIT_OF_RATE.search(text):
            units.add(unit[1])
    return units - {""}


def _are(such: Callable[[str], object], cells: pd.Series) -> bool:
    """Whether all cells are such texts, as those with a unit of their own like 12.4k tok/s."""
    texts = [text for text in _first_texts(cells) if is_known(text) and text.lower() not in MISSING]
    return bool(texts) and all(map(such, texts))


def _quantity(name: object) -> str:
    """The numeric quantity that a column or row is named after, or ""."""
    meaning = guess(str(name))
    canonical = meaning.canonical if meaning and meaning.canonical in NUMERIC else ""
    return "time" if canonical in TIMES else canonical


def _numbers_other(column: str, cells: pd.Series) -> bool:
    """Whether bare numbers beside a column are not ranks: epochs beside "Loss (model/epoch)", and
    batches beside "Batch size", unless its own cells are the batches."""
    meaning = guess(column)
    other = meaning is not None and meaning.canonical in NO_RANKS
    own = numbers(cells).notna().all()
    return bool(OF_A_RUN.search(normal(column))) or (other and not own)


def listed(columns: Iterable[str]) -> str:
    """The first of some columns, for a sentence."""
    return ", ".join(repr(column) for column in list(columns)[:NAMED])


def _without(match: re.Match[str]) -> str:
    """A column's name without the matched part."""
    before, after = match.string[: match.start()], match.string[match.end() :]
    return f"{before}_{after.strip('_')}".strip("_")


def _spread(column: str, quantity: str, *, bare: bool) -> Spread | None:
    """A column of a wide table; None for others, and for a bare number unless those are ranks."""
    text = normal(column)
    if NUMBERED.search(text) or OVER_ONE.search(text) or re.search(IDEAL, text):
        return None
    ranks, what = ranks_of(column)
    if ranks > 0 and "precision" not in dict(setting_of(what).words):
        return Spread(column, ranks, quantity, None, normal(what))
    match = BEFORE.search(text) or AFTER.search(text)
    if match is None:
        short = re.fullmatch(r"(?:t_?)?(\d{1,7})", text)
        if short and not SYMBOL.match(column) and (bare or not text.isdecimal()):
            size = float(short[1][:9])
            return Spread(column, size, quantity, None) if size else None
        name = parse_name(column)
        if name.family == "time" and re.search(rf"(?:^|_)(?:{PARALLEL})(?=_|$)", name.stem):
            return Spread(column, math.nan, "time", name.factor, name.stem)
        return None
    size = float(WORDS.get(match["n"]) or match["n"][:9])
    rest = _without(match)
    meaning = guess(rest)
    rated = meaning is not None and meaning.canonical in MEASURED  # "img/s", but not "per node"
    if not size or (not rated and re.search(r"(?:^|_)per(?=_|$)|batch", rest)):
        return None
    if meaning and meaning.canonical in NO_RANKS:
        return Spread(column, size, meaning.canonical, meaning.factor)
    name = parse_name(rest)
    factor = name.factor if name.family == "time" else None
    return Spread(column, size, quantity if factor is None else "time", factor, name.stem)
