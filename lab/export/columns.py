"""Tables on paper: what they need in width, and how they are made to fit the page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile

from bs4 import BeautifulSoup, Tag

from lab.export import tables
from lab.export.headings import HEADING

# In points: the text of an A4 page with margins of 25 mm, upright and turned; the size and padding of a table's text.
PORTRAIT, LANDSCAPE = 453.0, 700.0
SIZE, PADDING = 9.0, 9.9
# Mean width of a character of Libertinus Serif, in em, on the safe side.
CHARACTER = 0.53
SMALLEST = 0.12  # of the usual size: hardly readable, but on the page
WORD = 24  # a longer word of text may be broken


@dataclass(frozen=True)
class Fit:
    """How a table is set: turned or not, the scale of its text, and the share of the width that each column gets."""

    landscape: bool
    scale: float
    shares: tuple[float, ...]  # empty: as wide as the text


def apply(soup: BeautifulSoup) -> None:
    """Make each table of the page fit the paper: columns that share the width, then smaller text, then a turned page."""
    for table in soup.find_all("table"):
        if table.find_parent("table"):
            continue
        fit = fitted(table)
        table.wrap(soup.new_tag("div", attrs={"data-scale": f"{fit.scale:.3f}"} if fit.scale < 1 else {}))
        if fit.landscape:
            _turn_page(soup, table)
        if fit.shares:
            group = soup.new_tag("colgroup")
            group.extend(soup.new_tag("col", attrs={"style": f"width: {100 * share:.2f}%"}) for share in fit.shares)
            caption = table.find("caption")
            if isinstance(caption, Tag):
                caption.insert_after(group)
            else:
                table.insert(0, group)


def _turn_page(soup: BeautifulSoup, table: Tag) -> None:
    """Put a table on a turned page of its own, with its heading and what is said between the two."""
    outer: Tag = table
    while outer.parent is not None and outer.parent.name == "div":
        outer = outer.parent
    page = outer.wrap(soup.new_tag("div", attrs={"class": "landscape"}))
    before = list(takewhile(lambda tag: HEADING.match(tag.name) or tag.name == "p", page.find_previous_siblings()))
    first = next((place for place, tag in enumerate(before[:4]) if HEADING.match(tag.name)), -1)
    for tag in before[: first + 1]:
        page.insert(0, tag.extract())


def fitted(table: Tag) -> Fit:
    """How the table is set; a wide one may turn the page."""
    natural, least = widths(table)
    if sum(natural) <= PORTRAIT:
        return Fit(landscape=False, scale=1.0, shares=())
    landscape = len(natural) > tables.WIDE and sum(least) > PORTRAIT * 0.8
    room = LANDSCAPE if landscape else PORTRAIT
    scale = min(1.0, max(SMALLEST, room / sum(least)))
    if sum(natural) * scale <= room:
        return Fit(landscape, scale, ())
    # What is left beyond the longest words goes to the columns that want more.
    spare = max(0.0, room / scale - sum(least))
    wanted = sum(natural) - sum(least)
    given = [low + spare * (high - low) / wanted if wanted else low for low, high in zip(least, natural, strict=True)]
    return Fit(landscape, scale, tuple(width / sum(given) for width in given))


def widths(table: Tag) -> tuple[list[float], list[float]]:
    """Points that each column takes in one line, and at least, with its text broken between words."""
    head, body = tables.rows(table)
    natural: dict[int, float] = {}
    least: dict[int, float] = {}
    for cells in (*head, *body):
        column = 0
        for cell in cells:
            span = int(str(cell.get("colspan", "1")) or 1) if str(cell.get("colspan", "1")).isdigit() else 1
            text = cell.get_text().strip()
            whole = "number" in cell.get_attribute_list("class") and cell.name == "td"
            words = [text] if whole else re.split(r"[\s\u200b]+", text)
            for place in range(column, column + span):
                natural[place] = max(natural.get(place, 0), _points(text) / span)
                least[place] = max(least.get(place, 0), max(map(_points, words)) / span)
            column += span
    return list(natural.values()), list(least.values())


def _points(text: str) -> float:
    return len(text) * CHARACTER * SIZE + PADDING
