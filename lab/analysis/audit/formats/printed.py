"""Tables that are printed in columns of spaces: data frames of pandas and R, whose right-aligned
cells stand beside an index, and names above a rule with a gap between columns, as sacct has them.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator, Sequence

from lab.analysis.audit.columns import COUNTED_RANKS, quantities
from lab.analysis.audit.formats.grid import Table

GAP = re.compile(r"\s{2,}|\t")
NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?[%x×]?[*†‡§]?", re.IGNORECASE)
WORD = re.compile(r"[^\W\d]\w*[^\W\d]|[^\W\d]")
CONTINUED = "\\"  # at the end of names that go on below, with the same index
MOST_WORDS = 4  # of the name of an index
MARKS = re.compile(r"^\s*(?:[|+#>$*-]|//|<)|[|;]|--")  # of other tables, code and lists

RULE = re.compile(r"\s*(?:-{2,}|={2,}):?(?:\s+(?:-{2,}|={2,}):?)+\s*")
LINE = re.compile(r"\s*([-=])\1{9,}(?:.*\1{3,})?\s*")  # also "---- benchmark: 3 tests ----"
DIGIT = re.compile(r"[-+(]?\d")
FEWEST_NAMES, FEWEST_ROWS = 3, 2
# Of "BM_Sort/1024/threads:4" and "items_per_second=1.2M/s".
COUNTER = re.compile(r"(?<![^\s/])([A-Za-z_]\w*)[:=]([\d.]+\w*(?:/s)?)(?![^\s/])")
IN_NAME = re.compile(r"/(?:[a-z]+:\d+|real_time|process_time)(?=/|$)")
OF_PYTEST = re.compile(r"Name \(time in (\w+)\)")
# Of BabelStream.
IN_SECONDS = {"Min (sec)": "Min time (s)", "Max": "Max time (s)", "Average": "Average time (s)"}
SPANS = {"Min", "Max", "Mean", "StdDev", "Median"}
RENAMED = {"Rounds": "repeats", "Iterations": "iterations of each"}
RATIO = re.compile(r"\s+\([\d.,]+\)$")
RULED = re.compile(r"\S+")

Rows = list[list[str]]


def tables(lines: Sequence[str]) -> list[Table]:
    """The names and rows of such tables, and the lines above each as its notes; rows that each
    have rules and the same names above them, as Linpack prints its runs, are one table."""
    read: list[Table] = []
    place = after = 0
    while place < len(lines):
        boxed = _boxed(lines, place)
        table = _ruled(lines, place) or boxed or _frame(lines, place) or _spaced(lines, place)
        if table is None:
            place += 1
            continue
        names, rows, end = table
        notes = [note for line in lines[after:place] if (note := line.strip("# "))]
        place = after = end
        if table is boxed and len(rows) == 1 and read and read[-1].header == names:
            read[-1].rows.extend(rows)
        else:
            read.append(Table(names, rows, notes))
    return read


def _ruled(lines: Sequence[str], place: int) -> tuple[list[str], Rows, int] | None:
    """The names above a rule, the rows below it, and the end; None if no table begins here."""
    above, rule = lines[place - 1] if place else "", "".join(lines[place + 1 : place + 2])
    if not RULE.fullmatch(rule) or RULE.fullmatch(above) or MARKS.search(lines[place]):
        return None  # tables of reStructuredText have a rule above the names, too
    starts = [match.start() for match in RULED.finditer(rule)]
    names = [name.rstrip(":") for name in _sliced(lines[place], starts)]
    written = list(
        itertools.takewhile(
            lambda line: re.search(r"\d", line) and not RULE.fullmatch(line),
            _from(lines, place + 2),
        )
    )
    rows = []
    for line in written:
        divided = line.split(), GAP.split(line.strip())  # tabs move what is below a name
        even = (cells for cells in divided if len(cells) == len(names))
        rows.append(next(even, None) or _sliced(line, starts))
    if not all(names) or not rows or not any(_are_measured([row]) for row in rows):
        return None
    return names, rows, place + 2 + len(written)


def _boxed(lines: Sequence[str], place: int) -> tuple[list[str], Rows, int] | None:
    """The same of names below a rule of the whole width, such as those of STREAM, Google Benchmark
    and pytest-benchmark, which are two spaces apart, as are the cells up to the next rule."""
    if not place or not LINE.fullmatch(lines[place - 1]) or MARKS.search(lines[place]):
        return None
    names = GAP.split(lines[place].strip())
    start = place + 1 + bool(LINE.fullmatch("".join(lines[place + 1 : place + 2])))
    below = itertools.takewhile(lambda line: not LINE.fullmatch(line), _from(lines, start))
    cells = (GAP.split(line.strip()) for line in below)
    rows = list(itertools.takewhile(lambda row: len(names) - 1 <= len(row) <= len(names), cells))
    if len(names) < FEWEST_NAMES or not rows or any(map(DIGIT.match, names)):
        return None
    if not all(DIGIT.match(cell) for row in rows for cell in row[1:3]):
        return None
    return *_of_benchmarks(names, rows), start + len(rows)


def _spaced(lines: Sequence[str], place: int) -> tuple[list[str], Rows, int] | None:
    """The same of names two spaces apart right above rows of a word, or a number of ranks, and a
    number for each other name, such as those of BabelStream."""
    names = GAP.split(lines[place].strip())
    if len(names) < FEWEST_NAMES or MARKS.search(lines[place]) or any(map(DIGIT.match, names)):
        return None
    rows = [
        *itertools.takewhile(
            lambda row: len(row) == len(names) and all(map(NUMBER.fullmatch, row[1:])),
            (line.split() for line in _from(lines, place + 1)),
        )
    ]
    if len(rows) < FEWEST_ROWS:
        return None
    counted = quantities(names[:1]) & {*COUNTED_RANKS}
    if not all((NUMBER.fullmatch if counted else WORD.match)(row[0]) for row in rows):
        return None
    return *_of_benchmarks(names, rows), place + 1 + len(rows)


def _of_benchmarks(names: list[str], rows: Rows) -> tuple[list[str], Rows]:
    """The columns of Google Benchmark and pytest-benchmark by names that say what they are, with
    the threads and counters of the first as columns; those of others as they are."""
    if names[:2] == ["Benchmark", "Time"]:
        counted = [dict(COUNTER.findall(" ".join([row[0], *row[3:]]))) for row in rows]
        more = list(dict.fromkeys(name for counts in counted for name in counts))
        rows = [
            [IN_NAME.sub("", row[0]), *row[1:3], *(counts.get(name, "") for name in more)]
            for row, counts in zip(rows, counted, strict=True)
        ]
        return ["benchmark", "real time", "CPU time", *more], rows
    if unit := OF_PYTEST.fullmatch(names[0]):
        timed = [f"{name.lower()} time ({unit[1]})" if name in SPANS else name for name in names]
        renamed = [RENAMED.get(name, name) for name in ("benchmark", *timed[1:])]
        return renamed, [[RATIO.sub("", cell) for cell in row] for row in rows]
    if names[0] == "Function":  # of STREAM, whose times are in s
        shown = {name: f"{name} (s)" for name in names if name.endswith("time")}
        names = [(IN_SECONDS | shown).get(name, name) for name in names]
    return names, rows


def _from(lines: Sequence[str], place: int) -> Iterator[str]:
    """The lines from this place on, without a walk over those before."""
    return map(lines.__getitem__, range(place, len(lines)))


def _sliced(line: str, starts: Sequence[int]) -> list[str]:
    """The parts of a line that begin in these places; the first begins with the line."""
    return [
        line[first:last].strip()
        for first, last in itertools.pairwise([0, *starts[1:], max(len(line), starts[-1])])
    ]


def _frame(lines: Sequence[str], place: int) -> tuple[list[str], Rows, int] | None:
    """The names, rows and end of a data frame that begins here, without an index that numbers its
    rows; None if none does."""
    block = _block(lines, place)
    if block is None:
        return None
    names, rows, end = block
    while lines[place].rstrip().endswith(CONTINUED):
        place = next((at for at in range(end, len(lines)) if lines[at].strip()), end)
        more = _block(lines, place)
        if more is None or [row[0] for row in more[1]] != [row[0] for row in rows]:
            break
        names += more[0][1:]
        rows = [[*row, *other[1:]] for row, other in zip(rows, more[1], strict=True)]
        end = more[2]
    index = [row[0] for row in rows]
    if not names[0] and index in (_numbered(0, rows), _numbered(1, rows)):
        names, rows = names[1:], [row[1:] for row in rows]
    return names, rows, end


def _numbered(first: int, rows: Rows) -> list[str]:
    return [str(number) for number in range(first, first + len(rows))]


def _block(lines: Sequence[str], place: int) -> tuple[list[str], Rows, int] | None:
    """The same of names and the rows right below them, with the index."""
    if place >= len(lines):
        return None
    head = lines[place].rstrip().removesuffix(CONTINUED).rstrip()
    quoted = head.startswith('"') and '","' not in head  # as R writes it, but not CSV
    if not head.strip() or MARKS.search(head) or not (quoted or WORD.search(head)):
        return None
    start = place + 1
    indexed = head[0].isspace()
    index = ""
    named = lines[start].rstrip() if start < len(lines) else ""
    # The name of the index, below those of the columns.
    if _is_name(named, alone=not indexed) or _is_count(named):
        index, start = named, start + 1
    elif not indexed and not quoted:
        return None
    written = list(itertools.takewhile(_is_row, _from(lines, start)))
    for names, rows in _divided(head, written):
        over = indexed or quoted
        if len(rows[0]) == len(names) + over and _are_measured(rows):
            return [index, *names[not over :]], rows, start + len(written)
    return None


def _is_name(line: str, *, alone: bool) -> bool:
    """Whether a line is a name and nothing else; `alone` if it must be one word."""
    words = line.split()
    named = 0 < len(words) <= (1 if alone else MOST_WORDS) and bool(WORD.match(line))
    return named and not re.search(r"\d", line) and len(GAP.split(line)) == 1


def _is_count(line: str) -> bool:
    """Whether a line is a name such as "number of threads" and nothing else."""
    return _is_name(line, alone=False) and bool(quantities([line]) & {*COUNTED_RANKS})


def _is_row(line: str) -> bool:
    return bool(line.strip()) and not line[0].isspace() and not MARKS.search(line)


def _divided(head: str, written: Sequence[str]) -> Iterator[tuple[list[str], Rows]]:
    """Names and rows by each way of dividing lines that gives rows of one width."""
    if head.startswith('"'):  # as R writes it
        names, *rows = csv.reader([head, *written], delimiter=" ")
        yield from [(names, rows)] if len({*map(len, rows)}) == 1 else []
        return
    for divide in (str.split, lambda line: GAP.split(line.strip())):
        rows = [divide(line) for line in written]
        for names in (GAP.split(head.strip()), head.split()):
            if len({*map(len, rows)}) == 1 and not any(map(NUMBER.fullmatch, names)):
                yield names, rows


def _are_measured(rows: Rows) -> bool:
    """Whether each row has a number beside its index."""
    return all(any(map(NUMBER.fullmatch, row[1:])) for row in rows)
