"""Columns and cells of layout tables, as strangers name and write them."""

from __future__ import annotations

import pandas as pd
import pytest

from lab.analysis.layout_columns import column_values, meanings


def read(column: str, *cells: object) -> tuple[str | None, list[object]]:
    """What a column means and what its cells say."""
    (meant,) = meanings(pd.DataFrame({column: cells})) or (None,)
    return meant, column_values(meant, column, cells) if meant else []


@pytest.mark.parametrize(
    ("column", "cell", "meant", "value"),
    [
        ("Throughput (k tokens/s)", 100, "tokens", 1e5),
        ("Ktok/s", 100, "tokens", 1e5),
        ("K tokens/sec/GPU", 10, "tokens_per_gpu", 1e4),
        ("tokens/s (M)", 1.1, "tokens", 1.1e6),
        ("Mtok/s", 1.1, "tokens", 1.1e6),
        ("Tokens/s", "100k", "tokens", 1e5),
        ("Throughout tokens/s", "1984k", "tokens", 1.984e6),
        ("throughput", "93,291 TPS", "tokens", 93291),
        ("Throughput", "17.13 samp/s", "samples", 17.13),
        ("Speed", "119s", "time", 119),
        ("Throughput on 8 A100", "10240 tokens/s", "tokens", 10240),
        ("Speed (s/it)", 3, "time", 3),
        ("it/s", 0.25, "time", 4),
        ("Step time (min)", 0.05, "time", 3),
        ("tokens/s/device", 1e4, "tokens_per_gpu", 1e4),
        ("tok/s/chip", 1e4, "tokens_per_gpu", 1e4),
        ("Tokens per second per card", 1e4, "tokens_per_gpu", 1e4),
        ("WPS", 1e4, "tokens", 1e4),
        ("ms/token", 2, "tokens", 500),
        ("S/s", 60, "samples", 60),
        ("Seq 4k (tokens/s)", 100, "tokens", 100),
        ("Sample (4K)-per-second", 60, "tokens", 60 * 4096),
    ],
)
def test_times_and_rates_are_read_in_their_units(
    column: str, cell: object, meant: str, value: float
) -> None:
    assert read(column, cell) == (meant, [pytest.approx(value)])


@pytest.mark.parametrize(
    ("column", "cell", "meant"),
    [
        ("mbz", 8, "micro_batch"),
        ("model_name_or_path", "meta-llama/Llama-2-7b-hf", "model"),
        ("Model Parallel", 8, "tensor"),
        ("model_parallel_size", 8, "tensor"),
    ],
)
def test_names_of_scripts(column: str, cell: object, meant: str) -> None:
    assert read(column, cell)[0] == meant


@pytest.mark.parametrize("column", ["Tokens per step", "Tokens per sequence"])
def test_tokens_of_anything_but_a_time_are_no_rate(column: str) -> None:
    assert read(column, 4096)[0] not in {"tokens", "tokens_per_gpu"}


def test_tokens_of_a_minute_are_a_rate() -> None:
    assert read("tokens/min", 6000) == ("tokens", [100.0])


@pytest.mark.parametrize(
    ("column", "cell", "meant", "value"),
    [
        ("Packed Sequence Length", 4096, "sequence", 4096),
        ("Context window", "8k", "sequence", 8192),
        ("cutoff_len", 2048, "sequence", 2048),
        ("Max length", 2048, "sequence", 2048),
        ("Tokens per sample", 4096, "sequence", 4096),
        ("Batch size (tokens)", "0.125M", "batch_tokens", 131072),
        ("tokens per step", 262144, "batch_tokens", 262144),
        ("Batch Size per DP", 36, "replica_batch", 36),
        ("Local batch size", 2, "replica_batch", 2),
        ("GPUs Number", 8, "gpus", 8),
        ("Size (B)", 7, "parameters", 7e9),
        ("Model (B)", 7, "parameters", 7e9),
        ("pipe_parallel", 4, "pipeline", 4),
        ("TP ways", 2, "tensor", 2),
        ("Tensor", 2, "tensor", 2),
        ("sharding group size", 8, "shard", 8),
        ("inner_fsdp", 8, "shard", 8),
        ("outer_dp", 2, "replicate", 2),
        ("Ulysses degree", 4, "sequence_parallel", "4"),
    ],
)
def test_sizes_are_read_in_their_units(column: str, cell: object, meant: str, value: float) -> None:
    assert read(column, cell) == (meant, [pytest.approx(value)])


@pytest.mark.parametrize(
    ("column", "cell", "value"),
    [
        ("max_memory_allocated", "53687091200", 50 * 2**30),
        ("Max GPU RAM", "38 GB", 38e9),
        ("mem_usage", 38000, 38e9),
        ("max reserved (GiB)", 40, 40 * 2**30),
        ("VRAM", 38, 38e9),
        ("gpu_mem(MB)", 2000, 2e9),
    ],
)
def test_memory_without_a_unit_is_in_the_one_that_a_gpu_can_have(
    column: str, cell: object, value: float
) -> None:
    assert read(column, cell) == ("memory", [pytest.approx(value)])


@pytest.mark.parametrize("column", ["GPU memory (%)", "Mem usage ratio", "CPU memory (GB)"])
def test_a_share_of_memory_and_a_hosts_are_no_peak(column: str) -> None:
    assert read(column, 60)[0] != "memory"


def test_a_column_of_switches_says_where_fsdp_was_used() -> None:
    assert read("FSDP", 1, 0)[1] == [2, 0]
    assert read("FSDP", "Yes", "No")[1] == [2, None]
    assert read("FSDP", 8, 1)[1] == [8, 1]


@pytest.mark.parametrize("column", ["tokens/s/GPU Δ", "inference tokens/s", "tokens/s speedup"])
def test_a_difference_or_a_rate_of_inference_is_no_rate_of_training(column: str) -> None:
    assert read(column, 900)[0] is None


def test_a_rate_of_a_stated_number_of_gpus_is_that_of_all() -> None:
    table = pd.DataFrame({"tok/s (16 GPU)": ["199K"], "tok/s/GPU": ["12.4K"]})
    assert meanings(table) == {"tokens": "tok/s (16 GPU)", "tokens_per_gpu": "tok/s/GPU"}
