"""One configuration against another, and whether repeats and intervals support the difference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from lab.analysis.scaling import FEWEST_REPEATS
from lab.analysis.scaling_curves import curves, ranks, with_interval
from lab.formatting import percent, rounded


def by_emulation(summary: pd.DataFrame) -> list[pd.DataFrame]:
    """Measured results and those of each emulation, kept apart: none is compared with another."""
    return [part for _, part in summary.groupby("emulated")]


def labels_of(summary: pd.DataFrame) -> dict[str, str]:
    """The label of each run's curve, by run id."""
    return {run_id: label for label, points in curves(summary) for run_id in points["run_id"]}


def beyond_baseline(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of a summary that have a baseline other than themselves."""
    return rows[rows["speedup"].notna() & (rows["run_id"] != rows["baseline_run_id"])]


def farthest(summary: pd.DataFrame) -> list[pd.Series[Any]]:
    """Of each curve with a row beyond its baseline, the row on the most ranks."""
    beyond = [beyond_baseline(points) for _, points in curves(summary)]
    return [rows.iloc[-1] for rows in beyond if len(rows)]


def place(row: Any, labels: Mapping[str, str]) -> str:
    """Ranks and curve of a row: `2 CPU processes at batch 16`."""
    return f"{ranks(row['device'], row['world_size'])} at {labels[row['run_id']]}"


def against_baseline(row: Any, summary: pd.DataFrame, labels: Mapping[str, str]) -> str:
    """One configuration against its baseline, and whether the intervals support the difference."""
    base = summary[summary["run_id"] == row["baseline_run_id"]].iloc[0]
    base_label = labels[row["baseline_run_id"]]
    over = ranks(base["device"], base["world_size"])
    if base_label != labels[row["run_id"]]:
        over += f" at {base_label}"
    times, efficiency = with_interval(row, "speedup"), with_interval(row, "efficiency")
    thing = {"epoch": "an epoch", "total": "a run"}.get(row.get("per", "step"), "a step")
    compared = (
        f"the throughput is {rounded(*times)} times that of {over}"
        if row["scaling"] == "weak" or pd.isna(row["step_time"])
        else f"{thing} is {rounded(*times)} times as fast as on {over}"
    )
    judged = verdict(*times[1:], min(row["repeats"], base["repeats"]))
    return f"{compared} (efficiency {percent(*efficiency)}), {judged}"


def few(repeats: int) -> str:
    """Why these repeats are too few to rule out chance; empty if they are enough."""
    if repeats >= FEWEST_REPEATS:
        return ""
    return f"{'one repeat is' if repeats == 1 else f'{repeats} repeats are'} too few"


def verdict(low: float, high: float, repeats: int) -> str:
    """What the interval of a ratio of speeds supports: a gain above 1, a loss below it."""
    if few(repeats):
        return f"but {few(repeats)} to tell this from chance"
    if low > 1:
        return "a gain that the interval supports"
    if high < 1:
        return "a loss that the interval supports"
    return "which the interval does not distinguish from no change"
