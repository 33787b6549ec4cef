"""The ladder of stages: ratios to serial beside the published ones, and what was not run."""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib as mpl
import pytest
from factories import inferred, point, record, repeats, run, study

from lab import figures
from lab.analysis.stages import PUBLISHED, stage_sentences, stages
from lab.records.store import write_record

mpl.use("Agg")


@pytest.fixture
def ladder_study(tmp_path):
    runs = [
        run(size, 16, task=task, needs_device=device, batch_sizes=[16])
        for task in ("train", "inference")
        for device in ("cpu", "cuda")
        for size in (1, 2)
    ]
    return study(tmp_path, runs, scaling="none", kind="inference")


def test_stages_are_ratios_to_serial_and_say_what_was_not_run(ladder_study) -> None:
    trains, infers = ladder_study.runs[:2], ladder_study.runs[4:6]
    records = [record(own, step_time=time) for own, time in zip(trains, (0.4, 0.25), strict=True)]
    records += [
        inferred(own, [point(16, time, time)])
        for own, time in zip(infers, (2e-3, 1e-3), strict=True)
    ]
    by_name = {(stage.task, stage.name): stage for stage in stages(ladder_study, records)}
    assert len(by_name) == 8
    two = by_name["train", "CPU processes"].speedup
    assert two is not None and two == pytest.approx((1.6, 1.6 * 0.99 / 1.01, 1.6 * 1.01 / 0.99))
    assert by_name["train", "CPU processes"].published == pytest.approx(11.86, abs=0.01)
    generation = by_name["inference", "CPU processes"].speedup
    assert generation is not None and generation.value == pytest.approx(0.072 / 0.041)
    assert (
        by_name["inference", "CUDA"].reason
        == "not run: it needs 1 GPU, and no record comes from such a cluster"
    )
    assert by_name["train", "several GPUs"].reason.startswith("not run: it needs 2 GPUs")
    assert by_name["train", "CUDA"].speedup is None


def test_a_stage_is_told_where_it_and_serial_were_measured(ladder_study) -> None:
    serial, pair = ladder_study.runs[:2]
    trained = [
        *repeats(serial, [0.4, 0.41, 0.42]),
        *repeats(pair, [0.2, 0.21, 0.22]),
    ]
    gain, gone = stage_sentences(stages(ladder_study, trained))
    assert gain.startswith("Training on 2 CPU processes is 1.95")
    assert gain.endswith("times as fast as serial, a gain beyond the spread of the repeats.")
    assert gone == (
        "Not measured here: CUDA, several GPUs, inference on serial, inference on CPU processes."
    )
    few = stage_sentences(stages(ladder_study, [trained[0], *trained[3:]]))
    assert few[0].endswith("but one repeat is too few to show how much this varies.")
    alone = stage_sentences(stages(ladder_study, trained[3:]))
    assert not any("as fast as" in sentence for sentence in alone)
    assert stage_sentences(stages(ladder_study, trained[:3])) == [
        "Not measured here: CPU processes, CUDA, several GPUs, inference on serial."
    ]


def test_a_study_of_one_task_has_no_stages(tmp_path) -> None:
    assert stages(study(tmp_path, [run(1)]), []) == []


def test_the_published_ladder_is_that_of_its_table() -> None:
    text = Path("tests/fixtures/tables/gpt2_stages.csv").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    rows = {
        row["stage"]: (float(row["train_s"]), float(row["inference_s"]))
        for row in csv.DictReader(lines)
    }
    names = {"serial": "serial", "mpi": "CPU processes", "cuda": "CUDA", "mpi+cuda": "several GPUs"}
    assert {names[stage]: times for stage, times in rows.items()} == PUBLISHED


def test_the_figure_shows_the_published_stages_and_what_was_not_run(ladder_study) -> None:
    first = ladder_study.runs[0]
    write_record(record(first), ladder_study.out / "runs" / first.id / "0")
    words = [text.get_text() for text in figures.stage_ratios(ladder_study).texts]
    assert words.count("not run") == 7 and "35.6×" in words
