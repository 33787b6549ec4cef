"""`lab course results`: the measurements that a class handed in, as one table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.course.grade import Submission, submissions_in
from lab.course.replay import handed_in
from lab.files import write_atomically
from lab.records.store import Record, read_record
from lab.records.table import row

if TYPE_CHECKING:
    import pandas as pd

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet runs text that begins like this


def class_results(
    submissions: str | Path, *, output: str | Path | None = None, anonymous: bool = False
) -> pd.DataFrame:
    """One row for each repeat of each student, and its CSV at `output`.

    Columns are those of `lab.table`, after `student`, `lesson` (the first in which the record was
    handed in), `study`, `configuration`, `cpu` and `gpu`. `anonymous` numbers the students. Records
    are read as data; `lab course grade` checks whether they are sound. Raises InputError if nothing
    was handed in, LabError if a record cannot be read.
    """
    import pandas as pd

    one_each: dict[tuple[Any, ...], dict[str, Any]] = {}
    numbers: dict[str, str] = {}
    for submission in submissions_in(Path(submissions)):
        name = submission.student
        shown = numbers.setdefault(name, f"student {len(numbers) + 1}") if anonymous else name
        for study, record in _records(submission):
            key = (name, study, record.run_id, record.repeat, record.finished_at)
            if key not in one_each:
                one_each[key] = _row(shown, submission.lesson, study, record)
    frame = pd.DataFrame(list(one_each.values()))
    if output is not None:
        write_atomically(Path(output), frame.map(_harmless).to_csv(index=False).encode())
    return frame


def _records(submission: Submission) -> Iterator[tuple[str, Record]]:
    for place in handed_in(submission.folder):
        if place.name == "record.json":
            record = read_record(submission.folder / place)
            if record is not None and record.completed:
                yield place.parts[1], record


def _row(student: str, lesson: str, study: str, record: Record) -> dict[str, Any]:
    environment = record.environment
    return {
        "student": student,
        "lesson": lesson,
        "study": study,
        "configuration": record.run.label,
        "cpu": environment and environment.cpu,
        "gpu": environment and environment.gpu,
        **row(record),
    }


def _harmless(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def spread(collected: pd.DataFrame) -> list[dict[str, Any]]:
    """A row for each configuration: students, and their shortest, median and longest step."""
    if collected.empty:
        return []
    keys = ["study", "configuration"]
    own = collected.groupby([*keys, "student"], sort=False)["step_time"].median()
    steps = (1e3 * own.dropna()).groupby(keys, sort=False).agg(["count", "min", "median", "max"])
    return [
        {key: step[key] for key in keys}
        | {"students": step["count"]}
        | {f"{name} (ms)": f"{step[name]:.4g}" for name in ("min", "median", "max")}
        for step in steps.reset_index().to_dict("records")
    ]
