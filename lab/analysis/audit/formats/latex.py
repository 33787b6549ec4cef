"""Tables in LaTeX, with their captions and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lab.analysis.audit.formats.grid import SPANNED, WIDEST, Table, from_grid

TABULAR = re.compile(r"\\begin\{(tabular[*xy]?|longtable|tabulary)\}")
LONGEST = 500  # characters of a caption
CAPTION = re.compile(r"\\(caption|title|section\*?|subsection\*?)\s*\{")
# In "40% & 3" and "Efficiency (%)" the sign was not escaped.
COMMENT = re.compile(r"(?<!\\)%(?!(?<=\d%)\s*(?:&|\\\\)|(?<=[(\[]%)[)\]]).*")
LINES = re.compile(
    r"\\(?:top|mid|bottom)rule(?:\[[^\]]*\])?|\\hline|\\addlinespace(?:\[[^\]]*\])?"
    r"|\\(?:cline|cmidrule|rowcolor|cellcolor)(?:[(\[][^)\]]*[)\]])?\{[^}]*\}"
    r"|\\end(?:first|last)?(?:head|foot)"
)
ROW = re.compile(r"\\\\(?:\[[^\]]*\])?|\\tabularnewline")
CELL = re.compile(r"(?<!\\)&")
SPAN = re.compile(
    r"\\(multicolumn|multirow)\s*\{([^}]*)\}\s*(?:\[[^\]]*\])?\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}"
)
ACCENT = re.compile(r"\\[\"'`^~](?=\{?[A-Za-z])")
COMMAND = re.compile(r"\\[A-Za-z]+\*?\s*")
SIGNS = {rf"\{sign}": sign for sign in "%#_&"}
SIGNS |= dict.fromkeys((r"\$", r"\,", r"\;", r"\!", "$"), "")
SIGNS |= {
    r"\times": "x",
    r"\pm": "±",
    r"\mu": "µ",
    r"\oe": "oe",
    r"\ss": "ss",
    "{,}": ",",
    "~": " ",
}


def tables(text: str) -> Iterator[Table]:
    """The tables of a text; notes are their captions, the last heading and the title."""
    text = COMMENT.sub("", text)
    captions = [*CAPTION.finditer(text)]
    end = 0
    for match in TABULAR.finditer(text):
        if not 0 <= end <= match.start():
            continue  # nested in another table, or never closed
        above, end = end, text.find(f"\\end{{{match[1]}}}", match.end())
        body = text[match.end() : max(end, match.end())].lstrip()
        while body.startswith(("{", "[")):  # the width and the columns
            body = _braced(body)[1].lstrip() if body[0] == "{" else body.partition("]")[2].lstrip()
        if table := from_grid(_rows(body), _captions(text, captions, (above, match.start(), end))):
            yield table


def _captions(
    text: str, captions: Sequence[re.Match[str]], places: tuple[int, int, int]
) -> list[str]:
    """The captions of the float around a table, the last heading above it, and the title.

    `places` are the end of the table above, and the beginning and end of this one.
    """
    above, place, below = places
    start = text.rfind(r"\begin{table", 0, place)
    end = text.find(r"\end{table", start) if start >= 0 else -1
    start, end = (start, end) if end > place else (above, below)
    own = [one for one in captions if start < one.start() < end and one[1] == "caption"]
    headings = [one for one in captions if one.start() < place and "section" in one[1]]
    titles = [one for one in captions if one[1] == "title"]
    return [
        _plain(_braced(text[one.end() - 1 : one.end() + LONGEST])[0])
        for one in (*own, *headings[-1:], *titles)
    ]


def _rows(body: str) -> list[list[str]]:
    """The cells of a tabular; cells that span rows or columns are repeated."""
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
            row += [SPANNED * (wide > 1) + (text or above * (left > 0))] * min(wide, WIDEST)
        rows.append(row)
    return rows


def _braced(text: str) -> tuple[str, str]:
    """The content of the braces that open a text, and the text after them."""
    depth = 0
    for place, sign in enumerate(text):
        depth += {"{": 1, "}": -1}.get(sign, 0)
        if depth == 0:
            return text[1:place], text[place + 1 :]
    return text[1:], ""


def _plain(text: str) -> str:
    """The text of a cell without commands."""
    for sign, plain in SIGNS.items():
        text = text.replace(sign, plain)
    return re.sub(r"[{}]", "", COMMAND.sub("", ACCENT.sub("", text))).strip()
