"""Parquet files of every step, written without pandas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet
from torch.testing._internal.two_tensor import TwoTensor

from lab.worker.rank_report import _write, fingerprint


def test_a_file_holds_the_columns_of_all_ranks_with_nan_as_null(tmp_path: Path) -> None:
    nan = float("nan")
    ranks = [
        {
            "step": np.arange(9),
            "warmup": np.arange(9) < 2,
            "loss": np.array([1.5, nan, *range(7)]),
            "operation": np.array(["all_reduce", "größer", "", *"abcdef"]),
            "every_other": np.arange(18.0)[::2],
        },
        {
            "step": np.arange(0),
            "warmup": np.array([], dtype=bool),
            "loss": np.array([]),
            "operation": np.array([], dtype=np.str_),
            "every_other": np.array([]),
        },
    ]
    columns = ("rank", *ranks[0], "unmeasured")
    _write(ranks, tmp_path / "steps.parquet", columns=columns)
    expected = {name: pa.array(values, from_pandas=True) for name, values in ranks[0].items()}
    expected = {"rank": pa.array(np.zeros(9, dtype=np.int64))} | expected
    expected["unmeasured"] = pa.nulls(9, pa.float64())
    assert parquet.read_table(tmp_path / "steps.parquet").equals(pa.table(expected))


def test_parameters_that_cannot_be_added_are_compared_by_what_they_are_made_of() -> None:
    codes, zeros = (torch.tensor(values, dtype=torch.int8) for values in ([3, -4], [1, 0]))
    assert fingerprint([TwoTensor(codes, zeros)]) == fingerprint([codes, zeros])
