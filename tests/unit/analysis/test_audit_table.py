"""Columns, numbers and shapes of other people's tables."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
from factories import record, run

from lab.analysis.audit import apply_rules
from lab.analysis.audit.columns import Guess, guess, names_gpu, residue
from lab.analysis.audit.records import from_records
from lab.analysis.audit.table import from_table
from lab.analysis.audit.text_table import read_table
from lab.analysis.audit.values import BYTE_UNITS, TIME_UNITS, number, numbers, spread
from lab.errors import InputError
from lab.perfmodel.hardware import GPUS

TABLES = Path(__file__).parents[2] / "fixtures" / "tables"


def test_every_gpu_with_known_figures_is_known_by_name() -> None:
    assert all(map(names_gpu, GPUS))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,384.6", 1384.6),
        ("1.384,6", 1384.6),
        ("12,5", 12.5),
        ("1,384", 1384.0),
        ("0,384", 0.384),
        ("95%", 0.95),
        ("3.9x", 3.9),
        ("1e3", 1000.0),
        ("12.3 s", 12.3),
        ("45 ms", 0.045),
        ("2h", 7200.0),
        ("1:30", 90.0),
        ("01:12:30", 4350.0),
        ("1:02:03.5", 3723.5),
        ("2-03:00:00", 183600.0),
        ("1 day, 1:00:00", 90000.0),
        ("1h 12m 30s", 4350.0),
        ("12 min", 720.0),
        ("0m12.3s", 12.3),
        ("12.3 ± 0.4", 12.3),
        ("~5", 5.0),
        (7, 7.0),
    ],
)
def test_numbers_as_people_write_them(text: object, value: float) -> None:
    assert number(text, units=TIME_UNITS) == pytest.approx(value)


@pytest.mark.parametrize(
    "text", ["", "NA", "-", "n/a", "OOM", "abc", "gpu 4", None, True, float("inf"), "nan"]
)
def test_what_is_no_number(text: object) -> None:
    assert math.isnan(number(text))


@pytest.mark.parametrize(
    ("column", "cells", "times"),
    [
        ("time to train", ["01:12:30", "12:30"], [4350, 750]),
        ("epoch time", ["1:02:03.5", "33:07"], [3723.5, 1987]),
        ("time (hh:mm:ss)", ["01:12:30", "00:40:00"], [4350, 2400]),
        ("Run time (hrs:mins:secs)", ["01:12:30", "00:40:00"], [4350, 2400]),
        ("Time to train (hours)", ["9:41", "5.5"], [34860, 19800]),
        ("training time (hh:mm)", ["9:41", "4:58"], [34860, 17880]),
        ("wall time (hours:minutes)", ["9:41", "4:58"], [34860, 17880]),
        ("epoch time [min]", ["42:18", "21:47"], [2538, 1307]),
    ],
)
def test_times_on_a_clock_bring_no_remark_on_units(
    column: str, cells: list[str], times: list[float]
) -> None:
    observations = from_table(pd.DataFrame({"gpus": [1, 2], column: cells}))
    assert observations.frame["time"].tolist() == times
    assert not observations.assumptions
    mixed = from_table(pd.DataFrame({"gpus": [1, 2], "epoch time": [cells[0], "80"]}))
    assert "'epoch time' names no unit and is read as seconds" in mixed.assumptions


def test_units_of_columns_and_cells() -> None:
    assert numbers(pd.Series(["100", "2 s"]), units=TIME_UNITS, factor=1e-3).tolist() == [0.1, 2.0]
    assert number("25 MiB", units=BYTE_UNITS) == 25 * 2**20
    assert spread("12.3 ± 0.4") == 0.4 and math.isnan(spread("12.3"))


@pytest.mark.parametrize(
    ("name", "canonical", "factor", "per"),
    [
        ("step_time (ms)", "time", 1e-3, "step"),
        ("EpochTime[s]", "time", 1.0, "epoch"),
        ("ms/step", "time", 1e-3, "step"),
        ("s/it", "time", 1.0, "step"),
        ("avg_iteration_time_us", "time", 1e-6, "step"),
        ("Runtime", "time", None, "total"),
        ("train_s", "time", 1.0, "total"),
        ("T", "time", None, "total"),
        ("communication_s", "communication", 1.0, None),
        ("exposed_comm_ms", "exposed", 1e-3, None),
        ("allreduce_time", "communication", None, None),
        ("data_load_s", "data", 1.0, None),
        ("h2d_s", "h2d", 1.0, None),
        ("fwd_ms", "forward", 1e-3, None),
        ("optimizer_step_ms", "optimizer", 1e-3, "step"),
        ("epoch_s_std", "std", 1.0, "epoch"),
        ("parameters_m", "parameters", 1e6, None),
        ("message_mib", "bytes", 2.0**20, None),
        ("busbw_gbps", "busbw", 1e9 / 8, None),
        ("busbw (GB/s)", "busbw", 1e9, None),
    ],
)
def test_quantities_by_name(
    name: str, canonical: str, factor: float | None, per: str | None
) -> None:
    meaning = guess(name)
    assert meaning is not None and meaning.canonical == canonical
    assert meaning.factor == factor and (per is None or meaning.per == per)


@pytest.mark.parametrize(
    ("canonical", "names"),
    {
        "world_size": [
            "gpus",
            "n_gpus",
            "num_gpus",
            "World Size",
            "#GPUs",
            "nGPUs",
            "ranks",
            "procs",
            "nprocs",
            "Number of GPUs",
        ],
        "nodes": ["nodes", "num_nodes", "nnodes", "node_num"],
        "per_node": ["gpus per node", "GPUs/node", "ranks_per_node", "ppn", "gpu_num_per_node"],
        "grad_accum": ["grad_acc", "GA", "GAS", "gradient accumulation steps", "grad_accum"],
        "sequence_length": ["seq_len", "Sequence Length", "SeqLen (T)", "context length"],
        "time": ["epoch_time", "step (ms)", "Time to train (min)", "time_to_accuracy_s"],
        "batch": ["batch", "batch_size", "bs", "global_or_per_gpu_batch"],
        "global_batch_size": [
            "global_batch",
            "total_batch_size",
            "effective batch size",
            "Batch (global)",
            "gbs",
        ],
        "micro_batch_size": [
            "per_gpu_batch",
            "batch_per_rank",
            "micro_batch_size",
            "local_bs",
            "per_device_train_batch_size",
            "train_micro_batch_size_per_gpu",
            "device_train_microbatch_size",
            "micro-batch (per GPU)",
            "mbs",
        ],
        "rate": [
            "samples/s",
            "tokens_per_second",
            "throughput",
            "images per sec",
            "Throughput (samples/s)",
        ],
        "speedup": ["speedup", "Speed-up", "speedup_vs_1gpu"],
        "efficiency": ["efficiency", "scaling efficiency (%)", "parallel_eff"],
        "loader_workers": ["num_workers", "loader_workers_per_rank", "dataloader workers"],
        "cpus": ["cpus", "cpus_per_job", "cpu_count"],
        "accuracy": ["val_accuracy", "acc", "top1"],
        "loss": ["loss", "val_loss", "train loss"],
        "host": ["host", "hostname"],
        "seed": ["seed"],
        "epoch": ["epoch"],
        "step": ["step", "iteration"],
    }.items(),
)
def test_names_of_one_quantity(canonical: str, names: list[str]) -> None:
    assert {name: (guess(name) or Guess("", None)).canonical for name in names} == dict.fromkeys(
        names, canonical
    )


@pytest.mark.parametrize(
    "name",
    [
        "Throughput speedup (FP32 to mixed precision)",
        "Speed-up with mixed precision",
        "speedup_amp",
        "inference_s",
        "setup_time",
        "val_time",
        "comment",
        "p90",
        "S",
        "color",
        "timestamp",
    ],
)
def test_what_a_name_does_not_say(name: str) -> None:
    assert guess(name) is None


def test_means_among_ranks() -> None:
    observations = from_table(read_table(TABLES / "gpt_strong_scaling.csv"))
    assert int(observations.frame["aggregate"].sum()) == 4 and observations.per == "epoch"
    two = {
        curve.label: {point.world_size: point for point in curve.points}
        for curve in observations.curves
    }["batch 128"]
    assert (two[4].time, two[4].mean) == (706.41, 489.62)


def test_wide_strategies_become_rows() -> None:
    observations = from_table(read_table(TABLES / "gpt2_ddp_2x3090.csv"))
    assert len(observations.frame) == 20 and set(observations.frame["world_size"]) == {1, 2}
    assert observations.frame["parameters"].max() == pytest.approx(354.8e6)
    assert any("2 ranks by the name of the table" in text for text in observations.assumptions)
    curve = next(curve for curve in observations.curves if curve.label == "gpt2, block 128")
    gains = {
        point.strategy: round(point.gain, 2) for point in curve.points if point.world_size == 2
    }
    assert gains == {"dp": 1.18, "ddp_nvlink": 1.45, "ddp_no_nvlink": 0.65}


@pytest.mark.parametrize(
    "columns",
    [
        ("Batch 64", "Batch 128"),
        ("bs64", "bs128"),
        ("time_b64 (s)", "time_b128 (s)"),
        ("batch=64 (s)", "batch=128 (s)"),
        ("time (s), max bsz=64", "time (s), max bsz=128"),
    ],
)
def test_columns_for_batches_become_rows(columns: tuple[str, str]) -> None:
    observations = from_table(
        pd.DataFrame({"GPUs": [1, 2], columns[0]: [100, 55], columns[1]: [190, 99]})
    )
    assert observations.frame["batch"].tolist() == [64, 64, 128, 128] and observations.frame[
        "time"
    ].tolist() == [
        100,
        55,
        190,
        99,
    ]
    assert any(
        "the batches are read from the column names" in text for text in observations.assumptions
    )
    assert len(observations.curves) == 2


def test_columns_for_batches_and_ranks_become_rows() -> None:
    observations = from_table(
        pd.DataFrame(
            [[40, 22, 70, 36]],
            columns=[f"{n} GPU, batch {b} (ms)" for b in (8, 16) for n in (1, 2)],
        )
    )
    rows = observations.frame[["world_size", "batch", "time"]].sort_values(["world_size", "batch"])
    assert rows.to_numpy().ravel() == pytest.approx(
        [1, 8, 0.04, 1, 16, 0.07, 2, 8, 0.022, 2, 16, 0.036]
    )


@pytest.mark.parametrize(
    "columns", [("b1", "b2"), ("batch 8", "batch 16", "time"), ("batch 8", "bs 8", "bs 16")]
)
def test_columns_that_are_no_batches_stay(columns: tuple[str, ...]) -> None:
    observations = from_table(
        pd.DataFrame([[1.0] * (len(columns) + 1)], columns=["gpus", *columns])
    )
    assert len(observations.frame) == 1 and not any(
        "batches" in text for text in observations.assumptions
    )


@pytest.mark.parametrize(
    ("column", "other"), [("1 GPU (s)", "2 GPU (s)"), ("time_b64 (s)", "time_b128 (s)")]
)
def test_a_mapped_column_of_a_wide_table_stays(column: str, other: str) -> None:
    observations = from_table(
        pd.DataFrame({"batch": [8, 16], column: [3, 4], other: [2, 3]}), columns={"time": column}
    )
    assert observations.frame["time"].tolist() == [3, 4]


def test_weak_scaling_is_seen_from_rates_and_read_from_a_name() -> None:
    content = {"gpus": [1, 2, 4], "batch per gpu": [64] * 3, "epoch (s)": [101.0, 101.5, 118.0]}
    rates = pd.DataFrame(content | {"images/s": [495, 985, 1695]})
    named = pd.DataFrame(content)
    named.attrs["name"] = "weak_scaling"
    for frame, gain in ((rates, 1695 / 495), (named, 4 * 101 / 118)):
        observations = from_table(frame)
        (curve,) = observations.curves
        assert curve.points[-1].gain == pytest.approx(gain, rel=1e-3)
        assert {finding.rule for finding in apply_rules(observations).findings} == {"repeats"}
    assert "equal-work" in {
        finding.rule for finding in apply_rules(from_table(pd.DataFrame(content))).findings
    }


def test_ranks_of_a_log_are_all_of_its_run() -> None:
    observations = from_table(
        pd.DataFrame({"rank": [0, 1, 0, 1], "epoch": [1, 1, 2, 2], "epoch_s": [30, 45, 30, 45]})
    )
    assert (
        set(observations.frame["world_size"]) == {2}
        and "the 2 ranks that have rows are taken for all" in observations.assumptions
    )
    assert {finding.rule for finding in apply_rules(observations).findings} == {
        "rank-imbalance",
        "repeats",
    }


def test_a_table_on_its_side() -> None:
    table = pd.DataFrame(
        [["Time (s)", "80", "41", "22"], ["Speedup", "1", "1.95", "3.6"]],
        columns=["Nodes", "1", "2", "4"],
    )
    observations = from_table(table)
    assert observations.given == {"nodes": "Nodes", "time": "Time (s)", "speedup": "Speedup"}
    assert observations.frame["time"].tolist() == [80, 41, 22]
    models = pd.DataFrame([["gpt2", 80, 41], ["bert", 60, 31]], columns=["Model", "1", "2"])
    assert len(from_table(models).frame) == 4, "rows of models are no quantities"


@pytest.mark.parametrize(
    "columns", [("Rank 0 (ms)", "Rank 1 (ms)"), ("gpu0_ms", "gpu1_ms"), ("rank1_ms", "rank2_ms")]
)
def test_columns_for_ranks_become_rows(columns: tuple[str, str]) -> None:
    cells = {"gpus": [1, 2], columns[0]: [80, 44], columns[1]: ["", 46]}
    observations = from_table(pd.DataFrame(cells | {"mean step (s)": [0.08, 0.045]}))
    assert sorted(observations.frame["time"]) == pytest.approx([0.044, 0.045, 0.046, 0.08, 0.08])
    assert observations.frame["aggregate"].sum() == 2
    alone = from_table(pd.DataFrame(cells)).frame
    assert sorted(alone["time"]) == pytest.approx([0.044, 0.046, 0.08])
    assert set(alone["world_size"]) == {1, 2}


@pytest.mark.parametrize(
    ("note", "canonical"),
    [
        ("images per second", "rate"),
        ("seconds per epoch", "time"),
        ("tokens/s and step time", "time"),
    ],
)
def test_what_nameless_numbers_are_by_the_notes(note: str, canonical: str) -> None:
    table = pd.DataFrame([["resnet", 400, 790]], columns=["model", "1 GPU", "2 GPUs"])
    table.attrs["notes"] = [note]
    assert from_table(table).known & {"rate", "time"} == {canonical}


def test_what_differs_at_several_world_sizes_is_compared_on_purpose() -> None:
    table = pd.DataFrame({"gpu": ["A100"] * 2 + ["H100"] * 2, "n_gpus": [1, 2] * 2})
    table["step_ms"] = [100, 52, 40, 22]
    observations = from_table(table)
    assert [curve.label for curve in observations.curves] == ["A100", "H100"]
    assert {finding.rule for finding in apply_rules(observations).findings} == {"repeats"}


def test_wide_collectives_in_the_unit_of_the_notes() -> None:
    observations = from_table(read_table(TABLES / "nccl_all_reduce.csv"))
    assert observations.kind == "collectives" and len(observations.frame) == 30
    row = observations.frame[
        (observations.frame["world_size"] == 8)
        & (observations.frame["bytes"] == 2**30)
        & (observations.frame["key:device"] == "a100")
    ]
    assert row["time"].tolist() == pytest.approx([8193.0e-6])


def test_stages_and_what_they_run_on() -> None:
    assert (
        residue("mpi+cuda") == residue("cuda") == {"cuda"}
        and residue("serial") == residue("mpi") == frozenset()
    )
    (curve,) = from_table(read_table(TABLES / "gpt2_stages.csv")).curves
    gains = {point.strategy: round(point.gain, 1) for point in curve.points if point.world_size > 1}
    assert gains == {"mpi": 11.9, "mpi+cuda": 1.9}


def test_a_weak_curve_counts_work_and_a_strong_one_time() -> None:
    weak = from_table(
        pd.DataFrame({"gpus": [1, 2], "per_gpu_batch": [8, 8], "step_ms": [100, 110]})
    )
    strong = from_table(
        pd.DataFrame({"gpus": [1, 2], "global_batch": [8, 8], "step_ms": [100, 55]})
    )
    gains = [
        curve.points[-1].gain for observations in (weak, strong) for curve in observations.curves
    ]
    assert gains == pytest.approx([2 * 100 / 110, 100 / 55])


def test_mean_of_epochs_leaves_the_first_out() -> None:
    table = pd.DataFrame({"gpus": [2] * 4, "epoch": range(4), "epoch_s": [30, 10, 11, 12]})
    assert from_table(table).curves[0].points[0].times == (11.0,)


def test_rows_without_an_epoch_or_a_step_count() -> None:
    table = pd.DataFrame({"gpus": [1, 2] * 2, "epoch": [1, 1, None, None]})
    table["step"], table["step_ms"] = [None, None, 1, 1], [100, 60, 101, 61]
    assert all(point.times for point in from_table(table).points)


def test_values_that_cannot_be_are_left_out_and_said() -> None:
    observations = from_table(pd.DataFrame({"gpus": [1, 2], "time_s": [-3, 5]}))
    assert any("not positive" in text for text in observations.assumptions) and observations.frame[
        "time"
    ].isna().tolist() == [True, False]


def test_a_ratio_in_brackets_makes_no_speedup_of_the_time_before_it() -> None:
    table = pd.DataFrame({"model": ["A"], "1 GPU": ["100 (1.0x)"], "4 GPUs": ["25 (4.0x)"]})
    observations = from_table(table)
    assert observations.frame["time"].tolist() == [100.0, 25.0]
    assert observations.frame["speedup"].isna().all()


def test_unusable_tables() -> None:
    with pytest.raises(InputError, match="no rows"):
        from_table(pd.DataFrame({"gpus": []}))
    with pytest.raises(InputError, match="more than once"):
        from_table(pd.DataFrame([[1, 2]], columns=["a", "a"]))
    with pytest.raises(InputError, match="holds no value"):
        from_table(pd.DataFrame({"a": ["x"]}), columns={"time": "a"})


def test_records_have_a_quoted_row_and_one_per_rank() -> None:
    observations = from_records(
        [record(run(2), communication=(0.01, 0.004)), record(run(1), 1, status="failed")]
    )
    assert observations.frame["aggregate"].tolist() == [True, False, False]
    assert (
        observations.frame["communication"].tolist()[0] == 0.01
        and observations.frame["micro_batch_size"].tolist() == [32.0] * 3
    )
