"""What limits a configuration, and what to change first, as far as the numbers support it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from lab.analysis.laws import karp_flatt
from lab.analysis.scaling import FEWEST_REPEATS
from lab.analysis.scaling_curves import curves, ranks, with_interval
from lab.formatting import format_seconds, percent, rounded
from lab.perfmodel.collectives import efficiency_with_overlap, efficiency_without_overlap

SHARE = 0.05  # of the step: a part below it limits nothing that is worth a change
# Parts of a step that do not train, by column of a summary, and what to change first.
PARTS = {
    "transfer_time": "moving gradients",
    "straggler_time": "waiting for the slowest rank",
    "data_time": "waiting for data",
    "optimizer_time": "the optimizer",
    "other_time": "the host between the phases",
    "h2d_time": "moving the batch to the device",
}
REMEDIES = {
    "transfer_time": "a faster link, fewer bytes (bf16 compression, gradient accumulation) "
    "or more work per rank",
    "straggler_time": "equal ranks: cores of their own, equal batches, no other load",
    "data_time": "data that is ready before the step: more loader processes within the cores, "
    "or a memory map",
    "optimizer_time": "a fused or sharded optimizer, or a larger batch for each step of it",
    "other_time": "a larger batch per rank, or compile: the step is bound by launches",
    "h2d_time": "pinned memory and a copy that overlaps with compute",
}


def limits(summary: pd.DataFrame) -> list[str]:
    """What takes the time that compute does not, on the most ranks of each curve."""
    return [sentence for label, points in curves(summary) for sentence in _limits(label, points)]


def _limits(label: str, points: pd.DataFrame) -> Iterator[str]:
    row = points.to_dict("records")[-1]
    where = f"At {label} on {ranks(row['device'], row['world_size'])}"
    costs = {column: row[column] for column in PARTS if pd.notna(row[column])}
    largest = max(costs, key=lambda column: costs[column], default="")
    if costs and costs[largest] > SHARE * row["step_time"]:
        time = format_seconds(*with_interval(row, largest))
        share = percent(costs[largest] / row["step_time"])
        yield (
            f"{where}, {PARTS[largest]} takes {time} of a step ({share}); "
            f"first to change: {REMEDIES[largest]}."
        )
    elif row["world_size"] > 1 and row["exposed_communication_time"] < SHARE * row["step_time"]:
        less = f"every other part takes less than {100 * SHARE:.0f} % of it"
        yield f"{where}, compute limits the step: {less}."
    if row["world_size"] > 1 and row["communication_time"] > 0:
        yield f"{where}, {_compute_to_communication(row)}."
    if (fraction := _serial_fraction(row, points)) is not None:
        yield f"{where}, Karp and Flatt's serial fraction is {fraction}."


def _compute_to_communication(row: Mapping[Any, Any]) -> str:
    r = row["compute_time"] / row["communication_time"]
    measured = ""
    if pd.notna(row["efficiency"]) and row["baseline_run_id"] != row["run_id"]:
        measured = f"; measured: {percent(*with_interval(row, 'efficiency'))}"
    return (
        f"R = T_compute / T_communication is {rounded(r)}: "
        f"efficiency {percent(efficiency_without_overlap(r))} without overlap, "
        f"{percent(efficiency_with_overlap(r))} with all of the backward pass to hide behind"
        f"{measured}"
    )


def _serial_fraction(row: Mapping[Any, Any], points: pd.DataFrame) -> str | None:
    """By Karp and Flatt, with the ends of the speedup; outside 1 to N a speedup has none."""
    base = points[points["run_id"] == row["baseline_run_id"]]
    own = base.empty or row["run_id"] == row["baseline_run_id"]
    if row["scaling"] != "strong" or own or row["repeats"] < FEWEST_REPEATS:
        return None
    n = row["world_size"] / base["world_size"].iloc[0]
    speedup, low, high = with_interval(row, "speedup")
    if not 1 <= low <= high <= n:
        return None
    return percent(*(karp_flatt(value, n) for value in (speedup, high, low)))
