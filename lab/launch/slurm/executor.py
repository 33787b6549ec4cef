"""A study's jobs in Slurm's queue: one array for each shape, all submitted before the first is waited for."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lab.config.cluster import Cluster
from lab.errors import LabError
from lab.files import write_atomically
from lab.launch.attempt import Attempt, RankError
from lab.launch.executor import JobSpec, JobStatus, prepare
from lab.launch.slurm import controller
from lab.launch.slurm.array import Array, RefusedError
from lab.launch.slurm.controller import Controller, JobState, SlurmSilentError, cancel, expand
from lab.launch.slurm.options import interpreter, submitit_parameters
from lab.launch.slurm.refusals import refused
from lab.records.schema import Allocation


class SlurmExecutor:
    """Slurm keeps runs apart, each in an allocation of its own, so that all may be submitted at once."""

    keeps = True

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self._cluster, self._home = cluster, home

    def room(self, running: int) -> int:
        """Room for all: how many run at once is Slurm's business, within the profile's limit."""
        return sys.maxsize

    def submit(self, works: Sequence[JobSpec]) -> list[SlurmHandle]:
        """Submit works as arrays; raises InputError where Slurm refuses one, LabError where it does not answer."""
        handles: dict[Path, SlurmHandle] = {}
        for shape in dict.fromkeys((work.world_size, work.devices) for work in works):
            alike = [work for work in works if (work.world_size, work.devices) == shape]
            handles |= {handle.folder: handle for handle in self._submit(alike, *shape)}
        return [handles[work.folder] for work in works]

    def _submit(self, works: Sequence[JobSpec], world_size: int, devices: int) -> list[SlurmHandle]:
        array = Array.new(
            self._home / "arrays", f"{self._home.parent.name}-x{world_size * devices}"
        )
        for index, work in enumerate(works):
            prepare(work.folder)
            self._intend(work, array, index)
        try:
            parameters = submitit_parameters(
                self._cluster, world_size, array.folder, devices=devices, jobs=len(works)
            )
            python = interpreter(self._cluster, shlex.quote(sys.executable))
            job_id = array.submit(works, parameters, python=python)
        except RefusedError as error:
            raise refused(self._cluster, world_size * devices, error) from None
        except SlurmSilentError as error:
            raise LabError(
                f"{self._cluster.name}: {error}; nothing was submitted, try again"
            ) from None
        return [
            SlurmHandle(work.folder, array, f"{job_id}_{index}") for index, work in enumerate(works)
        ]

    def _intend(self, work: JobSpec, array: Array, index: int) -> None:
        """Write down of what array the work is to be a job, before there is one."""
        content = {
            "executor": "slurm",
            "cluster": self._cluster.name,
            "array": os.path.relpath(array.folder, work.folder),
            "index": index,
            "submitted_at": time.time(),
        }
        write_atomically(work.folder / "job.json", json.dumps(content).encode())


@dataclass(frozen=True)
class SlurmHandle:
    """One job of an array; all handles of a process ask the same controller, together."""

    folder: Path
    array: Array
    job_id: str

    lag_s: ClassVar[float] = 2.0
    controller: ClassVar[Controller] = Controller()

    @classmethod
    def of(cls, folder: Path, content: Mapping[str, Any]) -> SlurmHandle | None:
        """The job that a folder's job.json speaks of; None where it never came to Slurm.

        Raises LabError where Slurm must be asked and does not answer.
        """
        array = Array((folder / content["array"]).resolve())
        try:
            job_id = array.job_id()
        except SlurmSilentError as error:
            raise LabError(
                f"Slurm does not answer, so nobody can tell what became of {array.name}: {error}; try again"
            ) from None
        return None if job_id is None else cls(folder, array, f"{job_id}_{content['index']}")

    @property
    def attempt(self) -> Attempt:
        """The files of the job's present start; Slurm may have started it before."""
        job = self._job
        restarts = job.restarts if job else 0
        return Attempt.latest(self.folder, self.job_id, self.array.folder, at_least=restarts)

    def stand(self) -> JobStatus:
        """What Slurm said at the last look."""
        job = self._job
        if job is None:
            return (
                JobStatus("ended")
                if self.controller.forgotten(self.job_id)
                else JobStatus("pending", self.controller.silence)
            )
        if job.ended:
            return JobStatus("ended", job.state)
        return JobStatus(
            "pending" if job.pending else "running", job.reason if job.pending else job.nodes
        )

    def last_words(self) -> RankError:
        """How the job ended, as Slurm and its log tell it."""
        return controller.exit_reason(self._job, self.attempt)

    def allocation(self) -> Allocation:
        """What Slurm says that it gave to the job."""
        job = self._job
        nodes = expand(job.nodes) if job else []
        return Allocation(job_id=self.job_id, nodes=nodes, requeues=self.attempt.restarts)

    @classmethod
    def look(cls, handles: Sequence[SlurmHandle]) -> float:
        """One question for all jobs; returns after how many s to ask again."""
        return cls.controller.look({handle.job_id: handle.array.name for handle in handles})

    @classmethod
    def end(cls, handles: Sequence[SlurmHandle]) -> None:
        """Cancel jobs and wait until they are gone; raises LabError where Slurm does not answer."""
        try:
            cancel([handle.job_id for handle in handles])
        except SlurmSilentError as error:
            raise LabError(
                f"Slurm does not answer, so its jobs go on: {error}; try again"
            ) from None
        while any(handle.stand().state != "ended" for handle in handles):
            time.sleep(cls.look(handles))

    @property
    def _job(self) -> JobState | None:
        return self.controller.job(self.job_id)
