"""Lists such as "8 GPUs: 25 images/s" as tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lab.analysis.audit.columns import SECOND, THINGS, TIMES, counted, names_gpu, quantities
from lab.analysis.audit.formats.grid import Table, counted_in
from lab.analysis.audit.values import CELL_TIME, NODE, RANK, ranks_of

NUMBER = r"[~≈]?\d[\d.,]*(?:\s?[kKM](?![a-z]))?"
RATE = rf"(?:{THINGS})\s?(?:/|per)\s?(?:{SECOND})(?:\s?(?:/|per)\s?(?:{RANK}))?"
# A bullet, the ranks, what separates them from a number, this, and anything.
ITEM = re.compile(
    r"\s*(?:[-*•+]\s+|\d{1,2}[.)]\s+)?(?:(?:in|on|with|using) )?(?P<ranks>[^:=|]{1,60}?)"
    rf"\s*(?::|=|->|→|–|—|\s-\s|(?P<words>\s(?:(?!(?:{RANK})s?\b)[a-z]+\s){{1,3}}))\s*(?:"
    rf"(?P<time>(?:{NUMBER}\s?(?:{CELL_TIME})(?![^\W\d]|/),?\s?)+|\d+:\d\d:\d\d(?:\.\d+)?)"
    rf"|(?P<each>{NUMBER}\s?(?:{CELL_TIME}))\s?(?:/|per)\s?(?P<per>step|it|iter|iteration|epoch|batch)"
    rf"|(?P<value>{NUMBER})\s?(?P<rate>{RATE})|(?P<bare>{NUMBER}(?:\s?-\s?{NUMBER})?)(?!\s?\w)"
    r")(?![\w/])",
    re.IGNORECASE,
)
QUOTED = re.compile(r"\s*\(\s*(\d[\d.]*\s?[x×])(?:\s(?:speed-?up|faster))?\s*\)", re.IGNORECASE)
BASELINE = re.compile(r"(?:1(?:\.0*)?\s?[x×])?", re.IGNORECASE)
NODES = re.compile(rf"(\d{{1,6}})\s*x?\s*{NODE}s?", re.IGNORECASE)
FEWEST = 2  # items of a list


class Item(NamedTuple):
    """A line of a list; `kind` tells quantities apart, "" for a number without a unit."""

    what: str  # that is counted: ranks or nodes
    number: str
    value: str
    kind: str
    name: str  # of the column of values
    ratio: str = ""  # the speedup in brackets behind the value


def find_lists(lines: Sequence[str]) -> list[Table]:
    """The lists of times or rates on different numbers of ranks, in the order of the text."""
    items = [_item(line) for line in lines]
    pairs = zip(lines, items, strict=True)
    notes = [text for line, item in pairs if not item and (text := line.strip())]
    lists = []
    for start, run in _runs(items):
        if len(run) >= FEWEST and len({item.number for item in run}) > 1:
            above = [text for line in reversed(lines[:start]) if (text := line.strip())][:1]
            rows = [[item.number, item.value, item.ratio] for item in run]
            around = list(dict.fromkeys([*above, *notes]))
            # Ratios beside that of no baseline may be over anything.
            quoted = len({bool(BASELINE.fullmatch(item.ratio)) for item in run}) > 1
            header = [_counted(run), run[0].name, "speedup"][: 2 + quoted]
            lists.append(Table(header, [row[: 2 + quoted] for row in rows], around))
    return lists


def _counted(run: Sequence[Item]) -> str:
    """What the items of a list count: nodes, GPUs or ranks."""
    of_gpus = all("gpu" in item.number.lower() or names_gpu(item.number) for item in run)
    return "GPUs" if of_gpus else run[0].what


def _runs(items: Sequence[Item | None]) -> Iterator[tuple[int, list[Item]]]:
    """Items of one quantity that follow one another, and the place of the first; bare numbers
    belong to those before."""
    start, run = 0, list[Item]()
    for place, item in enumerate([*items, None]):
        if item and run and item.what == run[0].what and item.kind in {"", run[0].kind}:
            run.append(item)
            continue
        if run:
            yield start, run
        start, run = place, [item] if item and item.kind else []


def _item(line: str) -> Item | None:
    line = line.replace("**", "").replace("`", "")
    match = ITEM.match(line)
    if match is None or (match["words"] and match["bare"]):
        return None
    nodes = NODES.fullmatch(match["ranks"])
    of_ranks = ("nodes", nodes[1]) if nodes else ("ranks", match["ranks"])
    heading = "time"
    if not nodes and not ranks_of(match["ranks"])[0] > 0:
        counts = counted_in(match["ranks"])  # of "Time with 4 threads: 3.2 s"
        heading = counts.pop("heading", heading)
        if quantities([heading]).isdisjoint(TIMES) or not counts:
            return None
        of_ranks = next(iter(counts.items()))
    if match["bare"]:
        return Item(*of_ranks, match["bare"], "", "")
    quoted = QUOTED.match(line, match.end())
    ratio = quoted[1] if quoted else ""
    if rate := match["rate"]:
        kind = counted(rate) + str(bool(re.search(rf"\b({RANK})$", rate)))
        return Item(*of_ranks, match["value"], kind, rate, ratio)
    name = f"{match['per'] or 'total'} time"
    return Item(*of_ranks, (match["time"] or match["each"]).strip(), name + heading, name, ratio)
