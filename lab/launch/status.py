"""Where the runs of a study stand, read from the disk and from the scheduler: the same from any process."""

from __future__ import annotations

import statistics
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lab.config.study import Study, Task
from lab.errors import LabError
from lab.files import read_json, write_atomically
from lab.launch import driver
from lab.launch.attempt import RankError
from lab.launch.executor import Handle
from lab.launch.outcome import failed
from lab.records.store import Record, Store, write_record

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


def status(study: Study, tasks: Sequence[Task] | None = None) -> list[TaskState]:
    """Where each task of a study stands; jobs are asked about together, and only those that have left no measurement."""
    store = Store(study.out)
    chosen = list(study.tasks if tasks is None else tasks)
    records = {task: store.read(task) for task in chosen}
    unmeasured = [task for task in chosen if not ((record := records[task]) and record.completed)]
    folders = [store.folder(task) for task in unmeasured]
    try:
        handles = driver.handles(folders)
    except LabError as error:
        handles, unknown = {}, str(error)
    else:
        unknown = ""
    return [
        _state(store, task, records[task], handles.get(store.folder(task)), unknown)
        for task in chosen
    ]


def _state(
    store: Store, task: Task, record: Record | None, handle: Handle | None, unknown: str
) -> TaskState:
    stand = handle.stand() if handle else None
    if record is not None and (record.completed or stand is None or stand.state == "ended"):
        reason = record.error.message if record.error else ""
        return TaskState(
            task,
            record.status,
            seconds=record.duration_s,
            reason=reason,
            job_id=handle.attempt.job_id if handle else "",
        )
    if handle is None or stand is None or stand.state == "ended":
        return TaskState(task, "waiting", reason=unknown or _ended(handle))
    submitted: dict[str, Any] = read_json(store.folder(task) / "job.json") or {}
    seconds = max(time.time() - submitted.get("submitted_at", time.time()), 0.0)
    known = {"seconds": seconds, "reason": stand.reason, "job_id": handle.attempt.job_id}
    if stand.state == "pending":
        return TaskState(task, "pending", **known)
    told = read_json(store.folder(task) / "progress.json") or {}
    return TaskState(
        task,
        "running",
        told.get("phase", "starting"),
        told.get("step", 0),
        loss=told.get("loss"),
        **known,
    )


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
    alive = {
        folder: handle
        for folder, handle in driver.handles(tasks).items()
        if handle.stand().state != "ended"
    }
    driver.terminate(alive.values())
    for folder, handle in alive.items():
        if not store.completed(tasks[folder]):
            words = RankError(0, "Cancelled", "cancelled by `lab cancel`", 0.0)
            write_record(
                failed(
                    tasks[folder].run,
                    tasks[folder].repeat,
                    handle.attempt,
                    words=words,
                    allocation=handle.allocation(),
                ),
                folder,
            )
    return len(alive)


_STYLES = {"completed": "green", "running": "cyan", "pending": "yellow", "waiting": "dim"}


class Display:
    """Shows the states of jobs until they are done; `enabled=False` shows nothing."""

    def __init__(self, states: Callable[[], list[TaskState]], *, enabled: bool = True) -> None:
        self._states, self._enabled = states, enabled
        self._console = Console()
        self._live: Live | None = None
        self._told: set[int] = set()

    def __enter__(self) -> Self:
        if self._enabled and (self._console.is_terminal or self._console.is_jupyter):
            self._live = Live(console=self._console, refresh_per_second=5, transient=True)
            self._live.start()
        elif self._enabled:
            self._told = {i for i, state in enumerate(self._states()) if state.state == "completed"}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.update()
        if self._live is not None:
            self._live.stop()

    def update(self) -> None:
        """Show the states of now."""
        if not self._enabled:
            return
        states = self._states()
        if self._live is not None:
            self._live.update(render(states))
            return
        for i, state in enumerate(states):
            if not state.ended:
                self._told.discard(i)  # what is measured anew is told anew
            elif i not in self._told:
                self._told.add(i)
                took = f" in {state.seconds:.0f} s" if state.seconds is not None else ""
                self._console.print(
                    f"[{len(self._told)}/{len(states)}] {state.task.label}: {state.state}{took}",
                    highlight=False,
                    soft_wrap=True,
                )


def render(states: list[TaskState]) -> Group:
    """The whole study in two lines: how many runs are where, and what the running ones do."""

    counts = Counter(state.state for state in states)
    ended = sum(state.ended for state in states)
    left = time_left(states)
    summary = Text(f"{ended} of {len(states)} runs", style="bold")
    for name, count in counts.items():
        summary.append(f"  {count} {name}", style=_STYLES.get(name, "red"))
    summary.append(
        f"  about {clock(left)} left" if left is not None and ended < len(states) else "",
        style="dim",
    )
    rows = Table.grid(padding=(0, 2))
    rows.add_row(summary, ProgressBar(total=len(states), completed=ended, width=30))
    for state in states:
        if state.state == "running":
            steps = state.task.run.steps
            bar = ProgressBar(total=steps, completed=state.step, width=30)
            rows.add_row(
                Text(f"{state.task.label}: {state.phase} {state.step}/{steps}", style="cyan"), bar
            )
    return Group(rows)


def clock(seconds: float) -> str:
    """A duration for people: 45 s, 3 min 20 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
