"""The course: every solved lesson runs, no check passes without a solution, and nbgrader grades what students hand in."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml
from nbgrader.api import Gradebook
from studies import CORPUS

import lab
from lab import machine
from lab.course.release import LESSONS, course, release
from lab.report.execute import Execution, execute_in, started_kernel

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(len(machine.cores()) < 2, reason="two ranks need two cores"),
]

NAMES = sorted(path.stem for path in LESSONS.glob("*.ipynb"))
# Of a second lesson, what wrong answers are told is a matter of tests/unit/course/test_check.py.
GRADED = {"05-weak-scaling": ("right", "wrong", "empty"), "06-when-ddp-fails": ("right",)}
# An answer worth two points, and one that is wrong whatever was measured.
RIGHT, WRONG = "efficiency = step_s[1] / step_s[2]", "efficiency = 2 * step_s[1] / step_s[2]"
CLUSTER = {"cluster": "laptop.yaml"}
SMALL = {"steps": 6, "warmup_steps": 2, "eval_batches": 1}
TINY = SMALL | {
    "model": {"kind": "gpt", "layers": 2, "heads": 2, "width": 16, "block_size": 32},
    "data": {"kind": "text", "path": "corpus.txt", "vocab_size": 300},
}
TOPICS = SMALL | {
    "model": {"kind": "text-classifier", "layers": 1, "heads": 1, "width": 8, "block_size": 16}
}


@pytest.fixture(scope="module")
def classroom(tmp_path_factory: pytest.TempPathFactory) -> Iterable[Path]:
    """A copy of the lessons in which the quick form of each study is tiny, and the working folder of these tests."""
    folder = tmp_path_factory.mktemp("room") / "lessons"
    shutil.copytree(LESSONS, folder, ignore=shutil.ignore_patterns("out"))
    for path in folder.glob("studies/*/study.yaml"):
        content = yaml.safe_load(path.read_text())
        quick = content["quick"]
        quick["base"] |= TOPICS if path.parent.name == "topics" else TINY
        quick["repeats"] = 2 if path.parent.name == "baseline" else 1
        path.write_text(yaml.safe_dump(content))
        (path.parent / "corpus.txt").write_text(CORPUS)
    (folder / "laptop.yaml").write_text(
        "executor: local\ndevice: cpu\ndevices: 2\nhang_timeout_s: 60\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LAB_CACHE", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="module")
def released(classroom: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every lesson as a student gets it, in a course folder."""
    return {
        path.stem: path for path in release(tmp_path_factory.mktemp("course"), lessons=classroom)
    }


@pytest.fixture(scope="module")
def kernel(classroom: Path) -> Iterable[Any]:
    """One for all lessons, which forgets the names of each; to load what they import takes longer than most of them."""
    with started_kernel() as started:
        yield started


def trying_first(solved: Any, given: Any) -> Any:
    """The solved lesson; before each check comes the exercise as it was released, whose check must fail."""
    stubs = {
        cell.metadata.nbgrader.grade_id: cell.source for cell in given.cells if is_exercise(cell)
    }
    solutions = {
        cell.metadata.nbgrader.grade_id: cell.source for cell in solved.cells if is_exercise(cell)
    }
    assert stubs.keys() == solutions.keys() and not any(
        "SOLUTION" in stub for stub in stubs.values()
    )
    cells = []
    for cell in solved.cells:
        if is_check(cell) and "check_ranks" not in cell.source:  # its answer is a file
            name = cell.metadata.nbgrader.grade_id.removesuffix("-check")
            attempt = (
                f"try:\n{textwrap.indent(cell.source, '    ')}\nexcept AssertionError as "
                "error:\n    print('unsolved:', error)"
            )
            cells += [
                nbformat.v4.new_code_cell(source)
                for source in (stubs[name], attempt, solutions[name])
            ]
        cells.append(cell)
    solved.cells = cells
    return solved


def is_exercise(cell: Any) -> bool:
    return cell.cell_type == "code" and bool(cell.metadata.get("nbgrader", {}).get("solution"))


def is_check(cell: Any) -> bool:
    return cell.cell_type == "code" and bool(cell.metadata.get("nbgrader", {}).get("grade"))


def printed(cell: Any) -> str:
    """What a cell wrote; the kernel sends one line in as many pieces as it likes."""
    return "".join(output.get("text", "") for output in cell.outputs)


def test_solutions_and_grades_are_the_instructor_s_alone_to_read(
    released: dict[str, Path],
) -> None:
    course = next(iter(released.values())).parents[2]
    open_to_others = {path.name for path in course.iterdir() if path.stat().st_mode & 0o077}
    assert open_to_others <= {"release", "nbgrader_config.py"} and "release" in open_to_others


@pytest.mark.parametrize("name", NAMES)
def test_a_lesson_runs_solved_and_no_check_of_it_passes_unsolved(
    name: str, classroom: Path, released: dict[str, Path], kernel: Any
) -> None:
    lesson = trying_first(
        nbformat.read(classroom / f"{name}.ipynb", 4), nbformat.read(released[name], 4)
    )
    nbformat.write(lesson, classroom / f"{name}-tried.ipynb")
    parameters = CLUSTER | ({"slow_cluster": CLUSTER["cluster"]} if name.startswith("06") else {})
    template, target = classroom / f"{name}-tried.ipynb", classroom / f"{name}-executed.ipynb"
    execute_in(kernel, Execution(template, target, parameters))
    executed = nbformat.read(target, 4)
    checked_attempts = [
        (before, cell)
        for before, cell in zip(executed.cells[1:], executed.cells[3:], strict=False)
        if is_check(cell) and "check_ranks" not in cell.source
    ]
    assert len(checked_attempts) >= 3
    for attempt, check in checked_attempts:
        assert re.search(r"unsolved: \d\d\.[\w-]+: (no answer|not) yet", printed(attempt)), attempt
        assert re.search(": (right|noted)", str(check.outputs)), check
    for check in executed.cells:
        assert "check_ranks" not in check.source or ": right" in str(check.outputs), check
    assert any("image/svg+xml" in str(cell.get("outputs")) for cell in executed.cells)


def test_nbgrader_gives_a_right_submission_all_points_a_wrong_one_some_an_empty_one_none(
    released: dict[str, Path], classroom: Path
) -> None:
    for study in ("strong", "topics"):
        assert all(
            done.completed
            for done in lab.launch(lab.Study.load(f"studies/{study}", quick=True), **CLUSTER).wait()
        )
    folder = released["05-weak-scaling"].parents[2]
    nbgrader = course(folder)
    for name, students in GRADED.items():
        for student in students:
            handed_in = folder / "submitted" / student / name
            shutil.copytree(folder / "release" / name, handed_in)
            # The records of the student travel with the notebook: grading starts no job.
            shutil.copytree(classroom / "studies", handed_in / "studies", dirs_exist_ok=True)
            if student != "empty":
                answers = (classroom / f"{name}.ipynb").read_text()
                if student == "wrong":
                    assert RIGHT in answers
                    answers = answers.replace(RIGHT, WRONG)
                (handed_in / f"{name}.ipynb").write_text(answers)
            graded = nbgrader.autograde(name, student)
            assert graded["success"], (graded["log"], graded.get("error"))
    with Gradebook(f"sqlite:///{folder / 'gradebook.db'}") as book:
        for name, students in GRADED.items():
            of = {student: book.find_submission(name, student) for student in students}
            most = of["right"].max_code_score
            assert most >= 8
            due = {"right": most, "wrong": most - 2, "empty": 0}
            assert all(one.code_score == due[student] for student, one in of.items())
