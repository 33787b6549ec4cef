"""Spreadsheets as text: the lines of each visible sheet, with tabs between their cells."""

from __future__ import annotations

import csv
import io
import itertools
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lab.errors import InputError
from lab.files import unreadable

SUFFIXES = {".xlsx", ".xlsm"}
OTHERS = {".xls", ".xlsb", ".ods", ".numbers"}
MOST_ROWS = 200_000  # of a sheet
DIGITS = 15  # of a number, as spreadsheets show it


def read_sheets(path: Path) -> list[tuple[str, list[str]]]:
    """The lines of each visible sheet that may hold a table, with the sheet's name; of tables side
    by side, with an empty column between them, those of each.

    Cells hold what was computed when the file was saved, shares that are shown in per cent with a
    %, and times of day and durations as 1:02:03. Raises InputError for a file that is no workbook
    or holds no table, and for a sheet of more than MOST_ROWS rows.
    """
    import openpyxl

    if path.suffix.lower() in OTHERS:
        what = f"{path.suffix} files are not read"
        raise InputError.of(path, "file", what, "save it as .xlsx or CSV")
    try:
        with path.open("rb") as opened, warnings.catch_warnings(action="ignore"):
            book = openpyxl.load_workbook(opened, read_only=True, data_only=True)
            sheets = [sheet for sheet in book.worksheets if sheet.sheet_state == "visible"]
            grids = [(sheet.title, _grid(sheet)) for sheet in sheets]
    except OSError as error:
        raise unreadable(path, error) from None
    except Exception as error:  # noqa: BLE001  (a damaged file may raise anything)
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError.of(
            path, "file", f"cannot be read as a workbook: {reason}", "save it as CSV"
        ) from None
    if long := [name for name, grid in grids if len(grid) > MOST_ROWS]:
        raise InputError.of(
            path, f"sheet {long[0]!r}", f"more than {MOST_ROWS} rows", "save it as CSV"
        )
    parts = [(name, _lines(part)) for name, grid in grids for part in _side_by_side(grid)]
    if not parts:
        raise InputError.of(path, "file", "no sheet holds a table", "save it as CSV")
    return parts


def _grid(sheet: Any) -> list[list[str]]:
    """The cells of a sheet as text."""
    sheet.reset_dimensions()  # which some programs save wrongly
    rows = itertools.islice(sheet.iter_rows(), MOST_ROWS + 1)
    return [[_text(cell) for cell in row] for row in rows]


def _text(cell: Any) -> str:
    """A cell as the spreadsheet shows it, but with all digits, on one line."""
    value = cell.value
    if value is None:
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        percent = "%" in (cell.number_format or "")
        return f"{100 * value:.{DIGITS}g}%" if percent else f"{value:.{DIGITS}g}"
    return " ".join(str(value).split())


def _side_by_side(grid: Sequence[Sequence[str]]) -> Iterator[list[list[str]]]:
    """The parts of a sheet between empty columns; all of it, without these, if one of them is a
    single column; none if that is all, as of remarks."""
    by_column = [[*map(str.strip, cells)] for cells in itertools.zip_longest(*grid, fillvalue="")]
    runs = itertools.groupby(by_column, any)
    parts = [list(columns) for holds_anything, columns in runs if holds_anything]
    if any(len(part) == 1 for part in parts):
        parts = [[*itertools.chain(*parts)]]
    for part in parts:
        if len(part) > 1:
            yield [list(row) for row in zip(*part, strict=True)]


def _lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row, so that an error's line is that of the sheet; of a title, it alone."""
    text = io.StringIO()
    writer = csv.writer(text, "excel-tab", lineterminator="\n")
    for row in rows:
        writer.writerow(row if any(row[1:]) else filter(None, row[:1]))
    return text.getvalue().splitlines()
