"""Where the runs of a study stand, read from the disk and from the scheduler: the same from any process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lab.atomic import read_json
from lab.errors import LabError
from lab.jobs import queues
from lab.jobs.queues import Handle
from lab.records import Record, Store
from lab.study import Study, Task

# States of what has no record yet: not submitted, in the scheduler's queue, under way.
OPEN = ("waiting", "pending", "running")
# Those of a job that somebody has submitted.
UNDER_WAY = ("pending", "running")


@dataclass(frozen=True)
class TaskState:
    """Where one task stands: `state` is a record's status or one of OPEN; `reason` is why it waits, or how it failed.

    `loss` is that of rank 0's samples in the last step that was told of, None where it is not known while training.
    """

    task: Task
    state: str
    phase: str = ""
    step: int = 0
    seconds: float | None = None
    reason: str = ""
    job_id: str = ""
    loss: float | None = None

    @property
    def ended(self) -> bool:
        """Whether there is nothing to wait for."""
        return self.state not in OPEN


def states(study: Study, tasks: Sequence[Task] | None = None) -> list[TaskState]:
    """Where each task of a study stands; jobs are asked about together, and only those that have left no measurement."""
    store = Store(study.out)
    chosen = list(study.tasks if tasks is None else tasks)
    records = {task: store.read(task) for task in chosen}
    unmeasured = [task for task in chosen if not ((record := records[task]) and record.completed)]
    folders = [store.folder(task) for task in unmeasured]
    try:
        handles = queues.handles(folders)
    except LabError as error:
        handles, unknown = {}, str(error)
    else:
        unknown = ""
    return [_state(store, task, records[task], handles.get(store.folder(task)), unknown) for task in chosen]


def _state(store: Store, task: Task, record: Record | None, handle: Handle | None, unknown: str) -> TaskState:
    stand = handle.stand() if handle else None
    if record is not None and (record.completed or stand is None or stand.state == "ended"):
        reason = record.error.message if record.error else ""
        return TaskState(
            task, record.status, seconds=record.duration_s, reason=reason, job_id=handle.attempt.job_id if handle else ""
        )
    if handle is None or stand is None or stand.state == "ended":
        return TaskState(task, "waiting", reason=unknown or _ended(handle))
    submitted: dict[str, Any] = read_json(store.folder(task) / "job.json") or {}
    seconds = max(time.time() - submitted.get("submitted_at", time.time()), 0.0)
    known = {"seconds": seconds, "reason": stand.reason, "job_id": handle.attempt.job_id}
    if stand.state == "pending":
        return TaskState(task, "pending", **known)
    told = read_json(store.folder(task) / "progress.json") or {}
    return TaskState(task, "running", told.get("phase", "starting"), told.get("step", 0), loss=told.get("loss"), **known)


def _ended(handle: Handle | None) -> str:
    return f"its last job left no record: {handle.last_words().message}" if handle else ""


def time_left(states: Sequence[TaskState]) -> float | None:
    """Seconds until the last task ends, from how long the ended ones took; None while none has ended."""
    took: dict[str, list[float]] = {}
    for state in states:
        if state.state == "completed" and state.seconds is not None:
            took.setdefault(state.task.run.id, []).append(state.seconds)
    if not took:
        return None
    overall = statistics.median(seconds for values in took.values() for seconds in values)
    left = 0.0
    for state in states:
        expected = statistics.median(took.get(state.task.run.id, [overall]))
        if state.state != "running" and not state.ended:
            left += expected
        elif state.state == "running":
            left += max(expected - (state.seconds or 0.0), 0.0)
    return left
