"""`lab course collect`: copy what learners put into a shared folder to where it is graded.

The data is untrusted: no link is followed, no pipe or device is opened, and sizes are limited so
that no submission can fill the disk.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from lab.course.release import LESSONS
from lab.errors import InputError, Problem
from lab.files import login, private_folder, unwritable

MOST_BYTES, MOST_FILES = 2 * 10**9, 50_000  # of one lesson of a student
BLOCK = 2**20  # bytes read at a time


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
    target, places = Path(into), list(map(Path, sources))
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
        lessons = [one for one in sorted(place.iterdir()) if _is_lesson(one)]
    except OSError as error:
        yield Collected(place.name, "", problem=f"cannot be opened: {error.strerror}")
        return
    for lesson in lessons:
        yield _of_lesson(lesson, target / place.name / lesson.name)
    if not lessons:
        yield Collected(place.name, "", problem="no folder in it is named after a lesson")


def _is_lesson(place: Path) -> bool:
    return stat.S_ISDIR(place.lstat().st_mode) and (LESSONS / f"{place.name}.ipynb").is_file()


def _of_lesson(source: Path, target: Path) -> Collected:
    """Copy one lesson next to its destination, then move it there in one step."""
    student, lesson = target.parent.name, target.name
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
    problem = f"{skipped} links, pipes or devices were left out" if skipped else ""
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
