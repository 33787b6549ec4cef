"""A study's folder that others may write to: nothing of theirs is run, believed or followed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from studies import StudyMaker

import lab
from lab.config.study import Study
from lab.files import read_own
from lab.launch.attempt import Attempt
from lab.launch.executor import JobSpec, read_job
from lab.launch.work import write_work
from lab.machine import began
from lab.records import provenance
from lab.records.store import Store

NOBODY = 65534
GiveAway = Callable[[Path], None]


@pytest.fixture
def give_away() -> GiveAway:
    """Makes files another user's, who lets all read and write them."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as a second user")

    def give(path: Path) -> None:
        path.chmod(0o777 if path.is_dir() else 0o666)
        os.chown(path, NOBODY, NOBODY)

    return give


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that belongs to no study."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def job_file(folder: Path, process: subprocess.Popen[bytes], **changes: object) -> Path:
    job = {
        "executor": "local",
        "cluster": "local",
        "job_id": str(process.pid),
        "pid": process.pid,
        "began": began(process.pid),
        "submitted_at": time.time(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "job.json"
    path.write_text(json.dumps(job | changes))
    return path


def test_a_log_folder_that_another_user_prepared_starts_no_job(
    make_study: StudyMaker, give_away: GiveAway
) -> None:
    study = Study.load(make_study())
    log = Store(study.out).folder(study.tasks[0]) / "log"
    log.mkdir(parents=True)
    give_away(log)
    with pytest.raises(lab.InputError, match="it belongs to nobody; remove it"):
        lab.launch(study).wait(progress=False)
    assert not list(study.out.rglob("*.out")) and not list(log.iterdir())


def test_work_that_was_changed_after_it_was_submitted_is_not_done(tmp_path: Path) -> None:
    spec = JobSpec(tmp_path, 1, write_work, ())
    options = write_work([spec], tmp_path)
    victim = tmp_path / "victim"
    evil = {"folder": str(tmp_path), "function": ["os", "mkdir"], "arguments": [str(victim)]}
    (tmp_path / "work.json").write_text(json.dumps([evil]))
    rank = subprocess.run(
        [sys.executable, *options],
        env=os.environ | {"SUBMITIT_EXECUTOR": "local", "SUBMITIT_LOCAL_JOB_ID": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert rank.returncode == 1 and "somebody changed it" in rank.stderr
    assert not victim.exists()


def test_a_foreign_job_file_ends_no_process(
    make_study: StudyMaker, give_away: GiveAway, bystander: subprocess.Popen[bytes]
) -> None:
    study = Study.load(make_study())
    path = job_file(Store(study.out).folder(study.tasks[0]), bystander)
    assert read_job(path.parent) is not None
    give_away(path)
    with pytest.raises(lab.LabError, match=r"job\.json: owner: it belongs to nobody"):
        lab.cancel(study)
    assert "it belongs to nobody" in lab.status(study)[0].reason
    assert bystander.poll() is None


def test_a_process_of_another_machine_is_never_ended_here(
    make_study: StudyMaker, bystander: subprocess.Popen[bytes]
) -> None:
    study = Study.load(make_study())
    job_file(Store(study.out).folder(study.tasks[0]), bystander, host="another.example.org")
    assert lab.cancel(study) == 0
    assert bystander.poll() is None


def test_a_registration_that_another_user_left_is_not_believed(
    tmp_path: Path, give_away: GiveAway, bystander: subprocess.Popen[bytes]
) -> None:
    attempt = Attempt(tmp_path, "17")
    attempt.register_rank(0)
    path = attempt.path("rank0.pid")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pid": bystander.pid}))
    give_away(path)
    assert attempt.running_ranks() == []


@pytest.mark.parametrize("array", ["../../../../../elsewhere", "arrays/..", "/tmp/arrays/x"])
def test_an_array_lies_within_the_study(make_study: StudyMaker, array: str) -> None:
    study = Study.load(make_study())
    folder = Store(study.out).folder(study.tasks[0])
    folder.mkdir(parents=True)
    job = {"executor": "slurm", "cluster": "s", "array": array, "index": 0, "submitted_at": 0.0}
    (folder / "job.json").write_text(json.dumps(job))
    assert "does not describe a job" in lab.status(study)[0].reason


def test_links_and_pipes_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    assert read_own(tmp_path / "file") == b"x"
    with pytest.raises(OSError, match="symbolic"):
        read_own(tmp_path / "link")
    assert read_own(tmp_path / "pipe") == b"", "nor does it wait for a writer"


def test_a_copy_of_the_code_where_others_may_write_is_refused(
    tmp_path: Path, give_away: GiveAway
) -> None:
    out = tmp_path / "shared" / "out"
    assert provenance.keep_code(out).is_dir()
    out.chmod(0o777)
    with pytest.raises(lab.InputError, match="other users may write to it"):
        provenance.keep_code(out)
    out.chmod(0o700)
    give_away(out / "code")
    with pytest.raises(lab.InputError, match="it belongs to nobody"):
        provenance.keep_code(out)
