"""What all verbs share: the application, its common arguments, and how answers are printed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

# Typer carries its own click or uses the installed one; this is the right one's error of a wrong command line.
UsageError: Any = typer.BadParameter.__mro__[1]
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Scaling Lab: how does training scale here, and why?",
)
WIDE = 200  # columns for a file or a pipe, in which nothing need be broken; a terminal says its own
console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDE)

StudyArgument = Annotated[str, typer.Argument(metavar="STUDY", help="A folder under reports/, by name or by path.")]
ClusterOption = Annotated[str, typer.Option("--cluster", metavar="PROFILE", help="A profile of slurm/, by name or by path.")]
QuickOption = Annotated[bool, typer.Option("--quick", help="The study's smallest honest form.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Answer for programs.")]


def answer(as_json: bool, content: Any, text: str | Table) -> None:
    """Print the content as JSON, or the text for people."""
    if as_json:
        sys.stdout.write(json.dumps(content, indent=1, default=_plain) + "\n")
    else:
        console.print(text, highlight=False, markup=False, soft_wrap=isinstance(text, str))


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else str(value)


def table_of(rows: Sequence[Mapping[Any, Any]]) -> Table:
    """A table with a column for each key of the first row; numbers stand to the right."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for key in rows[0] if rows else ():
        numeric = all(row[key] is None or str(row[key]).replace(".", "", 1).strip("% ").isdigit() for row in rows)
        shown.add_column(str(key), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        shown.add_row(*("" if value is None else escape(str(value)) for value in row.values()))
    return shown


def shown(path: Path) -> str:
    """A path as seen from here."""
    return os.path.relpath(path)
