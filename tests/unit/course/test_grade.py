"""A class in one table: every repeat once, whoever handed it in how often, and nothing that a spreadsheet runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from factories import record, run

import lab
from lab.analysis.audit.rules import RULES
from lab.config.emulation import Emulated, Link
from lab.course import replay
from lab.course.grade import Grade, spread, submissions_in, totals
from lab.records.store import write_record


def hand_in(
    room: Path, student: str, lesson: str, *steps: float, ranks: int = 1, **surroundings: Any
) -> None:
    for repeat, step in enumerate(steps):
        one = record(run(ranks), repeat, step_time=step, **surroundings)
        place = room / student / lesson / "studies" / "strong" / "out" / "runs" / one.run_id
        write_record(one, place / str(repeat))


@pytest.fixture
def room(tmp_path: Path) -> Path:
    """Ada measured once and handed it in with two lessons; Bob's machine is slower."""
    for lesson in ("04-strong-scaling", "05-weak-scaling"):
        hand_in(tmp_path, "ada", lesson, 0.1, 0.12)
    hand_in(tmp_path, "bob", "05-weak-scaling", 0.2, cpu="=cmd()")
    return tmp_path


def test_each_repeat_is_one_row_with_its_student_and_its_machine(room: Path) -> None:
    collected = lab.class_results(room)
    assert list(collected["student"]) == ["ada", "ada", "bob"]
    assert list(collected["lesson"]) == ["04-strong-scaling"] * 2 + ["05-weak-scaling"]
    assert list(collected["cpu"]) == ["Model CPU", "Model CPU", "=cmd()"]
    (row,) = spread(collected)
    assert (row["study"], row["students"]) == ("strong", 2)
    assert [float(row[f"{name} (ms)"]) for name in ("min", "median", "max")] == [110, 155, 200]


def test_emulated_results_are_not_spread_among_measured_ones(room: Path) -> None:
    slow = Emulated(link=Link(bandwidth_gbit=0.1), way="namespaces")
    hand_in(room, "cem", "05-weak-scaling", 0.9, emulated=slow)
    real, emulated = spread(lab.class_results(room))
    assert (real["emulated"], real["students"], real["max (ms)"]) == ("", 2, "200")
    assert (emulated["emulated"], emulated["students"]) == ("link 100 Mbit/s", 1)


def test_configurations_are_listed_by_their_ranks(room: Path) -> None:
    hand_in(room, "abe", "05-weak-scaling", 0.1, ranks=2)
    assert [row["students"] for row in spread(lab.class_results(room))] == [2, 1]


def test_the_csv_holds_no_formula_and_on_demand_no_names(room: Path, tmp_path: Path) -> None:
    lab.class_results(room, output=tmp_path / "class.csv", anonymous=True)
    written = pd.read_csv(tmp_path / "class.csv")
    assert list(written["student"]) == ["student 1", "student 1", "student 2"]
    assert written["cpu"].iloc[-1] == "'=cmd()"
    assert len(lab.audit(tmp_path / "class.csv").not_checked) < len(RULES)


def test_attempts_that_were_set_aside_or_replaced_are_no_results(room: Path) -> None:
    (place,) = next((room / "bob").rglob("runs")).glob("*/0")
    louder = record(run(1), 0, step_time=0.9)
    write_record(louder, place / "disturbed")
    write_record(louder, place.parents[2] / "replaced" / "1" / louder.run_id / "0")
    assert len(lab.class_results(room)) == 3


def test_links_and_what_is_no_record_are_left_alone(room: Path) -> None:
    runs = next((room / "bob").rglob("runs"))
    (runs / "broken" / "0").mkdir(parents=True)
    (runs / "broken" / "0" / "record.json").write_text("{")
    (runs / "linked").symlink_to(next((room / "ada").rglob("runs")), target_is_directory=True)
    assert len(lab.class_results(room)) == 3


def test_steps_without_losses_are_a_fault_of_their_record_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hand_in(tmp_path, "ada", "04-strong-scaling", 0.1)
    submitted = tmp_path / "ada" / "04-strong-scaling"
    (place,) = (path.parent for path in submitted.rglob("record.json"))
    steps = pd.DataFrame({"step": [0, 1], "warmup": [True, False], "step_time": [0.1, 0.1]})
    steps.to_parquet(place / "steps.parquet")
    (fault,) = replay.judged("04-strong-scaling", submitted)["faults"]
    assert fault.endswith("has no steps that can be read (KeyError)")


def test_a_folder_without_submissions_is_unusable_input(tmp_path: Path) -> None:
    with pytest.raises(lab.InputError, match="no lesson of a student"):
        lab.class_results(tmp_path)


@pytest.mark.parametrize("name", ["a\nb", "\udcff"])
def test_a_student_whom_no_table_can_name_is_not_left_out_in_silence(room: Path, name: str) -> None:
    (room / name / "04-strong-scaling").mkdir(parents=True)
    with pytest.raises(lab.InputError, match="SUBMISSIONS: its path has characters"):
        submissions_in(room)


def test_submissions_without_a_record_make_no_table(tmp_path: Path) -> None:
    (tmp_path / "ada" / "04-strong-scaling").mkdir(parents=True)
    with pytest.raises(lab.InputError, match="no completed record in it; students hand in"):
        lab.class_results(tmp_path, output=tmp_path / "class.csv")
    assert not (tmp_path / "class.csv").exists()


def test_answers_in_words_are_left_to_judge_by_hand() -> None:
    given = [
        Grade("ada", "04-strong-scaling", "04.speedup", 1.0, 1.0, "right"),
        Grade("ada", "10-predict", "10.compute", None, 1.0, "it depends on the machine"),
    ]
    assert [(row["points"], row["of"], row["by hand"]) for row in totals(given)] == [
        ("1", "1", "8"),  # what `instructors.md` says of the lesson
        ("0", "0", "7"),
    ]


def test_a_reason_that_several_exercises_share_is_said_in_the_table() -> None:
    copied = "not graded: records are the same as those of bob"
    given = [
        Grade("ada", "04-strong-scaling", "04.speedup", 0.0, 1.0, copied),
        Grade("ada", "04-strong-scaling", "04.efficiency", 0.0, 1.0, copied),
        Grade("eve", "04-strong-scaling", "04.speedup", 0.0, 1.0, "04.speedup: not yet."),
        Grade("eve", "04-strong-scaling", "04.efficiency", 1.0, 1.0, "04.efficiency: right."),
    ]
    assert [row["no points because"] for row in totals(given)] == [f"2 exercises: {copied}", ""]


def test_a_name_of_a_folder_is_no_formula_in_the_grades(tmp_path: Path) -> None:
    (tmp_path / "=cmd()" / "00-setup").mkdir(parents=True)
    lab.grade(tmp_path, output=tmp_path / "grades.csv")
    assert set(pd.read_csv(tmp_path / "grades.csv")["student"]) == {"'=cmd()"}


def test_a_submission_that_cannot_be_read_says_why_without_names_of_python(tmp_path: Path) -> None:
    place = tmp_path / "ada" / "00-setup" / "studies" / "strong" / "out" / "runs" / "0"
    place.mkdir(parents=True)
    with (place / "record.json").open("wb") as stream:
        stream.truncate(replay.LARGEST + 1)
    (reason,) = {row.reason for row in lab.grade(tmp_path)}
    assert reason.startswith("not graded: studies/strong/out/runs/0/record.json: too much")
    with pytest.raises(lab.LabError, match=r"^ada/00-setup: studies/strong"):
        lab.class_results(tmp_path)
