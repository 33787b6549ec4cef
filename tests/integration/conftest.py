"""Fixtures of the tests that need more than Python: a browser, a Slurm."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import testcluster
from daemons import Slurm
from playwright.sync_api import Browser, sync_playwright


@pytest.fixture(scope="session", autouse=True)
def own_turn(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[None]:
    """Local jobs take turns by a lock among temporary files; tests that run beside each other believe no time, and need not wait."""
    with pytest.MonkeyPatch.context() as patch:
        if worker_id != "master":
            patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("turn")))
            patch.setattr(tempfile, "tempdir", None)
            # Beside each other all are disturbed, and would measure everything twice.
            patch.setenv("LAB_REPEAT_DISTURBED", "0")
        yield


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The system's Chromium. Without one the test is skipped, but fails where CI=true: there it must be."""
    path = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if path is None:
        reason = "no Chromium on this machine: apt install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(autouse=True)
def no_process_left(tmp_path: Path) -> Iterator[None]:
    """Kill what a test that failed half way left running in its folder: it would slow all that follow."""
    yield
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        with contextlib.suppress(psutil.Error):
            if "lab.launch.fork_server" in words:  # of its forks too, which write to their logs
                words = [file.path for file in process.open_files()]
            if any(str(tmp_path) in word for word in words):
                process.kill()


@pytest.fixture(scope="session")
def _slurm() -> Iterator[Slurm]:
    yield from _test_cluster(accounting=False)


@pytest.fixture(scope="session")
def _slurm_with_accounting() -> Iterator[Slurm]:
    yield from _test_cluster(accounting=True)


@pytest.fixture
def slurm_cluster(_slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """A real Slurm of four nodes with four fake GPUs each, without accounting; SLURM_CONF names it during the test."""
    monkeypatch.setenv("SLURM_CONF", str(_slurm.conf))
    return _slurm


@pytest.fixture
def slurm_accounting(_slurm_with_accounting: Slurm, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """The same with accounting, so that `sacct` answers."""
    monkeypatch.setenv("SLURM_CONF", str(_slurm_with_accounting.conf))
    return _slurm_with_accounting


def _test_cluster(*, accounting: bool) -> Iterator[Slurm]:
    """Brings one up for the session. Without the packages its tests are skipped, but fail where CI=true."""
    missing = testcluster.missing_packages(accounting=accounting)
    if missing:
        reason = (
            f"no Slurm on this machine: apt install --no-install-recommends {' '.join(missing)}"
        )
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:  # short, as sockets lie in it
        slurm = testcluster.up(Path(folder) / "c", accounting=accounting)
        yield slurm
        testcluster.down(slurm.folder)
