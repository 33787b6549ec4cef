"""The sections of the notebooks on where a study was measured: what its cluster can do, and the environment of its jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from lab.page import Figure, Prose, Table, drawn
from lab.records import Record, load_records
from lab.study import Study

if TYPE_CHECKING:
    from lab.calibration import Calibration


def calibration(study: Study) -> list[Prose | Table | Figure]:
    """What the links, the arithmetic and the memory of the study's cluster can do, where `lab calibrate` has measured it."""
    from lab.calibration import load_calibration
    from lab.calibration_tables import fits_table, throughput_table
    from lab.errors import InputError

    clusters = {record.environment.cluster for record in load_records(study) if record.environment}
    parts: list[Prose | Table | Figure] = []
    for name in sorted(clusters):
        try:
            found = load_calibration(name)
        except InputError:
            found = None
        if found is None or not found.parts:
            parts.append(Prose.of(f"The cluster {name} is not calibrated; `lab calibrate --cluster {name}` measures its links."))
            continue
        emulated = found.environment.emulated if found.environment else None
        where = f"cluster {name}" + (f", emulated {emulated.label}" if emulated else "")
        parts += [
            links(found),
            Table(f"Fits of time = alpha + bytes / bandwidth, {where}", fits_table(found), index=False),
            Table(f"Arithmetic and memory of a rank, {where}", throughput_table(found), index=False),
        ]
    return parts


def links(found: Calibration) -> Figure:
    """Times of collectives by bytes, measured and fitted."""
    from lab.drawing import link_lines

    return drawn(lambda axes: link_lines.links(found, ax=axes), link_lines.alt(found), height=4.5)


def environment(source: Study | Sequence[Record]) -> Table:
    """Where and with what the records were measured; a value that differs between records is listed with all it was."""
    import pandas as pd

    from lab.analysis.rounding import format_seconds

    seen: dict[str, dict[str, None]] = {}
    records = load_records(source)
    for record in records:
        if record.environment is not None:
            for name, value in [*_surroundings(record), *_granted(record)]:
                seen.setdefault(name, {})[value] = None
    waits = [record.allocation.queue_time for record in records if record.allocation and record.allocation.queue_time is not None]
    if waits:
        seen["in the queue"] = {f"{format_seconds(min(waits))} to {format_seconds(max(waits))}": None}
    rows = [{"what": name, "value": "; ".join(values)} for name, values in seen.items()]
    return Table("Environment, read inside the jobs", pd.DataFrame(rows, columns=["what", "value"]), index=False)


def _surroundings(record: Record) -> Iterable[tuple[str, str]]:
    place = record.environment
    if place is None:
        return
    yield "cluster profile", place.cluster
    if place.replay:
        yield "replay of", place.replay
        yield "GPU", f"{place.gpu_count} x {place.gpu}" if place.gpu else "none used"
        return
    yield "emulated", place.emulated.description if place.emulated else "nothing"
    if place.emulated is not None and place.emulated.step:
        slept = ", ".join(f"{name} {seconds * 1e3:.2f} ms" for name, seconds in place.emulated.step.items())
        yield f"a rank's sleep on a micro-batch, world size {record.run.world_size}", slept
    yield "hosts", ", ".join(sorted(set(place.hosts)))
    yield "processor", f"{place.cpu}, {place.cpu_count} logical CPUs"
    yield (
        "cores per rank",
        f"{len(place.cpus_granted[0])} with {place.threads_per_rank} thread{'s' * (place.threads_per_rank > 1)}",
    )
    yield "GPU", f"{place.gpu_count} x {place.gpu}, driver {place.driver}" if place.gpu else "none used"
    yield "backend", place.backend or "none"
    yield "versions", ", ".join(f"{name} {version}" for name, version in sorted(place.versions.items()))
    commit = "unknown" if place.git_commit is None else place.git_commit[:12] + (" with local changes" if place.git_dirty else "")
    yield "code", f"commit {commit}"
    yield "data", f"{place.data_description}; SHA-256 {(place.data_sha256 or 'unknown')[:16]}"
    yield "parameters", f"{place.parameters:,}" if place.parameters else "unknown"
    if record.timing is not None and record.timing.peak_flops_per_second is not None:
        yield "peak of a rank", f"{record.run.precision}: {record.timing.peak_source}"


def _granted(record: Record) -> Iterable[tuple[str, str]]:
    given = record.allocation
    if given is None:
        return
    yield "Slurm jobs", given.job_id + (f" (put back {given.requeues} times)" if given.requeues else "")
    gpus = f", GPU {', '.join(given.gpus)} of the first" if given.gpus else ""
    yield "nodes", f"{', '.join(given.nodes)}{gpus}"
