"""The lessons as they are committed: nbgrader's conventions, parameters, and no cell that needs a student's answer to run."""

from __future__ import annotations

import ast
import builtins
import json
import re
from pathlib import Path
from typing import Any

import pytest

from lab.course import replay
from lab.course.check import exercises
from lab.course.ladder import RUNGS
from lab.course.release import LESSONS

PATHS = sorted(LESSONS.glob("*.ipynb"))
INSTRUCTORS = (LESSONS.parent / "instructors.md").read_text()
each_lesson = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def cells(path: Path) -> list[dict[str, Any]]:
    """The cells with their source as one text, and nbgrader's metadata, empty where there is none, under `mark`."""
    return [
        cell | {"source": "".join(cell["source"]), "mark": cell["metadata"].get("nbgrader", {})}
        for cell in json.loads(path.read_text())["cells"]
    ]


def code(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in cells(path) if cell["cell_type"] == "code"]


def asked(source: str) -> list[str]:
    return re.findall(r'lab\.check\(\s*"([^"]+)"', source)


def tried(source: str) -> list[str]:
    return re.findall(r'lab\.check_ranks\(\s*"([^"]+)"', source)


def assigned(source: str) -> set[str]:
    names = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def read(source: str) -> set[str]:
    names = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
    return {name.id for name in names if isinstance(name.ctx, ast.Load)}


def test_there_are_twelve_lessons() -> None:
    assert [path.stem[:2] for path in PATHS] == [f"{number:02}" for number in range(12)]


@each_lesson
def test_a_lesson_follows_nbgrader_s_conventions(path: Path) -> None:
    marked = [cell for cell in cells(path) if cell["mark"]]
    ids = [cell["mark"]["grade_id"] for cell in marked]
    assert len(ids) == len(set(ids)) and all(name.startswith(path.stem[:2]) for name in ids)
    for cell in marked:
        mark, source = cell["mark"], cell["source"]
        assert mark["schema_version"] == 3
        if cell["cell_type"] == "markdown":
            assert mark["solution"] and mark["grade"] and mark["points"] > 0
        elif mark["solution"]:
            assert "### BEGIN SOLUTION" in source and "### END SOLUTION" in source
        else:
            assert mark["grade"] and mark["locked"] and mark["points"] > 0
            names = asked(source) + tried(source)
            assert [f"{name.replace('.', '-')}-check" for name in names] == [mark["grade_id"]]
    solved = {cell["mark"]["grade_id"] for cell in marked if cell["mark"]["solution"]}
    assert {
        name.replace(".", "-") for cell in code(path) for name in asked(cell["source"])
    } <= solved


@each_lesson
def test_a_lesson_asks_for_a_prediction_and_an_explanation(path: Path) -> None:
    prose = "\n".join(cell["source"] for cell in cells(path) if cell["cell_type"] == "markdown")
    assert prose.startswith("# Lesson ") and "minutes" in prose.split("\n## ")[0]
    assert re.search(r"predict|expect", prose, re.IGNORECASE) and re.search(
        r"explain|own words|write the paragraph", prose, re.IGNORECASE
    )


@each_lesson
def test_a_lesson_says_what_it_is_for_and_instructors_read_the_same(path: Path) -> None:
    frame = dict(re.findall(r"^\| ([\w ,]+?) \| (.+?) \|$", cells(path)[1]["source"], re.MULTILINE))
    assert {"afterwards you can", "you need", "time", "read"} <= frame.keys()
    assert len(re.findall(r"(?:^|<br>)\d\. ", frame["read"])) == 3
    (listed,) = [row for row in INSTRUCTORS.splitlines() if row.startswith(f"| `{path.stem}` |")]
    minutes, points = (cell.strip() for cell in listed.split("|")[2:4])
    assert frame["time"].startswith(f"{minutes} minutes")
    given = [
        (cell["mark"].get("points", 0), bool(cell["mark"].get("solution"))) for cell in cells(path)
    ]
    checked, by_hand = (
        sum(value for value, hand in given if hand is kind) for kind in (False, True)
    )
    assert points == f"{checked:g} + {by_hand:g}"


@each_lesson
def test_a_lesson_has_parameters_for_papermill_that_say_where_it_runs(path: Path) -> None:
    (parameters,) = [
        cell for cell in code(path) if "parameters" in cell["metadata"].get("tags", [])
    ]
    assert "cluster" in assigned(parameters["source"])


@each_lesson
def test_nothing_but_exercises_reads_a_student_s_answers(path: Path) -> None:
    answers: set[str] = set()
    for cell in code(path):
        if cell["mark"].get("solution"):
            answers |= assigned(cell["source"].split("### BEGIN SOLUTION")[0])
        elif not cell["mark"]:
            answers -= assigned(cell["source"])
            assert not answers & read(cell["source"])


@each_lesson
def test_what_a_check_is_given_needs_no_answer_to_another_exercise(path: Path) -> None:
    answers = {
        name
        for cell in code(path)
        if cell["mark"].get("solution")
        for name in assigned(cell["source"])
    }
    answers -= {
        name for cell in code(path) if not cell["mark"] for name in assigned(cell["source"])
    }
    for cell in code(path):
        if cell["mark"].get("grade"):
            call = next(
                node for node in ast.walk(ast.parse(cell["source"])) if isinstance(node, ast.Call)
            )
            assert (
                not {name for given in call.keywords for name in read(ast.unparse(given.value))}
                & answers
            )


@each_lesson
def test_a_grader_that_runs_no_answer_has_all_that_a_check_is_given(path: Path) -> None:
    known: set[str] = set(dir(builtins))
    for mark, source in replay.cells(path.stem):
        if not mark.get("solution"):
            tree = replay.without_checks(source)
            known |= assigned(ast.unparse(tree))
            for node in ast.walk(tree):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    known |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
            for _, name, call in replay.checks(source):
                for given in call.keywords:
                    wanted = read(ast.unparse(given.value)) - assigned(ast.unparse(given.value))
                    assert wanted <= known, name


@each_lesson
def test_no_solution_stands_in_another_cell(path: Path) -> None:
    given = [cell for cell in code(path) if not cell["mark"].get("solution")]
    sources = [ast.unparse(ast.parse(cell["source"])) for cell in given]
    for cell in code(path):
        if cell["mark"].get("solution") and "exercise" not in cell["metadata"]["tags"]:
            solution = ast.parse(cell["source"].split("### BEGIN SOLUTION")[1])
            for statement in solution.body:
                assert isinstance(statement, ast.Assign)
                if not isinstance(statement.value, ast.Constant):
                    answer = ast.unparse(statement.value)
                    assert not [source for source in sources if answer in source], answer


def test_every_exercise_is_asked_once() -> None:
    names = [name for path in PATHS for cell in code(path) for name in asked(cell["source"])]
    assert sorted(names) == sorted(exercises())


def test_every_rung_is_climbed_once_with_the_file_that_it_asks_for() -> None:
    cells = [cell["source"] for path in PATHS for cell in code(path) if tried(cell["source"])]
    assert sorted(name for cell in cells for name in tried(cell)) == sorted(RUNGS)
    for cell in cells:
        (name,) = tried(cell)
        assert f'file="studies/ladder/{RUNGS[name].file}"' in cell
        assert (LESSONS / "studies" / "ladder" / RUNGS[name].file).is_file()
