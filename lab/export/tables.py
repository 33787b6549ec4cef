"""Tables of a page: numbers aligned, a box to scroll in, a row of headers to sort by."""

from __future__ import annotations

import re

from bs4 import BeautifulSoup, Tag

_DIGITS = r"[-+−]?\s*(\d[\d,\u202f\u2009 ]*(\.\d*)?|\.\d+)([eE][-+]?\d+)?"
# A number with its unit, and perhaps its interval; or an interval alone.
NUMBER = re.compile(
    rf"[<>≈~±]?\s*{_DIGITS}\s*(%|[^\W\d_]{{1,4}}(/[^\W\d_]{{1,4}})?|[×°])?(\s*[±\[(–].*)?"
    rf"|[\[(]\s*{_DIGITS}\s*(,|–|to)\s*{_DIGITS}\s*[\])]"
)
WIDE = 8  # a table of more columns is printed small
NOTHING = frozenset({"", "-", "–", "—", "nan", "NaN", "None", "NaT", "<NA>", "inf", "-inf", "none", "not measured", "not run"})


def arrange(soup: BeautifulSoup) -> None:
    """Mark columns of numbers, drop what pandas wrote for looks, and put each table in a box that can scroll."""
    for table in soup.find_all("table"):
        if table.find(["td", "th"]) is None:  # Typst knows no table without columns
            table.replace_with(*(table.caption.contents if table.caption else ()))
            continue
        for name in ("border", "align"):
            table.attrs.pop(name, None)
        _merge_index_names(table)
        _mark_numbers(table)
        _mark_sortable(table)
        if table.get("id") and soup.find("style", string=re.compile(rf"#{re.escape(str(table['id']))}(?![a-zA-Z0-9])")):
            _add_class(table, "styled")
        if len(max((cells for part in rows(table) for cells in part), key=len, default=[])) > WIDE:
            _add_class(table, "wide")
        if not table.find_parent("table"):
            _box(soup, table)


def rows(table: Tag) -> tuple[list[list[Tag]], list[list[Tag]]]:
    """Cells by row, of the head and of the body."""
    head = [_cells(row) for row in table.select("thead > tr")]
    return head, [_cells(row) for row in table.find_all("tr") if row.parent and row.parent.name != "thead"]


def _cells(row: Tag) -> list[Tag]:
    return row.find_all(["td", "th"], recursive=False)


def _text(cell: Tag) -> str:
    return cell.get_text().strip()


def _is_number(cell: Tag) -> bool:
    return bool(NUMBER.fullmatch(_text(cell)))


def _spans(cells: list[Tag]) -> bool:
    return any(str(cell.get(name, "1")) != "1" for cell in cells for name in ("colspan", "rowspan"))


def _add_class(cell: Tag, name: str) -> None:
    cell["class"] = " ".join([*filter(None, cell.get_attribute_list("class")), name])


def _merge_index_names(table: Tag) -> None:
    """Put the names of the index, which pandas writes in a row of their own, into the row of headers above."""
    head, _ = rows(table)
    if len(head) < 2 or len(head[-1]) != len(head[-2]) or _spans([*head[-1], *head[-2]]):
        return
    pairs = list(zip(head[-2], head[-1], strict=True))
    if any(_text(upper) and _text(lower) for upper, lower in pairs):
        return
    for upper, lower in pairs:
        if _text(lower):
            upper.replace_with(lower.extract())
    if head[-1][0].parent is not None or head[-1][-1].parent is not None:
        table.select("thead > tr")[-1].decompose()


def _mark_numbers(table: Tag) -> None:
    """Class `number` for cells of columns in which all that is said is a number."""
    head, body = rows(table)
    if any(_spans(cells) for cells in body) or len({len(cells) for cells in body}) != 1:
        for cell in (cell for cells in body for cell in cells if _is_number(cell)):
            _add_class(cell, "number")
        return
    for number, column in enumerate(zip(*body, strict=True)):
        said = [cell for cell in column if _text(cell) not in NOTHING]
        if not said or not all(_is_number(cell) for cell in said):
            continue
        above = [cells[number] for cells in head if len(cells) == len(body[0]) and not _spans(cells)]
        for cell in (*column, *above):
            _add_class(cell, "number")


def _mark_sortable(table: Tag) -> None:
    """Class `sortable` for a table, and `by` for the row of headers that names most of its columns."""
    head, body = rows(table)
    if len(body) < 2 or any(_spans(cells) for cells in body) or table.find("tfoot") or table.find("table"):
        return
    whole = [cells for cells in head if len(cells) == len(body[0]) and not _spans(cells)]
    if not whole:
        return
    best = max(whole, key=lambda cells: sum(bool(_text(cell)) for cell in cells))
    if best[0].parent is not None:
        _add_class(table, "sortable")
        _add_class(best[0].parent, "by")


def _box(soup: BeautifulSoup, table: Tag) -> None:
    caption = table.find("caption")
    label = caption.get_text().strip() if isinstance(caption, Tag) else "Table"
    # Focusable, so that a wide table can be scrolled with the keyboard.
    table.wrap(soup.new_tag("div", attrs={"class": "table-box", "role": "region", "tabindex": "0", "aria-label": label}))
