"""Fixtures of all tests."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import settings
from studies import CORPUS, SMALL_STUDY, StudyMaker

import lab

if TYPE_CHECKING:  # the process that only hands out tests need not import it
    from lab.dashboard.board import Dashboard


@pytest.fixture
def make_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyMaker:
    """Writes a study folder; keyword arguments replace keys of SMALL_STUDY, None removes one."""
    monkeypatch.setenv("LAB_CACHE", str(tmp_path / "cache"))

    def make(name: str = "small", **changes: object) -> Path:
        folder = tmp_path / "reports" / name
        folder.mkdir(parents=True)
        content = {
            key: value for key, value in (SMALL_STUDY | changes).items() if value is not None
        }
        (folder / "study.yaml").write_text(yaml.safe_dump(content))
        (folder / "corpus.txt").write_text(CORPUS)
        return folder

    return make


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a folder of reports and two profiles: `two` and `one`, after their devices."""
    monkeypatch.setattr("lab.machine.cores", lambda: (0, 1))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reports").mkdir()
    (tmp_path / "slurm").mkdir()
    for name, devices in {"one": 1, "two": 2}.items():
        (tmp_path / "slurm" / f"{name}.yaml").write_text(
            f"executor: local\ndevice: cpu\ndevices: {devices}\n"
        )
    return tmp_path


@pytest.fixture
def shown(place: Path) -> Dashboard:
    """The bench of that project with the profile `two`."""
    made = lab.dashboard()
    made.fields["cluster"].value = "two"
    return made


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads of OpenMP that wait for each other only get in each other's way in small tests."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    """Close what a test has drawn: pyplot keeps every figure, and warns of twenty."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


# Where the tests run in the background of a script, Ctrl-C is ignored, and every process that they start inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Enough for a bug to show in the end, few enough for the whole suite to stay under a minute.
settings.register_profile("fast", max_examples=15, deadline=None)
settings.load_profile("fast")


# What the imports leave lives to the end: the garbage collector need not walk over it again and again. It runs as seldom
# as within the command.
def pytest_configure() -> None:
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Whole files go to workers in this order: one that takes minutes must not be the last.
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    gc.enable()
