"""Predictions that were frozen beforehand, beside the measured points of a line."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from lab.drawing.direct_labels import Label
from lab.drawing.seen import Seen


def speedups(seen: Seen, points: pd.DataFrame) -> list[dict[str, Any]]:
    """World size and predicted speedup of the points of a line that were predicted, over the measured baseline."""
    rows = [row for row in points.to_dict("records") if row["run_id"] in seen.predicted and pd.notna(row["speedup"])]
    return [
        {"world_size": row["world_size"], "speedup": row["speedup"] * row["step_time"] / seen.predicted[row["run_id"]].step_s}
        for row in rows
    ]


def draw(ax: Axes, seen: Seen, points: pd.DataFrame, *, color: str) -> list[Label]:
    """Hollow diamonds, and the label that says what they are."""
    found = speedups(seen, points)
    if not found:
        return []
    sizes, values = zip(*((row["world_size"], row["speedup"]) for row in found), strict=True)
    ax.plot(sizes, values, "D", markersize=9, fillstyle="none", color=color, markeredgewidth=1.4, label="_predicted", zorder=4)
    return [Label(sizes[-1], values[-1], "predicted beforehand", color)]
