"""External tables as DataFrames of text: delimited, marked up, or printed by nccl-tests."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from lab.analysis.audit import lists, logs, printed, sections, spreadsheet, wiki
from lab.analysis.audit.collectives import find_collectives
from lab.analysis.audit.markup import (
    Table,
    as_text,
    find_tables,
    most_relevant,
    relevance,
    without_remarks,
)
from lab.analysis.audit.values import BYTE_UNITS, TIME_UNITS
from lab.errors import InputError, Problem, nearest
from lab.formatting import count

if TYPE_CHECKING:
    import pandas as pd

MAX_BYTES = 50 * 10**6
MAX_CELL = 1_000_000
MOST_TABLES = 200  # of a text
STREAM = "standard input"
DELIMITERS = (",", ";", "\t", "|")
SPACES = " "  # if none of these occurs
PROSE = (".", ":", "!", "?")  # ends of lines that are not column names
SAMPLE_LINES = 50
WORD = re.compile(r"[A-Za-z]{2}")
# Line prefixes of launchers: "0: " (srun -l), "[1,0]<stdout>:" (mpirun, after a time if
# requested), "[0] " (mpiexec -l), "[rank0]: " (torchrun); in nccl-tests output also "node1: ".
LAUNCHED = re.compile(
    r"^(?:\s*\d+:\s|[^\[]{0,40}\[\w+,\w+\](?:\[[\w.:-]*\])?<std(?:out|err)>: ?"
    r"|\s*\[(?:rank|default)?\d+\]:?\s)"
)
HOST = re.compile(r"^[A-Za-z][\w.-]*:\s")
SEPARATOR = re.compile(r"sep=.\s*", re.IGNORECASE)  # a first line for spreadsheets
# "#GPUs," and "# of GPUs," are the first column's name, no note.
NUMBERED_NAME = re.compile(r"# ?\w+( \w+){0,2}\s*[,;\t|]")
MARKED = re.compile(r"\s#\s?(?=\w)")  # each name of "#nodes #ranks #time (s)"
ALIGNED = re.compile(r"\d {2,}\d")  # with spaces, beside tabs
# Of a row of numbers between spaces: "8  1.23  # repeated".
ROW_COMMENT = re.compile(r"(?<=\d)\s+#.*$")
NUMERIC_ROW = re.compile(r"\s*\d[^#,;|]*\s#")
NUMERIC_CELL = re.compile(r"(^|[,;\t|])\s*[\d.]+\s*([,;\t|]|$)")
UNITS = "|".join(map(re.escape, (*TIME_UNITS, *BYTE_UNITS, "%")))
UNIT = re.compile(rf"[(\[]?({UNITS}|[a-z]+/[a-z]+(/[a-z]+)?)[)\]]?", re.IGNORECASE)
NO_UNIT = {"", "-", "–", "—", "#", "/", "[-]", "(-)", "n/a", "x"}
QUOTED, FENCE = re.compile(r"^\s{0,3}>\s?"), re.compile(r"\s*(?:```|~~~)")
# 11,2465 and 0,5 have a decimal comma, 1.5 and 1,234,567 show that commas group digits.
NUMERAL = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.IGNORECASE)
BARE_NUMBER = re.compile(r"(?<![^\s,;|])-?\d+(?:\.\d+)?(?![^\s,;|])")  # that fills a cell
_UNIT = r"(?:\s*[a-zA-Zµ%]{1,4}\.?)?"  # of a cell such as 4,2 ms
DECIMAL_COMMA = re.compile(rf"-?(?:\d+,(?:\d{{1,2}}|\d{{4,}})|0,\d+){_UNIT}")
DECIMAL_POINT = re.compile(r"\d\.\d|\d,\d{3},")
THREE_DIGITS = re.compile(rf"-?[1-9]\d{{0,2}},\d{{3}}{_UNIT}")
FEWEST_COMMAS = 2
FEWEST_SECTIONS = 2
BULLET = re.compile(r"\s*[-*•]\s+\S*[^\W\d_]{2}")
NAMED = 3  # columns in a sentence
LONGEST_HEADING = 80  # characters


def read_table(
    source: str | Path | IO[Any],
    mapping: Mapping[str, str] | None = None,
    *,
    number: int | None = None,
) -> pd.DataFrame:
    """One table of `read_tables`: of that number, else the longest, the first if tied.

    `frame.attrs["assumptions"]` says which of several tables it is. Raises InputError for a number
    beyond them.
    """
    frames = read_tables(source, mapping if number is None else None)
    frame = max(frames, key=len)
    if number is not None:
        name = str(source) if isinstance(source, str | Path) else STREAM
        if not 0 < number <= len(frames):
            what = f"holds {count(len(frames), 'table')} of results, not {number}"
            several = len(frames) > 1
            advice = f"give a number from 1 to {len(frames)}" if several else "leave it out"
            raise _error(name, what, advice, "table")
        frame = frames[number - 1]
        if problems := _lacking(frame, mapping or {}):
            raise InputError(name, problems)
    if len(frames) > 1:
        which = f"table {frame.attrs['number']} is read, {frame.attrs['place']}"
        others = frames[0].attrs["assumptions"]
        frame.attrs["assumptions"] = [f"{which}; --table N reads another", *others]
    return frame


def read_tables(
    source: str | Path | IO[Any], mapping: Mapping[str, str] | None = None
) -> list[pd.DataFrame]:
    """Read delimited text (comma, semicolon, tab, bar, else spaces), tables of a notebook or of a
    text in Markdown, HTML, LaTeX or reStructuredText, the output of nccl-tests or of the OSU
    micro-benchmarks, or the sheets of a spreadsheet as DataFrames of text, empty cells as "". A
    Parquet file is read as it is.

    `source` is a path or an open stream. Of several tables, those that say most of scaling are
    read, in the order of the text. Notes are in `frame.attrs["notes"]`: lines that start with #,
    except for column names right above numbers, or the text around a table. The file's stem is in
    `frame.attrs["name"]`, the table's number in `frame.attrs["number"]`, and where it is in
    `frame.attrs["place"]`; `frame.attrs["logged"]` marks the lines of a log. The header must have
    the columns of `mapping`, {canonical name: column}; of several tables, only those that have them
    are returned.

    Raises InputError for a file that is missing, larger than 50 MB, not text, without rows, with a
    column twice, with rows longer than the header, or without a column that the mapping names.
    """
    stream = None if isinstance(source, str | Path) else source
    name = STREAM if stream else str(source)
    suffix = "" if stream else Path(name).suffix.lower()
    if suffix == ".parquet":
        return [_parquet(Path(name))]
    frames: list[pd.DataFrame] = []
    if suffix in spreadsheet.SUFFIXES | spreadsheet.OTHERS:
        tables, errors = _of_sheets(name)
    else:
        tables, errors = _parsed(name, as_text(_text(stream, name)))
    for header, rows, notes, logged in tables[:MOST_TABLES]:
        try:
            frame = _frame(name, header, rows)
        except InputError as error:
            errors.append(error)
        else:
            about = {"notes": notes, "name": name if stream else Path(name).stem}
            frame.attrs |= about | {"number": len(frames) + 1}
            if logged:
                frame.attrs["logged"] = True
            frames.append(frame)
    suited = []
    for frame in frames:
        frame.attrs["place"] = _place(frame) if len(frames) > 1 else ""
        if problems := _lacking(frame, mapping or {}):
            errors.append(InputError(name, problems))
        else:
            suited.append(frame)
    if not suited:
        raise errors[0]
    suited[0].attrs["assumptions"] = left_out(errors)
    if len(tables) > MOST_TABLES:
        suited[0].attrs["assumptions"] += [f"only the first {MOST_TABLES} tables are read"]
    return suited


def _lacking(frame: pd.DataFrame, mapping: Mapping[str, str]) -> list[Problem]:
    """The columns of a mapping that a table does not have."""
    return [
        Problem(f"columns.{name}", f"no column {column!r}", nearest(str(column), frame.columns))
        for name, column in mapping.items()
        if column not in frame
    ]


def left_out(errors: Iterable[InputError]) -> list[str]:
    """Which tables of a text are not read, and why."""
    reasons = (
        f"another table is left out: {problem.where}: {problem.what}"
        for error in errors
        for problem in error.problems
    )
    return list(dict.fromkeys(reasons))


def _parsed(name: str, text: str) -> tuple[Sequence[Table], list[InputError]]:
    """The tables of a text, and why others cannot be read."""
    lines = _unmarked(text.splitlines())
    notes = [line.lstrip("# ").rstrip() for line in lines if line.startswith("#")]
    launched = [HOST.sub("", LAUNCHED.sub("", line)) for line in lines]
    if of_collectives := find_collectives(launched, name):
        return [Table(*of_collectives, notes)], []
    if tables := find_tables(wiki.as_markdown(lines)):
        return [table._replace(header=_numbered(table.header)) for table in tables], []
    lines = _with_groups(lines)
    in_columns = [Table(*parsed) for parsed in printed.tables(lines)]
    if any(map(relevance, in_columns)):
        return most_relevant(in_columns), []
    if of_json := [Table(*parsed, notes) for parsed in logs.find_records(text)]:
        return [max(of_json, key=lambda table: (relevance(table), len(table.rows)))], []
    if of_sections := sections.find_sections(lines):
        return [Table(*of_sections, notes)], []
    if not _is_headed(lines) and (log := logs.find_log(text.splitlines())):
        return [Table(*log, notes, logged=True)], []
    if of_lists := lists.find_lists(lines):
        return [Table(*parsed) for parsed in of_lists], []
    errors: list[InputError] = []
    for titles, block in _blocks(lines):
        try:
            tables.append(Table(*_delimited(name, block), titles))
        except InputError as error:
            errors.append(error)
    if any(map(relevance, tables)):
        return most_relevant(tables), errors
    try:
        table = Table(*_delimited(name, lines), notes)
    except InputError:
        if of_sections := sections.find_sections(lines, fewest=1):
            return [Table(*of_sections, notes)], []
        if not (below := _below_title(name, lines)):
            raise
        return below, []
    if not relevance(table):
        with contextlib.suppress(InputError):  # a title, "GPT-2, batch 512", is not the header
            if any(map(relevance, below := _below_title(name, lines))):
                return below, []
    repeated = len({*table.header}) < len(table.header)
    section = sections.find_sections(lines, fewest=1) if repeated else None
    return [Table(*section, notes) if section else table], []


def _below_title(name: str, lines: Sequence[str]) -> list[Table]:
    """The first table whose line of names is right above numbers, if any."""
    blocks = _blocks(lines, fewest=1)[:1]
    return [Table(*_delimited(name, block), titles) for titles, block in blocks]


def _of_sheets(name: str) -> tuple[Sequence[Table], list[InputError]]:
    """The tables of a spreadsheet with the names of their sheets, and why others cannot be read."""
    tables: list[Table] = []
    errors: list[InputError] = []
    for sheet, lines in spreadsheet.read_sheets(Path(name)):
        try:
            of_sheet, others = _parsed(name, "\n".join(lines))
        except InputError as error:
            of_sheet, others = [], [error]
        tables += [table._replace(notes=[sheet, *table.notes]) for table in of_sheet]
        errors += [
            InputError(name, [replace(problem, where=f"sheet {sheet!r}: {problem.where}")])
            for error in others
            for problem in error.problems
        ]
    return most_relevant(tables), errors


def _blocks(lines: Sequence[str], *, fewest: int = 2) -> list[tuple[list[str], list[str]]]:
    """Delimited tables below each other, each with its own line of column names: the lines above
    it and its lines; none if there are fewer."""
    starts = (place for place in range(len(lines) - 1) if _is_above_rows(lines, place))
    limits = [*itertools.islice(starts, MOST_TABLES + 1), len(lines)]
    blocks, end = [], 0
    for start, limit in itertools.pairwise(limits) if len(limits) > fewest else ():
        delimiter = _delimiter(lines[start : start + 2])
        width = min(len(_split(line, delimiter)) for line in lines[start : start + 2])
        titles = [line.strip("# ") for line in lines[end:start] if line.strip("# ")]
        end = 1 + max(
            at
            for at in range(start + 1, limit)
            if _has_digits(lines[at]) and len(_split(lines[at], delimiter)) >= width
        )
        # Below empty lines, so that an error's line is that of the file.
        blocks.append((titles, [*[""] * start, *lines[start:end]]))
    return blocks


def _with_groups(lines: Sequence[str]) -> list[str]:
    """Lines with one line of names above numbers, where spreadsheets and pandas have two: the names
    of groups, each over several columns, and below them names that occur in each group."""
    joined = list(lines)
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
            joined[place : place + 2 + index] = ["", delimiter.join(quoted), *[""] * index]
    return joined


def _below_groups(groups: Sequence[str], names: Sequence[str]) -> list[str]:
    """Names with their groups: "DDP time", "DDP speedup"; a cell stands for those right of it too,
    unless the name below it is empty, as it then fills both lines."""
    group, full = "", []
    for above, name in zip(groups, names, strict=True):
        group = above or group
        full.append(" ".join(dict.fromkeys(filter(None, (group, name)))))
        group = group if name else ""
    return full


def _is_above_rows(lines: Sequence[str], place: int) -> bool:
    """Whether a line at the beginning of a text, or below an empty line or a title, has a name for
    each cell of the numbers below it."""
    if BARE_NUMBER.search(lines[place]) or not BARE_NUMBER.search(lines[place + 1]):
        return False
    delimiter = _delimiter(lines[place : place + 2])
    names, row = (_split(lines[place + at], delimiter) for at in (0, 1))
    names = [name for name in names if name.strip()] if len(names) > len(row) else names
    above = _split(lines[place - 1], delimiter) if place else []
    return 1 < len(names) == len(row) != len(above)


def _frame(name: str, header: list[str], rows: list[list[str]]) -> pd.DataFrame:
    import pandas as pd

    header, rows = _rectangular(name, header, rows)
    header, rows = _with_units(header, _with_points(rows))
    several = [name for name, times in Counter(header).items() if times > 1]
    if any(map(NUMERAL.fullmatch, several)):
        raise _unnamed(name, header)
    problems = [
        Problem(f"column {name!r}", "appears more than once", "rename one of them")
        for name in several
    ]
    if problems:
        raise InputError(name, problems)
    return pd.DataFrame(rows, columns=header, dtype="object")


def _place(frame: pd.DataFrame) -> str:
    """Where a table is, by the heading or sentence above it and its first columns."""
    above = (note.strip(" *_:") for note in frame.attrs["notes"] if not note.startswith("!["))
    # The caption, or the heading that follows it.
    short = [note for note in itertools.islice(above, 2) if 0 < len(note) <= LONGEST_HEADING]
    under = f"under {short[0]!r}, " if short else ""
    return f"{under}below {' | '.join(frame.columns[:NAMED])!r}"


def _error(name: str, what: str, advice: str, where: str = "file") -> InputError:
    return InputError(name, [Problem(where, what, advice)])


def _text(stream: IO[Any] | None, name: str) -> str:
    try:
        if stream:
            raw = stream.read(MAX_BYTES + 1)
        else:
            with Path(name).open("rb") as opened:
                raw = opened.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise _error(name, what, "check the path and its permissions") from None
    if len(raw) > MAX_BYTES:
        raise _error(name, f"larger than {MAX_BYTES // 10**6} MB", "give a table of results")
    if isinstance(raw, str):
        return raw
    is_utf16 = raw.startswith((b"\xff\xfe", b"\xfe\xff"))
    if b"\0" in raw and not is_utf16:
        raise _error(name, "not text", "save the table as CSV")
    # Spreadsheets that do not save UTF-8 save cp1252.
    for encoding in ("utf-16",) if is_utf16 else ("utf-8-sig", "cp1252"):
        with contextlib.suppress(UnicodeDecodeError):
            return str(raw.decode(encoding))
    raise _error(name, "not UTF-8 text", "save it as CSV in UTF-8")


def _unmarked(lines: Sequence[str]) -> list[str]:
    """Lines without quotation marks or launcher prefixes at their start, and without the fences of
    code blocks."""
    for mark in (QUOTED, LAUNCHED):
        if any(lines) and all(mark.match(line) for line in lines if line.strip()):
            lines = [mark.sub("", line) for line in lines]
    return [
        "" if FENCE.match(line) or (number == 0 and SEPARATOR.fullmatch(line)) else line
        for number, line in enumerate(lines)
    ]


def _with_units(header: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Names with their units, if the first row holds nothing else."""
    units = ["" if cell.lower() in NO_UNIT else cell for cell in (rows or [[]])[0]]
    if len(rows) < 2 or not any(units) or not all(map(UNIT.fullmatch, filter(None, units))):
        return header, rows
    names = zip(header, units, strict=True)
    return [f"{name} ({unit.strip('()[]')})" if unit else name for name, unit in names], rows[1:]


def _with_points(rows: list[list[str]]) -> list[list[str]]:
    """Cells such as 1,452 with a decimal point, where other cells show that commas are decimal."""
    cells = [cell for row in rows for cell in row]
    commas = sum(map(bool, map(DECIMAL_COMMA.fullmatch, cells)))
    if commas < FEWEST_COMMAS or any(map(DECIMAL_POINT.search, cells)):
        return rows
    return [
        [cell.replace(",", ".") if THREE_DIGITS.fullmatch(cell) else cell for cell in row]
        for row in rows
    ]


def _numbered(header: Sequence[str]) -> list[str]:
    """Names of a published table: the second "Speedup" becomes "Speedup (2)"."""
    places = [header[: place + 1].count(text) for place, text in enumerate(header)]
    return [
        f"{text} ({place})" if text and place > 1 else text
        for text, place in zip(header, places, strict=True)
    ]


def _rectangular(
    name: str,
    header: list[str],
    rows: list[list[str]],
    *,
    places: Sequence[str] = (),
    advice: str = "give each column a name",
) -> tuple[list[str], list[list[str]]]:
    """Names for all columns, and rows of equal length; errors name the row, or its place."""
    width = len(header)
    for number, row in enumerate(rows):
        if any(row[width:]):
            what = f"{len(row)} cells under {width} column names"
            raise _error(name, what, advice, places[number] if places else f"row {number + 1}")
    if not rows:
        raise _error(name, "no rows below the column names", "a table needs measurements")
    # A saved DataFrame has an empty name for its index.
    names = [text or f"unnamed {number}" for number, text in enumerate(header, start=1)]
    return names, [[*row[:width], *[""] * (width - len(row))] for row in rows if any(row)]


def _delimited(name: str, lines: Sequence[str]) -> tuple[list[str], list[list[str]]]:
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
            raise _error(name, "a list of sentences, not a table", advice)
        content = _apart(content) or _in_words(content, sample)
        delimiter = "\t"
    names, rows = _cells(name, content, delimiter)
    if all(map(NUMERAL.fullmatch, names)) and any("." in name for name in names):
        raise _unnamed(name, names)
    return _with_sections(names, rows)


def _with_sections(names: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Rows with the title above them, which is a word alone, as another column, where such titles
    part all rows."""
    titles = [bool(WORD.match(row[0])) and not any(row[1:]) for row in rows]
    if len(names) < 2 or sum(titles) < FEWEST_SECTIONS or not titles[0] or all(titles):
        return names, rows
    section, within = "", []
    for row, is_title in zip(rows, titles, strict=True):
        section = row[0] if is_title else section
        within += [] if is_title else [[*row, section]]
    return [*names, "section"], within


def _apart(lines: Sequence[str]) -> list[str]:
    """Lines with tabs where two or more spaces part equally many cells in each, but single ones do
    not, as where "time (s)" is the name of a row; none elsewhere."""
    written = [line for line in lines if line.strip()]
    apart = [re.split(r" {2,}", line.strip()) for line in lines]
    widths = {len(row) for row in apart if row != [""]}
    alike = len(widths) == 1 < max(widths) and len({len(line.split()) for line in written}) > 1
    return ["\t".join(row) for row in apart] if alike else []


def _in_words(lines: Sequence[str], sample: Sequence[str]) -> list[str]:
    """Lines with tabs between words, and between the names in the first line of the sample."""
    titles = _names(sample[0], sample[1]) or sample[0].split()
    place = lines.index(sample[0])
    content = ["\t".join(without_remarks(line.split(), len(titles))) for line in lines]
    content[place] = "\t".join(titles)
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


def _unnamed(name: str, names: Sequence[str]) -> InputError:
    """The error for a table whose first line has numbers."""
    what = f"values instead of column names: {', '.join(names[:NAMED])}, ..."
    return _error(name, what, "write a line of column names above them")


def _sample(name: str, lines: Sequence[str]) -> list[str]:
    sample = list(itertools.islice((line for line in lines if line.strip()), SAMPLE_LINES))
    if len(sample) < 2:
        advice = "write a line of column names first"
        raise _error(name, "no header with rows below it", advice)
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
    width = len(_split(row, delimiter))
    return next((names for names in named if len(names) == width), None)


def _is_headed(lines: Sequence[str]) -> bool:
    """Whether lines are those of a delimited table, whose cells may look like a log: all have as
    many cells as the first, which says nothing of numbers."""
    content = (line for line in lines if line.strip() and not line.startswith("#"))
    sample = list(itertools.islice(content, SAMPLE_LINES))
    if len(sample) < 2 or re.search(r"[=:]\s*[-+.\d]", sample[0]):
        return False
    delimiter = _delimiter(sample)
    widths = {len(_split(line, delimiter)) for line in sample}
    return len(widths) == 1 and not (delimiter == SPACES and _has_digits(sample[0]))


def _split(line: str, delimiter: str) -> list[str]:
    """The cells of a line, as CSV, in which quotes may hold the delimiter; of an empty one none."""
    if delimiter == SPACES or not line.strip():
        return line.split()
    return next(csv.reader([line], delimiter=delimiter), [])


def _delimiter(lines: Sequence[str]) -> str:
    """The delimiter that occurs in the header, and equally often in most rows."""

    def agreement(delimiter: str) -> tuple[float, int]:
        counts = [len(_split(line, delimiter)) for line in lines]
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
        raise _error(name, str(error), "correct the quotes here", line) from None
    header, *below = rows or [[]]
    named = [name for name in header if name]
    if delimiter == "\t" and len(named) < len(header) and {*map(len, below)} == {len(named)}:
        header = named  # some names are two tabs apart
    advice = "quote cells that hold the delimiter"
    return _rectangular(name, header, below, places=places[1:], advice=advice)


def _parquet(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        with path.open("rb") as stream:
            frame = pd.read_parquet(stream)
    except Exception as error:  # noqa: BLE001  (a damaged file may raise any of pyarrow's errors)
        what = getattr(error, "strerror", None) or str(error).split("\n")[0]
        problem = Problem("file", f"cannot be read as Parquet: {what}", "give a table of results")
        raise InputError(str(path), [problem]) from None
    # A column without a type of text holds bytes, which need not be UTF-8.
    for name, kind in frame.dtypes.items():
        if kind == "object":
            frame[name] = frame[name].map(
                lambda cell: cell.decode("utf-8", "replace") if isinstance(cell, bytes) else cell
            )
    frame.attrs |= {"name": path.stem, "number": 1}
    return frame
