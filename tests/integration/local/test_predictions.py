"""Predict, run, score with real ranks: what was expected is written before the runs and scored when they are measured."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from factories import calibration
from studies import StudyMaker

import lab
from lab import machine
from lab.config.study import Study
from lab.perfmodel.calibration import calibration_path, write_calibration
from lab.perfmodel.frozen import predictions, scores

pytestmark = pytest.mark.skipif(len(machine.cores()) < 2, reason="two ranks need two cores")


def test_a_study_is_predicted_before_it_runs_and_scored_after(
    make_study: StudyMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    profile = tmp_path / "two.yaml"
    profile.write_text("executor: local\ndevice: cpu\ndevices: 2\nrepeat_disturbed: false\n")
    calibration_path(profile).parent.mkdir()
    write_calibration(calibration(2), calibration_path(profile))
    study = Study.load(make_study(grid={"global_batch_size": [4], "world_size": [2, 1]}))
    alone, pair = sorted(
        lab.launch(study, str(profile)).wait(progress=False),
        key=lambda record: record.run.world_size,
    )
    assert alone.completed and alone.gradients and pair.completed and pair.gradients is None
    ready = [gradient.ready for gradient in alone.gradients]
    assert ready == sorted(ready) and 0 <= ready[0] < ready[-1] <= 1
    assert sum(gradient.bytes for gradient in alone.gradients) == alone.memory.parameters
    (frozen,) = predictions(study)
    assert (
        datetime.fromisoformat(alone.finished_at)
        < frozen.frozen_at
        < datetime.fromisoformat(pair.started_at)
    )
    (score,) = scores(study)
    assert score.frozen == frozen and score.measured_s == pair.timing.step.median
    assert score.memory_error is not None and abs(score.memory_error) < 0.1
    expectations = lab.predict(study, str(profile), world_sizes=[1, 2, 4])
    assert [expected.forecast.prediction is not None for expected in expectations.of] == [True] * 3
    assert expectations.of[1].score == score and expectations.error == pytest.approx(
        abs(score.error)
    )
