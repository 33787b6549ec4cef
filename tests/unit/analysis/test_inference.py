"""What inference records say: ratios, reasons where slower, figures."""

from __future__ import annotations

import math
from typing import Any

import matplotlib as mpl
import pytest
from factories import inferred, latency, point, run, stat, study

import lab
from lab import figures
from lab.analysis import inference
from lab.analysis.inference import GENERATION, estimate
from lab.config.run import Run
from lab.figures import StudyResults
from lab.figures.inference import pareto
from lab.records.schema import Share
from lab.records.store import Record, write_record
from lab.report import sections

mpl.use("Agg")
CLASSIFIER = {"model": "agnews-small", "data": "topics"}


def inference_run(quantization: str = "bf16", world_size: int = 1, **fields: Any) -> Run:
    return run(
        world_size, task="inference", quantization=quantization, batch_sizes=[2, 8], **fields
    )


def test_the_interval_spans_those_of_all_repeats() -> None:
    assert estimate([stat(1.0), stat(2.0), stat(4.0)]) == (2.0, 0.99, 4.0 * 1.01)
    without = estimate([stat(1.0).model_copy(update={"interval": None})])
    assert without == pytest.approx((1.0, math.nan, math.nan), nan_ok=True)


def test_slower_is_said_with_reasons_and_noise_is_not_called_a_difference() -> None:
    slow = inferred(inference_run(), [point(2, 1e-3, 2e-3), point(8, 1.1e-3, 2.2e-3)])
    even = inferred(inference_run("int8_dynamic"), [point(2, 1e-3, 1.02e-3)])
    fast = inferred(inference_run("int4_weight_only"), [point(2, 1e-3, 0.5e-3)])
    three = [again(one, repeat) for one in (slow, even, fast) for repeat in range(3)]
    first, second, third = inference.sentences(three)
    assert first.startswith(
        "bf16 on 1 CPU process, in multiples of the base's time between tokens: slower (2.00 "
        "[1.90, 2.10] with prompt 64 at batch 2, 2.00 [1.90, 2.10] with prompt 64 at batch 8)."
    )
    assert "AVX2, bf16 emulated, 1 thread" in first
    assert "no difference is shown (1.020" in second and "Method: " in second
    assert "faster (0.50" in third and "Method: " in third


def test_more_than_two_comparisons_of_one_verdict_are_given_by_their_extent() -> None:
    times = {1: 1.4e-3, 2: 2e-3, 8: 1.7e-3}
    slow = inferred(inference_run(), [point(size, 1e-3, time) for size, time in times.items()])
    (text,) = inference.sentences([again(slow, repeat) for repeat in range(3)])
    assert "slower (1.40 to 2.00 in 3 comparisons)." in text


def test_what_fewer_bytes_can_save_and_what_a_batch_does_not_cost() -> None:
    """A quarter of 25 % of the bandwidth is left; 2 ms at batch 2 and 2.2 ms at batch 8 make
    1.93 ms and 33 µs for each sequence."""
    points = [
        point(batch, time / 2, time).model_copy(
            update={"quantized": latency(time, batch_size=batch, bytes_per_token=1_250_000)}
        )
        for batch, time in ((2, 2e-3), (8, 2.2e-3))
    ]
    slow = inferred(inference_run(), points)
    [sentence] = inference.sentences([again(slow, repeat) for repeat in range(3)])
    assert "the base reads 22.7 to 25.0 % of the memory bandwidth of a rank" in sentence
    assert "so fewer bytes can save at most 18.8 % of its time." in sentence
    assert " 96.7 % of its own time between tokens at batch 2 does not grow" in sentence
    shrinking = inferred(inference_run(), [point(2, 1e-3, 2e-3), point(8, 1e-3, 1.9e-3)])
    [sentence] = inference.sentences([again(shrinking, repeat) for repeat in range(3)])
    assert " 100 % of its own time" in sentence


def again(record: Record, repeat: int) -> Record:
    return record.model_copy(update={"repeat": repeat})


def test_one_repeat_is_told_and_claims_nothing() -> None:
    fast = inferred(inference_run(), [point(2, 1e-3, 0.5e-3)])
    [sentence] = inference.sentences([fast])
    assert "faster" not in sentence
    assert "one repeat is too few to show how much this varies (0.50" in sentence


def test_what_the_copy_of_the_base_shows_no_quantization_can_claim() -> None:
    fast = inferred(inference_run(), [point(2, 1e-3, 0.9e-3)])
    copy = inferred(inference_run("none"), [point(2, 1e-3, 1.2e-3)])
    records = [again(one, repeat) for one in (copy, fast) for repeat in range(3)]
    assert inference.noise_of(records, GENERATION) == pytest.approx(0.26)
    assert "no difference is shown" in inference.sentences(records)[0]
    assert "faster" in inference.sentences([one for one in records if one.run == fast.run])[0]


def test_times_are_compared_within_a_job(tmp_path) -> None:
    """int8 is slower than the base of its own job, which was faster than another job's base."""
    records = [
        inferred(inference_run("none"), [point(2, 3e-3, 3e-3)]),
        inferred(inference_run("int8_dynamic"), [point(2, 1e-3, 2e-3)]),
    ]
    # The bases' median is 2 ms; int8 takes twice as long as its own.
    text = figures.alt_text("latency_throughput", records)
    assert "fp32, 2.00 ms" in text and "int8_dynamic, 4.00 ms" in text
    int8, own = inference.latency_rows(records)[2:]
    assert own["between tokens, p50"] == "1.00 ms" and int8["between tokens, p50"] == "2.00 ms"


def test_rows_of_speed_latency_and_quality() -> None:
    records = [
        inferred(inference_run("none"), [point(2, 1e-3, 1e-3)]),
        inferred(inference_run(), [point(2, 1e-3, 2e-3)]),
    ]
    speeds, latencies = inference.speed_rows(records, GENERATION), inference.latency_rows(records)
    assert [row["between tokens"].split()[0] for row in speeds] == ["1.000", "2.00"]
    base = "its base (fp32)"
    assert [row["model"] for row in latencies] == ["none", base, "bf16", base]
    assert latencies[0]["of memory bandwidth"] == "25.0 %"
    [_, bf16] = inference.quality_rows(records, GENERATION)
    assert (bf16["of the base"], bf16["change"]) == ("50.0 %", "1.00 [0.50, 1.50] %")


def test_a_quality_that_was_not_measured_is_said_to_be_unknown() -> None:
    timed = inferred(inference_run(), [point(2, 1e-3, 2e-3)], perplexity_ratio=None)
    assert inference.untimed([timed]) == [
        "bf16: 50.0 % of the base's bytes, perplexity not measured."
    ]


def test_the_audit_counts_repeats_and_not_their_batches() -> None:
    points = [point(2, 1e-3, 2e-3), point(8, 2e-3, 3e-3)]
    records = [inferred(inference_run(), points, repeat) for repeat in range(2)]
    dirty = records[0].environment.model_copy(update={"git_dirty": True})
    records[0] = records[0].model_copy(update={"environment": dirty})
    (finding,) = (one for one in lab.audit(records).findings if "uncommitted" in one.evidence)
    assert finding.evidence == "1 of 2 repeats ran code with uncommitted changes."


def test_what_is_unavailable_has_its_reason_and_no_row() -> None:
    gone = inferred(inference_run("fp8"), [], unavailable="no fp8 here", size=None)
    assert inference.missing([gone]) == ["fp8: no fp8 here."]
    assert inference.quality_rows([gone], GENERATION) == []
    assert inference.speed_rows([gone], GENERATION) == []


def test_the_pareto_front() -> None:
    assert pareto([(4, 1.0), (2, 1.5), (1, 3.0), (2, 2.0), (3, 1.5)]) == [
        (1, 3.0),
        (2, 1.5),
        (4, 1.0),
    ]


def test_figures_and_their_sentences() -> None:
    records = [
        inferred(inference_run("none"), [point(2, 1e-3, 1e-3), point(8, 2e-3, 2e-3)]),
        inferred(inference_run(), [point(2, 1e-3, 2e-3)]),
    ]
    assert len(figures.latency_throughput(records).get_lines()) == 2
    axis = figures.size_perplexity(records)
    assert len(axis.get_lines()) == 3
    low, high = axis.get_ylim()
    assert low < 50.5 < high and high - low == pytest.approx(0.02 * 50.5)  # equal ones look equal
    assert "bf16, 2.00 ms and 1000 tokens/s at batch 2" in figures.alt_text(
        "latency_throughput", records
    )
    assert "fp32, 1.00 ms and 2000 tokens/s at batch 2" in figures.alt_text(
        "latency_throughput",
        records[1:],  # the base, although no run copied it
    )
    other = inference_run(base_precision="bf16", quantization="int8_dynamic")
    mixed = [*records[1:], inferred(other, [point(2, 4e-3, 2e-3)])]
    both = figures.alt_text("latency_throughput", mixed)  # each from the bases of its precision
    assert "fp32, 1.00 ms" in both and "bf16, 4.00 ms" in both
    assert "int8_dynamic of bf16, 2.00 ms" in both
    assert (
        figures.alt_text("size_perplexity", records)
        == "Perplexity against size: fp32, 2.00 MB and 50.5; bf16, 2.00 MB and 50.5."
    )
    assert figures.alt_text("size_perplexity", records[1:]).startswith(
        "Perplexity against size: fp32, 4.00 MB and 50"  # the base, although no run copied it
    )
    assert [text.get_text() for text in figures.latency_throughput([]).texts] == [
        "no inference run has completed yet"
    ]


def test_the_audit_sees_each_point_once(tmp_path) -> None:
    records = [
        inferred(inference_run(), [point(2, 1e-3, 2e-3), point(8, 1e-3, 2e-3)], repeat)
        for repeat in range(3)
    ]
    assert not [
        finding
        for finding in lab.audit(records).findings
        if finding.rule in {"two-writers", "repeats"}
    ]


def test_the_answer_claims_only_what_the_interval_shows(tmp_path) -> None:
    def answer(ratio: float) -> str:
        own = inference_run()
        made = study(tmp_path / str(ratio), [own], kind="inference")
        for repeat in range(3):
            made_record = inferred(own, [point(2, 1e-3, ratio * 1e-3)], repeat)
            write_record(made_record, made.out / "runs" / own.id / str(repeat))
        return sections.answer(StudyResults(made)).markdown.replace("\\", "")

    assert "times the base's time between tokens (no difference is shown)" in answer(0.98)
    faster = answer(0.5)
    assert "0.500 [0.475, 0.525] times the base's time between tokens (faster)" in faster
    assert (
        "50.0 % of the base's bytes" in faster
        and "a perplexity 1.00 [0.50, 1.50] % higher" in faster
    )
    assert "(slower)" in answer(2.0)


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (Share(value=1.3, low=1.29, high=1.31), "a perplexity 30.0 [29.0, 31.0] % higher"),
        (Share(value=0.98, low=0.97, high=0.99), "a perplexity 2.0 [1.0, 3.0] % lower"),
        (Share(value=1.01, low=0.99, high=1.03), "perplexity changed by 1.0 [-1.0, 3.0] %"),
    ],
)
def test_the_answer_says_whether_quality_was_lost(tmp_path, ratio: Share, words: str) -> None:
    own = inference_run()
    made = study(tmp_path, [own], kind="inference")
    made_record = inferred(own, [point(2, 1e-3, 1e-3)], 0, perplexity_ratio=ratio)
    write_record(made_record, made.out / "runs" / own.id / "0")
    assert words in sections.answer(StudyResults(made)).markdown.replace("\\", "")


def test_inference_settings_do_not_rename_training_runs() -> None:
    assert run(1).id == run(1, new_tokens=5, keep_model=True).id
    assert inference_run().id != inference_run(new_tokens=5).id != run(1).id


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"quantization": "bf16"}, "quantization is a setting of inference"),
        (
            {"task": "inference", "prompt_tokens": [120]},
            "is 152, but the model has positions for 128",
        ),
        (
            {"task": "inference", **CLASSIFIER, "new_tokens": 8},
            "new_tokens is a setting of text generation, but text-classifier 2x128",
        ),
        (
            {"task": "inference", **CLASSIFIER, "prompt_tokens": [8]},
            "prompt_tokens is a setting of text generation",
        ),
        (
            {"task": "inference", **CLASSIFIER, "world_size": 2, "batch_sizes": [3]},
            "batch_sizes 3 is not divisible",
        ),
        (
            {"task": "inference", "world_size": 2, "batch_sizes": [3]},
            "batch_sizes 3 is not divisible by world_size 2",
        ),
    ],
)
def test_settings_that_do_not_go_together(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        run(**{"world_size": 1, **fields})
