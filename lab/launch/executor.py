"""Emulated links and compute: other networks and more ranks than this machine has, and never without saying so."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from lab.launch.attempt import Attempt, RankError
from lab.records.schema import Allocation


@dataclass(frozen=True)
class JobSpec:
    """What one job is to do: a function that all its ranks call, and the folder through which they talk."""

    folder: Path
    world_size: int
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    code: Path | None = (
        None  # a folder with the `lab` that the job imports, unless it is the driver's
    )
    devices: int = 1  # of each rank

    @property
    def variables(self) -> dict[str, str]:
        """What makes a job import its code and nothing else of that name, also where it starts beside another."""
        if self.code is None:
            return {}
        return {
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(self.code), os.environ.get("PYTHONPATH", "")])
            ),
            "PYTHONSAFEPATH": "1",
        }


@dataclass(frozen=True)
class JobStatus:
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

    def stand(self) -> JobStatus:
        """Where the job stands, as of the last look."""

    def last_words(self) -> RankError:
        """How the job ended, for a record that it did not write itself."""

    def allocation(self) -> Allocation | None:
        """What the scheduler gave to the job; None where there is no scheduler."""

    @classmethod
    def look(cls, handles: Sequence[Any]) -> float:
        """Find out how jobs of this kind stand, with one question; returns after how many s to look again."""

    @classmethod
    def end(cls, handles: Sequence[Any]) -> None:
        """End jobs of this kind: ask, then kill; returns when they are gone."""


class Executor(Protocol):
    """Where jobs are handed over; one driver at a time uses it."""

    # Whether jobs are looked after when there is no driver, so that an interrupted driver leaves them.
    keeps: bool

    def room(self, running: int) -> int:
        """How many more jobs may be submitted while so many run."""

    def submit(self, works: Sequence[JobSpec]) -> Sequence[Handle]:
        """Hand over works; a driver that is killed meanwhile leaves nothing that the next one would submit again."""


def prepare(folder: Path) -> None:
    """Make a job's folder ready: its private log, and nothing left of what earlier jobs told."""
    log = folder / "log"
    log.mkdir(mode=0o700, parents=True, exist_ok=True)
    for stale in (
        folder / "progress.json",
        *log.glob("*.error.json"),
        *log.glob("*.pid"),
        *log.glob("*.start"),
    ):
        stale.unlink(missing_ok=True)
