"""A Slurm that gives no answer: each verb ends in time, with a sentence, and loses nothing."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from factories import record
from studies import StudyMaker

import lab
from lab.config.study import Study
from lab.errors import LabError
from lab.launch.executor import SlurmJob, prepare, write_job
from lab.launch.slurm import array, controller
from lab.launch.slurm.array import Array
from lab.launch.slurm.controller import Controller, SlurmCommandError
from lab.launch.slurm.executor import SlurmHandle
from lab.records.store import Store, write_record

Programs = Callable[..., None]
HANGS = "exec sleep 60"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Puts commands of Slurm in place, each a line of shell; those that are not named hang."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where no practice cluster lies
    for module in (array, controller):
        monkeypatch.setattr(module, "TIMEOUT_S", 0.3)
    monkeypatch.setattr(controller, "LAST_S", 0.1)
    monkeypatch.setattr(SlurmHandle, "controller", Controller())

    def put(**lines: str) -> None:
        (tmp_path / "bin").mkdir()
        for name in ("sbatch", "squeue", "sinfo", "scancel", "sacct"):
            path = tmp_path / "bin" / name
            path.write_text(f"#!/bin/sh\n{lines.get(name, HANGS)}\n")
            path.chmod(0o755)

    return put


def fails(words: str) -> str:
    return f"echo '{words}' >&2; exit 1"


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ({}, "slurm: sbatch did not answer within 0 s; can jobs be submitted"),
        (
            {"sbatch": fails("sbatch: error: Requested node configuration is not available")},
            "slurm: sinfo did not answer within 0 s",
        ),
        (
            {"sbatch": fails("sbatch: fatal: Could not establish a configuration source")},
            "SLURM_CONF is not set; set it to the slurm.conf of your cluster",
        ),
        (
            {"sbatch": fails("sbatch: error: Unable to contact slurm controller")},
            "Unable to contact slurm controller; can jobs be submitted",
        ),
    ],
    ids=["sbatch hangs", "sinfo hangs", "no configuration", "no controller"],
)
def test_nothing_is_submitted(
    make_study: StudyMaker, programs: Programs, lines: dict[str, str], sentence: str
) -> None:
    programs(**lines)
    study = Study.load(make_study())
    with pytest.raises(LabError) as caught:
        lab.launch(study, "slurm")
    assert sentence in str(caught.value) and caught.value.exit_status == 1
    assert not list(study.out.rglob("job.json"))


def test_the_practice_cluster_is_found_where_nothing_else_is(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = fails("sinfo: fatal: Could not establish a configuration source")
    programs(sinfo=f'test -z "$SLURM_CONF" || exec cat "$SLURM_CONF"; {refusal}')
    with pytest.raises(SlurmCommandError, match="SLURM_CONF is not set"):
        controller.ask("sinfo")
    folder = tmp_path / f"practice-slurm-{os.getuid()}"
    folder.mkdir()
    (folder / "slurm.conf").write_text("ClusterName=practice\n")
    monkeypatch.setenv("SLURM_CONF", "")  # so that what is set is undone
    assert controller.ask("sinfo") == "ClusterName=practice\n"
    assert os.environ["SLURM_CONF"] == str(folder / "slurm.conf")


def test_variables_that_would_hide_jobs_are_not_passed_on(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SQUEUE_PARTITION", "SACCT_FORMAT", "SCANCEL_INTERACTIVE", "SLURM_CLUSTERS"):
        monkeypatch.setenv(name, "mine")
    programs(squeue="exec /usr/bin/env")
    names = {line.partition("=")[0] for line in controller.ask("squeue").splitlines()}
    assert "SLURM_CLUSTERS" in names
    assert not [name for name in names if name.startswith(controller.LIMITING)]


def submitted(study: Study) -> None:
    """As if Slurm had taken the first job of a study."""
    folder = Store(study.out).folder(study.tasks[0])
    prepare(folder)
    jobs = Array.new(study.out / "arrays", "x1")
    (jobs.folder / "job_id").write_text("7")
    where = os.path.relpath(jobs.folder, folder)
    write_job(folder, SlurmJob(cluster="slurm", array=where, index=0, submitted_at=time.time()))


def test_what_is_submitted_is_shown_with_the_silence(
    make_study: StudyMaker, programs: Programs
) -> None:
    programs()
    study = Study.load(make_study())
    submitted(study)
    first, *others = lab.status(study)
    assert first.state == "pending" and first.reason == "squeue did not answer within 0 s"
    assert {state.state for state in others} == {"waiting"}


def test_an_sbatch_that_never_ends_is_not_waited_for_without_end(
    make_study: StudyMaker, programs: Programs
) -> None:
    programs()
    study = Study.load(make_study())
    submitted(study)
    [folder] = (study.out / "arrays").iterdir()
    (folder / "job_id").unlink()
    held = os.open(folder / "submitting", os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)  # as by an sbatch whose driver was killed
    with pytest.raises(SlurmCommandError, match=r"an earlier sbatch of lab-x1-.* has not ended"):
        Array(folder).job_id()
    os.close(held)


def test_a_cancellation_without_an_answer_ends_and_says_so(
    make_study: StudyMaker, programs: Programs
) -> None:
    programs(scancel="exit 0")
    study = Study.load(make_study())
    submitted(study)
    with pytest.raises(LabError, match="does not say whether they ended: squeue did not answer"):
        lab.cancel(study)
    assert not (study.out / "cancel").exists()


def test_what_is_measured_can_be_measured_again_elsewhere(
    make_study: StudyMaker, programs: Programs
) -> None:
    programs()
    study = Study.load(make_study())
    submitted(study)
    store = Store(study.out)
    for task in study.tasks:
        write_record(record(task.run), store.folder(task))
    jobs = lab.launch(study, "local", fresh=True)
    while not (study.out / "replaced").exists() and not jobs.done:
        time.sleep(0.02)
    jobs.cancel()
    assert (study.out / "replaced").is_dir()
    assert not (store.folder(study.tasks[0]) / "log" / "earlier").exists()
