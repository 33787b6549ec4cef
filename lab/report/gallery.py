"""All studies of a folder on one page: question, answer, picture, state of the records."""

from __future__ import annotations

import contextlib
from html import escape
from pathlib import Path
from typing import NamedTuple

from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from lab.config.study import Study
from lab.errors import InputError, Problem
from lab.files import read_json, write_atomically
from lab.records.store import Store
from lab.report import kept
from lab.report.artifacts import light
from lab.report.blocks import Markdown
from lab.report.build import report

TITLE = "Studies and their answers"
UNMEASURED = "not measured here"


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

    A study is shown in its full form if that has records, else in its quick one, else as it is
    kept. Raises InputError for a folder without studies.
    """
    entries = [_measured(place) or _kept(place) or _missing(place) for place in _places(folder)]
    page, readme = folder / "index.html", folder / "README.md"
    write_atomically(page, _page(entries, folder).encode())
    write_atomically(readme, _readme(entries).encode())
    return page, readme


def remake_kept(folder: Path) -> list[Path]:
    """Make all kept reports again from what is kept, and `README.md` of these alone.

    Returns the files. Raises InputError for a folder without studies.
    """
    places = _places(folder)
    kept_ones = [place for place in places if (place / kept.KEPT).is_dir()]
    files = [file for place in kept_ones for file in kept.remake(place)]
    readme = folder / "README.md"
    write_atomically(readme, readme_of_kept(folder).encode())
    return [*files, readme]


def readme_of_kept(folder: Path) -> str:
    """`README.md` as a repository holds it: with what is kept, and nothing of this machine."""
    return _readme([_kept(place) or _missing(place) for place in _places(folder)])


def _places(folder: Path) -> list[Path]:
    places = sorted(path.parent for path in folder.glob("*/study.yaml"))
    if not places:
        problem = Problem("folder", "holds no study", "give the folder that holds the studies")
        raise InputError(str(folder), [problem])
    return places


def _measured(place: Path) -> Entry | None:
    """A study in the form that has records, whose report is made where it is not up to date."""
    for quick in (False, True):
        with contextlib.suppress(InputError):  # it may have no quick form
            study = Study.load(place, quick=quick)
            if state := _state(study, study.out):
                break
    else:
        return None
    made = report(study)
    svg, _, alt = kept.first_figure(made.notebook)
    inside, picture = f"{place.name}/out", study.out / "picture.svg"
    if svg:
        write_atomically(picture, light(svg).encode())
    shown = f"{inside}/{picture.name}" if svg else ""
    return Entry(study, made.answer, state, f"{inside}/{made.html.name}", shown, alt)


def _kept(place: Path) -> Entry | None:
    folder = place / kept.KEPT
    about = read_json(folder / kept.ENTRY)
    if about is None:
        return None
    study, inside = Study.load(place, quick=bool(about.get("quick"))), f"{place.name}/{kept.KEPT}"
    answer, picture, alt = (str(about.get(name, "")) for name in ("answer", "picture", "alt"))
    picture = f"figures/{Path(picture).name}"
    shown = f"{inside}/{picture}" if (folder / picture).is_file() else ""
    state = f"kept, {_state(study, folder / 'out')}"
    return Entry(study, answer, state, f"{inside}/{kept.PAGE}", shown, alt)


def _missing(place: Path) -> Entry:
    return Entry(Study.load(place), "", UNMEASURED, "", "", "")


def _state(study: Study, out: Path) -> str:
    """How many of its repeats are completed; empty if none is."""
    completed = sum(map(Store(out).completed, study.tasks))
    form = "quick form: " if study.quick else ""
    return f"{form}{completed} of {len(study.tasks)} repeats completed" if completed else ""


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


ABOUT = (
    "Made by `lab report --all`. Of the studies marked as kept, records and report are in this "
    "repository; `make kept` makes these reports again. `lab run STUDY` measures the others."
)


def _readme(entries: list[Entry]) -> str:
    lines = [f"# {TITLE}", "", ABOUT, "", "| study | question and answer | |", "|---|---|---|"]
    for entry in entries:
        title, study = _cell(entry.study.title), entry.study.name
        link = f"[{title}]({entry.page or f'{study}/study.yaml'})"
        answer = f"<br><br>**{_cell(entry.answer)}**" if entry.answer else ""
        picture = f'<img src="{entry.picture}" width="320" alt="{escape(entry.alt)}">'
        cells = (f"{link}<br><br>{entry.state}", _cell(entry.study.question) + answer)
        lines.append(f"| {' | '.join([*cells, picture if entry.picture else ''])} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return Markdown.of(text).markdown.replace("\n", " ")
