"""Tables in Markdown or drawn in terminals, and the lines around them."""

from __future__ import annotations

import bisect
import html
import itertools
import re
from collections.abc import Iterator, Sequence

from lab.analysis.audit.formats.grid import NUMERIC, Table, joined, without_remarks
from lab.analysis.audit.wide import CORNER

FENCE = re.compile(r"\s*(?:```|~~~)")
BAR = re.compile(r"(?<!\\)\|")
# A lone "-" is a missing value, unless another cell has more or a colon, or all of the second line
# of a table are such.
DASHES = re.compile(r"\s*\|?(?:\s*:?-+:?\s*\|)+(?:\s*:?-+:?\s*)?\s*")
RULE = re.compile(rf"(?=.*(?:--|:)){DASHES.pattern}")
GRID = re.compile(r"\s*\+(?:[-=]+\+)+\s*")
UNDERLINE = re.compile(r"\s*-{5,}\s*")  # below names with bars, as LAMMPS draws it
# Rules and bars as drawn in terminals: psql, grid and box styles.
_STROKES = dict.fromkeys(map(chr, range(0x2500, 0x2580)), "|") | {"+": "|", "=": "-"}
RULES = str.maketrans(_STROKES | dict.fromkeys("\u2500\u2501\u2550", "-"))
BARS = str.maketrans(dict.fromkeys("\u2502\u2503\u2551", "|"))
HEADING = re.compile(r"\s{0,3}#{1,6}\s")
CAPTIONED = re.compile(r"^(?!\s*#).{2,120}:[\s*_]*$")
BREAK = re.compile(r"\s*<br\s*/?>\s*")
EMPHASIS = re.compile(
    r"(?<!\d)\*\*(\d+)\*\*|(?<!\d)\*\*|\*\*(?!\d)|(?<!\w)__|__(?!\w)|`|<[/]?(?:b|i|sub|sup|em|strong)>"
)
FORMULA = re.compile(r"\$(?=\d)((?:[\d.,\s×x*]|\\times)+)(?<=\S)\$")  # numbers, unlike $3
ESCAPED = re.compile(r"\\([\\`*_{}\[\]()#+.!<>~-])")  # \_ is _
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
# To a footnote: [^1], or a small number after a word.
REFERENCE = re.compile(
    r"\[\^[^\]]*\]|(?<!\d)\s*<sup>\s*(?:\[\^?\d{1,2}\](?:\([^)]*\))?|\d)\s*</sup>", re.IGNORECASE
)


def tables(text: str) -> Iterator[Table]:
    """Tables with a line of dashes below the column names; notes are the caption, the lines from
    the last heading on, those up to the next heading, table or its caption, and the headings of
    the sections that the table is in."""
    lines = [*map(_drawn, _with_marked_bars(text.splitlines()))]
    starts = [place - 1 for place in range(1, len(lines)) if _is_below_names(lines, place)]
    every = [place for place, line in enumerate(lines) if starts and HEADING.match(line)]
    after = 0
    for start in starts:
        if start < after:
            continue  # a rule between rows
        places = range(start + 2, len(lines))
        rows = list(itertools.takewhile(BAR.search, map(lines.__getitem__, places)))
        headings = every[: bisect.bisect_left(every, start)]
        before = lines[max([after, *headings[-1:]]) : start]
        sections = _sections([lines[place] for place in headings])
        after = start + 2 + len(rows)
        following = bisect.bisect_left(starts, after)
        end = starts[following] if following < len(starts) else None
        rest = lines[after:] if end is None else lines[after : _above_caption(lines, after, end)]
        below = itertools.takewhile(lambda line: not HEADING.match(line), rest)
        caption = lines[_above_caption(lines, start - len(before), start) : start]
        around = (*caption, *before, *below, *sections)
        notes = [line.replace("**", "").strip("# \t") for line in around]
        names = _cells(lines[start])
        cells = [
            without_remarks(_cells(row), len(names)) for row in rows if not RULE.fullmatch(row)
        ]
        yield Table(
            *_named(names, cells),
            [note for note in dict.fromkeys(notes) if note and not RULE.fullmatch(note)],
        )


def _with_marked_bars(lines: Sequence[str]) -> Iterator[str]:
    """Lines in which a bar within a cell of a grid of +, - and | has a backslash before it."""
    edges: list[int] = []
    for line in lines:
        if GRID.fullmatch(line):
            edges = [place for place, sign in enumerate(line) if sign == "+"]
        elif not line.strip():
            edges = []
        elif edges and line.count("|") > len(edges):
            bars = {place for place, sign in enumerate(line) if sign == "|"}
            if bars.issuperset(edges):
                line = "".join(
                    f"\\{sign}" if place in bars.difference(edges) else sign
                    for place, sign in enumerate(line)
                )
        yield line


def _drawn(line: str) -> str:
    """Convert a line of a terminal-drawn table to Markdown; leave other lines as they are."""
    rule = line.translate(RULES)
    return rule if "--" in rule and not rule.strip("-:| \t") else line.translate(BARS)


def without_markup(cell: str) -> str:
    """A cell of Markdown as a page shows it, without links, emphasis, footnotes and formulas."""
    words = LINK.sub(r"\1", REFERENCE.sub("", cell))
    words = FORMULA.sub(lambda numbers: numbers[1].replace(r"\times", "×"), words)
    words = EMPHASIS.sub(r"\1", BREAK.sub(" ", words))
    return html.unescape(ESCAPED.sub(r"\1", words)).strip()


def _sections(headings: Sequence[str]) -> list[str]:
    """The last of these headings and those of the sections that it is in, innermost first; none of
    the first level, which comments in code look like."""
    inside: list[str] = []
    for heading in reversed(headings):
        if 1 < _level(heading) < (_level(inside[-1]) if inside else 7):
            inside.append(heading)
            if _level(heading) == 2:
                break
    return inside


def _level(heading: str) -> int:
    return len(heading.split()[0])


def _above_caption(lines: Sequence[str], first: int, start: int) -> int:
    """Where the caption of the table that starts here begins: a line such as "BERT on V100:" right
    above it; the start of the table if it has none."""
    above = next((place for place in range(start - 1, first - 1, -1) if lines[place].strip()), None)
    return start if above is None or not CAPTIONED.search(lines[above]) else above


def _is_below_names(lines: Sequence[str], place: int) -> bool:
    """Whether a line is the rule below the column names, which may be fewer than its cells."""
    rule, above = lines[place], lines[place - 1]
    if UNDERLINE.fullmatch(rule) and len(BAR.split(above)) > 1:
        below = "".join(lines[place + 1 : place + 2])
        return len(_cells(below)) == len(_cells(above)) > 1
    if not DASHES.fullmatch(rule):
        return False
    names, width = len(_cells(above)), len(_cells(rule))
    barred = rule.lstrip().startswith("|") and above.lstrip().startswith("|")
    if RULE.fullmatch(rule):
        return width == names > 1 or (barred and width > names > 1)
    return barred and width >= names > 1 and (place == 1 or not BAR.search(lines[place - 2]))


def _named(header: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Column names and rows; below an empty header, the names are the rows without numbers, and
    below one that names groups of columns, the first row, whose groups are then a row of words."""
    first, *rest = rows or [[]]
    spans = not header[0] and any(header) and not all(header[1:])
    if spans and rest and all(first) and len(first) == len(header):
        groups = [""]
        for name in header[1:]:  # one that spans several columns stands above the first of them
            groups.append(name or groups[-1])
        if not any(map(NUMERIC.match, first)):
            return first, [groups, *rest]
        corner, named = CORNER.fullmatch(first[0]), [*filter(None, header)]
        if corner and len(named) == 1 and all(map(str.isdecimal, first[1:])):  # of all columns
            sized = [f"{named[0]} ({number} {corner['columns']})" for number in first[1:]]
            return [corner["rows"], *sized], rest
    if any(header):
        return header, rows
    below = [*itertools.dropwhile(lambda row: not any(map(NUMERIC.match, row)), rows)]
    names = itertools.zip_longest(*rows[: len(rows) - len(below)], fillvalue="")
    return [joined(*parts) for parts in names], below


def _cells(line: str) -> list[str]:
    text = line.strip()
    text = text.removeprefix("|")
    text = text[:-1] if text.endswith("|") and not text.endswith(r"\|") else text
    return [without_markup(cell).replace(r"\|", "|") for cell in BAR.split(text)]
