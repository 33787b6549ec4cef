"""A class is graded from data and files alone: right work gets its points, attacks get none and do no harm."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import IPython
import numpy as np
import pandas as pd
import pytest
from factories import losses
from factories import record as synthetic

import lab
from lab import machine
from lab.course import ranks
from lab.course.grade import Grade
from lab.course.release import LESSONS, clear_files
from lab.course.replay import cells
from lab.records.store import Store, write_record
from lab.worker import confine

pytestmark = [
    pytest.mark.skipif(len(machine.cores()) < 2, reason="two ranks need two cores"),
    pytest.mark.skipif(
        bool(confine.obstacle()), reason="code can be confined only on x86-64 Linux"
    ),
]

LESSON, LADDER = "05-weak-scaling", "03-data-parallel"
STUDENTS = ("ada", "bob", "eve")


def measure(folder: Path, *, scale: float, minute: int) -> None:
    """Records of the course's study with their steps, as jobs leave them; times differ by student."""
    study = lab.Study.load(folder / "studies" / "strong", quick=True)
    draw = np.random.default_rng(minute)
    for task in study.tasks:
        run = task.run
        times = scale * draw.normal(0.1 * run.micro_batch_size, 1e-3, (run.world_size, run.steps))
        median = float(np.median(times[:, run.warmup_steps :].max(axis=0)))
        record = synthetic(run, task.repeat, step_time=median, loss=losses(run.steps))
        record = record.model_copy(update={"finished_at": f"2025-01-01T00:{minute:02}:00+00:00"})
        place = Store(study.out).folder(task)
        write_record(record, place)
        columns = {
            "rank": np.repeat(np.arange(run.world_size), run.steps),
            "step": np.tile(np.arange(run.steps), run.world_size),
            "warmup": np.tile(np.arange(run.steps) < run.warmup_steps, run.world_size),
            "step_time": times.ravel(),
            "loss": np.tile(losses(run.steps), run.world_size),
        }
        pd.DataFrame(columns).to_parquet(place / "steps.parquet", index=False)


def solve(folder: Path, lesson: str = LESSON) -> None:
    """Do what a student does in the notebook: run all of its cells, with right answers."""
    space: dict[str, object] = {"display": lambda *_: None}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(IPython, "get_ipython", SimpleNamespace)
        for _, text in cells(lesson):
            exec(text, space)


@pytest.fixture(scope="module")
def desks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What three students did: right answers from records of their own."""
    root = tmp_path_factory.mktemp("desks")
    for minute, student in enumerate(STUDENTS, start=1):
        folder = root / student / LESSON
        shutil.copytree(LESSONS, folder, ignore=shutil.ignore_patterns("out"))
        clear_files(folder)
        measure(folder, scale=1 + 0.1 * minute, minute=minute)
        solve(folder)
    return root


def points(grades: list[Grade], student: str) -> dict[str, float | None]:
    return {row.exercise: row.points for row in grades if row.student == student}


def reasons(grades: list[Grade], student: str) -> str:
    return " ".join(row.reason for row in grades if row.student == student)


def test_right_work_gets_its_points_each_with_its_reason(desks: Path, tmp_path: Path) -> None:
    room = tmp_path / "room"
    shutil.copytree(desks / "ada", room / "ada")
    # What is wrong in one answer costs the points of one exercise.
    shutil.copytree(desks / "bob", room / "bob")
    (room / "bob" / LESSON / "answers" / "05.steps.txt").write_text("12")
    grades = lab.grade(room, output=tmp_path / "grades.csv")
    assert all(row.points == row.of for row in grades if row.student == "ada")
    lost = [row.exercise for row in grades if row.student == "bob" and row.points != row.of]
    assert lost == ["05.steps"] and "not yet" in reasons(grades, "bob")
    with (tmp_path / "grades.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == len(grades) == 12 and all(row["reason"] for row in rows)


def test_what_one_lesson_has_measured_answers_the_next(desks: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ada" / "04-strong-scaling"
    shutil.copytree(desks / "ada" / LESSON, folder, ignore=shutil.ignore_patterns("answers"))
    solve(folder, folder.name)
    grades = lab.grade(tmp_path)
    assert len(grades) == 7 and all(row.points == row.of for row in grades)


def void_checks(folder: Path, _: Path) -> None:
    """The notebook begins with `lab.check = lambda *a, **k: None`, and holds no answer."""
    shutil.rmtree(folder / "answers")
    text = (folder / f"{LESSON}.ipynb").read_text()
    (folder / f"{LESSON}.ipynb").write_text(
        text.replace("import lab", "import lab; lab.check = id")
    )


def shadow_modules(folder: Path, victim: Path) -> None:
    """Modules of the names that the grader imports, which would change its verdicts."""
    for name in ("pandas", "lab", "sitecustomize", "IPython", "json"):
        (folder / f"{name}.py").write_text(f"open({str(victim)!r}, 'w').write('lost')")
    shutil.rmtree(folder / "answers")


def answers_that_are_code(folder: Path, victim: Path) -> None:
    """Text that would do something if it were evaluated, unpickled, or only read carelessly."""
    attacks = [
        f"__import__('os').remove({str(victim)!r})",
        "True",
        "float('nan')",
        "[" * 9000,
        "9" * 9000,
        "type('Answer', (float,), {'__eq__': lambda *_: True})()",
    ]
    for path, text in zip(sorted((folder / "answers").iterdir()), attacks, strict=True):
        path.write_text(text)


def edited_records(folder: Path, _: Path) -> None:
    """Records that say twice the speed, with steps that do not."""
    for path in folder.glob("studies/*/out/runs/*/*/record.json"):
        content = json.loads(path.read_text())
        content["timing"]["step"]["median"] /= 2
        path.write_text(json.dumps(content))


def links_elsewhere(folder: Path, victim: Path) -> None:
    """Links to what somebody else owns, in place of answers and records."""
    for path in (folder / "answers").iterdir():
        path.unlink()
        path.symlink_to(victim)
    shutil.rmtree(folder / "studies" / "strong" / "out")
    (folder / "studies" / "strong" / "out").symlink_to("/")


def easier_lesson(folder: Path, _: Path) -> None:
    """A study and a lesson of the student's own, in place of the instructor's; no records."""
    shutil.rmtree(folder / "studies" / "strong" / "out")
    (folder / "studies" / "strong" / "study.yaml").write_text("title: mine")
    for name in ("05.gustafson", "05.steps", "05.learning-rate"):
        (folder / "answers" / f"{name}.txt").write_text("0")


@pytest.mark.parametrize(
    "attack",
    [
        void_checks,
        shadow_modules,
        answers_that_are_code,
        edited_records,
        links_elsewhere,
        easier_lesson,
    ],
)
def test_an_attack_by_data_gets_no_point_and_does_no_harm(
    attack: Callable[[Path, Path], None], desks: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("12")
    shutil.copytree(desks / "eve", tmp_path / "room" / "eve")
    attack(tmp_path / "room" / "eve" / LESSON, victim)
    grades = lab.grade(tmp_path / "room")
    assert set(points(grades, "eve").values()) == {0.0}
    assert victim.read_text() == "12"


def test_the_records_of_another_student_are_found_also_if_all_times_were_multiplied(
    desks: Path, tmp_path: Path
) -> None:
    for student in ("ada", "eve"):
        shutil.copytree(desks / "ada", tmp_path / student)
    for path in (tmp_path / "eve").rglob("record.json"):
        steps = pd.read_parquet(path.with_name("steps.parquet"))
        steps["step_time"] *= 1.5
        steps.to_parquet(path.with_name("steps.parquet"), index=False)
        content = json.loads(path.read_text())
        content["timing"]["step"]["median"] *= 1.5
        path.write_text(json.dumps(content | {"finished_at": "2025-02-02T00:00:00+00:00"}))
    grades = lab.grade(tmp_path)
    for student, other in (("ada", "eve"), ("eve", "ada")):
        assert set(points(grades, student).values()) == {0.0}
        assert f"the same as those of {other}" in reasons(grades, student)
    assert all(row.points == row.of for row in lab.grade(tmp_path, shared_records=True))


def test_code_that_attacks_gets_no_point_and_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "LIMIT_S", 5.0)
    ladder = tmp_path / "eve" / LADDER / "studies" / "ladder"
    shutil.copytree(LESSONS / "studies" / "ladder", ladder, ignore=shutil.ignore_patterns("out"))

    def change(name: str, right: str, wrong: str) -> None:
        text = (ladder / name).read_text()
        assert right in text
        (ladder / name).write_text(text.replace(right, wrong))

    change("naive.py", "dist.all_reduce(parameter.grad)", "while True: pass")
    change("flat.py", "flat /= dist", "torch.ones(1 << 40)\n        flat /= dist")
    change("hooks.py", "class Hooked", "import os\nwhile True:\n    os.fork()\nclass Hooked")
    change(
        "buckets.py", "class Bucketed(", "dist.all_reduce = lambda *a, **k: None\nclass Bucketed("
    )
    grades = [row for row in lab.grade(tmp_path) if row.exercise in ranks.RUNGS]
    assert [row.points for row in grades] == [0.0] * 4
    reason_by_exercise = {row.exercise: row.reason for row in grades}
    assert (
        "in synchronize" in reason_by_exercise["03.naive-ddp"]
        and "5 s" in reason_by_exercise["03.naive-ddp"]
    )
    assert (
        "RuntimeError" in reason_by_exercise["03.flat"]
        or "MemoryError" in reason_by_exercise["03.flat"]
    )
    assert "imports os" in reason_by_exercise["03.hooks"]
    assert "changes dist.all_reduce" in reason_by_exercise["03.buckets"]


def test_a_folder_without_submissions_is_unusable_input(tmp_path: Path) -> None:
    with pytest.raises(lab.InputError, match="no lesson of a student"):
        lab.grade(tmp_path)
