"""What earlier versions wrote is still read, through the public surface alone."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import lab

FIXTURES = Path(__file__).parents[2] / "fixtures"
ROOT = FIXTURES.parents[1]
OLD = FIXTURES / "old_records"
EXPECTED: dict[str, dict[str, Any]] = json.loads((OLD / "expected.json").read_text())
IDS: dict[str, Any] = json.loads((FIXTURES / "run_ids.json").read_text())
PROFILES: dict[str, Any] = json.loads((FIXTURES / "profiles.json").read_text())
RECORDS = sorted(path.relative_to(OLD) for path in OLD.rglob("record.json"))
CALIBRATIONS = sorted((OLD / "slurm" / "calibration").glob("*.json"))
CLUSTERS = {"emulated": "link", "published": "table", "queue": "site"}


def changes(old: Any, new: Any, where: str = "") -> list[str]:
    """What of the old JSON is missing or different in the new; additions do not count."""
    if isinstance(old, dict) and isinstance(new, dict):
        lost = [f"{where}.{key}: missing" for key in old if key not in new]
        both = [key for key in old if key in new]
        return lost + [
            line for key in both for line in changes(old[key], new[key], f"{where}.{key}")
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [line for index, pair in pairs for line in changes(*pair, f"{where}[{index}]")]
    return [] if old == new and type(old) is type(new) else [f"{where}: {old!r} became {new!r}"]


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The old studies, profiles and calibrations in a working directory of their own."""
    folder = tmp_path_factory.mktemp("old")
    for path in (path for path in OLD.rglob("*") if path.is_file() and path.suffix != ".py"):
        target = folder / path.relative_to(OLD)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LAB_CACHE", str(folder / "cache"))
        yield folder


def cluster_of(name: str) -> str:
    """The profile of an old study's measurements; skips where this machine cannot emulate it."""
    cluster = CLUSTERS.get(name, "node")
    try:
        lab.Cluster.load(cluster)
    except lab.InputError as error:
        if [problem.where for problem in error.problems] != ["link"]:
            raise
        pytest.skip(str(error))
    return cluster


@pytest.mark.parametrize("path", RECORDS, ids=str)
def test_every_record_is_read_whole(path: Path) -> None:
    content = (OLD / path).read_text()
    record = lab.Record.model_validate_json(content)
    assert changes(json.loads(content), record.model_dump(mode="json")) == []
    folder = [part for part in path.parts[:-1] if part != "disturbed"]
    assert [record.run.id, str(record.repeat)] == [record.run_id, folder[-1]] == folder[-2:]


@pytest.mark.parametrize("name", EXPECTED)
def test_every_study_finds_its_records(name: str) -> None:
    study = lab.Study.load(name)
    records = lab.load_records(study)
    assert [record.task for record in records] == study.tasks
    assert sorted(lab.load_records(name), key=repr) == sorted(records, key=repr)


def test_numbers_of_a_record() -> None:
    record = next(one for one in lab.load_records("training") if one.run_id == "7c61c5dfb6")
    assert (record.run.world_size, record.run.global_batch_size, record.repeat) == (2, 8, 0)
    assert record.timing is not None and record.timing.step.median == 0.00387884299993857
    assert record.communication is not None and record.communication.bytes == 144384
    assert record.quality is not None and record.quality.validation_loss == 5.253179550170898
    assert record.environment is not None and record.environment.hosts == ["node01", "node01"]
    assert record.disturbed == 1.7312094213132556


def test_ends_of_runs_are_told_apart() -> None:
    records = [record for name in ("training", "queue") for record in lab.load_records(name)]
    ends = {(record.status, record.error.type) for record in records if record.error}
    assert ends == {("failed", "RankLost"), ("timeout", "Hang"), ("cancelled", "Cancelled")}


def test_the_states_of_tasks_are_those_of_their_records() -> None:
    states = lab.status(lab.Study.load("training"))
    done = 4 * ["completed"]
    assert [state.state for state in states] == [*done, "failed", *done, "timeout"]
    assert states[4].reason == "rank 1 ended without an error of its own: killed from outside?"


@pytest.mark.parametrize("name", EXPECTED)
def test_the_table_has_its_columns_and_values(name: str) -> None:
    table, columns = lab.table(lab.Study.load(name)), EXPECTED[name]["columns"]
    assert [column for column in table.columns if column in columns] == columns
    rows = json.loads(table[columns].to_json(orient="values", double_precision=15))
    assert changes(EXPECTED[name]["rows"], rows) == []


@pytest.mark.parametrize("name", EXPECTED)
def test_nothing_that_is_measured_is_due(name: str) -> None:
    cluster, study = cluster_of(name), lab.Study.load(name)
    measured = {record.task for record in lab.load_records(study) if record.completed}
    counts = {run.id: sum(task.run == run for task in measured) for run in study.runs}
    rows = lab.plan(study, cluster)
    assert {row["run"]: row["measured"] for row in rows} == {
        run_id: f"{count}/{study.repeats}" for run_id, count in counts.items()
    }
    jobs = lab.launch(study, cluster, tasks=[task for task in study.tasks if task in measured])
    assert jobs.done and all(record.completed for record in jobs.wait(progress=False))


def test_the_command_says_that_all_is_measured(place: Path) -> None:
    command = [sys.executable, "-m", "lab", "plan", "strategies", "--cluster", "node", "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    answer = subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, check=True
    )
    rows = json.loads(answer.stdout)
    assert [row["run"] for row in rows] == [run.id for run in lab.Study.load("strategies").runs]
    assert {row["measured"] for row in rows} == {"1/1"}


@pytest.mark.parametrize("name", ["training", "inference", "published"])
def test_the_audit_finds_the_same(name: str) -> None:
    study = lab.Study.load(name)
    audit = lab.audit(study)
    findings = {(finding.rule, finding.severity) for finding in audit.findings}
    expected = set(map(tuple, EXPECTED[name]["findings"]))
    # Records quote nothing, and their batches and ranks are checked when a study is read.
    unchecked = {*EXPECTED[name]["not checked"], "parallel-consistent", "quoted-against-own"}
    if not any(record.timing and record.timing.mfu for record in lab.load_records(study)):
        unchecked |= {"mfu-consistent", "impossible-mfu"}
    if name == "published":
        # A published row has no parts that could add up, and does not say what it is the mean of.
        expected = expected - {("phases-close", "warning"), ("repeats", "warning")}
        expected, unchecked = expected | {("repeats", "note")}, unchecked | {"phases-close"}
    assert findings == expected
    assert {rule.rule for rule in audit.not_checked} == unchecked


@pytest.mark.parametrize("name", EXPECTED)
def test_predictions_are_scored_as_they_were_frozen(name: str) -> None:
    content = lab.predict(lab.Study.load(name), cluster_of(name)).content()
    scores = {run["run_id"]: run["score"] for run in content["runs"] if run["score"]}
    assert changes(EXPECTED[name]["scores"], scores) == []
    predicted = [run["run_id"] for run in content["runs"] if run["step_s"] is not None]
    assert predicted == EXPECTED[name]["predicted"]


def test_predictions_that_were_frozen_count() -> None:
    errors = [score["error"] for score in EXPECTED["training"]["scores"].values()]
    expected = sum(map(abs, errors)) / len(errors)
    error = lab.predict(lab.Study.load("training"), "node").error
    assert error is not None and math.isclose(error, expected)


@pytest.mark.parametrize("path", CALIBRATIONS, ids=lambda path: path.stem)
def test_calibrations_are_read_whole(path: Path) -> None:
    calibration = lab.calibration.load_calibration(path.stem)
    assert calibration is not None
    assert {part.world_size for part in calibration.parts} == set(calibration.wanted)
    assert changes(json.loads(path.read_text()), calibration.model_dump(mode="json")) == []
    measured = next(row for row in calibration.rows if row.collective == "all_reduce")
    assert calibration.time("all_reduce", 2, measured.bytes) == pytest.approx(measured.seconds)


@pytest.mark.parametrize("name", ["speedup", "step_timeline"])
def test_figures_draw_them(name: str) -> None:
    axes = getattr(lab.figures, name)("training")
    assert axes.get_lines() or axes.patches or axes.collections


def test_figures_draw_inference() -> None:
    axes = lab.figures.latency_throughput("inference")
    assert axes.get_lines() or axes.collections


@pytest.mark.slow  # it loads torch
def test_a_kept_model_writes_the_same_text() -> None:
    texts = lab.generate(lab.Study.load("kept"), prompts=["def "], new_tokens=16)
    assert texts == EXPECTED["kept"]["texts"]


@pytest.mark.parametrize("folder", IDS["studies"])
def test_runs_of_shipped_studies_keep_their_ids(folder: str) -> None:
    forms = IDS["studies"][folder]
    assert [run.id for run in lab.Study.load(ROOT / folder).runs] == forms["full"]
    if forms["quick"]:
        assert [run.id for run in lab.Study.load(ROOT / folder, quick=True).runs] == forms["quick"]


@pytest.mark.parametrize("group", ["presets", "settings"])
def test_runs_keep_their_ids(group: str) -> None:
    renamed = [entry for entry in IDS[group] if lab.Run(**entry["run"]).id != entry["id"]]
    assert renamed == []


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_are_read_as_before(name: str) -> None:
    """Calibrations and queued jobs hold a dumped profile: it must be read, and be the same."""
    path = ROOT / "slurm" / f"{name}.yaml"
    before = lab.Cluster.model_validate(PROFILES[name])
    try:
        profile = lab.Cluster.load(path)
    except lab.InputError as error:  # this machine cannot emulate its link, or has too few cores
        assert {problem.where for problem in error.problems} <= {"link", "devices"}
        profile = lab.Cluster.model_validate(yaml.safe_load(path.read_text()) | {"name": name})
    assert before == profile
    assert changes(PROFILES[name], profile.model_dump(mode="json")) == []
