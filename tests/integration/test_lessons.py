"""The course: every solved lesson runs, every released one fails its checks, and nbgrader grades what students hand in."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml
from nbclient import NotebookClient
from nbgrader.api import Gradebook
from papermill.parameterize import parameterize_notebook
from studies import CORPUS

from lab import machine
from lab.course.release import LESSONS, course, release
from lab.report import execute

pytestmark = pytest.mark.skipif(len(machine.cores()) < 2, reason="two ranks need two cores")

NAMES = sorted(path.stem for path in LESSONS.glob("*.ipynb"))
GRADED = ("05-weak-scaling", "06-when-ddp-fails")
TINY = {
    "model": {"kind": "gpt", "layers": 2, "heads": 2, "width": 16, "block_size": 16},
    "data": {"kind": "text", "path": "corpus.txt", "vocab_size": 300},
    "steps": 6,
    "warmup_steps": 2,
    "eval_batches": 1,
}


@pytest.fixture(scope="module")
def classroom(tmp_path_factory: pytest.TempPathFactory) -> Iterable[Path]:
    """A copy of the lessons in which the quick form of each study is tiny, and the working folder of these tests."""
    folder = tmp_path_factory.mktemp("room") / "lessons"
    shutil.copytree(LESSONS, folder, ignore=shutil.ignore_patterns("out"))
    for path in folder.glob("studies/*/study.yaml"):
        content = yaml.safe_load(path.read_text())
        quick = content["quick"]
        quick["base"] |= TINY
        quick["repeats"] = 2 if path.parent.name == "baseline" else 1
        path.write_text(yaml.safe_dump(content))
        (path.parent / "corpus.txt").write_text(CORPUS)
    (folder / "laptop.yaml").write_text("executor: local\ndevice: cpu\ndevices: 2\nhang_timeout_s: 60\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LAB_CACHE", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="module")
def solved(classroom: Path) -> dict[str, Path]:
    """Every lesson as the instructor has it, executed in a folder of its own beside the studies that lessons share."""
    return _each(NAMES, lambda name: execute(classroom / f"{name}.ipynb", classroom / "solved" / f"{name}.ipynb", PARAMETERS))


PARAMETERS = {"cluster": "laptop.yaml"}


def _each(names: Iterable[str], work: Callable[[str], Any]) -> dict[str, Any]:
    """Work on lessons, two at a time: a kernel starts while another waits for a run."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(names, pool.map(work, names), strict=True))


def checks(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.metadata.get("nbgrader", {}).get("grade")]


def test_every_solved_lesson_runs_and_every_answer_is_right(solved: dict[str, Path]) -> None:
    for name, path in solved.items():
        asked = checks(nbformat.read(path, as_version=4))
        assert len(asked) >= 3, name
        assert all(": right" in str(cell.outputs) for cell in asked), name


def test_no_released_lesson_passes_a_check(solved: dict[str, Path], classroom: Path, tmp_path: Path) -> None:
    released = {path.stem: path for path in release(tmp_path, lessons=classroom)}
    assert sorted(released) == NAMES

    def attempt(name: str) -> Any:
        notebook = parameterize_notebook(nbformat.read(released[name], as_version=4), PARAMETERS)
        return NotebookClient(notebook, allow_errors=True, resources={"metadata": {"path": str(classroom)}}).execute()

    for name, notebook in _each(NAMES, attempt).items():
        assert "BEGIN SOLUTION" not in str(notebook.cells), name
        for cell in checks(notebook):
            assert any(output.output_type == "error" for output in cell.outputs), (name, cell.source)
        assert any("no answer yet" in str(cell.outputs) for cell in checks(notebook)), name


def test_nbgrader_gives_a_right_submission_all_points_a_wrong_one_some_an_empty_one_none(
    solved: dict[str, Path], classroom: Path, tmp_path: Path
) -> None:
    release(tmp_path, lessons=classroom, names=GRADED)
    nbgrader = course(tmp_path)
    for name in GRADED:
        for student in ("right", "wrong", "empty"):
            handed_in = tmp_path / "submitted" / student / name
            shutil.copytree(tmp_path / "release" / name, handed_in)
            # The records of the student travel with the notebook: grading starts no job.
            shutil.copytree(classroom / "studies" / "strong" / "out", handed_in / "studies" / "strong" / "out")
            if student != "empty":
                answers = (classroom / f"{name}.ipynb").read_text()
                for right, wrong in MISTAKES.items() if student == "wrong" else ():
                    answers = answers.replace(right, wrong)
                (handed_in / f"{name}.ipynb").write_text(answers)
            graded = nbgrader.autograde(name, student)
            assert graded["success"], graded.get("error") or graded["log"]
    with Gradebook(f"sqlite:///{tmp_path / 'gradebook.db'}") as book:
        for name in GRADED:
            right, wrong, empty = (book.find_submission(name, student) for student in ("right", "wrong", "empty"))
            assert right.code_score == right.max_code_score >= 8
            assert wrong.code_score == wrong.max_code_score - 2
            assert empty.code_score == 0


# One answer in each graded lesson, worth two points.
MISTAKES = {
    "efficiency = step_s[1] / step_s[2]": "efficiency = step_s[2] / step_s[1] / 3",
    "break_even = 2 * gradient_bytes / step_1": "break_even = gradient_bytes / step_1",
}
