"""`lab course grade` and `lab course results`: the points and the measurements of a class.

Each grade comes with its reason. No code from a student's notebook runs: answers and records are
read as data in a separate process (`lab.course.replay`), and files of the ladder run confined on
ranks (`lab.course.ranks`).
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.config.study import OUT, require_printable
from lab.course.check import WrongAnswerError
from lab.course.ladder import RUNGS
from lab.course.language import catalogue_in_use, read_catalogue, tr
from lab.course.ranks import LARGEST_FILE, judge
from lab.course.release import LESSONS
from lab.course.replay import cells, checks, handed_in
from lab.course.solutions import without_solutions
from lab.errors import InputError, LabError, path_of
from lab.files import write_atomically
from lab.launch.confined import set_limits
from lab.records.store import RECORD, RUNS, Record, read_record
from lab.records.table import grouped
from lab.records.table import row as row_of

if TYPE_CHECKING:
    import pandas as pd

REPLAY_S = 300.0  # for one lesson of one student
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet runs text that begins like this


@dataclass(frozen=True)
class Grade:
    """The points of one exercise; None if a person has to judge it."""

    student: str
    lesson: str
    exercise: str
    points: float | None
    of: float
    reason: str


@dataclass(frozen=True)
class Submission:
    """What a student handed in for one lesson."""

    student: str
    lesson: str
    folder: Path


def grade(
    submissions: str | Path, *, output: str | Path | None = None, shared_records: bool = False
) -> list[Grade]:
    """Grade `submissions`/<student>/<lesson>/, and write the grades as CSV to `output`.

    If records were edited, or two students handed in the same ones, no answer of that lesson gets
    points, except files of the ladder; `shared_records` permits shared ones. Raises InputError if
    nothing was handed in or LAB_CATALOGUE names no catalogue, LabError if this machine cannot
    confine code.
    """
    if catalogue := catalogue_in_use():
        read_catalogue(catalogue)  # once for the class, not a failed replay for each student
    replays = {one: _replay(one) for one in submissions_in(submissions)}
    owners = grouped(
        (signature, one.student)
        for one, replay in replays.items()
        for signature in replay["signatures"]
    )
    grades: list[Grade] = []
    for one, replay in replays.items():
        others = {owner for signature in replay["signatures"] for owner in owners[signature]}
        others.discard(one.student)
        faults = list(replay["faults"])
        if others and not shared_records:
            students = ", ".join(sorted(others))
            faults.append(tr("records are the same as those of {students}", students=students))
        grades += _of_checks(one, replay, faults)
        grades += _of_files(one)
    if output is not None:
        import pandas as pd

        columns = [field.name for field in fields(Grade)]
        write_atomically(Path(output), _csv(pd.DataFrame(map(asdict, grades), columns=columns)))
    return grades


def submissions_in(submissions: str | Path) -> list[Submission]:
    """The lessons of all students, in order.

    Raises InputError if there is none, or for a student whose name no table could hold.
    """
    folder = path_of(submissions, "submissions")
    lessons = {path.stem for path in LESSONS.glob("*.ipynb")}
    of_students = [
        Submission(place.parent.name, place.name, place.resolve())
        for place in sorted(folder.glob("*/*"))
        if place.name in lessons and place.is_dir() and not place.is_symlink()
    ]
    for one in of_students:
        require_printable(one.student, "SUBMISSIONS")
    if not of_students:
        advice = (
            "name one with a folder for each student, and in it one for each lesson, such as "
            "03-data-parallel"
        )
        what = "holds no lesson of a student" if folder.is_dir() else "no such folder"
        raise InputError.of(folder, "SUBMISSIONS", what, advice)
    return of_students


def _replay(one: Submission) -> dict[str, Any]:
    """The verdict of a separate process on the answers, or why that process failed."""
    command = [sys.executable, "-P", "-m", "lab.course.replay", one.lesson, str(one.folder)]
    # The process works in a folder of its own.
    environment = os.environ | {"LAB_CATALOGUE": str(catalogue_in_use() or "")}
    try:
        process = subprocess.run(
            command,
            capture_output=True,
            timeout=REPLAY_S,
            preexec_fn=set_limits,
            env=environment,
            check=False,
        )
        replay: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return _failed(tr("it took longer than {limit:.0f} s to read", limit=REPLAY_S))
    except (IndexError, ValueError):
        lines = process.stderr.decode(errors="replace").strip().splitlines()
        error = lines[-1] if lines else process.returncode
        return _failed(tr("it cannot be read: {error}", error=error))
    return replay


def _failed(reason: str) -> dict[str, Any]:
    return {"exercises": {}, "faults": [reason], "signatures": []}


def _of_checks(one: Submission, replay: dict[str, Any], faults: Sequence[str]) -> Iterator[Grade]:
    for name, most in _points(one.lesson, "lab.check"):
        right, reason = replay["exercises"].get(name, (False, tr("no answer was handed in")))
        if faults and right is not None:
            right, reason = False, tr("not graded: {faults}", faults="; ".join(faults[:3]))
        points = None if right is None else most * bool(right)
        yield Grade(one.student, one.lesson, name, points, most, reason)


def _of_files(one: Submission) -> Iterator[Grade]:
    for name, most in _points(one.lesson, "lab.check_ranks"):
        right, reason = _rung(one, name)
        yield Grade(one.student, one.lesson, name, most * right, most, reason)


def _rung(one: Submission, name: str) -> tuple[bool, str]:
    """Whether a file passes its rung at every world size, on an instance drawn for the student."""
    rung = RUNGS[name]
    path = one.folder / "studies" / "ladder" / rung.file
    if not path.is_file() or path.is_symlink():
        return False, tr("{file} was not handed in", file=rung.file)
    if path.stat().st_size > 4 * LARGEST_FILE:
        return False, tr("{file} is longer than a rung needs", file=rung.file)
    text = path.read_text("utf-8", errors="replace")
    if text == without_solutions((LESSONS / "studies" / "ladder" / rung.file).read_text()):
        return False, tr("{file} is as it was handed out", file=rung.file)
    name_seed = int.from_bytes(hashlib.sha256(f"{one.student} {name}".encode()).digest()[:8])
    try:
        for world_size in rung.ranks:
            seed = (name_seed, secrets.randbits(32))  # the instance cannot be known beforehand
            verdict = judge(name, text, path=path, world_size=world_size, seed=seed)
    except WrongAnswerError as error:
        return False, tr("on {world_size} ranks: {error}", world_size=world_size, error=error)
    return True, verdict.sentence


def _points(lesson: str, function: str) -> Iterator[tuple[str, float]]:
    """The exercises of a lesson that a function checks, with their points."""
    for mark, text in cells(lesson):
        if mark.get("grade"):
            for called, name, _ in checks(text):
                if called == function:
                    yield name, float(mark["points"])


def _csv(frame: pd.DataFrame) -> bytes:
    """A CSV file as in RFC 4180, whose texts no spreadsheet takes for formulas."""
    harmless = frame.map(
        lambda cell: f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell
    )
    return harmless.to_csv(index=False, lineterminator="\r\n").encode()


def totals(grades: Sequence[Grade]) -> list[dict[str, Any]]:
    """A row for each student and lesson: points, the maximum, and what is left to judge by hand.

    The last counts answers in words, too, which have no grade. Where several exercises got no
    points for the same reason, the row gives it.
    """
    groups = grouped(((row.student, row.lesson), row) for row in grades)
    return [
        {
            "student": student,
            "lesson": lesson,
            "points": f"{sum(row.points or 0 for row in rows):g}",
            "of": f"{sum(row.of for row in rows if row.points is not None):g}",
            "by hand": f"{_in_words(lesson) + sum(row.of for row in rows if row.points is None):g}",
            "no points because": _shared_reason(rows),
        }
        for (student, lesson), rows in groups.items()
    ]


def _shared_reason(rows: Sequence[Grade]) -> str:
    """The reason for which most exercises got no points, with their number; empty if all differ."""
    reasons = Counter(row.reason for row in rows if row.points == 0)
    ((reason, exercises),) = reasons.most_common(1) or [("", 0)]
    return f"{exercises} exercises: {reason}" if exercises > 1 else ""


def _in_words(lesson: str) -> float:
    """The points of a lesson's answers in words."""
    marks = (mark for mark, _ in cells(lesson, kind="markdown"))
    return sum(float(mark["points"]) for mark in marks if mark.get("grade"))


def class_results(
    submissions: str | Path, *, output: str | Path | None = None, anonymous: bool = False
) -> pd.DataFrame:
    """One row for each repeat of each student, and its CSV at `output`.

    Columns are those of `lab.table`, after `student`, `lesson` (the first in which the record was
    handed in), `study`, `configuration`, `cpu` and `gpu`. `anonymous` numbers the students. Records
    are read as data; `lab course grade` checks whether they are sound. Raises InputError if no
    record was handed in, LabError if a record cannot be read.
    """
    import pandas as pd

    one_each: dict[tuple[Any, ...], dict[str, Any]] = {}
    numbers: dict[str, str] = {}
    for submission in submissions_in(submissions):
        name = submission.student
        shown = numbers.setdefault(name, f"student {len(numbers) + 1}") if anonymous else name
        for study, record in _records(submission):
            key = (name, study, record.run_id, record.repeat, record.finished_at)
            if key not in one_each:
                one_each[key] = _row(shown, submission.lesson, study, record)
    if not one_each:
        advice = "students hand in the whole folder of a lesson, with studies/*/out"
        raise InputError.of(submissions, "SUBMISSIONS", "no completed record in it", advice)
    frame = pd.DataFrame(list(one_each.values()))
    if output is not None:
        write_atomically(Path(output), _csv(frame))
    return frame


def _records(submission: Submission) -> list[tuple[str, Record]]:
    """The completed records of a submission with their studies; an error names whose it is."""
    try:
        # Not those of attempts that were set aside or replaced.
        own = f"{OUT}/{RUNS}/*/*/{RECORD}"
        places = [place for place in handed_in(submission.folder) if place.match(own)]
        records = [(place.parts[1], read_record(submission.folder / place)) for place in places]
    except LabError as error:
        whose = f"{submission.student}/{submission.lesson}"
        raise LabError(f"{whose}: {error}; leave it out, or ask what it holds") from None
    return [(study, record) for study, record in records if record and record.completed]


def _row(student: str, lesson: str, study: str, record: Record) -> dict[str, Any]:
    environment = record.environment
    return {
        "student": student,
        "lesson": lesson,
        "study": study,
        "configuration": record.run.label,
        "cpu": environment and environment.cpu,
        "gpu": environment and environment.gpu,
        **row_of(record),
    }


def spread(collected: pd.DataFrame) -> list[dict[str, Any]]:
    """A row for each configuration: students, and their shortest, median and longest step.

    Those of a study are sorted by their ranks. Emulated results have rows of their own, as they
    differ by more than the machine.
    """
    if collected.empty:
        return []
    keys = ["study", "configuration", "emulated"]
    named = collected.fillna({"emulated": ""}).sort_values(["study", "world_size"], kind="stable")
    own = named.groupby([*keys, "student"], sort=False)["step_time"].median()
    steps = (1e3 * own.dropna()).groupby(keys, sort=False).agg(["count", "min", "median", "max"])
    return [
        {key: step[key] for key in keys}
        | {"students": step["count"]}
        | {f"{name} (ms)": f"{step[name]:.4g}" for name in ("min", "median", "max")}
        for step in steps.reset_index().to_dict("records")
    ]
