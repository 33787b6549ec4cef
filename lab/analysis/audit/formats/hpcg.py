"""Results of the HPCG benchmark, lines such as "Machine Summary::Distributed Processes=4"."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lab.analysis.audit.formats.grid import Table

BEGIN = re.compile(r"\s*HPCG-Benchmark(?:\s+version=.*|\s*)")
# What its columns are called here, by how the lines begin.
COLUMNS = {
    "ranks": "Machine Summary::Distributed Processes=",
    "threads": "Machine Summary::Threads per processes=",
    "nx": "Global Problem Dimensions::Global nx=",
    "ny": "Global Problem Dimensions::Global ny=",
    "nz": "Global Problem Dimensions::Global nz=",
    "GFLOP/s": "Final Summary::HPCG result is VALID with a GFLOP/s rating of=",
}


def find_results(lines: Sequence[str]) -> Table | None:
    """A row for each result; None for other lines."""
    rows: list[list[str]] = []
    for line in lines:
        if BEGIN.fullmatch(line):
            rows.append([""] * len(COLUMNS))
        for place, begin in enumerate(COLUMNS.values()) if rows else ():
            if line.strip().startswith(begin):
                rows[-1][place] = line.partition("=")[2].strip()
    return Table([*COLUMNS], rows) if any(map(any, rows)) else None
