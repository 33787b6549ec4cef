"""What inference records of classifiers say: rows, claims that intervals support, the page."""

from __future__ import annotations

from typing import Any

import pytest
from factories import inferred, record, run, stat, study

import lab
from lab.analysis import inference
from lab.analysis.inference import CLASSIFICATION, GENERATION
from lab.analysis.stages import stages
from lab.config.run import Run
from lab.figures import StudyResults
from lab.records.schema import ClassificationPoint, Share, Size, Stat
from lab.records.store import Record, write_record
from lab.report import inference_sections, sections


def inference_run(quantization: str, **fields: Any) -> Run:
    return run(
        1,
        task="inference",
        model="agnews-small",
        data="topics",
        quantization=quantization,
        batch_sizes=[1, 8],
        **fields,
    )


def point(batch_size: int, base: float, quantized: float) -> ClassificationPoint:
    ratio = quantized / base
    return ClassificationPoint(
        batch_size=batch_size,
        base=stat(base),
        quantized=stat(quantized),
        ratio=Stat(median=ratio, p10=ratio, p90=ratio, interval=(ratio * 0.95, ratio * 1.05)),
        base_samples_per_second=batch_size / base,
        samples_per_second=batch_size / quantized,
    )


def classified(
    run: Run, points: list[ClassificationPoint], change: Share, repeat: int = 0
) -> Record:
    return inferred(
        run,
        [],
        repeat,
        method="a method: 9 of 9 linear layers",
        size=Size(memory=1_000_000, disk=1_100_000),
        held_out_samples=500,
        base_accuracy=0.9,
        accuracy=0.9 + change.value,
        accuracy_change=change,
        same_classes=Share(value=0.97, low=0.96, high=0.98),
        classifications=points,
        arithmetic="AVX2",
    )


WORSE, EVEN = Share(value=-0.02, low=-0.03, high=-0.01), Share(value=-0.002, low=-0.01, high=0.006)


def test_speed_and_accuracy_are_claimed_where_their_intervals_say_so() -> None:
    slow = classified(inference_run("bf16"), [point(1, 1e-3, 2e-3), point(8, 4e-3, 4.04e-3)], EVEN)
    fast = classified(inference_run("int8_dynamic"), [point(1, 1e-3, 0.5e-3)], WORSE)
    three = [one.model_copy(update={"repeat": n}) for one in (slow, fast) for n in range(3)]
    slower, faster, *costs = inference.sentences(three)
    assert slower.startswith(
        "bf16 on 1 CPU process, in multiples of the base's time for a batch: slower (2.00 [1.90, "
        "2.10] at batch 1); no difference is shown (1.010 [0.959, 1.060] at batch 8). Method: a "
        "method: 9 of 9 linear layers, on AVX2"
    )
    assert "int8_dynamic on 1 CPU process" in faster and "faster (0.50" in faster
    assert costs == [
        "bf16: accuracy 89.8 [86.8, 92.2] % of 500 samples "
        "against the base's 90.0 [87.1, 92.3] % of 500 samples: no difference is shown.",
        "int8_dynamic: accuracy 88.0 [84.9, 90.6] % of 500 samples "
        "against the base's 90.0 [87.1, 92.3] % of 500 samples: "
        "lower, a change of -2.0 [-3.0, -1.0] points.",
    ]


def test_rows_of_speed_and_quality_and_none_for_language_models() -> None:
    records = [
        classified(inference_run(name), [point(8, 4e-3, 2e-3)], WORSE, repeat)
        for name in ("none", "bf16")
        for repeat in range(2)
    ]
    [none, bf16] = inference.speed_rows(records, CLASSIFICATION)
    assert (bf16["samples/s"], bf16["base samples/s"], none["batch"]) == ("4000", "2000", 8)
    [_, row] = inference.quality_rows(records, CLASSIFICATION)
    assert (row["accuracy"], row["base accuracy"], row["change (points)"]) == (
        "88.0 [84.9, 90.6] % of 500 samples",
        "90.0 [87.1, 92.3] % of 500 samples",
        "-2.0 [-3.0, -1.0]",
    )
    assert row["of the base"] == "25.0 %"
    assert inference.speed_rows(records, GENERATION) == inference.latency_rows(records) == []
    assert inference.quality_rows(records, GENERATION) == []
    assert not any("token" in sentence for sentence in inference.sentences(records))


def test_the_page_of_a_classifier_says_nothing_of_tokens(tmp_path) -> None:
    own = [inference_run("none"), inference_run("bf16")]
    made = study(tmp_path, own, kind="inference")
    for one in own:
        write_record(
            classified(one, [point(8, 4e-3, 1e-3)], WORSE), made.out / "runs" / one.id / "0"
        )
    results = StudyResults(made)
    text = sections.answer(results).markdown.replace("\\", "")
    assert (
        "times the base's time for a batch (one repeat is too few to show how much this varies)"
        in text
    )
    assert "25.0 % of the base's bytes, an accuracy of 88.0 [84.9, 90.6] % of 500 samples" in text
    [speed], [quality] = inference_sections.speed(results), inference_sections.quality(results)
    assert len(speed.frame) == len(quality.frame) == 2 and "classifier" in speed.caption
    assert (
        inference_sections.latencies(results)
        == inference_sections.tradeoff(results, "size_perplexity")
        == []
    )
    assert "a change of" in inference_sections.findings(results).markdown
    method = inference_sections.method(results).markdown
    assert "Accuracy" in method and "decod" not in method


def test_the_audit_sees_each_batch_size_once() -> None:
    records = [
        classified(
            inference_run("bf16"), [point(1, 1e-3, 2e-3), point(8, 4e-3, 5e-3)], EVEN, repeat
        )
        for repeat in range(3)
    ]
    assert not [
        finding
        for finding in lab.audit(records).findings
        if finding.rule in {"two-writers", "repeats"}
    ]


def test_the_time_of_a_batch_is_that_of_the_stage(tmp_path) -> None:
    train = run(1, model="agnews-small", data="topics", needs_device="cpu")
    infer = inference_run("none", needs_device="cpu")
    results = stages(
        study(tmp_path, [train, infer], kind="inference"),
        [record(train), classified(infer, [point(8, 4e-3, 4e-3)], EVEN)],
    )
    [serial] = [stage for stage in results if (stage.task, stage.name) == ("inference", "serial")]
    assert serial.seconds is not None and serial.seconds.value == pytest.approx(4e-3)
