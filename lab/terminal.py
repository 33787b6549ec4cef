"""The terminal: what a verb prints, its streams, and the options that several groups share."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer import Option

from lab.errors import InputError, Problem
from lab.formatting import printable

GAP = "  "  # between two columns
View = str | Text | Table  # of an answer, for people
UNITS = {"s": "s", "ms": "ms", "mb": "MB"}  # at the end of a key
WIDE = 200  # columns for a file or a pipe, in which nothing need be broken; a terminal has its own
NARROWEST = 40  # in fewer, Rich leaves out columns of a table, and in none everything

ClusterOption = Annotated[
    str, Option(metavar="PROFILE", help="A cluster profile, by its name in slurm/ or by path.")
]
QuickOption = Annotated[bool, Option("--quick", help="Use the study's small, quick form.")]
JsonOption = Annotated[bool, Option("--json", help="Print the answer as JSON.")]
AssumeOption = Annotated[
    list[str] | None,
    Option(
        "--assume",
        metavar="NAME=VALUE",
        help="What the table does not give, such as model=llama3-8b, gpu=h100 or recomputed=full.",
    ),
]
TableOption = Annotated[
    int | None,
    Option("--table", metavar="N", help="Read only this one of several tables in a text."),
]


def _open_streams() -> None:
    """Give closed streams a target, or the next file to be opened would become one of them.

    Letters that a stream's encoding lacks are written as their codes.
    """
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, number)
            setattr(sys, name, os.fdopen(number, "w", closefd=False))
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):  # not a notebook's
            stream.reconfigure(errors="backslashreplace")


def _widen() -> None:
    """Raise a COLUMNS in which answers and errors would be lost; 0 stands for an unknown number."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) == 0:
        del os.environ["COLUMNS"]
    elif columns.isdecimal() and int(columns) < NARROWEST:
        os.environ["COLUMNS"] = str(NARROWEST)


_open_streams()
_widen()
console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDE)


def answer(as_json: bool, content: Any, *views: View) -> None:
    """Print the content as JSON, or the texts and tables for people."""
    if as_json:
        sys.stdout.write(json.dumps(content, indent=1, default=_plain) + "\n")
        sys.stdout.flush()  # here a full disk is an error of the command, at its end Python's
        return
    for view in views:
        if isinstance(view, Text) and not view:  # a table without rows
            continue
        # Only a table folds what is too wide.
        soft_wrap = not isinstance(view, Table)
        view = printable(view) if isinstance(view, str) else view
        console.print(view, highlight=False, markup=False, soft_wrap=soft_wrap)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else str(value)


def table_of(rows: Sequence[Mapping[Any, Any]]) -> Table | Text:
    """A table with a column for each key that has a value; numbers are right-aligned.

    If it is too wide, words of its heads are broken before those of its cells; where several
    columns would have to break these, each row is a list of its cells instead.
    """
    names = rows[0] if rows else ()
    keys = [name for name in names if any(row[name] not in (None, "") for row in rows)]
    heads = [_head(str(key)) for key in keys]
    columns = [[_cell(row[key]) for row in rows] for key in keys]
    sides: list[Literal["left", "right"]] = ["right" if _numeric(c) else "left" for c in columns]
    widths = [max(map(cell_len, [head, *c])) for head, c in zip(heads, columns, strict=True)]
    one_line = not any("\n" in cell for column in columns for cell in column)
    room = console.width - len(GAP) * (len(widths) - 1)
    if one_line and sum(widths) <= room:
        # Rich takes 0.3 s longer for a thousand rows, as it could also fold cells.
        lines = [heads, *zip(*columns, strict=True)]
        head, *rest = (GAP.join(map(_aligned, line, widths, sides)).rstrip() for line in lines)
        return Text.assemble((head, "bold"), "\n" * bool(rest), "\n".join(rest))
    words = [
        max(map(cell_len, _words(*column)), default=0)
        for column in zip(columns, sides, strict=True)
    ]
    in_heads = [max(map(cell_len, head.split()), default=0) for head in heads]
    whole = list(map(max, words, in_heads))
    least = [max(word, -(-name // 2)) for word, name in zip(words, in_heads, strict=True)]
    if sum(least) > room and sum(least) - max(least) > room / 2:
        return _listed(heads, list(zip(*columns, strict=True)))
    table = Table(box=None, pad_edge=False, header_style="bold")
    widths = _narrowed(widths, (whole, least, [1] * len(widths)), room)
    for head, side, width in zip(heads, sides, widths, strict=True):
        table.add_column(head, justify=side, overflow="fold", width=width)
    for line in zip(*columns, strict=True):
        table.add_row(*line)
    return table


def _listed(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Text:
    """Rows below each other, each with a line for every cell that has a value."""
    return Text("\n").join(
        Text("\n").join(
            Text.assemble((f"{GAP * (place > 0)}{head}{': ' * bool(head)}", "bold"), cell)
            for place, (head, cell) in enumerate(zip(heads, row, strict=True))
            if cell
        )
        for row in rows
    )


def _head(key: str) -> str:
    """A key in words, with its unit in brackets: `predicted step (ms)`."""
    words, _, unit = key.rpartition("_")
    return f"{words.replace('_', ' ')} ({UNITS[unit]})" if unit in UNITS else key.replace("_", " ")


def _words(cells: Sequence[str], side: Literal["left", "right"]) -> list[str]:
    """What should stay on one line: words, but a number with its unit."""
    return list(cells) if side == "right" else [word for cell in cells for word in cell.split()]


def _narrowed(widths: Sequence[int], floors: Iterable[Sequence[int]], room: int) -> list[int]:
    """Widths that fit into the room; each floor holds unless all columns have come down to it."""
    narrowed = list(widths)
    for floor in floors:
        while sum(narrowed) > room:
            spare = [width - least for width, least in zip(narrowed, floor, strict=True)]
            if max(spare) <= 0:
                break
            narrowed[spare.index(max(spare))] -= 1
    return narrowed


def _cell(value: Any) -> str:
    return "" if value is None else printable(str(value))


def _numeric(cells: Sequence[str]) -> bool:
    return all(cell.replace(".", "", 1).strip("% ").isdigit() for cell in cells if cell)


def _aligned(cell: str, width: int, side: Literal["left", "right"]) -> str:
    space = " " * (width - cell_len(cell))
    return space + cell if side == "right" else cell + space


def relative(*paths: Path) -> str:
    """Paths relative to the current directory, one per line."""
    return "\n".join(map(os.path.relpath, paths))


def refuse(verb: str, options: Mapping[str, object], what: str, advice: str) -> None:
    """Raise InputError of a verb for those of these options that are given."""
    names = [name for name, value in options.items() if value is not None and value is not False]
    if names:
        raise InputError(verb, [Problem(name, what, advice) for name in names])


def pairs(
    texts: Sequence[str] | None, option: str, verb: str, *, form: str, example: str
) -> dict[str, str]:
    """Texts such as NAME=VALUE by their names; raises InputError of a verb for any other text."""
    problems = [
        Problem(option, f"{text!r} is not {form}", f"such as {example}")
        for text in texts or ()
        if "=" not in text
    ]
    if problems:
        raise InputError(verb, problems)
    return dict(text.split("=", 1) for text in texts or ())


def assumed(texts: Sequence[str] | None, verb: str) -> dict[str, str]:
    """What is to be assumed of a table of layouts, by name; raises InputError of a verb."""
    return pairs(texts, "--assume", verb, form="NAME=VALUE", example="model=llama3-8b")


def numbers(text: str, option: str, verb: str, advice: str, *, of: str = "ranks") -> list[int]:
    """Whole numbers from a text with commas; raises InputError of a verb for any other text."""
    parts = [part.strip() for part in text.split(",")]
    problems = [
        Problem(option, f"{part!r} is not a number of {of}", advice)
        for part in parts
        if not re.fullmatch(r"(?=0*[1-9])[0-9]{1,7}", part)
    ]
    if problems:
        raise InputError(verb, problems)
    return [int(part) for part in parts]
