"""The parts of a page: headings and their contents, tables, images."""

from __future__ import annotations

import base64
import copy
import re
from html import escape, unescape
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit
from xml.parsers import expat

from bs4 import BeautifulSoup, Tag

from lab.errors import LabError

HEADING = re.compile("^h[1-6]$")
CONTENTS_DEPTH = 3

_DIGITS = r"[-+−]?\s*(\d[\d,\u202f\u2009 ]*(\.\d*)?|\.\d+)([eE][-+]?\d+)?"
_LETTERS = r"[^\W\d_]"
# A number with its unit, and perhaps its interval; or an interval alone.
NUMBER = re.compile(
    rf"[<>≈~±]?\s*{_DIGITS}\s*(%|{_LETTERS}{{1,4}}(/{_LETTERS}{{1,4}})?|[×°]"
    rf"|(?<=\s)([mbtr]+illion )?{_LETTERS}+(/{_LETTERS}+)?)?(\s*[±\[(–].*)?"
    rf"|[\[(]\s*{_DIGITS}\s*(,|–|to)\s*{_DIGITS}\s*[\])]"
)
MISSING = frozenset(
    "|-|–|—|nan|NaN|None|none|NaT|<NA>|inf|-inf|not measured|not run".split("|")  # noqa: SIM905
)

# By suffix, the media type and the first bytes of images that can be embedded.
IMAGE_TYPES = {
    ".svg": ("image/svg+xml", b""),
    ".png": ("image/png", b"\x89PNG"),
    ".jpg": ("image/jpeg", b"\xff\xd8\xff"),
    ".jpeg": ("image/jpeg", b"\xff\xd8\xff"),
    ".gif": ("image/gif", b"GIF8"),
    ".webp": ("image/webp", b"RIFF"),
}
_LEFT = "text-align: left"
_UNIT = re.compile(
    r"(?<=[\d\]]) (?=(%|[nmµ]?s|min|h|[kKMGTP]i?B|B|[MG]Hz|[MGT]?bit|[MGT]?FLOPs?|samples|tokens)"
    r"(/s)?(?!\w))"
)
_SVG = re.compile(r"<svg\b[^>]*>.*?</svg\s*>", re.IGNORECASE | re.DOTALL)
_SVG_TITLE = re.compile(r"<title\b[^>]*>(.*?)</title\s*>", re.IGNORECASE | re.DOTALL)


def headings(soup: Tag) -> list[Tag]:
    """All headings, in order."""
    return list(soup.find_all(HEADING))


def title_heading(soup: Tag) -> Tag | None:
    """The heading that is the page's title: the first one, if it is of the first level."""
    first = next(iter(headings(soup)), None)
    return first if first is not None and first.name == "h1" else None


def section_of(tag: Tag) -> str | None:
    """Text of the heading above a tag."""
    heading = tag.find_previous(HEADING)
    return heading.get_text().strip() if heading else None


def set_ids(soup: Tag) -> None:
    """Give each heading Jupyter's id, its words joined by hyphens; drop other repeated ids."""
    ids = {"main", "contents"}
    for tag in soup.find_all(id=True):
        if HEADING.match(tag.name) or tag["id"] in ids:
            del tag["id"]
        else:
            ids.add(str(tag["id"]))
    for heading in headings(soup):
        words = "-".join(heading.get_text().split()) or "section"
        name, count = words, 1
        while name in ids:
            count += 1
            name = f"{words}-{count}"
        ids.add(name)
        heading["id"] = name


def link_target(anchor: Tag) -> str:
    """The id that a link within the page leads to; empty for any other link."""
    address = str(anchor.get("href", ""))
    return unquote(address[1:]) if address.startswith("#") else ""


def keep_units(soup: BeautifulSoup) -> None:
    """A no-break space between each number and its unit, but in code, formulas and cells."""
    for text in soup.find_all(string=_UNIT):
        if text.find_parent(["pre", "code", "lab-math", "script", "style", "td"]) is None:
            text.replace_with(_UNIT.sub("\u00a0", text))


def resolve_links(soup: Tag) -> None:
    """Make links within the page reach their target; a dangling link becomes plain text."""

    def letters(name: str) -> str:
        return re.sub(r"\W|_", "", name.lower())

    ids = [str(tag["id"]) for tag in soup.find_all(id=True)]
    exact, similar = set(ids), {letters(name): name for name in reversed(ids)}
    for anchor in soup.find_all("a"):
        address, target = str(anchor.get("href", "")), link_target(anchor)
        name = target if target in exact else similar.get(letters(target))
        if address.startswith("#") and name:
            anchor["href"] = "#" + quote(name)
        elif address.startswith("#") or not (address or anchor.get("id")):
            anchor.unwrap()


def contents(soup: Tag) -> list[tuple[int, Tag]]:
    """Headings except the title, with levels counted from 1 at the highest of them."""
    title = title_heading(soup)
    rest = [tag for tag in headings(soup) if tag is not title and tag.get_text().strip()]
    top = min((int(tag.name[1]) for tag in rest), default=1)
    levels = ((int(tag.name[1]) - top + 1, tag) for tag in rest)
    return [(level, tag) for level, tag in levels if level <= CONTENTS_DEPTH]


def contents_html(soup: Tag) -> str:
    """The table of contents as nested lists; empty if there are fewer than two headings."""
    entries = contents(soup)
    if len(entries) < 2:
        return ""
    html, levels = "", [0]
    for level, heading in entries:
        while level < levels[-1] and len(levels) > 2:
            html += "</li></ol>"
            levels.pop()
        if level > levels[-1]:
            html += "<ol>"
            levels.append(level)
        else:
            html += "</li>"
        text = copy.copy(heading)
        for inner in text.find_all(["a", "img", "br"]):
            inner.unwrap()
        for inner in text.find_all(id=True):
            del inner["id"]
        address = quote(str(heading["id"]))
        html += f'<li><a href="#{address}">{text.decode_contents(formatter="html5")}</a>'
    return html + "</li></ol>" * (len(levels) - 1)


def arrange_tables(soup: BeautifulSoup) -> None:
    """Mark columns of numbers, merge pandas' rows of headers, and let each table scroll."""
    for table in soup.find_all("table"):
        if table.find(["td", "th"]) is None:  # Typst does not support tables without columns
            table.replace_with(*(table.caption.contents if table.caption else ()))
            continue
        for cell in table.select(f'[style="{_LEFT}"]'):
            del cell["style"]  # as on a page without it
        _merge_index_names(table)
        head, body = _rows(table)
        _mark_numbers(head, body)
        for cell in table.select("td.number"):
            _keep_together(soup, cell)
        _mark_sortable(table, head, body)
        if table.get("id"):
            selector = re.compile(rf"#{re.escape(str(table['id']))}(?![a-zA-Z0-9])")
            if soup.find("style", string=selector):
                add_class(table, "styled")
        if not table.find_parent("table"):
            label = table.caption.get_text().strip() if table.caption else "Table"
            # Focusable: without its script, a wide table can be scrolled with the keyboard.
            box = {"class": "table-box", "role": "region", "tabindex": "0", "aria-label": label}
            table.wrap(soup.new_tag("div", attrs=box))


def left_aligned(html: str) -> str:
    """A table with its columns of text to the left, where JupyterLab has all to the right."""
    soup = BeautifulSoup(html, "html.parser")
    _mark_numbers(*_rows(soup.table or soup))
    for cell in soup.find_all(["td", "th"]):
        if cell.has_attr("class"):
            del cell["class"]
        else:
            cell["style"] = _LEFT
    return str(soup)


def _rows(table: Tag) -> tuple[list[list[Tag]], list[list[Tag]]]:
    """Cells by row, of the head and of the body."""
    head = table.select("thead > tr")
    body = [row for row in table.find_all("tr") if row.parent and row.parent.name != "thead"]
    return [_cells(row) for row in head], [_cells(row) for row in body]


def _cells(row: Tag) -> list[Tag]:
    return list(row.find_all(["td", "th"], recursive=False))


def _text(cell: Tag) -> str:
    return cell.get_text().strip()


def _is_number(cell: Tag) -> bool:
    return bool(NUMBER.fullmatch(_text(cell)))


def _spans(cells: list[Tag]) -> bool:
    return any(cell.get(name, "1") != "1" for cell in cells for name in ("colspan", "rowspan"))


def add_class(tag: Tag, name: str) -> None:
    """Add a class to those of a tag."""
    tag["class"] = " ".join([*filter(None, tag.get_attribute_list("class")), name])


def _merge_index_names(table: Tag) -> None:
    """Move the index names, for which pandas writes a row, into the headers above it."""
    head, _ = _rows(table)
    if len(head) < 2 or len(head[-1]) != len(head[-2]) or _spans([*head[-1], *head[-2]]):
        return
    pairs = list(zip(head[-2], head[-1], strict=True))
    if any(_text(upper) and _text(lower) for upper, lower in pairs):
        return
    row = head[-1][0].parent
    for upper, lower in pairs:
        if _text(lower):
            upper.replace_with(lower.extract())
    if row is not None:
        row.decompose()


def _mark_numbers(head: list[list[Tag]], body: list[list[Tag]]) -> None:
    """Class `number` for the columns whose cells are numbers or missing."""
    if any(map(_spans, body)) or len(set(map(len, body))) != 1:
        for cell in (cell for cells in body for cell in cells if _is_number(cell)):
            add_class(cell, "number")
        return
    aligned = [cells for cells in head if len(cells) == len(body[0]) and not _spans(cells)]
    for index, column in enumerate(zip(*body, strict=True)):
        values = [cell for cell in column if _text(cell) not in MISSING]
        if values and all(map(_is_number, values)):
            for cell in (*column, *(cells[index] for cells in aligned)):
                add_class(cell, "number")


def _keep_together(soup: BeautifulSoup, cell: Tag) -> None:
    """Let a number break across lines before its interval, and nowhere else."""
    parts = re.split(r" (?=\[)", _text(cell))
    if not any(" " in part for part in parts) or cell.find(True):
        return
    cell.clear()
    for nth, part in enumerate(parts):
        together = soup.new_tag("span", attrs={"class": "nowrap"}, string=part)
        cell.extend([" ", together] if nth else [together])


def _mark_sortable(table: Tag, head: list[list[Tag]], body: list[list[Tag]]) -> None:
    """Class `sortable`, and `by` for the row of headers that names most of the columns."""
    if len(body) < 2 or any(map(_spans, body)) or table.find(["tfoot", "table"]):
        return
    aligned = [cells for cells in head if len(cells) == len(body[0]) and not _spans(cells)]
    best = max(aligned, key=lambda cells: sum(bool(_text(cell)) for cell in cells), default=[])
    if best and best[0].parent is not None:
        add_class(table, "sortable")
        add_class(best[0].parent, "by")


def svg_to_image(html: str) -> str:
    """HTML with inline SVGs as images, which have separate ids and cannot run scripts."""

    def image(match: re.Match[str]) -> str:
        svg = match[0]
        if "xmlns=" not in svg.partition(">")[0]:
            svg = svg.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
        if not is_well_formed(svg.encode()):
            return ""
        title = _SVG_TITLE.search(svg)
        alt = escape(unescape(title[1]).strip()) if title else ""
        data = base64.b64encode(svg.encode()).decode()
        return f'<img src="data:image/svg+xml;base64,{data}" alt="{alt}">'

    return _SVG.sub(image, html)


def is_well_formed(svg: bytes) -> bool:
    """Whether an SVG is XML that a parser accepts."""
    try:
        expat.ParserCreate(namespace_separator=" ").Parse(svg, True)
    except expat.ExpatError:
        return False
    return True


def embed_images(soup: BeautifulSoup, *, folder: Path, title: str) -> None:
    """Embed each image, as a figure if it is alone, and describe it.

    Without alternative text, an image takes its caption or its section's heading. `folder` is the
    notebook's. Raises LabError, naming the image, if it is remote or missing.
    """
    for image in soup.find_all("img"):
        alt = str(image.get("alt", "")).strip()
        address = str(image.get("src", ""))
        if not address.startswith("data:"):
            image["src"] = _read_image(address, folder, alt=alt)
        paragraph, siblings = image.parent, [*image.previous_siblings, *image.next_siblings]
        is_alone = not any(str(node).strip() for node in siblings)
        if paragraph and paragraph.name == "p" and is_alone:
            paragraph.name = "figure"
            if text := image.attrs.pop("title", None):
                paragraph.append(soup.new_tag("figcaption", string=str(text)))
        if not alt:
            figure = image.find_parent("figure")
            caption = figure.find("figcaption") if figure else None
            section = f"Figure in section “{section_of(image) or title}”"
            image["alt"] = caption.get_text().strip() if caption else section


def _read_image(address: str, folder: Path, *, alt: str) -> str:
    name = f"image {address or '(no address)'}" + (f" (“{alt}”)" if alt else "")
    parts = urlsplit(address)
    if parts.netloc or parts.scheme in {"http", "https"}:
        raise LabError(f"{name} is remote: save it beside the notebook and refer to it by name")
    path = folder / unquote(parts.path)
    if not parts.path:
        raise LabError(f"{name} names no file")
    if not path.is_file():
        raise LabError(f"{name} is missing: there is no file {path}")
    if path.suffix.lower() not in IMAGE_TYPES:
        raise LabError(f"{name} cannot be embedded; use one of: {', '.join(IMAGE_TYPES)}")
    data = base64.b64encode(path.read_bytes()).decode()
    return f"data:{IMAGE_TYPES[path.suffix.lower()][0]};base64,{data}"
