"""Whole studies with real processes: the same records whatever is killed in between, and failures with their causes."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from faults import Faults, await_steps
from studies import LONG, SMALL_STUDY, StudyMaker

import lab
from lab.analysis.results import StudyResults
from lab.config.study import Study
from lab.machine import is_running
from lab.records.store import Store, read_record
from lab.report import sections

PROFILE = "executor: local\ndevice: cpu\ndevices: 2\nhang_timeout_s: 10\n"


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A profile with a short hang time-out, and a device lock of this test's own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    path = tmp_path / "small.yaml"
    path.write_text(PROFILE)
    return path


def command(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "lab", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def driver(study: Path, profile: Path) -> subprocess.Popen[str]:
    """Only measures, and makes no report, so that many can be started in short time."""
    code = f"import lab; lab.launch(lab.Study.load({str(study)!r}), {str(profile)!r}).wait()"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


# Takes all it gets of one core.
HOG = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


def contents(study: Study) -> dict[str, tuple[str, int]]:
    """Each record's job and time of writing, by task."""
    timestamps = {}
    for task in study.tasks:
        path = Store(study.out).folder(task) / "record.json"
        record = read_record(path)
        if record is not None:
            assert record.completed, record.error
            timestamps[f"{task.run.id}/{task.repeat}"] = (
                record.finished_at,
                path.stat().st_mtime_ns,
            )
    return timestamps


def test_driver_killed_at_twenty_random_moments_loses_nothing(
    make_study: StudyMaker, profile: Path
) -> None:
    folder = make_study(repeats=3)
    study = Study.load(folder)
    moments = random.Random(20)
    earlier_timestamps: dict[str, tuple[str, int]] = {}
    for _ in range(20):
        process = driver(folder, profile)
        time.sleep(moments.uniform(0.2, 4.0))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        now = contents(study)
        assert earlier_timestamps.items() <= now.items(), "a record was lost or written again"
        earlier_timestamps = now
    last = driver(folder, profile)
    output, _ = last.communicate(timeout=600)
    assert last.returncode == 0, output
    complete = contents(study)
    assert earlier_timestamps.items() <= complete.items() and len(complete) == len(study.tasks)
    again = driver(folder, profile)
    again.communicate(timeout=300)
    assert contents(study) == complete
    records = {(record.run_id, record.repeat) for record in lab.load_records(folder)}
    assert records == {(task.run.id, task.repeat) for task in study.tasks}


def test_deleting_one_record_runs_exactly_that_one_again(
    make_study: StudyMaker, profile: Path
) -> None:
    study = Study.load(make_study())
    lab.launch(study, str(profile)).wait(progress=False)
    before = contents(study)
    victim = study.tasks[1]
    (Store(study.out).folder(victim) / "record.json").unlink()
    lab.launch(study, str(profile)).wait(progress=False)
    after = contents(study)
    assert {task for task in before if before[task] != after[task]} == {
        f"{victim.run.id}/{victim.repeat}"
    }


def ranks_of(study: Study, rank: int) -> list[psutil.Process]:
    """The live processes of one rank of the study's running job."""
    processes = []
    for path in study.out.glob(f"runs/*/*/log/*.rank{rank}.pid"):
        content = json.loads(path.read_text())
        if is_running(content["pid"], content["began"]) and not list(
            path.parent.parent.glob("record.json")
        ):
            processes.append(psutil.Process(content["pid"]))
    return processes


def wait_until_measuring(study: Study) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        for path in study.out.glob("runs/*/*/progress.json"):
            if (
                not (path.parent / "record.json").exists()
                and json.loads(path.read_text())["step"] > 2
            ):
                return
        time.sleep(0.05)
    raise AssertionError("the run never came to its steps")


def endless(make_study: StudyMaker) -> Study:
    """A run on two ranks that would take hours, so that it can be disturbed while it measures, and one that is short."""
    base = {key: value for key, value in LONG.items() if key != "steps"} | {"world_size": 2}
    folder = make_study(
        base=base, grid={"steps": [5_000_000, 4]}, baseline={"world_size": 2}, scaling="none"
    )
    return Study.load(folder)


@pytest.mark.parametrize(
    ("rank", "number", "status", "kind"),
    [
        (1, signal.SIGKILL, "failed", "RankLost"),
        (0, signal.SIGKILL, "failed", "RankLost"),
        (1, signal.SIGSTOP, "timeout", "Hang"),
    ],
    ids=["rank 1 killed", "rank 0 killed", "rank 1 hangs"],
)
def test_lost_rank_ends_its_run_with_the_cause_and_the_study_goes_on(
    make_study: StudyMaker, profile: Path, rank: int, number: int, status: str, kind: str
) -> None:
    study = endless(make_study)
    jobs = lab.launch(study, str(profile))
    wait_until_measuring(study)
    for process in ranks_of(study, rank):
        process.send_signal(number)
    disturbed, short = jobs.wait(progress=False)
    assert (
        disturbed.status,
        disturbed.error and disturbed.error.type,
        disturbed.error and disturbed.error.rank,
    ) == (
        status,
        kind,
        rank,
    )
    assert short.completed
    assert not ranks_of(study, 0) and not ranks_of(study, 1)


def test_exception_on_one_rank_is_the_cause(
    make_study: StudyMaker, profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 alone raises, in the optimizer of its fourth step, by a patch that Python loads at the start of the rank."""
    patch = tmp_path / "patch"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if os.environ.get('SUBMITIT_LOCAL_GLOBALID') == '1':\n"
        "    import torch\n"
        "    plain, calls = torch.optim.AdamW.step, []\n"
        "    def step(self, *args, **kwargs):\n"
        "        calls.append(0)\n"
        "        if len(calls) == 4:\n"
        "            raise ValueError('planted')\n"
        "        return plain(self, *args, **kwargs)\n"
        "    torch.optim.AdamW.step = step\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(patch))
    study = endless(make_study)
    failed, *_ = lab.launch(study, str(profile), tasks=study.tasks[:1]).wait(progress=False)
    assert failed.status == "failed" and failed.error is not None
    assert (failed.error.type, failed.error.message, failed.error.rank) == (
        "ValueError",
        "planted",
        1,
    )
    assert "in step" in failed.error.traceback


@pytest.mark.parametrize("times", [1, 2, 50])
def test_ctrl_c_ends_the_job_and_keeps_what_is_measured(
    make_study: StudyMaker, profile: Path, times: int
) -> None:
    study = endless(make_study)
    process = command("run", study.folder, "--cluster", profile)
    wait_until_measuring(study)
    for _ in range(times):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.001)  # no press waits for what the one before it began
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130 and "Traceback" not in errors
    # A late press may come before the longer message.
    assert ("start it again to go on from there" if times == 1 else "lab: interrupted") in errors
    assert not ranks_of(study, 0) and not ranks_of(study, 1)
    assert lab.load_records(study) == []
    state, *_ = lab.status(study)
    ended = "the job ended without a record: interrupted or killed?"
    assert (state.state, state.reason) == ("waiting", ended)


def test_a_study_that_is_edited_while_it_runs_keeps_its_records(
    make_study: StudyMaker, profile: Path
) -> None:
    folder = make_study()
    study, path = Study.load(folder), folder / "study.yaml"
    process = command("run", folder, "--cluster", profile)
    while not any(study.out.glob("runs/*/*/job.json")) and process.poll() is None:
        time.sleep(0.05)
    path.write_text(path.read_text().replace("steps: 4", "steps: 5"))
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 1 and "small was changed while it was measured" in errors
    assert len(contents(study)) == len(study.tasks)


def test_two_drivers_share_a_study(make_study: StudyMaker, profile: Path) -> None:
    folder = make_study(repeats=2)
    drivers = [driver(folder, profile) for _ in range(2)]
    for process in drivers:
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output
    study = Study.load(folder)
    assert len(contents(study)) == len(study.tasks)
    jobs_of = [list(Store(study.out).folder(task).glob("log/*_0_log.out")) for task in study.tasks]
    assert all(len(jobs) == 1 for jobs in jobs_of)


FULL = (
    "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); raise ValueError('planted')"
)
JUMP = "import time; true = time.time; time.time = lambda: true() - 7200.0"


def test_clock_set_back_while_a_run_measures_and_disk_full_for_another(
    make_study: StudyMaker, profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs on two ranks, one after the other; the driver's clock jumps as well."""
    faults = Faults.planted(tmp_path / "faults", monkeypatch, pace=0.05)
    study = Study.load(
        make_study(
            base=LONG | {"world_size": 2, "steps": 120},
            grid={"seed": [0, 1]},
            baseline={"world_size": 2},
            scaling="none",
        )
    )
    jumped, full = study.tasks
    jobs = lab.launch(study, str(profile))
    await_steps(study, jumped)
    for rank in (0, 1):
        faults.order(study, jumped, JUMP, rank=rank)
    true = time.time
    monkeypatch.setattr(time, "time", lambda: true() - 7200.0)
    await_steps(study, full)
    faults.order(study, full, FULL, rank=0)
    first, second = jobs.wait(progress=False)
    assert (
        first.completed
        and first.timing is not None
        and 0 < first.timing.setup_time < 600
        and first.checks["phases_close"]
    )
    assert second.status == "failed" and second.error is not None
    assert (second.error.type, second.error.rank) in {
        ("ValueError", 0),
        ("JobLost", 0),
        ("RankLost", 0),
    }, second.error
    again = lab.launch(study, str(profile)).wait(progress=False)
    assert [record.status for record in again] == ["completed", "completed"] and again[0] == first


def test_a_disturbed_repeat_is_measured_once_more_and_the_quieter_attempt_counts(
    make_study: StudyMaker, profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAB_REPEAT_DISTURBED", raising=False)
    study = Study.load(
        make_study(
            # Long enough for the system's clock ticks of 10 ms to tell whose time it was.
            base=SMALL_STUDY["base"] | {"steps": 200},
            grid={"global_batch_size": [4], "world_size": [2]},
            baseline={"world_size": 2},
            scaling="none",
        )
    )
    profile.write_text(PROFILE + "repeat_disturbed: true\n")
    hogs = [
        subprocess.Popen([sys.executable, "-c", HOG, str(core)])
        for core in os.sched_getaffinity(0)
        for _ in range(2)
    ]
    try:
        (record,) = lab.launch(study, str(profile)).wait(progress=False)
        folder = Store(study.out).folder(study.tasks[0])
        louder = Store(study.out).set_aside(study.tasks[0])
        assert louder is not None and louder.environment is not None and record.environment
        assert louder.environment.disturbed and louder.finished_at != record.finished_at
        assert record.disturbed == louder.environment.foreign_cpu
        assert (record.environment.foreign_share or 0) <= (louder.environment.foreign_share or 0)
        assert (folder / "disturbed" / "steps.parquet").exists() and (
            folder / "steps.parquet"
        ).exists()
        (again,) = lab.launch(study, str(profile)).wait(progress=False)
    finally:
        for hog in hogs:
            hog.kill()
    assert again == record, "it is repeated once, however disturbed"
    (third,) = lab.launch(study, str(profile), repeat_disturbed=True).wait(progress=False)
    other = Store(study.out).set_aside(study.tasks[0])
    assert other is not None and (third.foreign_share or 0) <= (other.foreign_share or 0)
    assert record in (third.model_copy(update={"disturbed": record.disturbed}), other)
    (earlier,) = study.out.glob("replaced/*/*/0/record.json")
    assert read_record(earlier) == louder, "what was set aside before is kept"


def test_with_other_processes_on_one_of_two_cores_nothing_is_concluded(
    make_study: StudyMaker, profile: Path
) -> None:
    study = Study.load(make_study(base=SMALL_STUDY["base"] | {"steps": 120}, repeats=3))
    alone = [task for task in study.tasks if task.run.world_size == 1]
    lab.launch(study, str(profile), tasks=alone).wait(progress=False)
    core = lab.Cluster.load(profile).cores_of(1)[0]  # that of the second rank
    # A session each: Linux shares a core among sessions, and a rank that often sleeps could take
    # most of it from a single one.
    words = [sys.executable, "-c", HOG, str(core)]
    hogs = [subprocess.Popen(words, start_new_session=True) for _ in range(3)]
    try:
        lab.launch(study, str(profile)).wait(progress=False)
    finally:
        for hog in hogs:
            hog.kill()
    results = StudyResults(study)
    two = next(run for run in study.runs if run.world_size == 2)
    assert not results.noise.trustworthy([two.id])
    (taken,) = re.findall(r"other processes took at most (\d+) %", sections.strip(results).markdown)
    assert int(taken) > 10
    answer = sections.answer(results).markdown
    assert "Too noisy to explain" in answer and "faster" not in answer and "times" not in answer
    assert "x2 (repeats 0, 1, 2)" in answer.replace("\\", "")
    assert "repeat\\-disturbed measures them again" in answer
    said = sections.findings(results).markdown.splitlines()
    assert not [line for line in said if "2 CPU processes" in line], "nothing is explained by it"
