"""One job array, recorded before it is submitted, so it is never submitted twice or lost."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import time
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
    SlurmCommandError,
    accounted,
    failure_message,
    queued,
    run,
)
from lab.launch.work import write_work

# Variables that a job passes on to jobs it submits; the others describe its own allocation.
INHERITED = ("SLURM_CONF", "SLURM_CLUSTERS")
LONGER = 4  # times TIMEOUT_S that a real submission may take
# Stands for the id of an array that never reached Slurm.
NEVER = "none"


class RefusedError(Exception):
    """Slurm rejects the job; the message is Slurm's."""


@dataclass(frozen=True)
class Array:
    """Jobs of one shape, in a folder named like the array in Slurm."""

    folder: Path

    @classmethod
    def new(cls, home: Path, label: str) -> Array:
        """A new array with a unique name and a folder, not yet submitted."""
        safe = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in label)
        array = cls(home / f"lab-{safe}-{uuid.uuid4().hex[:8]}")
        private_folder(array.folder)
        return array

    @property
    def name(self) -> str:
        """The unique name in Slurm."""
        return self.folder.name

    def submit(self, specs: Sequence[JobSpec], parameters: Mapping[str, Any], python: str) -> str:
        """Submit one job per spec and keep the array's id; raises RefusedError, SlurmCommandError.

        The folder stays locked until sbatch has ended, even if this process is killed.
        """
        command = f"{python} -P -u {shlex.join(write_work(specs, self.folder))}"
        named = {**parameters, "job_name": self.name}
        text = script(self.folder, named, command, jobs=len(specs))
        # For people; the text itself is submitted, so nobody else can have changed it.
        (self.folder / "submission.sh").write_text(text)
        try:
            with self._locked() as lock:
                answer = sbatch([], text, lock=lock, variables=specs[0].variables)
                if (match := re.search(r"job (\d+)", answer)) is None:
                    raise RefusedError(f"sbatch answered {answer.strip()!r}")
                self._write_id(match[1])
                return match[1]
        except (RefusedError, SlurmCommandError):
            # sbatch may lose the answer of a busy controller that has accepted the job.
            if job_id := self.job_id():
                return job_id
            raise

    def job_id(self) -> str | None:
        """The array's id; None if it was never submitted.

        If a driver was killed before it could record the id, Slurm is queried by name; raises
        SlurmCommandError if it does not answer, InputError for another user's folder.
        """
        if not self.folder.is_dir():
            return None
        private_folder(self.folder)
        job_id = self._read_id()
        if not job_id:
            with self._locked():  # until a running sbatch has ended
                job_id = self._read_id()
                if not job_id:
                    jobs = queued([self.name]) or accounted([self.name])
                    job_id = next(iter(jobs), NEVER).split("_")[0]
                    self._write_id(job_id)
        return None if job_id == NEVER else job_id

    def _read_id(self) -> str:
        try:
            return read_own(self.folder / "job_id").decode(errors="replace")
        except OSError:
            return ""

    def _write_id(self, job_id: str) -> None:
        write_atomically(self.folder / "job_id", job_id.encode(), mode=OWN_MODE)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        lock = os.open(self.folder / "submitting", os.O_RDWR | os.O_CREAT, 0o600)
        end = time.monotonic() + LONGER * TIMEOUT_S
        try:
            while not _lock(lock):
                if time.monotonic() > end:
                    raise SlurmCommandError(f"an earlier sbatch of {self.name} has not ended")
                time.sleep(0.1)
            yield lock
        finally:
            os.close(lock)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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
    """sbatch's answer to a script; raises RefusedError with its complaint, or SlurmCommandError."""
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH ")]
    # Again, as a variable such as SBATCH_PARTITION overrides what the script says.
    options = [word for line in lines for word in shlex.split(line.removeprefix("#SBATCH "))]
    process = run(
        ["sbatch", *arguments, *options],
        timeout_s=TIMEOUT_S if "--test-only" in arguments else LONGER * TIMEOUT_S,
        text=text,
        environment=lambda: {**_inherited(), **variables},
        pass_fds=() if lock is None else (lock,),
    )
    if process.returncode:
        complaint = failure_message(process)
        silent = any(words in process.stderr for words in UNANSWERED)
        raise SlurmCommandError(complaint) if silent else RefusedError(complaint)
    return process.stdout or process.stderr


def _inherited() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name in INHERITED or not name.startswith("SLURM_")
    }
