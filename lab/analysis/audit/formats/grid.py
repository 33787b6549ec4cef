"""Tables as grids of cells: names and sections that span columns, and which of several tables say
most of scaling."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from lab.analysis.audit.columns import COUNTED_RANKS, MEASURED, guess, normal, quantities
from lab.analysis.audit.languages import in_english
from lab.analysis.audit.plausible import by_numbers
from lab.analysis.audit.ranks import ranks_in_words
from lab.analysis.audit.reshape import (
    INDEXED,
    OF_DEGREE,
    OF_PROBLEMS,
    are_ratios,
    noted_alone,
    ranks_in,
    timed_programs,
    timed_statistics,
)
from lab.analysis.audit.values import COUNT_UNITS, NODE, RANKS, number, ranks_of
from lab.errors import InputError
from lab.records.table import grouped

NUMERIC = re.compile(r"(?:[a-z]\s*=\s*)?[~<]?\.?\d")
VALUES = re.compile(r"values?|settings?|值|数值|wert|valeur|valor")
OF_RUNS = MEASURED | {"flops_per_rank", "mfu"}
RANKED = {"world_size", "nodes", "dp"}
THREADED = {"threads", "cpus"}
MOST_ROWS = 50  # that are looked at
MOST_TABLES = 200  # of a text
NUMERAL = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.IGNORECASE)
OF_THREADS = re.compile(r"\d\s*threads?\b", re.IGNORECASE)
OF_NODES = re.compile(rf"\s*\d+\s*{NODE}", re.IGNORECASE)  # 2 nodes 16 GPUs are 16 or 32
# Lines that count ranks, in snake case: "with_4_processes", "time_with_2_threads", "nproc_96" and
# "1_gpu_with_the_fast_model".
COUNTING = re.compile(
    rf"(?P<before>(?:[a-z]+_){{0,9}}?)(?P<n>\d{{1,6}})_(?:(?:x|mpi|omp|open_?mp|cpu|parallel)_)?"
    rf"(?P<what>{RANKS}|(?:worker|thread|core|cpu|task|{NODE})s?)(?P<after>(?:_\w+){{0,8}})"
)
SINGLE = re.compile(r"(?<![^_])(?:single|one)(?=_)")
ASSIGNED = re.compile(r"(?P<what>[a-z]+(?:_[a-z]+)*)_(?P<n>\d{1,6})")
BRIEF = re.compile(r"(?:(?:with|using|for|on|in|at|con|mit|avec|com|runs?|running|results?)_){0,3}")
NAMED = 3  # columns in a sentence
NOTES_ABOVE = 2  # the caption of a table, and the heading above it
SPANNED = "\x1f"  # before a name that spans several columns
WIDEST, MOST_COLUMNS = 100, 500  # columns that a cell may span, and a table have


class Table(NamedTuple):
    """Column names, rows of cells, and the text around them."""

    header: list[str]
    rows: list[list[str]]
    notes: Sequence[str] = ()
    logged: bool = False  # the lines of a log


def most_relevant(tables: Sequence[Table]) -> list[Table]:
    """The tables of measurements on known ranks, else those of measurements, else the longest.

    Settings and their values, if there is another table, are notes on all of them.
    """
    settings = [
        table
        for table in tables
        if len(table.header) == 2 and VALUES.fullmatch(table.header[1].lower())
    ]
    results = [table for table in tables if table not in settings]
    by_relevance = grouped((relevance(table), table) for table in results or tables)
    most = max(by_relevance, default=0)
    alike = by_relevance.get(most, [])
    if alike and not most:
        alike = [max(alike, key=lambda table: len(table.rows))]
    values = [": ".join(row[:2]) for table in settings for row in table.rows if results]
    return [table._replace(notes=[*table.notes, *values]) for table in alike]


def with_headed_ranks(tables: Sequence[Table]) -> list[Table]:
    """Tables with the same columns, none of which counts ranks, below headings such as "4 GPUs" or
    "Number of GPUs: 4" become one with these in a column; others stay as they are."""
    turned = [(table, _turned(table)) for table in tables]
    headed = [(table, side, _headed_ranks(side)) for table, side in turned]
    alike = grouped(((*side.header, ranks[0]), (side, ranks)) for _, side, ranks in headed if ranks)
    whole: list[Table] = []
    for table, side, ranks in headed:
        group = alike[(*side.header, ranks[0])] if ranks else []
        if ranks is None or len({number for _, (_, number) in group}) < 2:
            whole.append(table)
        elif group[0][0] is side:
            rows = [[*row, number] for part, (_, number) in group for row in part.rows]
            notes = dict.fromkeys(note for part, _ in group for note in part.notes)
            whole.append(Table([*side.header, ranks[0]], rows, [*notes]))
    return whole


def _turned(table: Table) -> Table:
    """A table of metrics and their values as one with a column for each metric; others as they
    are."""
    columns = [*zip(*(row for row in table.rows if len(row) == 2), strict=True)]
    if len(table.header) != 2 or not columns or not VALUES.fullmatch(table.header[1].lower()):
        return table
    return table._replace(header=[*columns[0]], rows=[[*columns[1]]])


def counted_in(line: str) -> dict[str, str]:
    """What a line such as "With 4 processes:" counts, with the number and any words after it."""
    text = SINGLE.sub("1", normal(re.sub(r"\(.*?\)", "", line)))
    if match := COUNTING.fullmatch(text):
        after = {"heading": match["after"].strip("_")} if match["after"] else {}
        return {re.sub("(?<!s)$", "s", match["what"]): match["n"], **after}
    assigned = ASSIGNED.fullmatch(text)
    words = assigned["what"].split("_") if assigned else []
    names = ("_".join(words[place:]) for place in range(len(words)))
    counts = [name for name in names if len(name) > 1 and quantities([name]) & {*COUNTED_RANKS}]
    return {counts[0]: assigned["n"]} if assigned and counts else {}


def _headed_ranks(table: Table) -> tuple[str, str] | None:
    """What the heading of a table counts, and the number, if none of its columns gives it."""
    if relevance(table) != 1:
        return None
    for note in table.notes[:NOTES_ABOVE]:
        name, _, number = note.rpartition(":")
        if number.strip().isdecimal() and quantities([name]) & RANKED:
            return "ranks", number.strip()
        ranks, what = ranks_of(note)
        if ranks > 0 and not what and not OF_NODES.match(in_english(note)):
            return "ranks", f"{ranks:.0f}"
        counting = COUNTING.fullmatch(normal(note))
        if counting and BRIEF.fullmatch(counting["before"]) and not counting["after"]:
            return next(iter(counted_in(note).items()))
    return None


def relevance(table: Table) -> int:
    """3 for a table of measurements on known ranks, 2 for one on numbers of threads or cores, 1 for
    one of measurements, 0 for others."""
    rows = table.rows[:MOST_ROWS]
    columns = dict(zip(table.header, zip(*rows, strict=False), strict=False))
    columns = {name: cells for name, cells in columns.items() if any(map(NUMERIC.match, cells))}
    labels = [row[0] for row in rows if row]
    named = [name for name in table.header if not INDEXED.search(normal(name))]
    sizes = {name: ranks for name in named if (ranks := ranks_in(name)[0]) > 0}
    degrees = [name for name in sizes if OF_DEGREE.search(normal(name))]
    if degrees and not (quantities(degrees) & OF_RUNS or noted_alone("\n".join(table.notes))):
        sizes = {}  # whatever depends on the degree of tensor parallelism
    spread = len(set(sizes.values())) > 1
    if spread and set(sizes) <= set(columns):
        return 2 if all(map(OF_THREADS.search, map(in_english, sizes))) else 3
    names = [*columns, *labels] if spread else columns
    varied = [name for name, cells in columns.items() if len({*cells}) > 1 and normal(name) != "n"]
    counted = quantities(varied) & {*RANKED, *THREADED}
    # N is the size of a problem beside ranks, threads or cores, and where it is large.
    n = [
        name
        for name, cells in columns.items()
        if normal(name) == "n" and (counted or _large(cells))
    ]
    known = quantities(name for name in names if name not in n)
    if timed_statistics(columns) or (counted and not known & OF_RUNS and timed_programs(columns)):
        known |= {"time"}
    if counted and not known & OF_RUNS:
        meanings = {name: what for name in columns if name not in n and (what := guess(name))}
        known |= {what.canonical for what in by_numbers(pd.DataFrame(columns), meanings).values()}
    several = {ranks for label in labels if (ranks := ranks_in_words(label)[0]) > 0}
    ranked = spread or known & RANKED or len(several) > 1
    if not known & OF_RUNS:
        others = [cells for name, cells in columns.items() if not quantities([name])]
        unnamed = not any("speed" in name.lower() for name in columns)
        ratios = known & RANKED and unnamed and others and all(map(are_ratios, others))
        noted = counted and len(others) > 1 and noted_alone("\n".join(table.notes))
        return 3 if ratios or (noted and ranked) else 2 * bool(noted)
    return 3 if ranked else 1 + bool(known & THREADED)


def _large(cells: Sequence[str]) -> bool:
    return not any(number(cell, units=COUNT_UNITS) < OF_PROBLEMS for cell in cells)


def from_grid(lines: Sequence[list[str]], notes: Sequence[str]) -> Table | None:
    """A table made of lines, the column names first; None without rows or a second column.

    A line with a single cell is a title: a note above the names, a section among the rows.
    """
    below = [*itertools.dropwhile(_is_title, lines)]
    titles = [*notes, *(line[0].lstrip(SPANNED) for line in lines[: len(lines) - len(below)])]
    header, *rest = below or [[]]
    while rest and any(SPANNED in name for name in header):
        pairs = itertools.zip_longest(header, rest.pop(0), fillvalue="")
        header = [joined(top.replace(SPANNED, ""), name) for top, name in pairs]
    header = [name.replace(SPANNED, "") for name in header]
    rows = [[cell.lstrip(SPANNED) for cell in line] for line in rest]
    header, rows = with_sections(header, rows, [*map(_is_title, rest)])
    return Table(header, rows, [*filter(None, titles)]) if len(header) > 1 and rows else None


def _is_title(line: Sequence[str]) -> bool:
    return len(line) > 1 and line[0].startswith(SPANNED) and len(set(line)) == 1


def joined(*names: str) -> str:
    """The name of a column whose parts are below each other; equal parts stand there once."""
    return " ".join(dict.fromkeys(filter(None, names)))


def with_sections(
    header: list[str], rows: list[list[str]], are_titles: Sequence[bool]
) -> tuple[list[str], list[list[str]]]:
    """Column names and rows with the title above each row as another column; as they are without
    titles."""
    if not any(are_titles):
        return header, rows
    section, within = "", []
    for row, is_title in zip(rows, are_titles, strict=True):
        section = row[0] if is_title else section
        blank = [""] * (len(header) - len(row))
        within += [] if is_title else [[*row, *blank, section]]
    return [*header, "section"], within


def without_remarks(cells: list[str], width: int) -> list[str]:
    """A row without the remarks that follow its last cell, which are no numbers."""
    beyond = cells[width:]
    return cells if any(map(NUMERIC.match, beyond)) else cells[:width]


def rectangular(
    source: str,
    header: list[str],
    rows: list[list[str]],
    *,
    places: Sequence[str] = (),
    advice: str = "give each column a name",
) -> tuple[list[str], list[list[str]]]:
    """Names for all columns, and rows of equal length.

    Raises InputError for a table without rows, and for a row that is longer than the names, which
    it calls by its number or its place.
    """
    width = len(header)
    for index, row in enumerate(rows):
        if any(row[width:]):
            what = f"{len(row)} cells under {width} column names"
            where = places[index] if places else f"row {index + 1}"
            raise InputError.of(source, where, what, advice)
    if not rows:
        advice = "a table needs measurements"
        raise InputError.of(source, "file", "no rows below the column names", advice)
    # A saved DataFrame has an empty name for its index.
    names = [text or f"unnamed {number}" for number, text in enumerate(header, start=1)]
    return names, [[*row[:width], *[""] * (width - len(row))] for row in rows if any(row)]


def unnamed(source: str, names: Sequence[str]) -> InputError:
    """The error for a table whose first line has numbers."""
    what = f"values instead of column names: {', '.join(names[:NAMED])}, ..."
    return InputError.of(source, "file", what, "write a line of column names above them")
