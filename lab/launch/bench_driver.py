"""lab bench driver: how long a study takes beside its jobs, and how long devices wait for one."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from lab.config.cluster import Cluster
from lab.config.emulation import Compute
from lab.config.run import Run
from lab.config.study import Study
from lab.errors import LabError
from lab.launch.executor import read_job
from lab.launch.launcher import launch, predicts
from lab.records.store import Store

# Of a study whose jobs run one at a time, relative to the sum of its jobs; and in s.
STUDY_LIMIT, WAIT_LIMIT_S = 1.05, 2.0
ONE_BY_ONE = Cluster(name="local", device="cpu")
EIGHT_DEVICES = Cluster(
    name="eight-devices",
    device="cpu",
    devices=8,
    compute=Compute(emulated="A100"),
    pack_jobs=True,
)


@dataclass(frozen=True)
class Interval:
    """When a job had its devices, in s since the epoch, and from when on it could have had them."""

    ready: float
    began: float
    ended: float
    devices: int


@dataclass(frozen=True)
class DriverCost:
    """A study's time and that of its jobs, in s; the longest that a job waited for free devices."""

    cluster: str
    sizes: tuple[int, ...]  # devices of its jobs
    jobs: int
    study_s: float
    jobs_s: float
    wait_s: float
    packed: bool

    @property
    def ratio(self) -> float | None:
        """The study's time over the sum of its jobs' times; None if they ran beside each other."""
        return None if self.packed else self.study_s / self.jobs_s

    @property
    def within_limits(self) -> bool:
        """Whether ratio and wait are."""
        return (self.ratio or 0.0) <= STUDY_LIMIT and self.wait_s <= WAIT_LIMIT_S

    def row(self) -> dict[str, str]:
        """For a table."""
        return {
            "cluster": self.cluster,
            "jobs": str(self.jobs),
            "devices of a job": ", ".join(map(str, self.sizes)),
            "study (s)": f"{self.study_s:.1f}",
            "sum of jobs (s)": f"{self.jobs_s:.1f}",
            "study / sum": "-" if self.ratio is None else f"{self.ratio:.3f}",
            "longest wait (s)": f"{self.wait_s:.2f}",
        }


def driver_costs(*, quick: bool = False, progress: bool = True) -> list[DriverCost]:
    """Run 20 short jobs (`quick`: 8) one by one on CPU, then 20 of mixed sizes on eight devices.

    The devices are emulated. Raises LabError if a job fails.
    """
    jobs = 8 if quick else 20
    return [
        _cost(ONE_BY_ONE, (1,), jobs, progress),
        _cost(EIGHT_DEVICES, (1, 2, 4, 8), jobs // 4, progress),
    ]


def _cost(cluster: Cluster, sizes: tuple[int, ...], repeats: int, progress: bool) -> DriverCost:
    with tempfile.TemporaryDirectory() as folder:
        study = _study(Path(folder), sizes, repeats)
        began = time.time()
        records = launch(study, cluster).wait(progress=progress)
        study_s = time.time() - began
        if failures := [record.error.message for record in records if record.error]:
            raise LabError(f"a job failed: {failures[0]}")
        spans = intervals(study)
    return DriverCost(
        cluster=cluster.name,
        sizes=sizes,
        jobs=len(spans),
        study_s=study_s,
        jobs_s=sum(one.ended - one.began for one in spans),
        wait_s=longest_wait(spans, cluster.capacity if cluster.packs else 1),
        packed=cluster.packs,
    )


def _study(folder: Path, sizes: tuple[int, ...], repeats: int) -> Study:
    base = {"model": "gpt-nano", "data": "synthetic", "global_batch_size": 8, "steps": 40}
    return Study(
        folder=folder,
        title="Short jobs",
        question="What does the driver cost?",
        scaling="strong",
        runs=tuple(Run.model_validate(base | {"world_size": size}) for size in sizes),
        axes=("world_size",),
        repeats=repeats,
        baseline={"world_size": 1},
    )


def intervals(study: Study) -> list[Interval]:
    """When each job of a measured study had its devices, from its records, in order of `began`."""
    store = Store(study.out)
    records = {task: store.read(task) for task in study.tasks}
    ends = {
        task: datetime.fromisoformat(record.finished_at).timestamp()
        for task, record in records.items()
        if record
    }
    predicted = max((ends[task] for task in ends if predicts(task)), default=0.0)
    spans = []
    for task, ended in ends.items():
        job = read_job(store.folder(task))
        assert job is not None
        ready = 0.0 if predicts(task) else predicted
        spans.append(Interval(ready, job.submitted_at, ended, task.run.world_size))
    return sorted(spans, key=lambda one: one.began)


def longest_wait(spans: Sequence[Interval], capacity: int) -> float:
    """The longest that a job waited for its start while enough devices were free for it, in s."""
    return max(_wait(one, spans[:number], capacity) for number, one in enumerate(spans))


def _wait(job: Interval, earlier: Sequence[Interval], capacity: int) -> float:
    # Backwards from its start over the moments at which devices changed hands.
    since = job.began
    changes = {moment for one in earlier for moment in (one.began, one.ended)}
    for moment in sorted((one for one in changes if one < job.began), reverse=True):
        used = sum(one.devices for one in earlier if one.began <= moment < one.ended)
        if used + job.devices > capacity or since <= job.ready:
            break
        since = moment
    return job.began - max(since, min(job.ready, job.began))
