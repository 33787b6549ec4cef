"""Reports kept in a repository: small files beside a study, which a command makes again."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.config.study import Study
from lab.errors import InputError, Problem
from lab.files import read_json, write_atomically
from lab.records.store import DISTURBED, Store, read_record
from lab.report.artifacts import github_page
from lab.report.build import Report, profiles_and_calibrations, report

KEPT, PAGE, ENTRY = "kept", "report.md", "entry.json"
_ABSOLUTE = re.compile(r'"((?:/|~/|[A-Za-z]:\\)[^"]*)"')


def keep(study: Study) -> list[Path]:
    """Keep the report of a study in its folder `kept/`, as `remake` writes it; returns its files.

    Beside it are what it is made of: the completed records and the predictions from `out/`, and
    profiles with their calibrations; hosts are renamed node1, node2 and so on. Raises InputError if
    nothing is completed, and for a file that holds an absolute path.
    """
    sources = dict(_sources(study))
    if not any(path.name == "record.json" for path in sources):
        advice = f"`{study.command('run')}` measures it"
        raise InputError(study.name, [Problem("records", "none is completed", advice)])
    hosts: dict[str, str] = {}
    contents = {path: _content(source, hosts) for path, source in sources.items()}
    folder = study.folder / KEPT
    shutil.rmtree(folder, ignore_errors=True)
    for path, content in contents.items():
        write_atomically(folder / path, content)
    _write_json(folder / ENTRY, {"quick": study.quick})
    return remake(study.folder)


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
    shutil.copytree(kept / "out", place / "out")
    if (kept / "slurm").is_dir():
        shutil.copytree(kept / "slurm", project / "slurm")
    for path in (folder / "study.yaml", *folder.glob("*.py")):
        shutil.copy(path, place)
    entry = read_json(kept / ENTRY) or {}
    with contextlib.chdir(project):
        study = Study.load(place, quick=bool(entry.get("quick")))
        made = report(study)
    files = github_page(made.notebook, title=study.title)
    _, name, alt = first_figure(made.notebook)
    about = {"quick": study.quick, "answer": made.answer, "alt": alt}
    files[ENTRY] = _json(about | {"picture": f"figures/{name}.svg" if name else ""})
    return made, {name: text.encode() for name, text in files.items()}


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
    store, out = Store(study.out), Path("out")
    replays = False
    for task in study.tasks:
        for folder in (store.folder(task), store.folder(task) / DISTURBED):
            record = read_record(folder / "record.json")
            if record is not None and record.completed:
                replays |= bool(record.environment and record.environment.replay)
                path = folder / "record.json"
                yield out / path.relative_to(study.out), path
    for path in sorted(study.out.glob("predictions/*.json")):
        yield out / path.relative_to(study.out), path
    for path in [] if replays else profiles_and_calibrations(study):  # replays come with the lab
        if path.is_file():
            inner = Path("slurm", "calibration") if path.suffix == ".json" else Path("slurm")
            yield inner / path.name, path


def _content(path: Path, hosts: dict[str, str]) -> bytes:
    """A file as it is kept: JSON in one line, and without names of the machine."""
    if path.suffix != ".json":
        return path.read_bytes()
    text = json.dumps(_renamed(json.loads(path.read_bytes()), hosts), separators=(",", ":"))
    if match := _ABSOLUTE.search(text):
        advice = "a path of this machine does not belong into a repository"
        raise InputError(str(path), [Problem("record", f"holds {match[1]}", advice)])
    return text.encode()


def _renamed(part: Any, hosts: dict[str, str]) -> Any:
    if isinstance(part, list):
        return [_renamed(item, hosts) for item in part]
    if not isinstance(part, dict):
        return part
    return {
        key: [hosts.setdefault(host, f"node{len(hosts) + 1}") for host in value]
        if key == "hosts"
        else _renamed(value, hosts)
        for key, value in part.items()
    }


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_atomically(path, _json(content).encode())
