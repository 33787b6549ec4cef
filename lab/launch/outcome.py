"""Why a job ended: the first cause found among its ranks and its scheduler, as a record."""

from __future__ import annotations

import os
import re
import shutil
import socket
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path

from lab.config.study import Task
from lab.files import private_folder
from lab.launch.attempt import Attempt, RankError
from lab.records.schema import Allocation, Failure
from lab.records.store import DISTURBED, LOGS, RECORD, Record, Status, read_record, write_record

STATUSES: dict[str, Status] = {
    "OutOfMemoryError": "oom",
    "MemoryError": "oom",
    "MemoryLimit": "oom",
    "Hang": "timeout",
    "TimeLimit": "timeout",
    "TimeLimitError": "timeout",
    "Preempted": "preempted",
    "Cancelled": "cancelled",
}
# Where the louder of two attempts is completed before it takes the other's place in DISTURBED.
LOUDER = "louder"
# What a scheduler did to the whole job, and so the cause of its ranks' subsequent errors.
JOB_WIDE = {"MemoryLimit", "TimeLimit", "Preempted", "NodeFailure"}
# Inferred from silence; overridden by a scheduler that knows better.
INFERRED = {"RankLost", "Hang", "JobLost"}
# torch's messages if the other end of a connection is gone or late, with gloo and with NCCL.
PEER_LOST = (
    *("Connection closed by peer", "Connection reset by peer", "Timed out waiting"),
    *("ncclRemoteError", "NCCL communicator was aborted"),
)
# Messages of libraries whose own allocations fail, which torch raises as other errors.
OUT_OF_MEMORY = re.compile(
    r"CU(BLAS|DNN|SPARSE|SOLVER)_STATUS_ALLOC_FAILED|cuda (error|failure)\b.{0,12}out of memory",
    re.IGNORECASE,
)


def rank_error(rank: int, error: BaseException, *, phase: str = "") -> RankError:
    """How a rank ended, and whether it only lost a peer; if torch cannot load, the node is bad."""
    name, message = type(error).__name__, str(error).strip()
    if phase == "loading torch" and isinstance(error, ImportError | OSError):
        host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        name, message = "BadNode", f"torch cannot be loaded on {host}: {name}: {message}"
    if OUT_OF_MEMORY.search(message):
        name = "OutOfMemoryError"
    waiting = any(text in message for text in PEER_LOST)
    message, trace = _encodable(message), _encodable(traceback.format_exc())
    return RankError(rank, name, message, time.time(), trace, waiting)


def _encodable(text: str) -> str:
    # A file name that is not UTF-8 becomes surrogates, which JSON cannot hold.
    return text.encode(errors="backslashreplace").decode()


def failed(
    task: Task,
    attempt: Attempt,
    *,
    started_at: str | None = None,
    reason: RankError | None = None,
    allocation: Allocation | None = None,
) -> Record:
    """The record of a run that did not complete; `reason` is why the scheduler ended it."""
    first = first_cause(task.run.processes, attempt, reason)
    return Record(
        run_id=task.run.id,
        repeat=task.repeat,
        run=task.run,
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


def first_cause(world_size: int, attempt: Attempt, reason: RankError | None) -> RankError:
    """What ended a job first, from its ranks' errors and the `reason` of its scheduler."""
    errors = attempt.errors()
    if not errors:
        missing = "the job ended with neither a record nor an error"
        return reason or RankError(0, "JobLost", missing)
    first = errors[0]
    if first.waiting:
        if reason is not None and reason.type in JOB_WIDE:
            return reason
        return _silent_rank(world_size, errors) or first
    if first.observed and reason is not None and reason.type not in INFERRED:
        return reason
    return first


def _silent_rank(world_size: int, errors: list[RankError]) -> RankError | None:
    """The rank that the others waited for: one that is gone, or alive without an error."""
    silent = sorted(set(range(world_size)) - {error.rank for error in errors})
    if not silent:
        return None
    rank = silent[0]
    # If its node is lost, nobody records its end, but its connections end too.
    if any("Connection" in error.message for error in errors):
        message = f"rank {rank} ended without an error of its own: killed from outside?"
        return RankError(rank, "RankLost", message)
    message = f"the other ranks waited for rank {rank}, which did not respond: stopped or stuck?"
    return RankError(rank, "Hang", message)


def conclude(
    task: Task,
    attempt: Attempt,
    record: Record | None,
    reason: RankError,
    *,
    allocation: Allocation | None = None,
) -> Record | None:
    """The record for an ended job that left none, or only a guess at the cause."""
    if record is not None:
        guess = record.error is not None and record.error.type in INFERRED
        if not guess or reason.type not in JOB_WIDE:
            return None
    started_at = record.started_at if record else None
    return failed(task, attempt, started_at=started_at, reason=reason, allocation=allocation)


def archive_failed(folder: Path) -> None:
    """Move a record that does not count to the logs, so that it is not taken for a new one."""
    path = folder / RECORD
    if path.exists():
        private_folder(folder / LOGS)
        path.rename(folder / LOGS / f"{stamp()}.{RECORD}")


def archive_noisy(folder: Path, *, replaced: Path) -> None:
    """Move a disturbed measurement aside; it stays complete in place until its record moves.

    A measurement set aside earlier goes to `replaced`/<run>/<repeat>.
    """
    restore_quieter(folder)
    shutil.rmtree(folder / LOUDER, ignore_errors=True)  # of a job that was killed
    if (folder / DISTURBED / RECORD).exists():
        earlier = replaced / folder.parent.name / folder.name
        earlier.parent.mkdir(parents=True, exist_ok=True)
        (folder / DISTURBED).rename(earlier)
    _copy_series(folder, folder / DISTURBED)
    (folder / RECORD).rename(folder / DISTURBED / RECORD)


def keep_completed(folder: Path) -> None:
    """Make a disturbed measurement the record again if its second attempt failed."""
    restore_quieter(folder)
    second = read_record(folder / RECORD)
    first = read_record(folder / DISTURBED / RECORD)
    if first is None or second is None or second.completed:
        return
    archive_failed(folder)
    _copy_series(folder / DISTURBED, folder)
    (folder / DISTURBED / RECORD).rename(folder / RECORD)
    shutil.rmtree(folder / DISTURBED, ignore_errors=True)


def keep_quieter(record: Record, folder: Path) -> None:
    """Write a measurement; the quieter of two attempts at a repeat becomes its record.

    The other one is kept whole in DISTURBED. Once the second is complete on disk, both are there at
    any moment; if a kill interrupts this, `restore_quieter` completes it.
    """
    first = read_record(folder / DISTURBED / RECORD)
    if first is None:
        write_record(record, folder)
    elif not _is_louder(record, first):
        write_record(_beside(record, first), folder)
    else:
        _copy_series(folder, folder / LOUDER)
        write_record(record, folder / LOUDER)
        restore_quieter(folder)


def restore_quieter(folder: Path) -> bool:
    """Exchange the attempt in DISTURBED for that in LOUDER; returns whether there is one there."""
    quieter, louder = folder / DISTURBED, folder / LOUDER
    second = read_record(louder / RECORD)
    if second is None:
        return False
    if (first := read_record(quieter / RECORD)) is not None:  # else a kill came after this
        _copy_series(quieter, folder)
        write_record(_beside(first, second), folder)
        (quieter / RECORD).unlink()
    shutil.rmtree(quieter, ignore_errors=True)
    louder.rename(quieter)
    return True


def _copy_series(folder: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for path in (*folder.glob("*.parquet"), *folder.glob("trace.*")):
        shutil.copy2(path, target)


def _is_louder(record: Record, other: Record) -> bool:
    """Whether a record was disturbed more than another; unknown if one was not judged."""
    gpus = [bool(one.environment and one.environment.gpus_disturbed) for one in (record, other)]
    if gpus[0] != gpus[1]:
        return gpus[0]
    share, least = record.foreign_share, other.foreign_share
    return share is not None and least is not None and share > least


def _beside(record: Record, other: Record) -> Record:
    foreign_cpu = other.environment.foreign_cpu if other.environment else None
    return record.model_copy(update={"disturbed": foreign_cpu})


def stamp() -> str:
    """The time as a file name."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")


def now() -> str:
    """The time in ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
