"""What makes results less certain than they look: sentences on how they came about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from lab.analysis.scaling import rounded
from lab.records import FOREIGN_CPU, Record

# Ranges of n and n repeats of equal runs lie apart by chance in 2 / binomial(2n, n): 1 in 3 for two repeats, 1 in 10 for three.
FEWEST_REPEATS = 3


def emulated(records: Sequence[Record]) -> Iterator[str]:
    """What was not real."""
    places = (record.environment for record in records if record.completed)
    for told in dict.fromkeys(place.emulated.description for place in places if place and place.emulated):
        yield f"These are results of an emulation and not of a real machine: {told}."


def few_repeats(summary: pd.DataFrame) -> Iterator[str]:
    """Configurations with too few repeats for any claim."""
    few = int((summary["repeats"] < FEWEST_REPEATS).sum())
    if few:
        verb = "has" if few == 1 else "have"
        least = f"fewer than {FEWEST_REPEATS} completed repeats"
        yield f"{few} of {len(summary)} configurations {verb} {least}: no difference is claimed there."


def shared_cores(records: Sequence[Record]) -> Iterator[str]:
    """World sizes at which the threads of CPU ranks outnumber the cores that they were granted on a host."""
    crowded: dict[int, tuple[int, int]] = {}
    for record in records:
        where = record.environment
        if not record.completed or where is None or where.device != "cpu" or (where.emulated and where.emulated.compute):
            continue  # what sleeps needs no core
        hosts = where.hosts if len(where.hosts) == len(where.cpus_granted) else where.hosts[:1] * len(where.cpus_granted)
        for host in set(hosts) if len(set(hosts)) == len(set(where.hosts)) else ():
            granted = [cores for name, cores in zip(hosts, where.cpus_granted, strict=True) if name == host]
            threads, cores = len(granted) * where.threads_per_rank, len({core for rank in granted for core in rank})
            if threads > cores:
                crowded[record.run.world_size] = (threads, cores)
    for world_size, (threads, cores) in sorted(crowded.items()):
        between = "1 core" if cores == 1 else f"{cores} cores"
        yield (
            f"At world size {world_size}, {threads} threads of the ranks had {between} between them: "
            "its times do not show what a core per thread would give."
        )


def disturbed(records: Sequence[Record]) -> Iterator[str]:
    """Repeats in which other processes took cores from the ranks."""
    environments = [record.environment for record in records if record.completed and record.environment is not None]
    loads = [where.foreign_cpu for where in environments if where.foreign_cpu is not None]
    high = [load for load in loads if load > FOREIGN_CPU]
    again = sum(record.disturbed is not None for record in records)
    if again:
        yield f"Disturbed by other processes and measured again, with the first results kept: {again} of {len(loads)} repeats."
    if high:
        yield (
            f"In {len(high)} of {len(loads)} repeats other processes took more than {FOREIGN_CPU} of a core from the ranks, "
            f"at most {rounded(max(high))} cores: these times may be too long."
        )
