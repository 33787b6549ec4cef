"""Slurm's answers about jobs: one squeue for all, sacct for those that squeue has dropped."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from lab.errors import LabError
from lab.launch.attempt import Attempt, RankError
from lab.launch.executor import read_job
from lab.records.schema import Allocation

TIMEOUT_S = 30.0
# In place of an index: the jobs of an array that Slurm has not yet split.
REST = "rest"
# The pause between two queries: FIRST_S after a change, growing up to LAST_S without one.
FIRST_S, LAST_S, GROWTH = 0.7, 10.0, 1.15
COLUMNS = "ArrayJobID:|,ArrayTaskID:|,Name:|,State:|,Reason:|,NodeList:|,RestartCnt:|,exit_code:|"
PENDING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "REQUEUE_FED"}
ALIVE = {
    *("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED"),
    *("STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"),
}
QOS = "`sacctmgr show qos`"
ASSOCIATIONS = "`sacctmgr show associations user=$USER`"
RESUBMIT = "then `lab cancel` and run again"

# Patterns of the reasons for which jobs wait (https://slurm.schedmd.com/job_reason_codes.html), and
# what to do; the first that matches counts. All others pass in time, such as Priority, Resources,
# and limits on how many jobs run at once.
_ADVICE = {
    r"MaxWallDuration|(Partition|QOS|Association)TimeLimit": (
        "it requests more time than it may have; lower time_limit_min (`sinfo -o '%P %l'` and "
        f"{QOS} list the limits), {RESUBMIT}"
    ),
    # Limits on minutes of running jobs pass as these end, those on minutes of all time do not.
    r"Grp\w*(?<!Run)Minutes|GrpWall|UsageThreshold": (
        "the budget of its account or QOS is spent; ask whoever manages it, or set another "
        f"account or qos, {RESUBMIT}"
    ),
    r"MinutesPerJob": (
        "it requests more device minutes than one job may have; lower time_limit_min or the world "
        f"size, {RESUBMIT}"
    ),
    r"Max\w+Per(Job|Node|Account)|MaxMemPerLimit|Partition(MaxNodes|NodeLimit)": (
        "it requests more than one job may have; lower the world size or the profile's request, or "
        f"set another partition or qos ({QOS} and `scontrol show partition` list the limits), "
        f"{RESUBMIT}"
    ),
    r"QOSMin|PartitionMinNodes": (
        "it requests less than a job must; set a partition or qos for small jobs, or raise the "
        f"world size, {RESUBMIT}"
    ),
    r"Max\w+PerUser(?!Limit)|Max(Cpu|Node)PerUserLimit|Grp(Cpu|Node|Mem)Limit|Grp(GRES|Billing)$": (
        "it waits for other jobs under the same limit to end; if there are none, it requests more "
        f"than the limit: {QOS} and {ASSOCIATIONS} list it"
    ),
    r"InvalidAccount|AccountNotAllowed|AccountingPolicy": (
        f"set another account ({ASSOCIATIONS} lists yours), {RESUBMIT}"
    ),
    r"InvalidQOS|QOSNotAllowed": f"set another qos ({ASSOCIATIONS} lists yours), {RESUBMIT}",
    r"Partition(Down|Inactive|Config)": (
        "its partition starts no jobs now; wait, or set another (`sinfo -s` lists them), "
        f"{RESUBMIT}"
    ),
    r"BadConstraints": (
        "no node has all that it requests; change constraint, gpu_type or memory "
        f"(`sinfo -o '%N %c %m %f %G'` lists the nodes), {RESUBMIT}"
    ),
    r"DependencyNeverSatisfied": (
        "the job that it waits for ended otherwise than it demands; change extra.dependency, "
        f"{RESUBMIT}"
    ),
    r"JobHeld|JobHoldMaxRequeue|RequeueExitHold|requeued held": (
        "it is held; `scontrol release JOB` lets it start, `lab cancel` ends it"
    ),
    r"Reservation(Deleted|Invalid)|RequiresReservation|ReqResv": (
        f"set a reservation (`scontrol show reservation` lists them), {RESUBMIT}"
    ),
    r"ReqNodeNotAvail": (
        "nodes are down or reserved; before a maintenance only jobs that end in time start, so a "
        "lower time_limit_min may help: `scontrol show reservation` lists them"
    ),
}
RESUMES = "the next `lab run` resumes from its last checkpoint"
# By Slurm's state: the error's type in the record, and what happened, for people.
ENDS = {
    "OUT_OF_MEMORY": (
        "MemoryLimit",
        "killed because it needed more memory than it had; raise mem_gb, or make the run smaller",
    ),
    "TIMEOUT": ("TimeLimit", f"it reached its time limit; raise time_limit_min; {RESUMES}"),
    "PREEMPTED": ("Preempted", f"a job of higher priority took its nodes; {RESUMES}"),
    "CANCELLED": ("Cancelled", "cancelled from outside"),
    "NODE_FAIL": ("NodeFailure", "one of its nodes failed"),
    "BOOT_FAIL": ("NodeFailure", "its nodes did not boot"),
    "DEADLINE": ("TimeLimit", "it did not start before its deadline"),
    "REVOKED": ("Cancelled", "another cluster took it"),
}
# How a job exits if its warning of the time limit comes before a rank can handle it, and ends it.
WARNED = {f"{128 + signal.SIGUSR2}:0", f"0:{signal.SIGUSR2:d}"}
# What slurmstepd writes to the log of a job that used too much.
MEMORY_PHRASES = ("exceeded memory limit", "exceeded job memory limit", "oom-kill", "oom_kill")
# What Slurm's commands print if no controller could be reached.
UNANSWERED = ("configuration source", "contact slurm controller", "timed out", "not connected")
# Beginnings of variables by which people limit what Slurm's commands show or do for them, such as
# SQUEUE_PARTITION; the lab must know all of its jobs.
LIMITING = ("SACCT_", "SCANCEL_", "SINFO_", "SQUEUE_")


class SlurmCommandError(Exception):
    """A Slurm command is missing, gave no answer, or failed; the message is its own."""


@dataclass(frozen=True)
class JobState:
    """One job as seen by Slurm: `state` is Slurm's term, `reason` why it waits or how it ended."""

    job_id: str
    name: str
    state: str
    reason: str = ""
    nodes: str = ""
    restarts: int = 0
    exit_code: str = ""

    @property
    def pending(self) -> bool:
        """Whether it is waiting to be started, for the first time or again."""
        return self.state in PENDING

    @property
    def ended(self) -> bool:
        """Whether it will not run again."""
        return not self.pending and self.state not in ALIVE

    @property
    def advice(self) -> str:
        """What to do about the reason for which it waits; "" if it passes in time."""
        matching = (text for pattern, text in _ADVICE.items() if re.search(pattern, self.reason))
        return next(matching, "")


def ask(*command: str, timeout_s: float | None = None) -> str:
    """The output of a Slurm command; raises SlurmCommandError if it fails or is too slow."""
    process = run(command, timeout_s=timeout_s or TIMEOUT_S)
    if process.returncode:
        raise SlurmCommandError(failure_message(process))
    return process.stdout


def run(
    command: Sequence[str],
    *,
    timeout_s: float,
    text: str = "",
    environment: Callable[[], Mapping[str, str]] = lambda: os.environ,
    pass_fds: Sequence[int] = (),
) -> subprocess.CompletedProcess[str]:
    """A Slurm command that has ended, with `text` as its input.

    Raises SlurmCommandError if it or its configuration is missing, or if it is too slow.
    """
    path = os.environ.get("SLURM_CONF")
    if path and not Path(path).is_file():  # else Slurm's commands would hang long
        raise SlurmCommandError(f"SLURM_CONF names {path}, but there is no such file")
    while True:
        try:
            process = subprocess.run(
                command,
                env={k: v for k, v in environment().items() if not k.startswith(LIMITING)},
                pass_fds=pass_fds,
                input=text,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except FileNotFoundError:
            raise SlurmCommandError(f"{command[0]} is not installed here") from None
        except subprocess.TimeoutExpired:
            message = f"{command[0]} did not answer within {timeout_s:.0f} s"
            raise SlurmCommandError(message) from None
        if process.returncode == 0 or not find_practice_cluster(process):
            return process


def find_practice_cluster(failed: subprocess.CompletedProcess[str]) -> bool:
    """Point SLURM_CONF to this user's practice cluster if Slurm has no other configuration.

    That is the one of slurm/testcluster in its usual place. Returns whether to ask again.
    """
    conf = Path(tempfile.gettempdir()) / f"practice-slurm-{os.getuid()}" / "slurm.conf"
    if "configuration source" not in failed.stderr or os.environ.get("SLURM_CONF"):
        return False
    with suppress(OSError):
        if conf.parent.stat().st_uid == os.getuid() and conf.is_file():
            os.environ["SLURM_CONF"] = str(conf)
            return True
    return False


def failure_message(process: subprocess.CompletedProcess[str]) -> str:
    """Why a Slurm command failed, in its words unless it has no configuration."""
    command = process.args[0]
    text = process.stderr.strip() or f"{command} ended with status {process.returncode}"
    if "configuration source" in text and not os.environ.get("SLURM_CONF"):
        advice = "SLURM_CONF is not set; set it to the slurm.conf of your cluster"
        return f"{command} found no configuration: {advice}"
    return text


def queued(names: Iterable[str]) -> dict[str, JobState]:
    """The jobs of these names that squeue knows, by id, including recently ended ones."""
    selected = [f"--user={getpass.getuser()}", f"--name={','.join(names)}", f"--Format={COLUMNS}"]
    jobs = {}
    answer = ask("squeue", "--noheader", "--array", "--states=all", *selected)
    for array, index, name, state, reason, nodes, restarts, exit_code in rows(answer, 8):
        job_id = f"{array}_{index if index.isdecimal() else REST}"
        if exit_code.isdecimal():  # a wait status; sacct writes it as code, colon, signal
            exit_code = f"{int(exit_code) >> 8}:{int(exit_code) & 127}"
        starts = int(restarts) if restarts.isdecimal() else 0
        jobs[job_id] = JobState(job_id, name, state, _reason(reason), nodes, starts, exit_code)
    return jobs


def accounted(names: Iterable[str]) -> dict[str, JobState]:
    """The jobs of these names that accounting knows, by id; none if there is no accounting."""
    if shutil.which("sacct") is None:
        return {}
    selected = ["--starttime=now-60days", f"--name={','.join(names)}"]
    columns = "--format=JobID,JobName,State,Reason,NodeList,ExitCode"
    try:
        answer = ask("sacct", "--allocations", "--noheader", "--parsable2", *selected, columns)
        answered = list(rows(answer, 6))
    except SlurmCommandError:
        return {}
    jobs = {}
    for job_id, name, state, reason, nodes, exit_code in answered:
        job_id = re.sub(r"\[.*", REST, job_id)
        # "CANCELLED by 1000": the first word is the state, the rest is who did it.
        state, _, user = state.partition(" ")
        jobs[job_id] = JobState(job_id, name, state, user or _reason(reason), nodes, 0, exit_code)
    return jobs


def rows(answer: str, cells: int) -> Iterator[list[str]]:
    """The cells of each line that has any; SlurmCommandError if one has too many or too few.

    Some sites let Slurm's commands greet their users, in lines without cells.
    """
    for line in filter(lambda line: "|" in line, answer.splitlines()):
        row = [cell.strip() for cell in line.split("|")]
        if len(row) not in {cells, cells + 1}:  # each of squeue's ends with a bar
            raise SlurmCommandError(f"its answer cannot be read: {line.strip()!r}")
        yield row[:cells]


def _reason(text: str) -> str:
    return "" if text == "None" else text


class Controller:
    """Asks Slurm about all jobs of this process at once, and no more often than reasonable."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # of jobs that have not ended, by id
        self._jobs: dict[str, JobState] = {}
        self._queried: set[str] = set()
        self._queried_at = float("-inf")
        self._pause = FIRST_S
        self._lock = threading.Lock()
        self.silence = ""  # why the last query got no answer

    def poll(self, jobs: Mapping[str, str]) -> float:
        """Ask about jobs, given as names by id, if due; returns the seconds until the next query.

        Without an answer, the known states stay. Ended jobs are not asked about again.
        """
        with self._lock:
            new = {job_id: name for job_id, name in jobs.items() if job_id not in self._queried}
            self._names |= new
            remaining = self._queried_at + self._pause - time.monotonic()
            if not self._names:
                return FIRST_S
            if remaining > 0 and not new:
                return max(remaining, 0.05)
            try:
                answer = self._ask()
            except SlurmCommandError as error:
                self.silence = str(error)
                self._pause = min(max(self._pause, 2.0) * GROWTH, LAST_S)
            else:
                self._update(answer)
            self._queried_at = time.monotonic()
            return self._pause

    def _ask(self) -> dict[str, JobState]:
        rest = {job_id: f"{job_id.split('_')[0]}_{REST}" for job_id in self._names}
        jobs = queued(sorted(set(self._names.values())))
        forgotten = {n for i, n in self._names.items() if i not in jobs and rest[i] not in jobs}
        if forgotten:
            jobs = accounted(sorted(forgotten)) | jobs
        return {i: job for i in self._names if (job := jobs.get(i) or jobs.get(rest[i]))}

    def _update(self, answer: Mapping[str, JobState]) -> None:
        changed = any(self._jobs.get(job_id) != job for job_id, job in answer.items())
        self.silence, self._pause = "", FIRST_S if changed else min(self._pause * GROWTH, LAST_S)
        self._jobs |= answer
        self._queried |= self._names.keys()
        for job_id in list(self._names):
            if (job := answer.get(job_id)) is None or job.ended:
                del self._names[job_id]

    def job(self, job_id: str) -> JobState | None:
        """A job at the last poll; None if Slurm does not know it."""
        return self._jobs.get(job_id)

    def forgotten(self, job_id: str) -> bool:
        """Whether Slurm was asked about this job and no longer knows it."""
        return job_id in self._queried and job_id not in self._names


def exit_reason(job: JobState | None, attempt: Attempt) -> RankError:
    """Why a job ended, according to the controller, the ranks' registrations and the log."""
    if job is None:
        message = (
            f"Slurm no longer knows job {attempt.job_id}, and it left no record: "
            "it ended long ago or was purged"
        )
        return RankError(0, "JobLost", message)
    node = f" on {job.nodes}" if job.nodes else ""
    ended = f"Slurm job {attempt.job_id} ended as {job.state}{node}"
    tails = attempt.log_tails()
    if job.state in ENDS:
        kind, meaning = ENDS[job.state]
        detail = f" ({job.reason})" if job.state != "TIMEOUT" and job.reason else ""
        message = f"{ended}: {meaning}{detail}"
    # Sites without control groups kill the processes, whose exit code then sets the job's state.
    elif any(phrase in tail.lower() for tail in tails for phrase in MEMORY_PHRASES):
        kind, message = "MemoryLimit", f"{ended}: {ENDS['OUT_OF_MEMORY'][1]}"
    elif job.exit_code in WARNED:
        kind, meaning = ENDS["TIMEOUT"]
        message = f"{ended}: {meaning}"
    elif not attempt.any_registered():
        silent = "without a log: is the study's folder on a file system that the nodes share?"
        if tails:
            silent = "with an empty log: did a line of the profile's `setup` end the job?"
        cause = attempt.last_line() or f"exit code {job.exit_code}, {silent}"
        kind, message = "BadNode", f"{ended} before any rank started: {cause}"
    else:
        kind = "JobLost"
        message = (
            f"{ended} with exit code {job.exit_code} but without a record: "
            "was a rank killed, or is the disk full?"
        )
    return RankError(0, kind, message)


def read_allocation(attempt: Attempt) -> Allocation:
    """The allocation of this process's job, from the variables that Slurm sets."""
    variables = os.environ
    job = None
    with suppress(LabError):  # no reason to lose a record
        job = read_job(attempt.folder)
    gpus = variables.get("SLURM_JOB_GPUS") or variables.get("SLURM_STEP_GPUS") or ""
    started = float(variables.get("SLURM_JOB_START_TIME") or psutil.Process().create_time())
    return Allocation(
        job_id=attempt.job_id,
        nodes=expand(variables.get("SLURM_JOB_NODELIST", "")),
        gpus=gpus.split(",") if gpus else [],
        cpus=_total(variables.get("SLURM_JOB_CPUS_PER_NODE", "")),
        queue_time=None if job is None else max(started - job.submitted_at, 0.0),
        requeues=attempt.restarts,
    )


def expand(nodes: str) -> list[str]:
    """The names in Slurm's compact node list: `a[01-03],b` is a01, a02, a03, b."""
    from submitit.slurm import slurm

    return list(slurm._parse_node_list(nodes))


def _total(cpus_per_node: str) -> int | None:
    """The sum of Slurm's short form: `4(x2),3` is 11."""
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", cpus_per_node)
    return sum(int(cpus) * int(times or 1) for cpus, times in parts) or None
