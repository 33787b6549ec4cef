"""Every end of a Slurm job told apart: what its state means for the record that the job did not write itself."""

from __future__ import annotations

from lab.jobs.attempt import Attempt, RankError
from lab.slurm.controller import JobState

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
    "PREEMPTED": ("Preempted", "a job of higher priority took its nodes; the next `lab run` goes on from its last checkpoint"),
    "CANCELLED": ("Cancelled", "cancelled from outside"),
    "NODE_FAIL": ("NodeFailure", "a node failed under it"),
    "BOOT_FAIL": ("NodeFailure", "its nodes did not boot"),
    "DEADLINE": ("TimeLimit", "it was not started before its deadline"),
    "REVOKED": ("Cancelled", "another cluster took it"),
}
# What slurmstepd writes into the log of a job that needed too much.
MEMORY_WORDS = ("exceeded memory limit", "exceeded job memory limit", "oom-kill", "oom_kill")


def last_words(job: JobState | None, attempt: Attempt) -> RankError:
    """The cause of an end as the controller, the ranks' signs of life and the log tell it."""
    if job is None:
        return _error(
            "JobLost", f"Slurm no longer knows job {attempt.job_id}, and it left no record: it ended long ago, or was purged"
        )
    on = f" on {job.nodes}" if job.nodes else ""
    told = f"Slurm job {job.job_id} ended as {job.state}{on}"
    if job.state in ENDS:
        kind, meaning = ENDS[job.state]
        return _error(kind, f"{told}: {meaning}" + (f" ({job.reason})" if job.state != "TIMEOUT" and job.reason else ""))
    # Sites without control groups kill the processes and leave the job's state to what these then return.
    if attempt.says(*MEMORY_WORDS):
        return _error("MemoryLimit", f"{told}: {ENDS['OUT_OF_MEMORY'][1]}")
    if not attempt.signed_on():
        line = attempt.last_line()
        return _error("BadNode", f"{told} before any rank came to life: " + (line or f"exit code {job.exit_code}, and no log"))
    return _error("JobLost", f"{told} with exit code {job.exit_code}, and without a record: was a rank killed, or the disk full?")


def _error(kind: str, message: str) -> RankError:
    return RankError(0, kind, message, 0.0)
