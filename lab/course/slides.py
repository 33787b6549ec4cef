"""`lab course slides`: slides of the lessons, made from the lessons themselves, offline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.course.release import LESSONS, chosen
from lab.errors import InputError, LabError, items, path_of
from lab.files import unwritable, write_atomically

if TYPE_CHECKING:
    from nbformat import NotebookNode

# Records in place of jobs: slides start none, and what needs a record that is missing is left out.
READ_RECORDS = "from lab.course.replay import replace_jobs\nreplace_jobs()"


@dataclass(frozen=True)
class Slides:
    """The slides of a lesson: how many, which results are left out, and the first reason."""

    file: Path
    slides: int
    left_out: int
    reason: str


def lesson_slides(
    folder: str | Path, *, lessons: str | Path = LESSONS, names: Sequence[str] = ()
) -> list[Slides]:
    """Write `folder`/<lesson>.html for all `lessons`, or for those with these `names`.

    Cells with a slide type are shown without code, and solutions never. Pictures are drawn again,
    results of jobs from records below `lessons`, which may be a copy; no job is started. Raises
    InputError for an unknown lesson and a folder that cannot be written, LabError if a kernel dies.
    """
    folder, lessons = path_of(folder, "folder"), path_of(lessons, "lessons")
    wanted = "a list of lessons, such as ['04-strong-scaling']"
    notebooks = chosen(lessons, items(names, str, "names", wanted))
    if problems := unwritable(folder):
        raise InputError(str(folder), problems)
    return [_slides(path, folder / f"{path.stem}.html") for path in notebooks]


def _slides(lesson: Path, target: Path) -> Slides:
    from lab.report.slides import LabSlidesExporter, slide_type

    notebook = _executed(lesson)
    reasons = [error.evalue for error in _errors(notebook.cells) if error.ename == "LabError"]
    left_out = _keep_slides(notebook)
    html, _ = LabSlidesExporter().from_notebook_node(notebook)
    write_atomically(target, html.encode())
    count = sum(slide_type(cell) in {"slide", "subslide"} for cell in notebook.cells)
    return Slides(target, count, left_out, reasons[0] if left_out and reasons else "")


def _executed(lesson: Path) -> NotebookNode:
    """A lesson without exercises, of which every cell that needs no job has its result."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import DeadKernelError

    from lab.report.execute import STARTUP_S, kernel_settings, separate_profile

    notebook: NotebookNode = nbformat.read(lesson, 4)
    notebook.cells = [cell for cell in notebook.cells if not cell.metadata.get("nbgrader")]
    notebook.cells.insert(0, nbformat.v4.new_code_cell(READ_RECORDS))
    try:
        with kernel_settings() as config:
            NotebookClient(
                notebook,
                allow_errors=True,
                kernel_name="python3",
                extra_arguments=[separate_profile(config)],
                startup_timeout=STARTUP_S,
                resources={"metadata": {"path": str(lesson.parent)}},
                config=config,
            ).execute()
    except (DeadKernelError, AssertionError):  # what nbclient's cleaning up then raises
        raise LabError(f"{lesson.name}: its kernel died (out of memory?)") from None
    return notebook


def _keep_slides(notebook: NotebookNode) -> int:
    """Keep the cells that slides show; returns how many results are left out, as they failed.

    Cells of code one after the other make one result, such as a figure and how far to trust it.
    """
    from lab.report.slides import CHOSEN, slide_type

    kept: list[NotebookNode] = []
    lost = 0
    for _, group in groupby(notebook.cells, key=lambda cell: cell.cell_type):
        cells = list(group)
        shown = [cell for cell in cells if slide_type(cell) in CHOSEN]
        failed = bool(_errors(cells))
        lost += failed and bool(shown)
        kept += [] if failed else shown
    notebook.cells = kept
    return lost


def _errors(cells: Sequence[NotebookNode]) -> list[Any]:
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    return [output for output in outputs if output.output_type == "error"]
