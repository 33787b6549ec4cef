"""`lab course budget`: the cost of the course's jobs for a class, before any is started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from lab.config.cluster import Cluster
from lab.config.study import OUT, STUDY_FILE, Study
from lab.course.release import LESSONS
from lab.errors import InputError, path_of, require_type
from lab.formatting import rounded
from lab.launch.plan import Hours, of_job, plan
from lab.launch.preflight import usable


@dataclass(frozen=True)
class StudyHours:
    """The cost of a course study for one student; `left_out` jobs cannot run there.

    `reason` says why the first of them cannot.
    """

    study: str
    lessons: tuple[str, ...]
    hours: Hours
    left_out: int
    reason: str = ""


def class_budget(
    cluster: str | Cluster = "local",
    *,
    folder: str | Path = LESSONS,
    quick: bool = False,
    minutes_per_job: float | None = None,
) -> list[StudyHours]:
    """Core- and GPU-hours of each study of the lessons in `folder`, for one student.

    A job's time is that of the same run there before, else a prediction from measurements there,
    else `minutes_per_job`; without any of these it counts as unknown. Raises InputError for a
    folder without studies or notebooks that measure them, and for an unknown cluster.
    """
    place, profile = path_of(folder, "folder"), usable(cluster)
    require_type(minutes_per_job, Real | None, "minutes_per_job", "a number of minutes")
    studies = sorted(place.glob(f"**/studies/*/{STUDY_FILE}"))
    if not studies:
        raise _not_lessons(place, "no studies in it")
    notebooks = {  # without JupyterLab's checkpoints, and results
        path.stem: path.read_text("utf-8", errors="replace")
        for path in sorted(place.rglob("*.ipynb"))
        if not any(part == OUT or part[0] == "." for part in path.relative_to(place).parts)
    }
    budgets = []
    for path in studies:
        mark = f'studies/{path.parent.name}\\"'  # in the JSON of a notebook
        using = tuple(name for name, text in notebooks.items() if mark in text)
        if not using:  # a user's own study, or a copy of one
            continue
        study = Study.load(path.parent, quick=quick)
        jobs = list(_jobs(study, profile, minutes_per_job))
        total = sum((hours for hours, obstacle in jobs if not obstacle), Hours())
        obstacles = [obstacle for _, obstacle in jobs if obstacle]
        first = next(iter(obstacles), "")
        budgets.append(StudyHours(path.parent.name, using, total, len(obstacles), first))
    if not budgets:
        raise _not_lessons(place, "no notebook that measures one of its studies")
    return budgets


def _not_lessons(place: Path, what: str) -> InputError:
    return InputError.of(place, "DIR", what, "name a folder of `lab course lessons`")


def _jobs(study: Study, profile: Cluster, minutes: float | None) -> Iterator[tuple[Hours, str]]:
    """The time of each job of the study, measured or not, and why it cannot run there, if so."""
    rows = {row["run"]: row for row in plan(study, profile)}
    for task in study.tasks:
        row = rows[task.run.id]
        times = (row["seconds"], row["predicted_s"], minutes and 60 * minutes)
        seconds = next((time for time in times if time is not None), None)
        yield of_job(task.run, profile, seconds), row["cannot run"]


def class_hours(budgets: Sequence[StudyHours], students: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each class size: hours if each student measures, if pairs do, and if measured once.

    Empty if the time of some job is unknown.
    """
    each = sum((budget.hours for budget in budgets), Hours())
    if each.unknown:
        return []
    unit = "GPU-hours" if each.gpu else "core-hours"
    hours = each.gpu or each.core
    return [
        {
            "students": count,
            f"{unit}, each alone": rounded(count * hours),
            "in pairs": rounded(-(-count // 2) * hours),
            "measured once for all": rounded(hours),
        }
        for count in students
    ]
