"""Every step and every bucket or call of every rank as Parquet files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lab.worker.measure.clock import FloatArray
from lab.worker.measure.collective_trace import Calls
from lab.worker.measure.ddp_hook import Buckets

if TYPE_CHECKING:
    import pandas as pd

# Times in s; `start` as seen from the start of rank 0's first step. Columns that nothing measures hold nulls.
COLUMNS = (
    "rank",
    "step",
    "warmup",
    "start",
    "data",
    "h2d",
    "forward",
    "backward",
    "optimizer",
    "other",
    "step_time",
    "communication_total",
    "communication_exposed",
    "communication_straggler",
    "cpu_time",
    "loss",
    "learning_rate",
    "grad_norm",
)


def write_steps(
    ranks: Sequence[Mapping[str, FloatArray]], path: Path, *, warmup_steps: int, first_step: int = 0
) -> None:
    """Write COLUMNS, one row per rank and step from `first_step` on, whole or not at all; raises OSError."""
    import pandas as pd

    tables = []
    for rank, columns in enumerate(ranks):
        steps = np.arange(len(columns["step_time"]))
        tables.append(
            pd.DataFrame(
                {
                    "rank": rank,
                    "step": first_step + steps,
                    "warmup": steps < warmup_steps,
                    **columns,
                }
            )
        )
    _write(pd.concat(tables, ignore_index=True).reindex(columns=list(COLUMNS)), path)


def write_buckets(
    ranks: Sequence[Buckets], path: Path, *, origin: float, first_step: int = 0
) -> None:
    """Write one row per bucket that a rank sent: rank, step, bucket, ready, launch, finish (s after `origin`), bytes."""
    import pandas as pd

    tables = []
    for rank, sent in enumerate(ranks):
        times = {name: getattr(sent, name) - origin for name in ("ready", "launch", "finish")}
        tables.append(
            pd.DataFrame(
                {
                    "rank": rank,
                    "step": first_step + sent.step,
                    "bucket": sent.bucket,
                    **times,
                    "bytes": sent.bytes,
                }
            )
        )
    _write(pd.concat(tables, ignore_index=True), path)


def write_calls(ranks: Sequence[Calls], path: Path, *, origin: float, first_step: int = 0) -> None:
    """Write one row per call of a rank: rank, step, operation, members, phase, launch, finish and the wait (s after `origin`),
    bytes, moved.
    """
    import pandas as pd

    tables = []
    for rank, calls in enumerate(ranks):
        columns = vars(calls.shifted(lambda times: times - origin))
        tables.append(pd.DataFrame({"rank": rank, **columns, "step": first_step + calls.step}))
    _write(pd.concat(tables, ignore_index=True), path)


def _write(table: pd.DataFrame, path: Path) -> None:
    building = path.with_name(f".{path.name}.building")
    table.to_parquet(building, index=False)
    building.replace(path)
