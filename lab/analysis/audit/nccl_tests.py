"""Output of nccl-tests: times and bandwidths of a collective by the size of its messages."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence

from lab.errors import InputError, Problem

DEVICE = re.compile(r"#?\s*Rank\s+(\d+)\s.*\son\s+(\S+)\s+device\s+\d+\s+\[[\w:.]+\]\s+(.+?)\s*$")
HEADER = re.compile(r"^[#\s]*size\s+count\s+type\b.*\btime\s+algbw\s+busbw\b")
SAVED = re.compile(  # as CSV
    r"size,count,type(,redop)?(,root)?(,time,algbw,busbw,#?(wrong|error)){1,2}", re.IGNORECASE
)
ITERATIONS = re.compile(r"(?<!warmup )\biters:\s*(\d+)")
MEASURED = 4  # time, algbw, busbw, errors
NEARLY = 0.02  # a whole number, within two decimals of the bandwidths
COLUMNS = [
    *("message_bytes", "variant", "time_us", "algbw_gb_per_s", "busbw_gb_per_s"),
    *("gpus", "nodes", "gpu_name", "repeats"),
]


def is_output(lines: Sequence[str]) -> bool:
    """Whether lines are printed by nccl-tests, or were saved as CSV."""
    return any(map(HEADER.match, _printed(lines)))


def rows_of(lines: Sequence[str], source: str) -> list[list[str]]:
    """A row of COLUMNS for each size, out of place and in place, with the facts of the devices.

    Raises InputError, which names `source`, if no size is printed.
    """
    lines = _printed(lines)
    # Independent programs all list a rank 0: each measured a single rank.
    devices = [match.groups() for line in lines if (match := DEVICE.match(line))]
    ranks, hosts, gpus = ({device[place] for device in devices} for place in range(3))
    iterations = next((match[1] for line in lines if (match := ITERATIONS.search(line))), "")
    facts = [str(len(ranks) or ""), str(len(hosts) or ""), ", ".join(sorted(gpus)), iterations]
    header = next((line for line in lines if HEADER.match(line)), "")
    variants = ("out-of-place", "in-place")[: header.count("algbw")]
    rows = []
    for cells in map(str.split, lines):
        if cells and cells[0].isdigit() and len(cells) > len(variants) * MEASURED:
            first = len(cells) - len(variants) * MEASURED
            for place, variant in enumerate(variants):
                measured = cells[first + place * MEASURED :][:MEASURED]
                if measured[0] != "N/A":
                    rows.append([cells[0], variant, *measured[:3]])
    if not rows:
        problem = Problem("file", "nccl-tests printed no sizes", "give all of its output")
        raise InputError(source, [problem])
    facts[0] = facts[0] or _ranks_by_bandwidths(rows)
    return [row + facts for row in rows]


def _printed(lines: Sequence[str]) -> Sequence[str]:
    """Lines with spaces between columns, also if they were saved as CSV."""
    saved = any(SAVED.fullmatch(line.replace(" ", "")) for line in lines)
    return [line.replace(",", " ") for line in lines] if saved else lines


def _ranks_by_bandwidths(rows: Sequence[Sequence[str]]) -> str:
    """The number of ranks that relates algbw to busbw in the fastest row, if any."""
    with contextlib.suppress(ValueError, ZeroDivisionError):
        algorithm, bus = max((float(row[3]), float(row[4])) for row in rows)
        ratio = bus / algorithm
        # The factor 2(n-1)/n of an all-reduce is above 1, (n-1)/n of a gather or scatter is below.
        ranks = 2 / (2 - ratio) if ratio > 1 else 1 / (1 - ratio)
        if ranks > 1 and abs(ranks / round(ranks) - 1) < NEARLY:
            return str(round(ranks))
    return ""
