"""Jobs that begin with torch loaded: forks with a job's own environment, and none where they must not be."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from studies import SMALL_STUDY, StudyMaker

import lab
from lab.config.study import Study
from lab.launch import fork_server, local
from lab.records.store import Record, Store

PROFILE = "executor: local\ndevice: cpu\ndevices: 2\n"


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "here.yaml"
    path.write_text(PROFILE)
    return path


@pytest.fixture
def study(make_study: StudyMaker) -> Study:
    base = SMALL_STUDY["base"] | {"strategy": "ddp"}
    return Study.load(
        make_study(
            base=base,
            grid={"global_batch_size": [4], "world_size": [2]},
            baseline={"world_size": 2},
            scaling="none",
        )
    )


def measured(study: Study, profile: Path) -> tuple[Record, bool]:
    """The record of a study's one task, and whether its job was a fork of the server."""
    forks: list[int | None] = []
    start = fork_server.start

    def noted(*arguments: Any, **options: Any) -> int | None:
        forks.append(start(*arguments, **options))
        return forks[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_server, "start", noted)
        jobs = lab.launch(study, str(profile))
        (record,) = jobs.wait(progress=False)
    assert record.completed, record.error
    job = json.loads((Store(study.out).folder(study.tasks[0]) / "job.json").read_text())
    while psutil.pid_exists(job["pid"]):  # it ends after its record is written
        time.sleep(0.05)
    return record, job["pid"] in forks


def server() -> fork_server.ForkServer | None:
    """The one of this process's jobs."""
    return fork_server._servers.get(local.LOADED, (None, None))[1]


def test_forked_ranks_learn_what_others_learn_whatever_ends_the_server(
    study: Study, profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAB_PRELOAD", raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    record, forked = measured(study, profile)
    assert forked
    first = server()
    assert first is not None
    first._process.kill()
    first._process.wait()
    study.out.rename(study.out.with_name("first"))
    again, forked = measured(study, profile)
    assert forked and server() is not first
    study.out.rename(study.out.with_name("second"))
    monkeypatch.setenv("LAB_PRELOAD", "0")
    alone, forked = measured(study, profile)
    assert not forked
    losses = {tuple(one.quality.loss) for one in (record, again, alone) if one.quality}
    assert len(losses) == 1


def test_a_job_gets_the_environment_that_its_driver_has_by_then(
    study: Study, profile: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("LAB_PRELOAD", raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    measured(study, profile)
    study.out.rename(study.out.with_name("first"))
    monkeypatch.setenv("LAB_CACHE", str(tmp_path / "elsewhere"))
    assert measured(study, profile)[1]
    assert list((tmp_path / "elsewhere").rglob("tokenizer.json"))
