"""What of a study can go: no record, no series of a repeat that counts, nothing while jobs run."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from factories import record
from filelock import FileLock
from studies import StudyMaker
from typer.testing import CliRunner

import lab
from lab import cli
from lab.config.study import Study, Task
from lab.errors import LabError
from lab.launch.executor import LocalJob, write_job
from lab.machine import began
from lab.records.store import Store, write_record

KEPT = [
    *("runs/A/0/record.json", "runs/A/0/steps.parquet", "runs/A/0/checkpoint/final/model"),
    *("runs/B/0/record.json", "runs/B/0/log/why.out", "runs/A/0/log/20260101.record.json"),
    *("report.html", "predictions/a.json", "replaced/t/A/0/record.json"),
]
GONE = [
    *("replaced/t/A/0/steps.parquet", "runs/A/0/log/0_log.out", "runs/B/0/checkpoint/0004/model"),
    *("runs/A/0/run.ipynb", "runs/B/0/run.partial.ipynb", "artifacts/tables/a.csv"),
    *("code/0123456789ab/lab/cli.py", "code/.building-x/lab/cli.py"),
]


@pytest.fixture
def used(make_study: StudyMaker, tmp_path: Path) -> Study:
    """A study of which A is completed and B failed, with something of every kind."""
    study = Study.load(make_study())
    store = Store(study.out)
    for task, status in zip(study.tasks, ("completed", "failed"), strict=True):
        write_record(record(task.run, status=status), store.folder(task))  # type: ignore[arg-type]
    for name in [*KEPT, *GONE]:
        path = place(study, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text("12345")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "a").touch()
    (study.out / "artifacts" / "link").symlink_to(tmp_path / "precious")
    return study


def place(study: Study, name: str) -> Path:
    for letter, task in zip("AB", study.tasks, strict=True):
        name = name.replace(f"/{letter}/", f"/{task.run.id}/")
    return study.out / name


def test_a_file_that_vanishes_while_a_job_runs_is_not_listed(
    used: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, walk = lab.clean(used), os.walk

    def late(folder: Path) -> list[tuple[str, list[str], list[str]]]:
        return [(place, names, [*files, ".gone.0123"]) for place, names, files in walk(folder)]

    monkeypatch.setattr(os, "walk", late)
    assert lab.clean(used) == before


def test_what_can_go_is_shown_and_then_goes(used: Study, tmp_path: Path) -> None:
    parts = lab.clean(used)
    assert all(place(used, name).exists() for name in [*KEPT, *GONE])
    assert sum(part.files for part in parts if part.again) == len(GONE)
    assert sum(part.bytes for part in parts if part.again) == 5 * len(GONE)
    assert lab.clean(used, remove=True)[:-1] == parts[:-1]
    assert not [name for name in GONE if place(used, name).exists()]
    assert not [name for name in KEPT if not place(used, name).exists()]
    assert (tmp_path / "precious" / "a").exists()
    (kept,) = lab.clean(used)
    assert kept.what == "what stays" and not kept.again
    result = CliRunner().invoke(cli.app, ["clean", str(used.folder)])
    assert result.exit_code == 0 and result.stdout.endswith("\nnothing can be removed\n")
    shutil.rmtree(used.out)
    result = CliRunner().invoke(cli.app, ["clean", str(used.folder)])
    assert result.exit_code == 0 and result.stdout == "nothing can be removed\n"


def test_nothing_goes_while_a_job_or_a_driver_is_at_work(used: Study) -> None:
    with FileLock(used.out / "driver.lock"), pytest.raises(LabError, match="a driver is working"):
        lab.clean(used, remove=True)
    job = LocalJob(
        cluster="local",
        job_id=str(os.getpid()),
        pid=os.getpid(),
        began=began(os.getpid()),
        submitted_at=time.time(),
    )
    other_form = Task(used.tasks[1].run, repeat=7)
    for task in (used.tasks[1], other_form):
        write_job(Store(used.out).folder(task), job)
        with pytest.raises(LabError, match="one of its jobs has not ended"):
            lab.clean(used, remove=True)
        (Store(used.out).folder(task) / "job.json").unlink()
    assert all(place(used, name).exists() for name in GONE)


def test_a_study_without_results_has_nothing(make_study: StudyMaker) -> None:
    assert lab.clean(Study.load(make_study())) == []
