"""Slow ranks and hosts, for which all others wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
import pandas as pd

from lab.analysis.scaling import FEWEST_REPEATS
from lab.analysis.scaling_curves import rows_by_curve
from lab.analysis.waterfall import SHARE
from lab.formatting import count, listed, rounded
from lab.records.store import Record
from lab.records.table import by_run

MOST_NAMES = 8  # of ranks or hosts in a sentence


class Slow(NamedTuple):
    """The ranks for which the others of one repeat wait, and by how much they take longer."""

    ranks: frozenset[int]
    hosts: frozenset[str]  # that have no other rank, of several
    times: float


def slow_ranks(summary: pd.DataFrame, records: Sequence[Record]) -> Iterator[str]:
    """The ranks that are slow in all repeats, at the most ranks of each curve that has some."""
    repeats = by_run(record for record in records if record.completed)
    for rows in rows_by_curve(summary):
        for row in reversed(rows):
            own = [slow_of(record) for record in repeats.get(row["run_id"], ())]
            slow = [repeat for repeat in own if repeat is not None]
            if len(slow) == len(own) >= FEWEST_REPEATS and (who := _shared(slow)):
                one = who.startswith("rank ")
                times = rounded(median(repeat.times for repeat in slow))
                yield (
                    f"On {row.place}, {who} {'works' if one else 'work'} "
                    f"{times} times as long in a step as the other ranks, which wait for "
                    f"{'it' if one else 'them'}, in all {count(len(own), 'repeat')}."
                )
                break


def slow_of(record: Record) -> Slow | None:
    """The ranks that take SHARE longer than the others until they wait; None if none or unknown.

    If half of the ranks or more did so, it would be the others that are fast.
    """
    waits = record.communication.per_rank.get("straggler") if record.communication else None
    steps = record.timing.per_rank.get("step") if record.timing else None
    if not waits or not steps or len(waits) != len(steps):
        return None
    own = np.array(steps) - np.array(waits)
    usual = float(np.median(own)) if len(own) > 2 else float(own.min())
    slow = frozenset(np.flatnonzero(own > (1 + SHARE) * usual).tolist())
    if not 0 < len(slow) <= len(own) / 2:
        return None
    names = record.environment.hosts if record.environment else []
    hosts: frozenset[str] = frozenset()
    if len(names) == len(own) and len(set(names)) > 1:
        hosts = frozenset(names) - {name for rank, name in enumerate(names) if rank not in slow}
    others = [time for rank, time in enumerate(own) if rank not in slow]
    return Slow(slow, hosts, float(np.mean(own[sorted(slow)]) / np.mean(others)))


def _shared(repeats: Sequence[Slow]) -> str:
    """The hosts, or else the ranks, that are slow in all of them; empty if none is."""
    if hosts := sorted(frozenset.intersection(*(one.hosts for one in repeats))):
        return f"the ranks on {listed(hosts, MOST_NAMES)}"
    if always := sorted(frozenset.intersection(*(one.ranks for one in repeats))):
        noun = "rank" if len(always) == 1 else "ranks"
        return f"{noun} {listed([*map(str, always)], MOST_NAMES)}"
    return ""
