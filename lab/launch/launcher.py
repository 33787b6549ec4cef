"""Submit runs through submitit, watch them, collect records; go on after any interruption."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from lab.config.cluster import Cluster
from lab.config.study import Study, Task
from lab.errors import LabError
from lab.launch import driver, job
from lab.launch.driver import Driver
from lab.launch.executor import Handle, JobSpec
from lab.launch.outcome import archive_failed, archive_noisy, conclude, stamp
from lab.launch.preflight import check, check_emulation, usable
from lab.launch.replay import replay
from lab.launch.status import Cancellation, CancelledStudyError, Display, TaskState, status
from lab.perfmodel.frozen import archive_replaced, freeze
from lab.records.provenance import keep_code
from lab.records.store import Record, Store, write_record


class InterruptedStudyError(LabError):
    """The user stopped the study; what is measured is kept."""


def launch(
    study: Study,
    cluster: str | Cluster = "local",
    *,
    tasks: Sequence[Task] | None = None,
    fresh: bool = False,
    snapshot: bool = False,
) -> Jobs:
    """Start what is missing of a study and return at once; finished runs are reused.

    `tasks` limits it to some of the study's tasks; `fresh` sets their records aside and measures again; with `snapshot`
    the jobs run a copy of the code as it is now. On a replay published rows become records, and no job starts. Raises
    InputError, before anything is submitted, where the cluster cannot run the study.
    """
    profile = usable(cluster)
    # What needs a kind of device that is not there is left out: the report says so.
    chosen = [
        task
        for task in (study.tasks if tasks is None else tasks)
        if profile.on(task.run.device_needed)
    ]
    if not fresh:
        check_emulation(study, profile)
    missing = chosen if fresh else [task for task in chosen if not Store(study.out).completed(task)]
    if missing:
        check(study, profile, missing, fresh=fresh)
    if profile.executor == "replay":
        replay(study, profile, missing)
        fresh = False  # what is published is there now
    return Jobs(
        study,
        profile,
        chosen,
        named=cluster,
        fresh=fresh,
        code=keep_code(study.out) if snapshot else None,
    )


class Jobs:
    """A study on its way; in the manner of concurrent.futures it can be asked, waited for and cancelled.

    A thread drives it. One driver at a time works on a study: a second one watches, and takes over when the first
    ends. Ended drivers leave running jobs behind; the next driver adopts them.
    """

    def __init__(
        self,
        study: Study,
        cluster: Cluster,
        tasks: Sequence[Task],
        *,
        named: str | Cluster | None = None,
        fresh: bool = False,
        code: Path | None = None,
    ) -> None:
        self.study, self.cluster, self.tasks = study, cluster, list(tasks)
        self._named = named or cluster  # where its calibration is found
        self._store = Store(study.out)
        self._queue = driver.executor_for(cluster, study.out)
        self._driver = Driver(self._queue, ended=self._conclude, seen=self._has_record)
        self._fresh, self._code = fresh, code
        # Failures from before this call are run again; those of a driver that works meanwhile are not.
        self._failures = {
            task: record.finished_at for task in self.tasks if (record := self._store.read(task))
        }
        self._measured = set(filter(self._store.completed, self.tasks))
        self._awaited: set[Path] = set()  # jobs on one rank, from which the others are predicted
        self._cancellation = Cancellation.of(study)
        self._stop = threading.Event()
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
        return status(self.study, self.tasks)

    def wait(self, *, progress: bool = True) -> list[Record]:
        """Wait for all tasks, with a progress display; returns their records, failed ones too.

        Raises InterruptedStudyError on Ctrl-C: this machine's running job has been ended then, a scheduler's go on.
        CancelledStudyError is raised where another process has cancelled the study.
        """
        try:
            with Display(self.states, enabled=progress and not self.done) as display:
                while not self.done:
                    display.update()
                    self._ended.wait(1.0 if self._queue.keeps else 0.2)
        except KeyboardInterrupt:
            raise InterruptedStudyError(self._interrupt()) from None
        if self._failure is not None:
            raise self._failure
        return self._store.records(self.tasks)

    def cancel(self) -> None:
        """Start no further job, end those that run, keep what is measured."""
        self.leave()
        if self._driver.alive:
            driver.terminate(self._driver.alive.values())
            self._driver.alive.clear()

    def leave(self) -> None:
        """Start no further job here, and leave those that run to the next driver."""
        self._stop.set()
        self._ended.wait()

    def _interrupt(self) -> str:
        self.leave() if self._queue.keeps else self.cancel()
        kept = sum(map(self._store.completed, self.tasks))
        told = f"interrupted: {kept} of {len(self.tasks)} runs are kept"
        if alive := len(self._driver.alive):
            go_on = "1 job goes on" if alive == 1 else f"{alive} jobs go on"
            return (
                f"{told}, {go_on}; the same command watches again, `lab cancel` ends what is left"
            )
        return f"{told}; the same command goes on from there"

    def _drive(self) -> None:
        try:
            self._take_turn()
        except OSError as error:
            self._failure = LabError(
                f"{error.filename or self.study.out}: {error.strerror}; free or unlock it, then run again"
            )
        except BaseException as error:  # noqa: BLE001 it is raised again in wait()
            self._failure = error
        finally:
            self._ended.set()

    def _take_turn(self) -> None:
        self.study.out.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.study.out / "driver.lock")
        while not self._stopped(0.0):
            with contextlib.suppress(Timeout), lock.acquire(timeout=0.5, poll_interval=0.1):
                self._work()
                return

    def _stopped(self, wait_s: float) -> bool:
        """Wait, and tell whether to stop; raises CancelledStudyError where another process wants it."""
        if self._stop.wait(wait_s):
            return True
        if Cancellation.of(self.study) not in {None, self._cancellation}:
            raise CancelledStudyError(
                f"{self.study.name} was cancelled by `lab cancel`; `lab run` goes on from what is measured"
            )
        return False

    def _work(self) -> None:
        handles = driver.handles(map(self._store.folder, self.tasks))
        adopted = {
            folder: handle for folder, handle in handles.items() if handle.stand().state != "ended"
        }
        if self._fresh:
            driver.terminate(adopted.values())
            self._set_aside()
            adopted = {}
        due = [
            task
            for task in self.tasks
            if self._store.folder(task) not in adopted and self._is_due(task)
        ]
        for task in due:
            self._put_away_failure(task, handles.get(self._store.folder(task)))
        profiles = {
            self._store.folder(task)
            for task in self.tasks
            if task.run.world_size == 1 and task.repeat == 0
        }
        self._awaited = profiles & {*adopted, *map(self._store.folder, due)}
        due.sort(key=lambda task: self._store.folder(task) not in self._awaited)
        self._predict()
        self._driver.drive(
            [self._work_of(task) for task in due], adopted=adopted, stopped=self._stopped
        )
        if self.cluster.repeat_disturbed and not self._stop.is_set():
            again = [task for task in self.tasks if self._was_disturbed(task)]
            for task in again:
                archive_noisy(self._store.folder(task))
            self._driver.drive(
                [self._work_of(task) for task in again], adopted={}, stopped=self._stopped
            )

    def _predict(self) -> None:
        """Freeze what is expected of the runs, once the first repeats on one rank are measured: here before any other starts,
        on a scheduler before others have left its queue; a prediction that came too late is never scored.
        """
        if not self._awaited:
            freeze(self.study, self._named, runs=[task.run for task in self.tasks])

    def _conclude(self, folder: Path, handle: Handle) -> None:
        self._see_to_record(folder, handle)
        if folder in self._awaited:
            self._awaited.discard(folder)
            self._predict()

    def _work_of(self, task: Task) -> JobSpec:
        folder = self._store.folder(task)
        arguments = (
            task.run.model_dump_json(),
            task.repeat,
            self.cluster.model_dump_json(),
            str(folder),
            str(self.study.folder),
        )
        return JobSpec(
            folder, task.run.processes, job.execute, arguments, self._code, devices=task.run.devices
        )

    def _is_due(self, task: Task) -> bool:
        """Whether a task must be run: it has no record, or one of a failure from before this call."""
        record = self._store.read(task)
        return record is None or not (
            record.completed or record.finished_at != self._failures.get(task)
        )

    def _was_disturbed(self, task: Task) -> bool:
        """Whether a task was measured in this call, for the first time, and not undisturbed."""
        record = None if task in self._measured else self._store.read(task)
        if record is None or record.environment is None:
            return False
        return record.environment.disturbed and record.disturbed is None

    def _has_record(self, folder: Path) -> bool:
        return (folder / "record.json").exists()

    def _see_to_record(self, folder: Path, handle: Handle) -> None:
        """See that a job which has ended leaves a record, and one that names the cause."""
        task = next(task for task in self.tasks if self._store.folder(task) == folder)
        found = self._store.read(task)
        if found is None or not found.completed:
            record = conclude(
                task, handle.attempt, found, handle.last_words(), allocation=handle.allocation()
            )
            if record is not None:
                write_record(record, folder)

    def _put_away_failure(self, task: Task, handle: Handle | None) -> None:
        """Keep the record of an earlier failure beside the logs, so that the next one is not taken for it."""
        folder = self._store.folder(task)
        if handle is not None:
            self._see_to_record(folder, handle)
        archive_failed(folder)

    def _set_aside(self) -> None:
        replaced = self.study.out / "replaced" / stamp()
        for task in self.tasks:
            folder = self._store.folder(task)
            if folder.exists():
                target = replaced / task.run.id / str(task.repeat)
                target.parent.mkdir(parents=True, exist_ok=True)
                folder.rename(target)
        archive_replaced(self.study, {task.run.id for task in self.tasks}, replaced / "predictions")


def detach(study: Study, cluster: str, *, fresh: bool = False, snapshot: bool = False) -> int:
    """Hand a study to a driver of its own, which outlives this process; returns its process id.

    It writes what it has to say to `out/driver.log`.
    """
    check(study, usable(cluster), study.tasks, fresh=fresh)
    command = [sys.executable, "-m", "lab", "run", str(study.folder), "--cluster", cluster]
    command += ["--fresh"] * fresh + ["--snapshot"] * snapshot + ["--quick"] * study.quick
    with (study.out / "driver.log").open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        ).pid
