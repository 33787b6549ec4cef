"""lab cancel: end the jobs of a study from any process, also those that another driver watches."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from filelock import FileLock, Timeout

from lab.atomic import write_atomically
from lab.errors import LabError
from lab.jobs import queues
from lab.jobs.attempt import RankError
from lab.jobs.endings import failed
from lab.records import Store, write_record
from lab.study import Study

PATIENCE_S = 60.0


class CancelledStudyError(LabError):
    """Another process cancelled the study; what is measured is kept."""


@dataclass(frozen=True)
class Cancellation:
    """The wish of one call of `cancel`, told apart from an earlier one that was cut short."""

    token: str

    @classmethod
    def of(cls, study: Study) -> Cancellation | None:
        """The wish that lies in a study's folder."""
        try:
            return cls((study.out / "cancel").read_text())
        except OSError:
            return None


def cancel(study: Study) -> int:
    """End all jobs of a study, waiting or running, and its drivers; returns how many jobs it ended.

    Each leaves a record of status cancelled; what is measured stays, and the next launch goes on from there. Raises
    LabError where a driver or Slurm does not answer.
    """
    if not study.out.is_dir():
        return 0
    wish = study.out / "cancel"
    write_atomically(wish, uuid.uuid4().hex.encode())
    try:
        with FileLock(study.out / "driver.lock", timeout=PATIENCE_S):
            return _end_jobs(study)
    except Timeout:
        raise LabError(
            f"a driver of {study.name} is stopped or stuck and cannot be told to end: kill it, then cancel again"
        ) from None
    finally:
        wish.unlink(missing_ok=True)


def _end_jobs(study: Study) -> int:
    store = Store(study.out)
    tasks = {store.folder(task): task for task in study.tasks if not store.completed(task)}
    alive = {folder: handle for folder, handle in queues.handles(tasks).items() if handle.stand().state != "ended"}
    queues.end(alive.values())
    for folder, handle in alive.items():
        if not store.completed(tasks[folder]):
            words = RankError(0, "Cancelled", "cancelled by `lab cancel`", 0.0)
            write_record(
                failed(tasks[folder].run, tasks[folder].repeat, handle.attempt, words=words, allocation=handle.allocation()),
                folder,
            )
    return len(alive)
