"""Output of the OSU micro-benchmarks: the times of a collective by the size of its messages."""

from __future__ import annotations

import re
from collections.abc import Sequence

TITLE = re.compile(r"#?\s*OSU MPI\S*\s+(.+?)\s+Latency Test")
# Of a collective: an average over its ranks. Point to point there is one latency.
HEADER = re.compile(r"#?\s*Size\s+Avg Latency\s*\(us\)")
RANKS = re.compile(r"(?:^|\s)(?:-n|-np|--np|--ntasks)[ =]?(\d{1,7})(?=\s|$)")
NODES = re.compile(r"(?:^|\s)(?:-N|--nodes)[ =]?(\d{1,6})(?=\s|$)")
OF_A_NODE = re.compile(r"(?:^|\s)--n?tasks-per-node[ =](\d{1,5})(?=\s|$)")
NUMBER = re.compile(r"\d+(?:\.\d+)?")
COLUMNS = ["message_bytes", "strategy", "time_us", "ranks", "repeats"]
WITH_RANGE = 5  # size, average, minimum, maximum, iterations


def is_output(lines: Sequence[str]) -> bool:
    """Whether lines hold the times of a collective as these benchmarks print them."""
    return any(map(TITLE.match, lines)) and any(map(HEADER.match, lines))


def rows_of(lines: Sequence[str]) -> list[list[str]]:
    """A row of COLUMNS for each size; the ranks are those of the command above, if it is shown."""
    rows, name, ranks, within = [], "", "", False
    for line in lines:
        cells = line.split()
        numeric = bool(cells) and all(map(NUMBER.fullmatch, cells))
        if title := TITLE.match(line):
            name, within = title[1], False
        elif HEADER.match(line):
            within = True
        elif within and numeric and len(cells) > 1:
            repeats = cells[4] if len(cells) >= WITH_RANGE else ""
            rows.append([cells[0], name, cells[1], ranks, repeats])
        elif cells:
            within, ranks = False, ranks_of_command(line) or ranks
    return rows


def ranks_of_command(command: str) -> str:
    """The number of ranks that a command line starts, "" if it does not say."""
    if match := RANKS.search(command):
        return match[1]
    nodes, each = NODES.search(command), OF_A_NODE.search(command)
    return str(int(nodes[1]) * int(each[1])) if nodes and each else ""
