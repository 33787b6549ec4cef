"""What limits a configuration, and what to change first; sentences only where the numbers support them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pandas as pd

from lab.analysis.laws import karp_flatt
from lab.analysis.lines import curves, ranks
from lab.analysis.overlap import efficiency_with_overlap, efficiency_without_overlap
from lab.analysis.rounding import format_seconds, percent, rounded

# A part of the step below this share limits nothing that is worth a change.
SHARE = 0.05
FEWEST_REPEATS = 3


class Part(NamedTuple):
    """A part of a step that does not train: what it is called, its column, and what to change first."""

    name: str
    column: str
    remedy: str


PARTS = (
    Part(
        "moving gradients",
        "transfer_time",
        "a faster link, fewer bytes (bf16 compression, gradient accumulation) or more work per rank",
    ),
    Part("waiting for the slowest rank", "straggler_time", "equal ranks: cores of their own, equal batches, no other load"),
    Part(
        "waiting for data",
        "data_time",
        "data that is ready before the step: more loader processes within the cores, or a memory map",
    ),
    Part("the optimizer", "optimizer_time", "a fused or sharded optimizer, or a larger batch for each step of it"),
    Part("the host between the phases", "other_time", "a larger batch per rank, or compile: the step is bound by launches"),
    Part("moving the batch to the device", "h2d_time", "pinned memory and a copy that overlaps with compute"),
)


def limits(summary: pd.DataFrame) -> list[str]:
    """One sentence for each configuration on the most ranks of its line: what takes the time that compute does not."""
    return [sentence for label, points in curves(summary) for sentence in _line(label, points)]


def _line(label: str, points: pd.DataFrame) -> Iterator[str]:
    row = points.to_dict("records")[-1]
    where = f"At {label} on {ranks(row['device'], row['world_size'])}"
    costs = sorted(((row[part.column], part) for part in PARTS if pd.notna(row.get(part.column))), key=lambda cost: -cost[0])
    if costs and costs[0][0] > SHARE * row["step_time"]:
        cost, part = costs[0]
        share = percent(cost / row["step_time"])
        spread = _spread(row, part.column)
        yield f"{where}, {part.name} takes {format_seconds(cost, *spread)} of a step ({share}); first to change: {part.remedy}."
    elif row["world_size"] > 1 and row["exposed_communication_time"] < SHARE * row["step_time"]:
        yield f"{where}, compute limits the step: every other part takes less than {100 * SHARE:.0f} % of it."
    yield from _ratio(where, row)
    yield from _karp_flatt(where, points)


def _spread(row: Mapping[Any, Any], column: str) -> tuple[float | None, float | None]:
    low, high = row.get(f"{column}_low"), row.get(f"{column}_high")
    return (low, high) if pd.notna(low) and pd.notna(high) else (None, None)


def _ratio(where: str, row: Mapping[Any, Any]) -> Iterator[str]:
    """The ratio of compute to communication, and what the closed forms make of it."""
    communication = row["communication_time"]
    if not row["world_size"] > 1 or pd.isna(communication) or communication <= 0:
        return
    r = row["compute_time"] / communication
    least, most = efficiency_without_overlap(r), efficiency_with_overlap(r)
    measured = ""
    if pd.notna(row["efficiency"]) and row["baseline_run_id"] != row["run_id"]:
        measured = f"; measured: {percent(row['efficiency'], row['efficiency_low'], row['efficiency_high'])}"
    yield (
        f"{where}, R = T_compute / T_communication is {rounded(r)}: efficiency {percent(least)} without overlap, "
        f"{percent(most)} with all of the backward pass to hide behind{measured}."
    )


def _karp_flatt(where: str, points: pd.DataFrame) -> Iterator[str]:
    """Karp and Flatt's serial fraction of the largest configuration, with the interval that the speedup's gives."""
    row = points.to_dict("records")[-1]
    base = points[points["run_id"] == row["baseline_run_id"]]
    if row["scaling"] != "strong" or base.empty or row["run_id"] == row["baseline_run_id"] or row["repeats"] < FEWEST_REPEATS:
        return
    n = row["world_size"] / base["world_size"].iloc[0]
    if pd.isna(row["speedup_low"]) or row["speedup_high"] > n or row["speedup_low"] < 1:
        return  # outside 1 to N a speedup has no serial fraction
    low, value, high = (karp_flatt(row[name], n) for name in ("speedup_high", "speedup", "speedup_low"))
    yield f"{where}, Karp and Flatt's serial fraction is {percent(value, low, high)}."
