"""Core-hours and GPU-hours of a study: spent and planned, and its cluster's budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.config.cluster import Cluster
from lab.config.run import Run
from lab.config.study import Study
from lab.errors import Problem
from lab.formatting import count, rounded
from lab.records.store import Record, Store, read_record


@dataclass(frozen=True)
class Hours:
    """Core-hours and GPU-hours of a number of jobs; for `unknown` more jobs they are not known."""

    core: float = 0.0
    gpu: float = 0.0
    jobs: int = 0
    unknown: int = 0

    def __add__(self, other: Hours) -> Hours:
        return Hours(
            self.core + other.core,
            self.gpu + other.gpu,
            self.jobs + other.jobs,
            self.unknown + other.unknown,
        )

    def __str__(self) -> str:
        """For people: `1.20 GPU-hours and 9.60 core-hours in 6 jobs, 2 more unknown`."""
        jobs = count(self.jobs, "job")
        if not self.jobs:
            if not self.unknown:
                return "nothing"
            return f"{count(self.unknown, 'job')} of unknown length"
        sizes = [f"{rounded(self.gpu)} GPU-hours"] if self.gpu else []
        text = f"{' and '.join([*sizes, f'{rounded(self.core)} core-hours'])} in {jobs}"
        return f"{text}, {self.unknown} more of unknown length" if self.unknown else text


def spent(study: Study, records: Iterable[Record] = ()) -> Hours:
    """Hours used by a study's jobs: each record's wall time times its ranks' cores and GPUs.

    Repeats that were set aside or replaced count, as do failures; a job that left no record does
    not. `records` are those already loaded.
    """
    store = Store(study.out)
    loaded = {store.folder(record.task) / "record.json": record for record in records}
    return _spent_in(study.out, loaded)


def charged(study: Study, cluster: Cluster) -> Hours:
    """Hours spent from a cluster's budget by the study, or by all studies beside it."""
    if cluster.budget is None or cluster.budget.per == "study":
        return spent(study)
    folders = sorted(path.parent for path in study.folder.parent.glob("*/study.yaml"))
    return sum((_spent_in(folder / "out", {}) for folder in folders), Hours())


def _spent_in(out: Path, loaded: Mapping[Path, Record]) -> Hours:
    paths = sorted(out.rglob("*record.json"))
    every = [loaded[path] if path in loaded else read_record(path) for path in paths]
    return sum((_of_record(record) for record in every if record), Hours())


def _of_record(record: Record) -> Hours:
    place = record.environment
    if place is not None and place.replay:
        return Hours()  # no job of this study
    seconds, allocation = record.duration_s, record.allocation
    if seconds is None:  # it started nothing
        return Hours(unknown=1)
    cores = (allocation and allocation.cpus) or (place and place.core_count)
    cores = cores or record.run.processes  # each has at least one, wherever it ran
    granted = len(allocation.gpus) * len(allocation.nodes) if allocation else 0
    gpus = place.gpu_count if place else granted
    return Hours(cores * seconds / 3600, gpus * seconds / 3600, 1)


def of_job(run: Run, cluster: Cluster, seconds: float | None) -> Hours:
    """What a job of a run takes on a cluster; nothing if the run is left out there."""
    profile = cluster.on(run.device_needed)
    if profile is None or cluster.executor == "replay":
        return Hours()
    if seconds is None:
        return Hours(unknown=1)
    hours = seconds / 3600
    gpus = run.world_size if profile.device_kind == "cuda" else 0
    return Hours(run.processes * profile.threads_per_rank * hours, gpus * hours, 1)


def over_budget(cluster: Cluster, spent: Hours, planned: Hours, at_most: Hours) -> list[Problem]:
    """Why a study would exceed its cluster's budget; `at_most` counts time limits where needed."""
    budget = cluster.budget
    if budget is None:
        return []
    problems = []
    for unit, allowed in (("core", budget.core_hours), ("GPU", budget.gpu_hours)):
        name = unit.lower()
        done, more, most = (float(getattr(hours, name)) for hours in (spent, planned, at_most))
        if allowed is None or done + most <= allowed:
            continue
        what = (
            f"{rounded(allowed)} {unit}-hours, of which {rounded(done)} are spent, but the runs "
            f"still missing take {rounded(most)} more"
        )
        if planned.unknown:
            jobs = count(planned.unknown, "job")
            what += (
                f" at most: {rounded(more)} by prediction or earlier repeats, and {jobs} of "
                f"unknown length up to time_limit_min ({cluster.time_limit_min} min)"
            )
        advice = "use --yes to run it all the same, plan fewer runs or repeats, or raise the budget"
        problems.append(Problem(f"budget.{name}_hours", what, advice))
    return problems
