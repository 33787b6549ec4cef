"""Tables in published text (notebooks, Markdown, HTML, LaTeX, reST) and the lines around them."""

from __future__ import annotations

import bisect
import contextlib
import html
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from typing import Any, NamedTuple

from lab.analysis.audit import rst
from lab.analysis.audit.columns import MEASURED, normal, quantities
from lab.analysis.audit.reshape import INDEXED, ranks_in
from lab.analysis.audit.values import ranks_of
from lab.records.table import grouped

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
EMPHASIS = re.compile(r"\*\*|__|`|<[/]?(?:b|i|sub|sup|em|strong)>")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
# To a footnote: [^1], or a small number after a word.
REFERENCE = re.compile(
    r"\[\^[^\]]*\]|(?<!\d)\s*<sup>\s*(?:\[\^?\d{1,2}\](?:\([^)]*\))?|\d)\s*</sup>", re.IGNORECASE
)
TABULAR = re.compile(r"\\begin\{(tabular[*xy]?|longtable|tabulary)\}")
NUMERIC = re.compile(r"[~<]?\.?\d")
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
    r"\oe": "oe",
    r"\ss": "ss",
    "$": "",
}


VALUES = re.compile(r"values?|settings?|值|数值|wert|valeur|valor")
OF_RUNS = MEASURED | {"flops_per_rank", "mfu"}
RANKED = {"world_size", "nodes", "dp"}
THREADED = {"threads", "cpus"}
MOST_ROWS = 50  # that are looked at


class Table(NamedTuple):
    """Column names, rows of cells, and the text around them."""

    header: list[str]
    rows: list[list[str]]
    notes: list[str]
    logged: bool = False  # the lines of a log


def find_tables(lines: Sequence[str]) -> list[Table]:
    """The tables in Markdown, HTML, LaTeX or reStructuredText that say most of scaling."""
    text = HIDDEN.sub("", "\n".join(_with_marked_bars(lines)))
    tables = [*_markdown(list(map(_drawn, text.splitlines()))), *_html(text), *_latex(text)]
    tables += [Table(cells[0], cells[1:], notes) for cells, notes in rst.tables(text.splitlines())]
    return most_relevant([table for table in tables if any(table.header)])


def most_relevant(tables: Sequence[Table]) -> list[Table]:
    """The tables of measurements on known ranks, else those of measurements, else the longest.

    Settings and their values, if there is another table, are notes on all of them.
    """
    settings = [
        table
        for table in tables
        if len(table.header) == 2 and VALUES.fullmatch(table.header[1].lower())
    ]
    results = [table for table in tables if table not in settings]
    by_relevance = grouped((relevance(table), table) for table in results or tables)
    most = max(by_relevance, default=0)
    alike = by_relevance.get(most, [])
    if alike and not most:
        alike = [max(alike, key=lambda table: len(table.rows))]
    values = [": ".join(row[:2]) for table in settings for row in table.rows if results]
    return [table._replace(notes=[*table.notes, *values]) for table in alike]


def relevance(table: Table) -> int:
    """3 for a table of measurements on known ranks, 2 for one on numbers of threads or cores, 1 for
    one of measurements, 0 for others."""
    rows = table.rows[:MOST_ROWS]
    columns = dict(zip(table.header, zip(*rows, strict=False), strict=False))
    columns = {name: cells for name, cells in columns.items() if any(map(NUMERIC.match, cells))}
    labels = [row[0] for row in rows if row]
    named = [name for name in table.header if not INDEXED.search(normal(name))]
    sizes = {name: ranks for name in named if (ranks := ranks_in(name)[0]) > 0}
    spread = len(set(sizes.values())) > 1
    if spread and set(sizes) <= set(columns):
        return 3
    names = [*columns, *labels] if spread else columns
    known = quantities(names)
    ranked = spread or known & RANKED or any(ranks_of(label)[0] > 0 for label in labels)
    if not known & OF_RUNS:
        return 0
    return 3 if ranked else 1 + bool(known & THREADED)


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


def _markdown(lines: Sequence[str]) -> Iterator[Table]:
    """Tables with a line of dashes below the column names; notes are the caption, the lines from
    the last heading on, those up to the next heading, table or its caption, and the headings of
    the sections that the table is in."""
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


def without_remarks(cells: list[str], width: int) -> list[str]:
    """A row without the remarks that follow its last cell, which are no numbers."""
    beyond = cells[width:]
    return cells if any(map(NUMERIC.match, beyond)) else cells[:width]


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
    """Column names and rows; below an empty header, the names are the rows without numbers."""
    if any(header):
        return header, rows
    below = [*itertools.dropwhile(lambda row: not any(map(NUMERIC.match, row)), rows)]
    names = itertools.zip_longest(*rows[: len(rows) - len(below)], fillvalue="")
    return [" ".join(filter(None, parts)) for parts in names], below


def _cells(line: str) -> list[str]:
    text = line.strip()
    text = text.removeprefix("|")
    text = text[:-1] if text.endswith("|") and not text.endswith(r"\|") else text
    return [
        html.unescape(EMPHASIS.sub("", BREAK.sub(" ", LINK.sub(r"\1", REFERENCE.sub("", cell)))))
        .replace(r"\|", "|")
        .strip()
        for cell in BAR.split(text)
    ]


def _latex(text: str) -> Iterator[Table]:
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
        if table := _table(_rows(body), _captions(text, captions, (above, match.start(), end))):
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


SPANNED = "\x1f"  # before a name that spans several columns
WIDEST, MOST_COLUMNS = 100, 500  # columns that a cell may span, and a table have


def _table(lines: Sequence[list[str]], notes: Sequence[str]) -> Table | None:
    """A table made of lines, the column names first; None without rows or a second column.

    A line with a single cell is a title: a note above the names, a section among the rows.
    """
    below = [*itertools.dropwhile(_is_title, lines)]
    titles = [*notes, *(line[0].lstrip(SPANNED) for line in lines[: len(lines) - len(below)])]
    header, *rest = below or [[]]
    while rest and any(SPANNED in name for name in header):
        names = itertools.zip_longest(header, rest.pop(0), fillvalue="")
        pairs = [(top.replace(SPANNED, ""), name) for top, name in names]
        header = [" ".join(dict.fromkeys(filter(None, pair))) for pair in pairs]
    header = [name.replace(SPANNED, "") for name in header]
    sections = any(map(_is_title, rest))
    rows, section = [], ""
    for line in rest:
        cells = [cell.lstrip(SPANNED) for cell in line]
        if _is_title(line):
            section = cells[0]
        else:
            blank = [""] * (len(header) - len(cells))
            rows.append([*cells, *blank, section] if sections else cells)
    if len(header) < 2 or not rows:
        return None
    return Table([*header, "section"] if sections else header, rows, list(filter(None, titles)))


def _is_title(line: Sequence[str]) -> bool:
    return len(line) > 1 and line[0].startswith(SPANNED) and len(set(line)) == 1


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


Span = tuple[str, int, int]  # the text of a cell, and how many columns and rows it spans
HIDDEN = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
HEADINGS = {"caption", "h1", "h2", "h3", "h4", "h5", "h6"}


def _html(text: str) -> Iterator[Table]:
    """The tables of a page, nested ones included; notes are the heading above and the caption."""
    if "<table" not in text.lower():
        return
    page = _Page()
    with contextlib.suppress(AssertionError):  # from a declaration that cannot be parsed
        page.feed(text)
        page.close()
    for lines, notes in page.tables:
        if table := _table(_grid(lines), notes):
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


def as_text(text: str) -> str:
    """The text of a notebook's Markdown cells and outputs, without code; other texts as they are.

    Of an output in several formats, HTML is kept.
    """
    if not text.lstrip().startswith("{") or '"cells"' not in text:
        return text
    try:
        cells = json.loads(text)["cells"]
        return "\n\n".join(part for cell in cells for part in _shown(cell))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return text


def _shown(cell: dict[str, Any]) -> Iterator[str]:
    if cell["cell_type"] == "markdown":
        yield "".join(cell["source"])
    for output in cell.get("outputs", ()):
        shown = output.get("data", {})
        formats = ("text/html", "text/markdown", "text/plain")
        kept = next((shown[name] for name in formats if name in shown), output.get("text", ""))
        yield "".join(kept)
