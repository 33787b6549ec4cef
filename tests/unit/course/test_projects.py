"""The projects: points as the rubrics say, and cells that run from the claim to the tables that are swapped."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from factories import record

import lab
from lab.analysis.audit.rules import RULES
from lab.config.emulation import Emulated
from lab.course.release import LESSONS
from lab.records.store import Store, write_record

PROJECTS = LESSONS / "projects"
NAMES = ("find-the-fault", "final-project")


def cells(name: str) -> list[dict[str, Any]]:
    content = json.loads((PROJECTS / f"{name}.ipynb").read_text())
    return [cell | {"source": "".join(cell["source"])} for cell in content["cells"]]


@pytest.mark.parametrize("name", NAMES)
def test_points_are_those_of_the_text_and_of_the_rubric(name: str) -> None:
    marks = [cell["metadata"].get("nbgrader", {}) for cell in cells(name)]
    given = sum(mark.get("points", 0) for mark in marks)
    text = "\n".join(cell["source"] for cell in cells(name) if cell["cell_type"] == "markdown")
    points_in_text = sum(
        int(points) for points in re.findall(r"\*\*[A-G] \((\d+) points\)\.", text)
    )
    (rubric,) = re.findall(
        rf"^## .*`{name}.ipynb`\n(.*?)(?=^## |\Z)",
        (PROJECTS / "rubrics.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    listed = sum(
        int(points) for points in re.findall(r"^\| [A-G]\b.*?\| (\d+) \|", rubric, re.MULTILINE)
    )
    assert given == points_in_text == listed and f"all {given} points" in text
    ids = [mark["grade_id"] for mark in marks if mark]
    assert len(ids) == len(set(ids)) >= 5


def test_the_fault_can_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(LESSONS, tmp_path / "lessons", ignore=shutil.ignore_patterns("out", "fault-*"))
    folder = tmp_path / "lessons" / "projects"
    shutil.copytree(folder / "studies" / "fault", folder / "studies" / "fault-faster-link")
    monkeypatch.chdir(folder)
    profile = lab.Cluster.load("profiles/faster-link.yaml")
    study = lab.Study.load(folder / "studies" / "fault-faster-link", quick=True)
    place: dict[str, Any] = {"cluster": profile.name, "emulated": Emulated(compute=profile.compute)}
    for task in study.tasks:
        slow = task.run.world_size if task.run.loader == "classic" else 1
        measured = record(task.run, task.repeat, step_time=0.1 * slow, **place)
        write_record(measured, Store(study.out).folder(task))
    space: dict[str, Any] = {"display": lambda *_: None}
    for cell in cells("find-the-fault"):
        if cell["cell_type"] == "code":
            exec(cell["source"], space)
            if "parameters" in cell["metadata"].get("tags", []):
                space["profiles"] = ["faster-link"]
    # 12 MB in 39.95 ms and 60 MB in 426.5 ms: 3/2 of the gradients over what a step became longer.
    assert list(space["implied"]) == pytest.approx([0.3003e9, 0.1407e9], rel=1e-3)
    steps = space["medians"]["step_time"]
    assert steps["classic", "faster-link", 4] == pytest.approx(0.4)
    assert steps["fast", "faster-link", 4] == pytest.approx(0.1)
    assert len(lab.audit("table-1.csv").not_checked) < len(RULES)


def test_machines_of_the_fault_differ_in_one_cause_each() -> None:
    loaded = {path.stem: lab.Cluster.load(path) for path in (PROJECTS / "profiles").glob("*.yaml")}
    original_cluster = loaded.pop("as-found")
    changed = {
        name: {
            key
            for key in set(type(original_cluster).model_fields) - {"name", "file"}
            if getattr(one, key) != getattr(original_cluster, key)
        }
        for name, one in loaded.items()
    }
    assert changed == {"more-cores": {"cores_per_job"}, "faster-link": {"link"}}
