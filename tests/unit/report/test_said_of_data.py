"""What a report says of its data is made from them: each sentence meets records in which it is false."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from factories import frozen, inferred, point, record, repeats, run, study, write_prediction

from lab import figures
from lab.config.run import Run
from lab.config.study import Study
from lab.figures import StudyResults
from lab.perfmodel.frozen import outcome
from lab.records.schema import Quality
from lab.records.statistics import share_interval
from lab.records.store import Record, Store, write_record
from lab.report import inference_sections, paper, sections, study_sections


def kept(folder: Path, records: list[Record], **fields: Any) -> StudyResults:
    """Results of a study with these records on disk; `runs` are further runs that it asks for."""
    runs: list[Run] = [*(one.run for one in records), *fields.pop("runs", [])]
    made: Study = study(folder, list({one.id: one for one in runs}.values()), **fields)
    for one in records:
        write_record(one, Store(made.out).folder(one.task))
    return StudyResults(made)


def said(section: Any) -> str:
    return str(section.markdown).replace("\\", "")


def test_losses_are_called_alike_as_far_as_they_are(tmp_path: Path) -> None:
    loss = [5.0, 4.0, 3.0]
    alike = [record(run(size), loss=loss) for size in (1, 2)]
    text = said(sections.learning_compared(kept(tmp_path / "alike", alike)))
    assert (
        "the losses of gpt-nano ddp x2, batch 64, fp32 lie within 0.001 % of the baseline's" in text
    )
    silent = kept(tmp_path / "silent", [record(run(1), loss=[]), record(run(2), loss=[])])
    assert not said(sections.learning_compared(silent))
    apart = [record(run(1), loss=loss), record(run(2), loss=[5.0, 4.0, 3.3])]
    text = said(sections.learning_compared(kept(tmp_path / "apart", apart)))
    assert "lie within 10.0 % of the baseline's" in text


def test_unequal_batches_are_not_called_alike(tmp_path: Path) -> None:
    batch = {"global_batch_size": None, "micro_batch_size": 8}
    records = [record(run(size, **batch)) for size in (1, 2)]
    text = said(sections.learning_compared(kept(tmp_path, records, scaling="weak")))
    assert "differs between world sizes (8 on 1 rank; 16 on 2 ranks)" in text
    assert "lie within" not in text


def test_predictions_are_judged_by_quiet_measurements_alone(tmp_path: Path) -> None:
    pair, four = run(2), run(4)
    results = kept(
        tmp_path,
        [*repeats(pair, [0.1] * 3, foreign_cpu=0.0), *repeats(four, [0.2] * 3, foreign_cpu=3.0)],
        kind="prediction",
        baseline={},
    )
    write_prediction(results.study, frozen(pair, 0.11, frozen_at="2024-12-31T00:00:00Z"))
    text = StudyResults(results.study).prediction_summary
    assert text.startswith("The predicted step time of ") and "is off by +10.0 %" in text
    assert "judged" not in text
    write_prediction(results.study, frozen(four, 0.1, frozen_at="2024-12-31T00:00:00Z"))
    text = StudyResults(results.study).prediction_summary
    assert text.startswith("The predicted step time of ") and "is off by +10.0 %" in text
    assert text.endswith("1 predicted run cannot be judged: the measurement is too noisy.")
    assert said(paper.abstract(StudyResults(results.study))).count("The predicted step") == 1
    both = outcome(StudyResults(results.study).scores)
    assert both.startswith(
        "The predicted step times of 2 runs are off by 30.0 % on average and by "
    )
    assert both.endswith("; 1 of 2 measurements lie inside their predicted intervals.")


def test_the_method_is_that_of_the_study(tmp_path: Path) -> None:
    both = [record(run(size)) for size in (1, 2)]
    strong = said(study_sections.method(kept(tmp_path / "strong", both)))
    assert "Amdahl" in strong and "Gustafson" not in strong and "Every bucket" in strong
    batch = {"global_batch_size": None, "micro_batch_size": 8}
    weak = kept(tmp_path / "weak", [record(run(size, **batch)) for size in (1, 2)], scaling="weak")
    assert "Gustafson" in said(study_sections.method(weak))
    sharded = [record(run(size, strategy="fsdp")) for size in (1, 2)]
    text = said(study_sections.method(kept(tmp_path / "fsdp", sharded, scaling="none")))
    assert "Every bucket" not in text and "every collective" in text and "Amdahl" not in text
    published = [record(run(size), replay="A paper") for size in (1, 2)]
    text = said(study_sections.method(kept(tmp_path / "replay", published)))
    assert "published by others" in text and "without a barrier" not in text


def test_the_band_of_overlap_is_drawn_for_gradients_alone(tmp_path: Path) -> None:
    def results(*strategies: str) -> StudyResults:
        records = [record(run(1, strategy="single"), step_time=0.2)]
        records += [
            record(run(2, strategy=name), step_time=0.15, communication=(0.05, 0.03))
            for name in strategies
        ]
        baseline = {"strategy": "single", "world_size": 1}
        folder = tmp_path / "-".join(strategies)
        return kept(folder, records, scaling="none", baseline=baseline)

    assert study_sections.overlap(results("fsdp", "tensor_parallel")) == []
    mixed = results("ddp", "fsdp")
    [band] = study_sections.overlap(mixed)
    assert "ddp on 2 CPU processes" in band.alt and "fsdp" not in band.alt


def test_categories_are_rows_and_only_world_sizes_make_lines(tmp_path: Path) -> None:
    ways = [
        one for name in ("ddp", "fsdp") for one in repeats(run(2, strategy=name), [0.1, 0.11, 0.12])
    ]
    rows = kept(tmp_path / "rows", ways, scaling="none", baseline={"strategy": "ddp"})
    assert len(study_sections.scaling_figures(rows)) == 1
    ax = figures.step_time(rows)
    assert ax.get_xlabel().startswith("step time") and not ax.get_ylabel()
    assert [text.get_text() for text in ax.get_yticklabels()] == [
        "batch 64, ddp, 2 CPU processes",
        "batch 64, fsdp, 2 CPU processes",
    ]
    assert all(len(line.get_xdata()) < 2 for line in ax.get_lines())
    sizes = [one for size in (1, 2) for one in repeats(run(size), [0.1] * 3)]
    curve = kept(tmp_path / "curve", sizes)
    [overview] = study_sections.scaling_figures(curve)  # speedup, efficiency, time and throughput
    assert overview.svg.count('id="axes_') == 1 + 4
    assert figures.step_time(curve).get_ylabel().startswith("step time")
    mpl.pyplot.close("all")


def test_accuracy_has_its_number_of_samples(tmp_path: Path) -> None:
    evaluated_run = run(1, 8, model="agnews-small", data="topics", eval_batches=1)
    none = record(evaluated_run).model_copy(
        update={"quality": Quality(loss=[1.0], validation_loss=1.4, accuracy=0.0)}
    )
    frame = sections.learning(kept(tmp_path, [none])).frame
    assert frame["accuracy"].tolist() == ["0 [0, 32] % of 8 samples"]
    assert share_interval(0.0, 8)[1] == pytest.approx(0.3244, abs=1e-4)  # Wilson's, by hand
    low, high = share_interval(0.5, 100)
    assert (low, high) == pytest.approx((0.4038, 0.5962), abs=1e-4)


def test_everything_could_be_measured_only_where_it_was(tmp_path: Path) -> None:
    here = run(1, task="inference", batch_sizes=[2])
    elsewhere = run(2, task="inference", batch_sizes=[2], needs_device="cuda")
    done = record(here)
    text = said(inference_sections.unavailable(kept(tmp_path / "all", [done], kind="inference")))
    assert text == "Everything in this study could be measured."
    left = kept(tmp_path / "left", [done], runs=[elsewhere], kind="inference")
    assert "1 of 2 configurations has not run" in said(inference_sections.unavailable(left))
    ladder = kept(tmp_path / "ladder", [record(run(1))], runs=[here, elsewhere], kind="inference")
    text = said(inference_sections.unavailable(ladder))
    assert "inference on serial: not run yet." in text and "training on CUDA: not part of" in text
    assert "could be measured" not in text


def test_what_is_not_available_here_is_not_complete(tmp_path: Path) -> None:
    asked = run(1, task="inference", batch_sizes=[2], quantization="fp8")
    gone = inferred(asked, [], unavailable="no fp8 here", size=None)
    absent = "Nothing but what is not available here"
    for nothing, one in ((absent, gone), ("Nothing", record(asked))):
        results = kept(tmp_path / nothing, [one], kind="inference", repeats=1)
        expected = f"{nothing}: 1 repeat of 1 configuration completed."
        assert said(sections.holes(results)) == expected


def test_where_all_inference_ran_is_said_once(tmp_path: Path) -> None:
    def asked(size: int, quantization: str) -> Run:
        return run(size, task="inference", quantization=quantization, batch_sizes=[2, 8])

    points = [point(2, 0.01, 0.02), point(8, 0.01, 0.02)]
    one = [inferred(asked(1, name), points) for name in ("none", "bf16")]
    (table,) = inference_sections.speed(kept(tmp_path / "one", one, kind="inference"))
    assert "on" not in table.frame and table.caption.endswith(". All: 1 CPU process")
    two = [*one, inferred(asked(2, "bf16"), points)]
    results = kept(tmp_path / "two", two, kind="inference")
    (table,) = inference_sections.speed(results)
    assert set(table.frame["on"]) == {"1 CPU process", "2 CPU processes"}
    assert "All:" not in table.caption
    assert "on" in inference_sections.latencies(results)[1].frame
    assert "“none” is a second copy" in table.caption
    (table,) = inference_sections.speed(kept(tmp_path / "three", two[1:], kind="inference"))
    assert "none" not in table.caption
