"""Tables of wikis (MediaWiki, Jira, MoinMoin, Textile) and of AsciiDoc, in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lab.analysis.audit.formats.markdown import DASHES

DOUBLE = re.compile(r"\s*\|\|(?=.*\w).+\|\|\s*")  # names of Jira, all rows of MoinMoin
TEXTILE = re.compile(r"\s*(?:\|_[<>=]?\. ?[^|]*)+\|\s*")
TEXTILE_CELL = re.compile(r"(?<=\|)[<>=_]+\.")
STYLE = re.compile(r"<[^<>|]*>|'''")  # of a cell, or bold
BEGIN, END = re.compile(r"\s*\{\|\s*(?:[\w-]+\s*=.*)?"), re.compile(r"\s*\|\}.*")
ATTRIBUTES = re.compile(r"^[^|]*=[^|]*\|(?!\|)")  # align="right"| 12
FENCE = re.compile(r"\s*\|={3,}\s*")


def as_markdown(lines: Sequence[str]) -> list[str]:
    """Lines with such tables in Markdown, and all other lines as they are."""
    begun, ended, fences = (
        sum(pattern.fullmatch(line) is not None for line in lines)
        for pattern in (BEGIN, END, FENCE)
    )
    in_markdown = any(DASHES.fullmatch(line) for line in lines)
    if begun != ended or fences % 2 or in_markdown:
        return list(lines)  # a table without its end, or cells that are empty
    return [*_of_wikis(iter(lines))]


def _of_wikis(lines: Iterator[str]) -> Iterator[str]:
    within = False  # a table of bars, below its names
    for line in lines:
        if BEGIN.fullmatch(line):
            yield from _written(_of_mediawiki(lines))
        elif FENCE.fullmatch(line):
            yield from _written(_of_asciidoc(lines))
        elif DOUBLE.fullmatch(line) or (TEXTILE.fullmatch(line) and not within):
            row = TEXTILE_CELL.sub("", STYLE.sub("", line.replace("||", "|"))).strip()
            yield row
            if not within:
                yield "|" + "---|" * (row.count("|") - 1)
            within = True
        else:
            within = within and line.lstrip().startswith("|")
            yield TEXTILE_CELL.sub("", line) if within else line


def _written(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for number, row in enumerate(rows):
        yield f"| {' | '.join(row)} |"
        if number == 0:
            yield "|" + "---|" * len(row)
    yield ""


def _of_mediawiki(lines: Iterator[str]) -> list[list[str]]:
    rows: list[list[str]] = [[]]
    for line in lines:
        text = line.strip()
        if END.fullmatch(text):
            break
        if text.startswith("|-"):
            rows.append([])
        elif text.startswith(("|", "!")) and not text.startswith("|+"):
            cells = re.split(r"!!|\|\|", text[1:])
            rows[-1] += [ATTRIBUTES.sub("", cell).strip() for cell in cells]
    return [row for row in rows if row]


def _of_asciidoc(lines: Iterator[str]) -> list[list[str]]:
    rows = []
    for line in lines:
        if FENCE.fullmatch(line):
            break
        if cells := [cell.strip() for cell in line.strip().split("|")[1:]]:
            rows.append(cells)
    width = max(map(len, rows), default=0)
    if rows and {*map(len, rows[1:])} == {1}:  # a cell on each line
        width = len(rows[0])
        flat = [cell for row in rows for cell in row]
        rows = [flat[at : at + width] for at in range(0, len(flat), width)]
    return [row for row in rows if len(row) == width]
