"""Somebody's table as records: what it says, which baseline it permits, and what it leaves open."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path

import pandas as pd
import pytest

import lab
from lab.analysis.noise import judge
from lab.analysis.reported import ReportedRun, ReportedTable, records_from
from lab.analysis.scaling import farthest, judged, summary
from lab.analysis.scaling_curves import rate_name
from lab.errors import InputError, LabError
from lab.formatting import PERIODS
from lab.records.store import Record
from lab.records.table import table

PUBLISHED = Path(lab.__file__).parents[1] / "notebooks/lessons/tables"


def frame(text: str) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(text.strip()), skipinitialspace=True)


def summarized(text: str, **options: object) -> pd.DataFrame:
    records = records_from(frame(text), **options)  # type: ignore[arg-type]
    return _summary(records)


def _summary(records: list[Record]) -> pd.DataFrame:
    return summary(table(records), baseline={}, scaling="strong")


def test_speedups_are_by_the_slowest_rank_over_the_fewest_ranks() -> None:
    path = PUBLISHED / "gpt_strong_scaling.csv"
    rows = summary(table(records_from(path)), baseline={}, scaling="strong")
    last = rows[(rows["configuration"] == "batch 128") & (rows["world_size"] == 4)].iloc[0]
    assert last["speedup"] == pytest.approx(2082.29 / 706.41)  # which was published as 4.25
    assert last["scaling"] == "strong" and last["per"] == "epoch"


def test_a_record_says_what_the_table_says_and_nothing_else() -> None:
    first = records_from(frame("gpus,step_time_ms\n4,100\n8,60\n16,40"))[0]
    assert isinstance(first, Record) and first.completed
    assert first.run.world_size == 4 and first.reported is not None
    assert first.reported.time == pytest.approx(0.1) and first.reported.unit == "GPU"
    assert first.timing is None and first.environment is None
    row = table([first]).iloc[0]
    unknown = ["global_batch_size", "model", "precision", "learning_rate", "seed", "mfu"]
    assert row[unknown].isna().all() and pd.isna(row["samples_per_second"])
    assert row["step_time"] == pytest.approx(0.1)


def test_an_epoch_is_no_step() -> None:
    row = table(records_from(frame("gpus,epoch_time_s\n1,100\n2,60"))).iloc[0]
    assert row["time"] == 100 and row["per"] == "epoch" and pd.isna(row["step_time"])


def test_the_baseline_is_the_fewest_ranks_or_the_one_that_is_asked_for() -> None:
    text = "gpus,global_batch_size,step_time_s\n4,64,1.0\n8,64,0.6\n16,64,0.4"
    assert list(summarized(text)["speedup"]) == pytest.approx([1, 1 / 0.6, 2.5])
    rows = summarized(text, baseline=8)
    assert list(rows["world_size"]) == [8, 16]
    assert list(rows["efficiency"]) == pytest.approx([1, 0.6 / 0.4 / 2])
    with pytest.raises(InputError, match="no row on 2 ranks; choose one of 4, 8, 16"):
        summarized(text, baseline=2)


def test_strong_and_weak_rows_of_one_table_are_apart() -> None:
    text = """
scaling,gpus,global_batch,step_time_ms
strong,1,256,800
strong,4,256,240
weak,1,64,200
weak,4,256,215
"""
    rows = summarized(text).set_index(["scaling", "world_size"])
    assert rows.loc[("strong", 4), "speedup"] == pytest.approx(800 / 240)
    assert rows.loc[("weak", 4), "efficiency"] == pytest.approx(200 / 215)
    assert rows.loc[("weak", 4), "speedup"] == pytest.approx(4 * 200 / 215)
    assert ReportedTable.read(frame(text)).kinds == ["strong", "weak"]
    assert set(summarized(text, scaling="weak")["scaling"]) == {"weak"}


def test_a_column_of_strong_and_weak_says_the_kind_whatever_its_name() -> None:
    strong = [f"Strong,{n},64M,{64 / n + 1}" for n in (1, 2, 4)]
    weak = [f"Weak,{n},{size * n}M,{size + n / 10}" for size in (8, 32) for n in (1, 2, 4)]
    text = "\n".join(["Test,nodes,cells,time_s", *strong, *weak])
    rows = summarized(text).set_index(["configuration", "world_size"])
    assert rows.loc[("strong", 4), "speedup"] == pytest.approx(65 / 17)
    assert rows.loc[("weak, 32M per rank", 4), "efficiency"] == pytest.approx(32.1 / 32.4)
    assert set(rows.loc["weak, 8M per rank"].index) == {1, 2, 4}


def test_what_takes_longer_than_a_step_is_no_part_of_it() -> None:
    read = ReportedTable.read(frame("gpus,step_ms,io_s\n1,800,33\n2,420,34"))
    assert read.observations.frame["data"].isna().all()
    assert "'io_s' is longer than 'step_ms' and no part of it" in read.observations.assumptions


def test_the_state_of_a_job_is_no_configuration() -> None:
    rows = summarized("n_gpus,time_s,status\n1,10,ok\n2,5.5,ok\n4,3,done\n4,0,node failure")
    assert set(rows["configuration"]) == {"table"} and list(rows["world_size"]) == [1, 2, 4]


def test_steps_that_keep_their_length_may_be_of_either_kind() -> None:
    text = "ranks,step_ms\n1,100\n2,104\n4,111"
    assert summarized(text)["speedup"].isna().all()
    assert summarized(text, scaling="weak")["efficiency"].iloc[-1] == pytest.approx(100 / 111)
    assert summarized(text, scaling="strong")["speedup"].iloc[-1] == pytest.approx(100 / 111)


def test_rates_alone_permit_a_speedup_and_no_time() -> None:
    rows = summarized("GPUs,Images/sec\n1,380\n2,750\n8,2800")
    assert rows["step_time"].isna().all() and set(rows["rate_of"]) == {"images"}
    assert rows["speedup"].iloc[-1] == pytest.approx(2800 / 380)


@pytest.mark.parametrize(
    ("column", "unit", "per_second"),
    [
        ("ns/day", "ns/day", 118.2 / 86400),
        ("k tokens/min", "tokens/min", 118200 / 60),
        ("MLUPS", "MLUP/s", 118.2),
        ("GDoF/s", "dofs/s", 118.2e9),
        ("GFLOP/s", "GFLOP/s", 118.2),
        ("Photons/s", "photons/s", 118.2),
        ("Throughput", "1/s", 118.2),
    ],
)
def test_the_unit_of_a_rate_is_that_of_the_table(column: str, unit: str, per_second: float) -> None:
    text = f"GPUs,{column}\n1,118.2\n4,399.5"
    rows = summarized(text)
    assert rate_name(rows) == unit
    shown = rows["samples_per_second"].iloc[0] / PERIODS[rows["rate_per"].iloc[0]]
    assert shown == pytest.approx(per_second)
    mapped = ReportedTable.read(frame(text), columns={"rate": column}).observations.frame
    assert mapped["rate"].iloc[0] == pytest.approx(per_second)


def test_tasks_per_node_times_nodes_are_ranks() -> None:
    records = records_from(frame("nodes,tasks per node,time_s\n1,128,100\n2,128,55"))
    assert {record.reported.unit for record in records if record.reported} == {"rank"}


def test_configurations_that_begin_on_different_ranks_are_not_compared() -> None:
    text = "configuration,ranks,time_s\nsmall,8,100\nsmall,16,55\nlarge,16,200\nlarge,32,110"
    rows = summarized(text).set_index(["configuration", "world_size"])
    assert rows.loc[("small", 16), "speedup"] == pytest.approx(100 / 55)
    assert rows.loc["large", "speedup"].isna().all()


def test_what_a_rate_counts_may_be_in_its_cells() -> None:
    rows = summarized("gpus,throughput\n1,412.1 img/s\n2,790.3 img/s")
    assert set(rows["rate_of"]) == {"images"}


def test_repeats_of_one_row_are_not_called_a_spread_of_the_table() -> None:
    last = farthest(summarized("gpus,time_s\n1,100\n4,30\n4,31\n4,29"))[0]
    assert judged(last) == "but one repeat is too few to show how much this varies"


def test_repeats_become_intervals() -> None:
    text = "gpus,run,time_s\n1,1,100\n1,2,102\n1,3,98\n2,1,55\n2,2,56\n2,3,54"
    rows = summarized(text)
    assert list(rows["repeats"]) == [3, 3]
    assert rows["step_time_low"].iloc[0] < 100 < rows["step_time_high"].iloc[0]
    assert rows["speedup_low"].iloc[1] < 100 / 55 < rows["speedup_high"].iloc[1]


def test_mfu_and_memory_are_medians_of_two_repeats() -> None:
    rows = summarized(
        "gpus,run,step_ms,mfu,peak_mem_gb\n1,a,100,0.41,60\n1,b,90,0.43,62\n2,a,50,0.4,9\n"
    )
    assert rows["mfu"].iloc[0] == pytest.approx(0.42)
    assert rows["peak_memory"].iloc[0] == pytest.approx(61e9)


def test_a_deviation_that_the_table_gives_is_the_interval_of_its_time() -> None:
    row = summarized("gpus,epoch_s,epoch_s_std\n1,100,1\n4,30,0.5").iloc[1]
    assert (row["step_time_low"], row["step_time_high"]) == pytest.approx((29, 31))
    assert pd.isna(row["speedup_low"])


@pytest.mark.parametrize(
    "text",
    [
        "gpus,step (ms),std\n1,100,1\n4,30,0.5",
        "gpus,std,step (ms)\n1,1,100\n4,0.5,30",
        "gpus,step (ms),σ\n1,100,1\n4,30,0.5",
        "gpus,step (ms),std (us)\n1,100,1000\n4,30,500",
        "gpus,step (ms),std (%)\n1,100,1\n4,30,1.6667",
        "gpus,step (ms),std\n1,100,1 %\n4,30,1.6667 %",
        "gpus,step (ms),std (%)\n1,100,1%\n4,30,1.6667%",
    ],
)
def test_a_deviation_without_a_unit_has_that_of_its_time(text: str) -> None:
    row = summarized(text).iloc[1]
    assert (row["step_time_low"], row["step_time_high"]) == pytest.approx((0.029, 0.031), rel=1e-5)


@pytest.mark.parametrize(
    "text", ["gpus,steps/s,std\n1,10,1\n4,30,0.5", "gpus,step,std\n1,100 ms,1\n4,30 ms,0.5"]
)
def test_a_deviation_of_another_unit_than_seconds_is_none_of_a_time(text: str) -> None:
    assert pd.isna(summarized(text).iloc[1]["step_time_low"])


@pytest.mark.parametrize(
    "text",
    [
        "gpus,images/s\n1,100 ± 1\n4,350 ± 5",
        "gpus,images/s,std\n1,100,1\n4,350,5",
        "gpus,k images/s,std\n1,0.1,0.001\n4,0.35,0.005",
        "gpus,std images/s,mean images/s\n1,1,100\n4,5,350",
        "gpus,throughput (img/s),throughput std (img/s)\n1,100,1\n4,350,5",
        "gpus,throughput mean ± sd (img/s)\n1,100 ± 1\n4,350 ± 5",
    ],
)
def test_a_deviation_that_the_table_gives_is_the_interval_of_its_rate(text: str) -> None:
    row = summarized(text).iloc[1]
    ends = row["samples_per_second_low"], row["samples_per_second_high"]
    assert ends == pytest.approx((340, 360))
    assert pd.isna(row["speedup_low"])


def test_loader_processes_are_settings_and_not_repeats() -> None:
    rows = summarized("gpus,loader_workers,epoch_s\n1,0,400\n1,4,300\n2,0,260\n2,4,160\n")
    assert set(rows["repeats"]) == {1}
    assert sorted(rows["speedup"]) == pytest.approx([1, 1, 400 / 260, 300 / 160])


def test_strategies_that_divide_one_global_batch_differently_have_one_baseline() -> None:
    rows = summarized(
        "strategy,gpus,global_batch,micro_batch,step_s\nsingle,1,8,8,1.0\nddp,2,8,4,0.8\n"
        "tensor_parallel,2,8,8,0.9\n"
    )
    assert sorted(rows["speedup"]) == pytest.approx([1, 1 / 0.9, 1 / 0.8])


def test_the_deviation_of_a_rate_of_each_rank_is_no_rate() -> None:
    row = summarized("gpus,tokens/s/gpu std,tokens/s/gpu\n1,1,100\n4,5,350").iloc[1]
    assert row["samples_per_second"] == 1400 and row["rate_of"] == "tokens"


def test_the_strip_gives_the_interval_of_a_rate() -> None:
    records = records_from(frame("gpus,run,images/s\n1,1,98\n1,2,100\n2,1,190\n2,2,190"))
    assert "intervals up to ±1.0 %" in judge(records, _summary(records)).strip()


def test_other_batches_on_the_same_ranks_are_no_repeats() -> None:
    text = "gpus,micro_batch_size,step_time_s\n1,8,1.0\n1,16,1.9\n2,8,1.1\n2,16,2.0"
    rows = summarized(text)
    assert set(rows["repeats"]) == {1} and len(rows) == 4
    assert set(rows["scaling"]) == {"weak"}


def test_a_strategy_has_its_curve_from_the_one_baseline() -> None:
    text = "strategy,gpus,time_s\nsingle,1,100\nddp,2,55\nddp,4,30\nfsdp,2,60\nfsdp,4,35"
    from lab.analysis.scaling_curves import curves

    lines = dict(curves(summarized(text)))
    assert {label: list(points["world_size"]) for label, points in lines.items()} == {
        "ddp": [1, 2, 4],
        "fsdp": [1, 2, 4],
    }


def test_parquet_is_read(tmp_path: Path) -> None:
    path = tmp_path / "results.parquet"
    frame("gpus,time_s\n1,100\n2,60").to_parquet(path)
    assert [record.run.world_size for record in records_from(path)] == [1, 2]
    path.write_bytes(b"PAR1 is no table")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        records_from(path)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "no header with rows below it"),
        ("gpus,time_s", "no header with rows below it"),
        ("gpus,time_s\n4,100", "same number of ranks"),
        ("model,time_s\na,1\nb,2", "number of ranks, GPUs or nodes"),
        ("gpus,time_s\n1,fast\n2,faster", "times or rates of training as numbers"),
        ("gpus,message_bytes,time_us\n2,1024,10\n4,2048,20", "`lab audit` reads them"),
    ],
)
def test_what_cannot_be_reported_is_told(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "results.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=what):
        records_from(path)


def test_a_log_of_unlike_rows_is_refused() -> None:
    rows = pd.DataFrame(
        {"world_size": [1, 2] * 2500, "model": [f"m{n // 2}" for n in range(5000)], "time_s": 1.0}
    )
    with pytest.raises(InputError, match="configurations: a report shows up to"):
        records_from(rows)


def test_records_of_a_table_are_audited_as_a_table() -> None:
    with pytest.raises(InputError, match="audit the table"):
        lab.audit(records_from(frame("gpus,time_s\n1,100\n2,60")))


def test_figures_draw_a_frame_its_records_and_its_file(tmp_path: Path) -> None:
    rows = frame("gpus,time_s\n1,100\n2,60\n4,40")
    path = tmp_path / "results.csv"
    rows.to_csv(path, index=False)
    for source in (rows, records_from(rows), path):
        axes = lab.figures.speedup(source)
        assert axes.get_ylabel() == "speedup over 1 GPU"
        line = next(line for line in axes.get_lines() if line.get_linestyle() == "-")
        assert list(line.get_ydata()) == pytest.approx([1, 100 / 60, 2.5])
    assert "2.50 on 4 GPUs" in lab.figures.alt_text("speedup", rows)
    assert "no rates" in lab.figures.alt_text("throughput", rows)
    assert lab.figures.efficiency(rows, baseline={"world_size": 2}).get_lines()


def test_rows_that_nothing_tells_apart_are_refused() -> None:
    rows = pd.DataFrame({"world_size": [1, 2] * 1500, "time_s": 1.0})
    with pytest.raises(InputError, match="1500 rows are one configuration"):
        records_from(rows)


def test_what_a_table_leaves_open_cannot_be_read_as_a_number() -> None:
    first = records_from(frame("gpus,step_time_ms,batch_size_per_gpu\n1,100,8\n2,104,8"))[0]
    run = first.run
    assert (run.micro_batch_size, run.precision) == (8, None)
    assert not hasattr(run, "steps") and not hasattr(run, "model")
    with pytest.raises(AttributeError, match="table x1: its table does not give learning_rate"):
        _ = run.learning_rate
    with pytest.raises(LabError, match="are not all known"):
        _ = run.stated
    assert pickle.loads(pickle.dumps(run)) == copy.deepcopy(run) == run and run.id == first.run_id


def test_a_configuration_with_a_long_name_and_no_model_has_a_label():
    one = ReportedRun.of("hidden size 1024, " * 10, world_size=2)
    assert one.label.startswith("hidden size 1024") and one.script is None
    with pytest.raises(AttributeError, match="its table does not give seed"):
        one.seed  # noqa: B018


@pytest.mark.parametrize(("models", "labels"), [(["A", "B"], ["A x1", "B x1"]), (["A"], ["A x1"])])
def test_the_records_of_one_kind_are_not_named_by_it(models: list[str], labels: list[str]) -> None:
    rows = [
        {"scaling": kind, "gpus": gpus, "model": model, "time (s)": time / gpus**power}
        for kind, power in (("strong", 0.9), ("weak", -0.1))
        for model, time in zip(models, (100.0, 70.0), strict=False)
        for gpus in (1, 2)
    ]
    both = ReportedTable.read(pd.DataFrame(rows))
    for kind in ("strong", "weak"):
        records = both.of_kind(kind).records
        assert [one.run.label for one in records if one.run.world_size == 1] == labels
        ids = {one.run_id for one in records}
        assert ids == {one.run.id for one in records}
        assert {one.reported.baseline for one in records if one.reported} <= ids
    assert "strong" in both.records[0].run.label


def test_ranks_beyond_all_numbers_are_left_out() -> None:
    nodes = {"nodes": [1, 2, 1e200], "gpus_per_node": [4, 4, 1e200], "time_s": [6.0, 3.0, 1.0]}
    assert [one.run.world_size for one in records_from(pd.DataFrame(nodes))] == [4, 8]
