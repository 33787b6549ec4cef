"""Tables of others as DataFrames of text: delimited, in Markdown or LaTeX, or of nccl-tests."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lab.analysis.audit.markup import find_table
from lab.errors import InputError, Problem, nearest

if TYPE_CHECKING:
    import pandas as pd

MAX_BYTES = 50 * 10**6
MAX_CELL = 1_000_000
DELIMITERS = (",", ";", "\t", "|")
SPACES = " "  # where none of these is
SAMPLE_LINES = 50
WORD = re.compile(r"[A-Za-z]{2}")
# What srun -l and mpirun write before a line: "0: " and "[1,0]<stdout>:".
LAUNCHED = re.compile(r"^\s*(?:\d+:|\[\d+,\d+\]<std(?:out|err)>:) ?")
NCCL_RANK = re.compile(r"#?\s*Rank\s+(\d+)\s.*\son\s+(\S+)\s+device\s+\d+\s+\[\w+\]\s+(.+?)\s*$")
NCCL_HEADER = re.compile(r"^[#\s]*size\s+count\s+type\b.*\btime\s+algbw\s+busbw\b")
NCCL_ITERATIONS = re.compile(r"(?<!warmup )\biters:\s*(\d+)")
NCCL_MEASURED = 4  # time, algbw, busbw, errors
NCCL_COLUMNS = [
    *("message_bytes", "variant", "time_us", "algbw_gb_per_s", "busbw_gb_per_s"),
    *("gpus", "nodes", "gpu_name", "repeats"),
]


def read_table(path: str | Path, mapping: Mapping[str, str] | None = None) -> pd.DataFrame:
    """A delimited text file (comma, semicolon, tab, bar, else spaces), the longest table of a text
    in Markdown or LaTeX, or what nccl-tests print, as a DataFrame of text, empty cells as "".

    Notes are in `frame.attrs["notes"]`: lines that start with #, except for column names right
    above numbers, or the text around a table. The file's stem is in `frame.attrs["name"]`. The
    header must have the columns of `mapping`, {canonical name: column}.

    Raises InputError for a file that is missing, larger than 50 MB, not text, without rows, with a
    column twice, with rows longer than the header, or without a column that the mapping names.
    """
    import pandas as pd

    path = Path(path)
    lines = _text(path).splitlines()
    notes = [line.lstrip("# ").rstrip() for line in lines if line.startswith("#")]
    printed = [LAUNCHED.sub("", line) for line in lines]
    if any(NCCL_HEADER.match(line) for line in printed):
        header, rows = _nccl_tests(path, printed)
    elif table := find_table(lines):
        header, rows = _rectangular(path, table.header, table.rows)
        notes = table.notes
    else:
        header, rows = _delimited(path, lines)
    problems = [
        Problem(f"column {name!r}", "is there more than once", "rename one of them")
        for name, count in Counter(header).items()
        if count > 1
    ]
    problems += [
        Problem(f"columns.{name}", f"no column {column!r}", nearest(str(column), header))
        for name, column in (mapping or {}).items()
        if column not in header
    ]
    if problems:
        raise InputError(str(path), problems)
    frame = pd.DataFrame(rows, columns=header, dtype="object")
    frame.attrs["notes"] = notes
    frame.attrs["name"] = path.stem
    return frame


def _error(path: Path, what: str, advice: str, where: str = "file") -> InputError:
    return InputError(str(path), [Problem(where, what, advice)])


def _text(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise _error(path, what, "check the path and its permissions") from None
    if len(raw) > MAX_BYTES:
        raise _error(path, f"larger than {MAX_BYTES // 10**6} MB", "give a table of results")
    is_utf16 = raw.startswith((b"\xff\xfe", b"\xfe\xff"))
    if b"\0" in raw and not is_utf16:
        raise _error(path, "not text", "save the table as CSV")
    # Spreadsheets that do not write UTF-8 write cp1252.
    for encoding in ("utf-16",) if is_utf16 else ("utf-8-sig", "cp1252"):
        with contextlib.suppress(UnicodeDecodeError):
            return raw.decode(encoding)
    raise _error(path, "not UTF-8 text", "save it as CSV in UTF-8")


def _rectangular(
    path: Path, header: list[str], rows: list[list[str]]
) -> tuple[list[str], list[list[str]]]:
    """Names for all columns, and rows as long as they are."""
    for number, row in enumerate(rows, start=1):
        if any(row[len(header) :]):
            what = f"{len(row)} cells under {len(header)} column names"
            raise _error(path, what, "give each column a name", f"row {number}")
    if not rows:
        raise _error(path, "no rows below the column names", "a table needs measurements")
    names = [name or f"unnamed {number}" for number, name in enumerate(header, start=1)]
    width = len(header)
    return names, [[*row[:width], *[""] * (width - len(row))] for row in rows if any(row)]


def _delimited(path: Path, lines: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    # An empty line stays, so that the reader's line numbers are those of the file.
    content = ["" if line.startswith("#") else line for line in lines]
    first = next((number for number, line in enumerate(content) if line.strip()), 0)
    if first and lines[first - 1].startswith("#") and not WORD.search(content[first]):
        header = lines[first - 1].lstrip("#").strip()
        if _names(header, content[first]):
            content[first - 1] = header
    sample = [line for line in content if line.strip()][:SAMPLE_LINES]
    if len(sample) < 2:
        advice = "write a line of column names first"
        raise _error(path, "no header with rows below it", advice)
    delimiter = _delimiter(sample)
    if delimiter == SPACES:
        place = content.index(sample[0])
        content = ["\t".join(line.split()) for line in content]
        content[place] = "\t".join(_names(sample[0], sample[1]) or sample[0].split())
        delimiter = "\t"
    return _cells(path, content, delimiter)


def _names(header: str, row: str) -> list[str] | None:
    """Column names, one for each cell of the row below; None where their numbers differ.

    In columns of spaces, names that hold spaces are two or more of them apart.
    """
    delimiter = _delimiter([row])
    if delimiter != SPACES:
        return header.split(delimiter) if _delimiter([header, row]) == delimiter else None
    splits = (re.split(r"\s{2,}|\t", header.strip()), header.split())
    return next((names for names in splits if len(names) == len(row.split())), None)


def _delimiter(lines: Sequence[str]) -> str:
    """The delimiter that the header has, and most rows as often as the header."""

    def agreement(delimiter: str) -> tuple[float, int]:
        counts = [len(next(csv.reader([line], delimiter=delimiter), [])) for line in lines]
        return (Counter(counts)[counts[0]] / len(counts) if counts[0] > 1 else 0.0, counts[0])

    try:
        best = max(DELIMITERS, key=agreement)
        return best if agreement(best)[0] else SPACES
    except csv.Error:
        return ","


def _cells(path: Path, lines: Sequence[str], delimiter: str) -> tuple[list[str], list[list[str]]]:
    csv.field_size_limit(MAX_CELL)
    reader = csv.reader(io.StringIO("\n".join(lines)), delimiter=delimiter, skipinitialspace=True)
    header: list[str] = []
    rows: list[list[str]] = []
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            while len(cells) > len(header) and not cells[-1]:
                cells.pop()
            if not any(cells):
                continue
            if not header:  # whoever saves a DataFrame leaves the name of its index empty
                header = [cell or f"unnamed {number}" for number, cell in enumerate(cells, start=1)]
                continue
            if len(cells) > len(header):
                what = f"{len(cells)} cells under {len(header)} column names"
                advice = "quote cells that hold the delimiter"
                raise _error(path, what, advice, f"line {reader.line_num}")
            rows.append(cells + [""] * (len(header) - len(cells)))
    except csv.Error as error:
        line = f"line {reader.line_num}"
        raise _error(path, str(error), "mend the quotes here", line) from None
    if not rows:
        raise _error(path, "no rows below the column names", "a table needs measurements")
    return header, rows


def _nccl_tests(path: Path, lines: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """A row for each size, out of place and in place, with what the list of devices says."""
    # Programs that do not know each other all list a rank 0: they measured one rank each.
    devices = [match.groups() for line in lines if (match := NCCL_RANK.match(line))]
    ranks, hosts, gpus = ({device[place] for device in devices} for place in range(3))
    iterations = next((match[1] for line in lines if (match := NCCL_ITERATIONS.search(line))), "")
    facts = [str(len(ranks) or ""), str(len(hosts) or ""), ", ".join(sorted(gpus)), iterations]
    rows = []
    for cells in map(str.split, lines):
        if cells and cells[0].isdigit() and len(cells) > 2 * NCCL_MEASURED:
            out_of_place, in_place = (
                cells[-2 * NCCL_MEASURED : -NCCL_MEASURED],
                cells[-NCCL_MEASURED:],
            )
            for variant, measured in (("out-of-place", out_of_place), ("in-place", in_place)):
                if measured[0] != "N/A":
                    rows.append([cells[0], variant, *measured[:3], *facts])
    if not rows:
        raise _error(path, "nccl-tests printed no sizes", "give all of its output")
    return NCCL_COLUMNS, rows
