"""One job array, written down before it is submitted: never submitted twice, never lost."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lab.files import OWN_MODE, private_folder, read_own, write_atomically
from lab.launch.executor import JobSpec
from lab.launch.slurm.controller import (
    TIMEOUT_S,
    UNANSWERED,
    SlurmSilentError,
    accounted,
    found_practice_cluster,
    queued,
    require_configuration,
    said,
)
from lab.launch.work import write_work

# What a job that submits jobs hands on; the other variables describe its own allocation.
INHERITED = ("SLURM_CONF", "SLURM_CLUSTERS")
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
        private_folder(array.folder)
        return array

    @property
    def name(self) -> str:
        """The name in Slurm, which no other array has."""
        return self.folder.name

    def submit(self, specs: Sequence[JobSpec], parameters: Mapping[str, Any], python: str) -> str:
        """Submit one job per spec and keep the array's id; raises RefusedError, SlurmSilentError.

        The folder stays locked until sbatch has ended, even where this process is killed.
        """
        command = f"{python} -P -u {shlex.join(write_work(specs, self.folder))}"
        named = {**parameters, "job_name": self.name}
        text = script(self.folder, named, command, jobs=len(specs))
        # For people; what is submitted is the text itself, which nobody else can have changed.
        (self.folder / "submission.sh").write_text(text)
        try:
            with self._locked() as lock:
                answer = sbatch([], text, lock=lock, variables=specs[0].variables)
                if (taken := re.search(r"job (\d+)", answer)) is None:
                    raise RefusedError(f"sbatch answered {answer.strip()!r}")
                self._write_id(taken[1])
                return taken[1]
        except (RefusedError, SlurmSilentError):
            # sbatch may lose the answer of a busy controller that has taken the job.
            if job_id := self.job_id() or "":
                return job_id
            raise

    def job_id(self) -> str | None:
        """The array's id; None where it was never submitted.

        Where a driver was killed before it could write the id down, Slurm is asked for the name;
        raises SlurmSilentError where it does not answer, InputError for another's folder.
        """
        if not self.folder.is_dir():
            return None
        private_folder(self.folder)
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
            return read_own(self.folder / "job_id").decode()
        except OSError:
            return ""

    def _write_id(self, job_id: str) -> None:
        write_atomically(self.folder / "job_id", job_id.encode(), mode=OWN_MODE)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        lock = os.open(self.folder / "submitting", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield lock
        finally:
            os.close(lock)


def script(folder: Path, parameters: Mapping[str, Any], command: str, *, jobs: int = 1) -> str:
    """The script of an array of jobs whose ranks run a command; their output goes into `folder`."""
    from submitit.slurm import slurm

    return str(slurm._make_sbatch_string(command, folder, map_count=jobs, **parameters))


def sbatch(
    arguments: Sequence[str],
    text: str,
    *,
    lock: int | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """What sbatch says of a script; raises RefusedError with its complaint, or SlurmSilentError."""
    require_configuration()
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
            input=text,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S if "--test-only" in arguments else 4 * TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise SlurmSilentError("sbatch is not installed here") from None
    except subprocess.TimeoutExpired as error:
        raise SlurmSilentError(f"sbatch gave no answer in {error.timeout:.0f} s") from None
    if process.returncode != 0:
        if found_practice_cluster(process):
            return sbatch(arguments, text, lock=lock, variables=variables)
        complaint = said(process)
        silent = any(words in complaint for words in UNANSWERED)
        raise SlurmSilentError(complaint) if silent else RefusedError(complaint)
    return process.stdout or process.stderr
