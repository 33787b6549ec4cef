"""What the course costs a class: hours from records, from a prediction, or from what is assumed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from factories import record
from typer.testing import CliRunner

import lab
from lab import cli, machine
from lab.course.budget import StudyHours, class_hours
from lab.course.release import LESSONS
from lab.launch.plan import Hours
from lab.records.store import Store, write_record


@pytest.fixture
def lessons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two lessons of the course, with one study each, on a machine of two cores."""
    monkeypatch.setattr(machine, "cores", lambda: (0, 1))
    monkeypatch.setattr(machine, "gpus", lambda: ())
    for name in ("baseline", "strong"):
        source = LESSONS / "studies" / name / "study.yaml"
        (tmp_path / "studies" / name).mkdir(parents=True)
        shutil.copy(source, tmp_path / "studies" / name)
    for name in ("01-baseline", "04-strong-scaling"):
        shutil.copy(LESSONS / f"{name}.ipynb", tmp_path)
    return tmp_path


def test_hours_are_those_of_records_where_there_are_any_else_of_what_is_assumed(
    lessons: Path,
) -> None:
    study = lab.Study.load(lessons / "studies" / "baseline", quick=True)
    for task in study.tasks:
        write_record(record(task.run, task.repeat), Store(study.out).folder(task))  # of a minute
    unknown = {one.study: one for one in lab.class_budget(folder=lessons, quick=True)}
    assert unknown["baseline"].lessons == ("01-baseline",)
    assert unknown["baseline"].hours == Hours(pytest.approx(5 / 60), 0, 5)
    assert unknown["strong"].hours == Hours(unknown=8)
    assumed = lab.class_budget(folder=lessons, quick=True, minutes_per_job=3)[1]
    # Four jobs on one core and four on two.
    assert assumed.hours == Hours(pytest.approx(12 * 3 / 60), 0, 8) and not assumed.left_out


def test_copies_that_jupyterlab_and_reports_make_are_no_lessons(lessons: Path) -> None:
    before = lab.class_budget(folder=lessons, quick=True, minutes_per_job=3)
    for place in (lessons / ".ipynb_checkpoints", lessons / "studies" / "strong" / "out"):
        place.mkdir()
        shutil.copy(lessons / "04-strong-scaling.ipynb", place)
    assert lab.class_budget(folder=lessons, quick=True, minutes_per_job=3) == before


def test_jobs_that_cannot_run_there_are_left_out(lessons: Path) -> None:
    strong = lab.class_budget(folder=lessons, minutes_per_job=1)[1]
    assert strong.left_out == 12 and strong.hours.jobs == 12  # of 1, 2, 4 and 8 ranks
    assert strong.reason == "needs 4 ranks, but local has 2"


def test_a_class_takes_as_often_as_much_as_there_are_students_or_pairs() -> None:
    studies = [
        StudyHours("a", (), Hours(8.0, 1.0, 2), 0),
        StudyHours("b", (), Hours(4.0, 0.5, 1), 0),
    ]
    assert class_hours(studies, [3]) == [
        {
            "students": 3,
            "GPU-hours, each alone": "4.50",
            "in pairs": "3.00",
            "measured once for all": "1.50",
        }
    ]
    assert "core-hours, each alone" in class_hours([StudyHours("a", (), Hours(8.0), 0)], [1])[0]
    assert not class_hours([StudyHours("a", (), Hours(8.0, 0.0, 1, unknown=1), 0)], [1])


def test_every_study_of_the_course_is_used_by_a_lesson() -> None:
    listed = {one.study for one in lab.class_budget(quick=True, minutes_per_job=1)}
    there = {path.parent.name for path in LESSONS.glob("**/studies/*/study.yaml")}
    assert listed == {name for name in there if not name.startswith("fault-")}


def test_the_command_shows_the_course_and_the_classes(lessons: Path) -> None:
    words = ["course", "budget", str(lessons), "--quick", "--minutes", "3", "--students", "2,4"]
    ended = CliRunner().invoke(cli.app, [*words, "--json"])
    content = json.loads(ended.stdout)
    assert not ended.exit_code
    assert [one["study"] for one in content["studies"]] == ["baseline", "strong"]
    assert [one["students"] for one in content["classes"]] == [2, 4]


def test_a_folder_without_studies_is_unusable_input(tmp_path: Path) -> None:
    with pytest.raises(lab.InputError, match="no studies in it"):
        lab.class_budget(folder=tmp_path)


def test_studies_that_no_notebook_measures_are_unusable_input(lessons: Path) -> None:
    for notebook in lessons.glob("*.ipynb"):
        notebook.unlink()
    with pytest.raises(lab.InputError, match="no notebook that measures one of its studies"):
        lab.class_budget(folder=lessons)
