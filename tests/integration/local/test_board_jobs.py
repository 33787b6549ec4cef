"""The bench follows, cancels and adopts jobs, and tells how they ended."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from importlib import metadata

import factories
import pytest
from benches import choose, content, text, until
from filelock import FileLock

import lab
from lab.config.study import Study
from lab.dashboard.board import Dashboard
from lab.launch.preflight import usable
from lab.machine import began
from lab.perfmodel.calibration import Calibration, calibration_path, write_calibration
from lab.records.store import Store, write_record


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for a job's controller: it runs until it is asked to end."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def running(study: Study, process: subprocess.Popen[bytes], *, step: int = 5) -> None:
    """Leave the traces of a job that a driver has submitted."""
    folder = Store(study.out).folder(study.task())
    folder.mkdir(parents=True)
    job = {
        "executor": "local",
        "cluster": "two",
        "job_id": "1",
        "pid": process.pid,
        "began": began(process.pid),
        "submitted_at": time.time(),
    }
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "progress.json").write_text(
        json.dumps({"phase": "measuring", "step": step, "steps": study.runs[0].steps})
    )


def test_job_without_driver_is_adopted_and_can_be_cancelled(
    shown: Dashboard, child: subprocess.Popen[bytes]
) -> None:
    study = choose(shown, world_size=2)
    shown.bench.keep(study)
    running(study, child)
    again = lab.dashboard()
    again.fields["cluster"].value = "two"
    until(lambda: "step 5 of 12" in text(again.status))
    assert again.run_button.disabled and not again.cancel_button.disabled
    once_more = lab.dashboard()
    once_more.fields["cluster"].value = "two"
    assert not once_more.cancel_button.disabled, "the same process still drives it"
    once_more.cancel_button.click()
    until(
        lambda: (
            "cancelled; nothing of it is kept" in text(once_more.status)
            and not once_more.run_button.disabled
        )
    )
    assert child.wait(timeout=300) != 0
    assert lab.load_records(study) == []


def test_job_of_another_program_is_watched_to_its_end(
    shown: Dashboard, child: subprocess.Popen[bytes]
) -> None:
    study = choose(shown)
    shown.bench.keep(study)
    running(study, child)
    with FileLock(study.out / "driver.lock"):
        again = lab.dashboard()
        until(lambda: "another program drives it" in text(again.status))
        assert again.run_button.disabled and again.cancel_button.disabled
        write_record(
            factories.record(study.runs[0], step_time=0.25), Store(study.out).folder(study.task())
        )
        until(lambda: "Done" in text(again.status) and "A step takes 250" in content(again))
    again.fields["cluster"].value = "two"
    until(lambda: not again.run_button.disabled)


def test_job_that_dies_leaves_its_failure_on_the_bench(
    shown: Dashboard, child: subprocess.Popen[bytes]
) -> None:
    study = choose(shown)
    shown.bench.keep(study)
    running(study, child)
    again = lab.dashboard()
    # A job that dies before a driver has adopted it is measured again.
    until(lambda: again._jobs is not None and bool(again._jobs._driver.alive))
    child.kill()
    until(lambda: "failed" in text(again.status) and "JobLost" in content(again))
    # How long it ran is not known.
    assert text(again.status) == f"Ended: {study.runs[0].label}, failed."


def test_calibrate_measures_nothing_twice_a_day_and_nothing_at_once(shown: Dashboard) -> None:
    versions = {"torch": metadata.version("torch")}
    (part,) = factories.calibration(2).parts
    place = factories.environment(2, hosts=[socket.gethostname()], versions=versions)
    part = part.model_copy(update={"profile": usable("two"), "environment": place})
    alone = part.model_copy(update={"world_size": 1, "times": ()})
    path = calibration_path("two")
    write_calibration(Calibration(cluster="two", wanted=(1, 2), parts=(alone, part)), path)
    shown.calibrate_button.click()
    until(lambda: "Calibrated: two, world sizes 1, 2." in text(shown.status))
    until(lambda: not shown.calibrate_button.disabled)
    with FileLock(path.with_suffix(".lock")):
        shown.calibrate_button.click()
        until(lambda: "another calibration of two is running" in text(shown.status))
    until(lambda: not shown.run_button.disabled and shown.cancel_button.disabled)
    shown.fields["cluster"].value = "replay-a100"
    assert shown.calibrate_button.disabled
