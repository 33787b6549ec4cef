"""A study from its file to its report, as a user runs it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import nbformat
import psutil
import pytest
from factories import record
from playwright.sync_api import Browser
from pypdf import PdfReader
from studies import StudyMaker

import lab
from lab.config.study import Study, Task
from lab.records.schema import Failure
from lab.records.store import Record, Store, write_record
from lab.report.execute import execute, shared_kernels

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"


@pytest.fixture(scope="module", autouse=True)
def kernels() -> Iterator[None]:
    with shared_kernels():
        yield


@pytest.fixture
def measured(make_study: StudyMaker) -> Study:
    """A study whose records are there already: three repeats of two world sizes."""
    study = Study.load(make_study(repeats=3, title="Two <b>ranks</b> & $one$ #study"))
    for task in study.tasks:
        time = 0.2 / task.run.world_size * (1 + 0.01 * task.repeat)
        write_record(record(task.run, task.repeat, step_time=time), Store(study.out).folder(task))
    return study


def test_run_ends_in_a_report_and_a_second_call_runs_no_job(make_study: StudyMaker) -> None:
    folder = make_study()
    first = subprocess.run(
        [sys.executable, "-m", "lab", "run", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert first.returncode == 0, first.stderr
    assert (
        "2 of 2 runs completed" in first.stdout
        and "report.html" in first.stdout
        and "report.pdf" in first.stdout
    )
    study = Study.load(folder)
    jobs = sorted(study.out.glob("runs/*/*/log/*_0_log.out"))
    for task in study.tasks:
        assert {"record.json", "steps.parquet", "run.ipynb", "log"} <= {
            path.name for path in Store(study.out).folder(task).iterdir()
        }
    second = subprocess.run(
        [sys.executable, "-m", "lab", "run", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert second.returncode == 0 and sorted(study.out.glob("runs/*/*/log/*_0_log.out")) == jobs


def test_two_processes_may_make_one_report(measured: Study) -> None:
    command = [sys.executable, "-m", "lab", "report", str(measured.folder)]
    made = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in made:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    assert nbformat.read(measured.out / "report.ipynb", as_version=4).cells
    assert len(PdfReader(measured.out / "report.pdf").pages)


def test_a_report_and_its_notebook_load_the_records_once(
    measured: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, records = [], Store.records

    def counted(store: Store, tasks: Iterable[Task] | None = None) -> list[Record]:
        loads.append(store.out)
        return records(store, tasks)

    monkeypatch.setattr(Store, "records", counted)
    made = lab.report(measured)
    assert loads == [measured.out]
    names: dict[str, object] = {"display": lambda *parts: None}
    for cell in nbformat.read(made.notebook, as_version=4).cells:  # with its parameters
        if cell.cell_type == "code":
            exec(cell.source, names)
    assert loads == [measured.out] * 2


def test_ctrl_c_ends_a_report_with_its_kernels(measured: Study) -> None:
    report = subprocess.Popen(
        [sys.executable, "-m", "lab", "report", str(measured.folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (kernels := _kernels_of(report.pid)):
        assert report.poll() is None
        time.sleep(0.05)
    os.killpg(report.pid, signal.SIGINT)
    _, errors = report.communicate(timeout=300)
    assert report.returncode == 130
    # It says no more if Ctrl-C arrives while it still loads a module.
    assert errors.startswith("lab: interrupted") and len(errors.splitlines()) == 1, errors
    assert not psutil.wait_procs(kernels, timeout=300)[1]


def _kernels_of(pid: int) -> list[psutil.Process]:
    kernels = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.Error):  # it has ended already
            if "ipykernel" in str(child.cmdline()):
                kernels.append(child)
    return kernels


def test_report_opens_offline_and_says_what_was_measured(
    measured: Study, chromium: Browser
) -> None:
    made = lab.report(measured)
    context = chromium.new_context(offline=True)
    page = context.new_page()
    requested_urls, faults = [], []
    page.on("request", lambda request: requested_urls.append(request.url))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text))
    page.goto(made.html.as_uri())
    assert requested_urls == [made.html.as_uri()] and faults == []
    text = page.inner_text("body")
    assert "Two <b>ranks</b> & $one$ #study" in text and "Does it work?" in text
    assert "1.98" in text or "2.0" in text  # the speedup of the records above
    assert page.locator("math").count() >= 3
    pictures = page.locator("figure svg, figure img")
    assert pictures.count() >= 3
    boxes = [pictures.nth(i).bounding_box() for i in range(pictures.count())]
    assert all(box is not None and box["width"] > 200 and box["height"] > 80 for box in boxes)
    assert str(measured.folder) not in page.content()
    context.close()
    words = " ".join(page.extract_text() for page in PdfReader(made.pdf).pages)
    assert "Two <b>ranks</b> & $one$ #study" in words and "Amdahl" in words
    # What it was made of has not changed: nothing is executed again.
    moment = made.html.stat().st_mtime_ns
    assert lab.report(measured) == made and made.html.stat().st_mtime_ns == moment


def test_report_of_a_study_with_failures_names_the_holes(measured: Study) -> None:
    store = Store(measured.out)
    lost, failed = measured.tasks[1], measured.tasks[2]
    (store.folder(lost) / "record.json").unlink()
    error = Failure(type="ValueError", message="bad sample", rank=0)
    write_record(
        record(failed.run, failed.repeat, status="failed", error=error), store.folder(failed)
    )
    made = lab.report(measured)
    text = made.html.read_text()
    assert "not run yet" in text and "ValueError: bad sample" in text


def test_report_of_a_study_without_records_says_so(make_study: StudyMaker) -> None:
    made = lab.report(str(make_study()))  # the folder in place of the study
    assert "no run has completed" in made.html.read_text()


def test_run_notebook_by_itself_shows_its_record(measured: Study, tmp_path: Path) -> None:
    task = measured.tasks[0]
    path = execute(
        NOTEBOOKS / "run.ipynb",
        tmp_path / "run.ipynb",
        {"study": str(measured.folder), "run_id": task.run.id, "repeat": task.repeat},
    )
    shown = nbformat.reads(path.read_text(), as_version=4)
    assert any(
        "samples/s" in str(output) for cell in shown.cells for output in cell.get("outputs", [])
    )
