"""One job array: written down before it is submitted, so that nobody submits it twice or loses it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lab.files import write_atomically
from lab.launch.executor import JobSpec
from lab.launch.slurm.controller import TIMEOUT_S, SlurmSilentError, accounted, queued

# What a job that submits jobs must not hand on: the size and place of its own allocation.
KEPT = ("SLURM_CONF", "SLURM_CLUSTERS")
# Each job puts the pickle with its work where submitit looks for it, since only the job knows its id for certain.
TAKE_WORK = 'ln -sf "${SLURM_ARRAY_TASK_ID}.pkl" %s/"${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}_submitted.pkl"'


class RefusedError(Exception):
    """Slurm does not take the job; the message is Slurm's."""


@dataclass(frozen=True)
class Array:
    """The jobs of one shape in one folder, which is called as Slurm calls the array."""

    folder: Path

    @classmethod
    def new(cls, home: Path, label: str) -> Array:
        """An array that has a name and a folder, and is not submitted."""
        safe = "".join(letter if letter.isalnum() else "-" for letter in label)
        array = cls(home / f"lab-{safe}-{uuid.uuid4().hex[:8]}")
        array.folder.mkdir(mode=0o700, parents=True)
        return array

    @property
    def name(self) -> str:
        """The name in Slurm, which no other array has."""
        return self.folder.name

    def submit(
        self, works: Sequence[JobSpec], parameters: Mapping[str, Any], *, python: str
    ) -> str:
        """Hand over one job for each work, and write down the id; raises RefusedError or SlurmSilentError.

        A lock lies on the folder until sbatch has ended, even where this process is killed.
        """
        try:
            with self._locked() as lock:
                executor = _executor(
                    self.folder, lock=lock, variables=works[0].variables, python=python
                )
                executor.update_parameters(**parameters, job_name=self.name)
                first, *_ = executor.map_array(*_columns(works))
                job_id = str(first.job_id).split("_")[0]
                self._keep(job_id)
                return job_id
        except (RefusedError, SlurmSilentError):
            # sbatch may lose the answer of a busy controller that has taken the job.
            if kept := self.job_id():
                return kept
            raise

    def job_id(self) -> str | None:
        """The array's id; None where it was never submitted.

        Where a driver was killed before it could write the id down, Slurm is asked for the name. Raises SlurmSilentError
        where Slurm must be asked and does not answer.
        """
        if known := self._kept():
            return known if known != "none" else None
        if not self.folder.is_dir():
            return None
        with self._locked():  # no sbatch is on its way any more
            if known := self._kept():
                return known if known != "none" else None
            found = queued([self.name]) or accounted([self.name])
            job_id = next(iter(found)).split("_")[0] if found else None
            self._keep(job_id or "none")
            return job_id

    def _kept(self) -> str:
        try:
            return (self.folder / "job_id").read_text()
        except OSError:
            return ""

    def _keep(self, job_id: str) -> None:
        write_atomically(self.folder / "job_id", job_id.encode())

    @contextmanager
    def _locked(self) -> Iterator[int]:
        lock = os.open(self.folder / "submitting", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield lock
        finally:
            os.close(lock)


def _columns(works: Sequence[JobSpec]) -> list[Any]:
    (function,) = {work.function for work in works}
    return [function, *zip(*(work.arguments for work in works), strict=True)]


def _executor(
    folder: Path,
    *,
    lock: int | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
    python: str | None = None,
) -> Any:
    """submitit's Slurm executor, whose work lies ready before sbatch is called, and whose sbatch holds the lock."""
    import submitit

    class Executor(submitit.SlurmExecutor):
        def _internal_process_submissions(self, delayed_submissions: Sequence[Any]) -> list[Any]:
            for index, submission in enumerate(delayed_submissions):
                submission.set_timeout(self.parameters["time"], 0)
                submission.dump(self.folder / f"{index}.pkl")
            self.parameters["map_count"] = len(delayed_submissions)
            job = self._submit_command(self._submitit_command_str)
            ids = [f"{job.job_id}_{index}" for index in range(len(delayed_submissions))]
            return [
                submitit.SlurmJob(folder=self.folder, job_id=job_id, tasks=range(self._num_tasks()))
                for job_id in ids
            ]

        def _submit_command(self, command: str) -> Any:
            script = self.folder / "submission.sh"
            script.write_text(self._make_submission_file_text(command, ""))
            job_id = self._get_job_id_from_submission_command(
                sbatch([str(script)], lock=lock, more=variables)
            )
            return submitit.SlurmJob(folder=self.folder, job_id=job_id)

    return Executor(folder=folder, python=python)


def script(folder: Path, parameters: Mapping[str, Any]) -> str:
    """The script that would be submitted for one job of this shape."""
    executor = _executor(folder)
    executor.update_parameters(**parameters)
    text: str = executor._make_submission_file_text(executor._submitit_command_str, "")
    return text


def sbatch(
    arguments: Sequence[str],
    *,
    lock: int | None = None,
    more: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """What sbatch says; raises RefusedError with its complaint, or SlurmSilentError."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT or not name.startswith("SLURM_")
    }
    kept = () if lock is None else (lock,)
    try:
        told = subprocess.run(
            ["sbatch", *arguments],
            env=variables | dict(more),
            pass_fds=kept,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=4 * TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise SlurmSilentError("sbatch is not installed here") from None
    except subprocess.TimeoutExpired:
        raise SlurmSilentError("sbatch gave no answer") from None
    if told.returncode != 0:
        raise RefusedError(told.stderr.strip() or f"sbatch ended with status {told.returncode}")
    return told.stdout or told.stderr
