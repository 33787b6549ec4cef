"""Reports kept in a repository, and all studies of a folder on one page.

A kept report is small files beside its study, which a command makes again. The page shows each
study's question, answer and picture, and the state of its records.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from lab.config.study import OUT, STUDY_FILE, Study
from lab.errors import InputError, LabError, combined
from lab.files import read_json, write_atomically
from lab.records.store import DISTURBED, KEPT, PREDICTIONS, RECORD, Store, load_records, read_record
from lab.report.artifacts import github_page, light
from lab.report.blocks import Markdown, escaped
from lab.report.build import Report, profiles_and_calibrations, report
from lab.report.execute import shared_kernels
from lab.report.html import LabHTMLExporter

T = TypeVar("T")
PAGE, ENTRY = "report.md", "entry.json"
_ABSOLUTE = re.compile(r'"((?:/|~/|[A-Za-z]:\\)[^"]*)"')
TITLE = "Studies and their answers"
UNMEASURED = "not measured here"
ABOUT = (
    "Made by `lab report --all`. Of the studies marked as kept, records and report are in this "
    "repository; `make kept` makes these reports again. `lab run STUDY` measures the others."
)


def keep(study: Study) -> list[Path]:
    """Keep the report of a study in its folder `kept/`, as `remake` writes it; returns its files.

    Beside it are what it is made of: the completed records and the predictions from `out/`, and
    profiles with their calibrations; hosts are renamed node1, node2 and so on. Raises InputError if
    nothing is completed, and for a file that holds an absolute path.
    """
    sources = dict(_sources(study))
    if not any(path.name == RECORD for path in sources):
        advice = f"`{study.command('run')}` measures it"
        raise InputError.of(study.name, "records", "none is completed", advice)
    hosts: dict[str, str] = {}
    contents = {path: _content(source, hosts) for path, source in sources.items()}
    with tempfile.TemporaryDirectory(dir=study.folder, prefix=f".{KEPT}.") as room:
        # Made in a copy of the study, so that a failure leaves what was kept before.
        copy = Path(room, study.folder.name)
        _copy_study(study.folder, copy)
        for path, content in contents.items():
            write_atomically(copy / KEPT / path, content)
        write_atomically(copy / KEPT / ENTRY, json.dumps({"quick": study.quick}).encode())
        files, kept = remake(copy), study.folder / KEPT
        if kept.exists():
            kept.rename(Path(room, "before"))
        (copy / KEPT).rename(kept)
    return [kept / path.relative_to(copy / KEPT) for path in files]


def _copy_study(source: Path, target: Path) -> None:
    """Copy a study's file and code, without its results."""
    target.mkdir(parents=True, exist_ok=True)
    for path in (source / STUDY_FILE, *source.glob("*.py")):
        shutil.copy(path, target)


def remake(folder: Path) -> list[Path]:
    """Write the kept report of a study again, from the records beside it; returns its files."""
    with tempfile.TemporaryDirectory() as project:
        _, files = remade(folder, Path(project))
    kept = folder / KEPT
    shutil.rmtree(kept / "figures", ignore_errors=True)
    for name, content in files.items():
        write_atomically(kept / name, content)
    return [kept / name for name in files]


def remade(folder: Path, project: Path) -> tuple[Report, dict[str, bytes]]:
    """A kept report made in an empty folder: page, figures and entry by their names in `kept/`.

    It depends on no record, profile or calibration but those kept.
    """
    kept, place = folder / KEPT, project.resolve() / "reports" / folder.name
    shutil.copytree(kept / OUT, place / OUT)
    if (kept / "slurm").is_dir():
        shutil.copytree(kept / "slurm", project / "slurm")
    _copy_study(folder, place)
    entry = read_json(kept / ENTRY) or {}
    with contextlib.chdir(project):
        study = Study.load(place, quick=bool(entry.get("quick")))
        result = report(study)
    files = github_page(result.notebook, title=study.title)
    _, name, alt = first_figure(result.notebook)
    about = {"quick": study.quick, "answer": result.answer, "alt": alt}
    about["picture"] = f"figures/{name}.svg" if name else ""
    files[ENTRY] = json.dumps(about, indent=1, ensure_ascii=False) + "\n"
    return result, {name: text.encode() for name, text in files.items()}


def first_figure(notebook: Path) -> tuple[str, str, str]:
    """The first captioned figure of a report: SVG, label, alternative text; empty without one."""
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        for output in cell.get("outputs", ()):
            about = output.get("metadata", {}).get("image/svg+xml", {})
            if about.get("caption"):
                svg = "".join(output["data"]["image/svg+xml"])
                return svg, str(about.get("label", "")), str(about.get("alt", ""))
    return "", "", ""


def _sources(study: Study) -> Iterator[tuple[Path, Path]]:
    """The files of which a report is made, by their places in `kept/`."""
    store, out = Store(study.out), Path(OUT)
    replays = False
    for task in study.tasks:
        for folder in (store.folder(task), store.folder(task) / DISTURBED):
            record = read_record(folder / RECORD)
            if record is not None and record.completed:
                replays |= bool(record.environment and record.environment.replay)
                path = folder / RECORD
                yield out / path.relative_to(study.out), path
    for path in sorted(study.out.glob(f"{PREDICTIONS}/*.json")):
        yield out / path.relative_to(study.out), path
    # Replays come with the lab.
    for path in [] if replays else profiles_and_calibrations(load_records(study)):
        if path.is_file():
            inner = Path("slurm", "calibration") if path.suffix == ".json" else Path("slurm")
            yield inner / path.name, path


def _content(path: Path, hosts: dict[str, str]) -> bytes:
    """A file as it is kept: JSON in one line, and without names of the machine."""
    if path.suffix != ".json":
        return path.read_bytes()
    text = json.dumps(_renamed(json.loads(path.read_bytes()), hosts), separators=(",", ":"))
    if match := _ABSOLUTE.search(text):
        advice = "a path of this machine does not belong in a repository"
        raise InputError.of(path, "record", f"holds {match[1]}", advice)
    return text.encode()


def _renamed(part: Any, hosts: dict[str, str]) -> Any:
    """Part of a JSON file with hosts, and the nodes of an allocation, by their new names."""
    if isinstance(part, list):
        return [_renamed(item, hosts) for item in part]
    if not isinstance(part, dict):
        return part
    return {
        key: [_new_name(host, hosts) for host in value]
        if key in {"hosts", "nodes"} and isinstance(value, list)
        else _renamed(value, hosts)
        for key, value in part.items()
    }


def _new_name(host: str, hosts: dict[str, str]) -> str:
    # A scheduler may leave out the domain; an address has none.
    return hosts.setdefault(re.split(r"\.(?=[a-zA-Z])", host)[0], f"node{len(hosts) + 1}")


class Entry(NamedTuple):
    """One study on the page; without a report `page` and `picture` are empty."""

    study: Study
    answer: str
    state: str
    page: str  # its report and its picture, relative to the folder of the studies
    picture: str
    alt: str


def gallery(folder: Path) -> tuple[Path, Path, list[LabError]]:
    """Make the reports of all studies with records; write `index.html` and `README.md` into it.

    A study is shown in its full form if that has records, else in its quick one, else as it is
    kept. Returns the two pages, and the errors of studies that had to be left out. Raises
    InputError for a folder without studies, and LabError if none can be shown.
    """
    with shared_kernels():
        entries, errors = _of_each(
            _places(folder), lambda place: _measured(place) or as_kept(place)
        )
    page, readme = folder / "index.html", folder / "README.md"
    write_atomically(page, _page(entries, folder).encode())
    write_atomically(readme, _readme(entries).encode())
    return page, readme, errors


def remake_kept(folder: Path) -> tuple[list[Path], list[LabError]]:
    """Make all kept reports again from what is kept, and `README.md` of these alone.

    Returns the files and the errors, and raises, as `gallery` does.
    """
    with shared_kernels():
        made, errors = _of_each(_places(folder), _remade_entry)
    readme = folder / "README.md"
    write_atomically(readme, _readme([entry for entry, _ in made]).encode())
    return [*(file for _, files in made for file in files), readme], errors


def _remade_entry(place: Path) -> tuple[Entry, list[Path]]:
    files = remake(place) if (place / KEPT).is_dir() else []
    return as_kept(place), files


def _of_each(places: list[Path], make: Callable[[Path], T]) -> tuple[list[T], list[LabError]]:
    """What is made of each study, and the errors of the others; raises these if none is made."""
    made, errors = [], []
    for place in places:
        try:
            made.append(make(place))
        except LabError as error:
            errors.append(error)
    if not made:
        raise combined(errors)
    return made, errors


def _places(folder: Path) -> list[Path]:
    places = sorted(path.parent for path in folder.glob(f"*/{STUDY_FILE}"))
    if not places:
        raise InputError.of(
            folder, "folder", "holds no study", "give the folder that holds the studies"
        )
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
    result = report(study)
    svg, _, alt = first_figure(result.notebook)
    inside, picture = f"{place.name}/out", study.out / "picture.svg"
    if svg:
        write_atomically(picture, light(svg).encode())
    shown = f"{inside}/{picture.name}" if svg else ""
    return Entry(study, result.answer, state, f"{inside}/{result.html.name}", shown, alt)


def as_kept(place: Path) -> Entry:
    """A study as a repository holds it: with what is kept, and nothing of this machine."""
    folder = place / KEPT
    about = read_json(folder / ENTRY)
    if about is None:
        return Entry(Study.load(place), "", UNMEASURED, "", "", "")
    study, inside = Study.load(place, quick=bool(about.get("quick"))), f"{place.name}/{KEPT}"
    answer, picture, alt = (str(about.get(name, "")) for name in ("answer", "picture", "alt"))
    picture = f"figures/{Path(picture).name}"
    shown = f"{inside}/{picture}" if (folder / picture).is_file() else ""
    state = f"kept, {_state(study, folder / OUT)}"
    return Entry(study, answer, state, f"{inside}/{PAGE}", shown, alt)


def _state(study: Study, out: Path) -> str:
    """How many of its repeats are completed; empty if none is."""
    completed = sum(map(Store(out).completed, study.tasks))
    form = "quick form: " if study.quick else ""
    return f"{form}{completed} of {len(study.tasks)} repeats completed" if completed else ""


def _page(entries: list[Entry], folder: Path) -> str:
    cells = [new_markdown_cell(f"# {TITLE}")]
    for entry in entries:
        title = escaped(entry.study.title)
        heading = f"## [{title}]({quote(entry.page)})" if entry.page else f"## {title}"
        state = f"<small>{escaped(entry.state)}</small>"
        parts = [heading, escaped(entry.study.question), escaped(entry.answer), state]
        cells.append(new_markdown_cell("\n\n".join(parts)))
        if entry.picture:
            data = {"image/svg+xml": (folder / entry.picture).read_text("utf-8")}
            about = {"image/svg+xml": {"alt": entry.alt}}
            output = new_output("display_data", data=data, metadata=about)
            cells.append(new_code_cell("", outputs=[output]))
    book = new_notebook(cells=cells, metadata={"title": TITLE})
    return str(LabHTMLExporter().from_notebook_node(book)[0])


def _readme(entries: list[Entry]) -> str:
    lines = [f"# {TITLE}", "", ABOUT, "", "| study | question and answer | |", "|---|---|---|"]
    for entry in entries:
        title, study = escaped(entry.study.title), entry.study.name
        link = f"[{title}]({quote(entry.page or f'{study}/{STUDY_FILE}')})"
        answer = Markdown.of(entry.answer, strong=True).markdown
        alt = escape(entry.alt).replace("|", "&#124;")  # which ends a cell
        picture = f'<img src="{quote(entry.picture)}" width="320" alt="{alt}">'
        texts = "<br><br>".join(filter(None, (escaped(entry.study.question), answer)))
        cells = (f"{link}<br><br>{entry.state}", texts)
        lines.append(f"| {' | '.join([*cells, picture if entry.picture else ''])} |")
    return "\n".join(lines) + "\n"
