"""A profile's budget: refused before anything is submitted, and exceeded with --yes alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from studies import SMALL_STUDY, StudyMaker

from lab.config.study import Study
from lab.launch.plan import spent


def test_a_study_beyond_the_budget_runs_with_yes_alone(
    make_study: StudyMaker, tmp_path: Path
) -> None:
    study = make_study(grid={"global_batch_size": [4], "world_size": [1]})
    profile = tmp_path / "small.yaml"
    profile.write_text(
        "executor: local\ndevice: cpu\ntime_limit_min: 60\nbudget: {core_hours: 0.5}\n"
    )
    assert SMALL_STUDY["repeats"] == 1

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "lab", "run", str(study), "--cluster", str(profile)]
        return subprocess.run([*command, *words], capture_output=True, text=True, check=False)

    refused = run()
    assert refused.returncode == 2 and "0.500 core-hours" in refused.stderr, refused.stderr
    assert "1 job of unknown length" in refused.stderr and "--yes" in refused.stderr
    assert not list(study.glob("out/runs/*"))
    assert run("--detach").returncode == 2
    assert run("--yes").returncode == 0
    hours = spent(Study.load(study))
    assert hours.jobs == 1 and 0 < hours.core < 0.5
    assert "spent" in (study / "out" / "report.html").read_text()
    assert run().returncode == 0  # nothing is missing
