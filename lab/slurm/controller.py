"""What Slurm says of jobs: one squeue for all of them, sacct for those that squeue has forgotten."""

from __future__ import annotations

import getpass
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

FIELDS = ("ArrayJobID", "ArrayTaskID", "Name", "State", "Reason", "NodeList", "RestartCnt", "exit_code")
TIMEOUT_S = 30.0
# In place of an index: the jobs of an array that Slurm has not told apart yet, and never will if they are cancelled.
REST = "rest"
# The controller is asked again after FIRST_S where something changed, ever more rarely up to LAST_S where nothing does.
FIRST_S, LAST_S, GROWTH = 0.7, 10.0, 1.15
PENDING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "REQUEUE_FED"}
ALIVE = {"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}


class SlurmSilentError(Exception):
    """A command of Slurm is not there, gave no answer, or refused; the message is its own."""


@dataclass(frozen=True)
class JobState:
    """One job as Slurm sees it: `state` is Slurm's word, `reason` why it waits or how it ended."""

    job_id: str
    name: str
    state: str
    reason: str = ""
    nodes: str = ""
    restarts: int = 0
    exit_code: str = ""

    @property
    def pending(self) -> bool:
        """Whether it waits to be started, for the first time or again."""
        return self.state in PENDING

    @property
    def ended(self) -> bool:
        """Whether it will not run any more."""
        return not self.pending and self.state not in ALIVE


def ask(*command: str) -> str:
    """What a command of Slurm prints; raises SlurmSilentError where it fails or does not answer in time."""
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL, check=False)
    except FileNotFoundError:
        raise SlurmSilentError(f"{command[0]} is not installed here") from None
    except subprocess.TimeoutExpired:
        raise SlurmSilentError(f"{command[0]} gave no answer in {TIMEOUT_S:.0f} s") from None
    if told.returncode != 0:
        raise SlurmSilentError(told.stderr.strip() or f"{command[0]} ended with status {told.returncode}")
    return told.stdout


def queued(names: Iterable[str]) -> dict[str, JobState]:
    """The jobs of these names that squeue knows, by id; ended ones too, for as long as Slurm remembers them."""
    layout = ",".join(f"{field}:|" for field in FIELDS)
    command = ["squeue", "--noheader", "--array", "--states=all", f"--user={getpass.getuser()}", f"--name={','.join(names)}"]
    found = {}
    for line in ask(*command, f"--Format={layout}").splitlines():
        array, index, name, state, reason, nodes, restarts, exit_code = (part.strip() for part in line.split("|")[: len(FIELDS)])
        job_id = f"{array}_{index}" if index.isdecimal() else f"{array}_{REST}"
        count = int(restarts) if restarts.isdecimal() else 0
        found[job_id] = JobState(job_id, name, state, "" if reason == "None" else reason, nodes, count, _exit(exit_code))
    return found


def _exit(status: str) -> str:
    """squeue's wait status as sacct writes it: code, colon, signal."""
    return f"{int(status) >> 8}:{int(status) & 127}" if status.isdecimal() else status


def accounted(names: Iterable[str]) -> dict[str, JobState]:
    """The jobs of these names that accounting knows, by id; none where there is no accounting."""
    if shutil.which("sacct") is None:
        return {}
    options = ["--allocations", "--noheader", "--parsable2", "--starttime=now-60days", f"--name={','.join(names)}"]
    try:
        answer = ask("sacct", *options, "--format=JobID,JobName,State,Reason,NodeList,ExitCode")
    except SlurmSilentError:
        return {}
    found = {}
    for line in answer.splitlines():
        job_id, name, state, reason, nodes, exit_code = line.split("|")
        # "CANCELLED by 1000": the word is the state, the rest is who did it.
        word, _, more = state.partition(" ")
        job_id = re.sub(r"\[.*", REST, job_id)
        found[job_id] = JobState(job_id, name, word, more or ("" if reason == "None" else reason), nodes, 0, exit_code)
    return found


def cancel(job_ids: Sequence[str]) -> None:
    """End jobs, waiting or running, with one command."""
    if job_ids:
        ask("scancel", *job_ids)


class Controller:
    """Asks Slurm about all jobs of this process at once, and not more often than is kind to it."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # of jobs that have not ended, by id
        self._known: dict[str, JobState] = {}
        self._asked: set[str] = set()
        self._asked_at = float("-inf")
        self._pause = FIRST_S
        self._lock = threading.Lock()
        self.silence = ""  # why there was no answer the last time

    def look(self, jobs: Mapping[str, str]) -> float:
        """Ask about jobs, given as names by id, where that is due; returns after how many s to look again.

        Where there is no answer, what was known stays. What has ended is not asked about again.
        """
        with self._lock:
            new = {job_id: name for job_id, name in jobs.items() if job_id not in self._asked}
            self._names |= new
            left = self._asked_at + self._pause - time.monotonic()
            if not self._names or (left > 0 and not new):
                return max(left, 0.05) if self._names else FIRST_S
            try:
                now = self._ask()
            except SlurmSilentError as error:
                self.silence = str(error)
                self._pause = min(max(self._pause, 2.0) * GROWTH, LAST_S)
            else:
                self._learn(now)
            self._asked_at = time.monotonic()
            return self._pause

    def _ask(self) -> dict[str, JobState]:
        now = queued(sorted(set(self._names.values())))
        if forgotten := {
            name for job_id, name in self._names.items() if not {job_id, f"{job_id.split('_')[0]}_{REST}"} & now.keys()
        }:
            now = accounted(sorted(forgotten)) | now
        rest = {job_id: now.get(f"{job_id.split('_')[0]}_{REST}") for job_id in self._names}
        return {job_id: job for job_id in self._names if (job := now.get(job_id) or rest[job_id])}

    def _learn(self, now: Mapping[str, JobState]) -> None:
        changed = any(self._known.get(job_id) != job for job_id, job in now.items())
        self.silence, self._pause = "", FIRST_S if changed else min(self._pause * GROWTH, LAST_S)
        self._known |= now
        self._asked |= self._names.keys()
        for job_id in list(self._names):
            if (job := now.get(job_id)) is None or job.ended:
                del self._names[job_id]

    def job(self, job_id: str) -> JobState | None:
        """How a job stood at the last look; None where Slurm does not know it."""
        return self._known.get(job_id)

    def forgotten(self, job_id: str) -> bool:
        """Whether Slurm was asked about a job that it no longer knows."""
        return job_id in self._asked and job_id not in self._names
