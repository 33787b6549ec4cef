"""Submit runs through submitit, watch them, collect records; go on after any interruption."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from lab import job, textfiles
from lab.atomic import read_json
from lab.cluster import Cluster
from lab.errors import InputError, LabError, Problem
from lab.executors import Handle, LocalQueue
from lab.records import Record, Store, write_record
from lab.study import Study, Task
from lab.workloads import Text

POLL_S = 0.1
# How long the other ranks may take to end by themselves once one of them has failed.
GRACE_S = 20.0


@dataclass(frozen=True)
class TaskState:
    """Where one task stands: `state` is a record's status, or running, or waiting."""

    task: Task
    state: str
    phase: str = ""
    step: int = 0
    seconds: float | None = None


class InterruptedStudyError(LabError):
    """The user stopped the study; what is measured is kept."""


def launch(study: Study, cluster: str | Cluster = "local", *, tasks: Sequence[Task] | None = None, fresh: bool = False) -> Jobs:
    """Start what is missing of a study and return at once; finished runs are reused.

    `tasks` limits it to some of the study's tasks; `fresh` sets their records aside and measures again. Raises
    InputError, before anything is submitted, where the cluster cannot run the study.
    """
    profile = cluster if isinstance(cluster, Cluster) else Cluster.load(cluster)
    # What needs a kind of device that is not there is left out: the report says so.
    chosen = [task for task in (study.tasks if tasks is None else tasks) if profile.on(task.run.needs_device)]
    missing = chosen if fresh else [task for task in chosen if not Store(study.out).completed(task)]
    if missing:
        _check(study, profile, missing, fresh=fresh)
    return Jobs(study, profile, chosen, fresh=fresh)


class Jobs:
    """A study on its way; in the manner of concurrent.futures it can be asked, waited for and cancelled.

    A thread drives it. One driver at a time works on a study: a second one watches, and takes over when the first
    ends. Ended drivers leave running jobs behind; the next driver adopts them.
    """

    def __init__(self, study: Study, cluster: Cluster, tasks: Sequence[Task], *, fresh: bool = False) -> None:
        self.study, self.cluster, self.tasks = study, cluster, list(tasks)
        self._store = Store(study.out)
        self._queue = LocalQueue(cluster, self._store, study.folder)
        self._fresh = fresh
        self._created = datetime.now(UTC)
        self._cancelled = threading.Event()
        self._failure: BaseException | None = None
        # Not Thread.join: an interrupt in it can make Python take a running thread for an ended one.
        self._ended = threading.Event()
        if fresh or not all(map(self._store.completed, self.tasks)):
            threading.Thread(target=self._drive, name="driver", daemon=True).start()
        else:
            self._ended.set()

    @property
    def done(self) -> bool:
        """Whether nothing is left to do, or the driver has ended."""
        return self._ended.is_set()

    def states(self) -> list[TaskState]:
        """Where each task stands now."""
        return states(self.study, self.tasks)

    def wait(self, *, progress: bool = True) -> list[Record]:
        """Wait for all tasks, with a progress display; returns their records, failed ones too.

        Raises InterruptedStudyError on Ctrl-C, after the running job has been ended.
        """
        from lab.progress import Display

        try:
            with Display(self, enabled=progress and not self.done) as display:
                while not self.done:
                    display.update()
                    self._ended.wait(0.2)
        except KeyboardInterrupt:
            self.cancel()
            kept = sum(map(self._store.completed, self.tasks))
            raise InterruptedStudyError(
                f"interrupted: {kept} of {len(self.tasks)} runs are kept; the same command goes on from there"
            ) from None
        if self._failure is not None:
            raise self._failure
        return self._store.records(self.tasks)

    def cancel(self) -> None:
        """Start no further job, end the one that runs, keep what is measured."""
        self._cancelled.set()
        self._ended.wait()

    def _drive(self) -> None:
        try:
            self._take_turn()
        except OSError as error:
            self._failure = LabError(f"{error.filename or self.study.out}: {error.strerror}; free or unlock it, then run again")
        except BaseException as error:  # noqa: BLE001 it is raised again in wait()
            self._failure = error
        finally:
            self._ended.set()

    def _take_turn(self) -> None:
        self.study.out.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.study.out / "driver.lock")
        while not self._cancelled.is_set():
            with contextlib.suppress(Timeout), lock.acquire(timeout=0.5, poll_interval=POLL_S):
                self._work()
                return

    def _work(self) -> None:
        if self._fresh:
            self._set_aside()
        for task in self.tasks:
            handle = self._queue.adopt(task)
            if handle is None and self._is_due(task) and not self._cancelled.is_set():
                self._put_away_failure(task)
                handle = self._queue.start(task)
            if handle is not None:
                self._see_through(task, handle)

    def _is_due(self, task: Task) -> bool:
        """Whether a task must be run: it has no record, or one of a failure from before this call."""
        record = self._store.read(task)
        return record is None or not (record.completed or datetime.fromisoformat(record.finished_at) > self._created)

    def _see_through(self, task: Task, handle: Handle) -> None:
        """Watch one job to its end, and see that it leaves a record."""
        failed_since = None
        while handle.running():
            if self._cancelled.wait(POLL_S):
                handle.end()
                return
            if handle.attempt.errors():
                failed_since = failed_since or time.monotonic()
                if time.monotonic() - failed_since > GRACE_S:
                    handle.end()
        if self._store.read(task) is None and not self._cancelled.is_set():
            write_record(
                job.failed(task.run, task.repeat, handle.attempt, fallback=handle.last_words()), self._store.folder(task)
            )

    def _put_away_failure(self, task: Task) -> None:
        """Keep the record of an earlier failure beside the logs, so that the next one is not taken for it."""
        path = self._store.folder(task) / "record.json"
        if path.exists():
            path.parent.joinpath("log").mkdir(mode=0o700, exist_ok=True)
            path.rename(path.parent / "log" / f"{_stamp()}.record.json")

    def _set_aside(self) -> None:
        replaced = self.study.out / "replaced" / _stamp()
        for task in self.tasks:
            folder = self._store.folder(task)
            handle = self._queue.adopt(task)
            if handle is not None:
                handle.end()
            if folder.exists():
                target = replaced / task.run.id / str(task.repeat)
                target.parent.mkdir(parents=True, exist_ok=True)
                folder.rename(target)


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")


def states(study: Study, tasks: Sequence[Task] | None = None) -> list[TaskState]:
    """Where each task of a study stands, read from the disk: the same from any process."""
    store = Store(study.out)
    return [_state(store, task) for task in (study.tasks if tasks is None else tasks)]


def _state(store: Store, task: Task) -> TaskState:
    record = store.read(task)
    if record is not None:
        return TaskState(task, record.status, seconds=record.duration_s)
    folder = store.folder(task)
    submitted = read_json(folder / "job.json")
    if submitted is None or not Handle.of(folder, submitted).running():
        return TaskState(task, "waiting")
    told = read_json(folder / "progress.json") or {}
    seconds = time.time() - submitted["submitted_at"]
    return TaskState(task, "running", told.get("phase", "starting"), told.get("step", 0), seconds)


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
        if state.state == "waiting":
            left += expected
        elif state.state == "running":
            left += max(expected - (state.seconds or 0.0), 0.0)
    return left


def detach(study: Study, cluster: str, *, fresh: bool = False) -> int:
    """Hand a study to a driver of its own, which outlives this process; returns its process id.

    It writes what it has to say to `out/driver.log`.
    """
    _check(study, Cluster.load(cluster), study.tasks, fresh=fresh)
    command = [sys.executable, "-m", "lab", "run", str(study.folder), "--cluster", cluster]
    command += ["--fresh"] * fresh + ["--quick"] * study.quick
    with (study.out / "driver.log").open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True).pid


def _check(study: Study, cluster: Cluster, tasks: Sequence[Task], *, fresh: bool) -> None:
    problems = [
        Problem(
            "cluster",
            f"{task.run.label} needs {task.run.world_size} ranks, {cluster.description}",
            "use a larger cluster, fewer ranks or --quick",
        )
        for task in tasks
        if (own := cluster.on(task.run.needs_device)) and task.run.world_size > own.capacity and task.repeat == 0
    ]
    for run in {task.run.id: task.run for task in tasks}.values():
        if isinstance(run.dataset, Text):
            textfiles.resolve_text(run.dataset.path, study.folder)
    records = Store(study.out).records(study.tasks)
    elsewhere = {record.environment.cluster for record in records if record.environment} - {cluster.name}
    if elsewhere and not fresh:
        problems.append(
            Problem(
                "cluster",
                f"records here were measured on {', '.join(sorted(elsewhere))}",
                f"name that cluster, or --fresh to measure all on {cluster.name}",
            )
        )
    problems += _unwritable(study.out)
    if problems:
        raise InputError(study.name, problems)


def _unwritable(out: Path) -> list[Problem]:
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / f".writable-{os.getpid()}"
        probe.write_text(json.dumps(0))
        probe.unlink()
    except OSError as error:
        return [
            Problem(str(out), f"cannot be written: {error.strerror}", "make the folder writable, or copy the study elsewhere")
        ]
    return []
