"""Delimited text: by commas, semicolons, tabs, bars or spaces, with lines around the table."""

from __future__ import annotations

import csv
import io
import itertools
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from lab.analysis.audit.formats.grid import (
    MOST_TABLES,
    NUMERAL,
    Table,
    joined,
    rectangular,
    unnamed,
    with_sections,
    without_remarks,
)
from lab.analysis.audit.formats.markdown import without_markup
from lab.errors import InputError

MAX_CELL = 1_000_000
DELIMITERS = (",", ";", "\t", "|")
SPACES = " "  # if none of these occurs
PROSE = (".", ":", "!", "?")  # ends of lines that are not column names
SAMPLE_LINES = 50
WORD = re.compile(r"[A-Za-z]{2}")
# "#GPUs," and "# of GPUs," are the first column's name, no note.
NUMBERED_NAME = re.compile(r"# ?\w+( \w+){0,2}\s*[,;\t|]")
MARKED = re.compile(r"\s#\s?(?=\w)")  # each name of "#nodes #ranks #time (s)"
ALIGNED = re.compile(r"\d {2,}\d")  # with spaces, beside tabs
# Of a row of numbers between spaces: "8  1.23  # repeated".
ROW_COMMENT = re.compile(r"(?<=\d)\s+#.*$")
NUMERIC_ROW = re.compile(r"\s*\d[^#,;|]*\s#")
NUMERIC_CELL = re.compile(r"(^|[,;\t|])\s*[\d.]+\s*([,;\t|]|$)")
BARE_NUMBER = re.compile(r"(?<![^\s,;|])-?\d+(?:\.\d+)?(?![^\s,;|])")  # that fills a cell
FEWEST_SECTIONS = 2
LONGEST_LINE = 60  # characters, in a sentence
MOSTLY_SHORT = 0.5  # of the lines: those of a text, not of a table
MARKUP = re.compile(r"\]\(|<br|\*\*|`|&\w{2,6};")
BULLET = re.compile(r"\s*[-*•]\s+\S*[^\W\d_]{2}")


def parse(name: str, lines: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """The column names and rows of a table, whose names may be in a comment or below prose.

    Raises InputError for lines that are no table, and for a table without names.
    """
    # An empty line stays, so that the reader's line numbers are those of the file.
    content = ["" if line.startswith("#") else _without_comment(line) for line in lines]
    first = next((number for number, line in enumerate(content) if line.strip()), 0)
    if content and lines[first].rstrip().endswith(PROSE):  # names after a # may follow it
        below = (at for at in range(1, len(content)) if content[at].strip())
        named = (at for at in below if lines[at - 1].startswith("#"))
        first = next((at for at in named if not WORD.search(content[at])), first)
        content[:first] = [""] * first
    row = content[first] if first else ""
    place = next(_headers(lines[:first], row), first - 1)
    above = lines[place] if first else ""
    numbered = NUMBERED_NAME.match(above) and NUMERIC_CELL.search(row)
    if above.startswith("#") and (numbered or not WORD.search(row)):
        header, apart = above.strip("# "), _delimiter([row])
        if names := _names(header, row):
            if len(names) < len(_split(row, apart)):  # cells that are several tabs apart
                content = ["\t".join(line.split()) for line in content]
            same = apart == SPACES or len(_split(header, apart)) == len(names)
            spaced = "  " if apart == SPACES else apart
            content[first - 1] = header if same and "#" not in header else spaced.join(names)
    sample = _sample(name, content)
    delimiter = _delimiter(sample)
    if delimiter == SPACES or sample[0].rstrip().endswith(PROSE):
        content = _below_prose(content)
        sample = _sample(name, content)
        delimiter = _delimiter(sample)
    if delimiter == SPACES:
        if all(map(BULLET.match, sample)):
            advice = "give a table, or a list such as '8 GPUs: 25 images/s'"
            raise InputError.of(name, "file", "a list of sentences, not a table", advice)
        content = _apart(content) or _in_words(name, content, sample)
        delimiter = "\t"
    names, rows = _cells(name, content, delimiter)
    if all(map(NUMERAL.fullmatch, names)) and any("." in name for name in names):
        raise unnamed(name, names)
    return _with_sections(names, rows)


def blocks(lines: Sequence[str], *, fewest: int = 2) -> list[tuple[list[str], list[str]]]:
    """Delimited tables below each other, each with its own line of column names: the lines above
    it and its lines; none if there are fewer."""
    starts = (place for place in range(len(lines) - 1) if _is_above_rows(lines, place))
    limits = [*itertools.islice(starts, MOST_TABLES + 1), len(lines)]
    parts, end = [], 0
    for start, limit in itertools.pairwise(limits) if len(limits) > fewest else ():
        if limit == start + 1:
            continue  # a title above names such as "2 threads"
        delimiter = _delimiter(lines[start : start + 2])
        width = min(len(_split(line, delimiter)) for line in lines[start : start + 2])
        above = (line.strip(f'# "{delimiter}') for line in lines[end:start])
        titles = [*filter(None, above)]
        # Lines right above the next names, below an empty one, are their title.
        apart = (at for at in range(limit - 1, start + 1, -1) if not lines[at].strip())
        stop = limit if limit == len(lines) else next(apart, limit)
        end = 1 + max(
            at
            for at in range(start + 1, stop)
            if _has_digits(lines[at]) and len(_split(lines[at], delimiter)) >= width
        )
        # Below empty lines, so that an error's line is that of the file.
        parts.append((titles, [*[""] * start, *lines[start:end]]))
    return parts


def below_title(name: str, lines: Sequence[str]) -> list[Table]:
    """The first table whose line of names is right above numbers, if any."""
    first = blocks(lines, fewest=1)[:1]
    return [Table(*parse(name, block), titles) for titles, block in first]


def is_headed(lines: Sequence[str]) -> bool:
    """Whether lines are those of a delimited table, whose cells may look like a log: all have as
    many cells as the first, which says nothing of numbers."""
    content = (line for line in lines if line.strip() and not line.startswith("#"))
    sample = list(itertools.islice(content, SAMPLE_LINES))
    if len(sample) < 2 or re.search(r"[=:]\s*[-+.\d]", sample[0]):
        return False
    delimiter = _delimiter(sample)
    widths = {len(_split(line, delimiter)) for line in sample}
    return len(widths) == 1 and not (delimiter == SPACES and _has_digits(sample[0]))


def with_groups(lines: Sequence[str]) -> list[str]:
    """Lines with one line of names above numbers, where spreadsheets and pandas have two: the names
    of groups, each over several columns, and below them names that occur in each group."""
    merged = list(lines)
    for place, (groups, names, below) in enumerate(zip(lines, lines[1:], lines[2:], strict=False)):
        if not groups.strip() or any(map(NUMERIC_CELL.search, (groups, names))):
            continue
        delimiter = _delimiter([names, below])
        under, cells = _split(names, delimiter), _split(below, delimiter)
        above = [*_split(groups, delimiter), *[""] * len(under)][: len(under)]
        named = [name for name in under if name]
        spanning = any(one and two in {"", one} for one, two in itertools.pairwise(above[1:]))
        if delimiter == SPACES or not spanning or len({*named}) == len(named):
            continue
        full = _below_groups(above, under)
        index = any(cells[:1]) and not any(cells[1:])  # pandas names it on a line of its own
        if index:
            full[0], below = cells[0], "".join(lines[place + 3 : place + 4])
        if NUMERIC_CELL.search(below):
            quoted = (f'"{name}"' if delimiter in name else name for name in full)
            merged[place : place + 2 + index] = ["", delimiter.join(quoted), *[""] * index]
    return merged


def _below_groups(groups: Sequence[str], names: Sequence[str]) -> list[str]:
    """Names with their groups: "DDP time", "DDP speedup"; a cell stands for those right of it too,
    unless the name below it is empty, as it then fills both lines."""
    group, full = "", []
    for above, name in zip(groups, names, strict=True):
        group = above or group
        full.append(joined(group, name))
        group = group if name else ""
    return full


def _is_above_rows(lines: Sequence[str], place: int) -> bool:
    """Whether a line at the beginning of a text, or below an empty line or a title, has a name for
    each cell of the numbers below it."""
    if NUMERIC_CELL.search(lines[place]) or not BARE_NUMBER.search(lines[place + 1]):
        return False
    delimiter = _delimiter(lines[place : place + 2])
    names, row = (_split(lines[place + at], delimiter) for at in (0, 1))
    if BARE_NUMBER.search(lines[place]):  # as in "2 threads", above numbers that fill their cells
        filled = [any(NUMERAL.fullmatch(cell.strip()) for cell in line) for line in (names, row)]
        if filled != [False, True]:
            return False
    names = [name for name in names if name.strip()] if len(names) > len(row) else names
    # Spreadsheets write as many delimiters behind a title as behind a row.
    above = _split(lines[place - 1].rstrip(f"{delimiter} "), delimiter) if place else []
    return 1 < len(names) == len(row) != len(above)


def _with_sections(names: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Rows with the title above them, which is a word alone, as another column, where such titles
    part all rows."""
    titles = [bool(WORD.match(row[0])) and not any(row[1:]) for row in rows]
    if len(names) < 2 or sum(titles) < FEWEST_SECTIONS or not titles[0] or all(titles):
        return names, rows
    return with_sections(names, rows, titles)


def _apart(lines: Sequence[str]) -> list[str]:
    """Lines with tabs where two or more spaces part equally many cells in each, but single ones do
    not, as where "time (s)" is the name of a row; none elsewhere."""
    written = [line for line in lines if line.strip()]
    apart = [re.split(r" {2,}", line.strip()) for line in lines]
    widths = {len(row) for row in apart if row != [""]}
    alike = len(widths) == 1 < max(widths) and len({len(line.split()) for line in written}) > 1
    return ["\t".join(row) for row in apart] if alike else []


def _in_words(name: str, lines: Sequence[str], sample: Sequence[str]) -> list[str]:
    """Lines with tabs between words, and between the names in the first line of the sample.

    Raises InputError for lines most of which have fewer words than there are names.
    """
    titles = _names(sample[0], sample[1]) or sample[0].split()
    place = lines.index(sample[0])
    content = ["\t".join(without_remarks(line.split(), len(titles))) for line in lines]
    content[place] = "\t".join(titles)
    short = sum(len(line.split()) < len(titles) for line in sample[1:])
    if short > MOSTLY_SHORT * (len(sample) - 1):
        first = textwrap.shorten(sample[0], LONGEST_LINE, placeholder=" ...")
        what = f"no table: most lines have fewer words than the first, {first!r}"
        advice = "write the column names on one line, and below it each measurement on one line"
        raise InputError.of(name, "file", what, advice)
    return content


def _without_comment(line: str) -> str:
    """A row of numbers without the comment at its end."""
    return ROW_COMMENT.sub("", line) if NUMERIC_ROW.match(line) else line


def _headers(lines: Sequence[str], row: str) -> Iterator[int]:
    """The places of comments above a row of numbers that have a name for each of its cells, the
    nearest first."""
    for place in range(len(lines) - 1, -1, -1) if row and not WORD.search(row) else ():
        names = lines[place].startswith("#") and _names(lines[place].strip("# "), row)
        if names and len(names) > 1 and not any(map(NUMERAL.fullmatch, names)):
            yield place


def _sample(name: str, lines: Sequence[str]) -> list[str]:
    sample = list(itertools.islice((line for line in lines if line.strip()), SAMPLE_LINES))
    if len(sample) < 2:
        advice = "write a line of column names first"
        raise InputError.of(name, "file", "no header with rows below it", advice)
    return sample


def _below_prose(lines: Sequence[str]) -> list[str]:
    """The longest run of lines with equal numbers of cells, words first and numbers below; all
    lines if there is none, or if the first line may hold its names."""
    place, first = next(item for item in enumerate(lines) if item[1].strip())
    alone = not "".join(lines[place + 1 : place + 2]).strip()
    best: list[str] = []
    splitters: tuple[str | None, ...] = (*DELIMITERS, None) if alone else DELIMITERS
    for delimiter in splitters:
        counts = [len(line.split(delimiter)) for line in lines]
        for width, group in itertools.groupby(range(len(lines)), counts.__getitem__):
            run = [lines[number] for number in group]
            names = next((at for at, line in enumerate(run[1:]) if _has_digits(line)), None)
            if width < 2 or names is None or not WORD.search(run[names]):
                continue
            if all(map(_has_digits, run[names + 1 :])):
                best = max(best, run[names:], key=len)
    return list(lines) if not best or first in best else best


def _has_digits(line: str) -> bool:
    return any(map(str.isdigit, line))


def _names(header: str, row: str) -> list[str] | None:
    """Column names, one for each cell of the row below; None if their numbers differ.

    The names may have a delimiter of their own. In columns separated by spaces, names that contain
    spaces are two or more spaces apart.
    """
    delimiter = _delimiter([row])
    named = [_split(header, one) for one in (delimiter, *DELIMITERS)]
    if delimiter == SPACES:
        named = [re.split(r"\s{2,}|\t", header.strip()), header.split()]
    if MARKED.search(header):
        named = [[" ".join(part.split()) for part in MARKED.split(header)], *named]
        if len(named[0]) == len(row.split()):
            return named[0]
    width = len(_split(row, delimiter))
    return next((names for names in named if len(names) == width), None)


def _split(line: str, delimiter: str) -> list[str]:
    """The cells of a line, as CSV, in which quotes may hold the delimiter; of an empty one none."""
    if delimiter == SPACES or not line.strip():
        return line.split()
    return next(csv.reader([line], delimiter=delimiter), [])


def _delimiter(lines: Sequence[str]) -> str:
    """The delimiter that occurs in the header, and equally often in most rows."""

    def agreement(delimiter: str) -> tuple[float, int]:
        counts = [len(_split(line, delimiter)) for line in lines]
        if set(counts[1:]) == {1}:
            return 0.0, 1  # of a sentence above the table
        return (Counter(counts)[counts[0]] / len(counts) if counts[0] > 1 else 0.0, counts[0])

    try:
        best = max(DELIMITERS, key=agreement)
        aligned = best == "\t" and any(map(ALIGNED.search, lines))
        return best if agreement(best)[0] and not aligned else SPACES
    except csv.Error:
        return ","


def _cells(name: str, lines: Sequence[str], delimiter: str) -> tuple[list[str], list[list[str]]]:
    csv.field_size_limit(MAX_CELL)
    reader = csv.reader(io.StringIO("\n".join(lines)), delimiter=delimiter, skipinitialspace=True)
    rows, places = [], []
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            while cells and not cells[-1]:
                cells.pop()
            if cells:
                rows.append(cells)
                places.append(f"line {reader.line_num}")
    except csv.Error as error:
        line = f"line {reader.line_num}"
        raise InputError.of(name, line, str(error), "correct the quotes here") from None
    header, *below = rows or [[]]
    named = [name for name in header if name]
    if delimiter == "\t" and len(named) < len(header) and {*map(len, below)} == {len(named)}:
        header = named  # some names are two tabs apart
    if any(map(MARKUP.search, lines)):  # copied from a page
        header, *below = [[*map(without_markup, row)] for row in (header, *below)]
    width = len(header)  # beyond which a cell may be a comment
    below = [row[:width] if "".join(row[width:]).startswith("#") else row for row in below]
    advice = "quote cells that hold the delimiter"
    return rectangular(name, header, below, places=places[1:], advice=advice)
