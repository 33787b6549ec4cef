"""A job of an array: how it stands, how it ended, and how it is ended."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lab.errors import LabError
from lab.jobs.attempt import Attempt, RankError
from lab.jobs.queues import Stand
from lab.records import Granted
from lab.slurm import ends
from lab.slurm.array import Array
from lab.slurm.controller import Controller, JobState, SlurmSilentError, cancel
from lab.slurm.granted import expand


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
            raise LabError(f"Slurm does not answer, so nobody can tell what became of {array.name}: {error}; try again") from None
        return None if job_id is None else cls(folder, array, f"{job_id}_{content['index']}")

    @property
    def attempt(self) -> Attempt:
        """The files of the job's present start; Slurm may have started it before."""
        job = self._job
        restarts = job.restarts if job else 0
        return Attempt.latest(self.folder, self.job_id, self.array.folder, at_least=restarts)

    def stand(self) -> Stand:
        """What Slurm said at the last look."""
        job = self._job
        if job is None:
            return Stand("ended") if self.controller.forgotten(self.job_id) else Stand("pending", self.controller.silence)
        if job.ended:
            return Stand("ended", job.state)
        return Stand("pending" if job.pending else "running", job.reason if job.pending else job.nodes)

    def last_words(self) -> RankError:
        """How the job ended, as Slurm and its log tell it."""
        return ends.last_words(self._job, self.attempt)

    def allocation(self) -> Granted:
        """What Slurm says that it gave to the job."""
        job = self._job
        nodes = expand(job.nodes) if job else []
        return Granted(job_id=self.job_id, nodes=nodes, requeues=self.attempt.restarts)

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
            raise LabError(f"Slurm does not answer, so its jobs go on: {error}; try again") from None
        while any(handle.stand().state != "ended" for handle in handles):
            time.sleep(cls.look(handles))

    @property
    def _job(self) -> JobState | None:
        return self.controller.job(self.job_id)
