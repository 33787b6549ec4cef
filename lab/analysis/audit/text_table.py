"""External tables as DataFrames of text: those of a text, a spreadsheet or a Parquet file."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from lab.analysis.audit.formats import Tables, find_tables, spreadsheet
from lab.analysis.audit.formats.grid import (
    MOST_TABLES,
    NAMED,
    NUMERAL,
    Table,
    most_relevant,
    rectangular,
    unnamed,
)
from lab.analysis.audit.values import BYTE_UNITS, TIME_UNITS
from lab.errors import InputError, Problem, nearest
from lab.files import unreadable
from lab.formatting import count

if TYPE_CHECKING:
    import pandas as pd

MAX_BYTES = 50 * 10**6
STREAM = "standard input"
UNITS = "|".join(map(re.escape, (*TIME_UNITS, *BYTE_UNITS, "%")))
UNIT = re.compile(rf"[(\[]?({UNITS}|[a-z]+/[a-z]+(/[a-z]+)?)[)\]]?", re.IGNORECASE)
NO_UNIT = {"", "-", "–", "—", "#", "/", "[-]", "(-)", "n/a", "x"}
# 11,2465 and 0,5 have a decimal comma, 1.5 and 1,234,567 show that commas group digits.
_UNIT = r"(?:\s*[a-zA-Zµ%]{1,4}\.?)?"  # of a cell such as 4,2 ms
DECIMAL_COMMA = re.compile(rf"-?(?:\d[\d.]*,(?:\d{{1,2}}|\d{{4,}})|0,\d+){_UNIT}")
GROUPED = re.compile(rf"-?[1-9]\d{{0,2}}(?:\.\d{{3}})+(?:,\d+)?{_UNIT}")  # of 65.025 and 1.234,5
DECIMAL_POINT = re.compile(r"\d\.\d|\d,\d{3},")
SURELY_DECIMAL = re.compile(rf"-?0,\d{{3,}}{_UNIT}")  # unlike 0,1 of two devices
THREE_DIGITS = re.compile(rf"-?[1-9]\d{{0,2}},\d{{3}}{_UNIT}")
FEWEST_COMMAS = 2
DECORATION = re.compile("[\u2600-\u27bf\u2b50\ufe0f\U0001f300-\U0001faff]+")
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
            raise InputError.of(name, "table", what, advice)
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
        tables, errors = find_tables(name, _text(stream, name))
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


def _of_sheets(name: str) -> Tables:
    """The tables of a spreadsheet with the names of their sheets, and why others cannot be read."""
    tables: list[Table] = []
    errors: list[InputError] = []
    for sheet, lines in spreadsheet.read_sheets(Path(name)):
        try:
            of_sheet, others = find_tables(name, "\n".join(lines))
        except InputError as error:
            of_sheet, others = [], [error]
        tables += [table._replace(notes=[sheet, *table.notes]) for table in of_sheet]
        errors += [
            InputError(name, [replace(problem, where=f"sheet {sheet!r}: {problem.where}")])
            for error in others
            for problem in error.problems
        ]
    return most_relevant(tables), errors


def _frame(name: str, header: list[str], rows: list[list[str]]) -> pd.DataFrame:
    import numpy as np
    import pandas as pd

    header, rows = rectangular(name, header, rows)
    rows = [[cell if cell.isascii() else _undecorated(cell) for cell in row] for row in rows]
    header, rows = _with_units(header, _with_points(rows))
    several = [name for name, times in Counter(header).items() if times > 1]
    if any(map(NUMERAL.fullmatch, several)):
        raise unnamed(name, header)
    problems = [
        Problem(f"column {name!r}", "appears more than once", "rename one of them")
        for name in several
    ]
    if problems:
        raise InputError(name, problems)
    cells = np.array(rows, dtype=object).reshape(len(rows), len(header))
    return pd.DataFrame(cells, columns=header, dtype="object")


def _undecorated(cell: str) -> str:
    """A cell without emojis and check marks, unless it holds nothing else."""
    if not DECORATION.search(cell):
        return cell
    plain = DECORATION.sub("", cell).replace("**", "").strip()
    return plain if any(map(str.isalnum, plain)) else cell


def _place(frame: pd.DataFrame) -> str:
    """Where a table is, by the heading or sentence above it and its first columns."""
    above = (note.strip(" *_:") for note in frame.attrs["notes"] if not note.startswith("!["))
    # The caption, or the heading that follows it.
    short = [note for note in itertools.islice(above, 2) if 0 < len(note) <= LONGEST_HEADING]
    under = f"under {short[0]!r}, " if short else ""
    return f"{under}below {' | '.join(frame.columns[:NAMED])!r}"


def _text(stream: IO[Any] | None, name: str) -> str:
    try:
        if stream:
            raw = stream.read(MAX_BYTES + 1)
        else:
            with Path(name).open("rb") as opened:
                raw = opened.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise unreadable(Path(name), error) from None
    if len(raw) > MAX_BYTES:
        what = f"larger than {MAX_BYTES // 10**6} MB"
        raise InputError.of(name, "file", what, "give a table of results")
    if isinstance(raw, str):
        return raw
    is_utf16 = raw.startswith((b"\xff\xfe", b"\xfe\xff"))
    if b"\0" in raw and not is_utf16:
        raise InputError.of(name, "file", "not text", "save the table as CSV")
    # Spreadsheets that do not save UTF-8 save cp1252.
    for encoding in ("utf-16",) if is_utf16 else ("utf-8-sig", "cp1252"):
        with contextlib.suppress(UnicodeDecodeError):
            return str(raw.decode(encoding))
    raise InputError.of(name, "file", "not UTF-8 text", "save it as CSV in UTF-8")


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
    if commas < FEWEST_COMMAS and not any(map(SURELY_DECIMAL.fullmatch, cells)):
        return rows
    if not all(map(GROUPED.fullmatch, filter(DECIMAL_POINT.search, cells))):
        return rows
    # Of a column without other numbers, points may be decimal.
    grouped = [
        any(cell[:1].isdigit() and ("," in cell or not GROUPED.fullmatch(cell)) for cell in column)
        for column in zip(*rows, strict=True)
    ]
    return [
        [_with_point(cell, grouped=some) for cell, some in zip(row, grouped, strict=True)]
        for row in rows
    ]


def _with_point(cell: str, *, grouped: bool) -> str:
    """A cell with a decimal point for a comma before three digits, without points that group."""
    if THREE_DIGITS.fullmatch(cell):
        return cell.replace(",", ".")
    return cell.replace(".", "") if grouped and GROUPED.fullmatch(cell) else cell


def _parquet(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        with path.open("rb") as stream:
            frame = pd.read_parquet(stream)
    except Exception as error:  # noqa: BLE001  (a damaged file may raise any of pyarrow's errors)
        what = getattr(error, "strerror", None) or str(error).split("\n")[0]
        raise InputError.of(
            path, "file", f"cannot be read as Parquet: {what}", "give a table of results"
        ) from None
    # A column without a type of text holds bytes, which need not be UTF-8.
    for name, kind in frame.dtypes.items():
        if kind == "object":
            frame[name] = frame[name].map(
                lambda cell: cell.decode("utf-8", "replace") if isinstance(cell, bytes) else cell
            )
    frame.attrs |= {"name": path.stem, "number": 1}
    return frame
