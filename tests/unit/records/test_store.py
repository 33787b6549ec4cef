"""Records on disk: whole or not there, read back as written, one row each in the table."""

from __future__ import annotations

import functools
import json
import math
import os
from pathlib import Path

import pandas as pd
import pytest
from factories import record, repeats, run, traced
from studies import StudyMaker

import lab
from lab.config.run import Run
from lab.config.study import Study, Task
from lab.errors import LabError
from lab.files import write_atomically
from lab.records.schema import Failure
from lab.records.store import LONG_BYTES, Record, Store, read_record, write_record

RUN = Run(global_batch_size=8)


def test_record_is_read_back_as_written(tmp_path: Path) -> None:
    written = record(RUN, step_time=0.1)
    write_record(written, tmp_path)
    assert read_record(tmp_path / "record.json") == written
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema_version": 1}', '{"run_id": 3}'])
def test_a_record_that_is_not_whole_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "record.json").write_text(content)
    assert read_record(tmp_path / "record.json") is None


@pytest.mark.parametrize(
    "change",
    [
        {"finished_at": "yesterday"},
        {"finished_at": "2026-01-01T00:00:00"},
        {"started_at": "x"},
        {"memory": {"kind": "resident", "peak": [], "parameters": 1}},
        {"timing.step.median": -0.1},
        {"trace.file": "/etc/hostname"},
        {"trace.file": "../../trace.json.gz"},
    ],
)
def test_a_record_with_an_impossible_value_has_to_be_measured(
    tmp_path: Path, change: dict[str, object]
) -> None:
    content = json.loads(traced(record(RUN, step_time=0.1)).model_dump_json())
    for place, value in change.items():
        *sections, key = place.split(".")
        functools.reduce(dict.__getitem__, sections, content)[key] = value
    (tmp_path / "record.json").write_text(json.dumps(content))
    assert read_record(tmp_path / "record.json") is None


@pytest.mark.parametrize("kind", ["folder", "loop of links", "pipe"])
def test_what_cannot_be_read_at_all_is_told(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "record.json"
    make = {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path)}
    make.get(kind, lambda: path.symlink_to("record.json"))()
    with pytest.raises(LabError, match=r"record\.json: .*; make it readable, or remove it"):
        read_record(path)


def test_a_long_record_is_also_read_without_its_losses(tmp_path: Path) -> None:
    told = 'said "loss": [1.0, 2.0] in a log'
    failure = Failure(type="ValueError", message=told)
    written = record(RUN, loss=[2.5] * 30_000).model_copy(update={"error": failure})
    path = write_record(written, tmp_path)
    assert path.stat().st_size > LONG_BYTES
    short = read_record(path, losses=False)
    assert short is not None and short.quality is not None and not len(short.quality.loss)
    assert short.error == failure and short.timing == written.timing
    assert read_record(path) == written
    few = write_record(record(RUN), tmp_path / "few")
    assert read_record(few, losses=False) is read_record(few)


def test_a_newer_schema_is_not_guessed_at(tmp_path: Path) -> None:
    content = json.loads(record(RUN).model_dump_json()) | {"schema_version": 99}
    (tmp_path / "record.json").write_text(json.dumps(content))
    with pytest.raises(LabError, match="newer lab"):
        read_record(tmp_path / "record.json")


def test_a_record_is_validated_again_only_when_its_file_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated: list[bytes] = []
    validate = Record.model_validate_json
    monkeypatch.setattr(
        Record,
        "model_validate_json",
        lambda content: validated.append(content) or validate(content),
    )
    path = write_record(record(RUN, step_time=0.1), tmp_path)
    validated.clear()  # what is written is read back once, too
    assert {read_record(path).status for _ in range(5)} == {"completed"}  # type: ignore[union-attr]
    assert len(validated) == 1
    write_record(record(RUN, step_time=0.1).model_copy(update={"status": "failed"}), tmp_path)
    validated.clear()
    assert [read_record(path).status for _ in range(5)] == ["failed"] * 5  # type: ignore[union-attr]
    assert len(validated) == 1
    path.unlink()
    assert read_record(path) is None


def test_the_states_of_a_study_are_polled_without_validating_again(
    make_study: StudyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study.load(make_study(repeats=2))
    for task in study.tasks:
        write_record(record(task.run, task.repeat), Store(study.out).folder(task))
    lab.status(study)
    monkeypatch.setattr(Record, "model_validate_json", lambda content: pytest.fail("validated"))
    assert [state.state for state in lab.status(study)] == ["completed"] * 4


def test_store_lies_where_the_contract_says(make_study: StudyMaker) -> None:
    study = Study.load(make_study())
    task = Task(study.runs[0], 0)
    assert Store(study.out).folder(task) == study.folder / "out" / "runs" / task.run.id / "0"


def test_table_has_a_row_per_repeat_and_nothing_invented(make_study: StudyMaker) -> None:
    study = Study.load(make_study(repeats=2))
    store = Store(study.out)
    for task in study.tasks[:3]:
        write_record(record(task.run, task.repeat, step_time=0.2), store.folder(task))
    table = lab.table(study)
    assert list(zip(table["run_id"], table["repeat"], strict=True)) == [
        (t.run.id, t.repeat) for t in study.tasks[:3]
    ]
    assert (
        table["communication_time"].isna().all()
        and table["exposed_communication_time"].isna().all()
    )
    assert table["step_time"].tolist() == pytest.approx([0.2] * 3, rel=0.2)
    pd.testing.assert_frame_equal(
        lab.table(study.folder).sort_values(["run_id", "repeat"], ignore_index=True),
        table.sort_values(["run_id", "repeat"], ignore_index=True),
    )


def test_failed_run_is_a_row_without_times(tmp_path: Path) -> None:
    failure = record(RUN).model_copy(
        update={
            "status": "oom",
            "error": Failure(type="OutOfMemoryError", message="no memory", rank=1),
            "timing": None,
            "memory": None,
        }
    )
    row = lab.table([failure]).iloc[0]
    assert row["status"] == "oom" and row["error"] == "OutOfMemoryError: no memory"
    assert pd.isna(row["step_time"]) and pd.isna(row["peak_memory"])


@pytest.mark.parametrize(
    ("status", "kind", "message", "end"),
    [
        ("failed", "LabError", "no data\nat all", "failed on rank 1: no data at all"),
        ("failed", "KeyError", "'x'", "failed on rank 1: KeyError: 'x'"),
        ("failed", "ValueError", "so " * 2000, "failed on rank 1: ValueError: so so so"),
        (
            *("oom", "OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB."),
            "out of memory on rank 1: Tried to allocate 2 GiB.",
        ),
        ("oom", "MemoryError", "", "out of memory on rank 1: MemoryError"),
    ],
)
def test_the_end_of_a_run_is_one_short_line(status: str, kind: str, message: str, end: str) -> None:
    error = Failure(type=kind, message=message, rank=1)
    told = record(RUN).model_copy(update={"status": status, "error": error}).end
    assert told.startswith(end) and len(told) < 700 and "\n" not in told


def test_failed_write_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "text is no bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_the_umask_says_who_may_read_what_is_written(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        path = write_record(record(RUN), tmp_path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == mode


def test_numbers_that_are_not_finite_are_read_back(tmp_path: Path) -> None:
    written = record(RUN, loss=[4.0, math.inf, math.nan])
    read = read_record(write_record(written, tmp_path))
    assert read is not None and read.quality is not None
    assert list(read.quality.loss[:2]) == [4.0, math.inf] and math.isnan(read.quality.loss[2])


def test_a_record_is_shown_in_one_line() -> None:
    (made,) = repeats(run(2), [0.1])
    shown = f"Record(run={made.run.label!r}, repeat=0, status='completed', step_time=0.1)"
    assert repr(made) == shown
