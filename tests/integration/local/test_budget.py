"""A profile's budget: refused before anything is submitted, and exceeded with --yes alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from studies import SMALL_STUDY, StudyMaker

from lab import cli
from lab.config.study import Study
from lab.launch.plan import spent


def test_a_study_beyond_the_budget_runs_with_yes_alone(
    make_study: StudyMaker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study = make_study(grid={"global_batch_size": [4], "world_size": [1]})
    profile = tmp_path / "small.yaml"
    profile.write_text(
        "executor: local\ndevice: cpu\ntime_limit_min: 60\nbudget: {core_hours: 0.5}\n"
    )
    assert SMALL_STUDY["repeats"] == 1

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(
            sys, "argv", ["lab", "run", str(study), "--cluster", str(profile), *words]
        )
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), capsys.readouterr().err

    status, refused = run()
    assert status == 2 and "0.500 core-hours" in refused, refused
    assert "1 job of unknown length" in refused and "--yes" in refused
    assert not list(study.glob("out/runs/*"))
    assert run("--detach")[0] == 2
    assert run("--yes")[0] == 0
    hours = spent(Study.load(study))
    assert hours.jobs == 1 and 0 < hours.core < 0.5
    assert "spent" in (study / "out" / "report.html").read_text()
    assert run()[0] == 0  # nothing is missing
