"""Reasons for doubt in a study's numbers: emulation, few repeats, shared cores, other load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from lab.analysis.scaling import FEWEST_REPEATS
from lab.formatting import rounded
from lab.records.schema import FOREIGN_CPU, Environment
from lab.records.store import Record


def caveats(summary: pd.DataFrame, records: Sequence[Record]) -> list[str]:
    """One sentence each; none where there is nothing to know."""
    done = [record for record in records if record.completed and record.environment is not None]
    return [*_few_repeats(summary), *_shared_cores(done), *_disturbed(records)]


def emulations(records: Sequence[Record]) -> list[str]:
    """What was not real, a sentence for each emulation."""
    places = [record.environment for record in records if record.completed]
    descriptions = [place.emulated.description for place in places if place and place.emulated]
    return [
        f"These are results of an emulation and not of a real machine: {description}."
        for description in dict.fromkeys(descriptions)
    ]


def _few_repeats(summary: pd.DataFrame) -> Iterator[str]:
    few = int((summary["repeats"] < FEWEST_REPEATS).sum())
    if few:
        yield (
            f"{few} of {len(summary)} configurations {'has' if few == 1 else 'have'} fewer than "
            f"{FEWEST_REPEATS} completed repeats: no difference is claimed there."
        )


def _shared_cores(records: Sequence[Record]) -> Iterator[str]:
    """World sizes at which threads of CPU ranks outnumber their cores on a host."""
    crowded: dict[int, tuple[int, int]] = {}
    for record in records:
        for threads, cores in _threads_and_cores(record.environment):
            if threads > cores:
                crowded[record.run.world_size] = (threads, cores)
    for world_size, (threads, cores) in sorted(crowded.items()):
        yield (
            f"At world size {world_size}, {threads} threads of the ranks had "
            f"{cores} core{'s' * (cores > 1)} between them: "
            "its times do not show what a core per thread would give."
        )


def _threads_and_cores(place: Environment | None) -> Iterator[tuple[int, int]]:
    """Of each host, where it is known which ranks ran there; what sleeps needs no core."""
    if place is None or place.device != "cpu" or (place.emulated and place.emulated.compute):
        return
    hosts, granted = place.hosts, place.cpus_granted
    if len(hosts) != len(granted):
        if len(set(hosts)) > 1:
            return
        hosts = hosts[:1] * len(granted)
    for host in set(hosts):
        cores = [cores for name, cores in zip(hosts, granted, strict=True) if name == host]
        yield len(cores) * place.threads_per_rank, len(set().union(*cores))


def _disturbed(records: Sequence[Record]) -> Iterator[str]:
    places = [record.environment for record in records if record.completed]
    loads = [place.foreign_cpu for place in places if place and place.foreign_cpu is not None]
    high = [load for load in loads if load > FOREIGN_CPU]
    again = sum(record.disturbed is not None for record in records)
    if again:
        yield (
            "Disturbed by other processes and measured again, with the first results kept: "
            f"{again} of {len(loads)} repeats."
        )
    if high:
        yield (
            f"In {len(high)} of {len(loads)} repeats other processes took more than {FOREIGN_CPU} "
            f"of a core from the ranks, at most {rounded(max(high))} cores: "
            "these times may be too long."
        )
