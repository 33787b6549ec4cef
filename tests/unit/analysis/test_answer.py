"""The headline answers what a study varies, and claims nothing that its records do not support."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from factories import frozen, record, repeats, run, stat, study

from lab import InputError
from lab.analysis import findings
from lab.analysis.answer import answer
from lab.analysis.laws import gustafson_fraction, gustafson_speedup
from lab.analysis.scaling import summary
from lab.config.emulation import Emulated, Link
from lab.config.study import Study
from lab.perfmodel.frozen import Score
from lab.records.schema import Communication, Memory, Observed, Quality
from lab.records.store import Record
from lab.records.table import table

GPU_RECORDS = Path(__file__).parents[2] / "fixtures/gpu_records"
REPORTS = Path(__file__).parents[3] / "reports"


def answered(folder: Path, records: list[Record], *, scores: Any = (), **fields: Any) -> str:
    """The answer of a study that asked for the runs of these records."""
    made = study(folder, list({one.run.id: one.run for one in records}.values()), **fields)
    frame = summary(table(records), baseline=made.baseline, scaling=made.scaling)
    return answer(made, frame, records, scores=scores)


def test_strong_scaling_says_what_the_most_ranks_bring(tmp_path):
    times = {1: [0.40, 0.41, 0.39], 2: [0.20, 0.21, 0.19], 4: [0.25, 0.26, 0.24]}
    records = [one for size, three in times.items() for one in repeats(run(size), three)]
    text = answered(tmp_path, records)
    assert "On 4 CPU processes at batch 64, a step is 1.60" in text
    # Another batch has shorter steps, so the sentence names its own.
    assert (
        "Up to 4 CPU processes at batch 64, the shortest step, 200 [190, 210] ms, is on 2" in text
    )


def test_a_shortest_step_is_no_shorter_than_those_whose_intervals_reach_it(tmp_path):
    times = {1: [0.40, 0.41, 0.42], 2: [0.40, 0.41, 0.43], 4: [0.39, 0.40, 0.41], 8: [0.5] * 3}
    records = [one for size, three in times.items() for one in repeats(run(size), three)]
    text = answered(tmp_path / "flat", records)
    assert "is on 4 CPU processes; the intervals do not distinguish it from that on 1 and 2" in text
    one = [one for size, three in times.items() for one in repeats(run(size), three[:1])]
    text = answered(tmp_path / "once", one)
    assert "is on 4 CPU processes, but one repeat is too few to be sure of it." in text


def test_more_than_the_ranks_can_give_has_to_be_explained(tmp_path):
    for time, said in ((0.04, True), (0.051, False)):
        records = repeats(run(1), [0.1] * 3) + repeats(run(2), [time] * 3)
        text = answered(tmp_path / str(time), records)
        assert ("has to be explained: see super-linear in the audit." in text) == said
    records = repeats(run(1), [0.1] * 3) + repeats(run(2, precision="bf16"), [0.03] * 3)
    named = {"world_size": 1, "precision": "fp32"}
    assert "has to be explained" not in answered(tmp_path / "bf16", records, baseline=named)


def test_what_ended_without_a_result_is_named_beside_what_is_compared(tmp_path):
    records = repeats(run(1), [0.1] * 3) + repeats(run(2), [0.06] * 3)
    records += [record(run(4), repeat, status="oom") for repeat in range(3)]
    records += [record(run(2), 3, status="failed")]  # others of its repeats completed
    assert answered(tmp_path, records).endswith(" Without a result: x4 (out of memory).")


def test_a_shortest_step_is_found_among_several_numbers_of_ranks_at_one_batch(tmp_path):
    pair = repeats(run(1), [0.1] * 3) + repeats(run(2), [0.06] * 3)
    assert "shortest step" not in answered(tmp_path / "two", pair)
    batch = {"global_batch_size": None, "micro_batch_size": 16}
    grown = [one for size in (1, 2, 4) for one in repeats(run(size, **batch), [0.1] * 3)]
    assert "shortest step" not in answered(tmp_path / "weak", grown, scaling="weak")


def test_of_many_curves_the_best_and_the_worst_are_told(tmp_path):
    faster = {8: 0.09, 16: 0.05, 32: 0.2}
    records = [
        one
        for batch, time in faster.items()
        for one in [*repeats(run(1, batch), [0.1] * 3), *repeats(run(2, batch), [time] * 3)]
    ]
    text = answered(tmp_path, records)
    assert "At best, on 2 CPU processes at batch 16, a step is 2.00" in text
    assert "At worst, on 2 CPU processes at batch 32, a step is 0.500" in text
    assert "a loss beyond the spread of the repeats" in text and "batch 8," not in text


def test_the_largest_loss_is_named_where_repeats_support_it(tmp_path):
    parts = {"data": 0.0, "forward": 0.03, "backward": 0.06, "optimizer": 0.01, "other": 0.0}
    slow = parts | {"forward": 0.015, "backward": 0.03, "optimizer": 0.005, "data": 0.04}
    for count, named in ((3, True), (1, False)):
        records = [
            *repeats(run(1), [0.1] * count, phases=parts),
            *repeats(run(2), [0.09] * count, phases=slow),
        ]
        text = answered(tmp_path / str(count), records)
        assert ("is waiting for data; first to change" in text) == named
        unclaimed = "The largest loss measured there is waiting for data, 40.0 ms of a step"
        assert (
            unclaimed in text and "but one repeat is too few to be sure of it." in text
        ) != named


def test_no_loss_is_named_where_none_was_measured_or_none_matters(tmp_path):
    ideal = {"data": 0.0, "forward": 0.03, "backward": 0.06, "optimizer": 0.01, "other": 0.0}
    half = {name: seconds / 2 for name, seconds in ideal.items()}
    for count, said in (
        (1, "To tell what costs the most, one repeat is too few."),
        (3, "no loss takes"),
    ):
        records = [
            *repeats(run(1), [0.1] * count, phases=ideal),
            *repeats(run(2), [0.05] * count, phases=half),
        ]
        text = answered(tmp_path / str(count), records)
        assert said in text and "largest" not in text
    some = repeats(run(2), [0.04, 0.05, 0.06], phases=half)
    text = answered(tmp_path / "some", [*repeats(run(1), [0.1] * 3, phases=ideal), *some])
    assert "largest" not in text and "To tell" not in text and "limits" not in text
    total = [
        one.model_copy(update={"timing": one.timing.model_copy(update={"phases": {}})})
        for one in records
        if one.timing
    ]
    text = answered(tmp_path / "total", total)
    assert text.endswith("Where the time of a step goes was not measured.")


def test_weak_scaling_tells_the_pace_and_gustafsons_fraction(tmp_path):
    batch = {"global_batch_size": None, "micro_batch_size": 16}
    records = repeats(run(1, **batch), [0.1] * 3) + repeats(run(4, **batch), [0.125] * 3)
    text = answered(tmp_path, records, scaling="weak")
    assert "each rank keeps 80.0 [80.0, 80.0] % of its pace, a loss beyond the spread" in text
    assert "the scaled speedup over 1 CPU process is 3.20 [3.20, 3.20], where 4 is" in text
    assert "a serial fraction of 26.7 [26.7, 26.7] %" in text  # (4 - 3.2) / 3
    faster = repeats(run(1, **batch), [0.1] * 3) + repeats(run(4, **batch), [0.09] * 3)
    assert "Gustafson" not in answered(tmp_path / "more", faster, scaling="weak")
    bf16 = repeats(run(1, **batch), [0.1] * 3)
    bf16 += repeats(run(4, **batch, precision="bf16"), [0.05] * 3)
    named = {"world_size": 1, "precision": "fp32"}
    text = answered(tmp_path / "bf16", bf16, scaling="weak", baseline=named)
    assert "the throughput is 8.00 [8.00, 8.00] times that of 1 CPU process at batch 16" in text
    assert "pace" not in text and "Gustafson" not in text


def test_losses_are_compared_after_equally_many_samples(tmp_path):
    batch = {"global_batch_size": None, "micro_batch_size": 16, "steps": 30}
    falling = [float(30 - step) for step in range(30)]
    records = repeats(run(1, **batch), [0.1] * 3, loss=falling)
    records += repeats(run(4, **batch), [0.1] * 3, loss=falling)
    # 30 steps of 16 are 480 samples, of which 64 go into 448 only: 7 steps, and 28 of the baseline.
    text = answered(tmp_path, records, scaling="weak")
    assert "after the same 448 samples the training loss is 24.000 with batches of 64" in text
    assert "and 4.000 with batches of 16" in text


def test_without_a_completed_run_there_is_no_answer(tmp_path):
    records = [record(run(size), status="failed") for size in (1, 2)]
    text = answered(tmp_path, records)
    assert (
        text
        == "There is no answer yet: no run has completed (2 of 6 repeats ended without a result)."
    )


def test_an_emulation_is_not_mixed_with_measurements(tmp_path):
    slow_link = {"emulated": Emulated(link=Link(bandwidth_gbit=1))}
    records = []
    for precision, own, emulated in (("fp32", 0.1, 0.1), ("bf16", 0.05, 0.2)):
        run_in_it = run(1, precision=precision)
        records += repeats(run_in_it, [own] * 3)
        records += [
            one.model_copy(update={"repeat": 3 + one.repeat})
            for one in repeats(run_in_it, [emulated] * 3, **slow_link)
        ]
    text = answered(tmp_path, records, scaling="none")
    assert "With bf16, a step takes 0.500 [0.500, 0.500] times as long" in text


@pytest.mark.parametrize("fraction", [0.0, 0.2, 1.0])
def test_gustafsons_fraction_is_that_of_his_law(fraction):
    assert gustafson_fraction(gustafson_speedup(8, fraction), 8) == pytest.approx(fraction)
    with pytest.raises(ValueError, match="n > 1"):
        gustafson_fraction(1.0, 1)


def test_larger_batches_are_compared_at_equal_samples(tmp_path):
    batch = {"global_batch_size": None, "micro_batch_size": 16}
    loss = [5.0 - 0.1 * step for step in range(30)]
    records = [one for size in (1, 2) for one in repeats(run(size, **batch), [0.1] * 3, loss=loss)]
    text = answered(tmp_path, records, scaling="weak")
    # 30 steps of 16 are 480 samples, which 15 steps of 32 are too.
    assert "after the same 480 samples the training loss is 3.650 with batches of 32" in text
    assert "and 2.200 with batches of 16" in text
    few = [one for size in (1, 64) for one in repeats(run(size, **batch), [0.1] * 3, loss=loss)]
    alone = [one for one in records if one.run.world_size == 1]
    own = [one.model_copy(update={"quality": None}) for one in records]  # as of a script
    for name, others in (("few", few), ("alone", alone), ("own", own)):
        assert "training loss" not in answered(tmp_path / name, others, scaling="weak")
    strong = [one for size in (1, 2) for one in repeats(run(size), [0.1] * 3, loss=loss)]
    assert "training loss" not in answered(tmp_path / "strong", strong)


@pytest.mark.parametrize(
    ("bf16", "verdict"),
    [
        ([0.05, 0.051, 0.052], "a gain beyond the spread of the repeats"),
        ([0.2, 0.21, 0.22], "a loss beyond the spread of the repeats"),
        ([0.08, 0.1, 0.12], "a difference within the spread of the repeats"),
        ([0.05], "but one repeat is too few to show how much this varies"),
    ],
)
def test_a_precision_is_compared_with_the_baselines(tmp_path, bf16, verdict):
    records = repeats(run(1), [0.1, 0.101, 0.102]) + repeats(run(1, precision="bf16"), bf16)
    text = answered(tmp_path, records, scaling="none")
    assert text.startswith("With bf16, a step takes ")
    assert f"times as long as with fp32 (on 1 CPU process, {verdict})" in text
    assert "validation losses are at most 0.001 % apart" in text and "No two runs" not in text


@pytest.mark.parametrize(
    ("longer", "said"),
    [
        ({2: 2.0}, "by mean steps, which a whole training takes, the scaled speedup is 0.800."),
        ({1: 2.0, 2: 2.0}, ""),
        ({2: 1.05}, ""),
    ],
)
def test_a_speedup_that_long_steps_change_is_given_by_mean_steps_too(tmp_path, longer, said):
    script = {"kind": "script", "command": "train.py"}
    ranks = [run(size, global_batch_size=None, model=script) for size in (1, 2)]
    records = []
    for one in (*repeats(ranks[0], [0.08] * 3), *repeats(ranks[1], [0.1] * 3)):
        assert one.timing
        mean = longer.get(one.run.world_size, 1.0) * one.timing.step.median
        timing = one.timing.model_copy(update={"train_time": mean * one.timing.measured_steps})
        records.append(one.model_copy(update={"timing": timing}))
    text = answered(tmp_path, records, scaling="weak")
    assert "the scaled speedup over 1 CPU process is 1.6" in text
    assert said in text and ("by mean steps" in text) == bool(said)
    once = answered(tmp_path, [one for one in records if one.repeat == 0], scaling="weak")
    assert said.replace("0.800.", "0.800, but one repeat is too few to be sure of it.") in once


def test_a_script_whose_scaling_is_unknown_is_told_how_to_say_it(tmp_path):
    script = {"kind": "script", "command": "train.py"}
    ranks = [run(size, global_batch_size=None, model=script) for size in (1, 2)]
    records = [one for each in ranks for one in repeats(each, [0.1] * 3)]
    text = answered(tmp_path, records, scaling="none")
    assert (
        "On more ranks a step may do other work: `lab measure --scaling strong` or `weak`" in text
    )
    for name, others, scaling in (("one", records[:3], "none"), ("weak", records, "weak")):
        assert "other work" not in answered(tmp_path / name, others, scaling=scaling)


def test_the_answer_tells_that_ranks_may_train_alone(tmp_path):
    script = {"kind": "script", "command": "train.py"}
    ranks = [run(size, global_batch_size=8 * size, model=script) for size in (1, 2)]
    records = [one for each in ranks for one in repeats(each, [0.1] * 3)]
    alone = "No communication was seen on 2 ranks: unless"
    assert alone in answered(tmp_path / "alone", records, scaling="weak")
    seen = Observed(
        steps=9, ended="by the lab", optimizer="SGD", optimizers=1, wrappers=[findings.DDP]
    )
    synchronised = [one.model_copy(update={"script": seen}) for one in records]
    assert alone not in answered(tmp_path / "ddp", synchronised, scaling="weak")
    loud = [one for each in ranks for one in repeats(each, [0.1] * 3, foreign_cpu=0.9)]
    text = answered(tmp_path / "loud", loud, scaling="weak")
    assert text.startswith("There is no answer yet. Too noisy") and alone in text


def test_a_precision_alone_is_compared_with_nothing(tmp_path):
    asked = [run(1), run(1, precision="bf16")]
    made = study(tmp_path, asked, scaling="none")
    records = repeats(asked[1], [0.1] * 3)
    frame = summary(table(records), baseline=made.baseline, scaling="none")
    text = answer(made, frame, records)
    assert text == (
        "No two runs that differ only in precision, one of them with fp32, have completed yet."
    )


def test_what_is_usual_is_the_baselines_value(tmp_path):
    records = repeats(run(1), [0.1] * 3) + repeats(run(1, precision="bf16"), [0.05] * 3)
    records = [one.model_copy(update={"quality": None}) for one in records]  # as of a script
    text = answered(tmp_path, records, scaling="none", baseline={"precision": "bf16"})
    assert text.startswith("With fp32, a step takes 2.00 [2.00, 2.00] times as long as with bf16")
    assert "losses" not in text


def test_several_comparisons_count_what_their_intervals_show(tmp_path):
    records = []
    for batch, bf16 in ((8, 0.05), (16, 0.2), (32, 0.1)):
        records += repeats(run(1, batch), [0.1, 0.101, 0.102])
        records += repeats(run(1, batch, precision="bf16"), [bf16, 1.01 * bf16, 1.02 * bf16])
    text = answered(tmp_path, records, scaling="none")
    assert (
        "0.500 to 2.00 times as long as with fp32 (in 3 comparisons, 1 shown to be shorter, 1 "
        "longer; of equal ones, 3 repeats show 1 in 10 to differ); validation losses" in text
    )
    one = [one for one in records if one.repeat == 0]
    text = answered(tmp_path / "one", one, scaling="none")
    assert "(in 3 comparisons, but one repeat is too few to show how much this varies)" in text


def test_compression_and_loaders_are_compared_with_what_is_usual(tmp_path):
    plain, small = run(2), run(2, compression="bf16", bucket_cap_mb=100.0)
    records = repeats(plain, [0.1] * 3) + repeats(small, [0.05] * 3)
    text = answered(tmp_path, records, scaling="none", baseline={"world_size": 2})
    assert (
        "With bf16 on the link, a step takes 0.500 [0.500, 0.500] times as long as with uncomp"
        in text
    )
    assert "; bucket_cap_mb differs too (100, not 25)); validation losses" in text
    text_run = {"model": "agnews-small", "data": "topics"}
    classic = run(1, loader="classic", loader_workers=3, **text_run)
    waits = {"data": 0.05, "forward": 0.05, "backward": 0.05, "optimizer": 0.05, "other": 0.0}
    records = repeats(run(1, **text_run), [0.1] * 3) + repeats(classic, [0.2] * 3, phases=waits)
    text = answered(tmp_path / "loader", records, scaling="none")
    assert "With the classic loader, a step takes 2.00 [2.00, 2.00] times" in text
    assert (
        "waits for data for up to 25.0 % of its time, with the fast loader for up to 1.00 %" in text
    )


def of_strategies(times: dict[str, list[float]]) -> list[Record]:
    """Two strategies beside `single`: fsdp keeps half of the state, ddp sends half of the bytes."""
    state = {"single": (1, 0), "ddp": (1, 4_000_000), "fsdp": (2, 8_000_000)}
    records = []
    for name, values in times.items():
        parts, sent = state[name]
        memory = Memory(
            kind="resident", peak=[4 * 10**8], parameters=4 * 10**6 // parts, optimizer=8 * 10**6
        )
        moved = Communication(total=stat(0.02), exposed=stat(0.01), bytes=9, bytes_moved=sent)
        size = 1 if name == "single" else 2
        records += [
            one.model_copy(update={"memory": memory, "communication": moved if sent else None})
            for one in repeats(run(size, strategy=name), values)
        ]
    return records


SINGLE = {"strategy": "single", "world_size": 1}


def test_strategies_are_ranked_where_intervals_lie_apart(tmp_path):
    def text(*times: list[float]) -> str:
        named = dict(zip(("single", "ddp", "fsdp"), times, strict=True))
        folder = tmp_path / str(abs(hash(str(times))))
        return answered(folder, of_strategies(named), scaling="none", baseline=SINGLE)

    moved = Communication(total=stat(0.02), exposed=stat(0.01), bytes=9)
    apart = text([0.2, 0.201, 0.202], [0.1, 0.101, 0.102], [0.15, 0.151, 0.152])
    assert "is that of ddp x2; its interval lies below all others." in apart
    assert "That step is 1.990 [1.961, 2.020] times as fast as that of single x1, a gain" in apart
    assert "Weights and optimizer state on a rank take from 10.0 MB (fsdp" in apart
    assert "A rank that communicates sends in a step from 4.00 MB (ddp" in apart
    alike = [
        one.model_copy(update={"communication": moved.model_copy(update={"bytes_moved": sent})})
        for size, sent in ((2, 4_000_000), (4, 6_000_000))
        for name in ("ddp", "naive_ddp")  # which send as much on as many ranks
        for one in repeats(run(size, strategy=name), [0.1] * 3)
    ]
    assert "sends in a step" not in answered(tmp_path / "alike", alike, baseline={"world_size": 2})
    close = text([0.2, 0.201, 0.202], [0.1, 0.101, 0.12], [0.11, 0.111, 0.119])
    assert "the intervals do not distinguish it from fsdp x2" in close
    uncertain = text([0.2, 0.201, 0.09], [0.1, 0.101, 0.102], [0.15, 0.151, 0.152])
    assert "the intervals do not distinguish it from single x1." in uncertain  # the slowest
    single = text([0.2], [0.1], [0.15])
    assert "one repeat is too few to rank strategies" in single
    assert "lies below" not in single and "a gain" not in single
    two_models = of_strategies({"single": [0.2] * 3, "ddp": [0.1] * 3, "fsdp": [0.3] * 3})
    two_models += repeats(run(2, model="gpt-mini", strategy="ddp"), [0.05] * 3)
    models = answered(tmp_path / "models", two_models, scaling="none", baseline=SINGLE)
    assert "50.0" not in models and models.count("The shortest step") == 1
    slower = text([0.1, 0.101, 0.102], [0.2] * 3, [0.3] * 3)
    assert "is that of single x1" in slower and "times as fast" not in slower


def test_a_baseline_that_does_not_name_its_strategy_is_mended(tmp_path):
    records = of_strategies({"single": [0.2] * 3, "ddp": [0.1] * 3})
    text = answered(tmp_path / "without", records, scaling="none")
    assert (
        "the baseline does not name its strategy; {strategy: single, world_size: 1} would" in text
    )
    named = answered(tmp_path / "named", records, scaling="none", baseline=SINGLE)
    assert "times as fast as" in named and "does not name" not in named


def test_strategies_at_several_batches_are_ranked_by_their_throughput(tmp_path):
    records = [
        one
        for batch, strategy, size, step in (
            (16, "single", 1, 0.04),
            (64, "single", 1, 0.16),
            (16, "ddp", 2, 0.03),
            (64, "ddp", 2, 0.08),
        )
        for one in repeats(run(size, batch, strategy=strategy), [step, step * 1.01, step * 1.02])
    ]
    text = answered(tmp_path, records, scaling="strong", baseline=SINGLE)
    assert text.startswith("The highest throughput, 792.1 [784.3, 800.0] samples/s, is that of ddp")
    assert (
        "batch 64; its interval lies above all others. That is 2.000 [1.961, 2.040] times" in text
    )
    assert "the throughput of single x1, batch 64, a gain beyond" in text and "shortest" not in text


def test_ranks_that_train_models_of_their_own_are_not_compared(tmp_path):
    records = of_strategies({"single": [0.2] * 3, "ddp": [0.15] * 3, "fsdp": [0.05] * 3})
    checks = {"same_parameters": False}
    records = [
        one.model_copy(update={"checks": checks}) if one.run.strategy == "fsdp" else one
        for one in records
    ]
    text = answered(tmp_path, records, scaling="none", baseline=SINGLE)
    assert "is that of ddp x2" in text and "50.0 ms" not in text
    assert text.endswith("every rank trained a model of its own: fsdp x2.")
    pair = repeats(run(1), [0.1] * 3)
    pair += [one.model_copy(update={"checks": checks}) for one in repeats(run(2), [0.06] * 3)]
    scaled = answered(tmp_path / "scaled", pair)
    assert "No speedup can be stated" in scaled and "a model of its own" in scaled
    alone = answered(tmp_path / "alone", [one for one in records if one.checks == checks])
    assert alone.startswith("There is no answer yet. Not compared")


def test_without_its_baseline_a_run_has_no_speedup(tmp_path):
    apart = {"checks": {"same_parameters": False}}
    records = [one.model_copy(update=apart) for one in repeats(run(2), [0.2] * 3)]
    records += repeats(run(4), [0.1] * 3)
    text = answered(tmp_path, records, scaling="strong", baseline={"world_size": 2})
    assert text.startswith("No speedup can be stated, because nothing that compares with the")
    assert "every rank trained a model of its own: " in text


def test_compiled_runs_that_learn_something_else_are_not_compared(tmp_path):
    """Of records of an H200 with torch 2.11, whose compiler mistakes gpt2-large."""
    records = [
        Record.model_validate_json(path.read_text()) for path in sorted(GPU_RECORDS.glob("*.json"))
    ]
    text = answered(tmp_path, records, scaling="none", baseline={"compile": False})
    assert text.startswith("The largest share of the peak, an MFU of 45.7 %, is reached on 1 GPU")
    assert "0.853 to 0.953 times as long as with eager execution (in 2 comparisons" in text
    assert text.endswith(
        "Not compared, because compiled, the model learned something else: "
        "gpt2-large, batch 16, compiled; gpt2-large, batch 32, compiled."
    )


def test_predictions_are_answered_by_their_errors(tmp_path):
    records = repeats(run(1), [0.2] * 3) + repeats(run(2), [0.1] * 3)
    assert "no run was predicted" in answered(tmp_path, records, kind="prediction")
    score = Score(frozen=frozen(run(2), 0.13), measured_s=0.1, repeats=3, error=0.3)
    text = answered(tmp_path, records, kind="prediction", scores=[score])
    assert "is off by +30.0 %; the measurement lies outside the predicted interval." in text
    noisy = records[:3] + repeats(run(2), [0.1] * 3, foreign_cpu=0.9)
    for baseline in ({"world_size": 1}, {}):
        folder = tmp_path / f"noisy{len(baseline)}"
        text = answered(folder, noisy, kind="prediction", scores=[score], baseline=baseline)
        assert text.startswith("There is no answer yet. Too noisy") and "wrong by" not in text


def test_one_configuration_is_told_with_its_repeats(tmp_path):
    text = answered(tmp_path, repeats(run(1), [0.1, 0.11, 0.12]), scaling="none")
    assert text == (
        "A step takes 110 [100, 120] ms on 1 CPU process at batch 64: "
        "the median of 3 repeats with its range."
    )
    two = repeats(run(1), [0.1, 0.11, 0.12]) + repeats(run(1, 32), [0.05, 0.06, 0.07])
    text = answered(tmp_path / "two", two, scaling="none")
    assert text.startswith("The shortest step takes 60 [50, 70] ms on 1 CPU process at batch")
    text = answered(tmp_path, repeats(run(1), [0.1]), scaling="none")
    assert text.endswith("the median of 1 repeat, which gives no interval.")


@pytest.mark.parametrize("name", sorted(path.parent.name for path in REPORTS.glob("*/study.yaml")))
@pytest.mark.parametrize("quick", [False, True])
def test_no_shipped_study_claims_anything_from_one_repeat(name, quick):
    """Whatever a study varies, its answer has numbers, and from one repeat no verdict."""
    try:
        made = Study.load(REPORTS / name, quick=quick)
    except InputError:
        pytest.skip("has no quick form")
    runs = [one for one in made.runs if one.task == "train"]
    if made.kind != "training" or not runs:
        pytest.skip("its answer is made from inference or predictions")
    records = [
        record(one, step_time=0.1 * (1 + nth % 5)).model_copy(
            update={"quality": Quality(loss=[3.0] * one.steps, validation_loss=3.0 + nth)}
        )
        for nth, one in enumerate(runs)
    ]
    frame = summary(table(records), baseline=made.baseline, scaling=made.scaling)
    text = answer(made, frame, records)
    assert "There is no answer" not in text
    assert (
        "spread of the repeats" not in text and "lies below" not in text and "shown to" not in text
    )
    assert "one repeat is too few" in text


def test_strategies_of_many_models_are_compared_on_several_ranks(tmp_path):
    records = []
    for model in ("gpt-nano", "gpt-mini", "gpt2-small"):
        for size, factor in ((1, 1.0), (2, 1.5)):
            for name in ("ddp", "data_parallel"):
                strategy_run = run(size, model=model, strategy=name)
                slower = factor if name == "data_parallel" else 1.0
                records += repeats(strategy_run, [0.1 * slower] * 3, device="cuda")
    text = answered(tmp_path, records, scaling="none", baseline={"world_size": 2})
    assert "With data_parallel, a step takes 1.50 times as long as with ddp" in text
    assert "(in 3 comparisons, 0 shown to be shorter, 3 longer; of equal" in text


def test_noise_withholds_times_and_nothing_that_it_cannot_touch(tmp_path):
    loud = [
        one.model_copy(
            update={"environment": one.environment.model_copy(update={"foreign_cpu": 0.9})}
        )
        for one in of_strategies({"single": [0.2] * 3, "ddp": [0.1] * 3, "fsdp": [0.3] * 3})
        if one.environment
    ]
    text = answered(tmp_path, loud, scaling="none", baseline=SINGLE)
    assert text.startswith("There is no answer yet. Too noisy to explain")
    assert "take from 10.0 MB (fsdp x2)" in text and "lie within 0.001 %" in text
    assert "shortest step" not in text and "waits for" not in text


def test_what_is_quiet_is_answered_beside_what_is_not(tmp_path):
    records = []
    for batch, foreign in ((8, 0.0), (16, 0.9)):
        for size, time in ((1, 0.1), (2, 0.06)):
            records += repeats(run(size, batch), [time] * 3, foreign_cpu=foreign)
    text = answered(tmp_path, records)
    assert "On 2 CPU processes at batch 8, a step is 1.67" in text and "Too noisy" in text
    assert "at batch 16, a step" not in text
    one_rank = [one for one in records if one.run.world_size == 1]
    text = answered(tmp_path / "none", one_rank, scaling="none", baseline={})
    assert text.startswith("A step takes 100 [100, 100] ms on 1 CPU process at batch 8")


def test_nothing_is_told_of_the_times_of_noise_alone(tmp_path):
    loud = repeats(run(1), [0.1] * 3, foreign_cpu=0.9)
    text = answered(tmp_path / "one", loud, scaling="none", baseline={})
    assert text.startswith("There is no answer yet. Too noisy") and "A step takes" not in text
    records = loud + repeats(run(1, precision="bf16"), [0.05] * 3)
    assert "With bf16" not in answered(tmp_path / "pair", records, scaling="none", baseline={})
    for scaling, kept in (("weak", True), ("strong", False)):
        batch = {"global_batch_size": None, "micro_batch_size": 16} if kept else {}
        records = [
            one
            for size in (1, 2)
            for one in repeats(run(size, **batch), [0.1] * 3, foreign_cpu=0.9)
        ]
        text = answered(tmp_path / scaling, records, scaling=scaling)
        assert "Too noisy" in text and "of its pace" not in text
        assert ("after the same 480 samples" in text) == kept
