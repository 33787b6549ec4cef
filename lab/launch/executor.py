"""What the driver needs of a place where jobs run: job specification, handle, executor.

`local`, `slurm` and `replay` implement `Executor`; the first two through submitit, with handles.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from lab.files import write_atomically
from lab.launch.attempt import Attempt, RankError
from lab.records.schema import Allocation


@dataclass(frozen=True)
class JobSpec:
    """One job: a function that each of its ranks calls, and the folder of its files."""

    folder: Path
    world_size: int
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    code: Path | None = None  # a folder with a copy of `lab` to import instead of the driver's
    devices: int = 1  # of each rank

    @property
    def variables(self) -> dict[str, str]:
        """Environment by which the job imports `code` and no other `lab`, wherever it starts."""
        if self.code is None:
            return {}
        path = [str(self.code), os.environ.get("PYTHONPATH", "")]
        return {"PYTHONPATH": os.pathsep.join(filter(None, path)), "PYTHONSAFEPATH": "1"}


@dataclass(frozen=True)
class JobStatus:
    """The state of a job, and why it waits or where it runs."""

    state: Literal["pending", "running", "ended"]
    reason: str = ""


class Handle(Protocol):
    """A submitted job, of this driver or of an earlier one."""

    # How long a file that the job wrote may take to appear here, in s.
    lag_s: ClassVar[float]

    @property
    def attempt(self) -> Attempt:
        """The files of the job's present start."""

    def status(self) -> JobStatus:
        """The status as of the last poll."""

    def exit_reason(self) -> RankError:
        """Why the job ended, for a record that it did not write itself."""

    def allocation(self) -> Allocation | None:
        """What the scheduler gave to the job; None without a scheduler."""

    @classmethod
    def poll(cls, handles: Sequence[Any]) -> float:
        """Update jobs of this kind with one query; returns after how many s to poll again."""

    @classmethod
    def terminate(cls, handles: Sequence[Any]) -> None:
        """End jobs of this kind, if need be by force; returns when they are gone."""


class Executor(Protocol):
    """Where jobs are submitted; one driver at a time uses it."""

    # Whether jobs go on without a driver, so that an interrupted driver leaves them.
    persistent: bool

    def free_slots(self, running: int) -> int:
        """How many more jobs may be submitted while `running` jobs run."""

    def submit(self, specs: Sequence[JobSpec]) -> Sequence[Handle]:
        """Submit jobs; after a crash in the middle the next driver submits none twice."""


def prepare(folder: Path) -> None:
    """Create a job's folder and private log, less what earlier jobs left for their driver."""
    log = folder / "log"
    log.mkdir(mode=0o700, parents=True, exist_ok=True)
    stale = [path for kind in ("error.json", "pid", "start") for path in log.glob(f"*.{kind}")]
    for path in (folder / "progress.json", *stale):
        path.unlink(missing_ok=True)


def write_job(folder: Path, **content: Any) -> None:
    """Write job.json, by which every later process finds the folder's last job."""
    text = json.dumps(content | {"submitted_at": time.time()})
    write_atomically(folder / "job.json", text.encode())
