"""The students' version of the lessons: a course folder for nbgrader, without solutions."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from lab.errors import InputError, LabError, Problem, nearest
from lab.files import SHARED

LESSONS = SHARED / "notebooks" / "lessons"
SETTINGS = "nbgrader_config.py"
# What a lesson needs beside its notebook, so that a student's folder works by itself.
NEEDED = ("studies", "tables")


def copy_lessons(folder: Path) -> list[Path]:
    """Copy the notebooks of the course, their studies and tables; returns the notebooks.

    Raises InputError for a folder that is not empty, in which somebody may have worked.
    """
    if folder.exists() and any(folder.iterdir()):
        problem = Problem("DIR", "not empty", "name a new folder")
        raise InputError(str(folder), [problem])
    without = shutil.ignore_patterns("out", ".*", SETTINGS)
    shutil.copytree(LESSONS, folder, ignore=without, dirs_exist_ok=True)
    return sorted(folder.glob("*.ipynb"))


def release(folder: Path, *, lessons: Path = LESSONS, names: tuple[str, ...] = ()) -> list[Path]:
    """Make `source/` and `release/` in a course folder; returns the released notebooks.

    Each of the `lessons` is an assignment, or each of `names` where some are given. An existing
    course folder is updated: its gradebook and what students handed in stay. Raises InputError for
    an unknown lesson, LabError where nbgrader is missing or refuses one.
    """
    notebooks = {path.stem: path for path in sorted(lessons.glob("*.ipynb"))}
    if unknown := [
        Problem(name, "no such lesson", nearest(name, notebooks))
        for name in names
        if name not in notebooks
    ]:
        raise InputError(str(lessons), unknown)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(lessons / SETTINGS, folder / SETTINGS)
    nbgrader = course(folder)
    return [_release(notebooks[name], folder, nbgrader) for name in names or notebooks]


def course(folder: Path) -> Any:
    """nbgrader's interface to a course folder; raises LabError where nbgrader is missing."""
    try:
        from nbgrader.apps import NbGraderAPI
    except ImportError:
        raise LabError("nbgrader is missing: pip install 'scaling-lab[course]'") from None
    from traitlets.config.loader import PyFileConfigLoader

    # nbgrader calls alembic by its name, which lies beside this interpreter, activated or not.
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
        shutil.copytree(lesson.parent / name, source / name, ignore=shutil.ignore_patterns("out"))
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
