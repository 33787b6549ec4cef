"""launch(): turn missing runs into jobs and their ends into records, even after interruptions."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from filelock import Timeout

from lab.config.cluster import Cluster
from lab.config.study import Study, Task
from lab.errors import INTERRUPTED, LabError, items
from lab.files import open_no_link
from lab.formatting import count
from lab.launch import driver, job
from lab.launch.driver import Driver, OneInterrupt
from lab.launch.executor import Handle, JobSpec
from lab.launch.outcome import archive_failed, archive_noisy, conclude, keep_completed, stamp
from lab.launch.plan import check_budget
from lab.launch.preflight import check, check_emulation, usable
from lab.launch.replay import replay
from lab.launch.status import (
    CancelledStudyError,
    StudyDisplay,
    TaskState,
    cancellation,
    is_driven,
    status,
)
from lab.perfmodel.frozen import archive_replaced, freeze
from lab.records.provenance import keep_code
from lab.records.store import PREDICTIONS, RECORD, REPLACED, Record, Store, write_record

# The display of a study pauses for this multiple of the time that it works.
DISPLAY_PAUSE = 50
START_POLL_S = 0.1  # while a detached driver starts
ELSEWHERE = "another process is running this study"


class InterruptedStudyError(LabError):
    """The user stopped the study; completed measurements are kept."""

    exit_status = INTERRUPTED


def launch(
    study: Study | str | Path,
    cluster: str | Cluster = "local",
    *,
    tasks: Sequence[Task] | None = None,
    fresh: bool = False,
    repeat_disturbed: bool = False,
    snapshot: bool = False,
    yes: bool = False,
) -> Jobs:
    """Start the missing runs of a study and return at once; finished runs are reused.

    `tasks` limits it to some of the study's tasks; `fresh` archives their records and measures
    again; `repeat_disturbed` does so if a repeat was disturbed, and keeps the quieter attempt as
    its record; with `snapshot` jobs run a copy of the current code. On a replay, published rows
    become records and no job starts. Raises InputError, before anything is submitted, if the
    cluster cannot run the study or, unless `yes`, if its budget would be exceeded.
    """
    study, profile = Study.of(study), usable(cluster)
    tasks = study.tasks if tasks is None else items(tasks, Task, "tasks", "some of study.tasks")
    chosen, noisy, missing = _checked(
        study, profile, tasks, fresh=fresh, repeat_disturbed=repeat_disturbed, yes=yes
    )
    if profile.executor == "replay":
        replay(study, profile, missing)
        fresh = False  # its records are already written
    code = keep_code(study.out) if snapshot else None
    return Jobs(study, profile, chosen, fresh=fresh, noisy=noisy, code=code)


def _checked(
    study: Study,
    cluster: Cluster,
    tasks: Sequence[Task],
    *,
    fresh: bool,
    repeat_disturbed: bool,
    yes: bool,
) -> tuple[list[Task], set[Task], list[Task]]:
    """The tasks for which a cluster has devices, of these the disturbed, and those to be measured.

    The report says which runs are left out. Raises InputError as described in `launch`.
    """
    store = Store(study.out)
    if not fresh:
        check_emulation(study, cluster)
    chosen = [task for task in tasks if cluster.on(task.run.device_needed)]
    noisy = set(filter(store.noisy, chosen)) if repeat_disturbed else set()
    missing = [task for task in chosen if fresh or task in noisy or not store.completed(task)]
    if missing:
        check(study, cluster, missing, fresh=fresh)
    if not yes:
        check_budget(study, cluster, missing)
    return chosen, noisy, missing


def predicts(task: Task) -> bool:
    """Whether the times of runs on several ranks are predicted from a task."""
    # Two repeats of each, as a single one does not show how much repeats differ.
    return task.run.world_size == 1 and task.repeat < 2


class Jobs:
    """The jobs of a study, similar to a concurrent.futures.Future.

    A thread drives them. One driver at a time works on a study: a second one watches, and takes
    over when the first ends. Ended drivers leave running jobs behind; the next driver adopts them.
    """

    def __init__(
        self,
        study: Study,
        cluster: Cluster,
        tasks: Sequence[Task],
        *,
        fresh: bool = False,
        noisy: Collection[Task] = (),
        code: Path | None = None,
    ) -> None:
        self.study, self.cluster, self.tasks = study, cluster, list(tasks)
        self._replaced = study.out / REPLACED / stamp()
        self._store = Store(study.out)
        self._tasks = {self._store.folder(task): task for task in self.tasks}
        self._executor = driver.executor_for(cluster, study.out)
        self._driver = Driver(
            self._executor, self._on_end, lambda folder: (folder / RECORD).exists()
        )
        self._fresh, self._noisy, self._code = fresh, noisy, code
        # Records from before this call are replaced; those of a concurrent driver are not.
        self._earlier = {
            task: record.finished_at for task in self.tasks if (record := self._store.read(task))
        }
        self._measured = set(filter(self._store.completed, self.tasks))
        self._awaited: set[Path] = set()  # one-rank jobs, from which the others are predicted
        self._cancellation = cancellation(study)
        self._driven_elsewhere = self._cancelled = False
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._interrupt = OneInterrupt()
        # Not Thread.join: interrupted in it, Python may consider a running thread ended.
        self._ended = threading.Event()
        if fresh or noisy or not self._measured.issuperset(self.tasks):
            threading.Thread(target=self._drive, name="driver", daemon=True).start()
        else:
            self._ended.set()

    @property
    def done(self) -> bool:
        """Whether nothing is left to do, or the driver has ended."""
        return self._ended.is_set()

    def states(self) -> list[TaskState]:
        """The current state of each task."""
        return status(self.study, self.tasks)

    def wait(self, *, progress: bool = True) -> list[Record]:
        """Wait for all tasks, with a progress display; returns their records, even failed ones.

        Raises InterruptedStudyError on Ctrl-C, after ending a running job on this machine (those of
        a scheduler continue), and CancelledStudyError if another process has cancelled the study.
        """
        with self._interrupt:
            try:
                self._display(enabled=progress and not self.done)
            except KeyboardInterrupt:
                raise InterruptedStudyError(self._end_interrupted()) from None
        if self._failure is not None:
            raise self._failure
        return self._store.records(self.tasks)

    def cancel(self) -> None:
        """Start no further job, end running ones, and keep completed measurements."""
        self._cancelled = True
        self.leave()
        self._end_jobs()  # those of a driver that failed

    def _end_jobs(self) -> None:
        driver.terminate(list(self._driver.alive.values()))
        self._driver.alive.clear()

    def leave(self) -> None:
        """Start no further job here, and leave running ones to the next driver."""
        self._stop.set()
        while not self._ended.wait(0.1):
            if self._executor.persistent and self._interrupt.again:
                return  # a second Ctrl-C does not wait for a scheduler that does not answer

    def _display(self, *, enabled: bool) -> None:
        announced = False
        with StudyDisplay(self.states, enabled=enabled) as display:
            while not self.done:
                if self._driven_elsewhere and not announced:
                    display.print(f"{self.study.name}: {ELSEWHERE}; this one watches its runs")
                    announced = True
                began = time.monotonic()
                display.update()
                # With a thousand runs this takes long enough to disturb those being timed.
                pause = DISPLAY_PAUSE * (time.monotonic() - began)
                self._ended.wait(max(pause, 1.0 if self._executor.persistent else 0.2))

    def _end_interrupted(self) -> str:
        self.leave() if self._executor.persistent else self.cancel()
        measured = sum(map(self._store.completed, self.tasks))
        message = f"interrupted: {measured} of {len(self.tasks)} runs are kept"
        if alive := len(self._driver.alive):
            jobs = f"{count(alive, 'job')} {'is' if alive == 1 else 'are'} still waiting or running"
            return f"{message}, {jobs}; start it again to watch, `lab cancel` ends the rest"
        if self._driven_elsewhere:
            return f"{message}; {ELSEWHERE}, `lab cancel` ends it"
        return f"{message}; start it again to go on from there"

    def _drive(self) -> None:
        try:
            self.study.out.mkdir(parents=True, exist_ok=True)
            lock, done = driver.lock(self.study, timeout_s=0.5), False
            while not done and not self._wait(0.0):
                try:
                    with lock.acquire(poll_interval=0.1):
                        self._driven_elsewhere = False
                        self._run_jobs()
                        if self._cancelled:  # the next driver would take their ends for failures
                            self._end_jobs()
                        done = True
                except Timeout:
                    self._driven_elsewhere = True
        except OSError as error:
            path = error.filename or self.study.out
            self._failure = LabError(f"{path}: {error.strerror}; free or unlock it, then run again")
        except BaseException as error:  # noqa: BLE001 it is raised again in wait()
            self._failure = error
        finally:
            self._ended.set()

    def _wait(self, seconds: float) -> bool:
        """Wait, and return whether to stop; raises CancelledStudyError after `lab cancel`."""
        if self._stop.wait(seconds):
            return True
        if cancellation(self.study) not in {None, self._cancellation}:
            message = f"{self.study.name} was cancelled by `lab cancel`"
            raise CancelledStudyError(f"{message}; `lab run` measures what is missing")
        return False

    def _run_jobs(self) -> None:
        handles = driver.handles(self._tasks)
        adopted = driver.alive(handles)
        if self._fresh:
            # A job with a complete record is over, also where Slurm no longer answers.
            ended = {f for f, task in self._tasks.items() if self._store.completed(task)}
            driver.terminate(job for folder, job in adopted.items() if folder not in ended)
            handles, adopted = {}, {}  # their folders go into the archive
            self._archive_all()
        for folder, task in self._tasks.items():
            if task in self._noisy and self._is_earlier(task):
                archive_noisy(folder, replaced=self._replaced)
        due = [f for f, task in self._tasks.items() if f not in adopted and self._is_due(task)]
        for folder in due:
            if folder in handles:
                self._ensure_record(folder, handles[folder])
            archive_failed(folder)
        self._awaited = {folder for folder in (*adopted, *due) if predicts(self._tasks[folder])}
        due.sort(key=lambda folder: folder not in self._awaited)
        self._predict()
        specs = list(map(self._spec, due))
        self._driver.drive(specs, adopted=adopted, wait=self._wait, may_start=self._may_start)
        if self.cluster.repeat_disturbed and not self._stop.is_set():
            noisy = [folder for folder, task in self._tasks.items() if self._was_disturbed(task)]
            for folder in noisy:
                archive_noisy(folder, replaced=self._replaced)
            self._driver.drive(list(map(self._spec, noisy)), adopted={}, wait=self._wait)
        for folder in self._tasks:
            keep_completed(folder)

    def _predict(self) -> None:
        """Freeze predictions once the first two repeats on one rank are measured.

        Locally this happens before any other run starts, on a scheduler before others have left its
        queue. A prediction made too late is never scored.
        """
        if not self._awaited:
            freeze(self.study, self.cluster, runs=[task.run for task in self.tasks])

    def _may_start(self, folder: Path) -> bool:
        """Whether a job may be submitted: locally the others wait for those they depend on."""
        return self._executor.persistent or not self._awaited or folder in self._awaited

    def _on_end(self, folder: Path, handle: Handle) -> None:
        self._ensure_record(folder, handle)
        if folder in self._awaited:
            self._awaited.discard(folder)
            self._predict()

    def _spec(self, folder: Path) -> JobSpec:
        task = self._tasks[folder]
        return JobSpec(
            folder,
            task.run.processes,
            job.execute,
            job.job_arguments(self.study, task, self.cluster, folder),
            self._code,
            devices=task.run.devices,
            slots=job.slots(task.run, self.cluster),
            script=task.run.script is not None,
            task=(task.run.model_dump_json(), task.repeat),
        )

    def _is_due(self, task: Task) -> bool:
        """Whether a task has no record, or only a failure from before this call."""
        record = self._store.read(task)
        return record is None or (not record.completed and self._is_earlier(task))

    def _is_earlier(self, task: Task) -> bool:
        """Whether a task's record dates from before this call."""
        record = self._store.read(task)
        return record is not None and record.finished_at == self._earlier.get(task)

    def _was_disturbed(self, task: Task) -> bool:
        """Whether a task was measured for the first time in this call, and was disturbed."""
        if task in self._measured or self._store.set_aside(task):
            return False
        return self._store.noisy(task)

    def _ensure_record(self, folder: Path, handle: Handle) -> None:
        """Write the record that an ended job lacks, or one that states the cause more precisely."""
        task = self._tasks[folder]
        record = self._store.read(task)
        if record is not None and record.completed:
            return
        if record is None:
            archive_failed(folder)  # a damaged one, which would be lost
        allocation, reason = handle.allocation(), handle.exit_reason()
        better = conclude(task, handle.attempt, record, reason, allocation=allocation)
        if better is not None:
            write_record(better, folder)

    def _archive_all(self) -> None:
        for folder, task in self._tasks.items():
            if folder.exists():
                target = self._replaced / task.run.id / str(task.repeat)
                target.parent.mkdir(parents=True, exist_ok=True)
                folder.rename(target)
        run_ids = {task.run.id for task in self.tasks}
        archive_replaced(self.study, run_ids, self._replaced / PREDICTIONS)


def detach(
    study: Study | str | Path,
    cluster: str | Cluster = "local",
    *,
    fresh: bool = False,
    repeat_disturbed: bool = False,
    snapshot: bool = False,
    yes: bool = False,
) -> int:
    """Start a driver that outlives this process, with its log in `out/`; returns its process id.

    It returns once the driver works on the study, or has ended. Raises InputError as `launch` does.
    """
    study, profile = Study.of(study), usable(cluster)
    options = {"fresh": fresh, "repeat_disturbed": repeat_disturbed, "yes": yes}
    _checked(study, profile, study.tasks, **options)
    command = [sys.executable, "-P", "-m", "lab", "run", str(study.folder)]
    command += ["--cluster", profile.reference]
    flags = options | {"snapshot": snapshot, "quick": study.quick}
    command += [f"--{name.replace('_', '-')}" for name, is_given in flags.items() if is_given]
    study.out.mkdir(parents=True, exist_ok=True)
    with open(study.out / "driver.log", "ab", opener=open_no_link) as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    # Before it drives the study, `lab cancel` could not end it, and it would submit jobs after it.
    while process.poll() is None and not is_driven(study):
        time.sleep(START_POLL_S)
    return process.pid
