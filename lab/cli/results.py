"""Verbs that judge results: audit and compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import lab
from lab.cli.command import JsonOption, QuickOption, answer, app, console, shown, table_of
from lab.errors import InputError, LabError, Problem


@app.command()
def audit(
    source: Annotated[
        str, typer.Argument(metavar="STUDY_OR_TABLE", help="A study, a CSV of anybody's results, or what nccl-tests printed.")
    ],
    column: Annotated[
        list[str] | None, typer.Option("--column", metavar="NAME=COLUMN", help="What a column of the table is.")
    ] = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say what in a study, or in a table of anybody's results, cannot be trusted."""
    found = lab.audit(lab.Study.load(source, quick=True) if quick else source, columns=_mapping(column or []))
    answer(as_json, found.model_dump(mode="json"), str(found))
    if not found.trustworthy:
        grave = sum(finding.severity != "note" for finding in found.findings)
        raise LabError(f"{grave} finding{'s' * (grave > 1)} that must be mended before these numbers are believed")


@app.command()
def compare(
    studies: Annotated[list[str], typer.Argument(metavar="STUDY...", help="Folders of one study, one per machine.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Where the comparison goes; the first folder's out/ by default.")
    ] = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Set the same study on several machines side by side: tables, and a page in HTML and PDF."""
    found = lab.compare(studies, quick=quick)
    made = lab.comparing.report_comparison(found, out or next(iter(found.studies.values())).out)
    tables = found.tables()
    answer(
        as_json, {table.caption: table.frame.to_dict() for table in tables} | {"html": str(made.html), "pdf": str(made.pdf)}, ""
    )
    if not as_json:
        for table in tables:
            console.print(table.caption, style="bold")
            console.print(table_of(table.frame.reset_index(names="").to_dict("records")))
        console.print(f"{shown(made.html)}\n{shown(made.pdf)}", highlight=False, soft_wrap=True)


def _mapping(columns: list[str]) -> dict[str, str] | None:
    wrong = [Problem("--column", f"{pair!r} is no NAME=COLUMN", "such as world_size=gpus") for pair in columns if "=" not in pair]
    if wrong:
        raise InputError("audit", wrong)
    return dict(pair.split("=", 1) for pair in columns) or None
