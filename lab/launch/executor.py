"""What the driver needs from a place where jobs run: job specification, handle, executor.

`local` and `slurm` implement it with submitit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import Field, TypeAdapter, ValidationError

from lab.config.base import Frozen
from lab.errors import LabError
from lab.files import OWN_MODE, private_folder, read_own, write_atomically
from lab.launch.attempt import PROGRESS, Attempt, RankError
from lab.records.schema import Allocation
from lab.records.store import LOGS


@dataclass(frozen=True)
class JobSpec:
    """One job: a function that each of its ranks calls, and the folder of its files."""

    folder: Path
    world_size: int
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    code: Path | None = None  # a folder with a copy of `lab` to import instead of the driver's
    devices: int = 1  # per rank
    # Devices that it claims where jobs share a host; None if it must have the host to itself.
    slots: int | None = None
    script: bool = False  # whether its ranks run a user's script
    task: tuple[str, int] | None = None  # the run, as JSON, and the repeat that it measures

    @property
    def variables(self) -> dict[str, str]:
        """Environment that makes the job import `code` and no other `lab`, wherever it starts."""
        if self.code is None:
            return {}
        path = [str(self.code), os.environ.get("PYTHONPATH", "")]
        return {"PYTHONPATH": os.pathsep.join(filter(None, path)), "PYTHONSAFEPATH": "1"}


@dataclass(frozen=True)
class JobStatus:
    """The state of a job, and why it is waiting or where it is running.

    `advice` is what to do if it will not start by itself.
    """

    state: Literal["pending", "running", "ended"]
    reason: str = ""
    advice: str = ""


class Handle(Protocol):
    """A job submitted by this driver or an earlier one."""

    # How long a file written by the job may take to appear here, in s.
    lag_s: ClassVar[float]

    @property
    def attempt(self) -> Attempt:
        """The files of the job's current start."""

    def status(self) -> JobStatus:
        """The status at the last poll."""

    def exit_reason(self) -> RankError:
        """Why the job ended, for the record that it did not write itself."""

    def allocation(self) -> Allocation | None:
        """What the scheduler allocated to the job; None without a scheduler."""

    @classmethod
    def poll(cls, handles: Sequence[Any]) -> float:
        """Update jobs of this kind with one query; returns the seconds until the next poll."""

    @classmethod
    def terminate(cls, handles: Sequence[Any]) -> None:
        """End jobs of this kind, if need be by force; return once they are gone."""


class Executor(Protocol):
    """A place where jobs are submitted, used by one driver at a time."""

    # Whether jobs continue without a driver, so that an interrupted driver leaves them running.
    persistent: bool

    def choose(self, waiting: Sequence[JobSpec], running: Sequence[Handle]) -> Sequence[JobSpec]:
        """The waiting jobs to submit now, beside those in `running`, of whatever executor."""

    def submit(self, specs: Sequence[JobSpec]) -> Sequence[Handle]:
        """Submit jobs; if this crashes midway, the next driver submits none of them twice."""


# The files of an attempt, such as 17_3.r1.start or 4711.rendezvous; logs and records stay.
ATTEMPT = re.compile(r"\d+(_\d+)?\.")


def prepare(folder: Path) -> None:
    """Create a job's folder and private log, without the files of earlier attempts.

    A local job is known by a process id, which the system may give again to a later one.
    """
    log = private_folder(folder / LOGS)
    stale = [path for path in log.iterdir() if ATTEMPT.match(path.name)]
    for path in (folder / PROGRESS, *stale):
        path.unlink(missing_ok=True)


class LocalJob(Frozen):
    """A job on one machine and the process that controls it."""

    executor: Literal["local"] = "local"
    cluster: str
    job_id: str = Field(pattern=r"^\d+$")
    pid: int = Field(gt=1)
    began: float
    host: str = ""  # unknown in files of 0.1.0
    slots: int | None = None  # as in its JobSpec
    submitted_at: float
    task: tuple[str, int] | None = None  # as in its JobSpec


class SlurmJob(Frozen):
    """One job of an array; the array's folder is found from the job's folder."""

    executor: Literal["slurm"] = "slurm"
    cluster: str
    array: str = Field(pattern=r"^(\.\./){0,3}arrays/[\w-]+$")
    index: int = Field(ge=0)
    submitted_at: float
    task: tuple[str, int] | None = None  # as in its JobSpec


_JOB: TypeAdapter[LocalJob | SlurmJob] = TypeAdapter(
    Annotated[LocalJob | SlurmJob, Field(discriminator="executor")]
)


JOB = "job.json"  # in a job's folder


def write_job(folder: Path, job: LocalJob | SlurmJob) -> None:
    """Write JOB, in which every later process finds the folder's last job."""
    write_atomically(folder / JOB, job.model_dump_json().encode(), mode=OWN_MODE)


def read_job(folder: Path) -> LocalJob | SlurmJob | None:
    """The folder's last job; None if there was none.

    Jobs are ended according to this file, so an incomplete one, or one not written by this user,
    raises LabError.
    """
    path = folder / JOB
    try:
        return _JOB.validate_json(read_own(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LabError(f"{path}: {error.strerror}; remove it") from None
    except ValidationError:
        message = "does not describe a job; if no job of this study is running, remove it"
        raise LabError(f"{path}: {message}") from None
