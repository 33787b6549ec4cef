"""Status, cancellation and live display of a study's runs, the same from any process."""

from __future__ import annotations

import statistics
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Self

from filelock import Timeout
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lab.config.run import Run
from lab.config.study import Study, Task
from lab.errors import InputError, LabError, first_line, items
from lab.files import read_file, unwritable, write_atomically
from lab.launch import driver
from lab.launch.attempt import WAITING, RankError, read_progress
from lab.launch.executor import JOB, Handle, read_job
from lab.launch.outcome import failed
from lab.records.store import RECORD, Record, Store, read_record, write_record
from lab.records.table import grouped

# States of a task without a record: not submitted, in the scheduler's queue, running.
OPEN = ("waiting", "pending", "running")
# States of a submitted job.
UNDER_WAY = ("pending", "running")
TRAINING = ("warm-up", "measuring")  # phases in which a run's steps count
# The reason shown for a job whose run is not in the current study.
OTHER_FORM = "of another form of this study: its file was changed, or --quick given or left out"
WATCH_S = 1.0  # between two looks
# How long a driver may take to notice that its study is cancelled, in s.
PATIENCE_S = 60.0
STYLES = {"completed": "green", "running": "cyan", "pending": "yellow", "waiting": "dim"}


@dataclass(frozen=True)
class TaskState:
    """The state of one task: a record's status or one of OPEN; `reason` is why it waits or failed.

    `advice` is what to do about it if the job will not start by itself.
    `step` of `steps` is what its phase has done: training steps, or batches of an evaluation.
    `loss` is that of rank 0's samples in the last published training step.
    """

    task: Task
    state: str
    phase: str = ""
    step: int = 0
    seconds: float | None = None
    reason: str = ""
    job_id: str = ""
    loss: float | None = None
    steps: int = 1
    advice: str = ""

    def __repr__(self) -> str:
        """The task and what is not as before it was submitted, short enough for a notebook."""
        _, *others = fields(self)
        changed = [one.name for one in others if getattr(self, one.name) != one.default]
        shown = (f"{name}={getattr(self, name)!r}" for name in changed)
        return f"TaskState({', '.join([repr(self.task.label), *shown])})"

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self.state not in OPEN

    @property
    def hint(self) -> str:
        """Why its job will not start by itself, and what to do about it; "" if it will."""
        return f"{self.reason}: {self.advice}" if self.advice else ""


def status(study: Study | str | Path, tasks: Sequence[Task] | None = None) -> list[TaskState]:
    """The state of each task of a study, with one query to the scheduler for unmeasured tasks.

    Unless `tasks` are given, these are followed by active jobs that another form of the study
    submitted: its file before a change, or with or without --quick.
    """
    study = Study.of(study)
    store = Store(study.out)
    chosen = study.tasks if tasks is None else items(tasks, Task, "tasks", "some of study.tasks")
    records = {task: store.read(task, losses=False) for task in chosen}
    open_tasks = [task for task, record in records.items() if not (record and record.completed)]
    try:
        handles, unknown = driver.handles(map(store.folder, open_tasks)), ""
    except LabError as error:
        handles, unknown = {}, str(error)
    states = [
        _state(store, task, record, handles.get(store.folder(task)), unknown)
        for task, record in records.items()
    ]
    if tasks is not None:
        return states
    with suppress(LabError):  # `lab cancel`, which must know all of them, reports the error
        for folder, handle in active(study, excluding=set(map(store.folder, study.tasks))).items():
            task = _submitted_task(folder)
            state = _state(store, task, store.read(task), handle, "")
            states.append(replace(state, reason=state.reason or OTHER_FORM))
    return states


def _submitted_task(folder: Path) -> Task:
    """The task that a folder's last job measures, as submitted; LabError if it cannot be known."""
    job = read_job(folder)
    if job is None or job.task is None:  # by an earlier version
        raise LabError(f"{folder}: it is unknown what its job measures: its file names no run")
    run, repeat = job.task
    try:
        return Task(Run.model_validate_json(run), repeat)
    except ValueError as error:
        what = f"it is unknown what its job measures: {first_line(error)}"
        raise LabError(f"{folder}: {what}") from None


def active(study: Study, *, excluding: Collection[Path] = ()) -> dict[Path, Handle]:
    """Active jobs by their folders, but for these, of whatever form of the study."""
    folders = [path.parent for path in sorted(Store(study.out).runs.glob(f"*/*/{JOB}"))]
    records = {
        folder: read_record(folder / RECORD) for folder in folders if folder not in excluding
    }
    unmeasured = [folder for folder, record in records.items() if not (record and record.completed)]
    return driver.alive(driver.handles(unmeasured))


def _state(
    store: Store, task: Task, record: Record | None, handle: Handle | None, unknown: str
) -> TaskState:
    job = handle.status() if handle else None
    job_id = handle.attempt.job_id if handle else ""
    ended = job is None or job.state == "ended"
    if record is not None and (record.completed or ended):
        error = record.error
        # Of an exception, such as a KeyError, the message alone may say nothing.
        reason = (error.cause if error.traceback else error.message) if error else ""
        seconds = record.duration_s
        return TaskState(task, record.status, seconds=seconds, reason=reason, job_id=job_id)
    if handle is None or job is None or ended:
        lost = handle.exit_reason().message if handle else ""
        return TaskState(task, "waiting", reason=store.reason_to_repeat(task) or unknown or lost)
    submitted = read_job(store.folder(task))
    seconds = max(time.time() - submitted.submitted_at, 0.0) if submitted else None
    state = TaskState(
        task, job.state, seconds=seconds, reason=job.reason, job_id=job_id, advice=job.advice
    )
    if job.state == "pending":
        return state
    return replace(state, **asdict(read_progress(store.folder(task))))


def watch(study: Study) -> list[TaskState]:
    """Show the states live until all tasks end or nothing works on them; returns the last ones."""
    states = status(study)
    with StudyDisplay(lambda: states) as display:
        while not all(state.ended for state in states):
            driven = is_driven(study)  # first, so that whatever ends between the checks is seen
            states = status(study)
            display.update()
            if not driven and not any(state.state in UNDER_WAY for state in states):
                break
            time.sleep(WATCH_S)
    return states


def is_driven(study: Study) -> bool:
    """Whether a driver is active, as between two of its jobs none is running."""
    lock = driver.lock(study, timeout_s=0)
    if not Path(lock.lock_file).exists():
        return False
    try:
        with lock:
            return False
    except Timeout:
        return True


def time_left(states: Sequence[TaskState]) -> float | None:
    """Seconds until the last task ends, from the durations of completed ones.

    Before one has completed, from the pace of those that run; None before their first step.
    """
    timed = [(state, state.seconds) for state in states if state.seconds is not None]
    durations = grouped(
        (state.task.run.id, seconds) for state, seconds in timed if state.state == "completed"
    ) or grouped(
        (state.task.run.id, seconds * state.steps / state.step)
        for state, seconds in timed
        if state.phase in TRAINING and state.step
    )
    if not durations:
        return None
    overall = statistics.median(seconds for values in durations.values() for seconds in values)
    medians = {run_id: statistics.median(values) for run_id, values in durations.items()}
    remaining = 0.0
    for state in states:
        expected = medians.get(state.task.run.id, overall)
        if state.state == "running" and state.phase != WAITING:
            remaining += max(expected - (state.seconds or 0.0), 0.0)
        elif not state.ended:
            remaining += expected
    return remaining


class CancelledStudyError(LabError):
    """Another process cancelled the study; completed measurements are kept."""


def cancellation(study: Study) -> bytes | None:
    """The token of a call of `cancel`, which differs for each call; None if none is under way."""
    with suppress(OSError):
        return read_file(study.out / "cancel")
    return None


def cancel(study: Study | str | Path) -> int:
    """End all jobs of a study, waiting or running, and its drivers; returns how many jobs it ended.

    This includes jobs of a study file that has since been changed. Each leaves a record with status
    cancelled; completed measurements stay, and the next launch continues from there. Raises
    LabError if a driver or Slurm does not answer, InputError if the study cannot be written.
    """
    study = Study.of(study)
    if not study.out.is_dir():
        return 0
    if problems := unwritable(study.out):
        raise InputError(study.name, problems)
    request = study.out / "cancel"
    write_atomically(request, uuid.uuid4().hex.encode())
    try:
        with driver.lock(study, timeout_s=PATIENCE_S):
            return _end_jobs(study)
    except Timeout:
        message = f"a driver of {study.name} is stopped or stuck; kill it, then cancel again"
        raise LabError(message) from None
    finally:
        request.unlink(missing_ok=True)


def _end_jobs(study: Study) -> int:
    store = Store(study.out)
    listed, alive = {store.folder(task): task for task in study.tasks}, active(study)
    tasks = {folder: listed.get(folder) or _submitted_task(folder) for folder in alive}
    driver.terminate(alive.values())
    for folder, handle in alive.items():
        task = tasks[folder]
        if not store.completed(task):
            reason = RankError(0, "Cancelled", "cancelled by `lab cancel`")
            allocation = handle.allocation()
            record = failed(task, handle.attempt, reason=reason, allocation=allocation)
            write_record(record, folder)
    return len(alive)


class Display:
    """A live view in a terminal or a notebook, lines elsewhere, nothing unless `enabled`."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self._console = Console(quiet=not enabled)
        self.is_live = enabled and (self._console.is_terminal or self._console.is_jupyter)
        self._live = Live(console=self._console, refresh_per_second=5, transient=True)

    def __enter__(self) -> Self:
        if self.is_live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, view: RenderableType) -> None:
        """Replace the live view."""
        if self.is_live:
            self._live.update(view)

    def print(self, line: str) -> None:
        """Add a line that stays."""
        if self.is_live and self._console.is_jupyter:  # it wraps text, but not Rich's HTML
            from IPython.display import display

            display({"text/plain": line}, raw=True)
            return
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class StudyDisplay(Display):
    """The states of a study's tasks until they are done."""

    def __init__(self, states: Callable[[], list[TaskState]], *, enabled: bool = True) -> None:
        super().__init__(enabled=enabled)
        self._states = states
        self._reported: set[int] = set()
        self._waits: set[str] = set()  # what runs were said to wait for
        self._again: set[int] = set()  # ended before, and measured once more
        self._earlier: dict[int, TaskState] = {}  # those that had ended, which need no line
        if enabled and not self.is_live:
            self._earlier = {i: s for i, s in enumerate(states()) if s.ended}
            self._reported = {i for i, s in self._earlier.items() if s.state == "completed"}

    def __exit__(self, *_: object) -> None:
        self.update()
        super().__exit__()

    def update(self) -> None:
        """Show the current states."""
        if not self.enabled:
            return
        states = self._states()
        self.show(_view(states))
        for i, state in enumerate([] if self.is_live else states):
            if (wait := _wait(state)) and wait not in self._waits:
                self._waits.add(wait)  # said once, as every run may wait
                self.print(f"{state.task.label}: {wait}")
            if not state.ended:
                self._again |= self._reported & {i}
                self._reported.discard(i)
                self._earlier.pop(i, None)
            elif i not in self._reported and state != self._earlier.get(i):
                self._reported.add(i)
                duration = f" in {state.seconds:.0f} s" if state.seconds is not None else ""
                done = f"[{len(self._reported)}/{len(states)}]"
                again = ", measured again" if i in self._again else ""
                self.print(f"{done} {state.task.label}: {state.state}{duration}{again}")


def _wait(state: TaskState) -> str:
    """What a run waits for that its user may want to know or change."""
    if state.phase == WAITING:
        return f"{WAITING} on the same devices"
    return f"{state.state}, {state.hint}" if state.hint else ""


def hints(states: Sequence[TaskState]) -> list[str]:
    """The hints of all states, each once."""
    return list(dict.fromkeys(state.hint for state in states if state.hint))


def advice(study: Study, states: Sequence[TaskState]) -> list[str]:
    """The hints, and how to go on where runs are missing that nothing works on."""
    kinds = {state.state for state in states}
    if "waiting" not in kinds or kinds.intersection(UNDER_WAY) or is_driven(study):
        return hints(states)
    return [*hints(states), f"no job of `lab run` is under way: {to_go_on(study)}"]


def to_go_on(study: Study) -> str:
    """The command that measures what is missing, on the cluster of the last jobs, as a sentence."""
    return f"`{study.command('run', set(last_clusters(study)))}` measures what is missing"


def last_clusters(study: Study) -> Iterator[str]:
    """The profiles of the last jobs of its tasks, as far as they can be read."""
    for folder in map(Store(study.out).folder, study.tasks):
        with suppress(LabError):
            if job := read_job(folder):
                yield job.cluster


def _view(states: list[TaskState]) -> RenderableType:
    """The number of runs in each state, a bar for each running one, and what to do for others."""
    ended = sum(state.ended for state in states)
    remaining = time_left(states)
    summary = Text(f"{ended} of {len(states)} runs", style="bold")
    for name, count in Counter(state.state for state in states).items():
        summary.append(f"  {count} {name}", style=STYLES.get(name, "red"))
    reasons = Counter(state.reason for state in states if state.state == "pending" and state.reason)
    for reason, _ in reasons.most_common(1):
        summary.append(f"  {reason}", style="dim")
    if remaining is not None and round(remaining) and ended < len(states):
        summary.append(f"  about {clock(remaining)} left", style="dim")
    rows = [(summary, ended, len(states))]
    for state in states:
        if state.state == "running":
            since = f", {clock(state.seconds)}" if state.seconds is not None else ""
            doing = _wait(state) or f"{state.phase} {state.step}/{state.steps}"
            text = f"{state.task.label}: {doing}{since}"
            rows.append((Text(text, style="cyan"), state.step, state.steps))
    return Group(bars(rows), *[Text(line, style="yellow") for line in hints(states)])


def bars(rows: Sequence[tuple[Text, float, float]]) -> Table:
    """Progress bars from a text, the amount done, and the total."""
    grid = Table.grid(padding=(0, 2))
    for text, done, total in rows:
        grid.add_row(text, ProgressBar(total=total, completed=done, width=30))
    return grid


def clock(seconds: float) -> str:
    """A duration for people: 45 s, 3 min 20 s, 2 h 05 min."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
