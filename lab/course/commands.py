"""`lab course`: each verb calls one function of this package and prints its answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from lab.errors import LabError
from lab.formatting import count
from lab.terminal import ClusterOption, JsonOption, QuickOption, answer, numbers, relative, table_of

LessonsArgument = Annotated[
    list[str] | None, Argument(metavar="LESSON", help="Such as 04-strong-scaling.")
]
SubmissionsArgument = Annotated[
    Path, Argument(metavar="SUBMISSIONS", help="STUDENT/LESSON folders, as handed in.")
]
course = typer.Typer(no_args_is_help=True, help="The course's lessons.")


@course.command()
def lessons(
    folder: Annotated[Path, Argument(metavar="DIR", help="A new or empty folder.")],
    solutions: Annotated[
        bool, Option("--solutions", help="With the solutions, for instructors.")
    ] = False,
) -> None:
    """Copy the course's notebooks, with their studies and tables."""
    from lab.course.release import copy_lessons

    copied = relative(*copy_lessons(folder, solutions=solutions))
    answer(False, None, copied, "next: jupyter lab, in that folder")


@course.command()
def release(
    folder: Annotated[Path, Argument(metavar="DIR", help="The course folder, new or not.")],
    names: LessonsArgument = None,
    as_json: JsonOption = False,
) -> None:
    """Make a course folder for nbgrader, with and without solutions."""
    from lab.course.release import release

    released = release(folder, names=tuple(names or ()))
    next_step = (
        f"next: hand out {relative(folder / 'release')}; source/ beside it has the solutions"
    )
    answer(as_json, released, relative(*released), next_step)


@course.command()
def slides(
    folder: Annotated[Path, Argument(metavar="DIR", help="Where the slides are written.")],
    names: LessonsArgument = None,
    copy: Annotated[
        Path | None,
        Option("--lessons", metavar="COPY", help="A copy of the lessons, with what it measured."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make slides from the lessons, which need no network."""
    from lab.course.release import LESSONS
    from lab.course.slides import lesson_slides

    made = lesson_slides(folder, lessons=copy or LESSONS, names=names or ())
    rows = [
        {"lesson": one.file.stem, "slides": one.slides, "results left out": one.left_out or None}
        | {"because": one.reason if one.left_out else None}
        for one in made
    ]
    next_step = "next: open one in a browser; Space and arrows turn the slides, f fills the screen"
    answer(as_json, made, table_of(rows), relative(folder), next_step)


@course.command()
def collect(
    sources: Annotated[
        list[str], Argument(metavar="FOLDER", help="Where the STUDENT/LESSON folders are.")
    ],
    into: Annotated[
        Path, Option("--into", metavar="SUBMISSIONS", help="Where they are copied to.")
    ] = Path("submitted"),
    as_json: JsonOption = False,
) -> None:
    """Copy what students handed in to your own folder, for grading."""
    from lab.course.release import collect

    collected = collect(sources, into=into)
    rows = [
        {"student": one.student, "lesson": one.lesson, "files": one.files}
        | {"MB": f"{one.bytes / 1e6:.1f}", "owner": one.owner, "newest": one.newest}
        | {"problem": one.problem}
        for one in collected
    ]
    answer(as_json, collected, table_of(rows), f"next: lab course grade {into}")
    if incomplete := [one for one in collected if one.problem]:
        names = ", ".join(dict.fromkeys(one.student for one in incomplete))
        raise LabError(f"not copied completely: {names}")


@course.command()
def grade(
    submissions: SubmissionsArgument,
    output: Annotated[
        Path, Option("--output", "-o", metavar="CSV", help="Where each point is explained.")
    ] = Path("grades.csv"),
    shared_records: Annotated[
        bool, Option("--shared-records", help="Students may hand in the same records.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Grade what students handed in, without running their notebooks."""
    from lab.course.grade import grade, totals

    grades = grade(submissions, output=output, shared_records=shared_records)
    answer(as_json, grades, table_of(totals(grades)), relative(output))


@course.command()
def results(
    submissions: SubmissionsArgument,
    output: Annotated[
        Path, Option("--output", "-o", metavar="CSV", help="A row for each repeat of each student.")
    ] = Path("class.csv"),
    anonymous: Annotated[bool, Option("--anonymous", help="Numbers in place of names.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what students measured, and how far their machines differ."""
    from lab.course.grade import class_results, spread

    collected = class_results(submissions, output=output, anonymous=anonymous)
    rows = spread(collected)
    answer(as_json, rows, table_of(rows), relative(output))


@course.command()
def budget(
    folder: Annotated[
        Path | None,
        Argument(metavar="DIR", help="A copy of the lessons in which you have measured."),
    ] = None,
    cluster: ClusterOption = "local",
    quick: QuickOption = False,
    minutes: Annotated[
        float | None, Option("--minutes", min=0.01, help="For a job whose time is not known yet.")
    ] = None,
    students: Annotated[
        str, Option("--students", metavar="N,...", help="Class sizes.")
    ] = "10,30,100",
    as_json: JsonOption = False,
) -> None:
    """Show the hours that the course's jobs take, by class size."""
    sizes = numbers(students, "--students", "course budget", "such as 10,30", of="students")
    from lab.course.budget import class_budget, class_hours
    from lab.course.release import LESSONS

    budgets = class_budget(cluster, folder=folder or LESSONS, quick=quick, minutes_per_job=minutes)
    rows = [
        {
            "study": one.study,
            "lessons": " ".join(name[:2] if name[:2].isdigit() else name for name in one.lessons),
            "one student": f"{one.hours}",
            "cannot run": one.left_out or None,
            "because": one.reason or None,
        }
        for one in budgets
    ]
    classes = class_hours(budgets, sizes)
    unknown = sum(one.hours.unknown for one in budgets)
    hint = [f"{count(unknown, 'job')} not counted: give --minutes per job"] if unknown else []
    content = {"studies": budgets, "classes": classes}
    answer(as_json, content, table_of(rows), "", table_of(classes), *hint)


@course.command()
def catalogue(
    path: Annotated[Path, Argument(metavar="PO", help="The catalogue, such as fr.po.")],
    as_json: JsonOption = False,
) -> None:
    """Write or update a translation of hints and verdicts."""
    from lab.course.catalogue import update_catalogue

    state = update_catalogue(path)
    done = f"{state.translated} of {state.messages} messages are translated"
    unsure = f", {state.fuzzy} marked as fuzzy" if state.fuzzy else ""
    answer(as_json, state, f"{relative(path)}: {done}{unsure}")
    if state.faults:
        listed = "\n".join(f"  {one}" for one in state.faults)
        raise LabError(f"{count(len(state.faults), 'translation')} cannot be used\n{listed}")
