"""Predictions of runs from records of one rank and a calibration, frozen beforehand and scored
afterwards.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from factories import calibration, environment, frozen, profile, record, run, study

import lab
from lab.config.cluster import Cluster
from lab.config.study import Study, Task
from lab.errors import InputError
from lab.figures import StudyResults
from lab.perfmodel import predict
from lab.perfmodel.flops import model_cost
from lab.perfmodel.forecast import BEYOND_ERROR, Basis, Forecast
from lab.perfmodel.frozen import (
    Score,
    archive_replaced,
    basis_of,
    error_so_far,
    freeze,
    predictions,
    scores,
)
from lab.perfmodel.layout_law import COEFFICIENTS
from lab.perfmodel.memory import MemoryParts, layout_of, memory_of
from lab.perfmodel.simulate import Deviation, Prediction, slowest_of
from lab.records.store import Record, Store, write_record
from lab.report.sections import predictions as prediction_section

ALONE, PAIR = run(1, 8), run(2, 16)
QUIET = {"data": 0.001, "forward": 0.03, "backward": 0.055, "optimizer": 0.012, "other": 0.002}


def basis(*records: Record, sizes: tuple[int, ...] = (2,)) -> Basis:
    return Basis(records, calibration(*sizes) if sizes else None)


def still(one: Record) -> Record:
    """The same without jitter between steps, which is a wait for the slowest of several ranks."""
    assert one.timing
    step = one.timing.step.model_copy(
        update={"p10": one.timing.step.median, "p90": one.timing.step.median}
    )
    return one.model_copy(update={"timing": one.timing.model_copy(update={"step": step})})


def test_two_ranks_by_hand() -> None:
    # 8 MB in one bucket behind its 1 MiB first: 2 MB at a quarter of 55 ms (21 ms), 6 MB at its end
    # (61 ms).
    forecast = basis(still(profile(ALONE, phases=QUIET))).forecast(PAIR)
    assert forecast.prediction is not None and not forecast.extrapolated
    assert forecast.prediction.communication_s == pytest.approx(0.082)
    assert forecast.prediction.step_s == pytest.approx(0.1 + 0.061, rel=0.01)
    assert forecast.prediction.limit == "exposed_communication"


def test_ranks_wait_for_the_slowest_process_unless_others_hold_one_up() -> None:
    def pair(**place: Any) -> Prediction:
        times = (0.9, 1.0, 1.1)
        records = [
            still(profile(ALONE, repeat=repeat, phases=QUIET, step_time=0.1 * by))
            for repeat, by in enumerate(times)
        ]
        if place:
            loaded = {"environment": environment(1, **place)}
            records = [one.model_copy(update=loaded) for one in records]
        forecast = basis(*records).forecast(PAIR)
        assert forecast.prediction is not None
        return forecast.prediction

    spread = 0.1004  # of the logarithms of 0.9, 1 and 1.1
    assert pair().parts["straggler"] == pytest.approx(0.1 * spread * slowest_of(2), rel=1e-3)
    assert pair(foreign_cpu=0.5).parts["straggler"] == 0


def test_buckets_and_compression_change_what_is_sent() -> None:
    measured = basis(still(profile(ALONE, phases=QUIET)))
    small, halved = (
        measured.forecast(run(2, 16, **more)).prediction
        for more in ({"bucket_cap_mb": 0.5}, {"compression": "bf16"})
    )
    assert small and halved
    assert small.communication_s == pytest.approx(
        4 * 0.021
    ) and halved.communication_s == pytest.approx(0.042)


def test_a_plain_loop_and_ddp_on_one_rank_stand_together() -> None:
    # Each is measured in a process of its own: two say more than one.
    plain = profile(run(1, 8, strategy="single"), step_time=0.09)
    wrapped = profile(run(1, 8, strategy="ddp"), step_time=0.11)
    sharded = profile(run(1, 8, strategy="fsdp"), step_time=0.2)
    measured = basis(plain, wrapped, sharded)
    for strategy in ("ddp", "naive_ddp"):
        used, _ = measured.profile(run(2, 16, strategy=strategy))
        assert used.step_s() == pytest.approx(0.1) and used.basis.startswith("2 records")
    assert measured.profile(run(2, 16, strategy="fsdp"))[0].step_s() == pytest.approx(0.2)


def test_a_micro_batch_between_two_is_on_their_line_and_said() -> None:
    measured = basis(profile(run(1, 4), step_time=0.06), profile(run(1, 12), step_time=0.14))
    forecast = measured.forecast(ALONE)
    assert forecast.prediction is not None and forecast.extrapolated == (
        "micro-batch 8 inferred from 4 and 12",
    )
    assert forecast.prediction.step_s == pytest.approx(0.1, rel=0.1)


def test_a_micro_batch_between_two_does_not_extend_the_line_of_two_smaller_ones() -> None:
    # 2 samples took less time than 1, by chance; 5 lie on the line from 2 to 16.
    times = {1: 0.101, 2: 0.1, 16: 0.45}
    records = [profile(run(1, size), step_time=time) for size, time in times.items()]
    used, _ = basis(*records).profile(run(1, 5))
    assert used.forward_s / records[1].timing.phases["forward"].median == pytest.approx(1.75)


def test_a_pipeline_passes_on_parts_that_take_what_they_take_alone() -> None:
    # Half of the samples take more than half of the time.
    whole, half = profile(run(1, 16), step_time=0.16), profile(ALONE, step_time=0.1)
    pipeline = run(2, 16, strategy="pipeline_parallel")
    used, notes = basis(whole, half).profile(pipeline)
    assert used.step_s() == pytest.approx(0.1) and not notes
    used, notes = basis(whole).profile(pipeline)
    assert used.forward_s == pytest.approx(whole.timing.phases["forward"].median / 2)
    assert notes == ("micro-batch 8 inferred from 16",)


@pytest.mark.parametrize(("samples", "least"), [(4, 0.05), (24, 0.3)])
def test_beyond_what_was_measured_times_shrink_at_most_in_proportion(
    samples: int, least: float
) -> None:
    # 8 samples take 100 ms and 16 take 300 ms: on that line 4 would take none.
    records = basis(profile(ALONE, step_time=0.1), profile(run(1, 16), step_time=0.3))
    result = records.forecast(run(1, samples)).prediction
    assert result is not None and least * 0.9 <= result.step_s


def test_below_the_measured_micro_batches_noise_grows_and_widens_the_interval() -> None:
    small, large = (profile(run(1, size), step_time=time) for size, time in ((8, 0.1), (16, 0.18)))
    measured = basis(small, large)
    used, _ = measured.profile(run(1, 4))
    assert used.forward_s / measured.profile(run(1, 8))[0].forward_s == pytest.approx(1 / 1.8)

    def width(*records: Record) -> float:
        forecast = Basis(records, None, repeats=3).forecast(run(1, 4)).prediction
        assert forecast is not None
        return forecast.high_s / forecast.step_s

    # By the power law, an error of the nearest counts twice, and that of the next one besides.
    assert width(small, large) > width(small)


def test_errors_of_predictions_for_several_ranks_widen_no_interval_of_one() -> None:
    plain = basis(*(profile(ALONE, repeat=repeat) for repeat in range(3)))
    wrong_before = replace(plain, model_error=0.5)

    def ends(one: Basis, wanted: Any) -> tuple[float, float]:
        forecast = one.forecast(wanted).prediction
        assert forecast is not None
        return forecast.low_s, forecast.high_s

    assert ends(wrong_before, ALONE) == ends(plain, ALONE)
    assert ends(wrong_before, PAIR)[1] > ends(plain, PAIR)[1]


def test_world_sizes_beyond_the_calibrated_are_a_ring_of_its_links() -> None:
    forecast = basis(still(profile(ALONE, phases=QUIET))).forecast(run(8, 64))
    # Of 1 ms and 100 MB/s between two: messages of half a millisecond, links of 100 MB/s.
    one = 14 * 0.0005 + 2 * 7 / 8 * 6e6 / 1e8
    assert forecast.prediction is not None and forecast.extrapolated == (
        "links of 8 ranks extrapolated from 2",
    )
    assert forecast.prediction.exposed_s == pytest.approx(one, rel=0.1)


def test_between_calibrated_world_sizes_the_nearest_counts() -> None:
    links = basis(profile(ALONE), sizes=(2, 16)).links(4)
    assert links.extrapolated == ("links of 4 ranks extrapolated from 2",)
    assert links.cost("all_reduce", 1e6) == pytest.approx(6 * 0.0005 + 2 * 3 / 4 * 1e6 / 1e8)
    assert links.conditions.deviations == (Deviation(BEYOND_ERROR),)  # one doubling


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_was_not_measured_is_a_ring_over_the_links_of_an_all_reduce(ranks: int) -> None:
    # Two ranks all-reduce in 1 ms and at 100 MB/s: messages of half a millisecond.
    cost = basis(profile(ALONE)).links(ranks).cost
    hops = ranks - 1
    assert cost("broadcast", 1e6) == pytest.approx(hops * 0.0005 + 1e6 / 1e8)
    assert cost("all_gather", 1e6) == pytest.approx(hops * 0.0005 + hops / ranks * 1e6 / 1e8)
    assert cost("all_reduce", 1e6) == pytest.approx(2 * cost("all_gather", 1e6))


SCRIPT = run(2, model={"kind": "script", "command": ["train.py"]}, data={"kind": "script"})


@pytest.mark.parametrize(
    ("measured", "requested", "missing"),
    [
        (basis(), PAIR, "no record on one rank"),
        (basis(record(ALONE)), PAIR, "do not show when gradients are ready"),
        (basis(profile(run(1, 8, precision="bf16"))), PAIR, "no record on one rank"),
        (basis(profile(ALONE), sizes=()), PAIR, "lab calibrate"),
        (
            basis(profile(ALONE)),
            run(2, 16, strategy="vanilla_data_parallel"),
            "does not know strategy",
        ),
        (basis(profile(ALONE)), SCRIPT, "does not know a script's model"),
    ],
)
def test_what_is_missing_is_said(measured: Basis, requested: lab.Run, missing: str) -> None:
    forecast = measured.forecast(requested)
    assert forecast.prediction is None and missing in forecast.missing


@pytest.mark.parametrize(
    "strategy", ["naive_ddp", "zero1", "fsdp", "tensor_parallel", "pipeline_parallel"]
)
def test_every_strategy_is_predicted(strategy: str) -> None:
    forecast = basis(profile(ALONE)).forecast(run(2, 16, strategy=strategy))
    assert (
        forecast.prediction is not None
        and forecast.prediction.step_s > 0
        and forecast.prediction.communication_s > 0
    )
    assert forecast.memory_bytes is not None


def test_each_record_is_counted_once_however_many_runs_are_asked_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[lab.Run] = []

    def count(one: lab.Run, *, device: str) -> MemoryParts:
        counted.append(one)
        return memory_of(one, device=device)

    monkeypatch.setattr("lab.perfmodel.forecast.memory_of", count)
    measured = basis(*(profile(run(1, size)) for size in (4, 8, 16)))
    for size in (8, 16, 32, 64):
        assert measured.memory(run(2, size)) is not None
    assert len(counted) == 3 + 4


def test_memory_is_that_of_a_measured_run_and_the_counted_difference() -> None:
    measured = basis(profile(ALONE))
    alone, sharded, larger = (
        measured.memory(one) for one in (ALONE, run(2, 16, strategy="zero1"), run(1, 64))
    )
    assert alone == 400_000_000 and sharded and larger
    assert larger > alone
    full = measured.memory(run(2, 16, strategy="ddp"))
    assert full and full - sharded == pytest.approx(4 * model_cost(ALONE).trainable)


def test_the_command_that_calibrates_names_the_cluster_of_the_links(tmp_path: Path) -> None:
    missing = "the cluster's links are not calibrated: run `lab calibrate --cluster {}`"
    asked = study(tmp_path, [PAIR])
    write_record(profile(ALONE), Store(asked.out).folder(Task(ALONE, 0)))
    given = basis_of(asked, Cluster(name="mine", executor="local"))
    assert given.forecast(PAIR).missing == missing.format("mine")


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """A study with its runs on one rank measured, on a calibrated cluster."""
    monkeypatch.setattr("lab.perfmodel.frozen.load_calibration", lambda cluster: calibration(2))
    planned = study(tmp_path, [ALONE, run(2, 8), PAIR], repeats=1)
    write_record(profile(ALONE), Store(planned.out).folder(planned.tasks[0]))
    return planned


def measure(planned: Study, nth: int, step_time: float, *, started: datetime) -> None:
    """Write the record of a run that started then."""
    task = planned.tasks[nth]
    done = record(task.run, step_time=step_time).model_copy(
        update={"started_at": started.isoformat()}
    )
    write_record(done, Store(planned.out).folder(task))


def test_predictions_are_frozen_once_and_scored_when_measured(planned: Study) -> None:
    frozen = freeze(planned)
    assert {one.run_id for one in frozen} == {run(2, 8).id, PAIR.id} and freeze(planned) == []
    assert (
        predictions(planned) == sorted(frozen, key=lambda one: one.frozen_at)
        and scores(planned) == []
    )
    assert "no predicted run has completed since" in StudyResults(planned).prediction_summary
    expected = next(one for one in frozen if one.run_id == PAIR.id).step_s
    measure(planned, 2, expected * 1.25, started=datetime.now(UTC))
    (score,) = scores(planned)
    assert score.error == pytest.approx(-0.2) and error_so_far(planned) == pytest.approx(0.2)
    assert score.memory_error is not None and score.frozen.run_id == PAIR.id
    assert (
        "is off by -20.0 %; the measurement lies outside the predicted interval."
        in StudyResults(planned).prediction_summary
        and len(prediction_section(StudyResults(planned))) == 3
    )
    assert freeze(planned) == []


def test_predictions_of_another_form_are_not_waited_for(planned: Study) -> None:
    freeze(planned)
    alone = study(planned.folder, [ALONE], repeats=1)
    assert predictions(planned) and predictions(alone) == []
    assert "frozen" not in StudyResults(alone).prediction_summary


def test_an_error_of_nothing_has_no_minus() -> None:
    exact = Score(frozen=frozen(PAIR, 0.1), measured_s=0.1, repeats=1, error=-1e-9)
    row = predict.Expectation(Forecast(PAIR), 2, score=exact).row()
    assert row["error"] == "+0.0 % (100 ms, frozen before the run)"


def test_the_error_names_how_many_runs_were_disturbed(planned: Study) -> None:
    freeze(planned)
    measure(planned, 2, 0.1, started=datetime.now(UTC))
    store = Store(planned.out)
    quiet = store.read(planned.tasks[2])
    assert quiet is not None and not scores(planned)[0].disturbed
    loud = quiet.model_copy(update={"environment": environment(foreign_cpu=0.5)})
    write_record(loud, store.folder(planned.tasks[2]))
    scored = tuple(scores(planned))
    assert ", 1 of them disturbed by" in predict.Expectations((), scored).notes()[-1]


def test_late_and_changed_predictions_do_not_count(planned: Study) -> None:
    freeze(planned)
    measure(planned, 2, 0.1, started=datetime.now(UTC) - timedelta(hours=1))
    assert scores(planned) == []
    path = next(planned.out.glob(f"predictions/{run(2, 8).id}-*.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"step_s": 0.1}))
    measure(planned, 1, 0.1, started=datetime.now(UTC))
    assert scores(planned) == [] and [one.run_id for one in predictions(planned)] == [PAIR.id]


def test_measuring_anew_is_predicted_anew(planned: Study) -> None:
    freeze(planned)
    archive_replaced(planned, [PAIR.id], planned.out / "replaced")
    assert len(list((planned.out / "replaced").iterdir())) == 1
    assert [one.run_id for one in freeze(planned)] == [PAIR.id]


def test_an_earlier_error_is_part_of_no_interval_if_nothing_is_predicted(planned: Study) -> None:
    expected = lab.predict(planned, world_sizes=[2, 4096])
    score = Score(frozen=frozen(PAIR, 0.11), measured_s=0.1, repeats=1, error=0.1)
    for of, widened in ((expected.of, True), (expected.of[-1:], False)):
        (note,) = [
            note for note in replace(expected, of=of, scored=(score,)).notes() if "10.0 %" in note
        ]
        assert ("part of the intervals" in note) is widened


def test_studies_are_predicted_beyond_the_machine(planned: Study) -> None:
    expected = lab.predict(planned, world_sizes=[1, 2, 4, 16, 4096])
    sizes = [
        (one.world_size, one.forecast.run.world_size)
        for one in expected.of
        if one.forecast.run.global_batch_size == 8
    ]
    assert sizes[:3] == [(1, 1), (2, 2), (4, 4)]
    assert all(
        "cannot be divided" in one.forecast.missing for one in expected.of if one.world_size == 4096
    )
    alone = expected.of[0]
    assert alone.speedup == 1.0 and alone.measured_s == pytest.approx(0.1)
    pair = expected.of[1]
    assert pair.forecast.prediction and alone.forecast.prediction
    assert pair.speedup == pytest.approx(
        alone.forecast.prediction.step_s / pair.forecast.prediction.step_s
    )
    assert len(expected.table()) == len(expected.of) == len(expected.content()["runs"])
    table = {row["configuration"]: row for row in expected.table()}
    notes = dict(note.split("] ", 1) for note in expected.notes() if note[0] == "[")
    mark = table["gpt-nano ddp x4096, batch 8, fp32"]["step"].removeprefix("not predicted ")
    assert notes[mark.rstrip("]")] == "its batch of 8 cannot be divided over 4096 ranks"
    marks = table["gpt-nano ddp x4, batch 8, fp32"]["limited by"].split()
    assert "links of 4 ranks extrapolated from 2" in [notes.get(one.rstrip("]")) for one in marks]
    with pytest.raises(InputError, match="divide"):
        lab.predict(planned, world_sizes=[3])
    with pytest.raises(InputError, match="0 ranks"):
        lab.predict(planned, world_sizes=[0])


def test_weak_scaling_grows_with_the_ranks(tmp_path: Path) -> None:
    weak = study(tmp_path, [run(1, 8)], scaling="weak")
    larger = predict.at_world_size(weak.runs[0], 4096, study=weak)
    assert larger and larger.global_batch_size == 8 * 4096 and larger.micro_batch_size == 8


def test_a_described_machine_needs_no_measurement(tmp_path: Path) -> None:
    gpt = {
        "kind": "gpt",
        "layers": 12,
        "heads": 12,
        "width": 768,
        "block_size": 1024,
        "vocab_size": 50257,
    }
    there = study(tmp_path, [run(1, 4096, model=gpt, precision="bf16", grad_accum=256)])
    expected = lab.predict(there, machine="h100x8", world_sizes=[8, 4096])
    near, far = expected.of
    assert near.forecast.prediction and far.forecast.prediction and near.speedup and far.speedup
    assert far.forecast.prediction.step_s < near.forecast.prediction.step_s and far.speedup < 4096
    assert len(expected.notes()) == 1 and "datasheet" in expected.notes()[0]
    parts = far.forecast.prediction.parts
    # Beyond the 64 nodes that were measured, the wait for the slowest grows by its logarithm.
    expected_s = COEFFICIENTS["nodes"].expected * (64 * (1 + math.log(512 / 64)) - 1)
    assert parts["node_overhead"] == pytest.approx(expected_s)
    beyond = study(tmp_path, there.runs, baseline={"world_size": 8})
    over_eight = lab.predict(beyond, machine="h100x8", world_sizes=[8, 4096])
    assert over_eight.of[0].speedup == 1 and over_eight.notes()[1] == "Speedups are over 8 ranks."
    with pytest.raises(InputError, match="h100"):
        lab.predict(there, machine="h10")


@pytest.mark.parametrize("microbatches", [None, 6])
def test_a_pipeline_on_a_described_machine_passes_on_parts(
    tmp_path: Path, microbatches: int | None
) -> None:
    fields = {"strategy": "pipeline_parallel", "microbatches": microbatches}
    pair = run(2, 12, model="gpt-mini", **fields)
    (forecast,) = (one.forecast for one in lab.predict(study(tmp_path, [pair]), machine="h100").of)
    assert forecast.prediction
    parts = forecast.prediction.parts
    share = parts["bubble"] / (parts["forward"] + parts["backward"])
    layout = layout_of(pair)
    assert share == pytest.approx(layout.bubble(microbatches or 2))


def test_a_notebook_shows_predictions_as_a_table_with_notes(planned: Study) -> None:
    shown = predict.predict(planned)._repr_html_()
    assert shown.count("<tr>") == 1 + len(planned.runs)
    assert all(f">{note}</p>" in shown for note in predict.predict(planned).notes())
