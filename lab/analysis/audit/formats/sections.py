"""Reports in sections, such as "== 4 GPUs ==" above the names and values of a run, as tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from lab.analysis.audit.columns import COUNTED_RANKS, LAYOUT, MEASURED, quantities
from lab.analysis.audit.formats.grid import Table
from lab.analysis.audit.values import ranks_of

Record = dict[str, str]

# "== 4 GPUs ==", "===== threads=1", "### Run 2" and "--- k_cpu=3 ---".
TITLE = re.compile(
    r"\s*(?P<mark>={2,}|-{2,}|\*{2,}|~{2,}|>{2,}|#+)\s*(?P<title>[^\s=\-*~>#].*?)\s*:?\s*[=\-*~<#]*\s*"
)
RULE = re.compile(r"\s*([=\-*~_#])\1{4,}\s*")
PAIR = re.compile(
    r"\s*(?:[-*•✓]\s+)?(?P<name>[^\W\d][^:=|{}\[\]\"]{0,60}?)\s*[:=]\s*(?P<value>[^\s:=].*?)\s*"
)
IN_TITLE = re.compile(r"(?<![=\w])([^\W\d][\w ]*?)\s*[=:]\s*(\d[\d.]*)(?![\w.])")
ASIDE = re.compile(r"(?<=\S)\s+\(.*\)$")  # of "391.9 s (6.5 min)"
LONGEST = 40  # characters of a value
MOST_LINES = 100_000
HALF = 0.5


def find_sections(lines: Sequence[str], *, fewest: int = 2) -> Table | None:
    """A row for each section, or from a name to where it comes again, of lines "name: value" that
    report measurements on several numbers of ranks; of a single one (`fewest` is 1), if it has
    several measurements."""
    lines = lines[:MOST_LINES]
    titles = (TITLE.fullmatch(line) for line in lines if not RULE.fullmatch(line))
    kinds = dict.fromkeys(_kind(title) for title in titles if title)
    tables = [table for kind in (*kinds, "") if (table := _table(_records(lines, kind), fewest))]
    return max(tables, key=lambda table: len(table.rows) * len(table.header), default=None)


def _kind(title: re.Match[str]) -> str:
    """The sign of a title, or of a heading its level."""
    mark = title["mark"]
    return mark if mark[0] == "#" else mark[0]


def _table(records: Iterator[Record], fewest: int) -> Table | None:
    measured = [record for record in records if quantities(record) & MEASURED]
    times = Counter(name for record in measured for name in record)
    names = [name for name, number in times.items() if number >= HALF * len(measured)]
    rows = [[record.get(name, "") for name in names] for record in measured]
    several = sum(bool(quantities([name]) & MEASURED) for name in names) > 1
    if len(rows) < fewest or not (several or fewest > 1):
        return None
    columns = zip(names, zip(*rows, strict=True), strict=True)
    ranked = any(_counts_ranks(name, set(cells) - {""}) for name, cells in columns)
    return Table(names, rows) if ranked or fewest == 1 else None


def _counts_ranks(name: str, cells: set[str]) -> bool:
    """Whether a column holds several numbers of ranks, threads or nodes."""
    if quantities([name]) & {*COUNTED_RANKS, *LAYOUT, "dp"}:
        return len(cells) > 1
    ranks = {ranks_of(cell.replace("_", " ").split(" - ")[-1])[0] for cell in cells}
    return len(ranks) > 1 and all(number > 0 for number in ranks)


def _records(lines: Sequence[str], kind: str) -> Iterator[Record]:
    """What is reported below each title of a kind, or from one line of a name to the next."""
    record: Record = {}
    for place, line in enumerate(lines):
        around = "\n".join(lines[max(place - 1, 0) : place + 2])
        boxed = around.count("\n") == 2 and all(map(RULE.fullmatch, around.split("\n")[::2]))
        title = None if RULE.fullmatch(line) else TITLE.fullmatch(line)
        pair = PAIR.fullmatch(line) if title is None else None
        if boxed or (title and _kind(title) == kind):
            yield record
            record = _titled(title["title"] if title else line.strip()) if not pair else {}
        if pair is None or len(value := ASIDE.sub("", pair["value"])) > LONGEST:
            continue
        if pair["name"] in record:
            yield record
            record = {}
        record[pair["name"]] = value
    yield record


def _titled(title: str) -> Record:
    """The settings that a title gives, or the title itself."""
    return dict(IN_TITLE.findall(title)) or {"section": title}
