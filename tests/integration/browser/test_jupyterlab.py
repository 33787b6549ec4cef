"""The interactive bench as its users meet it: in JupyterLab, in a real browser, with a real run."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import factories
import nbformat
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from lab.config.cluster import find_profile
from lab.config.emulation import Emulated, Link
from lab.config.study import Study
from lab.dashboard.store import Bench
from lab.records.store import Store, read_record, write_record
from lab.report.build import NOTEBOOKS
from lab.report.execute import execute

pytestmark = pytest.mark.quiet

NOTEBOOK = NOTEBOOKS / "explore.ipynb"
PATIENCE_MS = 120_000
expect.set_options(timeout=PATIENCE_MS)  # a kernel beside other work answers late


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a copy of the notebook and an empty `reports/`, in which its kernel will start."""
    folder = tmp_path / "project"
    (folder / "reports").mkdir(parents=True)
    shutil.copy(NOTEBOOK, folder)
    (folder / "slurm").mkdir()  # beside which calibrations are kept
    for name in ("local", "local-1g"):
        shutil.copy(find_profile(name), folder / "slurm")
    return folder


@pytest.fixture
def server(project: Path, tmp_path: Path) -> Iterator[str]:
    """The address of the notebook in a JupyterLab of its own: loopback, token, no settings of the user."""
    token, port = secrets.token_hex(16), free_port()
    words = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    words += ["--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    parts = (
        "JUPYTER_CONFIG_DIR",
        "JUPYTER_DATA_DIR",
        "JUPYTER_RUNTIME_DIR",
        "JUPYTERLAB_SETTINGS_DIR",
        "JUPYTERLAB_WORKSPACES_DIR",
    )
    own = {name: str(tmp_path / name.lower()) for name in parts} | {"JUPYTER_TOKEN": token}
    silence = (
        tmp_path
        / "jupyterlab_settings_dir"
        / "@jupyterlab"
        / "apputils-extension"
        / "notification.jupyterlab-settings"
    )
    silence.parent.mkdir(parents=True)
    silence.write_text('{"fetchNews": "false", "checkForUpdates": false}')
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(
            words,
            cwd=project,
            env=os.environ | own,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_for_server(
            f"http://127.0.0.1:{port}/api/status?token={token}", process, tmp_path / "server.log"
        )
        yield f"http://127.0.0.1:{port}/lab/tree/explore.ipynb?token={token}"
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_server(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(3000):
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    pytest.fail(log.read_text())


@pytest.fixture
def page(server: str, chromium: Browser, tmp_path: Path) -> Iterator[Page]:
    opened = chromium.new_page(viewport={"width": 1300, "height": 1400})
    opened.set_default_timeout(PATIENCE_MS)
    opened.goto(server)
    expect(opened.locator(".jp-Notebook .jp-CodeCell").first).to_be_visible()
    idle(opened)
    yield opened
    opened.screenshot(path=tmp_path / "last.png")
    opened.close()


def idle(page: Page) -> None:
    """Wait until the kernel has nothing to do; before it is known to JupyterLab, a command would ask which one to take."""
    expect(page.get_by_text(re.compile(r"\| Idle$"))).to_be_visible()


def menu(page: Page, name: str, entry: str) -> None:
    page.get_by_role("menuitem", name=name, exact=True).click()
    page.get_by_role("menuitem", name=re.compile(f"^{re.escape(entry)}")).first.click()


def bench(page: Page) -> Locator:
    """The bench's cell; JupyterLab draws only what is in sight."""
    page.evaluate("document.querySelector('.jp-WindowedPanel-outer').scrollTop = 0")
    cell = page.locator(".jp-CodeCell").first
    expect(cell.get_by_label("Model")).to_be_visible()
    return cell


def measured_on_a_slow_link(project: Path) -> None:
    """Leave what the first run of the test would have left on an emulated link, a year ago."""
    bench = Bench(project / "reports" / "bench")
    run = factories.run(1, 4, steps=4, warmup_steps=1, strategy="ddp")
    study = bench.study(run, "local-1g")
    bench.keep(study)
    emulated = Emulated(link=Link(bandwidth_gbit=1), way="pacing")
    record = factories.record(run, cluster="local-1g", emulated=emulated)
    write_record(record, Store(study.out).folder(study.task()))


def dark(page: Page) -> None:
    page.get_by_role("menuitem", name="Settings", exact=True).click()
    page.get_by_text("Theme", exact=True).first.hover()
    page.get_by_text("JupyterLab Dark", exact=True).first.click()
    expect(page.locator("body[data-jp-theme-light=false]")).to_be_attached()


def clipped(page: Page) -> list[str]:
    """The parts of the bench that end to the right of it."""
    return page.evaluate(
        """() => {
            const bench = document.querySelector('.lab-bench');
            const right = bench.closest('.jp-OutputArea-output').getBoundingClientRect().right + 1;
            const parts = [...bench.querySelectorAll('button, select, input, img, td, [role=status]')];
            return parts.filter(part => part.getBoundingClientRect().right > right).map(part => part.outerHTML);
        }"""
    )


def fill(page: Page, cell: Locator, label: str, value: int) -> None:
    """Put a number into a control with the keyboard alone."""
    cell.get_by_label(label, exact=True).focus()
    page.keyboard.press("Control+a")
    page.keyboard.type(str(value))


def choose(page: Page, control: Locator, arrow: str, value: str) -> None:
    """Choose the next entry of a list with the keyboard; the browser opens and closes it in its own time."""
    control.focus()
    page.keyboard.press("Space")
    expect(page.locator("select:open")).to_be_attached()
    page.keyboard.press(arrow)
    page.keyboard.press("Enter")
    expect(control).to_have_value(value)
    expect(page.locator("select:open")).not_to_be_attached()


def test_measure_in_the_browser_and_find_it_again_after_a_restart(
    page: Page, project: Path, tmp_path: Path
) -> None:
    measured_on_a_slow_link(project)
    menu(page, "Run", "Run All Cells")
    expect(
        page.get_by_text("[4]:").first
    ).to_be_visible()  # the last code cell, where the page scrolls to
    cell = bench(page)
    fill(page, cell, "Steps", 1)
    expect(cell.get_by_text("greater than or equal to 2")).to_be_visible()
    expect(cell.get_by_role("button", name="Run", exact=True)).to_be_disabled()
    where = cell.get_by_role("button", name="Run", exact=True).bounding_box()
    cell.get_by_label("Model").select_option(label="resnet18")
    expect(cell.get_by_label("Data set")).to_have_value("digits")
    cell.get_by_label("Model").select_option(label="gpt-nano")
    expect(cell.get_by_label("Data set")).to_have_value("stdlib")
    cell.get_by_role("button", name="Calibrate").click()
    expect(cell.get_by_text("Calibrating local, 1 rank: ")).to_be_visible()
    cell.get_by_role("button", name="Cancel").click()
    expect(cell.get_by_text("Calibration cancelled")).to_be_visible()
    for label, value in {"Steps": 4, "Warm-up steps": 1, "Global batch size": 4}.items():
        fill(page, cell, label, value)
    choose(page, cell.get_by_label("Precision"), "ArrowDown", "tf32")
    choose(page, cell.get_by_label("Precision"), "ArrowUp", "fp32")
    expect(cell.get_by_text("Not measured yet")).to_be_visible()
    expect(cell.get_by_text("No prediction yet.")).to_be_visible()
    assert cell.get_by_role("button", name="Run", exact=True).bounding_box() == where, (
        "a message moved the page"
    )
    expect(cell.get_by_role("button", name="Run", exact=True)).to_be_enabled()
    cancel = cell.get_by_role("button", name="Cancel")
    while not cancel.is_enabled():  # a choice on its way may disable what is pressed
        expect(cell.get_by_role("button", name="Run", exact=True)).to_be_enabled()
        cell.get_by_role("button", name="Run", exact=True).press("Enter")
        with contextlib.suppress(AssertionError):
            expect(cancel).to_be_enabled(timeout=5_000)
    expect(
        cell.get_by_role("heading", name="gpt-nano ddp x1, batch 4, fp32 on local", exact=True)
    ).to_be_visible(timeout=3 * PATIENCE_MS)  # a whole run, beside other work
    rates = cell.get_by_role("img", name=re.compile("Throughput"))
    expect(rates).to_have_accessible_name(re.compile("batch 4, local-1g, emulated link 1 Gbit/s"))
    assert "batch 4, local," in str(rates.get_attribute("alt"))
    expect(cell.get_by_text("Network local-1g → local. Whether a step became")).to_be_visible()
    fill(page, cell, "Global batch size", 6)
    expect(cell.get_by_text("Predicted step")).to_be_visible()
    expect(cell.get_by_text("micro-batch 6 inferred from 4")).to_be_visible()
    cell.get_by_role("button", name="Send it to a study").focus()
    page.keyboard.press("Enter")
    expect(cell.get_by_text("lab run reports/gpt-nano-ddp-x1-batch-6-fp32")).to_be_visible()
    assert (
        Study.load(project / "reports" / "gpt-nano-ddp-x1-batch-6-fp32").runs[0].global_batch_size
        == 6
    )
    page.screenshot(path=tmp_path / "measured.png")
    dark(page)
    page.set_viewport_size({"width": 900, "height": 1400})
    expect(rates).to_have_css("background-color", "rgba(0, 0, 0, 0)")
    expect(rates).to_have_css("filter", re.compile("invert"))
    assert clipped(page) == []
    page.screenshot(path=tmp_path / "dark.png")
    page.set_viewport_size({"width": 1300, "height": 1400})
    (path,) = (project / "reports" / "bench" / "local").glob("*/out/runs/*/*/record.json")
    record = read_record(path)
    assert (
        record is not None
        and record.completed
        and (record.run.steps, record.run.global_batch_size) == (4, 4)
    )
    written = path.stat().st_mtime_ns

    menu(page, "Kernel", "Restart Kernel…")
    page.locator(".jp-Dialog .jp-mod-accept").click()
    idle(page)
    bench(page).locator(".jp-InputArea-editor").click()
    page.keyboard.press("Control+Enter")
    cell = page.locator(".jp-CodeCell").first
    expect(cell.get_by_text("Nothing is running.")).to_be_visible()
    expect(
        cell.get_by_role("heading", name="gpt-nano ddp x1, batch 4, fp32 on local", exact=True)
    ).to_be_visible()
    assert path.stat().st_mtime_ns == written
    page.screenshot(path=tmp_path / "restarted.png")


def test_notebook_executes_without_a_browser_and_measures_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    done = nbformat.read(execute(NOTEBOOK, project / "done.ipynb", {}), as_version=4)
    outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
    assert any(
        "application/vnd.jupyter.widget-view+json" in output.get("data", {}) for output in outputs
    )
    assert not list((project / "reports").rglob("job.json"))
