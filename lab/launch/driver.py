"""Drive jobs: submit as many as the executor takes, watch each to its end, or end all on Ctrl-C."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Self

from filelock import FileLock

from lab.config.cluster import Cluster
from lab.config.study import Study
from lab.launch.executor import Executor, Handle, JobSpec, SlurmJob, read_job
from lab.records.table import grouped

# How long the other ranks may take to end on their own once one of them has failed, in s.
GRACE_S = 20.0


@dataclass
class Driver:
    """The jobs that one driver has under way, by folder.

    `on_end` is called once for each job, when it is over; `has_result` returns whether its result
    has arrived, which may take as long as files need to travel from the job's node to this one.
    """

    executor: Executor
    on_end: Callable[[Path, Handle], None]
    has_result: Callable[[Path], bool]
    alive: dict[Path, Handle] = field(default_factory=dict)
    _since: dict[tuple[str, Path], float] = field(default_factory=dict)

    def drive(
        self,
        specs: Sequence[JobSpec],
        *,
        adopted: Mapping[Path, Handle],
        wait: Callable[[float], bool],
        may_start: Callable[[Path], bool] = lambda folder: True,
    ) -> None:
        """Run new and adopted jobs to their ends, or until `wait(seconds)` returns True.

        A new job is submitted once `may_start(folder)`.
        """
        waiting = {spec.folder: spec for spec in specs}
        self.alive |= adopted
        while waiting or self.alive:
            if ready := [spec for folder, spec in waiting.items() if may_start(folder)]:
                batch = self.executor.choose(ready, list(self.alive.values()))
                folders = [spec.folder for spec in batch]
                self.alive |= zip(folders, self.executor.submit(batch), strict=True)
                for folder in folders:
                    del waiting[folder]
            pause = poll(self.alive.values())
            over = [folder for folder, job in self.alive.items() if self._is_over(folder, job)]
            for folder in over:
                self.on_end(folder, self.alive.pop(folder))
            # What has ended may have made room for the next job, which need not wait.
            if (waiting or self.alive) and wait(0.0 if over and waiting else pause):
                return

    def _is_over(self, folder: Path, handle: Handle) -> bool:
        state = handle.status().state
        if state == "ended":
            return self.has_result(folder) or self._elapsed("ended", folder) >= handle.lag_s
        if state == "running" and handle.attempt.errors():
            if self._elapsed("failed", folder) > GRACE_S:
                terminate([handle])
        else:
            self._since.pop(("failed", folder), None)  # it was requeued
        return False

    def _elapsed(self, event: str, folder: Path) -> float:
        now = time.monotonic()
        return now - self._since.setdefault((event, folder), now)


def lock(study: Study, *, timeout_s: float) -> FileLock:
    """The lock that a study's driver holds; entering it raises filelock.Timeout."""
    return FileLock(study.out / "driver.lock", timeout=timeout_s)


def executor_for(cluster: Cluster, home: Path) -> Executor:
    """The executor of a cluster; files shared by several jobs lie under `home`."""
    if cluster.executor == "slurm":
        from lab.launch.slurm.executor import SlurmExecutor

        return SlurmExecutor(cluster, home)
    from lab.launch.local import LocalExecutor

    return LocalExecutor(cluster)


def handles(folders: Iterable[Path]) -> dict[Path, Handle]:
    """The last job of each folder that ever had one, whatever its executor, polled once.

    Raises LabError if a folder's job file was not written by this user, or Slurm does not answer.
    """
    from lab.launch.local import LocalHandle
    from lab.launch.slurm.executor import SlurmHandle

    jobs: dict[Path, Handle] = {}
    for folder in folders:
        job = read_job(folder)
        if isinstance(job, SlurmJob):
            if handle := SlurmHandle.of(folder, job):
                jobs[folder] = handle
        elif job is not None:
            jobs[folder] = LocalHandle(folder, job)
    poll(jobs.values())
    return jobs


def alive(handles: Mapping[Path, Handle]) -> dict[Path, Handle]:
    """The jobs that had not ended at the last poll."""
    return {path: job for path, job in handles.items() if job.status().state != "ended"}


def poll(handles: Iterable[Handle]) -> float:
    """Update jobs with one query per scheduler; returns the seconds until the next poll."""
    return min((kind.poll(jobs) for kind, jobs in _by_kind(handles)), default=0.0)


def terminate(handles: Iterable[Handle]) -> None:
    """End jobs; return once they are gone."""
    for kind, jobs in _by_kind(handles):
        kind.terminate(jobs)


def _by_kind(handles: Iterable[Handle]) -> Iterable[tuple[type[Handle], list[Handle]]]:
    return grouped((type(handle), handle) for handle in handles).items()


class OneInterrupt(AbstractContextManager["OneInterrupt"]):
    """While entered, only the first Ctrl-C raises KeyboardInterrupt; `again` reports another.

    So the jobs that the first one ends are waited for, however often it is pressed. In a thread
    that receives no signals, and where Ctrl-C is ignored, nothing changes.
    """

    def __init__(self) -> None:
        self.again = self._pressed = False
        self._previous: Any = None

    def __enter__(self) -> Self:
        self.again = self._pressed = False
        previous = signal.getsignal(signal.SIGINT)
        receives = threading.current_thread() is threading.main_thread()
        self._previous = previous if callable(previous) and receives else None
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _press(self, number: int, frame: FrameType | None) -> None:
        self.again = self._pressed
        self._pressed = True
        if not self.again:
            self._previous(number, frame)
