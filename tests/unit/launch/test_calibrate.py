"""What of a calibration is measured, and what of an earlier one is kept."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import factories
import pytest

import lab
from lab.launch import calibrate
from lab.launch.preflight import usable
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
