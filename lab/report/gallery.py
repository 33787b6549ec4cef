"""All studies of a folder on one page: question, answer, picture, state of the records."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import NamedTuple

from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from lab.config.study import Study
from lab.errors import InputError, Problem
from lab.files import write_atomically
from lab.records.store import Store
from lab.report.blocks import Markdown
from lab.report.build import report

TITLE = "Studies and their answers"
UNMEASURED = "not measured yet"


class Entry(NamedTuple):
    """One study on the page; without a report `page` and `picture` are empty."""

    study: Study
    answer: str
    state: str
    page: str  # its report and its picture, relative to the folder of the studies
    picture: str
    alt: str


def gallery(folder: Path) -> tuple[Path, Path]:
    """Make the reports of all studies with records; write `index.html` and `README.md` into it.

    A study is shown in its full form if that has records, else in its quick one. Raises InputError
    for a folder without studies.
    """
    places = sorted(path.parent for path in folder.glob("*/study.yaml"))
    if not places:
        problem = Problem("folder", "no study in it", "give the folder that holds the studies")
        raise InputError(str(folder), [problem])
    entries = [_entry(place) for place in places]
    page, readme = folder / "index.html", folder / "README.md"
    write_atomically(page, _page(entries, folder).encode())
    write_atomically(readme, _readme(entries).encode())
    return page, readme


def _measured(place: Path) -> tuple[Study, int]:
    """A study in the form that has records, and how many of its repeats are completed."""
    whole = Study.load(place)
    forms = [whole]
    with contextlib.suppress(InputError):  # it may have no quick form
        forms.append(Study.load(place, quick=True))
    for form in forms:
        store = Store(form.out)
        if completed := sum(store.completed(task) for task in form.tasks):
            return form, completed
    return whole, 0


def _entry(place: Path) -> Entry:
    study, completed = _measured(place)
    if not completed:
        return Entry(study, "", UNMEASURED, "", "", "")
    made = report(study)
    svg, alt = _picture(made.notebook)
    picture = study.out / "picture.svg"
    if svg:
        write_atomically(picture, svg.encode())
    form = "quick form: " if study.quick else ""
    state = f"{form}{completed} of {len(study.tasks)} repeats completed"
    inside = f"{place.name}/out"
    shown = f"{inside}/{picture.name}" if svg else ""
    return Entry(study, made.answer, state, f"{inside}/{made.html.name}", shown, alt)


def _picture(notebook: Path) -> tuple[str, str]:
    """The first captioned figure of a report as SVG, and its alternative text."""
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        for output in cell.get("outputs", ()):
            about = output.get("metadata", {}).get("image/svg+xml", {})
            if about.get("caption"):
                return "".join(output["data"]["image/svg+xml"]), str(about.get("alt", ""))
    return "", ""


def _page(entries: list[Entry], folder: Path) -> str:
    from lab.report.html import LabHTMLExporter

    cells = [new_markdown_cell(f"# {TITLE}")]
    for entry in entries:
        title = Markdown.of(entry.study.title).markdown
        heading = f"## [{title}]({entry.page})" if entry.page else f"## {title}"
        parts = [Markdown.of(text).markdown for text in (entry.study.question, entry.answer)]
        state = f"<small>{Markdown.of(entry.state).markdown}</small>"
        cells.append(new_markdown_cell("\n\n".join([heading, *parts, state])))
        if entry.picture:
            data = {"image/svg+xml": (folder / entry.picture).read_text("utf-8")}
            about = {"image/svg+xml": {"alt": entry.alt}}
            output = new_output("display_data", data=data, metadata=about)
            cells.append(new_code_cell("", outputs=[output]))
    book = new_notebook(cells=cells, metadata={"title": TITLE})
    return str(LabHTMLExporter().from_notebook_node(book)[0])


def _readme(entries: list[Entry]) -> str:
    lines = [f"# {TITLE}", "", "Made by `lab report --all`.", ""]
    lines += ["| study | question | answer | records |", "|---|---|---|---|"]
    for entry in entries:
        title = _cell(entry.study.title)
        link = f"[{title}]({entry.page})" if entry.page else title
        picture = f'<br><img src="{entry.picture}" width="320" alt="">' if entry.picture else ""
        cells = (link + picture, _cell(entry.study.question), _cell(entry.answer), entry.state)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return Markdown.of(text).markdown.replace("\n", " ")
