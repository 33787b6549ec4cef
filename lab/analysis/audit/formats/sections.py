"""Reports in sections, such as "== 4 GPUs ==" above the names and values of a run, as tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from lab.analysis.audit.columns import COUNTED_RANKS, LAYOUT, MEASURED, quantities
from lab.analysis.audit.formats.grid import Table, counted_in
from lab.analysis.audit.formats.lists import NUMBER, RATE
from lab.analysis.audit.values import CELL_TIME, ranks_of

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
# A command that starts ranks or threads.
COMMAND = re.compile(
    r"\b(?:mpirun|mpiexec|srun)\b.*\s--?(?:np?|ntasks)[ =]?(\d+)(?=\s)|\b(?:OMP_NUM_THREADS="
    r"|torchrun .*--nproc[_-]per[_-]node[ =])(\d+)\s+\S"
    r"|(?:\btime|^\s*[$>]) \S.*\s--?(?:num[_-]?|n)?threads[ =](\d+)(?!\S)"
)
LOGGED = re.compile(r"\s*(?:\[[^\]]*\]\s*)+>?\s*|(?:INFO|WARNING|DEBUG):[\w.]*:")
PARTS = re.compile(r"\t|\s{2,}|,\s+")
RATED = re.compile(rf"(?P<value>{NUMBER})\s?(?P<unit>{RATE}|ns/day)", re.IGNORECASE)
TOOK = re.compile(  # and what a shell prints
    rf"\s*(?P<what>[^\W\d][^:=|]{{0,40}}?)\s+(?:took|takes):?\s+(?P<took>{NUMBER}\s?(?:{CELL_TIME}))\b.*"
    r"|real\s+(?P<real>\d\S*)",
    re.IGNORECASE,
)
LONGEST, LONGEST_TITLE = 40, 80  # characters of a value and of a title
MOST_LINES = 100_000
HALF = 0.5


def find_sections(lines: Sequence[str], *, fewest: int = 2) -> Table | None:
    """A row for each section, or from a name to where it comes again, of lines "name: value" that
    report measurements on several numbers of ranks; of a single one (`fewest` is 1), if it has
    several measurements."""
    lines = lines[:MOST_LINES]
    titles = [None if RULE.fullmatch(line) else TITLE.fullmatch(line) for line in lines]
    kinds = dict.fromkeys(_kind(title) for title in titles if title)
    every = (_table(_records(lines, titles, kind), fewest) for kind in (*kinds, ""))
    tables = [table for table in every if table]
    return max(tables, key=lambda table: len(table.rows) * len(table.header), default=None)


def find_headed(lines: Sequence[str]) -> Table | None:
    """A row for each measurement below lines such as "With 4 processes:", which count the ranks."""
    records: list[Record] = []
    heading: Record = {}
    for line in lines[:MOST_LINES]:
        if counted := _heading(line):
            heading = counted
            records.append({**heading})
            continue
        for name, value in _reported(line) if heading else ():
            if name in records[-1]:
                records.append({**heading})
            records[-1][name] = value
    table = _table(iter(records), fewest=2)
    # Speedups alone are over a run that only a sentence reports.
    return table if table and quantities(table.header) & {"time", "rate"} else None


def _heading(line: str) -> Record:
    """The number of ranks by what is counted, of a line that tells on how many the next ran."""
    if match := COMMAND.search(line):
        what = "threads" if "OMP" in match[0] or match[3] else "ranks"
        return {what: match[1] or match[2] or match[3]}
    if len(line) > LONGEST_TITLE or "|" in line:
        return {}
    return counted_in(line)


def _reported(line: str) -> Iterator[tuple[str, str]]:
    """The names and values of a line of a log, with the units of rates in the names."""
    text = re.sub(r"(?<=[:=])\s+|(?<=^real)\s+", " ", LOGGED.sub("", line, count=1).strip())
    for part in PARTS.split(text):
        if took := TOOK.fullmatch(part):
            if took["what"]:
                yield "program", took["what"]
            yield "total time", took["took"] or took["real"]
        elif rate := RATED.fullmatch(part):
            yield rate["unit"], rate["value"]
        elif (pair := PAIR.fullmatch(part)) and len(pair["value"]) <= LONGEST:
            rate = RATED.fullmatch(pair["value"])
            yield (
                (f"{pair['name']} ({rate['unit']})" if rate else pair["name"]),
                (rate["value"] if rate else ASIDE.sub("", pair["value"])),
            )


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


def _records(
    lines: Sequence[str], titles: Sequence[re.Match[str] | None], kind: str
) -> Iterator[Record]:
    """What is reported below each title of a kind, or from one line of a name to the next."""
    record: Record = {}
    for place, (line, title) in enumerate(zip(lines, titles, strict=True)):
        beside = (*lines[max(place - 1, 0) : place], *lines[place + 1 : place + 2])
        boxed = len(beside) == 2 and all(map(RULE.fullmatch, beside))
        pair = PAIR.fullmatch(line) if title is None else None
        if boxed or (title and _kind(title) == kind):
            yield record
            heading = title["title"] if title else line.strip()
            # The settings that a title gives, or the title itself.
            record = {} if pair else dict(IN_TITLE.findall(heading)) or {"section": heading}
        if pair is None or len(value := ASIDE.sub("", pair["value"])) > LONGEST:
            continue
        if pair["name"] in record:
            yield record
            record = {}
        record[pair["name"]] = value
    yield record
