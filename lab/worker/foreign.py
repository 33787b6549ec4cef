"""CPU time that other processes took on the ranks' cores while they were measured."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean


@dataclass(frozen=True)
class CpuUse:
    """Seconds between two moments: wall clock, CPU time of this process, busy time of each of its cores."""

    wall: float
    own: float
    busy: dict[int, float]  # empty where the system does not tell

    def since(self, earlier: CpuUse) -> CpuUse:
        """What was used since `earlier`."""
        busy = {core: seconds - earlier.busy[core] for core, seconds in self.busy.items() if core in earlier.busy}
        return CpuUse(self.wall - earlier.wall, self.own - earlier.own, busy)


def cpu_use(cores: Sequence[int]) -> CpuUse:
    """Readings as of now, each since a moment of its own: only differences mean anything."""
    own = os.times()
    return CpuUse(time.perf_counter(), own.user + own.system + own.children_user + own.children_system, _busy(cores))


def foreign_cpu(uses: Iterable[tuple[str, CpuUse]]) -> float | None:
    """Cores' worth of others: busy time of the ranks' cores less the ranks' own, over wall time; None where not known.

    Takes each rank's host and use. A core that several ranks share counts once.
    """
    uses = list(uses)
    if not all(use.busy and use.wall > 0 for _, use in uses):
        return None
    readings: dict[tuple[str, int], list[float]] = {}
    for host, use in uses:
        for core, seconds in use.busy.items():
            readings.setdefault((host, core), []).append(seconds)
    busy = sum(fmean(seconds) for seconds in readings.values())
    own = sum(use.own for _, use in uses)
    return max(busy - own, 0.0) / fmean(use.wall for _, use in uses)


def _busy(cores: Sequence[int]) -> dict[int, float]:
    """Seconds that each core was not idle, proc(5); guests are part of user time already."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return {}
    tick = os.sysconf("SC_CLK_TCK")
    found = {}
    for line in lines:
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in fields[:8])
            found[int(name[3:])] = (user + nice + system + irq + softirq + steal) / tick
    return found
