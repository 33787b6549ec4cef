"""Every step, bucket and call of every rank as Parquet files, with times in s."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.worker.measure.clock import FloatArray
from lab.worker.measure.collective_trace import Calls
from lab.worker.measure.ddp_hook import Buckets

# Columns of steps.parquet; `start` counts from rank 0's first step. Unmeasured columns are null.
COLUMNS = (
    *("rank", "step", "warmup", "start"),
    *("data", "h2d", "forward", "backward", "optimizer", "other", "step_time"),
    *("communication_total", "communication_exposed", "communication_straggler"),
    *("cpu_time", "loss", "learning_rate", "grad_norm"),
)


def write_steps(
    ranks: Sequence[Mapping[str, FloatArray]], path: Path, *, warmup_steps: int, first_step: int = 0
) -> None:
    """Write COLUMNS, a row per rank and step from `first_step` on; raises OSError."""
    steps = np.arange(len(ranks[0]["step_time"]))
    numbers = {"step": first_step + steps, "warmup": steps < warmup_steps}
    _write((numbers | dict(columns) for columns in ranks), path, columns=COLUMNS)


def write_buckets(
    ranks: Sequence[Buckets], path: Path, *, origin: float, first_step: int = 0
) -> None:
    """Write a row per bucket: rank, the columns of Buckets, its times in s after `origin`."""
    _write(_rows(ranks, origin, first_step), path)


def write_calls(ranks: Sequence[Calls], path: Path, *, origin: float, first_step: int = 0) -> None:
    """Write a row per call: rank, the columns of Calls, its times in s after `origin`."""
    _write(_rows(ranks, origin, first_step), path)


def _rows(
    ranks: Sequence[Buckets] | Sequence[Calls], origin: float, first_step: int
) -> Iterable[dict[str, Any]]:
    for sent in ranks:
        shifted = vars(sent.shifted(lambda times: times - origin))
        yield shifted | {"step": first_step + sent.step}


def _write(
    ranks: Iterable[Mapping[str, Any]], path: Path, *, columns: Sequence[str] | None = None
) -> None:
    # Imported only by rank 0 after the measurement, and without pandas, which takes a second.
    import pyarrow as pa
    from pyarrow import parquet

    tables = [_table(rank, values, columns) for rank, values in enumerate(ranks)]
    # Renamed when complete, so that a killed job leaves no partial file.
    building = path.with_name(f".{path.name}.building")
    parquet.write_table(pa.concat_tables(tables), building)
    building.replace(path)


def _table(rank: int, values: Mapping[str, Any], columns: Sequence[str] | None) -> Any:
    """One rank's rows; NaN, and all of a column that was not measured, become null."""
    import pyarrow as pa

    rows = len(next(iter(values.values())))
    arrays = {
        "rank": pa.array(np.full(rows, rank)),
        **{name: pa.array(column, from_pandas=True) for name, column in values.items()},
    }
    missing = pa.nulls(rows, pa.float64())
    return pa.table({name: arrays.get(name, missing) for name in columns or arrays})
