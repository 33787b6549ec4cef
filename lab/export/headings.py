"""Headings of a page: their ids, the links to them, and the table of contents made from them."""

from __future__ import annotations

import copy
import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from bs4 import BeautifulSoup, Tag

HEADING = re.compile("^h[1-6]$")
RESERVED = frozenset({"main", "contents"})
DEPTH = 3  # levels of the table of contents


class Entry(NamedTuple):
    """One line of the table of contents; `level` counts from 1."""

    level: int
    heading: Tag


def identify(soup: Tag) -> None:
    """Give each heading Jupyter's id (its words joined by hyphens), numbered where it repeats; other repeated ids go."""
    taken = set(RESERVED)
    for tag in soup.find_all(id=True):
        if HEADING.match(tag.name) or tag["id"] in taken:
            del tag["id"]
        else:
            taken.add(str(tag["id"]))
    for heading in soup.find_all(HEADING):
        words = "-".join(heading.get_text().split()) or "section"
        name, count = words, 1
        while name in taken:
            count += 1
            name = f"{words}-{count}"
        taken.add(name)
        heading["id"] = name


def link(soup: Tag) -> None:
    """Make links within the page reach their target; a link to nothing becomes plain text."""
    names = [str(tag["id"]) for tag in soup.find_all(id=True)]
    exact, loose = set(names), {_letters(name): name for name in reversed(names)}
    for anchor in soup.find_all("a"):
        address = str(anchor.get("href", ""))
        if not address:
            # Without an address it is at most a place to jump to.
            if not anchor.get("id"):
                anchor.unwrap()
            continue
        if not address.startswith("#"):
            continue
        wanted = target(anchor)
        found = wanted if wanted in exact else loose.get(_letters(wanted))
        if found:
            anchor["href"] = "#" + quote(found)
        else:
            anchor.unwrap()


def target(anchor: Tag) -> str:
    """The id that a link within the page leads to."""
    return unquote(str(anchor["href"])[1:])


def title_heading(soup: Tag) -> Tag | None:
    """The heading that is the page's title: the first one, where it is of the first level."""
    first = soup.find(HEADING)
    return first if isinstance(first, Tag) and first.name == "h1" else None


def entries(soup: Tag) -> list[Entry]:
    """Lines of the table of contents: every heading but the title, its level counted from the highest that is there."""
    title = title_heading(soup)
    found = [heading for heading in soup.find_all(HEADING) if heading is not title and heading.get_text().strip()]
    top = min((int(heading.name[1]) for heading in found), default=1)
    levels = ((int(heading.name[1]) - top + 1, heading) for heading in found)
    return [Entry(level, heading) for level, heading in levels if level <= DEPTH]


def contents(soup: BeautifulSoup) -> Tag | None:
    """The table of contents as nested lists of links; None where there are fewer than two headings."""
    lines = entries(soup)
    if len(lines) < 2:
        return None
    lists = [soup.new_tag("ol")]
    levels = [lines[0].level]
    for line in lines:
        while line.level < levels[-1] and len(levels) > 1:
            lists.pop()
            levels.pop()
        if line.level > levels[-1]:
            items = lists[-1].find_all("li", recursive=False)
            lists.append(soup.new_tag("ol"))
            levels.append(line.level)
            items[-1].append(lists[-1])
        item = soup.new_tag("li")
        item.append(_entry(soup, line.heading))
        lists[-1].append(item)
    return lists[0]


def _entry(soup: BeautifulSoup, heading: Tag) -> Tag:
    anchor = soup.new_tag("a", href="#" + quote(str(heading["id"])))
    for child in copy.copy(heading).contents[:]:
        anchor.append(child)
    for inner in anchor.find_all(["a", "img", "br"]):
        inner.unwrap()
    for inner in anchor.find_all(id=True):
        del inner["id"]
    return anchor


def _letters(name: str) -> str:
    return re.sub(r"\W|_", "", name.lower())
