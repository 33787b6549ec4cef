"""Reports: papermill executes the notebooks, nbconvert turns them into HTML and PDF files."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from lab import machine
from lab.config.cluster import find_profile
from lab.config.study import STUDY_FILE, Study
from lab.errors import InputError, LabError, path_of, require_type, require_utf8
from lab.files import (
    PACKAGE,
    SHARED,
    USER,
    read_json,
    read_yaml,
    source_date,
    unwritable,
    write_atomically,
)
from lab.perfmodel.calibration import calibration_path
from lab.records.store import PREDICTIONS, RECORD, RUN_NOTEBOOK, Record, Store, load_records
from lab.report.execute import Execution, execute, executing

if TYPE_CHECKING:
    from lab.analysis.comparison import Comparison
    from lab.analysis.proposal import Request
    from lab.analysis.reported import Kind
    from lab.records.schema import Unit
    from lab.report.html import LabHTMLExporter

NOTEBOOKS = SHARED / "notebooks"
_TEMPLATES = {
    "training": "report.ipynb",
    "prediction": "report.ipynb",
    "inference": "inference.ipynb",
}
_NOTHING = "nothing.ipynb"  # while no run has completed
PATIENCE_S = 1200  # a report of thousands of runs takes minutes


@dataclass(frozen=True)
class Report:
    """The files of a report, and what it says in a sentence each."""

    notebook: Path
    html: Path
    pdf: Path
    answer: str = ""
    predictions: str = ""  # how they compare with what was measured
    noise: str = ""  # how far the machine was disturbed
    artifacts: tuple[Path, ...] = ()  # if they were requested
    table: str = ""  # which one of several it is on


def report(study: Study | str | Path, *, artifacts: bool = False, runs: bool = False) -> Report:
    """Execute the notebook of a study on its records, and write `out/report.{ipynb,html,pdf}`.

    Starts no job, and executes nothing if the existing report was made from the same records by the
    same code. `artifacts` also writes its text, figures and tables as separate files into
    `out/artifacts/`, for other documents; `runs` also executes one notebook per record, about a
    second each. Waits while another process makes it. Raises LabError if a notebook fails, with the
    path of the partial one.
    """
    study = Study.of(study)
    with _alone(study):
        return _made(study, artifacts=artifacts, runs=runs)


@contextmanager
def _alone(study: Study) -> Iterator[None]:
    """Be the only process that makes a study's report: two would remove each other's files."""
    if unwritable(study.out):  # nothing can be made there
        yield
        return
    try:
        lock = FileLock(study.out / "report.lock").acquire(timeout=PATIENCE_S)
    except Timeout:
        message = f"another process has been making the report of {study.name} for"
        raise LabError(f"{message} {PATIENCE_S // 60} minutes; end it, then try again") from None
    with lock:
        yield


def _made(study: Study, *, artifacts: bool, runs: bool) -> Report:
    source_date()  # of the PDF, which is made last
    records, stem = load_records(study), study.out / "report"
    template = _template(study, records)
    source = fingerprint(study, template, records)
    path, files = stem.with_suffix(".json"), _files(stem)
    summary = read_json(path) or {}
    is_current = summary.get("made_of") == source and all(file.exists() for file in files)
    parameters = {"study": str(study.folder), "quick": study.quick}
    # The report takes longest, so it is first.
    executions = [] if is_current else [Execution(NOTEBOOKS / template, files[0], parameters)]
    with executing([*executions, *(_run_notebooks(study) if runs else ())]):
        if not is_current:
            summary = {"made_of": source, **_statements(study, records)}
            _exporters()  # imported while the kernels work
    if not is_current:
        _export(*files, title=study.title, authors=authors(study))
        write_atomically(path, json.dumps(summary).encode())
    parts = _parts(files[0], title=study.title, authors=authors(study)) if artifacts else ()
    return Report(*files, summary["answer"], summary["predictions"], summary["noise"], parts)


def _parts(notebook: Path, *, title: str, authors: Sequence[str] = ()) -> tuple[Path, ...]:
    """The parts of a report as files, in `artifacts/` beside its notebook."""
    from lab.report.artifacts import write_artifacts

    folder = notebook.parent / "artifacts"
    return tuple(write_artifacts(notebook, folder, title=title, authors=authors))


def _template(study: Study, records: Sequence[Record]) -> str:
    completed = any(record.completed for record in records)
    return _TEMPLATES[study.kind] if completed else _NOTHING


def _statements(study: Study, records: Sequence[Record]) -> dict[str, str]:
    """What is said of a study outside its report too."""
    from lab.analysis.results import StudyResults

    results = StudyResults(study)
    results.records = list(records)
    return {
        "answer": results.headline,
        "predictions": results.prediction_summary,
        "noise": results.noise.sentence,
    }


def authors(study: Study) -> list[str]:
    """The authors of a study: as it states, else `authors` in the user's `authors.yaml`."""
    path = USER / "authors.yaml"
    if study.authors or not path.is_file():
        return list(study.authors)
    names = read_yaml(path).get("authors")
    if isinstance(names, list) and all(isinstance(name, str) and name for name in names):
        return names
    raise InputError.of(path, "authors", "expected a list of names", "such as - Name, Place")


def fingerprint(study: Study, template: str, records: Sequence[Record]) -> str:
    """SHA-256 of all inputs of a report: code, template, study, records, predictions.

    It also covers the profiles of its records with their calibrations, and what this machine can
    run.
    """
    where = [os.path.relpath(study.folder), study.quick]
    where += [machine.cores(), machine.memory_bytes(), machine.gpus()]
    where += [os.environ.get("SOURCE_DATE_EPOCH"), sys.version]
    digest = hashlib.sha256(repr(where).encode())
    files = [*PACKAGE.rglob("*.py"), *(PACKAGE / "report" / "assets").iterdir()]
    files += [NOTEBOOKS / template, study.folder / STUDY_FILE, USER / "authors.yaml"]
    files += profiles_and_calibrations(records)
    # Hours include failures, and repeats that were set aside or replaced.
    files += [*study.out.rglob(f"*{RECORD}"), *study.out.glob(f"{PREDICTIONS}/*.json")]
    for path in sorted({path.resolve() for path in files if path.is_file()}):
        digest.update(f"\n{path}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def profiles_and_calibrations(records: Iterable[Record]) -> Iterator[Path]:
    """The files of the clusters of these records, wherever they are."""
    places = (record.environment for record in records)
    for name in sorted({place.profile for place in places if place}):
        with suppress(InputError):  # the profile may be missing on this machine
            yield find_profile(name)
            yield calibration_path(name)


def _files(stem: Path) -> tuple[Path, Path, Path]:
    """The notebook, the page and the PDF of a report."""
    return stem.with_suffix(".ipynb"), stem.with_suffix(".html"), stem.with_suffix(".pdf")


def report_comparison(comparison: Comparison, out: Path) -> Report:
    """Execute the notebook that compares machines; write `compare.{ipynb,html,pdf}` into `out`."""
    studies = list(comparison.studies.values())
    parameters = {"studies": [str(study.folder) for study in studies], "quick": studies[0].quick}
    title = f"{studies[0].title}: machines compared"
    return _report("compare.ipynb", parameters, out / "compare", title=title)


def report_table(
    table: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    scaling: Kind = "auto",
    baseline: int | None = None,
    title: str | None = None,
    gpu_hours: float | None = None,
    node_hours: float | None = None,
    core_hours: float | None = None,
    out: str | Path | None = None,
    artifacts: bool = False,
    number: int | None = None,
) -> Report:
    """Make the report that a results table supports: `<name>-report/report.{ipynb,html,pdf}`.

    Columns, scaling, baseline and the number of one of several tables are as in `records_from`. A
    proposal requests one of `gpu_hours`, `node_hours` and `core_hours`. `out` is another folder for
    the report, and `artifacts` also writes its text, figures and tables as separate files into
    `artifacts/`.
    Raises InputError, before anything is written, for a table that cannot be read or shows no
    scaling, for invalid hours, and if the folder cannot be written.
    """
    from lab.analysis.reported import ReportedTable
    from lab.report.table_sections import TableReport

    path = path_of(table, "table", "the path of a file, such as a CSV")
    out = None if out is None else path_of(out, "out")
    for where, text in {"table": path.resolve(), "title": title, "out": out}.items():
        require_utf8(text, where)
    request = _request(table, {"GPU": gpu_hours, "node": node_hours, "core": core_hours})
    read = ReportedTable.read(
        path, columns=columns, scaling=scaling, baseline=baseline, number=number
    )
    if request:
        _require_counted(table, request.unit, read.unit)
    which = f"-table-{number}" if number is not None else ""
    folder = out or path.with_name(f"{path.stem}{which}-report")
    if problems := unwritable(folder):
        raise InputError(str(table), problems)
    title = title or f"Scaling by {path.name}{f', table {number}' if number is not None else ''}"
    words = ["lab", "report", os.path.relpath(path), "--title", title]
    words += ["--table", f"{number}"] if number is not None else []
    words += ["--scaling", scaling] if scaling != "auto" else []
    words += ["--baseline", f"world_size={baseline}"] if baseline is not None else []
    words += [f"--{request.unit.lower()}-hours", f"{request.hours:g}"] if request else []
    for name, column in (columns or {}).items():
        words += ["--column", f"{name}={column}"]
    words += ["--out", os.path.relpath(out)] if out else []
    about = TableReport(read, title, path.name, shlex.join(words), request)
    parameters = {
        "table": str(path.resolve()),
        "columns": dict(columns or {}),
        "scaling": scaling,
        "baseline": baseline,
        "title": title,
        "request": list(request) if request else None,
        "command": about.command,
        "number": number,
    }
    result = _report("table.ipynb", parameters, folder / "report", title=title)
    result = replace(result, table=read.which, answer=" ".join(about.answers))
    return replace(result, artifacts=_parts(result.notebook, title=title)) if artifacts else result


def _request(table: str | Path, hours: Mapping[Unit, float | None]) -> Request | None:
    """What a proposal applies for, from hours by their unit; InputError if not one valid number."""
    from lab.analysis.proposal import Request

    given = {unit: number for unit, number in hours.items() if number is not None}
    for unit, number in given.items():
        where = f"{unit.lower()}_hours"
        require_type(number, Real, where, "a number of hours")
        if not 0 < number < math.inf:
            raise InputError.of(table, where, f"cannot be {number:g}", "give more than 0")
        if len(given) > 1:
            names = " and ".join(f"{unit}-hours" for unit in given)
            raise InputError.of(table, where, f"{names} are both given", "give one of them")
    return next((Request(number, unit) for unit, number in given.items()), None)


def _require_counted(table: str | Path, unit: Unit, counted: Unit) -> None:
    """Raise InputError unless hours of a unit follow from what the table counts."""
    # A rank may be a GPU or a core, but a node has several of them.
    if counted == unit or (counted == "rank" and unit != "node"):
        return
    per_node = " or --column per_node=COLUMN" * (unit == "GPU")
    instead = f"; or give {counted}_hours instead" * (counted != "rank")
    advice = f"name the column of {unit}s: --column world_size=COLUMN{per_node}{instead.lower()}"
    what = f"the table counts {counted}s, not {unit}s"
    raise InputError.of(table, f"{unit.lower()}_hours", what, advice)


def _report(template: str, parameters: Mapping[str, Any], stem: Path, *, title: str) -> Report:
    files = _files(stem)
    source_date()
    execute(NOTEBOOKS / template, files[0], parameters)
    _export(*files, title=title)
    return Report(*files)


def _run_notebooks(study: Study) -> Iterator[Execution]:
    """Of each record, the notebook that is missing or older than it."""
    store = Store(study.out)
    for task in study.tasks:
        folder = store.folder(task)
        if _is_stale(folder):
            parameters = {"study": str(study.folder), "run_id": task.run.id, "repeat": task.repeat}
            parameters |= {"quick": study.quick, "measure": False}
            yield Execution(NOTEBOOKS / RUN_NOTEBOOK, folder / RUN_NOTEBOOK, parameters)


def _is_stale(folder: Path) -> bool:
    record, notebook = folder / RECORD, folder / RUN_NOTEBOOK
    if not record.exists():
        return False
    return not notebook.exists() or notebook.stat().st_mtime < record.stat().st_mtime


def _export(notebook: Path, *targets: Path, title: str, authors: Sequence[str] = ()) -> None:
    """Export an executed notebook to HTML and PDF files, by their suffixes."""
    import nbformat

    content = nbformat.read(notebook, as_version=4)
    content.metadata |= {"title": title} | ({"authors": list(authors)} if authors else {})
    for target in targets:
        body, _ = _exporters()[target.suffix]().from_notebook_node(content)
        write_atomically(target, body.encode() if isinstance(body, str) else body)


def _exporters() -> dict[str, type[LabHTMLExporter]]:
    """The exporter of each suffix; the first call takes a second, for nbconvert."""
    from lab.report.html import LabHTMLExporter
    from lab.report.pdf import LabPDFExporter

    return {".html": LabHTMLExporter, ".pdf": LabPDFExporter}
