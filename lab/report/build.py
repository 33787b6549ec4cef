"""Reports: papermill executes the notebooks, nbconvert turns them into HTML and PDF files."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.analysis.comparison import Comparison
from lab.config.study import Study, Task
from lab.errors import InputError, LabError, Problem, nearest
from lab.files import SHARED, write_atomically
from lab.records.store import Store

NOTEBOOKS = SHARED / "notebooks"
_TEMPLATES = {
    "training": "report.ipynb",
    "prediction": "report.ipynb",
    "inference": "inference.ipynb",
}


@dataclass(frozen=True)
class Report:
    """Where the files of a report lie."""

    notebook: Path
    html: Path
    pdf: Path


def report(study: Study) -> Report:
    """Execute the notebooks of a study on its records, and write `out/report.{ipynb,html,pdf}`.

    Starts no job. Raises LabError where a notebook fails, with the place of the partial one.
    """
    run_notebooks(study)
    parameters = {"study": str(study.folder), "quick": study.quick}
    template = _TEMPLATES[study.kind]
    return _report(template, parameters, study.out / "report", title=study.title)


def report_comparison(comparison: Comparison, out: Path) -> Report:
    """Execute the notebook that compares machines; write `compare.{ipynb,html,pdf}` into `out`."""
    studies = list(comparison.studies.values())
    parameters = {"studies": [str(study.folder) for study in studies], "quick": studies[0].quick}
    title = f"{studies[0].title}: machines compared"
    return _report("compare.ipynb", parameters, out / "compare", title=title)


def _report(template: str, parameters: Mapping[str, Any], stem: Path, *, title: str) -> Report:
    made = Report(*(stem.with_name(f"{stem.name}.{kind}") for kind in ("ipynb", "html", "pdf")))
    execute(NOTEBOOKS / template, made.notebook, parameters)
    for target in (made.html, made.pdf):
        export(made.notebook, target, title=title)
    return made


def run_notebooks(study: Study) -> list[Path]:
    """One executed notebook per record, made where it is missing or older than its record."""
    store = Store(study.out)
    stale = [task for task in study.tasks if _is_stale(store.folder(task))]
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(lambda task: _run_notebook(study, task, store.folder(task)), stale))


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
    """Execute a parameterized notebook; a name that it does not declare is an InputError.

    Where a cell fails, LabError names it, and the partial notebook that is kept beside the target.
    """
    import papermill
    from nbclient.exceptions import DeadKernelError
    from traitlets.config import Config

    _check_parameters(template, parameters)
    partial = target.with_name(f"{target.stem}.partial.ipynb")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        # Sockets in a folder of each kernel's own: no open ports, and kernels that start together
        # do not collide.
        with _quiet(), tempfile.TemporaryDirectory(prefix="lab-kernel-") as sockets:
            papermill.execute_notebook(
                str(template),
                str(partial),
                parameters={name: plain(value) for name, value in parameters.items()},
                kernel_name="python3",
                progress_bar=False,
                log_output=False,
                request_save_on_cell_execute=False,
                autosave_cell_every=0,
                cwd=str(Path.cwd()),
                start_timeout=300,
                extra_arguments=["--IPKernelApp.log_level=50"],
                config=Config({"KernelManager": {"transport": "ipc", "ip": f"{sockets}/kernel"}}),
            )
    except papermill.PapermillExecutionError as error:
        reason = f", cell {error.exec_count}: {error.ename}: {error.evalue}"
    except DeadKernelError:
        reason = ": its kernel died (out of memory?)"
    except RuntimeError as error:
        advice = "is the machine overloaded? The same command goes on from here"
        raise LabError(f"{template.name}: {error}; {advice}") from None
    else:
        partial.replace(target)
        return target
    raise LabError(f"{template.name}{reason}; partial notebook: {partial}")


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
    """A value as papermill can pass it: numpy scalars become numbers, paths text, tuples lists."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return value.item() if hasattr(value, "item") else value


def export(notebook: Path, target: Path, *, title: str) -> Path:
    """Export an executed notebook to one HTML or PDF file, by the target's suffix."""
    import nbformat

    from lab.report.html import LabHTMLExporter
    from lab.report.pdf import LabPDFExporter

    content = nbformat.read(notebook, as_version=4)
    content.metadata["title"] = title
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
