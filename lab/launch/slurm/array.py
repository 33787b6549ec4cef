"""One job array, written down before it is submitted: never submitted twice, never lost."""

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

# What a job that submits jobs hands on; the other variables describe its own allocation.
INHERITED = ("SLURM_CONF", "SLURM_CLUSTERS")
# Each job puts its pickle where submitit looks for it, since only the job knows its id for certain.
TAKE_WORK = (
    'ln -sf "${SLURM_ARRAY_TASK_ID}.pkl" '
    '%s/"${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}_submitted.pkl"'
)
# Stands in place of the id of an array that never came to Slurm.
NEVER = "none"


class RefusedError(Exception):
    """Slurm does not take the job; the message is Slurm's."""


@dataclass(frozen=True)
class Array:
    """The jobs of one shape in one folder, whose name is the array's in Slurm."""

    folder: Path

    @classmethod
    def new(cls, home: Path, label: str) -> Array:
        """An array that has a unique name and a folder, and is not submitted."""
        safe = "".join(letter if letter.isalnum() else "-" for letter in label)
        array = cls(home / f"lab-{safe}-{uuid.uuid4().hex[:8]}")
        array.folder.mkdir(mode=0o700, parents=True)
        return array

    @property
    def name(self) -> str:
        """The name in Slurm, which no other array has."""
        return self.folder.name

    def submit(self, specs: Sequence[JobSpec], parameters: Mapping[str, Any], python: str) -> str:
        """Submit one job per spec and keep the array's id; raises RefusedError, SlurmSilentError.

        The folder stays locked until sbatch has ended, even where this process is killed.
        """
        try:
            with self._locked() as lock:
                executor = _submitit_executor(
                    self.folder, lock=lock, variables=specs[0].variables, python=python
                )
                executor.update_parameters(**parameters, job_name=self.name)
                columns = zip(*(spec.arguments for spec in specs), strict=True)
                first, *_ = executor.map_array(specs[0].function, *columns)
                job_id = str(first.job_id).split("_")[0]
                self._write_id(job_id)
                return job_id
        except (RefusedError, SlurmSilentError):
            # sbatch may lose the answer of a busy controller that has taken the job.
            if job_id := self.job_id() or "":
                return job_id
            raise

    def job_id(self) -> str | None:
        """The array's id; None where it was never submitted.

        Where a driver was killed before it could write the id down, Slurm is asked for the name;
        raises SlurmSilentError where it does not answer.
        """
        if not self.folder.is_dir():
            return None
        job_id = self._read_id()
        if not job_id:
            with self._locked():  # until an sbatch that is under way has ended
                job_id = self._read_id()
                if not job_id:
                    jobs = queued([self.name]) or accounted([self.name])
                    job_id = next(iter(jobs), NEVER).split("_")[0]
                    self._write_id(job_id)
        return None if job_id == NEVER else job_id

    def _read_id(self) -> str:
        try:
            return (self.folder / "job_id").read_text()
        except OSError:
            return ""

    def _write_id(self, job_id: str) -> None:
        write_atomically(self.folder / "job_id", job_id.encode())

    @contextmanager
    def _locked(self) -> Iterator[int]:
        lock = os.open(self.folder / "submitting", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield lock
        finally:
            os.close(lock)


def _submitit_executor(
    folder: Path,
    *,
    lock: int | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
    python: str | None = None,
) -> Any:
    """submitit's Slurm executor; pickles precede sbatch, and sbatch holds the lock."""
    import submitit

    class Executor(submitit.SlurmExecutor):
        def _internal_process_submissions(self, delayed_submissions: Sequence[Any]) -> list[Any]:
            for index, submission in enumerate(delayed_submissions):
                submission.set_timeout(self.parameters["time"], 0)
                submission.dump(self.folder / f"{index}.pkl")
            self.parameters["map_count"] = len(delayed_submissions)
            array_id = self._submit_command(self._submitit_command_str).job_id
            ranks = range(self._num_tasks())
            return [
                submitit.SlurmJob(folder=self.folder, job_id=f"{array_id}_{index}", tasks=ranks)
                for index in range(len(delayed_submissions))
            ]

        def _submit_command(self, command: str) -> Any:
            path = self.folder / "submission.sh"
            path.write_text(self._make_submission_file_text(command, ""))
            answer = sbatch([str(path)], lock=lock, variables=variables)
            job_id = self._get_job_id_from_submission_command(answer)
            return submitit.SlurmJob(folder=self.folder, job_id=job_id)

    return Executor(folder=folder, python=python)


def script(folder: Path, parameters: Mapping[str, Any]) -> str:
    """The script that would be submitted for one job of this shape."""
    executor = _submitit_executor(folder)
    executor.update_parameters(**parameters)
    return str(executor._make_submission_file_text(executor._submitit_command_str, ""))


def sbatch(
    arguments: Sequence[str],
    *,
    lock: int | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The answer of sbatch; raises RefusedError with its complaint, or SlurmSilentError."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name in INHERITED or not name.startswith("SLURM_")
    }
    try:
        process = subprocess.run(
            ["sbatch", *arguments],
            env={**inherited, **variables},
            pass_fds=() if lock is None else (lock,),
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
    if process.returncode != 0:
        status = f"sbatch ended with status {process.returncode}"
        raise RefusedError(process.stderr.strip() or status)
    return process.stdout or process.stderr
