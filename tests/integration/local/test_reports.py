"""Each study of `reports/` in its smallest form, from its file to its report."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from layout import check_pdf, cut_off
from playwright.sync_api import Browser
from studies import smallest

import lab
from lab.config.study import Study
from lab.report.build import Report
from lab.report.execute import shared_kernels

REPORTS = Path(__file__).parents[3] / "reports"
# Of a replay nothing runs: tests/unit/launch/test_replay.py has its records, the last test its layout.
NAMES = sorted(
    path.parent.name
    for path in REPORTS.glob("*/study.yaml")
    if not path.parent.name.startswith("replay-")
)
pytestmark = [
    pytest.mark.long,
    # The first test waits for all studies; minutes, where nobody else uses the machine.
    pytest.mark.timeout(1800),
]
Made = dict[str, tuple[Study, Future[Report]]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """Studies measured one after the other; a run that another has measured is reused, and the reports are made meanwhile."""
    root = tmp_path_factory.mktemp("reports")
    known = root / "known"
    # Reports are made meanwhile: a disturbed repeat is not measured again here.
    profile = root / "local.yaml"
    profile.write_text("executor: local\n")
    reports: Made = {}
    with (
        pytest.MonkeyPatch.context() as patch,
        shared_kernels(),
        ThreadPoolExecutor(max_workers=1) as reporting,
    ):
        patch.setenv("LAB_CACHE", str(root / "cache"))
        for name in NAMES:
            study = smallest(Study.load(REPORTS / name, quick=True), root / name)
            for run in study.runs:
                if (known / run.id).exists():
                    shutil.copytree(known / run.id, study.out / "runs" / run.id)
            records = lab.launch(study, str(profile)).wait(progress=False)
            for record in records:
                assert record.completed, f"{name}, {record.run.label}: {record.error}"
                shutil.copytree(
                    study.out / "runs" / record.run_id, known / record.run_id, dirs_exist_ok=True
                )
            reports[name] = study, reporting.submit(lab.report, study)
        yield reports


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_study_ends_in_a_report_without_an_audit_error(made: Made, name: str) -> None:
    study, report = made[name]
    text = report.result().html.read_text()
    assert report.result().pdf.read_bytes().startswith(b"%PDF")
    assert study.title in text and "Traceback" not in text
    audit = lab.audit(study)
    errors = {finding.rule for finding in audit.findings if finding.severity == "error"}
    # Of two steps beside other tests the times prove nothing, nor does a calibration made elsewhere.
    assert errors <= {"super-linear", "rank-imbalance", "plausible-bandwidth"}, audit.findings
    measured = {record.run_id for record in lab.load_records(study)}
    left_out = [run for run in study.runs if run.id not in measured]
    assert all(run.device_needed == "cuda" for run in left_out)
    assert text.count("not run: it needs a cluster with CUDA") >= len(left_out)


@pytest.mark.parametrize("name", NAMES)
def test_no_element_is_wider_than_its_column(made: Made, name: str, chromium: Browser) -> None:
    assert cut_off(chromium, made[name][1].result().html) == {}


@pytest.mark.parametrize("name", NAMES)
def test_pages_are_full_upright_and_readable(made: Made, name: str) -> None:
    check_pdf(made[name][1].result().pdf)


def test_the_slow_loader_is_found_and_the_fast_one_is_not(made: Made) -> None:
    study, report = made["when-ddp-fails"]
    stalls = [finding for finding in lab.audit(study).findings if finding.rule == "data-stall"]
    slow = {run.id for run in study.runs if run.loader == "classic"}
    # By their number, as of two steps beside other tests any rank may have waited for its data.
    crowded = [stall for stall in stalls if "Loader processes outnumber the CPUs" in stall.evidence]
    assert slow and {label.split("/")[0] for stall in crowded for label in stall.records} == slow
    assert {stall.severity for stall in stalls} == {"warning"}
    text = report.result().html.read_text()
    assert "Data loaders" in text and "classic loader tokenizes" in text


def test_strategies_and_networks_have_tables_of_their_own(made: Made) -> None:
    strategies, networks = (
        made[name][1].result().html.read_text() for name in ("strategies", "data-parallel")
    )
    assert "Strategies side by side" in strategies and "pipeline_parallel x2" in strategies
    assert "Networks side by side" in networks and "not reached" in networks


@pytest.mark.parametrize(
    ("name", "cluster"),
    [("replay-agnews", "replay-agnews-4gpu"), ("replay-gpt2", "replay-gpt2-2x3090-nvlink")],
)
def test_a_replay_is_laid_out_well(
    name: str, cluster: str, tmp_path: Path, chromium: Browser
) -> None:
    shutil.copytree(REPORTS / name, tmp_path / name, ignore=shutil.ignore_patterns("out"))
    study = Study.load(tmp_path / name)
    assert all(record.completed for record in lab.launch(study, cluster).wait(progress=False))
    report = lab.report(study)
    assert cut_off(chromium, report.html) == {}
    check_pdf(report.pdf)
