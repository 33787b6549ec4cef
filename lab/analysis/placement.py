"""What scaling owes to the places of its ranks: slow ranks and hosts, and one steep fall."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
import pandas as pd

from lab.analysis.scaling import FEWEST_REPEATS
from lab.analysis.scaling_curves import EXPOSED_TIME, Row, at, rows_by_curve
from lab.analysis.waterfall import SHARE
from lab.formatting import capitalized, count, listed, rounded
from lab.records.store import Record
from lab.records.table import by_run

FEWEST_SIZES = 4  # of a curve, to tell one steep fall from a gradual one
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


def steep_falls(summary: pd.DataFrame, records: Sequence[Record]) -> Iterator[str]:
    """Where each curve loses most of its efficiency in one place, such as beyond a host.

    The fall is a ratio of efficiencies: under Amdahl's law and with a ring of equal links it is
    spread over all sizes.
    """
    hosts = {run_id: _hosts(own) for run_id, own in by_run(records).items()}
    for rows in rows_by_curve(summary):
        if text := _steep_fall(rows, hosts):
            yield text


def _steep_fall(rows: Sequence[Row], hosts: Mapping[str, int]) -> str:
    points = [row for row in rows if row["efficiency"] > 0]
    if len(points) < FEWEST_SIZES or min(row["repeats"] for row in points) < FEWEST_REPEATS:
        return ""
    falls = -np.diff(np.log([row["efficiency"] for row in points]))
    growth = np.diff(np.log([row["world_size"] for row in points]))
    most = int(np.argmax(falls))
    before, after = points[most : most + 2]
    steep = falls[most] > falls.clip(0).sum() / 2 and growth[most] <= growth.sum() / 2
    # The baseline has no interval.
    low = np.nan_to_num(before["efficiency_low"], nan=before["efficiency"])
    if not (steep and falls[most] > SHARE and after["efficiency_high"] < low):
        return ""
    several = 1 < hosts.get(after["run_id"], 0) != hosts.get(before["run_id"], 0)

    def end(row: Row) -> str:
        on = f" on {count(hosts[row['run_id']], 'host')}" * several
        return f"{row.ranks}{on} ({row.text('efficiency')})"

    grew = bool(before[f"{EXPOSED_TIME}_high"] < after[f"{EXPOSED_TIME}_low"])
    cause = f"{before.text(EXPOSED_TIME)} to {after.text(EXPOSED_TIME)}"
    return (
        f"{capitalized(at(before.label))}, efficiency falls the most from {end(before)} to "
        f"{end(after)}" + f"; exposed communication grows from {cause}" * grew + "."
    )


def _hosts(records: Sequence[Record]) -> int:
    """The number of hosts of a configuration; 0 if it is unknown or differs between repeats."""
    done = (record.environment for record in records if record.completed)
    counts = {len(set(place.hosts)) if place else 0 for place in done}
    return counts.pop() if len(counts) == 1 else 0
