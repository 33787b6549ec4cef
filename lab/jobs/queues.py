"""What a study is driven by: work goes into a queue, and a handle tells how each job fares."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from lab.atomic import read_json
from lab.cluster import Cluster
from lab.jobs.attempt import Attempt, RankError
from lab.records import Granted


@dataclass(frozen=True)
class Work:
    """What one job is to do: a function that all its ranks call, and the folder through which they talk."""

    folder: Path
    world_size: int
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    code: Path | None = None  # a folder with the `lab` that the job imports, unless it is the driver's
    devices: int = 1  # of each rank

    @property
    def variables(self) -> dict[str, str]:
        """What makes a job import its code and nothing else of that name, also where it starts beside another."""
        if self.code is None:
            return {}
        return {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(self.code), os.environ.get("PYTHONPATH", "")])),
            "PYTHONSAFEPATH": "1",
        }


@dataclass(frozen=True)
class Stand:
    """Where a job stands, and why it waits where it does."""

    state: Literal["pending", "running", "ended"]
    reason: str = ""


class Handle(Protocol):
    """A submitted job, of this driver or of an earlier one."""

    # How long a file that the job wrote may take to be seen here, in s.
    lag_s: ClassVar[float]

    @property
    def attempt(self) -> Attempt:
        """The files by which the job talks."""

    def stand(self) -> Stand:
        """Where the job stands, as of the last look."""

    def last_words(self) -> RankError:
        """How the job ended, for a record that it did not write itself."""

    def allocation(self) -> Granted | None:
        """What the scheduler gave to the job; None where there is no scheduler."""

    @classmethod
    def look(cls, handles: Sequence[Any]) -> float:
        """Find out how jobs of this kind stand, with one question; returns after how many s to look again."""

    @classmethod
    def end(cls, handles: Sequence[Any]) -> None:
        """End jobs of this kind: ask, then kill; returns when they are gone."""


class Queue(Protocol):
    """Where jobs are handed over; one driver at a time uses it."""

    # Whether jobs are looked after when there is no driver, so that an interrupted driver leaves them.
    keeps: bool

    def room(self, running: int) -> int:
        """How many more jobs may be submitted while so many run."""

    def submit(self, works: Sequence[Work]) -> Sequence[Handle]:
        """Hand over works; a driver that is killed meanwhile leaves nothing that the next one would submit again."""


def queue_of(cluster: Cluster, home: Path) -> Queue:
    """The queue of a cluster; what belongs to no single job, it keeps under `home`."""
    if cluster.executor == "slurm":
        from lab.slurm.queue import SlurmQueue

        return SlurmQueue(cluster, home)
    if cluster.executor == "replay":
        from lab.replaying import RecordedQueue

        return RecordedQueue(cluster)
    from lab.jobs.local import LocalQueue

    return LocalQueue(cluster)


def handles(folders: Iterable[Path]) -> dict[Path, Handle]:
    """The last job of each folder that ever had one, of whatever queue, looked at once."""
    from lab.jobs.local import LocalHandle
    from lab.slurm.handle import SlurmHandle

    found: dict[Path, Handle] = {}
    for folder in folders:
        content: Mapping[str, Any] | None = read_json(folder / "job.json")
        if content is None:
            continue
        handle: Handle | None = (
            SlurmHandle.of(folder, content) if content.get("executor") == "slurm" else LocalHandle.of(folder, content)
        )
        if handle is not None:
            found[folder] = handle
    look(found.values())
    return found


def look(handles: Iterable[Handle]) -> float:
    """Find out how jobs stand, with one question to each scheduler; returns after how many s to look again."""
    return min((kind.look(ours) for kind, ours in _by_kind(handles)), default=0.0)


def end(handles: Iterable[Handle]) -> None:
    """End jobs; returns when they are gone."""
    for kind, ours in _by_kind(handles):
        kind.end(ours)


def _by_kind(handles: Iterable[Handle]) -> list[tuple[type[Handle], list[Handle]]]:
    kinds: dict[type[Handle], list[Handle]] = {}
    for handle in handles:
        kinds.setdefault(type(handle), []).append(handle)
    return list(kinds.items())


def prepare(folder: Path) -> None:
    """Make a job's folder ready: its private log, and nothing left of what earlier jobs told."""
    log = folder / "log"
    log.mkdir(mode=0o700, parents=True, exist_ok=True)
    for stale in (folder / "progress.json", *log.glob("*.error.json"), *log.glob("*.pid"), *log.glob("*.start")):
        stale.unlink(missing_ok=True)
