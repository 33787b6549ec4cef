"""Where and with what a record was measured, in words."""

from __future__ import annotations

from collections.abc import Iterable

from lab.records import Record


def surroundings(record: Record) -> Iterable[tuple[str, str]]:
    """Names and values of a record's environment for people; none where it has no environment."""
    place = record.environment
    if place is None:
        return
    yield "cluster profile", place.cluster
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
