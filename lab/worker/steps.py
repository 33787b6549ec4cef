"""Every step of every rank as a Parquet file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lab.worker.timing import FloatArray

# Times in s; `start` as seen from the rank's first step. Columns that nothing measures hold nulls.
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
    "cpu_time",
    "loss",
    "learning_rate",
    "grad_norm",
)


def write_steps(ranks: Sequence[Mapping[str, FloatArray]], path: Path, *, warmup_steps: int) -> None:
    """Write COLUMNS, one row per rank and step, so that the file is there whole or not at all; raises OSError."""
    import pandas as pd

    tables = []
    for rank, columns in enumerate(ranks):
        steps = np.arange(len(columns["step_time"]))
        tables.append(pd.DataFrame({"rank": rank, "step": steps, "warmup": steps < warmup_steps, **columns}))
    table = pd.concat(tables, ignore_index=True).reindex(columns=list(COLUMNS))
    building = path.with_name(f".{path.name}.building")
    table.to_parquet(building, index=False)
    building.replace(path)
