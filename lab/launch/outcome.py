"""Every end of a job told apart: the first cause among its ranks and its scheduler, as a record."""

from __future__ import annotations

import os
import shutil
import socket
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path

from lab.config.run import Run
from lab.config.study import Task
from lab.launch.attempt import Attempt, RankError
from lab.records.schema import Allocation, Failure
from lab.records.store import Record, Status

STATUSES: dict[str, Status] = {
    "OutOfMemoryError": "oom",
    "MemoryError": "oom",
    "MemoryLimit": "oom",
    "Hang": "timeout",
    "UncompletedJobError": "timeout",
    "TimeLimit": "timeout",
    "Preempted": "preempted",
    "Cancelled": "cancelled",
}
# Where the first measurement of a disturbed repeat is kept, in the repeat's folder.
DISTURBED = "disturbed"
# What a scheduler did to the whole job, and so the cause of whatever its ranks then met.
DONE_TO_THE_JOB = {"MemoryLimit", "TimeLimit", "Preempted", "NodeFailure"}
# What is concluded from silence, and gives way to a scheduler that knows better.
CONCLUDED = {"RankLost", "Hang", "JobLost"}


def rank_error(rank: int, error: Exception, *, phase: str = "") -> RankError:
    """How a rank ended, and whether it only lost a peer; a node on which torch cannot be loaded is a bad one."""
    name, message = type(error).__name__, str(error).strip()
    if phase == "loading torch" and isinstance(error, ImportError | OSError):
        name, message = "BadNode", f"torch cannot be loaded on {_host()}: {name}: {message}"
    lost_peer = (
        "Connection closed by peer" in message
        or "Connection reset by peer" in message
        or "Timed out waiting" in message
    )
    return RankError(rank, name, message, time.time(), traceback.format_exc(), waiting=lost_peer)


def failed(
    run: Run,
    repeat: int,
    attempt: Attempt,
    *,
    started_at: str | None = None,
    words: RankError | None = None,
    allocation: Allocation | None = None,
) -> Record:
    """The record of a run that did not complete, with its first cause; `words` are what its scheduler says of the end."""
    first = _first_cause(run, attempt, words)
    return Record(
        run_id=run.id,
        repeat=repeat,
        run=run,
        status=STATUSES.get(first.type, "failed"),
        error=Failure(
            type=first.type,
            message=first.message,
            rank=first.rank,
            traceback=first.traceback,
            log=attempt.log_tail(first.rank),
        ),
        started_at=started_at,
        finished_at=now(),
        allocation=allocation,
    )


def _first_cause(run: Run, attempt: Attempt, words: RankError | None) -> RankError:
    errors = attempt.errors()
    only_waited = all(error.waiting for error in errors)
    if words is not None and (not errors or (only_waited and words.type in DONE_TO_THE_JOB)):
        return words
    if not errors:
        return RankError(0, "JobLost", "the job ended without a record and without an error", 0.0)
    return (_silent(attempt, run.processes, errors) if only_waited else None) or errors[0]


def _silent(attempt: Attempt, world_size: int, errors: list[RankError]) -> RankError | None:
    """The rank for which the others waited: one that is gone, or one that lives and said nothing."""
    lost = attempt.lost_ranks(world_size)
    silent = sorted(set(range(world_size)) - {error.rank for error in errors})
    # From another node a lost rank cannot be seen, but the end of its connections can.
    if lost or (silent and any("Connection" in error.message for error in errors)):
        rank = (lost or silent)[0]
        return RankError(
            rank,
            "RankLost",
            f"rank {rank} ended without an error of its own: killed from outside?",
            0.0,
        )
    for rank in silent:
        return RankError(
            rank,
            "Hang",
            f"the other ranks waited for rank {rank}, which gave no sign: stopped or stuck?",
            0.0,
        )
    return None


def conclude(
    task: Task,
    attempt: Attempt,
    found: Record | None,
    words: RankError,
    *,
    allocation: Allocation | None = None,
) -> Record | None:
    """The record that an ended job lacks: it left none, or one that only guesses at what its scheduler knows."""
    if found is not None and (found.completed or found.error is None):
        return None
    if found is not None and not (
        found.error and found.error.type in CONCLUDED and words.type in DONE_TO_THE_JOB
    ):
        return None
    started_at = found.started_at if found else None
    return failed(
        task.run, task.repeat, attempt, started_at=started_at, words=words, allocation=allocation
    )


def archive_failed(folder: Path) -> None:
    """Keep the record of an earlier failure beside the logs, so that the next one is not taken for it."""
    path = folder / "record.json"
    if path.exists():
        path.parent.joinpath("log").mkdir(mode=0o700, exist_ok=True)
        path.rename(path.parent / "log" / f"{stamp()}.record.json")


def archive_noisy(folder: Path) -> None:
    """Keep a measurement that was disturbed beside what is measured next; until its record is moved it is whole where it was."""
    kept = folder / DISTURBED
    kept.mkdir(exist_ok=True)
    for path in folder.glob("*.parquet"):
        shutil.copy2(path, kept)
    (folder / "record.json").rename(kept / "record.json")


def stamp() -> str:
    """A file name for now."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")


def now() -> str:
    """ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _host() -> str:
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()
