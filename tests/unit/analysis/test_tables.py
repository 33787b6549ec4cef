"""The tables that a scaling study is expected to show."""

from __future__ import annotations

import math

import pandas as pd
from factories import record, repeats, run

from lab.analysis.scaling import summary
from lab.analysis.scaling_curves import time_units
from lab.analysis.tables import classical_tables
from lab.records.store import Record
from lab.records.table import table

ONE = {"world_size": 1}


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


def test_classical_tables():
    tables = dict(classical_tables(summary(table(strong()), baseline=ONE, scaling="strong")))
    time, speedup, efficiency, parts = tables.values()
    assert list(time.index) == [1, 2, 4]
    assert time.index.name == "CPU processes"
    assert time.loc[1, "batch 64"] == "200 [190, 210] ms"
    assert time.loc[2, "batch 128"] == "not measured"
    assert speedup.loc[1, "batch 64"] == "1 (baseline)"
    assert speedup.loc[2, "batch 64"] == "1.82 [1.58, 2.10]"
    assert efficiency.loc[4, "batch 64"] == "62.5 [59.4, 65.6] %"
    assert "communication" not in parts  # it was measured nowhere, as the caption says
    assert parts.loc["4 CPU processes, batch 64", "compute"] == "68.0 [68.0, 68.0] ms"
    captions = list(tables)
    assert captions[1] == "Speedup over 1 CPU process, median over 3 repeats [range]"
    assert captions[3].endswith("compute includes the wait for it")


def test_a_column_of_times_has_one_unit():
    times = {64: 0.5, 128: 0.8, 2048: 2.0}
    records = [one for batch, step in times.items() for one in repeats(run(1, batch), [step] * 3)]
    (_, steps), (_, parts) = classical_tables(
        summary(table(records), baseline=ONE, scaling="strong")
    )
    for cells in (steps["step time"], parts["optimizer"]):
        assert all(cell.endswith(" ms") for cell in cells)


def test_a_column_of_short_times_has_a_unit_of_its_own():
    times = pd.DataFrame({"step_time": [3.1, 1.6], "exposed_time": [0.002, math.nan]})
    assert {name: unit.name for name, unit in time_units(times).items()} == {
        "step_time": "s",
        "exposed_time": "ms",
    }


def test_tables_say_where_there_is_no_baseline():
    tables = classical_tables(
        summary(table([record(run(2), device="cuda")]), baseline=ONE, scaling="strong")
    )
    row = tables[0][1].loc["2 GPUs, batch 64"]
    assert row["speedup over the baseline"] == row["efficiency"] == "no baseline"


def test_runs_of_unknown_work_have_no_table_of_speedups():
    script = {"model": {"kind": "script", "command": "train.py"}, "global_batch_size": None}
    records = [record(run(size, **script), step_time=0.1) for size in (1, 2)]
    for scaling in ("none", "weak"):
        tables = classical_tables(summary(table(records), baseline=ONE, scaling=scaling))
        names = [
            caption.split()[0].rstrip(",") for caption, _ in tables if "Compute" not in caption
        ]
        assert names == ["Step", *["Speedup", "Efficiency"] * (scaling == "weak")]


def test_configurations_that_are_no_curve_share_a_table():
    records = [record(run(2, strategy=name), step_time=0.1) for name in ("ddp", "fsdp")]
    (caption, frame), _ = classical_tables(
        summary(table(records), baseline={"strategy": "ddp"}, scaling="none")
    )
    assert caption.startswith("Configurations, from one repeat")
    assert caption.endswith(". All: 2 CPU processes")  # so that no row need say it
    assert frame["step time"].to_dict() == {"batch 64, ddp": "100 ms", "batch 64, fsdp": "100 ms"}
    # On as many ranks, each efficiency would repeat the speedup.
    assert list(frame) == ["step time", "speedup over the baseline"]
    assert "not measured" not in frame.to_string()


def test_rows_name_ranks_that_differ():
    sizes = {"ddp": 2, "fsdp": 4}
    records = [record(run(size, strategy=name)) for name, size in sizes.items()]
    (caption, frame), _ = classical_tables(
        summary(table(records), baseline={"strategy": "ddp"}, scaling="none")
    )
    assert list(frame.index) == [
        "2 CPU processes, batch 64, ddp",
        "4 CPU processes, batch 64, fsdp",
    ]
    assert "All:" not in caption


def test_nothing_makes_no_tables():
    assert classical_tables(summary(table([]), baseline=ONE, scaling="strong")) == []


def test_many_lines_are_rows():
    records = [
        record(run(size, batch), step_time=batch / 100 / size)
        for size in (1, 2)
        for batch in (2, 4, 8, 16, 32)
    ]
    time, speedup, *_ = (
        frame
        for _, frame in classical_tables(summary(table(records), baseline=ONE, scaling="strong"))
    )
    assert (
        list(time.columns) == ["1 CPU process", "2 CPU processes"]
        and time.index.name == "configuration"
    )
    assert time.loc["batch 8", "2 CPU processes"] == "40.0 ms"
    assert set(speedup["2 CPU processes"]) == {"2.00"}


def test_a_baseline_that_names_a_strategy_is_that_of_all_settings_of_strategies():
    flat = run(2, strategy="naive_ddp", flat=True)
    frame = summary(
        table([record(run(1, strategy="single"), step_time=0.2), record(flat, step_time=0.1)]),
        baseline={"strategy": "single", "world_size": 1},
        scaling="none",
    )
    assert sorted(frame["speedup"]) == [1, 2]
