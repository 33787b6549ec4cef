"""Tables in HTML, with their captions and the headings above them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser

from lab.analysis.audit.formats.grid import MOST_COLUMNS, SPANNED, WIDEST, Table, from_grid

Span = tuple[str, int, int]  # the text of a cell, and how many columns and rows it spans
HEADINGS = {"caption", "h1", "h2", "h3", "h4", "h5", "h6"}


def tables(text: str) -> Iterator[Table]:
    """The tables of a page, nested ones included; notes are the heading above and the caption."""
    if "<table" not in text.lower():
        return
    page = _Page()
    with contextlib.suppress(AssertionError):  # from a declaration that cannot be parsed
        page.feed(text)
        page.close()
    for lines, notes in page.tables:
        if table := from_grid(_grid(lines), notes):
            yield table


def _grid(lines: Sequence[Sequence[Span]]) -> list[list[str]]:
    """The cells of a page's table; cells that span rows or columns are repeated."""
    rows: list[list[str]] = []
    below: dict[int, tuple[int, str]] = {}  # of a column: for how many rows, and what

    def from_above(row: list[str]) -> None:
        while (above := below.get(len(row), (0, "")))[0]:
            below[len(row)] = (above[0] - 1, above[1])
            row.append(above[1])

    for cells in lines:
        row: list[str] = []
        for text, wide, high in cells:
            from_above(row)
            for _ in range(min(wide, MOST_COLUMNS - len(row))):
                below[len(row)] = (high - 1, text)
                row.append(SPANNED * (wide > 1) + text)
        from_above(row)
        rows.append(row)
    return [row for row in rows if any(row)]


class _Page(HTMLParser):
    """The text in the cells of a page's tables; nothing in the page is run, loaded or trusted."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[tuple[list[list[Span]], list[str]]] = []
        self._open: list[tuple[list[list[Span]], list[str]]] = []  # the innermost last
        self._tag, self._heading = "", ""
        self._span = (1, 1)
        self._words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a table, a row or a cell."""
        if tag == "br":
            self._words.append(" ")
        if tag not in {"table", "tr", "td", "th", *HEADINGS}:
            return
        self._keep()
        if tag == "table":
            self._open.append(([], [self._heading]))
            self.tables.append(self._open[-1])
        elif tag == "tr" and self._open:
            self._open[-1][0].append([])
        elif tag != "tr":
            if tag in {"td", "th"} and self._open and not self._open[-1][0]:
                self._open[-1][0].append([])  # browsers open the row that the page left out
            given = {name: value or "" for name, value in attrs}
            wide, high = (given.get(name, "") for name in ("colspan", "rowspan"))
            self._span = (_count(wide), _count(high))
            self._tag = tag

    def handle_endtag(self, tag: str) -> None:
        """End the open element; many pages omit the end tags of cells and rows."""
        if tag in {"table", "tr", self._tag}:
            self._keep()
        if tag == "table" and self._open:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        """Keep text that a reader sees."""
        if self._tag and not self.cdata_elem:  # a script or style
            self._words.append(data)

    def close(self) -> None:
        """Close what the page left open."""
        super().close()
        self._keep()

    def _keep(self) -> None:
        text, tag = " ".join("".join(self._words).split()), self._tag
        self._tag, self._words = "", []
        if not self._open:
            self._heading = text if tag in HEADINGS else self._heading
        elif tag in HEADINGS:
            self._open[-1][1].append(text)
        elif tag and self._open[-1][0]:
            self._open[-1][0][-1].append((text, *self._span))


def _count(text: str) -> int:
    return min(max(int(text), 1), WIDEST) if re.fullmatch(r"\s*\d{1,4}\s*", text) else 1
