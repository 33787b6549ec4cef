"""Wide tables in long form: columns such as `time_1gpu`, `ddp_s` or `time_b64` become rows."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import pandas as pd

from lab.analysis.audit.columns import (
    BRACKETED,
    CLOCKED,
    IDEAL,
    MEASURED,
    NOT_TRAINING,
    NUMERIC,
    OF_SAMPLES,
    PARALLEL,
    PERCENTILE,
    PROBLEM,
    RATIOS,
    SECOND,
    SYMBOLS,
    THINGS,
    TIMES,
    WORDS,
    guess,
    normal,
    parse_name,
    quantities,
    setting_of,
)
from lab.analysis.audit.languages import in_english
from lab.analysis.audit.values import (
    BRACKETS,
    COUNT_UNITS,
    EMPTY,
    MISSING,
    NODE,
    RANK,
    RANKS,
    TIME_UNITS,
    duration,
    numbers,
    ranks_of,
)
from lab.records.table import grouped

COLLECTIVE = re.compile(
    r"all[-_ ]?(?:reduce|gather|to)|reduce[-_ ]?scatter|collective|[nr]ccl", re.IGNORECASE
)
COUNTED = rf"{RANKS}|cores?|threads?|nodes?"
BEFORE = re.compile(
    rf"(?:^|_)(?P<n>\d+|{'|'.join(WORDS)})(?:_?(?:{COUNTED}|x)(?=_|$)|(?<=\d)n(?=_))"
)
# A single "rank 5" is one of them, or the fifth guess of a classifier, and p99 is a percentile.
AFTER = re.compile(
    rf"(?:^|_)(?:(?!rank_?\d)(?:{COUNTED})|nprocs?|np|n|p(?=_(?!50|75|9\d))|x(?!_?10_\d)|ws"
    r"|world_?size|tp(?!_?(?:50|9\d)))_?(?P<n>\d+)"
    r"(?=_|$)(?!_(?:bins?|bits?|[gm]i?b|[gm]?hz|w|watts?)(?:_|$))"
)
OF_PROCESSES = re.compile(r"(?<=parallel_)(\d{1,5})p$")
OF_EACH = re.compile(r"\([^()]*\d [^\W\d]+ (?:per|par|por|pro) [^()]*\)")  # (200 cells per rank)
OF_DEGREE = re.compile(r"(?:^|_)tp_?\d")  # of tensor parallelism
OF_ERRORS = re.compile(r"(?:^|_)errors?(?=_|$)")  # of a method of order p
OF_NODES = re.compile(rf"(?:^|_)(?:\d+|{'|'.join(WORDS)})_?(?:n|{NODE}s?)(?=_|$)(?!_x_|_\d)")
NO_RANKS = set(NUMERIC) - {"world_size", "nodes"}
HINTS = (
    re.compile(r"(?:^|[_\W])(\d+)\s*x\s*(?:[a-z]+\s*)?[a-z]*\d", re.IGNORECASE),
    re.compile(rf"(\d+)\s*(?:x\s+)?(?:{RANKS})\b", re.IGNORECASE),
)
COUNTS = re.compile(r"(?:.*_)?(?:loops|rounds|calls|messages|msgs|hops|errors|failures)")
NUMBERED = re.compile(r"(?:^|_)(?:seed|run|trial|repeat|fold|attempt)s?(?=_|$)")  # not ranks
OVER_ONE = re.compile(  # of "speedup vs 1 thread"
    r"(?:^|_)(?:vs|versus|over|than|relative_to|compared_to)_(?:\d+|one|a|single)_?[a-z]"
)
FOREIGN = re.compile(r"[^\W\d_a-zA-Z]")  # β1 names no ranks, 8 in another script may
SYMBOLIC = re.compile(r"([tse])_\d+")  # of "4 Threads S(4)"
SERIAL = re.compile(r"(?:seq(?:uential)?|serial|single)(?=_|$)")
OF_SIZE = re.compile(
    r"(?P<what>[a-z_]*[a-z])_?(?P<n>\d{1,7})|(?P<size>\d{1,7})_?(?P<of>[a-z][a-z_]*)"
)
JOBS = r"(?:slurm_)?jobs?(?:_?(?:id|number|no))?"  # of a table on its side, which say nothing
OF_A_RUN = re.compile(r"(?:^|_)(?:epochs?|steps?|iter(?:ation)?s?|loss)(?=_|$)")
MAX_RANKS = 1_000_000
OF_PROBLEMS = 100  # N=100, N=200, ... are sizes of problems, as few measure no fewer ranks
INDEXED = re.compile(  # of "Rank 0 (ms)" and "Time process 0 (s)"
    rf"(?:(?:time|temps)_)?(?P<what>{RANK}|processes)_?(?P<n>\d{{1,6}})(?=_|$)"
)
NOTED_RATE = re.compile(
    rf"throughput|({THINGS})\s*(?:[a-z]+ )?(/|per|a)\s*(s|sec|seconds?)\b", re.IGNORECASE
)
NOTED_PER_RANK = re.compile(
    rf"\bTGS\b|({THINGS})\b[^.,;|]{{0,20}}(/|\bper)\s*({RANK})\b", re.IGNORECASE
)
NOTED_TIME = re.compile(rf"(?:\b(?P<of>\w+) )?\b(?:{CLOCKED})s?\b", re.IGNORECASE)
NOTED_SPEEDUP = re.compile(r"speed[- ]?ups?\b", re.IGNORECASE)
OF_ELSE = re.compile(
    r"memory|[kmgt]i?b\b|accura|loss|perplexity|efficien|utili[sz]|watt|energy|%", re.IGNORECASE
)
REMARK = re.compile(r"\s*\(([^()]*[^\W\d][^()]*)\)\s*$")  # of words, at the end of a name
OF_RUNS = MEASURED | {"mfu", "hfu"}
UNIT_OF_RATE = re.compile(r"\d\s*(?:[kmgt](?=\s|i?b))?\s*((?:[a-z]+/s\w*|%|[tp]flops?)(?=\W|$))")
RATIO_CELL = re.compile(r"\W*\d[\d.,]*\s*[x×](?!\s*\w)", re.IGNORECASE)
# Of anything that is not moved, computed or a step: 12.4k tok/s, 320 inf/s.
RATED = re.compile(
    rf"\d\s*[km]?\s*(?:{THINGS}|(?![kmgt]?i?b|[kmgtp]?flop|[kmgt]?lups|steps?\b|iter|batch|epoch)"
    rf"[a-z]{{3,}})\s*(?:/|per)\s*(?:{SECOND})\b|\d\s*(?:ns\s?/\s?day|s[yd]pd)\b",
    re.IGNORECASE,
)
Cells = Mapping[str, Iterable[object]] | pd.DataFrame  # of columns by their names
NAMED = 4  # columns in a sentence
MOST_NAMES = 20  # columns whose words are looked at
GROWN = 0.5  # of the ranks' own growth: a rate grows like this, a time does not
MOST_LABELS = 50  # different cells that are looked at


class RankColumn(NamedTuple):
    """A column of a wide table: its world size (NaN if not named), its content, its setting."""

    column: str
    world_size: float
    canonical: str
    factor: float | None
    setting: str = ""


def ranks_in(column: str) -> tuple[float, str]:
    """The number of ranks in a column's name, such as "8 GPUs" or "ranks=8", and the rest of it in
    snake case; NaN without one."""
    ranks, what = ranks_of(column)
    if ranks > 0 and "precision" not in dict(setting_of(what).words):
        return ranks, normal(what)
    text = OF_PROCESSES.sub(r"\1_processes", normal(OF_EACH.sub("", column)))
    if match := BEFORE.search(text) or AFTER.search(text):
        return float(WORDS.get(match["n"]) or match["n"][:9]), without(match)
    return math.nan, text


def hinted_ranks(name: str, notes: Sequence[str]) -> tuple[int, str] | None:
    """A number of ranks given in the file's name or its notes, and which of the two gives it."""
    for text, where in [(name, "the name of the table"), *((note, "its notes") for note in notes)]:
        match = next((match for hint in HINTS if (match := hint.search(text))), None)
        if match and 1 < int(match[1][:7]) <= MAX_RANKS:
            return int(match[1]), where
    return None


def noted_quantity(around: str) -> str:
    """What unnamed numbers are: times if the lines around the table mention one, else rates if they
    do, else ""."""
    texts = in_english(around)
    rest = NOTED_RATE.sub("", texts)
    if timed := NOTED_TIME.search(rest):
        of_part = guess(f"{timed['of']} time") if timed["of"] else None
        return of_part.canonical if of_part and of_part.canonical in TIMES else "time"
    rated = "rate_per_rank" if NOTED_PER_RANK.search(texts) else "rate"
    return rated if rest != texts else ""


def noted_alone(around: str) -> str:
    """The same for a time, a rate or a speedup, if the lines around the table name no other."""
    if OF_ELSE.search(around):
        return ""
    quantity = noted_quantity(around)
    return {"": "speedup"}.get(quantity, "") if NOTED_SPEEDUP.search(around) else quantity


def turned(frame: pd.DataFrame, mapped: Collection[str]) -> tuple[pd.DataFrame, list[str]]:
    """Transpose a table with a row for each quantity and a column for each number of ranks; leave
    other tables as they are."""
    first, *others = frame.columns
    sizes = [_whole(column) for column in others]
    if not all(sizes):  # below "Throughput on 8 GPUs", but not below "Core 0"
        words = _shared_words(others)
        rest = [column.removeprefix(words) for column in others]
        sizes = ["" if name.isdecimal() else _whole(name) for name in rest]
    if mapped or len(others) < 2 or not all(sizes) or _counts_other(first):
        return frame, []
    names = frame[first].astype(str)
    names = names[[not re.fullmatch(JOBS, normal(name)) for name in names]]
    if names.duplicated().any():
        return frame, []
    if are_collectives(names) and not all(are_timed(frame[name]) for name in others):
        return frame, []  # whose bandwidths these may be
    meanings = [meaning.canonical for name in names if (meaning := guess(name))]
    named = not all(map(str.isdecimal, sizes))
    several = named and len(set(meanings) & {*OF_RUNS, "loss", "accuracy"}) > 1
    most = 2 * len(meanings) >= len(names) and set(meanings) <= set(NUMERIC)
    most = most and not (named and len(set(meanings)) < len(meanings))  # a row for each model
    if first in set(names) or not meanings or not (most or several):
        return frame, []
    meaning = guess(first)
    ranks = first if meaning and meaning.canonical in {"world_size", "nodes"} else "world_size"
    sideways = frame.loc[names.index].drop(columns=first).T.reset_index(drop=True)
    sideways.columns = pd.Index(names)
    sideways = sideways[[name for name in names if guess(name)]]  # no others are settings
    sideways.insert(0, ranks, sizes)
    plain = [REMARK.sub("", size) for size in sizes]
    if len(set(plain)) < len(plain) == len(set(sizes)):  # "4 GPU (naive)" beside "4 GPU (ours)"
        kinds = [(REMARK.findall(size) or [""])[0] for size in sizes]
        sideways = sideways.assign(**{ranks: plain}, strategy=kinds)
    return sideways, [f"each row is read as a quantity, and the columns as the {ranks}"]


def _shared_words(names: Sequence[str]) -> str:
    """The words that all names begin with, such as "Throughput on " of numbers of GPUs."""
    words = [name.split(" ") for name in names]
    shared = itertools.takewhile(lambda several: len(set(several)) == 1, zip(*words, strict=False))
    return "".join(f"{word} " for word, *_ in shared)


def _whole(column: str) -> str:
    """A column's name if all of it denotes ranks, such as "8 GPUs" or "8x A100"; else ""."""
    name = normal(column)  # of a problem's size, such as N=1000, more digits
    if size := re.fullmatch(rf"(?:np?|p)_(\d{{1,3}})|(\d{{1,7}})(?:_?(?:{COUNTED}))?", name):
        return size[1] or size[2]
    return column if ranks_of(column)[0] > 0 else ""


def is_known(cell: object) -> bool:
    """Whether a cell holds anything."""
    return str(cell).strip().lower() not in EMPTY


def _first_texts(cells: Iterable[object]) -> list[str]:
    """The first different cells as text; those of a Parquet file may also be lists."""
    texts = dict.fromkeys(map(str, cells))
    return [*filter(is_known, texts)][:MOST_LABELS]


def by_world_size(
    frame: pd.DataFrame,
    hint: tuple[int, str] | None,
    mapped: Collection[str],
    quantity: str,
) -> tuple[pd.DataFrame, list[str]]:
    """Turn a table with columns for several world sizes into a long one with columns `world_size`,
    `setting` and quantities in base units, and state what that assumes; leave other tables as is.

    Columns that name no quantity hold `quantity`; if that is "", what their rows or values suggest.
    """
    alone, assumptions = _without_ratios(frame)
    ranked = _rank_columns(alone, [name for name in alone.columns if name not in mapped], quantity)
    sizes = [one.world_size for one in ranked if not math.isnan(one.world_size)]
    if len(set(sizes)) < 2 and (not sizes or len(ranked) < 2):
        return frame, []
    of_n = all(re.search(r"(?:^|_)n_?\d+$", normal(one.column)) for one in ranked)
    if of_n and min(sizes) >= OF_PROBLEMS:
        return frame, []
    frame = alone
    names = listed(one.column for one in ranked)
    assumption = f"the world sizes are read from the column names {names}"
    if len(ranked) > len(sizes):
        assumption += f"; {hint[0]} ranks by {hint[1]}" if hint else ", but not all name one"
    bare = [one.column for one in ranked if one.factor is None and one.canonical in TIMES]
    if not all(are_timed(frame[column]) for column in bare):
        assumption += "; no unit is named"
    rest = frame.drop(columns=[one.column for one in ranked])
    quoted = RATIOS & {one.canonical for one in ranked}
    rest = rest[[name for name in rest if _quantity(name) not in quoted]]  # which repeat one
    ratios = [name for name in map(str, rest) if _quantity(name) in RATIOS]
    of_nodes = all(OF_NODES.search(normal(one.column)) for one in ranked)
    counted = "nodes" if of_nodes else "world_size"
    ranked = _with_remarks(ranked)
    settings = {one.setting: _settings(one.setting, rest) for one in ranked}
    blank = dict.fromkeys([name for words in settings.values() for name in words], "")
    parts: dict[tuple[float, str], pd.DataFrame] = {}
    for column, size, canonical, factor, setting in ranked:
        size = float(hint[0]) if hint and math.isnan(size) else size
        new = rest.assign(**{counted: size}, **blank | settings[setting])
        if sizes and size < max(sizes):  # a ratio beside several sizes is that of the most ranks
            new = new.assign(**dict.fromkeys(ratios))
        timed = canonical in TIMES and (factor is not None or are_timed(frame[column]))
        units = TIME_UNITS if timed else COUNT_UNITS
        part = parts.setdefault((size, setting), new)
        values = numbers(frame[column], units=units, factor=1.0 if factor is None else factor)
        # As text, a number tells how precise it is.
        as_it_is = factor is None or factor == 1
        part[f"{canonical}_s" if timed else canonical] = frame[column] if as_it_is else values
    return pd.concat(parts.values(), ignore_index=True), [assumption, *assumptions]


def _with_remarks(ranked: Sequence[RankColumn]) -> list[RankColumn]:
    """Columns that are for the same but for a remark, such as "1 GPU" and "1 GPU (PyTorch)", with
    the remark in their setting."""
    same = Counter((one.world_size, one.canonical, one.setting) for one in ranked)
    return [
        one._replace(setting=f"{one.setting} {remark[1].lower()}".strip())
        if same[one.world_size, one.canonical, one.setting] > 1
        and (remark := REMARK.search(one.column))
        else one
        for one in ranked
    ]


def _settings(text: str, others: pd.DataFrame) -> dict[str, str]:
    """The setting of a column as cells of new columns: one of its hardware, framework or precision,
    which differ on one rank too, unless the table has one, and else a `setting`."""
    base, words = setting_of(text)
    # Rows of one line may differ in a `gpu`, for the audit to tell, but not in the `hardware`.
    kinds = {kind if kind != "gpu" else "hardware": word for kind, word in words}
    taken = quantities(kinds) & quantities(others.columns)
    if not text or base or len(kinds) < len(words) or "strategy" in kinds or taken:
        return {"setting": text} if text else {}
    return kinds


def _without_ratios(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The table without rows such as "speedup", which compare the configurations above them, if
    its columns say of what they are the number."""
    bare = any(normal(str(column)).isdecimal() for column in frame.columns)
    labels = frame[frame.columns[0]].astype(str)
    ratios = labels.map(_quantity).isin(RATIOS)
    if (
        bare
        or not ratios.any()
        or labels[~ratios].map(_quantity).any()
        or ratios.sum() >= len(frame) - 1
    ):
        return frame, []
    return frame[~ratios], [f"{listed(labels[ratios])} compares other rows and is left out"]


def _rank_columns(frame: pd.DataFrame, columns: Sequence[str], quantity: str) -> list[RankColumn]:
    """The columns for world sizes, with what they hold; none where other rows or columns show that
    they are something else."""
    sizes = [one for name in columns if (one := _rank_column(name, "", bare=True))]
    sized = {one.column for one in sizes}
    texts = [name for name in columns[:MOST_NAMES] if name not in sized]
    # Words after the sizes are remarks.
    labels = itertools.takewhile(lambda name: name not in sized, columns[:MOST_NAMES])
    rows = [{_quantity(label) for label in _first_texts(frame[name])} for name in labels]
    of_rows = set().union(*(named - {""} for named in rows))
    mixed = len(of_rows) > 1 or any(len(named) > 1 for named in rows if named - {""})
    measured = [one.column for one in sizes if one.canonical not in RATIOS]
    units = {unit for name in measured for unit in _units(frame[name])}
    timed = bool(measured) and all(are_timed(frame[name]) for name in measured)
    ratios = are_ratios(itertools.chain.from_iterable(frame[name] for name in measured))
    if timed:
        mixed, of_rows = False, set()  # times whose rows name what they are of
    first = frame[columns[0]] if columns else pd.Series(dtype=str)
    problems = any(PROBLEM.fullmatch(normal(BRACKETED.sub("", text))) for text in map(str, first))
    collective = any(are_collectives(_first_texts(frame[name])) for name in texts)
    if (
        mixed
        or problems
        or of_rows - OF_RUNS
        or len(units) > 1
        or (collective and units != {"time"})
    ):
        return []  # a row for each quantity, for losses, or bandwidths
    if any(OF_DEGREE.search(normal(one.column)) and not one.canonical for one in sizes):
        quantity = noted_alone(frame.attrs.get("around", ""))
        if not of_rows and not units and not quantity:
            return []  # memory, heads and widths are listed by this degree, too
    quantity = "time" if timed else "".join(of_rows) or ("speedup" if ratios else quantity)
    if units == {"%"} and not quantity:
        return []  # shares of something that nothing names
    bare = not any(_numbers_other(column, first) for column in columns[:1])
    ranked = [one for column in columns if (one := _rank_column(column, quantity, bare=bare))]
    serial = [parse_name(name) for name in texts if SERIAL.match(normal(name))]
    factors = {name.factor for name in serial if name.family == "time"}
    if len(factors) == 1 and not any(one.canonical for one in ranked):  # beside "Seq. (s)"
        ranked = [one._replace(canonical="time", factor=min(factors)) for one in ranked]
    if any((match := AFTER.search(normal(name))) and match["n"] == "0" for name in columns):
        return []  # Core 0 is one of them
    if _contradict_ranks(ranked, frame):
        return []
    ranked += _ratio_columns(columns, ranked)
    return _with_quantity([*ranked, *_serial_columns(texts, ranked)], frame)


def _contradict_ranks(ranked: Sequence[RankColumn], frame: pd.DataFrame) -> bool:
    """Whether names, or what was measured, show that these columns are not for numbers of ranks."""
    names = [normal(one.column) for one in ranked]
    numerals = [int(name) for name in names if name.isdecimal()]
    orders = all(re.match(r"p_?\d", name) for name in names)
    matches = (re.match(r"(?:time|t(?=_?\d+_))_?(\d{1,7})", name) for name in names)
    times = [int(match[1]) for match in matches if match]  # also of "T3 (s)"
    repeats = sorted(times) == list(range(1, len(times) + 1))
    return (
        bool(times and (repeats or min(times) >= OF_PROBLEMS))
        or any(size % min(numerals) for size in numerals)  # 40, 250 and 4000, unlike 2, 4 and 8
        or any((numbers(frame[one.column]) < 0).any() for one in ranked)  # no measurement
        or (orders and any(OF_ERRORS.search(one.setting) for one in ranked))
    )


def _ratio_columns(columns: Sequence[str], ranked: Sequence[RankColumn]) -> list[RankColumn]:
    """Columns such as "Speedup 4" beside those of as many ranks, of which they are ratios."""
    sizes = {one.world_size for one in ranked}
    named = {one.column for one in ranked}
    ratios = []
    for column in columns:
        match = None if column in named else OF_SIZE.fullmatch(normal(column))
        size = float(match["n"] or match["size"]) if match else math.nan
        meaning = guess(match["what"] or match["of"]) if match else None
        if size in sizes and meaning and meaning.canonical in RATIOS:
            ratios.append(RankColumn(column, size, meaning.canonical, meaning.factor))
    return ratios


def _serial_columns(columns: Sequence[str], ranked: Sequence[RankColumn]) -> list[RankColumn]:
    """Columns such as "Seq. time", beside those of several numbers of ranks, as those of one."""
    sizes = {one.world_size for one in ranked if one.world_size > 0}
    kinds = {one.canonical for one in ranked}
    if len(sizes) < 2 or 1 in sizes:
        return []
    serial = [(column, match) for column in columns if (match := SERIAL.match(normal(column)))]
    measured = {(one.canonical, one.factor) for one in ranked if one.canonical not in RATIOS}
    if len(measured) == 1 and (bare := [column for column, match in serial if not without(match)]):
        return [RankColumn(column, 1.0, *next(iter(measured))) for column in bare]
    ones = (_of_ranks(column, 1.0, without(match), "") for column, match in serial)
    named = "serial" if all(one.setting for one in ranked) else ""  # beside "parallel"
    return [
        one._replace(setting=named)
        for one in ones
        if one and one.canonical in kinds and not one.setting
    ]


def are_collectives(labels: Iterable[str]) -> bool:
    """Whether at least two labels are names of collectives, and not of their times."""
    named = [label for label in labels if COLLECTIVE.match(label)]
    return len(named) > 1 and not any("time" in label.lower() for label in named)


def are_timed(cells: Iterable[object]) -> bool:
    """Whether cells are times with units of their own, such as 41 days 4 hours."""
    return _are(lambda text: math.isfinite(duration(text)), cells)


def timed_statistics(columns: Cells) -> list[str]:
    """Columns called "min", "median" or "mean time" whose cells are times with units of their own,
    as BenchmarkTools has them; none if there is only one."""
    named = [str(name) for name in columns if normal(str(name)).removesuffix("_time") in OF_SAMPLES]
    timed = [name for name in named if are_timed(columns[name])]
    return timed if len(timed) > 1 else []


def timed_programs(columns: Cells) -> list[str]:
    """Columns that only the unit of time in names or cells shows to be times, such as "ScaLAPACK
    (s)"; none if there is only one."""
    timed = []
    for column in map(str, columns):
        name = parse_name(column)
        other = re.search(f"{NOT_TRAINING}|{IDEAL}|{PERCENTILE}", name.stem)
        if guess(column) or other:
            continue
        in_name = name.family == "time" and name.statistic is None
        if (in_name and re.search("[a-z]{2}", name.stem)) or are_timed(columns[column]):
            timed.append(column)
    return timed if len(timed) > 1 else []


def are_rated(cells: pd.Series) -> bool:
    """Whether cells are rates with units of their own, such as 12.4k tok/s."""
    return _are(RATED.search, cells)


def are_ratios(cells: Iterable[object]) -> bool:
    """Whether all numbers in cells are times something, such as 1.9x."""
    texts = [text for text in map(str, cells) if re.search(r"\d", text)]
    return bool(texts) and all(map(RATIO_CELL.match, texts))


def _with_quantity(ranked: Sequence[RankColumn], frame: pd.DataFrame) -> list[RankColumn]:
    """Unnamed numbers as rates if they grow with the ranks, else as times."""
    unnamed = [one for one in ranked if not one.canonical and one.world_size > 0]
    values = {one.world_size: numbers(frame[one.column], units=COUNT_UNITS) for one in unnamed}
    quantity = "time"
    if len(values) > 1:
        least, most = min(values), max(values)
        ideal = values[least] * (most / least - 1)
        grown = (values[most] - values[least]) / ideal
        among = grown.max() > GROWN and grown.min() > 0  # no time grows that much
        quantity = "rate" if grown.median() > GROWN or among else "time"
    if any(are_rated(frame[one.column]) for one in unnamed):
        quantity = "rate"
    return [one._replace(canonical=one.canonical or quantity) for one in ranked]


def _units(cells: pd.Series) -> set[str]:
    """The units of rates and shares in cells, "time" for those of times."""
    units = {"time" if are_timed(cells) else ""}
    for text in map(str.lower, _first_texts(cells)):
        if unit := UNIT_OF_RATE.search(BRACKETS.sub("", text)):  # of 400 img/s (97%)
            units.add(unit[1])
    return units - {""}


def _are(such: Callable[[str], object], cells: Iterable[object]) -> bool:
    """Whether all cells that hold anything are such texts."""
    texts = [text for text in _first_texts(cells) if text.lower() not in MISSING]
    return bool(texts) and all(map(such, texts))


def _quantity(name: object) -> str:
    """The numeric quantity that a column or row is named after, or ""."""
    meaning = guess(str(name))
    canonical = meaning.canonical if meaning and meaning.canonical in NUMERIC else ""
    return "time" if canonical in TIMES else canonical


def _counts_other(column: str) -> bool:
    """Whether a column's name is the number of something unknown, which is not ranks."""
    return normal(column).startswith("number_of_") and guess(column) is None


def _numbers_other(column: str, cells: pd.Series) -> bool:
    """Whether bare numbers beside a column are not ranks: epochs beside "Loss (model/epoch)", and
    batches beside "Batch size", unless its own cells are the batches."""
    meaning = guess(column)
    other = meaning is not None and meaning.canonical in NO_RANKS
    own = numbers(cells).notna().all()
    return bool(OF_A_RUN.search(normal(column))) or (other and not own) or _counts_other(column)


def growth(values: pd.Series, counts: pd.Series) -> float:
    """How much numbers grow from the fewest ranks to the most, as a share of the ranks' own growth:
    1 for an ideal rate, negative for what falls; NaN on one number of ranks."""
    pairs = zip(counts.tolist(), values.tolist(), strict=True)
    on_ranks = grouped((ranks, value) for ranks, value in pairs if ranks == ranks and value > 0)
    fewest, most = min(on_ranks, default=0), max(on_ranks, default=0)
    if not 0 < fewest < most:
        return math.nan
    gain: float = median(on_ranks[most]) / median(on_ranks[fewest])
    return (gain - 1) / (most / fewest - 1)


def listed(columns: Iterable[str]) -> str:
    """The first of some columns, for a sentence."""
    return ", ".join(repr(column) for column in list(columns)[:NAMED])


def without(match: re.Match[str]) -> str:
    """A column's name without the matched part."""
    before, after = match.string[: match.start()], match.string[match.end() :]
    return f"{before}_{after.strip('_')}".strip("_")


def _rank_column(column: str, quantity: str, *, bare: bool) -> RankColumn | None:
    """A column of a wide table; None for others, and for a bare number unless those are ranks."""
    text = normal(column)
    if NUMBERED.search(text) or OVER_ONE.search(text) or re.search(IDEAL, text):
        return None
    size, rest = ranks_in(column)
    named = BRACKETED.sub("", column)  # of "Speedup (8 GPUs)"
    if size > 0 and named != column and _quantity(named) in NO_RANKS:
        return _of_ranks(column, size, normal(named), quantity)
    name = parse_name(column)
    timed = name.family == "time"
    holds, factor = ("time", name.factor) if timed else (quantity, None)
    if ranks_of(column)[0] == size:
        return RankColumn(column, size, holds, factor, rest)  # "4 GPUs (ms)"
    if math.isnan(size):
        short = re.fullmatch(r"(?:(t(?:ime)?)_?)?(\d{1,7})", name.stem)
        of_ranks = short and (timed or name.family is None) and not FOREIGN.match(column)
        if short and of_ranks and (bare or not text.isdecimal()):
            holds, size = ("time" if short[1] == "time" else holds), float(short[2])
            return RankColumn(column, size, holds, factor) if 0 < size <= MAX_RANKS else None
        if timed and re.search(rf"(?:^|_)(?:{PARALLEL})(?=_|$)", name.stem):
            return RankColumn(column, math.nan, holds, factor, name.stem)
        return None
    return _of_ranks(column, size, rest, quantity)


def _of_ranks(column: str, size: float, rest: str, quantity: str) -> RankColumn | None:
    """A column for a number of ranks by the rest of its name; None if it holds something else."""
    if symbol := SYMBOLIC.fullmatch(rest):
        return RankColumn(column, size, SYMBOLS[symbol[1].upper()], None)
    if COUNTS.fullmatch(rest):
        return None
    meaning = guess(rest)
    rated = meaning is not None and meaning.canonical in OF_RUNS  # "img/s", but not "per node"
    if not size or (not rated and re.search(r"(?:^|_)per(?=_|$)|batch", rest)):
        return None
    if meaning and meaning.canonical in NO_RANKS:
        return RankColumn(column, size, meaning.canonical, meaning.factor)
    name = parse_name(rest)
    factor = name.factor if name.family == "time" else None
    return RankColumn(column, size, quantity if factor is None else "time", factor, name.stem)
