"""Tables in reStructuredText: simple ones, and the directives for lists and CSV."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator, Sequence

from lab.analysis.audit.formats.grid import Table

BORDER = re.compile(r"\s*=+(?:[ \t]+=+)+\s*")
SPAN = re.compile(r"=+")
SPANNING = re.compile(r"[-\s]+")  # below a name that spans several columns
UNDERLINE = re.compile(r"([=\-~^\"'#*+.:`_])\1{2,}\s*")
DIRECTIVE = re.compile(r"(\s*)\.\.\s+(list|csv)-table::(.*)")
OPTION = re.compile(r"\s+:([\w-]+):\s*(.*)")
ITEM = re.compile(r"\s*(\*\s+)?-(?:\s+(.*)|)$")
ROLE = re.compile(r":\w+:`([^`<]*?)(?:\s*<[^>]*>)?`|``?([^`]*)``?_?_?")
EMPHASIS = re.compile(r"\*{1,2}([^*]+)\*{1,2}")


def tables(text: str) -> Iterator[Table]:
    """The tables of a text; notes are the title and the lines above it from the last heading on."""
    lines = text.splitlines()
    after = 0
    for place, line in enumerate(lines):
        if place < after:
            continue
        directive = DIRECTIVE.fullmatch(line)
        if directive:
            end = _end_of_block(lines, place, len(directive[1]))
            read = _listed if directive[2] == "list" else _delimited
            cells = read(lines[place + 1 : end])
        elif BORDER.fullmatch(line):
            end, cells = _simple(lines, place)
        else:
            continue
        if len(cells) > 1:
            title = [directive[3].strip()] if directive else []
            notes = [*filter(None, title), *_above(lines[after:place])]
            yield Table(cells[0], cells[1:], notes)
            after = end


def _above(lines: Sequence[str]) -> list[str]:
    """The text from the last heading on, and that heading."""
    marks = [place for place, line in enumerate(lines) if UNDERLINE.fullmatch(line)]
    start = max(marks[-1] - 1, 0) if marks else 0
    return [
        text for line in lines[start:] if (text := line.strip()) and not UNDERLINE.fullmatch(line)
    ]


def _end_of_block(lines: Sequence[str], start: int, indent: int) -> int:
    """The place after the lines of a directive, which are indented further than it is."""
    for place in range(start + 1, len(lines)):
        line = lines[place]
        if line.strip() and len(line) - len(line.lstrip()) <= indent:
            return place
    return len(lines)


def _plain(text: str) -> str:
    """The text of a cell without roles, links and emphasis."""
    plain = ROLE.sub(lambda match: match[1] or match[2] or "", text)
    return EMPHASIS.sub(r"\1", plain).strip().removeprefix("..").strip()  # a comment is blank


def _simple(lines: Sequence[str], start: int) -> tuple[int, list[list[str]]]:
    """The place after a simple table, and its lines of cells; none if it is not closed.

    A line whose first cell is blank continues the one above it, in the names as in the rows.
    """
    borders = [start]
    for place in range(start + 1, len(lines)):
        if BORDER.fullmatch(lines[place]):
            borders.append(place)
        if len(borders) == 3 or (len(borders) == 2 and not lines[place].strip()):
            break
    if len(borders) < 3:
        return start + 1, []
    _, middle, end = borders
    # A name may span several columns of the border below.
    places = [match.start() for match in SPAN.finditer(lines[middle])]
    cells: list[list[str]] = [["" for _ in places]]
    for number in (*range(start + 1, middle), *range(middle + 1, end)):
        line = lines[number]
        if not line.strip() or SPANNING.fullmatch(line):
            continue
        parts = [
            _plain(line[left:right]) for left, right in itertools.pairwise([*places, len(line)])
        ]
        if number < middle or not parts[0]:
            cells[-1] = [
                " ".join(filter(None, pair)) for pair in zip(cells[-1], parts, strict=True)
            ]
        else:
            cells.append(parts)
    return end + 1, cells


def _content(lines: Sequence[str]) -> tuple[dict[str, str], Sequence[str]]:
    """The options of a directive, and what follows them."""
    matches = [*itertools.takewhile(bool, map(OPTION.fullmatch, lines))]
    return {match[1]: match[2] for match in matches if match}, lines[len(matches) :]


def _listed(lines: Sequence[str]) -> list[list[str]]:
    """The cells of a list of lists; the text below an item goes on with it."""
    rows: list[list[str]] = []
    for line in _content(lines)[1]:
        item = ITEM.fullmatch(line)
        if item and item[1]:
            rows.append([_plain(item[2] or "")])
        elif item and rows:
            rows[-1].append(_plain(item[2] or ""))
        elif line.strip() and rows:
            rows[-1][-1] = f"{rows[-1][-1]} {_plain(line)}".strip()
    return rows


def _delimited(lines: Sequence[str]) -> list[list[str]]:
    options, content = _content(lines)
    delim = options.get("delim", ",")
    delimiter = {"tab": "\t", "space": " "}.get(delim, delim)
    text = [options["header"]] if "header" in options else []
    named = csv.reader(text, skipinitialspace=True)
    rest = csv.reader(
        (line.strip() for line in content if line.strip()),
        delimiter=delimiter[:1] or ",",
        skipinitialspace=True,
    )
    return [[_plain(cell) for cell in row] for row in (*named, *rest)]
