"""What of a calibration is measured, and what of an earlier one is kept."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import factories
import pytest

import lab
from lab.launch import calibrate
from lab.launch.executor import JobSpec, LocalJob, write_job
from lab.launch.preflight import usable
from lab.machine import began
from lab.perfmodel.calibration import Calibration, Part, calibration_path, write_calibration


def test_strategies_that_were_not_wanted_before_are_measured_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = tmp_path / "few.yaml"
    profile.write_text("executor: local\ndevice: cpu\nrepeat_disturbed: false\n")
    here = factories.environment(
        1, hosts=[socket.gethostname()], versions={"torch": metadata.version("torch")}
    )
    first = Part(
        world_size=1,
        quick=True,
        strategies=("ddp", "single", "zero1"),
        measured_at=datetime.now(UTC),
        profile=usable(profile),
        environment=here,
    )
    stored = Calibration(cluster="few", wanted=(1,), parts=(first,))
    write_calibration(stored, calibration_path(profile))
    asked: list[Sequence[str]] = []

    def measure(_: object, world_size: int, strategies: Sequence[str]) -> Part:
        asked.append(strategies)
        return first.model_copy(update={"strategies": tuple(strategies)})

    monkeypatch.setattr(calibrate._Measuring, "measure", measure)

    def measured(*strategies: str) -> Part:
        whole = lab.calibrate(
            profile, world_sizes=[1], strategies=strategies, quick=True, progress=False
        )
        return whole.parts[0]

    assert measured("ddp") == first
    more = measured("fsdp")
    assert measured("ddp", "zero1") == more
    assert asked == [["ddp", "fsdp", "single", "zero1"]]


def test_a_job_that_ctrl_c_meets_while_it_is_submitted_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Executor:
        def choose(self, waiting: list[JobSpec], running: list[object]) -> list[JobSpec]:
            return waiting

        def submit(self, specs: list[JobSpec]) -> None:
            process = subprocess.Popen(["sleep", "600"])
            job = LocalJob(
                cluster="few",
                job_id=str(process.pid),
                pid=process.pid,
                began=began(process.pid),
                submitted_at=time.time(),
            )
            write_job(specs[0].folder, job)
            started.append(process)
            raise KeyboardInterrupt

    profile = tmp_path / "few.yaml"
    profile.write_text("executor: local\ndevice: cpu\n")
    monkeypatch.setattr(calibrate, "executor_for", lambda *_: Executor())
    with pytest.raises(calibrate.InterruptedCalibrationError):
        lab.calibrate(profile, world_sizes=[1], progress=False)
    assert started[0].wait(30) != 0
