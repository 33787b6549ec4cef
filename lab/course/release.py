"""Lessons handed out without solutions, in a course folder for nbgrader, and collected again.

What is collected is untrusted: no link is followed, no pipe or device is opened, and sizes are
limited so that no submission can fill the disk.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO

from lab.config.study import OUT
from lab.course.solutions import clear, clear_files, has_solutions
from lab.errors import InputError, LabError, Problem, items, nearest, path_of
from lab.files import SHARED, login, private_folder, unwritable
from lab.formatting import listed

MOST_BYTES, MOST_FILES = 2 * 10**9, 50_000  # of one lesson of a student
BLOCK = 2**20  # bytes read at a time
MOST_NAMES = 3  # of what is left out
LESSONS = SHARED / "notebooks" / "lessons"
SETTINGS = "nbgrader_config.py"
# What a lesson needs besides its notebook, so that a student's folder is self-contained.
NEEDED = ("studies", "tables")
# The parts of a course folder only for the instructor: solutions, submissions and grades.
PRIVATE = ("source", "submitted", "autograded", "feedback")
GRADEBOOK = "gradebook.db"


@dataclass(frozen=True)
class Collected:
    """A student's lesson: what was copied, its owner, its newest file's time, what was left out.

    If `files` is empty, nothing was copied, and `problem` says why.
    """

    student: str
    lesson: str
    files: int = 0
    bytes: int = 0
    owner: str = ""
    newest: str = ""
    problem: str = ""


class _TooMuchError(Exception):
    """A submission larger than any lesson should be."""


def collect(sources: Sequence[str | Path], *, into: str | Path = "submitted") -> list[Collected]:
    """Copy <source>/<student>/<lesson>/ to `into`/<student>/<lesson>/, readable only by you.

    What was collected before is replaced atomically if it is handed in again. Raises InputError if
    a source is not a folder, if nothing in it can be copied, or if `into` cannot be written.
    """
    wanted = "a list of folders, such as ['handed-in']"
    places = [*map(Path, items(sources, str | Path, "sources", wanted, least=1))]
    target = path_of(into, "into")
    problems = [
        Problem(str(place), "no such folder", "name one that holds a folder for each student")
        for place in places
        if not place.is_dir()
    ]
    if problems := problems or unwritable(target):
        raise InputError("collect", problems)
    private_folder(target)
    collected = [
        one
        for place in places
        for student in sorted(place.iterdir())
        if not student.name.startswith(".")
        for one in _of_student(student, target)
    ]
    if not any(one.files for one in collected):
        reasons = "; ".join(f"{one.student}: {one.problem}" for one in collected[:5])
        advice = reasons or "such as ada/03-data-parallel, as released"
        what = "holds no lesson of a student"
        raise InputError("collect", [Problem(str(place), what, advice) for place in places])
    return collected


def _of_student(place: Path, target: Path) -> Iterator[Collected]:
    if not place.name.isprintable():  # a table of grades could not hold it
        yield Collected(ascii(place.name), "", problem="not a name that can be printed: rename it")
        return
    if not stat.S_ISDIR(place.lstat().st_mode):
        yield Collected(place.name, "", problem="not a folder: unpack it")
        return
    try:
        entries = [one for one in sorted(place.iterdir()) if not one.name.startswith(".")]
    except OSError as error:
        yield Collected(place.name, "", problem=f"cannot be opened: {error.strerror}")
        return
    lessons = list(filter(_is_lesson, entries))
    for lesson in lessons:
        yield _of_lesson(lesson, target / place.name / lesson.name)
    if others := [_misnamed(one) for one in entries if one not in lessons]:
        names = listed(others, MOST_NAMES)
        yield Collected(place.name, "", problem=f"left out, as no lesson has this name: {names}")
    elif not lessons:
        yield Collected(place.name, "", problem="an empty folder")


def _misnamed(place: Path) -> str:
    """The name of what is none of the lessons and, of a folder, the lesson that it may be."""
    name = place.name if place.name.isprintable() else ascii(place.name)
    lessons = [path.stem for path in LESSONS.glob("*.ipynb")] if place.is_dir() else []
    close = get_close_matches(place.name, lessons, n=1)
    return f"{name} (did you mean {close[0]!r}?)" if close else name


def _is_lesson(place: Path) -> bool:
    return stat.S_ISDIR(place.lstat().st_mode) and (LESSONS / f"{place.name}.ipynb").is_file()


def _of_lesson(source: Path, target: Path) -> Collected:
    """Copy one lesson next to its destination, then move it there in one step."""
    student, lesson = target.parent.name, target.name
    inner = source / lesson  # where an archive was unpacked into a folder of its own name
    if inner.is_dir() and not inner.is_symlink() and not Path(source, f"{lesson}.ipynb").exists():
        source = inner
    private_folder(target.parent)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as room:
        try:
            files, size, newest, skipped = _copy(source, Path(room, lesson))
        except OSError as error:
            problem = f"{error.filename or source}: {error.strerror or error}"
            return Collected(student, lesson, problem=problem)
        except _TooMuchError:
            most = f"{MOST_FILES} files or {MOST_BYTES / 1e9:g} GB"
            return Collected(student, lesson, problem=f"more than {most}: ask what it holds")
        if target.exists():
            target.rename(Path(room, "before"))
        Path(room, lesson).rename(target)
    when = datetime.fromtimestamp(newest, UTC).isoformat(timespec="seconds") if files else ""
    problem = "" if files else "an empty folder"
    if skipped:
        problem = f"left out {skipped} of its entries, which are links, pipes or devices"
    return Collected(student, lesson, files, size, login(source.lstat().st_uid), when, problem)


def _copy(source: Path, target: Path) -> tuple[int, int, float, int]:
    """Copy only plain files; return their number, bytes, newest time, and what was left out."""
    files, size, newest, skipped = 0, 0, 0.0, 0
    for folder, folders, names in os.walk(source, onerror=_raise):
        room = target / Path(folder).relative_to(source)
        room.mkdir(mode=0o700)
        skipped += sum(Path(folder, name).is_symlink() for name in folders)
        for name in names:
            path = Path(folder, name)
            if not stat.S_ISREG(path.lstat().st_mode):
                skipped += 1
                continue
            # A file that has since become a link or a pipe is neither followed nor waited for.
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(handle, "rb") as stream, (room / name).open("xb") as copy:
                files += 1
                if files > MOST_FILES:
                    raise _TooMuchError
                size += _copy_file(stream, copy, at_most=MOST_BYTES - size)
                newest = max(newest, os.fstat(handle).st_mtime)
    return files, size, newest, skipped


def _copy_file(source: BinaryIO, target: BinaryIO, *, at_most: int) -> int:
    """Copy a file that may grow meanwhile; returns its bytes."""
    copied = 0
    while block := source.read(BLOCK):
        copied += len(block)
        if copied > at_most:
            raise _TooMuchError
        target.write(block)
    return copied


def _raise(error: OSError) -> None:
    raise error


def copy_lessons(folder: str | Path, *, solutions: bool = False) -> list[Path]:
    """Copy lessons and projects, their studies and tables; returns the notebooks.

    Without `solutions`, placeholders take their place. Raises InputError for a folder that is not
    empty, because it may contain work, or that cannot be written to; LabError if there are no
    solutions to copy.
    """
    folder = path_of(folder, "folder")
    if solutions:
        _require_solutions(LESSONS)
    if problems := unwritable(folder):
        raise InputError("lessons", problems)
    if any(folder.iterdir()):
        raise InputError.of(folder, "DIR", "not empty", "name a new folder")
    without = shutil.ignore_patterns(OUT, "fault-*", ".*", "__pycache__", SETTINGS)
    shutil.copytree(LESSONS, folder, ignore=without, dirs_exist_ok=True)
    for path in (folder, *folder.rglob("*")):  # an installation may be read-only, a copy is not
        path.chmod(path.stat().st_mode | stat.S_IWUSR)
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
    released files. Raises InputError for an unknown lesson and a folder that cannot be written to,
    LabError if the lessons hold no solutions, or nbgrader is missing or refuses one.
    """
    notebooks = chosen(lessons, names)
    _require_solutions(lessons)
    if problems := unwritable(folder):
        raise InputError("release", problems)
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
        without = shutil.ignore_patterns(OUT, ".*", "__pycache__")
        shutil.copytree(lesson.parent / name, source / name, ignore=without)
    clear_files(source)  # nbgrader does this for notebooks, on the way from source/ to release/
    made = nbgrader.generate_assignment(lesson.stem)
    if not made["success"]:
        raise LabError(
            f"{lesson.name}: nbgrader could not release it:\n{made.get('error') or made.get('log')}"
        )
    return folder / "release" / lesson.stem / lesson.name
