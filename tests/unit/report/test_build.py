"""A report is made again where something that it is made of has changed, and only there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from factories import record, run, study

from lab.config.study import Study
from lab.errors import InputError
from lab.records.store import Store, load_records, write_record
from lab.report import build


@pytest.fixture
def measured(tmp_path: Path) -> Study:
    made = study(tmp_path, [run(1)], repeats=1)
    write_record(record(run(1)), Store(made.out).folder(made.tasks[0]))
    return made


def fingerprint(made: Study) -> str:
    return build.fingerprint(made, "report.ipynb", load_records(made))


def test_the_same_study_has_the_same_fingerprint(measured: Study) -> None:
    assert fingerprint(measured) == fingerprint(measured)


def test_authors_are_the_studys_or_the_users(
    measured: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "USER", tmp_path / "user")
    assert build.authors(measured) == []
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "authors.yaml").write_text("authors: ['Ada, London']\n")
    assert build.authors(measured) == ["Ada, London"]
    assert build.authors(measured.model_copy(update={"authors": ("Grace",)})) == ["Grace"]
    (tmp_path / "user" / "authors.yaml").write_text("authors: Ada\n")
    with pytest.raises(InputError, match="list of names"):
        build.authors(measured)


def _another_record(made: Study) -> None:
    write_record(record(run(1), step_time=0.3), Store(made.out).folder(made.tasks[0]))


def _another_question(made: Study) -> None:
    (made.folder / "study.yaml").write_text("question: Another one?\n")


def _a_prediction(made: Study) -> None:
    (made.out / "predictions").mkdir()
    (made.out / "predictions" / "one.json").write_text("{}")


def _an_earlier_failure(made: Study) -> None:
    log = Store(made.out).folder(made.tasks[0]) / "log"
    log.mkdir()
    (log / "20260101T000000.record.json").write_text("{}")


@pytest.mark.parametrize(
    "change", [_another_record, _another_question, _a_prediction, _an_earlier_failure]
)
def test_what_changes_a_report_changes_its_fingerprint(
    measured: Study, change: Callable[[Study], None]
) -> None:
    before = fingerprint(measured)
    change(measured)
    assert fingerprint(measured) != before
    other = build.fingerprint(measured, "inference.ipynb", load_records(measured))
    assert fingerprint(measured) != other


def test_the_calibration_of_its_cluster_counts_wherever_it_lies(
    measured: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrations = tmp_path / "elsewhere" / "calibration"
    calibrations.mkdir(parents=True)
    (tmp_path / "elsewhere" / "local.yaml").write_text("executor: local\n")
    (tmp_path / "slurm").symlink_to(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    before = fingerprint(measured)
    (calibrations / "another.json").write_text("{}")
    assert fingerprint(measured) == before
    (calibrations / "local.json").write_text("{}")
    assert fingerprint(measured) != before


def test_a_study_without_results_has_a_report_of_its_own(measured: Study) -> None:
    assert build._template(measured, load_records(measured)) == "report.ipynb"
    failed = record(run(1), status="failed")
    write_record(failed, Store(measured.out).folder(measured.tasks[0]))
    assert build._template(measured, load_records(measured)) == "nothing.ipynb"
