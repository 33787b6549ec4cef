"""What a proposal for compute time asks for: where to stop, what jobs cost, what hours pay for."""

from __future__ import annotations

import pandas as pd
import pytest

from lab.analysis import proposal
from lab.analysis.laws import fit_gustafson
from lab.analysis.reported import records_from
from lab.analysis.scaling import summary
from lab.formatting import in_words
from lab.records.table import table


def rows(sizes: list[int], times: list[float], **columns: object) -> pd.DataFrame:
    content = {"gpus": sizes, "time_s": times, **columns}
    return summary(table(records_from(pd.DataFrame(content))), baseline={}, scaling="strong")


def test_hours_are_time_times_ranks() -> None:
    (one, two) = proposal.costs(rows([1, 4], [3600.0, 1200.0]), proposal.Request(10, "GPU"))
    assert one["GPU-hours for a run"] == "1.00" and two["GPU-hours for a run"] == "1.33"
    assert two["cost over the fewest"] == "1.33"
    assert one["10 GPU-hours pay for"] == "10 runs" and two["10 GPU-hours pay for"] == "7 runs"


def test_the_cost_of_runs_whose_work_may_grow_is_not_compared() -> None:
    open_scaling = proposal.costs(rows([1, 2, 4], [600.0, 624.0, 666.0]))
    assert not any("cost over the fewest" in row for row in open_scaling)


def test_a_rate_costs_by_the_million() -> None:
    content = pd.DataFrame({"gpus": [1, 2], "tokens/s": [1000, 1600]})
    (one, _) = proposal.costs(
        summary(table(records_from(content)), baseline={}, scaling="strong"),
        proposal.Request(1, "GPU"),
    )
    assert one["GPU-hours for a million tokens"] == "0.278"
    assert one["1 GPU-hours pay for"] == "3.60 million tokens"


@pytest.mark.parametrize(
    ("rate", "hours", "paid"),
    [
        ("ns/day", "GPU-hours for 1 ns", "50 ns"),
        ("Throughput [SYPD]", "GPU-hours for 1 simulated year", "50 simulated years"),
    ],
)
def test_a_rate_per_day_costs_what_a_day_costs(rate: str, hours: str, paid: str) -> None:
    of = summary(
        table(records_from(pd.DataFrame({"gpus": [4, 8], rate: ["12", "20"]}))),
        baseline={},
        scaling="strong",
    )
    one, two = proposal.costs(of, proposal.Request(400, "GPU"))
    assert one[hours] == "8.00" and two[hours] == "9.60"  # 4 x 24 / 12 and 8 x 24 / 20
    assert one["400 GPU-hours pay for"] == paid


def test_high_rates_cost_by_the_billion() -> None:
    content = pd.DataFrame({"gpus": [1, 8], "Gcells/s": [3.6, 24.0]})
    one, _ = proposal.costs(
        summary(table(records_from(content)), baseline={}, scaling="strong"),
        proposal.Request(1, "GPU"),
    )
    assert one["GPU-hours for a billion cells"] == "0.0000772"
    assert one["1 GPU-hours pay for"] == "13.0 trillion cells"


def test_a_table_of_cores_costs_core_hours() -> None:
    content = pd.DataFrame({"Anzahl Kerne": [48, 96, 192, 384], "time_h": [2.0, 1.1, 0.6, 0.4]})
    of = summary(table(records_from(content)), baseline={}, scaling="strong")
    one = proposal.costs(of)[0]
    assert one["cores"] == "48" and one["core-hours for a run"] == "96.0"


@pytest.mark.parametrize(
    ("threads", "column", "hours"),
    [
        ([8, 8], "core-hours for a run", ["8.00", "11.1"]),
        ([1, 4], "core-hours for a run", ["1.00", "5.56"]),  # cores are taken for ranks
        (["8", "?"], "rank-hours for a run", ["1.00", "1.39"]),
    ],
)
def test_ranks_with_threads_cost_core_hours(
    threads: list[object], column: str, hours: list[str]
) -> None:
    content = {"mpi_ranks": [1, 2], "omp_threads": threads, "time_s": [3600.0, 2500.0]}
    of = summary(table(records_from(pd.DataFrame(content))), baseline={}, scaling="strong")
    assert [row[column] for row in proposal.costs(of)] == hours
    assert "GPU-hours for a run" in proposal.costs(of, proposal.Request(1, "GPU"))[0]


def test_the_time_for_1000_steps_is_not_that_of_one() -> None:
    content = pd.DataFrame({"gpus": [4, 8], "Wall-clock time for 1000 steps (h)": [6.2, 3.18]})
    of = summary(table(records_from(content)), baseline={}, scaling="strong")
    assert proposal.costs(of)[0]["GPU-hours for a run"] == "24.8"


def test_the_factors_of_a_request_have_the_digits_of_the_table() -> None:
    (text,) = proposal.requests(rows([1, 2], [2233.5, 1384.64]), proposal.Request(500, "GPU"))
    assert text.startswith("649 runs x 1384.6 s x 2 GPUs = 499 of")


def test_a_spread_over_unknown_repeats_is_not_called_one_repeat() -> None:
    text = proposal.headline(rows([1, 2], [100.0, 52.0], std_s=[1.0, 1.0]))
    assert "one repeat" not in text and "how many repeats" in text


def test_a_bound_names_the_ranks_that_it_is_over() -> None:
    (law,) = proposal.fits(rows([4, 8, 16, 32], [100, 60, 40, 30]))  # Amdahl with f = 0.2
    assert law.endswith("exceeds a speedup of 5.00 over 4 GPUs.")


def test_where_to_stop_is_the_last_size_before_efficiency_falls() -> None:
    (text,) = proposal.stops(rows([1, 2, 4, 8, 16], [100, 55, 31, 20, 22]))
    assert "70 % or more up to 4 GPUs (80.6 %)" in text
    assert "50 % or more up to 8 GPUs (62.5 %)" in text
    assert "beyond 8 GPUs the time grows again" in text
    (text,) = proposal.stops(rows([1, 2, 4], [100, 55, 55]))
    assert "beyond 2 GPUs the time no longer falls" in text


def test_efficiency_that_recovers_does_not_stop_and_its_lowest_value_is_told() -> None:
    (text,) = proposal.stops(rows([1, 2, 4, 8], [100, 55, 60, 20]))
    assert "70 % or more up to 2 GPUs (90.9 %), and 50 % or more up to 8 GPUs (62.5 %)" in text
    assert text.endswith("; before, it is only 41.7 % on 4 GPUs.")
    (text,) = proposal.stops(rows([1, 4, 8], [80, 60, 11]))
    assert "still 90.9 % on 8 GPUs" in text and "before, it is only 33.3 % on 4 GPUs" in text


def test_a_table_that_ends_before_is_not_said_to_stop() -> None:
    (text,) = proposal.stops(rows([1, 2, 4], [100, 51, 26]))
    assert text.endswith("the most in the table: the stopping point lies beyond.")


def test_a_second_gpu_that_loses_is_told() -> None:
    (text,) = proposal.stops(rows([1, 2], [100.0, 120.0], global_batch_size=[8, 8]))
    assert text.startswith("Stay on 1 GPU")


def test_amdahls_law_is_found_again_and_extended_only_where_it_holds() -> None:
    sizes = [1, 2, 4, 8]
    # Rounded as people write: a law that is met exactly has no interval to speak of.
    times = [round(1000 * (0.05 + 0.95 / n) * (1 + 0.004 * (-1) ** n), 1) for n in sizes]
    (text,) = proposal.fits(rows(sizes, times))
    assert "Amdahl's law with a serial fraction of 5" in text and "efficiency falls to 50 %" in text
    (bad,) = proposal.fits(rows([1, 2, 4, 8], [100, 50, 25, 60]))
    assert "does not hold" in bad and "50 %" not in bad


def test_gustafsons_law_is_found_again() -> None:
    sizes = [1, 2, 4, 8]
    fraction, error = fit_gustafson(sizes, [0.1 + 0.9 * n for n in sizes])
    assert fraction == pytest.approx(0.1) and error == pytest.approx(0, abs=1e-12)
    with pytest.raises(ValueError, match="one above 1"):
        fit_gustafson([1], [1])


def test_a_request_multiplies_out() -> None:
    (text,) = proposal.requests(rows([1, 2, 4], [3600, 1900, 1100]), proposal.Request(100, "GPU"))
    assert text.startswith("81 runs x 1100 s x 4 GPUs = 99.0 of the 100 GPU-hours, each 3.27 times")


def test_a_request_that_pays_for_no_job_says_so() -> None:
    (text,) = proposal.requests(rows([1, 2, 4], [3600, 1900, 1100]), proposal.Request(1, "GPU"))
    assert text == "A run on 4 GPUs takes 1.22 GPU-hours, more than the 1 of this request."


def test_the_law_of_a_step_finds_link_and_overhead_again() -> None:
    size, bandwidth, fixed = 400e6, 5e9, 0.002
    sizes = [1, 2, 4, 8, 16]
    times = [0.1] + [0.1 + fixed + 2 * (n - 1) / n * size / bandwidth for n in sizes[1:]]
    content = {"gpus": sizes, "batch_per_gpu": [8] * 5, "step_time_s": times}
    frame = pd.DataFrame(content | {"parameters": [int(size / 4)] * 5})
    (text,) = proposal.step_laws(summary(table(records_from(frame)), baseline={}, scaling="strong"))
    assert text.startswith("To the work of a rank, a step on several GPUs adds a fixed 2.00 ms, ")
    assert "its gradients (400 MB) over links of 5.0" in text and "on 32 GPUs" in text
    without = pd.DataFrame(content)
    assert not proposal.step_laws(
        summary(table(records_from(without)), baseline={}, scaling="strong")
    )


@pytest.mark.parametrize(("fixed", "noise"), [(0.0, 0.0), (0.0, 0.02), (0.03, 0.002)])
def test_the_law_of_a_step_names_only_what_its_rows_show(fixed: float, noise: float) -> None:
    sizes, errors = [1, 2, 4, 8, 16, 32], [0, noise, -noise, -noise, noise, 0]
    times = [0.145] + [0.145 + fixed + 2 * (n - 1) / n * 5e8 / 6e9 for n in sizes[1:]]
    times = [time * (1 + error) for time, error in zip(times, errors, strict=True)]
    content = {"gpus": sizes, "batch_per_gpu": [8] * 6, "step_time_s": times}
    frame = pd.DataFrame(content | {"parameters": [125_000_000] * 6})
    (text,) = proposal.step_laws(summary(table(records_from(frame)), baseline={}, scaling="strong"))
    assert ("a fixed" in text) == bool(fixed) and "hides" not in text
    assert ("GB/s: this fit matches the steps exactly" in text) == (not noise)
    assert ("] GB/s" in text) == bool(noise)  # with its interval


def test_more_than_ranks_can_give_is_no_place_to_stop() -> None:
    summarized = rows([1, 4], [100.0, 8.0])
    (text,) = proposal.stops(summarized)
    assert text.startswith("No stopping point is named, because an efficiency of 312 %")
    assert not proposal.fits(summarized) and not proposal.requests(
        summarized, proposal.Request(10, "GPU")
    )


def test_a_baseline_that_curves_share_is_named_by_its_ranks_alone() -> None:
    frame = pd.DataFrame(
        {"strategy": ["single", "ddp", "fsdp"], "gpus": [1, 2, 2], "time_s": [100, 55, 60]}
    )
    text = proposal.headline(summary(table(records_from(frame)), baseline={}, scaling="strong"))
    assert "1.82 times as fast as on 1 GPU (efficiency 90.9 %)" in text


def test_equal_curves_are_told_once_and_neither_is_best_nor_worst() -> None:
    content = {"model": list("aabbcc"), "gpus": [1, 2] * 3, "time_s": [100, 55] * 3}
    summarized = summary(table(records_from(pd.DataFrame(content))), baseline={}, scaling="strong")
    (text,) = proposal.stops(summarized)
    assert text.startswith("All 3 configurations: efficiency is still 90.9 %")
    assert proposal.headline(summarized).startswith("Of 3 configurations with the same efficiency")


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((81.9,), "81"),
        ((356_435,), "356,000"),
        ((17_821_782,), "17.8 million"),
        ((1.8e10, 1.7e10, 1.9e10), "18.0 billion"),
    ],
)
def test_large_numbers_have_the_digits_that_their_interval_supports(numbers, text) -> None:
    assert in_words(*numbers) == text


def test_a_request_of_growing_work_is_not_called_faster() -> None:
    content = pd.DataFrame({"gpus": [1, 2], "batch_per_gpu": 8, "epoch_s": [3600, 4000]})
    content["images_per_s"] = [100.0, 180.0]
    weak = summary(table(records_from(content, scaling="weak")), baseline={}, scaling="weak")
    (text,) = proposal.requests(weak, proposal.Request(100, "GPU"))
    assert "times as fast" not in text
    assert "each with 1.80 times the throughput of 1 GPU" in text, text
