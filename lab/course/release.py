"""The students' version of the lessons: a course folder for nbgrader, without solutions."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.course.solutions import clear, clear_files, has_solutions
from lab.errors import InputError, LabError, Problem, nearest
from lab.files import SHARED, private_folder

LESSONS = SHARED / "notebooks" / "lessons"
SETTINGS = "nbgrader_config.py"
# What a lesson needs besides its notebook, so that a student's folder is self-contained.
NEEDED = ("studies", "tables")
# The parts of a course folder only for the instructor: solutions, submissions and grades.
PRIVATE = ("source", "submitted", "autograded", "feedback")
GRADEBOOK = "gradebook.db"


def copy_lessons(folder: Path, *, solutions: bool = False) -> list[Path]:
    """Copy lessons and projects, their studies and tables; returns the notebooks.

    Without `solutions`, placeholders take their place. Raises InputError for a folder that is not
    empty, because it may contain work; LabError if there are no solutions to copy.
    """
    if solutions:
        _require_solutions(LESSONS)
    if folder.exists() and any(folder.iterdir()):
        problem = Problem("DIR", "not empty", "name a new folder")
        raise InputError(str(folder), [problem])
    without = shutil.ignore_patterns("out", "fault-*", ".*", "__pycache__", SETTINGS)
    shutil.copytree(LESSONS, folder, ignore=without, dirs_exist_ok=True)
    notebooks = sorted(folder.rglob("*.ipynb"))
    if not solutions:
        clear(folder)
    return notebooks


def _require_solutions(lessons: Path) -> None:
    if not has_solutions(lessons):
        raise LabError(
            f"{lessons} holds no solutions, as it was installed from a wheel: "
            "run this in a checkout of the repository"
        )


def chosen(lessons: Path, names: Sequence[str]) -> list[Path]:
    """The notebooks of the lessons with these names, or of all; raises InputError for others."""
    notebooks = {path.stem: path for path in sorted(lessons.glob("*.ipynb"))}
    if unknown := [
        Problem(name, "no such lesson", nearest(name, notebooks))
        for name in names
        if name not in notebooks
    ]:
        raise InputError(str(lessons), unknown)
    return [notebooks[name] for name in names] or list(notebooks.values())


def release(folder: Path, *, lessons: Path = LESSONS, names: tuple[str, ...] = ()) -> list[Path]:
    """Make `source/` and `release/` in a course folder; returns the released notebooks.

    Each of the `lessons` is an assignment, or each of `names` if given. An existing course folder
    is updated: its gradebook and submissions stay. Only the instructor can read anything but the
    released files. Raises InputError for an unknown lesson, LabError if the lessons hold no
    solutions, or nbgrader is missing or refuses one.
    """
    notebooks = chosen(lessons, names)
    _require_solutions(lessons)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(lessons / SETTINGS, folder / SETTINGS)
    for name in PRIVATE:
        private_folder(folder / name)
    (folder / GRADEBOOK).touch(mode=0o600)
    (folder / GRADEBOOK).chmod(0o600)
    nbgrader = course(folder)
    return [_release(notebook, folder, nbgrader) for notebook in notebooks]


def course(folder: Path) -> Any:
    """nbgrader's interface to a course folder; raises LabError if nbgrader is missing."""
    try:
        from nbgrader.apps import NbGraderAPI
    except ImportError:
        raise LabError("nbgrader is missing: pip install 'scaling-lab[course]'") from None
    from traitlets.config.loader import PyFileConfigLoader

    # nbgrader calls alembic by name; it is installed beside this interpreter, activated or not.
    os.environ["PATH"] = os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    )
    settings = PyFileConfigLoader(SETTINGS, path=str(folder)).load_config()
    settings.CourseDirectory.root = str(folder.resolve())
    return NbGraderAPI(config=settings)


def _release(lesson: Path, folder: Path, nbgrader: Any) -> Path:
    source = folder / "source" / lesson.stem
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    shutil.copy(lesson, source)
    for name in NEEDED:
        without = shutil.ignore_patterns("out", ".*", "__pycache__")
        shutil.copytree(lesson.parent / name, source / name, ignore=without)
    clear_files(source)  # nbgrader does this for notebooks, on the way from source/ to release/
    made = nbgrader.generate_assignment(lesson.stem)
    if not made["success"]:
        raise LabError(
            f"{lesson.name}: nbgrader could not release it:\n{made.get('error') or made.get('log')}"
        )
    return folder / "release" / lesson.stem / lesson.name


if __name__ == "__main__":
    try:
        release(Path(sys.argv[1] if len(sys.argv) > 1 else "course"), names=tuple(sys.argv[2:]))
    except LabError as error:
        sys.exit(f"lab: {error}")
