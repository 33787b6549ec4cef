"""Any results table as observations: columns are guessed by name, and assumptions listed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np
import pandas as pd

from lab.analysis.audit import columns, keys, ranks, reshape, wide
from lab.analysis.audit.columns import (
    COLUMNS,
    MEASURED,
    PHASES,
    Guess,
    covered_by,
    guess,
    normal,
    parse_name,
    rate_factor,
)
from lab.analysis.audit.observations import ROW, Observations
from lab.analysis.audit.plausible import SCALING, by_numbers
from lab.analysis.audit.quantities import Quantities, as_text, with_quoted_times
from lab.analysis.audit.settings import by_setting
from lab.analysis.audit.values import CHANGE, numbers
from lab.errors import InputError, Problem, nearest
from lab.records.table import python_strings

# Columns that never appear next to the time of a collective.
TRAINING = {
    *("step", "epoch", "parameters", "loss", "accuracy", "model"),
    *("global_batch_size", "micro_batch_size", "batch"),
    *PHASES,
} - {"other"}
MOST_ROWS = 2_000_000
SYMBOL = re.compile(r"\$?([TSE])(?:_?\{?[np]\}?|\([npNP]\)|_\{?[NP]\}?)?\$?(?: *[\[(]s[\])])?")
TASKS = re.compile("(?:(?:n|num|number_of)_)?tasks")
MOST_LETTERS = 6  # that name columns of one table: N, M, P, T, S and E
NOTED_SCALING = re.compile("(?:strong|weak)(?=[ _-]?scal)|^(?:strong|weak)$", re.IGNORECASE)
OF_SCALING = "(?:speed-?ups?|scaling|scalability|throughput|performance)"
PROJECTION = re.compile(
    rf"\b(?:projected|predicted|theoretical|extrapolated|estimated)\b.{{0,20}}\b{OF_SCALING}"
    rf"|\b{OF_SCALING}\s+(?:projections?|predictions?)\b",
    re.IGNORECASE,
)
LONGEST_HEADING = 80  # characters
# Rows of these are single measurements; others may stand for several.
LOGGED = {"rank", "epoch", "step"}
COUNTED = {"world_size", "threads", "cpus"}
RATES = {"rate", "rate_per_rank"}
FEWEST_CHANGES = 2  # cells of a row


@python_strings()
@np.errstate(all="ignore")  # an overflow becomes NaN, which takes part in no comparison
def from_table(
    frame: pd.DataFrame, *, columns: Mapping[str, str] | None = None, source: str = "table"
) -> Observations:
    """A table as observations; `columns` is {canonical name: column}, the rest is guessed.

    Raises InputError for a table without rows or with a column twice, and for a mapping that names
    what is not there or a column without numbers where numbers are needed.
    """
    notes = [str(note) for note in frame.attrs.get("notes", ())]
    name = str(frame.attrs.get("name", source))
    chosen = list(map(str, frame.attrs.get("assumptions", ())))
    number, place = int(frame.attrs.get("number", 1)), str(frame.attrs.get("place", ""))
    is_log = bool(frame.attrs.get("logged"))
    _check(frame, columns or {}, source)
    frame = frame.reset_index(drop=True)
    # One string, as pandas copies the attributes deeply each time that it takes a column.
    frame.attrs = {"around": "\n".join((name, *notes))}
    frame.columns = pd.Index([str(column) for column in frame.columns])
    mapped = {column: _mapped(canonical, column) for canonical, column in (columns or {}).items()}
    frame, meanings, assumptions, origins, is_wide = _long_form(frame, mapped, name, notes)
    assumptions = [*chosen, *assumptions]
    quantities = Quantities(frame, meanings, mapped, notes, source)
    tidy, given = quantities.tidy, quantities.given
    assumptions += quantities.assumptions
    tidy[ROW] = frame[ROW]
    ranks.degrees(tidy, given)
    assumptions += keys.labelled(tidy, frame, given)
    assumptions += [*ranks.of_a_node(tidy, given), *ranks.hybrid(tidy, given)]
    if "world_size" not in given:
        tidy["world_size"], assumption = ranks.world_size(tidy, reshape.hinted_ranks(name, notes))
        assumptions += [assumption] if assumption else []
    if np.isposinf(tidy["world_size"].to_numpy()).any():
        tidy["world_size"] = tidy["world_size"].where(tidy["world_size"] < np.inf)
    ranks.rates_of_nodes(tidy, given)
    tidy["step_spread"] = _spread(frame, given.get("time"))
    if "rate_per_rank" in given:
        tidy["rate"] = tidy["rate"].fillna(tidy["rate_per_rank"] * tidy["world_size"])
        tidy["rate_rounding"] = tidy["rate_rounding"].fillna(tidy["rate_per_rank_rounding"])
    assumptions += ranks.global_batch(tidy, given)
    per = meanings[given["time"]].per if "time" in given else None
    collective = {"bytes", "time"} <= set(given) and not TRAINING & set(given)
    logged = bool(LOGGED & set(given))
    used = [*given.values(), *quantities.joined]
    own = bool(quantities.own_baseline)
    keys.add_keys(tidy, frame, used, collective=collective, logged=logged, own_baseline=own)
    assumptions += ranks.rates_of_each(tidy, given)
    ranks.complete_batches(tidy, given)
    tidy["label"] = keys.labels(tidy, given)
    return Observations(
        frame=tidy.copy(),  # in one piece for each type: rows are taken from it again and again
        kind="collectives" if collective else "table",
        per=per or "total",  # type: ignore[arg-type]
        scaling=_noted_scaling(name, notes),
        given=given,
        own_baseline=quantities.own_baseline,
        derived=frozenset({"global_batch_size", "micro_batch_size"} - set(given)),
        assumptions=assumptions,
        notes=notes,
        summarised=is_wide or not logged,
        logged=is_log,
        projected=_is_projected([*notes, *("speedup" not in given) * list(map(str, frame))]),
        reading=_reading(given, origins),
        number=number,
        place=place,
    )


def _long_form(
    frame: pd.DataFrame, mapped: Mapping[str, Guess], name: str, notes: Sequence[str]
) -> tuple[pd.DataFrame, dict[str, Guess], list[str], dict[str, list[str]], bool]:
    """Make rows of settings, ranks and batches that a table has as columns or in its cells.

    Returns the table with a row for each measurement, what its columns mean by their names, what
    that assumes, the columns that each new one was made of, and whether ranks were columns.
    """
    frame, filled = _filled_down(frame, mapped)
    frame, assumptions = reshape.turned(frame, mapped)
    frame[ROW] = np.arange(1, len(frame) + 1)
    frame, compared = _without_changes(frame)
    frame, of_settings, origins = by_setting(frame, mapped)
    frame, of_ranks = wide.by_rank(frame, mapped)
    assumptions += compared + filled + of_settings + of_ranks
    for form in [partial(wide.by_batch, mapped=mapped)] if mapped else wide.FORMS:
        frame, more = form(frame)
        assumptions += more
    meanings = _meanings(frame, mapped)
    unnamed = {} if mapped else by_numbers(frame, meanings)
    meanings |= unnamed
    rated = {} if mapped else _rates_by_cells(frame, meanings)
    meanings, unnamed = meanings | rated, unnamed | rated
    assumptions += [f"{name!r} is read as the {what.canonical}" for name, what in unnamed.items()]
    # N is the size of a problem, unless no column's name gives a number of ranks.
    names = {meaning.canonical for name, meaning in meanings.items() if normal(name) != "n"}
    of_sizes: list[str] = []
    if "world_size" not in names and not {"per_node", "nodes"} <= names:
        around = "\n".join((name, *notes))
        hint, quantity = reshape.hinted_ranks(name, notes), reshape.noted_quantity(around)
        frame, of_sizes = reshape.by_world_size(frame, hint, mapped, quantity)
        unnamed = {name: what for name, what in unnamed.items() if name in frame}
        meanings = _meanings(frame, mapped) | unnamed
        counted = {meaning.canonical for meaning in meanings.values()} & {"nodes", "world_size"}
        if not of_ranks and not of_sizes and not counted | {"dp", "gpu", "device"} & names:
            meanings |= ranks.by_cells(frame, meanings)
            if workers := ranks.workers(frame, meanings):
                meanings |= {workers: Guess("world_size", 1.0)}
                of_sizes = [f"{workers!r} counts the ranks, as no other column does"]
    assumptions += of_sizes
    quoted = with_quoted_times(frame, meanings, mapped)
    assumptions += [
        f"{name!r} is read as the time, as the quoted speedups are its ratios"
        for name in set(quoted) - set(meanings)
    ]
    return frame, quoted, assumptions, origins, bool(of_ranks or of_sizes)


def _without_changes(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The table without rows such as "change | +49.3% | -0.6%", which compare those above them."""
    if len(frame) > keys.MOST_VALUES:
        return frame, []
    cells = (frame[name].tolist() for name in frame.columns[1:] if name != ROW)
    rows = [[text for cell in row if (text := as_text(cell))] for row in zip(*cells, strict=True)]
    compares = np.array(
        [len(row) >= FEWEST_CHANGES and all(map(CHANGE.fullmatch, row)) for row in rows]
    )
    if not compares.any() or compares.all():
        return frame, []
    labels = reshape.listed(frame.iloc[:, 0][compares])
    return frame[~compares].reset_index(drop=True), [
        f"{labels} compares other rows and is left out"
    ]


def _filled_down(frame: pd.DataFrame, mapped: Collection[str]) -> tuple[pd.DataFrame, list[str]]:
    """The first columns with those above in blank cells that rows begin with, as where cells were
    merged; one of them is of words, as a number may be missing."""
    filled: dict[str, pd.Series] = {}
    begins, of_words = np.ones(len(frame), dtype=bool), False
    for name in itertools.takewhile(lambda name: name not in mapped, frame.columns):
        pairs = zip(frame[name].tolist(), frame[name].isna().tolist(), strict=True)
        texts = ["" if empty else str(cell).strip() for cell, empty in pairs]
        begins &= [not text for text in texts]
        if not begins.any() or begins[0]:
            break
        of_words |= all(keys.LETTER.match(text) for text in texts if text)
        filled[name] = frame[name].mask(begins).ffill()
    if not filled or not of_words:
        return frame, []
    read = f"a blank cell of {reshape.listed(filled)} means the one above it"
    return frame.assign(**filled), [read]


def _rates_by_cells(frame: pd.DataFrame, meanings: Mapping[str, Guess]) -> dict[str, Guess]:
    """A column such as "Speed" whose cells are rates by their units, where no other is one."""
    if any(meaning.canonical in RATES for meaning in meanings.values()):
        return {}
    unnamed = [str(name) for name in frame if name not in meanings and name != ROW]
    rated = [name for name in unnamed if reshape.are_rated(frame[name])]
    return {rated[0]: Guess("rate", 1.0)} if len(rated) == 1 else {}


def _spread(frame: pd.DataFrame, time: str | None) -> pd.Series | float:
    """Half of what lies between the percentiles 10 and 90 of a time, relative to it, if known."""
    low, high = f"{time}_p10", f"{time}_p90"
    if time is None or not {low, high} <= set(frame.columns):
        return np.nan
    return (numbers(frame[high]) - numbers(frame[low])) / 2 / numbers(frame[time])


def _reading(given: Mapping[str, str], origins: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """How each column of the table was interpreted."""
    reading: dict[str, str] = {}
    for canonical, name in given.items():
        for column in origins.get(name, [name]):
            reading[column] = " and ".join(filter(None, (reading.get(column), canonical)))
    return reading


def _is_projected(texts: Iterable[str]) -> bool:
    """Whether a heading, a caption or a column's name says that speedups were computed."""
    return any(len(text) <= LONGEST_HEADING and PROJECTION.search(text) for text in texts)


def _noted_scaling(name: str, notes: Sequence[str]) -> Literal["weak"] | None:
    """Weak, if the name or the notes say so and do not call anything else strong."""
    kinds = {kind.lower() for text in (name, *notes) for kind in NOTED_SCALING.findall(text)}
    return "weak" if kinds == {"weak"} else None


def _check(frame: pd.DataFrame, columns: Mapping[str, str], source: str) -> None:
    names = [str(column) for column in frame.columns]
    problems = [
        Problem(f"column {name!r}", "appears more than once", "rename one")
        for name in sorted({name for name in names if names.count(name) > 1})
    ]
    if not len(frame) or not names:
        problems.append(Problem("table", "has no rows", "a table needs measurements"))
    if len(frame) > MOST_ROWS:
        advice = "give one row per epoch or configuration"
        problems.append(Problem("table", f"more than {MOST_ROWS} rows", advice))
    for canonical, column in columns.items():
        where = f"columns.{canonical}"
        if canonical not in COLUMNS:
            problems.append(Problem(where, "unknown quantity", nearest(str(canonical), COLUMNS)))
        if column not in names:
            problems.append(Problem(where, f"no column {column!r}", nearest(str(column), names)))
    if problems:
        raise InputError(source, problems)


def _mapped(canonical: str, column: str) -> Guess:
    if canonical in RATES:
        named = guess(column)
        if named is None or named.canonical not in RATES:
            return Guess(canonical, rate_factor(column))
        return named._replace(canonical=canonical)
    stem, family, factor, _ = parse_name(column)
    per = covered_by(stem) or "total"
    return Guess(canonical, factor if family else None, per if canonical == "time" else None)


def _meanings(frame: pd.DataFrame, mapped: Mapping[str, Guess]) -> dict[str, Guess]:
    taken = {meaning.canonical for meaning in mapped.values()}
    meanings = dict(mapped)
    for column in frame.columns:
        meaning = None if column in mapped else guess(column)
        if meaning is not None and meaning.canonical not in taken:
            meanings[column] = meaning
    if "scaling" not in {meaning.canonical for meaning in meanings.values()}:
        unnamed = [str(name) for name in frame if name not in meanings]
        kinds = (name for name in unnamed if _names_scaling(frame[name]))
        meanings |= {name: Guess("scaling", None) for name in itertools.islice(kinds, 1)}
    first = str(frame.columns[0])
    nameless = not re.search(r"[^\W\d]", first.removeprefix("unnamed"))
    if nameless and not mapped and _are_programs(frame[first]):
        meanings |= {first: Guess("strategy", None)}
    # N is the size of a problem where another column counts processes, threads or cores.
    counted = [name for name, meaning in meanings.items() if meaning.canonical in COUNTED]
    sizes = [name for name in counted if normal(name) == "n" and name not in mapped]
    sizes = sizes if len(counted) > len(sizes) else []
    # As are tasks in round numbers: 100, 500 and 1000.
    tasks = [name for name in counted if TASKS.fullmatch(normal(name)) and name not in mapped]
    sizes += [name for name in tasks if (numbers(frame[name]) % reshape.OF_PROBLEMS == 0).all()]
    for name in sizes:
        del meanings[name]
    return meanings | _symbols(frame.columns, meanings)


def _names_scaling(cells: pd.Series) -> bool:
    """Whether all cells of a column say strong or weak."""
    texts = map(as_text, cells)
    return len(cells) > 0 and all(text is not None and SCALING.fullmatch(text) for text in texts)


def _are_programs(cells: pd.Series) -> bool:
    """Whether all cells of a column are words, of which some say that a program is serial."""
    texts = [normal(as_text(cell) or "") for cell in cells.unique()[: keys.MOST_VALUES]]
    return all(re.match("[a-z]", text) for text in texts) and any(map(reshape.SERIAL.match, texts))


def _symbols(names: Collection[str], meanings: Mapping[str, Guess]) -> dict[str, Guess]:
    """Columns named T(p), S(p) and E(p) beside the number of ranks, as in textbooks, unless
    more columns are called by a letter than textbooks have symbols."""
    known = {meaning.canonical for meaning in meanings.values()}
    stems = {name: name.partition("=")[0].strip() for name in names}  # of "Sp = T1/Tp"
    letters = {name: match[1] for name, stem in stems.items() if (match := SYMBOL.fullmatch(stem))}
    lettered = sum(len(name.strip()) == 1 for name in names)
    if (
        lettered > MOST_LETTERS
        or "world_size" not in known
        or not (known & MEASURED or len(set(letters.values())) > 1)
    ):
        return {}
    # Tp and Ep are degrees of parallelism, unless they stand beside Sp.
    read = [name for name in letters if name not in meanings or "S" in letters.values()]
    return {name: Guess(columns.SYMBOLS[letters[name]], 1.0, "total") for name in read}
