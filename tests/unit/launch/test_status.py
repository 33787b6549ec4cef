"""Progress in a log: a line for every run that ends."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from factories import record, run, study
from filelock import FileLock
from nbclient import NotebookClient
from rich.console import Console

from lab.config.cluster import Cluster
from lab.config.run import Run
from lab.config.study import Study, Task
from lab.launch import driver, status
from lab.launch.attempt import WAITING
from lab.launch.executor import LocalJob, prepare, write_job
from lab.launch.launcher import Jobs
from lab.launch.status import Display, StudyDisplay, TaskState, _view, cancel, time_left
from lab.machine import began
from lab.records.store import Store, write_record

TASK = Task(run(), 0)


def lines(capsys: pytest.CaptureFixture[str], *states: str) -> list[str]:
    """The lines of a display that sees one run in these states, the first when it begins."""
    coming = [[TaskState(TASK, state, seconds=3.0)] for state in states]
    with StudyDisplay(lambda: coming[0]) as display:
        while len(coming) > 1:
            display.update()
            coming.pop(0)
    return capsys.readouterr().out.splitlines()


def test_a_notebook_shows_what_is_to_say_of_a_task() -> None:
    state = TaskState(TASK, "running", step=3, steps=9)
    assert repr(state) == f"TaskState({TASK.label!r}, state='running', step=3, steps=9)"


def test_a_run_is_told_once_when_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys, "waiting", "running", "completed", "completed") == [
        f"[1/1] {TASK.label}: completed in 3 s"
    ]


def test_what_was_measured_before_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys, "completed", "completed") == []


def test_how_an_earlier_job_ended_is_not_told_of_this_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = f"[1/1] {TASK.label}: completed in 3 s"
    assert lines(capsys, "timeout", "timeout", "running", "completed") == [now]


def test_a_failure_of_before_is_not_told_as_one_of_now(capsys: pytest.CaptureFixture[str]) -> None:
    coming = [TaskState(TASK, "failed", seconds=3.0), TaskState(TASK, "failed", seconds=4.0)]
    with StudyDisplay(lambda: coming[:1]) as display:
        display.update()
        coming.pop(0)
    assert capsys.readouterr().out == f"[1/1] {TASK.label}: failed in 4 s\n"


def test_that_it_waits_for_other_jobs_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    second = Task(run(), 1)
    states = [TaskState(TASK, "running", phase=WAITING), TaskState(second, "waiting")]
    with StudyDisplay(lambda: states) as display:
        display.update()
        display.update()
        states[:] = [TaskState(TASK, "completed"), TaskState(second, "running", phase=WAITING)]
    waits, *ends = capsys.readouterr().out.splitlines()
    assert waits == f"{TASK.label}: waiting for other jobs on the same devices"
    assert ends == [f"[1/2] {TASK.label}: completed"]


HELD = TaskState(TASK, "pending", reason="JobHeldUser", advice="it is held; release it")


def test_a_job_that_will_not_start_by_itself_is_told_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = replace(HELD, task=Task(run(), 1))
    with StudyDisplay(lambda: [HELD, other]) as display:
        display.update()
    assert capsys.readouterr().out == (
        f"{TASK.label}: pending, JobHeldUser: it is held; release it\n"
    )


def test_a_terminal_shows_what_to_do_about_it() -> None:
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(_view([HELD, replace(HELD, task=Task(run(), 1))]))
    assert console.export_text().count("JobHeldUser: it is held; release it") == 1


def test_what_is_measured_again_is_told_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    done = f"[1/1] {TASK.label}: completed in 3 s"
    again = f"{done}, measured again"
    assert lines(capsys, "completed", "waiting", "running", "completed") == [again]
    assert lines(capsys, "running", "completed", "running", "completed") == [done, again]


def test_a_label_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    with Display() as display:
        display.print("train.py [/x] [linear]: completed")
    assert capsys.readouterr().out == "train.py [/x] [linear]: completed\n"


def test_a_notebook_shows_a_line_as_text_which_it_wraps() -> None:
    said = "measured in 3 s; " + "other processes took up to 60 % of the ranks' cores " * 3
    cell = f"""
from lab.launch.status import Display
with Display() as display:
    display.print({said!r})
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    (executed,) = NotebookClient(notebook).execute().cells
    shown = [output.data for output in executed.outputs if output.output_type == "display_data"]
    assert {"text/plain": said} in shown


def test_batches_of_an_evaluation_are_counted_against_their_own_number() -> None:
    console = Console(width=120)
    with console.capture() as shown:
        console.print(_view([TaskState(TASK, "running", "evaluating", 278, steps=500)]))
    assert "evaluating 278/500" in shown.get()


def test_why_jobs_wait_is_shown() -> None:
    waiting = [TaskState(TASK, "pending", reason=why) for why in ("Priority", "", "Priority")]
    console = Console(width=120)
    with console.capture() as shown:
        console.print(_view([*waiting, TaskState(TASK, "running", reason="no matter")]))
    assert "3 pending" in shown.get() and "Priority" in shown.get()
    assert "no matter" not in shown.get()


def test_the_time_left_is_that_of_equal_runs_else_of_all() -> None:
    other = Task(run(2), 0)
    states = [
        *(TaskState(TASK, "completed", seconds=seconds) for seconds in (10.0, 20.0, 60.0)),
        TaskState(TASK, "waiting"),
        TaskState(other, "waiting"),
        TaskState(TASK, "running", seconds=5.0),
    ]
    assert time_left(states) == 20 + 20 + 15
    assert time_left(states[3:]) is None


def test_a_run_that_waits_has_all_of_its_time_left_and_one_over_time_has_no_estimate() -> None:
    done = TaskState(TASK, "completed", seconds=20.0)
    waiting = TaskState(Task(run(), 1), "running", WAITING, seconds=90.0)
    assert time_left([done, waiting]) == 20
    console = Console(width=120)
    with console.capture() as shown:
        console.print(_view([done, waiting]))
        console.print(_view([done, replace(waiting, phase="measuring", step=5, steps=9)]))
    first, second = shown.get().split("measuring")[0], shown.get()
    assert WAITING in first and "0/1" not in first and "20 s left" in first
    assert second.count(" left") == 1


def test_before_a_run_has_completed_the_time_left_follows_the_pace() -> None:
    steps = TASK.run.steps
    begun = TaskState(TASK, "running", "warm-up", steps // 2, seconds=6.0, steps=steps)
    whole = 6.0 * steps / (steps // 2)
    assert time_left([begun, TaskState(TASK, "waiting")]) == pytest.approx(2 * whole - 6.0)
    assert time_left([replace(begun, phase="comparing", step=1)]) is None
    assert time_left([replace(begun, step=0)]) is None


def test_who_watches_sees_what_another_process_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = study(tmp_path, [run()], repeats=1)
    assert [state.state for state in status.watch(made)] == ["waiting"]  # nobody works on it
    monkeypatch.setattr(status, "WATCH_S", 0.01)
    made.out.mkdir()
    held, measured = threading.Event(), threading.Event()

    def drive() -> None:
        with FileLock(made.out / "driver.lock"):
            held.set()
            measured.wait()
            write_record(record(run()), Store(made.out).folder(made.tasks[0]))

    driver = threading.Thread(target=drive)
    driver.start()
    held.wait()
    sleep = time.sleep

    def look_again(_: float) -> None:
        measured.set()
        sleep(0.01)

    monkeypatch.setattr(status.time, "sleep", look_again)
    assert [state.state for state in status.watch(made)] == ["completed"]
    driver.join()
    assert "completed in 60 s" in capsys.readouterr().out


def job_of(study: Study, run: Run) -> subprocess.Popen[bytes]:
    """A process that stands for the job of a run, with the files by which it is known."""
    folder = Store(study.out).folder(Task(run, 0))
    prepare(folder)
    job = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    since = began(job.pid)
    local = LocalJob(
        cluster="local",
        job_id=str(job.pid),
        pid=job.pid,
        began=since,
        submitted_at=time.time(),
        task=(run.model_dump_json(), 0),
    )
    write_job(folder, local)
    return job


def ended_job(study: Study) -> Path:
    """The folder of the study's first task, whose job has ended and left a damaged record."""
    folder = Store(study.out).folder(study.tasks[0])
    job = LocalJob(cluster="local", job_id="1234567", pid=1234567, began=0.0, submitted_at=0.0)
    prepare(folder)
    write_job(folder, job)
    (folder / "record.json").write_text('{"schema_version": 1, "run_id"')
    return folder


def test_the_way_on_is_that_on_the_cluster_of_the_last_jobs(tmp_path: Path) -> None:
    made = study(tmp_path, [run()], repeats=2)
    assert status.to_go_on(made) == f"`{made.command('run')}` measures what is missing"
    folders = map(Store(made.out).folder, made.tasks)
    for cluster, folder in zip(("hpc", "damaged"), folders, strict=True):
        job = LocalJob(cluster=cluster, job_id="1234567", pid=1234567, began=0.0, submitted_at=0.0)
        prepare(folder)
        write_job(folder, job)
    (folder / "job.json").write_text("{")
    assert status.to_go_on(made).startswith(f"`{made.command('run')} --cluster hpc`")


def test_why_what_was_measured_is_measured_again_is_shown(tmp_path: Path) -> None:
    damaged = study(tmp_path, [run()], repeats=1)
    folder = ended_job(damaged)
    (state,) = status.status(damaged)
    assert state.state == "waiting"
    assert state.reason.startswith(f"{folder / 'record.json'} is damaged")
    assert "measures it again" in state.reason
    (folder / "record.json").unlink()
    (state,) = status.status(damaged)
    assert "without a record" in state.reason
    write_record(record(run()), folder / "disturbed")
    (state,) = status.status(damaged)
    assert state.reason == "it was disturbed, and is measured once more"


def test_a_damaged_record_is_kept_in_the_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Jobs, "_drive", lambda jobs: None)
    damaged = study(tmp_path, [run()], repeats=1)
    folder = ended_job(damaged)
    content = (folder / "record.json").read_bytes()
    jobs = Jobs(damaged, Cluster.load("local"), damaged.tasks)
    jobs._ensure_record(folder, driver.handles([folder])[folder])
    (kept,) = folder.glob("log/*.record.json")
    assert kept.read_bytes() == content
    written = Store(damaged.out).read(damaged.tasks[0])
    assert written is not None and written.status == "failed"


def test_jobs_of_a_study_that_was_changed_meanwhile_are_shown_and_ended(tmp_path: Path) -> None:
    before, now = run(learning_rate=0.1), run(learning_rate=0.2)
    changed = study(tmp_path, [now], repeats=1)
    jobs = [job_of(changed, before), job_of(changed, now)]
    measured = run(learning_rate=0.3)  # earlier still, and done
    write_record(record(measured), Store(changed.out).folder(Task(measured, 0)))
    try:
        listed, other = status.status(changed)
        assert (listed.task.run, listed.reason) == (now, "")
        assert (other.task, other.state) == (Task(before, 0), "running")
        assert other.job_id == str(jobs[0].pid) and "its file was changed" in other.reason
        # Who drives the one form of the study does not count the other.
        assert [state.task.run for state in status.status(changed, changed.tasks)] == [now]
        assert cancel(changed) == 2
        assert all(job.wait(timeout=60) for job in jobs)
        for ended in (before, now):
            written = Store(changed.out).read(Task(ended, 0))
            assert written and written.status == "cancelled" and written.run == ended
        assert [state.task.run for state in status.status(changed)] == [now]
    finally:
        for job in jobs:
            job.kill()
            job.wait()
