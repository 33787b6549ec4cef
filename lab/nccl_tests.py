"""What NVIDIA's nccl-tests print, as a table: a row per size, out of place and in place."""

from __future__ import annotations

import re
from collections.abc import Sequence

RANK = re.compile(r"#?\s*Rank\s+(\d+)\s.*\son\s+(\S+)\s+device\s+\d+\s+\[\w+\]\s+(.+?)\s*$")
HEADER = re.compile(r"^[#\s]*size\s+count\s+type\b.*\btime\s+algbw\s+busbw\b")
ITERATIONS = re.compile(r"(?<!warmup )\biters:\s*(\d+)")
MEASURED = 4  # time, algbw, busbw, errors
COLUMNS = ("message_bytes", "variant", "time_us", "algbw_gb_per_s", "busbw_gb_per_s", "gpus", "nodes", "gpu_name", "repeats")


def is_output(lines: Sequence[str]) -> bool:
    """Whether lines hold the column names that nccl-tests print."""
    return any(HEADER.match(line) for line in lines)


def rows_of(lines: Sequence[str]) -> list[list[str]]:
    """Cells of COLUMNS as text; how many ranks and nodes there were, and which GPUs, is read from the list of devices."""
    devices = [match.groups() for line in lines if (match := RANK.match(line))]
    # Programs that do not know each other all list a rank 0: they measured one rank each.
    ranks, hosts, gpus = (set(column) for column in zip(*devices, strict=True)) if devices else (set(), set(), set())
    iterations = next((match[1] for line in lines if (match := ITERATIONS.search(line))), "")
    facts = [str(len(ranks) or ""), str(len(hosts) or ""), ", ".join(sorted(gpus)), iterations]
    found = []
    for line in lines:
        cells = line.split()
        if not cells or not cells[0].isdigit() or len(cells) < 1 + 2 * MEASURED:
            continue
        for variant, measured in (("out-of-place", cells[-2 * MEASURED : -MEASURED]), ("in-place", cells[-MEASURED:])):
            if measured[0] != "N/A":
                found.append([cells[0], variant, *measured[:3], *facts])
    return found
