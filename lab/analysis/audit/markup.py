"""Tables in the text that people publish: Markdown and LaTeX, with the lines around them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

BAR = re.compile(r"(?<!\\)\|")
RULE = re.compile(r"\s*\|?(?:\s*:?-{2,}:?\s*\|)+(?:\s*:?-{2,}:?\s*)?\s*")
HEADING = re.compile(r"\s{0,3}#{1,6}\s")
EMPHASIS = re.compile(r"\*\*|__|`|<br\s*/?>|<[/]?(?:b|i|sub|sup|em|strong)>")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
TABULAR = re.compile(r"\\begin\{(tabular[*xy]?|longtable|tabulary)\}(.*?)\\end\{\1\}", re.DOTALL)
CAPTION = re.compile(r"\\(?:caption|title|section\*?|subsection\*?)\s*\{")
COMMENT = re.compile(r"(?<!\\)%.*")
LINES = re.compile(
    r"\\(?:top|mid|bottom)rule(?:\[[^\]]*\])?|\\hline|\\addlinespace(?:\[[^\]]*\])?"
    r"|\\(?:cline|cmidrule)(?:\([^)]*\))?\{[^}]*\}|\\end(?:first|last)?(?:head|foot)"
)
ROW = re.compile(r"\\\\(?:\[[^\]]*\])?|\\tabularnewline")
CELL = re.compile(r"(?<!\\)&")
SPAN = re.compile(
    r"\\(multicolumn|multirow)\s*\{([^}]*)\}\s*(?:\[[^\]]*\])?\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}"
)
COMMAND = re.compile(r"\\[A-Za-z]+\*?\s*")
SIGNS = {
    r"\times": "x",
    r"\pm": "±",
    r"\%": "%",
    r"\#": "#",
    r"\_": "_",
    r"\&": "&",
    r"\$": "",
    r"\,": "",
    r"\;": "",
    r"\!": "",
    "{,}": ",",
    "~": " ",
    r"\mu": "µ",
    "$": "",
}


class Table(NamedTuple):
    """Column names, rows of cells, and the text around them."""

    header: list[str]
    rows: list[list[str]]
    notes: list[str]


def find_table(lines: Sequence[str]) -> Table | None:
    """The longest table in Markdown or LaTeX, the first of equal ones; None where there is none."""
    tables = [*_markdown(lines), *_latex("\n".join(lines))]
    return max(tables, key=lambda table: len(table.rows), default=None)


def _markdown(lines: Sequence[str]) -> Iterator[Table]:
    """Tables with a line of dashes below their names; notes are the lines from the last heading,
    and those down to the next one or the next table."""
    starts = [
        place - 1
        for place in range(1, len(lines))
        if RULE.fullmatch(lines[place])
        and len(_cells(lines[place])) == len(_cells(lines[place - 1])) > 1
    ]
    after = 0
    for start, following in itertools.pairwise([*starts, len(lines)]):
        rows = list(itertools.takewhile(BAR.search, lines[start + 2 :]))
        headings = [place for place in range(after, start) if HEADING.match(lines[place])]
        before = lines[headings[-1] if headings else after : start]
        after = start + 2 + len(rows)
        below = itertools.takewhile(lambda line: not HEADING.match(line), lines[after:following])
        notes = [line.strip("# \t") for line in (*before, *below)]
        yield Table(
            _cells(lines[start]), [_cells(row) for row in rows], [note for note in notes if note]
        )


def _cells(line: str) -> list[str]:
    text = line.strip()
    text = text.removeprefix("|")
    text = text[:-1] if text.endswith("|") and not text.endswith(r"\|") else text
    return [
        EMPHASIS.sub("", LINK.sub(r"\1", cell)).replace(r"\|", "|").strip()
        for cell in BAR.split(text)
    ]


def _latex(text: str) -> Iterator[Table]:
    text = COMMENT.sub("", text)
    notes = [_plain(_braced(text, match.end() - 1)[0]) for match in CAPTION.finditer(text)]
    for match in TABULAR.finditer(text):
        body = match[2].lstrip()
        while body.startswith(("{", "[")):  # the width and the columns
            body = (
                _braced(body, 0)[1].lstrip() if body[0] == "{" else body.partition("]")[2].lstrip()
            )
        header, *rows = _rows(body) or [[]]
        while rows and any(name.startswith(SPANNED) for name in header):
            names = itertools.zip_longest(header, rows.pop(0), fillvalue="")
            header = [" ".join(filter(None, (top.lstrip(SPANNED), name))) for top, name in names]
        if len(header) > 1 and rows:
            yield Table(header, rows, notes)


SPANNED = "\x1f"  # before a name that stands above several columns


def _rows(body: str) -> list[list[str]]:
    """The cells of a tabular, those that span rows or columns repeated."""
    rows: list[list[str]] = []
    below: dict[int, tuple[int, str]] = {}  # of a column: for how many rows, and what
    for line in ROW.split(LINES.sub("", body)):
        if not line.strip():
            continue
        row: list[str] = []
        for cell in CELL.split(line):
            span = SPAN.search(cell)
            text = _plain(SPAN.sub("", cell))
            wide = int(span[2]) if span and span[1] == "multicolumn" and span[2].isdigit() else 1
            if span and span[1] == "multirow" and span[2].isdigit():
                below[len(row)] = (int(span[2]), text)
            left, above = below.get(len(row), (0, ""))
            if left:
                below[len(row)] = (left - 1, above)
            row += [(SPANNED if wide > 1 else "") + (text or above * (left > 0))] * wide
        rows.append(row)
    return rows


def _braced(text: str, start: int) -> tuple[str, str]:
    """What stands in the braces that open at `start`, and what follows them."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start + 1 : place], text[place + 1 :]
    return text[start + 1 :], ""


def _plain(text: str) -> str:
    """The words of a cell without commands."""
    for sign, plain in SIGNS.items():
        text = text.replace(sign, plain)
    return re.sub(r"[{}]", "", COMMAND.sub("", text)).strip()
