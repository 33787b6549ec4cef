"""Tables of layouts as published, and as people paste them."""

from __future__ import annotations

import pandas as pd
import pytest

import lab
from lab.analysis.layout_table import read_layouts
from lab.errors import InputError
from lab.files import SHARED

TABLES = SHARED / "docs" / "tables"
EMPTY = ("", "-", "n/a", float("nan"), pd.NA)


def frame(**columns: object) -> pd.DataFrame:
    rows = {
        "GPUs": 16, "TP": 2, "PP": 2, "MBS": 2, "GBS": 64, "Sequence Length": 4096,
        "Model": "Llama3 8B", "System": "DGX-H100", "Tokens / sec / GPU": 8000.0,
    }  # fmt: skip
    content = {**rows, **columns}
    return pd.DataFrame({name: [value] for name, value in content.items() if value is not None})


def test_a_row_as_people_write_it() -> None:
    (row,) = read_layouts(frame()).rows
    candidate, layout = row.case.candidate, row.case.candidate.layout
    assert (layout.data, layout.tensor, layout.pipeline) == (4, 2, 2)
    assert (candidate.micro_batch, candidate.grad_accum) == (2, 8)
    assert row.step_s == pytest.approx(64 * 4096 / 16 / 8000)
    assert row.case.machine.gpu.name == "h100" and row.case.model.key_value_heads == 8
    assert row.case.passes == 3.5  # nothing is said of recomputation


@pytest.mark.parametrize(
    ("columns", "passes"),
    [({"Activation Checkpointing": "True"}, 4), ({"recompute": "none"}, 3)],
)
def test_recomputation_is_read(columns: dict[str, str], passes: float) -> None:
    assert read_layouts(frame(**columns)).rows[0].case.passes == passes


@pytest.mark.parametrize(
    ("columns", "sharing"),
    [
        ({"zero": 1}, "zero1"),
        ({"Sharding Strategy": "FULL_SHARD"}, "fsdp"),
        ({"FSDP": 4}, "fsdp"),
        ({"FSDP": 0}, "ddp"),
    ],
)
def test_sharding_is_read(columns: dict[str, object], sharing: str) -> None:
    assert read_layouts(frame(**columns)).rows[0].case.candidate.layout.sharing == sharing


@pytest.mark.parametrize(
    ("system", "precision", "read", "peak"),
    [
        ("DGX-A100", "TF32", "tf32", 156e12),
        ("DGX-A100", "tf-32", "tf32", 156e12),
        ("DGX-A100", "FP32", "fp32", 19.5e12),
        ("DGX-A100", None, "bf16", 312e12),
        ("V100", "TF32", "tf32", 15.7e12),
    ],
)
def test_a_precision_is_read_with_its_own_peak(
    system: str, precision: str | None, read: str, peak: float
) -> None:
    case = read_layouts(frame(System=system, Precision=precision)).rows[0].case
    assert case.candidate.precision == read
    assert case.machine.gpu.fastest(read) == peak


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"GPUs": 6}, "not a multiple"),
        ({"Sequence Length": None}, "no sequence length"),
        ({"GBS": 4}, "smaller than a micro-batch"),
        ({"Tokens / sec / GPU": None}, "no step time"),
        ({"Model": "our own"}, "unknown model our own"),
        ({"Model": "our 30B-A3B"}, "unknown mixture of experts our 30B-A3B"),
        ({"System": "TPU"}, "unknown GPU"),
    ],
)
def test_what_a_row_lacks_is_named(columns: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_layouts(frame(**columns))


@pytest.mark.parametrize(
    ("quoted", "accumulated", "batch"),
    [(64, 8, 64), (256, 8, 64), (8, 4, 8), (None, 4, 32), (64, None, 64)],
)
def test_what_ran_counts_whatever_batch_is_quoted(
    quoted: int | None, accumulated: int | None, batch: int
) -> None:
    """Four replicas with micro-batches of 2, which may hold all that is accumulated."""
    table = read_layouts(frame(GBS=quoted, GA=accumulated))
    (row,) = table.rows
    candidate = row.case.candidate
    assert candidate.micro_batch * candidate.grad_accum * candidate.layout.data == batch
    assert row.step_s == pytest.approx(batch * 4096 / 16 / 8000)
    other_batch_assumed = any("a batch other" in assumption for assumption in table.assumptions)
    assert other_batch_assumed == (quoted == 256)


@pytest.mark.parametrize(
    ("column", "unit"),
    [
        ("memory", 1e9),
        ("peak_memory_gb", 1e9),
        ("Peak memory (GiB)", 2**30),
        ("mem_gib", 2**30),
        ("max memory [MiB]", 2**20),
        ("memory_mb", 1e6),
        ("peak memory (bytes)", 1),
    ],
)
def test_memory_is_read_in_its_columns_unit(column: str, unit: float) -> None:
    (row,) = read_layouts(frame(**{column: 40})).rows
    assert row.memory_bytes == 40 * unit


@pytest.mark.parametrize(
    ("cell", "passes"),
    [("none", 3), ("full", 4), (True, 4), (False, 3), *[(cell, 3.5) for cell in EMPTY]],
)
def test_an_empty_cell_does_not_say_whether_activations_are_recomputed(
    cell: object, passes: float
) -> None:
    (row,) = read_layouts(frame(recompute=cell)).rows
    assert row.case.passes == passes


def test_crashed_rows_have_no_time_and_stay_known() -> None:
    (row,) = read_layouts(frame(status="OOM")).rows
    assert row.failed and row.step_s is None


def test_the_published_tables_are_read_as_what_they_are() -> None:
    vtrain = read_layouts(TABLES / "vtrain_a100_single_node.csv")
    mpt = read_layouts(TABLES / "mpt_a100_40gb.csv")
    playbook = read_layouts(TABLES / "playbook_1b_h100.csv")
    assert [len(table.rows) for table in (vtrain, mpt, playbook)] == [1440, 78, 808]
    assert sum(row.failed for row in playbook.rows) == 283
    assert not any(table.left_out for table in (vtrain, mpt, playbook))
    first = mpt.rows[0].case
    assert (first.model.width, first.candidate.layout.sharing, first.passes) == (8192, "fsdp", 4)
    assert playbook.rows[0].memory_bytes == 50.2e9
    assert {row.case.framework.name for row in playbook.rows} == {"nanotron"}
    assert sum(row.quoted_batch is not None for row in playbook.rows) == 14
    assert {row.case.sequence for row in playbook.rows} == {4096}


def test_rows_without_a_time_are_predicted() -> None:
    times = [f"{seconds}" for seconds in (8.0, 4.1, 2.2)]
    rows = pd.concat([frame(GPUs=gpus, time=None) for gpus in (16, 32, 64)], ignore_index=True)
    untimed = rows.drop(columns="Tokens / sec / GPU")
    fitted = lab.fit_layouts(untimed.assign(**{"step time (s)": times}))
    assert len(fitted.predict(untimed)) == 3
    assert fitted.predict(untimed).equals(fitted.predict(rows))


def test_assumptions_fill_in_what_a_table_lacks_and_are_checked() -> None:
    bare = frame().drop(columns=["Model", "System"])
    (row,) = read_layouts(bare, assume={"model": "mixtral 8x7b", "gpu": "h200"}).rows
    assert (row.case.model.experts, row.case.machine.gpu.name) == (8, "h200")
    with pytest.raises(InputError) as caught:
        read_layouts(bare, assume={"layer": 24, "sequence": "long"})
    assert "did you mean 'layers'?" in str(caught.value)
    assert "'long' is not a number" in str(caught.value)


def test_layouts_are_fitted_and_predicted_from_any_table() -> None:
    path = TABLES / "vtrain_a100_single_node.csv"
    fitted = lab.fit_layouts(path, assume={"recomputed": "full"})
    table = fitted.predict(path)
    assert len(table) == 1440
    assert ((table["low_s"] < table["step_s"]) & (table["step_s"] < table["high_s"])).all()
    parts = table.drop(columns=["step_s", "low_s", "high_s"]).sum(axis=1)
    assert parts.to_numpy() == pytest.approx(table["step_s"].to_numpy())
    measured = fitted.table.step_s
    assert abs(table["step_s"].to_numpy() / measured - 1).mean() < 0.07
