"""Reports that the repository holds: as their records make them now, small, and of no known machine."""

from __future__ import annotations

import re
import resource
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from layout import check_pdf, cut_off
from playwright.sync_api import Browser

from lab.config.study import Study
from lab.files import ROOT
from lab.records.store import Store
from lab.report.build import Report
from lab.report.execute import shared_kernels
from lab.report.gallery import ENTRY, KEPT, PAGE, _places, _readme, as_kept, keep, remade

REPORTS = ROOT / "reports"
PLACES = sorted(path.parent for path in REPORTS.glob(f"*/{KEPT}"))
INDEX = (REPORTS / "README.md").read_text("utf-8")
MOST_BYTES = 350_000  # of a page with its figures
Made = Mapping[str, tuple[Report, dict[str, bytes]]]
each = pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    with shared_kernels():
        return {place.name: remade(place, tmp_path_factory.mktemp(place.name)) for place in PLACES}


def readme_of_kept(folder: Path) -> str:
    return _readme([*map(as_kept, _places(folder))])


def shown(place: Path) -> dict[str, bytes]:
    """What is kept for readers, by name."""
    files = [place / KEPT / PAGE, place / KEPT / ENTRY, *(place / KEPT / "figures").iterdir()]
    return {str(path.relative_to(place / KEPT)): path.read_bytes() for path in files}


def test_the_quickstart_and_a_replay_are_kept() -> None:
    names = {place.name for place in PLACES}
    assert "quickstart" in names and any(name.startswith("replay-") for name in names)


@each
def test_a_kept_report_is_what_its_records_make_now(made: Made, place: Path) -> None:
    now, then = made[place.name][1], shown(place)
    assert now.keys() == then.keys(), "make kept"
    for name, content in now.items():
        assert content.decode() == then[name].decode(), f"{name} is not current: make kept"


def test_the_index_is_current() -> None:
    assert readme_of_kept(REPORTS) == INDEX, "make kept"


@each
def test_a_kept_report_is_small_and_the_index_counts_its_records(place: Path) -> None:
    assert sum(map(len, shown(place).values())) <= MOST_BYTES
    study, store = Study.load(place), Store(place / KEPT / "out")
    missing = [task for task in study.tasks if not store.completed(task)]
    done = len(study.tasks) - len(missing)
    assert done and f"kept, {done} of {len(study.tasks)} repeats completed" in INDEX
    # What this repository keeps of a GPU is what could be measured there; the rest is complete.
    assert all(task.run.needs_device == "cuda" for task in missing)


def test_what_was_kept_stays_until_a_new_report_is_complete(tmp_path: Path) -> None:
    folder = tmp_path / "quickstart"
    shutil.copytree(REPORTS / "quickstart", folder)
    shutil.rmtree(folder / "out", ignore_errors=True)  # of `make report`
    shutil.copytree(folder / KEPT / "out", folder / "out")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, limits[1]))  # less than the notebook takes
    try:
        with pytest.raises(OSError, match="File too large"):
            keep(Study.load(folder))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    files = keep(Study.load(folder))
    assert folder / KEPT / PAGE in files and all(path.is_file() for path in files)
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


@each
def test_nothing_kept_names_a_machine_or_a_path(place: Path) -> None:
    for path in (place / KEPT).rglob("*"):
        if path.is_file():
            text = path.read_text("utf-8")
            assert not re.search(r"(?<![\w./])/(home|root|tmp|work|var|mnt|Users)/", text), path
            hosts = re.findall(r'"hosts":\[([^\]]*)\]', text)
            names = [name for listed in hosts for name in re.findall(r"\w+", listed)]
            assert all(re.fullmatch(r"node\d+", name) for name in names)


@each
def test_a_kept_report_is_laid_out_well(made: Made, place: Path, chromium: Browser) -> None:
    report = made[place.name][0]
    assert cut_off(chromium, report.html) == {}
    pages = len(check_pdf(report.pdf).pages)
    assert place.name != "quickstart" or pages <= 6


@pytest.mark.parametrize(
    "content", ["{}", "[]", '{"picture": "../../../secret.svg"}', '{"answer": 5}']
)
def test_an_entry_that_somebody_changed_shows_nothing_else(tmp_path: Path, content: str) -> None:
    (tmp_path / "secret.svg").write_text("<svg>secret</svg>")
    shutil.copytree(REPORTS / "quickstart", tmp_path / "reports" / "quickstart")
    (tmp_path / "reports" / "quickstart" / KEPT / ENTRY).write_text(content)
    assert "secret" not in readme_of_kept(tmp_path / "reports")
