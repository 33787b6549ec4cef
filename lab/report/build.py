"""Reports: papermill executes the notebooks, nbconvert turns them into HTML and PDF files."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shlex
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from lab import machine
from lab.config.cluster import find_profile
from lab.config.study import Study, Task
from lab.errors import InputError, LabError, Problem, nearest
from lab.files import PACKAGE, SHARED, USER, read_json, read_yaml, unwritable, write_atomically
from lab.perfmodel.calibration import calibration_path
from lab.records.store import Store, load_records

if TYPE_CHECKING:
    from lab.analysis.comparison import Comparison
    from lab.analysis.reported import Kind

NOTEBOOKS = SHARED / "notebooks"
STARTUP_S = 300  # a kernel may take on a busy machine
_TEMPLATES = {
    "training": "report.ipynb",
    "prediction": "report.ipynb",
    "inference": "inference.ipynb",
}


@dataclass(frozen=True)
class Report:
    """The files of a report, and its statements: the answer, on predictions, on noise."""

    notebook: Path
    html: Path
    pdf: Path
    answer: str = ""
    predictions: str = ""
    noise: str = ""
    artifacts: tuple[Path, ...] = ()  # if they were requested


def report(study: Study, *, artifacts: bool = False, runs: bool = False) -> Report:
    """Execute the notebook of a study on its records, and write `out/report.{ipynb,html,pdf}`.

    Starts no job, and executes nothing if the existing report was made from the same records by the
    same code. `artifacts` also writes its text, figures and tables as separate files into
    `out/artifacts/`, for other documents; `runs` also executes one notebook per record, about a
    second each. Raises LabError if a notebook fails, with the path of the partial one.
    """
    if runs:
        run_notebooks(study)
    template, stem = _TEMPLATES[study.kind], study.out / "report"
    source = fingerprint(study, template)
    known, kept = stem.with_suffix(".json"), _files(stem)
    said = read_json(known) or {}
    if said.get("made_of") != source or not all(path.exists() for path in kept):
        from lab.figures.data import StudyResults
        from lab.report.sections import headline_of, prediction_summary

        parameters = {"study": str(study.folder), "quick": study.quick}
        _report(template, parameters, stem, title=study.title, authors=authors(study))
        results = StudyResults(study)
        said = {"made_of": source, "noise": results.noise.sentence}
        said |= {"answer": headline_of(results), "predictions": prediction_summary(results)}
        write_atomically(known, json.dumps(said).encode())
    parts: list[Path] = []
    if artifacts:
        from lab.report.artifacts import write_artifacts

        parts = write_artifacts(kept[0], study.out / "artifacts", title=study.title)
    return Report(*kept, said["answer"], said["predictions"], said["noise"], tuple(parts))


def authors(study: Study) -> list[str]:
    """The authors of a study: as it states, else `authors` in the user's `authors.yaml`."""
    path = USER / "authors.yaml"
    if study.authors or not path.is_file():
        return list(study.authors)
    names = read_yaml(path).get("authors")
    if isinstance(names, list) and all(isinstance(name, str) and name for name in names):
        return names
    raise InputError(str(path), [Problem("authors", "expected a list of names", "- Name, Place")])


def fingerprint(study: Study, template: str) -> str:
    """SHA-256 of all inputs of a report: code, template, study, records, predictions.

    It also covers the profiles of its records with their calibrations, and what this machine can
    run.
    """
    where = [os.path.relpath(study.folder), study.quick]
    where += [machine.cores(), machine.memory_bytes(), machine.gpus()]
    where += [os.environ.get("SOURCE_DATE_EPOCH"), sys.version]
    digest = hashlib.sha256(repr(where).encode())
    files = [*PACKAGE.rglob("*.py"), *(PACKAGE / "report" / "assets").iterdir()]
    files += [NOTEBOOKS / template, study.folder / "study.yaml", USER / "authors.yaml"]
    files += profiles_and_calibrations(study)
    # Hours include failures, and repeats that were set aside or replaced.
    files += [*study.out.rglob("*record.json"), *study.out.glob("predictions/*.json")]
    for path in sorted({path.resolve() for path in files if path.is_file()}):
        digest.update(f"\n{path}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def profiles_and_calibrations(study: Study) -> Iterator[Path]:
    """The files of the clusters of a study's records, wherever they are."""
    places = (record.environment for record in load_records(study))
    for name in sorted({place.profile for place in places if place}):
        with suppress(InputError):  # the profile may be missing on this machine
            yield find_profile(name)
            yield calibration_path(name)


def _files(stem: Path) -> tuple[Path, Path, Path]:
    """The notebook, the page and the PDF of a report."""
    names = (f"{stem.name}.{kind}" for kind in ("ipynb", "html", "pdf"))
    notebook, page, pdf = map(stem.with_name, names)
    return notebook, page, pdf


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
    out: Path | None = None,
) -> Report:
    """Make the report that a results table supports: `<name>-report/report.{ipynb,html,pdf}`.

    Columns, scaling and baseline are as in `records_from`; `gpu_hours` is what a proposal requests.
    Raises InputError, before anything is written, for a table that cannot be read or shows no
    scaling, for invalid hours, and if the folder cannot be written.
    """
    from lab.analysis.reported import ReportedTable

    path = Path(table)
    if gpu_hours is not None and not 0 < gpu_hours < math.inf:
        problem = Problem("gpu_hours", f"cannot be {gpu_hours:g}", "give more than 0")
        raise InputError(str(table), [problem])
    read = ReportedTable.read(path, columns=columns, scaling=scaling, baseline=baseline)
    if gpu_hours is not None and read.unit == "node":
        advice = "name the column of GPUs: --column world_size=COLUMN or --column per_node=COLUMN"
        problem = Problem("gpu_hours", "the table counts nodes, not their GPUs", advice)
        raise InputError(str(table), [problem])
    folder = out or path.with_name(f"{path.stem}-report")
    if problems := unwritable(folder):
        raise InputError(str(table), problems)
    title = title or f"Scaling by {path.name}"
    words = ["lab", "report", os.path.relpath(path), "--title", title]
    words += ["--scaling", scaling] if scaling != "auto" else []
    words += ["--baseline", f"world_size={baseline}"] if baseline is not None else []
    words += ["--gpu-hours", f"{gpu_hours:g}"] if gpu_hours is not None else []
    for name, column in (columns or {}).items():
        words += ["--column", f"{name}={column}"]
    parameters = {
        "table": str(path.resolve()),
        "columns": dict(columns or {}),
        "scaling": scaling,
        "baseline": baseline,
        "title": title,
        "gpu_hours": gpu_hours,
        "command": shlex.join(words),
    }
    return _report("table.ipynb", parameters, folder / "report", title=title)


def _report(
    template: str,
    parameters: Mapping[str, Any],
    stem: Path,
    *,
    title: str,
    authors: Sequence[str] = (),
) -> Report:
    made = Report(*_files(stem))
    _in_threads([partial(execute, NOTEBOOKS / template, made.notebook, parameters)])
    for target in (made.html, made.pdf):
        export(made.notebook, target, title=title, authors=authors)
    return made


def run_notebooks(study: Study) -> list[Path]:
    """One executed notebook per record, made if it is missing or older than its record."""
    store = Store(study.out)
    stale = [task for task in study.tasks if _is_stale(store.folder(task))]
    return _in_threads([partial(_run_notebook, study, task, store.folder(task)) for task in stale])


def _in_threads(executions: Sequence[Callable[[], Path]]) -> list[Path]:
    """Execute notebooks, two at a time; Ctrl-C ends their kernels and is raised again.

    In the main thread, nbclient would handle Ctrl-C itself and report it as a dead kernel.
    """
    with ThreadPoolExecutor(max_workers=2) as pool:
        futures: list[Future[Path]] = []
        try:
            futures += [pool.submit(execution) for execution in executions]
            return [future.result() for future in futures]
        except KeyboardInterrupt:
            while [one for one in futures if not (one.cancel() or one.done())]:
                _end_kernels()
                time.sleep(0.1)
            raise
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # running ones are awaited
            raise


def _end_kernels() -> None:
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if "ipykernel_launcher" in child.cmdline():
                child.kill()


def _is_stale(folder: Path) -> bool:
    record, notebook = folder / "record.json", folder / "run.ipynb"
    if not record.exists():
        return False
    return not notebook.exists() or notebook.stat().st_mtime < record.stat().st_mtime


def _run_notebook(study: Study, task: Task, folder: Path) -> Path:
    parameters = {"study": str(study.folder), "run_id": task.run.id, "repeat": task.repeat}
    parameters |= {"quick": study.quick, "measure": False}
    return execute(NOTEBOOKS / "run.ipynb", folder / "run.ipynb", parameters)


def execute(template: Path, target: Path, parameters: Mapping[str, Any]) -> Path:
    """Execute a parameterized notebook; an undeclared parameter name is an InputError.

    So is a folder that cannot be written. If a cell fails, LabError names it and the partial
    notebook, which is kept beside the target.
    """
    import papermill
    from nbclient.exceptions import DeadKernelError

    _check_parameters(template, parameters)
    if problems := unwritable(target.parent):
        raise InputError(target.name, problems)
    unfinished = target.with_name(f"{target.stem}.partial.ipynb")
    try:
        with kernel_settings() as config:
            papermill.execute_notebook(
                str(template),
                str(unfinished),
                parameters={name: plain(value) for name, value in parameters.items()},
                kernel_name="python3",
                progress_bar=False,
                log_output=False,
                request_save_on_cell_execute=False,
                autosave_cell_every=0,
                cwd=str(Path.cwd()),
                start_timeout=STARTUP_S,
                extra_arguments=["--IPKernelApp.log_level=50"],
                config=config,
            )
    except papermill.PapermillExecutionError as error:
        reason = f", cell {error.exec_count}: {error.ename}: {error.evalue}"
    except DeadKernelError:
        reason = ": its kernel died (out of memory?)"
    except RuntimeError as error:
        advice = "is the machine overloaded? The same command resumes from here"
        raise LabError(f"{template.name}: {error}; {advice}") from None
    else:
        unfinished.replace(target)
        return target
    raise LabError(f"{template.name}{reason}; partial notebook: {unfinished}")


@contextmanager
def kernel_settings() -> Iterator[Any]:
    """Sockets in a separate folder per kernel: no open ports, and none in each other's way."""
    from traitlets.config import Config

    with _quiet(), tempfile.TemporaryDirectory(prefix="lab-kernel-") as sockets:
        yield Config({"KernelManager": {"transport": "ipc", "ip": f"{sockets}/kernel"}})


def _check_parameters(template: Path, parameters: Mapping[str, Any]) -> None:
    import papermill

    with _quiet():
        declared = papermill.inspect_notebook(str(template))
    unknown = [
        Problem(name, "unknown parameter of the notebook", nearest(name, declared))
        for name in parameters
        if name not in declared
    ]
    if unknown:
        raise InputError(str(template), unknown)


def plain(value: Any) -> Any:
    """A value that papermill can pass: numpy scalars become numbers, paths text, tuples lists."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return value.item() if hasattr(value, "item") else value


def export(notebook: Path, target: Path, *, title: str, authors: Sequence[str] = ()) -> Path:
    """Export an executed notebook to one HTML or PDF file, by the target's suffix."""
    import nbformat

    from lab.report.html import LabHTMLExporter
    from lab.report.pdf import LabPDFExporter

    content = nbformat.read(notebook, as_version=4)
    content.metadata |= {"title": title} | ({"authors": list(authors)} if authors else {})
    exporter = LabHTMLExporter() if target.suffix == ".html" else LabPDFExporter()
    body, _ = exporter.from_notebook_node(content)
    write_atomically(target, body.encode() if isinstance(body, str) else body)
    return target


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep remarks of papermill and its kernel off the terminal; errors are raised, not logged."""
    loggers = [logging.getLogger(name) for name in ("papermill", "traitlets", "blib2to3")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
