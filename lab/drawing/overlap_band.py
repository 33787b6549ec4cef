"""Measured efficiency against R = T_compute / T_communication, in the band between no overlap and perfect overlap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from lab.analysis.lines import Curve, ranks
from lab.analysis.overlap import efficiency_with_overlap, efficiency_without_overlap
from lab.drawing.direct_labels import Label, place
from lab.drawing.look import IDEAL, ink, line_looks, plain_log


def draw(ax: Axes, lines: Sequence[Curve]) -> bool:
    """Draw the band and a point per configuration with communication and a baseline; False where there is none."""
    labels, ratios = [], []
    for (label, points), (color, marker) in zip(lines, line_looks(len(lines)), strict=True):
        known = points[(points["communication_time"] > 0) & points["efficiency"].notna() & (points["world_size"] > 1)]
        for row in known.to_dict("records"):
            r, efficiency = row["compute_time"] / row["communication_time"], 100 * row["efficiency"]
            low, high = (100 * row[f"efficiency_{end}"] for end in ("low", "high"))
            errors = None if np.isnan(low) else [[max(efficiency - low, 0)], [max(high - efficiency, 0)]]
            ax.errorbar([r], [efficiency], yerr=errors, color=color, marker=marker)
            labels.append(Label(r, efficiency, f"{label}, {ranks(row['device'], row['world_size'])}", ink(color)))
            ratios.append(r)
    if not ratios:
        return False
    grid = np.geomspace(min(0.1, min(ratios) / 2), max(30.0, max(ratios) * 3), 200)
    least = 100 * np.array([efficiency_without_overlap(r) for r in grid])
    most = 100 * np.array([efficiency_with_overlap(r) for r in grid])
    ax.fill_between(grid, least, most, color="#56B4E9", alpha=0.25, linewidth=0)
    ax.plot(grid, least, color=IDEAL, linewidth=1)
    ax.plot(grid, most, color=IDEAL, linewidth=1)
    _name_edges(ax, grid, least, most)
    ax.set_xscale("log")
    ax.set(xlim=(grid[0], grid[-1]), ylim=(0, max(105.0, ax.get_ylim()[1])))
    ax.set(xlabel="R = T_compute / T_communication", ylabel="efficiency (%)")
    plain_log(ax.xaxis, ends=(grid[0], grid[-1]))
    place(ax, labels)
    return True


def _name_edges(ax: Axes, grid: np.ndarray, least: np.ndarray, most: np.ndarray) -> None:
    upper = int(np.searchsorted(most, 45))
    lower = int(np.searchsorted(least, 30))
    ax.annotate(
        "perfect overlap", (grid[upper], most[upper]), (-6, 4), textcoords="offset points", ha="right", color=IDEAL, fontsize=9
    )
    ax.annotate(
        "no overlap", (grid[lower], least[lower]), (8, -8), textcoords="offset points", ha="left", color=IDEAL, fontsize=9
    )
