from __future__ import annotations

import math
import re

import numpy as np
import pytest
from factories import record, repeats, run
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from lab import InputError
from lab.analysis.laws import (
    amdahl_speedup,
    fit_amdahl,
    fit_gustafson,
    gustafson_speedup,
    karp_flatt,
)
from lab.analysis.scaling import RESAMPLES, SEED, _interval, chance, ratio, summary
from lab.analysis.scaling_curves import (
    WHOLE_RANGE,
    baseline_name,
    curves,
    labelled_rows,
    over_repeats,
    ranks,
)
from lab.formatting import (
    Unit,
    drawn_value,
    extent,
    format_seconds,
    joined,
    model_size,
    percent,
    rounded,
    unit_for,
    value_of,
)
from lab.records.statistics import bootstrap_interval
from lab.records.store import Record
from lab.records.table import table

ONE = {"world_size": 1}
fractions = st.floats(0, 1)
world_sizes = st.integers(2, 4096)


def strong() -> list[Record]:
    times = {
        (1, 64): [0.20, 0.21, 0.19],
        (2, 64): [0.11, 0.10, 0.12],
        (4, 64): [0.08, 0.08, 0.08],
        (1, 128): [0.4, 0.4, 0.4],
    }
    return [
        item
        for (size, batch), values in times.items()
        for item in repeats(run(size, batch), values)
    ]


def row_of(frame, world_size: int, batch: int = 64):
    rows = frame[(frame["world_size"] == world_size) & (frame["global_batch_size"] == batch)]
    assert len(rows) == 1
    return rows.iloc[0]


def test_strong_scaling_known_answer():
    frame = summary(table(strong()), baseline=ONE, scaling="strong")
    row = row_of(frame, 2)
    assert row["repeats"] == 3
    assert row["step_time"] == pytest.approx(0.11)
    assert row["speedup"] == pytest.approx(0.20 / 0.11)
    assert row["efficiency"] == pytest.approx(0.20 / 0.11 / 2)
    assert row["forward_time"] == pytest.approx(0.3 * 0.11)
    # From three repeats the intervals are the ranges.
    assert (row["step_time_low"], row["step_time_high"]) == pytest.approx((0.10, 0.12))
    assert (row["speedup_low"], row["speedup_high"]) == pytest.approx((0.19 / 0.12, 0.21 / 0.10))
    assert row["baseline_run_id"] == run(1, 64).id
    assert row_of(frame, 4)["speedup"] == pytest.approx(2.5)


def test_baseline_is_one_by_definition_and_has_no_interval():
    row = row_of(summary(table(strong()), baseline=ONE, scaling="strong"), 1)
    assert (row["speedup"], row["efficiency"]) == (1.0, 1.0)
    assert math.isnan(row["speedup_low"])


def test_weak_scaling_known_answer():
    base = repeats(run(1, None, micro_batch_size=16), [0.1])
    wide = repeats(run(4, None, micro_batch_size=16), [0.125])
    row = row_of(summary(table(base + wide), baseline=ONE, scaling="weak"), 4)
    assert row["efficiency"] == pytest.approx(0.8)
    assert row["speedup"] == pytest.approx(3.2)
    assert math.isnan(row["efficiency_low"])


def test_a_script_that_scales_weakly_has_a_speedup_although_its_batch_is_unknown():
    script = {"kind": "script", "command": "train.py"}
    ranks = [run(size, global_batch_size=None, model=script) for size in (1, 2)]
    records = [one for each in ranks for one in repeats(each, [0.1 * each.world_size**0.5] * 2)]
    two = summary(table(records), baseline={"world_size": 1}, scaling="weak").iloc[1]
    assert math.isnan(two["samples_per_second"])
    assert two["speedup"] == pytest.approx(2 * two["efficiency"]) == pytest.approx(2**0.5)
    assert two["speedup_low"] == pytest.approx(2**0.5)


def test_weak_scaling_never_compares_unlike_work_per_rank():
    frame = summary(
        table(repeats(run(1, 16), [0.1]) + repeats(run(2, 64), [0.1])), baseline=ONE, scaling="weak"
    )
    assert math.isnan(row_of(frame, 2)["speedup"])


def test_a_baseline_of_more_than_one_rank():
    frame = summary(
        table(repeats(run(2), [0.2]) + repeats(run(8), [0.1])),
        baseline={"world_size": 2},
        scaling="strong",
    )
    assert row_of(frame, 8)["speedup"] == pytest.approx(2.0)
    assert row_of(frame, 8)["efficiency"] == pytest.approx(0.5)
    assert baseline_name(frame) == "2 CPU processes"


@pytest.mark.parametrize(
    "other",
    [
        {"global_batch_size": 128},
        {"precision": "bf16"},
        {"seed": 2},
        {"compile": True},
        {"model": {"kind": "gpt", "layers": 1, "heads": 1, "width": 64, "block_size": 128}},
        {"data": {"kind": "stdlib", "vocab_size": 512}},
    ],
)
def test_no_speedup_is_invented_without_an_equal_baseline(other):
    frame = summary(
        table([record(run(1)), record(run(2, **({"global_batch_size": 64} | other)))]),
        baseline=ONE,
        scaling="strong",
    )
    row = frame[frame["world_size"] == 2].iloc[0]
    assert math.isnan(row["speedup"])
    assert row["baseline_run_id"] is None or row["baseline_run_id"] != row["baseline_run_id"]


def test_two_unlike_models_each_have_their_own_baseline():
    models = [
        {"kind": "gpt", "layers": layers, "heads": 1, "width": 64, "block_size": 128}
        for layers in (1, 2)
    ]
    times = {(0, 1): 0.1, (0, 2): 0.05, (1, 1): 0.4, (1, 2): 0.3}
    records = [
        record(run(size, model=models[nth]), step_time=time) for (nth, size), time in times.items()
    ]
    frame = summary(table(records), baseline=ONE, scaling="strong")
    assert sorted(frame["speedup"]) == pytest.approx([1, 1, 4 / 3, 2])
    assert len({line.label for line in curves(frame)}) == 2


def test_gradient_accumulation_is_compared_with_its_like():
    times = {(1, 1): 0.4, (1, 2): 0.8, (2, 1): 0.2, (2, 2): 0.2}
    records = [
        record(run(size, grad_accum=accum), step_time=time) for (size, accum), time in times.items()
    ]
    frame = summary(table(records), baseline=ONE, scaling="strong").set_index(
        ["world_size", "grad_accum"]
    )
    assert frame.loc[(2, 1), "speedup"] == pytest.approx(2)
    assert frame.loc[(2, 2), "speedup"] == pytest.approx(4)
    assert [line.label for line in curves(frame.reset_index())] == [
        "batch 64",
        "batch 64, accumulation 2",
    ]


def test_a_baseline_of_another_kind_of_device_does_not_count():
    frame = summary(
        table([record(run(1)), record(run(2), device="cuda")]), baseline=ONE, scaling="strong"
    )
    assert math.isnan(row_of(frame, 2)["speedup"])


def test_a_study_of_strategies_compares_at_equal_batch():
    records = [record(run(1, strategy="single"), step_time=0.1), record(run(1), step_time=0.125)]
    frame = summary(table(records), baseline={"strategy": "single"}, scaling="none")
    assert frame.set_index("strategy").loc["ddp", "speedup"] == pytest.approx(0.8)
    assert baseline_name(frame) == "the baseline"


def test_settings_that_mean_nothing_on_one_rank_share_its_baseline() -> None:
    runs = {run(1): 0.1, run(2, bucket_cap_mb=100.0): 0.0625, run(2, compression="bf16"): 0.05}
    frame = summary(
        table([record(configuration, step_time=time) for configuration, time in runs.items()]),
        baseline=ONE,
        scaling="strong",
    )
    assert frame.set_index("compression")["speedup"].sort_values().round(6).to_list() == [
        1.0,
        1.6,
        2.0,
    ]
    both = [record(run(1, bucket_cap_mb=size), step_time=0.1 * size) for size in (1.0, 4.0)]
    of_each = [
        *both,
        *(record(run(2, bucket_cap_mb=size), step_time=0.05 * size) for size in (1.0, 4.0)),
    ]
    frame = summary(table(of_each), baseline=ONE, scaling="strong")
    assert frame.loc[frame["world_size"] == 2, "speedup"].round(6).to_list() == [2.0, 2.0]
    other = summary(
        table([*both, record(run(2, bucket_cap_mb=9.0), step_time=0.1)]),
        baseline=ONE,
        scaling="strong",
    )
    assert (
        other.set_index("bucket_cap_mb").loc[9.0, ["speedup"]].isna().all()
    )  # either could be meant


def test_failed_repeats_do_not_count():
    records = [
        *repeats(run(1), [0.1, 0.2]),
        record(run(1), 2, status="failed"),
        record(run(4), status="oom"),
    ]
    frame = summary(table(records), baseline=ONE, scaling="strong")
    assert list(frame["world_size"]) == [1]
    assert frame["repeats"].iloc[0] == 2


@pytest.mark.parametrize("records", [[], [record(run(4), status="oom")]])
def test_nothing_completed(records):
    frame = summary(table(records), baseline=ONE, scaling="strong")
    assert frame.empty
    assert {"run_id", "step_time", "speedup_low", "communication_time"} <= set(frame.columns)
    assert curves(frame) == []


def test_an_unknown_baseline_key_is_answered_with_the_nearest():
    with pytest.raises(InputError, match="world_size"):
        summary(table([]), baseline={"worldsize": 1}, scaling="strong")


@settings(deadline=None, max_examples=25)
@given(
    times=st.lists(st.floats(1e-4, 100), min_size=1, max_size=5),
    factor=st.floats(0.05, 20),
    size=st.sampled_from([2, 4, 8]),
    scaling=st.sampled_from(["strong", "weak"]),
)
def test_laws_of_a_ratio(times, factor, size, scaling):
    batch = (
        {"global_batch_size": 64}
        if scaling == "strong"
        else {"global_batch_size": None, "micro_batch_size": 8}
    )
    records = repeats(run(1, **batch), times) + repeats(
        run(size, **batch), [time * factor for time in times]
    )
    row = summary(table(records), baseline=ONE, scaling=scaling).set_index("world_size").loc[size]
    work = size if scaling == "weak" else 1
    assert row["speedup"] == pytest.approx(work / factor)
    assert row["efficiency"] == pytest.approx(row["speedup"] / size)
    if len(times) > 1:
        assert row["speedup_low"] <= row["speedup"] * (1 + 1e-9)
        assert row["speedup"] <= row["speedup_high"] * (1 + 1e-9)


def test_the_bootstrap_is_the_same_each_time():
    pairs = [summary(table(strong()), baseline=ONE, scaling="strong") for _ in range(2)]
    assert pairs[0].equals(pairs[1])


def test_intervals_of_many_repeats_are_narrower_than_their_range():
    times = [0.1 + 0.001 * step for step in range(21)]
    row = row_of(summary(table(repeats(run(1), times)), baseline=ONE, scaling="strong"), 1)
    assert min(times) < row["step_time_low"] < row["step_time"] < row["step_time_high"] < max(times)


def test_measured_communication_leaves_compute():
    frame = summary(
        table([record(run(2), step_time=0.1, communication=(0.03, 0.02))]),
        baseline=ONE,
        scaling="strong",
    )
    assert frame["communication_time"].iloc[0] == pytest.approx(0.03)
    assert frame["compute_time"].iloc[0] == pytest.approx(0.1 * (0.30 + 0.55) - 0.02)


def test_curves_are_sorted_lines_with_short_names():
    lines = curves(summary(table(strong()), baseline=ONE, scaling="strong"))
    assert [line.label for line in lines] == ["batch 64", "batch 128"]
    assert list(lines[0].points["world_size"]) == [1, 2, 4]


def test_models_keep_the_order_of_the_records_and_numbers_count_up():
    records = [
        record(run(1, batch, model=model))
        for model in ("gpt-mini", "gpt-nano")
        for batch in (128, 8, 16)
    ]
    lines = curves(summary(table(records), baseline=ONE, scaling="none"))
    assert [line.label for line in lines] == [
        f"{model}, batch {batch}" for model in ("gpt-mini", "gpt-nano") for batch in (8, 16, 128)
    ]


def test_labels_name_what_differs():
    records = [
        record(run(size, precision=precision)) for size in (1, 2) for precision in ("fp32", "bf16")
    ]
    labels = {
        line.label for line in curves(summary(table(records), baseline=ONE, scaling="strong"))
    }
    assert labels == {"batch 64, fp32", "batch 64, bf16"}
    weak = [record(run(size, None, micro_batch_size=micro)) for size in (1, 2) for micro in (8, 16)]
    labels = {line.label for line in curves(summary(table(weak), baseline=ONE, scaling="weak"))}
    assert labels == {"batch 8 per rank", "batch 16 per rank"}


def test_amdahl_and_gustafson_known_answers():
    assert amdahl_speedup(4, 0.1) == pytest.approx(1 / 0.325)
    assert gustafson_speedup(4, 0.1) == pytest.approx(3.7)
    assert karp_flatt(1 / 0.325, 4) == pytest.approx(0.1)
    for law in (amdahl_speedup, gustafson_speedup):
        with pytest.raises(ValueError, match="ranks"):
            law(0, 0.1)
        with pytest.raises(ValueError, match="within 0 and 1"):
            law(2, 1.5)
    with pytest.raises(ValueError, match="n > 1"):
        karp_flatt(1.0, 1)


@given(n=world_sizes, fraction=fractions)
def test_laws_of_the_laws(n, fraction):
    assert amdahl_speedup(1, fraction) == pytest.approx(1)
    assert gustafson_speedup(1, fraction) == pytest.approx(1)
    assert (
        1 - 1e-9
        <= amdahl_speedup(n, fraction)
        <= gustafson_speedup(n, fraction) * (1 + 1e-9)
        <= n * (1 + 2e-9)
    )
    assert karp_flatt(amdahl_speedup(n, fraction), n) == pytest.approx(fraction, abs=1e-9)


@given(sizes=st.lists(world_sizes, min_size=1, max_size=6), fraction=fractions)
def test_the_fit_finds_the_fraction_of_exact_speedups(sizes, fraction):
    fit = fit_amdahl([1, *sizes], [amdahl_speedup(size, fraction) for size in [1, *sizes]])
    assert fit is not None
    assert fit.serial_fraction == pytest.approx(fraction, abs=1e-9)
    assert fit.largest_error < 1e-6
    assert (fit.low is None) == (len(sizes) == 1)


def test_the_fit_of_noisy_speedups():
    fit = fit_amdahl([2, 4, 8], [1.8, 3.2, 4.6])
    assert fit is not None
    sizes, times = np.array([1, 2, 4, 8]), 1 / np.array([1, 1.8, 3.2, 4.6])
    (serial, whole), covariance = optimize.curve_fit(
        lambda n, serial, whole: serial + (whole - serial) / n, sizes, times, sigma=times
    )
    assert fit.serial_fraction == pytest.approx(serial / whole)
    slopes = np.array([1, -serial / whole]) / whole
    half = 4.302653 * (slopes @ covariance @ slopes) ** 0.5  # Student's t with two degrees
    assert fit.low == pytest.approx(serial / whole - half, rel=1e-4)
    assert fit.high == pytest.approx(serial / whole + half, rel=1e-4)
    speedups = 1 / (fit.serial_fraction + (1 - fit.serial_fraction) / sizes)
    assert fit.largest_error == pytest.approx(np.abs(speedups * times - 1).max())
    assert fit_amdahl([1], [1]) is None
    assert fit_amdahl([2, 4], [2.2, 4.4]).serial_fraction == 0
    with pytest.raises(ValueError, match="as many"):
        fit_amdahl([1, 2], [1])


def test_the_chance_of_a_false_difference_is_told_where_it_is_high() -> None:
    assert chance(3) == "; of equal ones, 3 repeats show 1 in 10 to differ"
    assert not chance(4) and not chance(2)  # of two, nothing is claimed


@pytest.mark.parametrize(
    ("count", "of_median", "of_ratio"), [(3, 75, 90), (4, 88, 97), (5, 94, 97), (7, 95, 96)]
)
def test_intervals_contain_the_truth_as_often_as_the_documentation_says(
    count: int, of_median: int, of_ratio: int
) -> None:
    rng = np.random.default_rng(count)
    ours, theirs = np.exp(0.03 * rng.standard_normal((2, 1000, count)))
    for promised, samples in ((of_median, [ours]), (of_ratio, [ours, theirs])):
        _, low, high = _interval(*samples)
        covered = 100 * float(np.mean((low <= 1) & (high >= 1)))
        assert covered == pytest.approx(promised, abs=3)


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.4])
def test_nineteen_of_twenty_serial_fractions_lie_in_their_intervals(fraction: float) -> None:
    rng, sizes = np.random.default_rng(0), np.array([1, 2, 4, 8, 16])
    times = fraction + (1 - fraction) / sizes
    measured = times * (1 + rng.normal(0, 0.02, (400, len(sizes))))
    fits = [fit_amdahl(sizes, each[0] / each) for each in measured]
    inside = np.mean([fit.low <= fraction <= fit.high for fit in fits])
    assert inside == pytest.approx(0.95, abs=0.03)


def test_a_scaled_speedup_counts_by_its_relative_error() -> None:
    # Both are a tenth below N. By hand: the ranks lost, (n - 1) / S, explain n / S - 1 = 1 / 9.
    fraction, error = fit_gustafson([1, 2, 64], [1, 1.8, 57.6])
    lost = 1 / 1.8, 63 / 57.6
    assert fraction == pytest.approx(sum(lost) / 9 / sum(each**2 for each in lost))
    assert error == pytest.approx((2 - fraction) / 1.8 - 1)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((1.8412, 1.8, 1.9), "1.841 [1.800, 1.900]"),  # half the width is 0.050
        ((1.8412, 1.7, 1.9), "1.84 [1.70, 1.90]"),
        ((153.2, 120, 190), "153 [120, 190]"),
        ((87.3, 70.6, 92.8), "87 [71, 93]"),
        ((265.4, 149, 381), "265 [149, 381]"),  # half the width is 116: no rounding to tens
        ((12345.0, 11000.0, 13000.0), "12300 [11000, 13000]"),
        ((0.4, 0.2, 2.5), "0.4 [0.2, 2.5]"),
        ((0.5, 0.0, 0.0999 * 2 + 2e-4), "0.50 [0.00, 0.20]"),
        ((-0.3, -1.4, 0.8), "-0.3 [-1.4, 0.8]"),
        ((100.0, 99.999, 100.001), "100.00 [100.00, 100.00]"),
        ((2.5, 2.5, 2.5), "2.50 [2.50, 2.50]"),
        ((2.5, 2.5, 2.5 * (1 + 1e-15)), "2.50 [2.50, 2.50]"),  # an error of rounding
        ((1.8412,), "1.84"),
        ((9.996,), "10.0"),
        ((12345.0,), "12300"),
        ((0.0, 0.0, 0.0), "0"),
        ((math.nan, math.nan, math.nan), "not measured"),
        ((None,), "not measured"),
    ],
)
def test_rounding_to_what_the_interval_supports(numbers, text):
    assert rounded(*numbers) == text


@given(value=st.floats(1e-6, 1e6), down=st.floats(0, 0.5), up=st.floats(0, 0.5))
def test_a_rounded_value_stays_within_the_width_of_its_interval(value, down, up):
    low, high = value * (1 - down), value * (1 + up)
    shown = float(rounded(value, low, high).split(" ")[0])
    assert shown > 0
    assert abs(shown - value) <= max((high - low) / 20, 0.006 * value)


@given(
    value=st.floats(1e-6, 1e6),
    down=st.floats(1e-3, 0.5),
    up=st.floats(1e-3, 0.5),
    factor=st.sampled_from([1, -1]),
)
def test_a_value_and_its_ends_have_the_decimals_of_half_the_width(value, down, up, factor):
    low, high = sorted([factor * value * (1 - down), factor * value * (1 + up)])
    text = rounded(factor * value, low, high)
    numbers = re.fullmatch(r"(-?[\d.]+) \[(-?[\d.]+), (-?[\d.]+)\]", text)
    assert numbers is not None, text
    decimals = {len(number.partition(".")[2]) for number in numbers.groups()}
    assert len(decimals) == 1
    digits = f"{(high - low) / 2:.{decimals.pop()}f}".replace(".", "").lstrip("0")
    assert len(digits) == 2 or value >= 10, text  # a whole number keeps its units up to 1000
    assert len(digits) >= 2
    assert value_of(text) == numbers[1]


def test_seconds_and_per_cent():
    assert format_seconds(0.1532, 0.15, 0.157) == "153.2 [150.0, 157.0] ms"
    assert format_seconds(1.5) == "1.50 s"
    assert format_seconds(2e-5) == "20.0 µs"
    assert format_seconds(0.02, unit=Unit("s", 1.0)) == "0.0200 s"
    assert format_seconds(0.0002, 0.0001, 0.0003, unit=Unit("s", 1.0)) == "200 [100, 300] µs"
    assert format_seconds(0.0, unit=Unit("s", 1.0)) == "0.00 s"
    assert format_seconds(None) == "not measured"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (101500.0, "101500"),
        (391775.4, "391775"),
        (1.602, "1.602"),
        (0.42, "0.42"),
        (2 / 3, "0.66667"),
    ],
)
def test_a_given_value_keeps_its_own_digits(value, text):
    assert rounded(value, given=True) == text
    assert rounded(1.602, 1.59, 1.61, given=True) == rounded(1.602, 1.59, 1.61)
    assert percent(0.4185, given=True) == "41.85 %"
    assert format_seconds(0.1532, given=True) == "153.2 ms"
    assert unit_for([0.002, None, math.nan, 0.5]).name == "ms"
    assert percent(0.46, 0.45, 0.48) == "46.0 [45.0, 48.0] %"
    assert value_of(percent(0.46, 0.31, 0.6)) == "46 %" and value_of("12 ms") == "12 ms"


def test_drawn_values_have_at_most_three_digits():
    assert drawn_value(format_seconds, 0.37948, 0.37930, 0.37965) == "379 ms"
    assert drawn_value(rounded, 1.1003, 1.0975, 1.1031) == "1.10"
    assert drawn_value(rounded, 17834.0, 17820.0, 17850.0) == "17800"
    assert drawn_value(rounded, 87.31, 71.0, 93.0) == "87"  # no more than the interval supports
    assert drawn_value(rounded, 5.678, math.nan, math.nan) == "5.68"


def test_several_names_and_values_are_one_phrase():
    assert [joined(""), joined("a"), joined("ab"), joined("abc", "or")] == [
        "",
        "a",
        "a and b",
        "a, b or c",
    ]
    wide, narrow = (0.87, 0.71, 0.93), (0.5, math.nan, math.nan)
    assert extent([wide]) == rounded(*wide)
    assert extent([wide, narrow]) == "0.500 to 0.870" and extent([wide, wide]) == "0.870"


def test_a_row_knows_its_curve_and_its_baseline():
    *_, four, alone = labelled_rows(summary(table(strong()), baseline=ONE, scaling="strong"))
    assert four.place == "4 CPU processes at batch 64"
    assert four.base["world_size"] == 1 and four.base.is_baseline and four.is_compared
    assert alone.label == "batch 128" and alone.base is alone and not alone.is_compared
    assert four.text("step_time") == "80.0 [80.0, 80.0] ms"
    assert four.text("efficiency") == "62.5 [59.4, 65.6] %"


def test_ranks_are_called_what_they_are():
    assert [ranks("cuda", 1), ranks("cuda", 2), ranks("cpu", 1), ranks("cpu"), ranks(None, 3)] == [
        "1 GPU",
        "2 GPUs",
        "1 CPU process",
        "CPU processes",
        "3 ranks",
    ]


def test_a_strategy_of_ones_own_has_a_curve_by_its_name() -> None:
    own = {"strategy": "mine:Local", "own_strategy": {"factory": "mine:Local", "args": {"n": 4}}}
    runs = [run(size, **settings) for settings in ({}, own) for size in (1, 2)]
    records = [record(one, step_time=0.1 / one.world_size) for one in runs]
    baseline = {"world_size": 1, "strategy": "ddp"}
    rows = summary(table(records), baseline=baseline, scaling="strong")
    labels = [label.split(", ")[1:] for label, _ in curves(rows)]
    assert labels == [["ddp"], ["Local", "n 4"]]
    assert list(rows["speedup"].round(6)) == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([1, 1], "from one repeat, which gives no interval"),
        ([1, 2], "median over 1 to 2 repeats [range]"),
        ([3], "median over 3 repeats [range]"),
        ([1, 7, 6], "median over 1 to 7 repeats [95 % interval]"),
        ([3, 9], "median over 3 to 9 repeats [95 % interval; of up to 4 repeats their range]"),
    ],
)
def test_the_range_of_few_repeats_is_not_called_an_interval_of_95_percent(
    counts: list[int], expected: str
) -> None:
    assert over_repeats(counts) == expected


@pytest.mark.parametrize("count", range(2, 8))
def test_up_to_four_repeats_have_their_range_as_interval_also_of_a_ratio(count: int) -> None:
    alone, shared = ([first + 0.01 * n for n in range(count)] for first in (0.2, 0.1))
    done = repeats(run(1), alone) + repeats(run(2), shared)
    row = row_of(summary(table(done), baseline={"world_size": 1}, scaling="strong"), 2)
    ends = alone[0] / shared[-1], alone[-1] / shared[0]
    assert ((row["speedup_low"], row["speedup_high"]) == ends) == (count <= WHOLE_RANGE)
    whole = row["step_time_low"] == shared[0] and row["step_time_high"] == shared[-1]
    assert whole or count > WHOLE_RANGE


three = st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=3).map(np.array)


@given(three, three)
def test_the_range_of_three_repeats_is_what_the_bootstrap_gives(top, bottom):
    def of_medians(top, bottom, axis):
        return np.median(top, axis=axis) / np.median(bottom, axis=axis)

    ends = bootstrap_interval([top, bottom], of_medians, resamples=RESAMPLES, seed=SEED)
    assert ratio(top, bottom)[1:] == ends


def test_of_two_unlike_repeats_a_weak_speedup_is_the_ranks_times_the_efficiency():
    batch = {"global_batch_size": None, "micro_batch_size": 32}
    records = [*repeats(run(1, **batch), [0.1, 0.3]), *repeats(run(2, **batch), [0.4, 0.5])]
    frame = summary(table(records), baseline={"world_size": 1}, scaling="weak")
    one, two = frame.to_dict("records")
    for end in ("", "_low", "_high"):
        assert two[f"speedup{end}"] == pytest.approx(2 * two[f"efficiency{end}"])
    assert one["samples_per_second"] == pytest.approx(32 / 0.2)
    assert two["speedup"] == pytest.approx(two["samples_per_second"] / one["samples_per_second"])
    assert one["samples_per_second_low"] == pytest.approx(32 / 0.3)


@pytest.mark.parametrize(
    ("parameters", "text"), [(124439808, "124M"), (7e9, "7B"), (70.56e9, "70.6B"), (1e12, "1T")]
)
def test_numbers_of_parameters_have_three_digits(parameters: float, text: str) -> None:
    assert model_size(parameters) == text
