"""What Slurm says of jobs: one squeue for all of them, sacct for those that squeue has forgotten."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import psutil

from lab.files import read_json
from lab.launch.attempt import Attempt, RankError
from lab.records.schema import Allocation

FIELDS = (
    "ArrayJobID",
    "ArrayTaskID",
    "Name",
    "State",
    "Reason",
    "NodeList",
    "RestartCnt",
    "exit_code",
)
TIMEOUT_S = 30.0
# In place of an index: the jobs of an array that Slurm has not told apart yet, and never will if they are cancelled.
REST = "rest"
# The controller is asked again after FIRST_S where something changed, ever more rarely up to LAST_S where nothing does.
FIRST_S, LAST_S, GROWTH = 0.7, 10.0, 1.15
PENDING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "REQUEUE_FED"}
ALIVE = {
    "RUNNING",
    "COMPLETING",
    "CONFIGURING",
    "SUSPENDED",
    "STOPPED",
    "SIGNALING",
    "STAGE_OUT",
    "RESIZING",
}


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
        told = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except FileNotFoundError:
        raise SlurmSilentError(f"{command[0]} is not installed here") from None
    except subprocess.TimeoutExpired:
        raise SlurmSilentError(f"{command[0]} gave no answer in {TIMEOUT_S:.0f} s") from None
    if told.returncode != 0:
        raise SlurmSilentError(
            told.stderr.strip() or f"{command[0]} ended with status {told.returncode}"
        )
    return told.stdout


def queued(names: Iterable[str]) -> dict[str, JobState]:
    """The jobs of these names that squeue knows, by id; ended ones too, for as long as Slurm remembers them."""
    layout = ",".join(f"{field}:|" for field in FIELDS)
    command = [
        "squeue",
        "--noheader",
        "--array",
        "--states=all",
        f"--user={getpass.getuser()}",
        f"--name={','.join(names)}",
    ]
    found = {}
    for line in ask(*command, f"--Format={layout}").splitlines():
        array, index, name, state, reason, nodes, restarts, exit_code = (
            part.strip() for part in line.split("|")[: len(FIELDS)]
        )
        job_id = f"{array}_{index}" if index.isdecimal() else f"{array}_{REST}"
        count = int(restarts) if restarts.isdecimal() else 0
        found[job_id] = JobState(
            job_id, name, state, "" if reason == "None" else reason, nodes, count, _exit(exit_code)
        )
    return found


def _exit(status: str) -> str:
    """squeue's wait status as sacct writes it: code, colon, signal."""
    return f"{int(status) >> 8}:{int(status) & 127}" if status.isdecimal() else status


def accounted(names: Iterable[str]) -> dict[str, JobState]:
    """The jobs of these names that accounting knows, by id; none where there is no accounting."""
    if shutil.which("sacct") is None:
        return {}
    options = [
        "--allocations",
        "--noheader",
        "--parsable2",
        "--starttime=now-60days",
        f"--name={','.join(names)}",
    ]
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
        found[job_id] = JobState(
            job_id, name, word, more or ("" if reason == "None" else reason), nodes, 0, exit_code
        )
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
            name
            for job_id, name in self._names.items()
            if not {job_id, f"{job_id.split('_')[0]}_{REST}"} & now.keys()
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


# Slurm's word, the error's type in the record, and what happened, for people.
ENDS = {
    "OUT_OF_MEMORY": (
        "MemoryLimit",
        "killed because it needed more memory than it was given: raise mem, or make the run smaller",
    ),
    "TIMEOUT": (
        "TimeLimit",
        "its time limit was over: raise time_limit_min; the next `lab run` goes on from its last checkpoint",
    ),
    "PREEMPTED": (
        "Preempted",
        "a job of higher priority took its nodes; the next `lab run` goes on from its last checkpoint",
    ),
    "CANCELLED": ("Cancelled", "cancelled from outside"),
    "NODE_FAIL": ("NodeFailure", "a node failed under it"),
    "BOOT_FAIL": ("NodeFailure", "its nodes did not boot"),
    "DEADLINE": ("TimeLimit", "it was not started before its deadline"),
    "REVOKED": ("Cancelled", "another cluster took it"),
}
# What slurmstepd writes into the log of a job that needed too much.
MEMORY_WORDS = ("exceeded memory limit", "exceeded job memory limit", "oom-kill", "oom_kill")


def exit_reason(job: JobState | None, attempt: Attempt) -> RankError:
    """The cause of an end as the controller, the ranks' signs of life and the log tell it."""
    if job is None:
        return _error(
            "JobLost",
            f"Slurm no longer knows job {attempt.job_id}, and it left no record: it ended long ago, or was purged",
        )
    on = f" on {job.nodes}" if job.nodes else ""
    told = f"Slurm job {job.job_id} ended as {job.state}{on}"
    if job.state in ENDS:
        kind, meaning = ENDS[job.state]
        return _error(
            kind,
            f"{told}: {meaning}"
            + (f" ({job.reason})" if job.state != "TIMEOUT" and job.reason else ""),
        )
    # Sites without control groups kill the processes and leave the job's state to what these then return.
    if attempt.says(*MEMORY_WORDS):
        return _error("MemoryLimit", f"{told}: {ENDS['OUT_OF_MEMORY'][1]}")
    if not attempt.signed_on():
        line = attempt.last_line()
        return _error(
            "BadNode",
            f"{told} before any rank came to life: "
            + (line or f"exit code {job.exit_code}, and no log"),
        )
    return _error(
        "JobLost",
        f"{told} with exit code {job.exit_code}, and without a record: was a rank killed, or the disk full?",
    )


def _error(kind: str, message: str) -> RankError:
    return RankError(0, kind, message, 0.0)


def read_allocation(attempt: Attempt) -> Allocation:
    """The allocation of this process's job, from the variables that Slurm sets."""
    given = os.environ
    submitted = read_json(attempt.folder / "job.json") or {}
    gpus = given.get("SLURM_JOB_GPUS") or given.get("SLURM_STEP_GPUS") or ""
    started = float(given.get("SLURM_JOB_START_TIME") or psutil.Process().create_time())
    return Allocation(
        job_id=attempt.job_id,
        nodes=expand(given.get("SLURM_JOB_NODELIST", "")),
        gpus=gpus.split(",") if gpus else [],
        cpus=_total(given.get("SLURM_JOB_CPUS_PER_NODE", "")),
        queue_time=max(started - submitted["submitted_at"], 0.0)
        if "submitted_at" in submitted
        else None,
        requeues=attempt.restarts,
    )


def expand(nodes: str) -> list[str]:
    """The names that Slurm's short form of a list of nodes stands for: `a[01-03],b` is a01, a02, a03, b."""
    found = []
    for prefix, ranges, suffix in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?([^,\[\]]*)", nodes):
        for part in ranges.split(",") if ranges else [""]:
            first, _, last = part.partition("-")
            numbers = (
                [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
                if last
                else [part]
            )
            found += [f"{prefix}{number}{suffix}" for number in numbers]
    return found


def _total(cpus_per_node: str) -> int | None:
    """The sum of Slurm's short form: `4(x2),3` is 11."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", cpus_per_node)
    return sum(int(cpus) * int(times or 1) for cpus, times in found) or None
