"""Tables that others wrote: a text file as a DataFrame of text, and words where it cannot be one."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lab.errors import InputError, Problem, nearest

if TYPE_CHECKING:
    import pandas as pd


MAX_BYTES = 50 * 10**6
DELIMITERS = (",", ";", "\t", "|")
MAX_CELL = 1_000_000
SPACES = " "  # where none of these is
SAMPLE_LINES = 50
WORD = re.compile(r"[A-Za-z]{2}")


def read_table(path: str | Path, mapping: Mapping[str, str] | None = None) -> pd.DataFrame:
    """A delimited text file (comma, semicolon, tab, bar, else spaces) as a DataFrame of text, empty cells as "".

    What nccl-tests print is such a file too.

    Lines that start with # are no data, but for one with column names right above numbers; their text is in
    `frame.attrs["notes"]`, the file's stem in `frame.attrs["name"]`. `mapping` is {canonical name: column}, checked against
    the header.

    Raises InputError for a file that is missing, larger than 50 MB, not text, without rows, with a column twice, with
    rows longer than the header, or without a column that the mapping names.
    """
    import pandas as pd

    path = Path(path)
    lines = _text(path).splitlines()
    notes = [line.lstrip("# ").rstrip() for line in lines if line.startswith("#")]
    header, rows = _of_nccl_tests(path, lines) if is_output(lines) else _of_text(path, lines)
    _check_header(path, header, mapping)
    frame = pd.DataFrame(rows, columns=header, dtype="object")
    frame.attrs |= {"notes": notes, "name": path.stem}
    return frame


def _of_nccl_tests(path: Path, lines: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    rows = rows_of(lines)
    if not rows:
        raise InputError(
            str(path), [Problem("file", "nccl-tests printed no sizes", "give all of its output")]
        )
    return list(COLUMNS), rows


def _of_text(path: Path, lines: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    # An empty line stays, so that the reader's line numbers are those of the file.
    content = _with_header(lines, ["" if line.startswith("#") else line for line in lines])
    sample = [line for line in content if line.strip()][:SAMPLE_LINES]
    if len(sample) < 2:
        raise InputError(
            str(path),
            [Problem("file", "no header with rows below it", "write a line of column names first")],
        )
    delimiter = _delimiter(sample)
    if delimiter == SPACES:
        content, delimiter = _tabbed(content), "\t"
    return _cells(path, content, delimiter)


def _with_header(lines: Sequence[str], content: list[str]) -> list[str]:
    """The content with a commented header uncommented: as many names as there are numbers right below it."""
    first = next((number for number, line in enumerate(content) if line.strip()), 0)
    if first == 0 or not lines[first - 1].startswith("#") or WORD.search(content[first]):
        return content
    header = lines[first - 1].lstrip("#").strip()
    if _delimiter([content[first]]) == SPACES:
        named = len(_names(header, content[first])) == len(content[first].split())
    else:
        named = _delimiter([header, content[first]]) == _delimiter([content[first]])
    return [*content[: first - 1], header, *content[first:]] if named else content


def _tabbed(content: Sequence[str]) -> list[str]:
    """A table in columns of spaces with tabs instead."""
    header, row = [line for line in content if line.strip()][:2]
    tabbed = ["\t".join(line.split()) for line in content]
    tabbed[content.index(header)] = "\t".join(_names(header, row))
    return tabbed


def _names(header: str, row: str) -> list[str]:
    """The column names above a row of cells without spaces; names that hold spaces are two or more of them apart."""
    apart = re.split(r"\s{2,}|\t", header.strip())
    return apart if len(apart) == len(row.split()) else header.split()


def _text(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise InputError(
            str(path), [Problem("file", what, "check the path and its permissions")]
        ) from None
    if len(raw) > MAX_BYTES:
        raise InputError(
            str(path),
            [Problem("file", f"larger than {MAX_BYTES // 10**6} MB", "give a table of results")],
        )
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return _decoded(path, raw, "utf-16")
    if b"\0" in raw:
        raise InputError(str(path), [Problem("file", "not text", "save the table as CSV")])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return _decoded(
            path, raw, "cp1252"
        )  # what spreadsheets write where they do not write UTF-8


def _decoded(path: Path, raw: bytes, encoding: str) -> str:
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError:
        raise InputError(
            str(path), [Problem("file", "not UTF-8 text", "save it as CSV in UTF-8")]
        ) from None


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
            if not any(cells):
                continue
            if not header:
                header = _header(cells)
                continue
            while len(cells) > len(header) and not cells[-1]:
                cells.pop()
            if len(cells) > len(header):
                what = f"{len(cells)} cells under {len(header)} column names"
                raise InputError(
                    str(path),
                    [
                        Problem(
                            f"line {reader.line_num}", what, "quote cells that hold the delimiter"
                        )
                    ],
                )
            rows.append(cells + [""] * (len(header) - len(cells)))
    except csv.Error as error:
        raise InputError(
            str(path), [Problem(f"line {reader.line_num}", str(error), "mend the quotes here")]
        ) from None
    if not rows:
        raise InputError(
            str(path),
            [Problem("file", "no rows below the column names", "a table needs measurements")],
        )
    return header, rows


def _header(cells: list[str]) -> list[str]:
    """Column names; trailing empty ones are dropped, an empty one in front is the index of who saved a DataFrame."""
    while cells and not cells[-1]:
        cells.pop()
    return [cell or f"unnamed {number}" for number, cell in enumerate(cells, start=1)]


def _check_header(path: Path, header: Sequence[str], mapping: Mapping[str, str] | None) -> None:
    twice = [name for name, count in Counter(header).items() if count > 1]
    problems = [
        Problem(f"column {name!r}", "is there more than once", "rename one of them")
        for name in twice
    ]
    problems += [
        Problem(f"columns.{name}", f"no column {column!r}", nearest(str(column), header))
        for name, column in (mapping or {}).items()
        if column not in header
    ]
    if problems:
        raise InputError(str(path), problems)


RANK = re.compile(r"#?\s*Rank\s+(\d+)\s.*\son\s+(\S+)\s+device\s+\d+\s+\[\w+\]\s+(.+?)\s*$")
HEADER = re.compile(r"^[#\s]*size\s+count\s+type\b.*\btime\s+algbw\s+busbw\b")
ITERATIONS = re.compile(r"(?<!warmup )\biters:\s*(\d+)")
MEASURED = 4  # time, algbw, busbw, errors
COLUMNS = (
    "message_bytes",
    "variant",
    "time_us",
    "algbw_gb_per_s",
    "busbw_gb_per_s",
    "gpus",
    "nodes",
    "gpu_name",
    "repeats",
)


def is_output(lines: Sequence[str]) -> bool:
    """Whether lines hold the column names that nccl-tests print."""
    return any(HEADER.match(line) for line in lines)


def rows_of(lines: Sequence[str]) -> list[list[str]]:
    """Cells of COLUMNS as text; how many ranks and nodes there were, and which GPUs, is read from the list of devices."""
    devices = [match.groups() for line in lines if (match := RANK.match(line))]
    # Programs that do not know each other all list a rank 0: they measured one rank each.
    ranks, hosts, gpus = (
        (set(column) for column in zip(*devices, strict=True)) if devices else (set(), set(), set())
    )
    iterations = next((match[1] for line in lines if (match := ITERATIONS.search(line))), "")
    facts = [str(len(ranks) or ""), str(len(hosts) or ""), ", ".join(sorted(gpus)), iterations]
    found = []
    for line in lines:
        cells = line.split()
        if not cells or not cells[0].isdigit() or len(cells) < 1 + 2 * MEASURED:
            continue
        for variant, measured in (
            ("out-of-place", cells[-2 * MEASURED : -MEASURED]),
            ("in-place", cells[-MEASURED:]),
        ):
            if measured[0] != "N/A":
                found.append([cells[0], variant, *measured[:3], *facts])
    return found
