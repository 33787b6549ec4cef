"""Lines of training loss, by optimizer step or by time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator

from lab.analysis.scaling_curves import Curve, ranks
from lab.figures.data import PlotData
from lab.figures.labels import Label, place
from lab.figures.style import COLORS, IDEAL, MARKERS, SIZE, WIDE, ink, line_looks, plain_log, style
from lab.formatting import format_seconds, unit_for
from lab.perfmodel.calibration import Calibration, CollectiveTime
from lab.perfmodel.collectives import (
    COLLECTIVES,
    Collective,
    efficiency_with_overlap,
    efficiency_without_overlap,
)

FEW = 3  # of more lines one end is named, beside the axes


def draw_losses(ax: Axes, seen: PlotData, *, by_time: bool) -> None:
    """Draw the losses of each configuration over its steps, or over its steps times its step time in s."""
    labels: list[Label] = []
    few = len(seen.lines) <= FEW
    for (label, points), (color, _) in zip(seen.lines, line_looks(len(seen.lines)), strict=True):
        known = points[points["run_id"].isin(seen.losses.keys())]
        ends = []
        for nth, row in enumerate(known.to_dict("records")):
            loss = seen.losses[row["run_id"]]
            x = np.arange(1, len(loss) + 1) * (row["step_time"] if by_time else 1)
            inner = (nth + 1) / len(known)
            look: dict[str, Any] = (
                {} if by_time else {"linewidth": 6 - 4.5 * inner, "alpha": 0.3 + 0.7 * inner}
            )
            ax.plot(x, loss, color=color, label=f"{label}, ×{row['world_size']}", **look)
            ends.append(Label(x[-1], loss[-1], f"{label}, ×{row['world_size']}", ink(color)))
        if not few:
            labels += [end._replace(text=label) for end in (ends[:1] if by_time else ends[-1:])]
        else:
            labels += _shortened(ends) if by_time else _merged(ends, label)
    _loss_axis(ax, by_time=by_time)
    place(ax, labels, side="below" if by_time and few else "right")


def _loss_axis(ax: Axes, *, by_time: bool) -> None:
    """Optimizer steps, or seconds; logarithmic where the runs took unlike times; ticks only where there are losses."""
    ends = [float(np.asarray(line.get_xdata())[-1]) for line in ax.get_lines()]
    last = max(ends)
    ax.set(xlabel="training time (s)" if by_time else "optimizer step", ylabel="training loss")
    if by_time and last > WIDE * min(ends):
        ax.set_xscale("log")
        plain_log(
            ax.xaxis,
            ends=(min(float(np.asarray(line.get_xdata())[0]) for line in ax.get_lines()), last),
        )
        return
    ticks = [
        tick
        for tick in MaxNLocator(nbins=8, integer=not by_time).tick_values(0, last)
        if 0 <= tick <= last
    ]
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.set_xlim(0, last)
    ax.spines["bottom"].set_bounds(0, last)


def _shortened(ends: list[Label]) -> list[Label]:
    """The whole name at the line that ends last, the world size alone at the others; of many, only the first and last."""
    ends = sorted(ends, key=lambda end: end.x)
    ends = ends if len(ends) <= 3 else [ends[0], ends[-1]]
    return [*(end._replace(text=end.text.rsplit(", ", 1)[1]) for end in ends[:-1]), *ends[-1:]]


def _merged(ends: list[Label], label: str) -> list[Label]:
    """One label for the world sizes of a line where their losses end within 1 % of each other."""
    values = [end.y for end in ends]
    if len(ends) < 2 or max(values) - min(values) > 0.01 * abs(max(values)):
        return ends
    names = [end.text.rsplit(", ", 1)[1] for end in ends]
    sizes = ", ".join(names) if len(names) <= 3 else f"{names[0]} to {names[-1]}"
    return [
        Label(
            max(end.x for end in ends), float(np.median(values)), f"{label}\n{sizes}", ends[0].color
        )
    ]


def draw_overlap_band(ax: Axes, lines: Sequence[Curve]) -> bool:
    """Draw the band and a point per configuration with communication and a baseline; False where there is none."""
    labels, ratios = [], []
    for (label, points), (color, marker) in zip(lines, line_looks(len(lines)), strict=True):
        known = points[
            (points["communication_time"] > 0)
            & points["efficiency"].notna()
            & (points["world_size"] > 1)
        ]
        for row in known.to_dict("records"):
            r, efficiency = row["compute_time"] / row["communication_time"], 100 * row["efficiency"]
            low, high = (100 * row[f"efficiency_{end}"] for end in ("low", "high"))
            errors = (
                None if np.isnan(low) else [[max(efficiency - low, 0)], [max(high - efficiency, 0)]]
            )
            ax.errorbar([r], [efficiency], yerr=errors, color=color, marker=marker)
            labels.append(
                Label(
                    r, efficiency, f"{label}, {ranks(row['device'], row['world_size'])}", ink(color)
                )
            )
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
        "perfect overlap",
        (grid[upper], most[upper]),
        (-6, 4),
        textcoords="offset points",
        ha="right",
        color=IDEAL,
        fontsize=9,
    )
    ax.annotate(
        "no overlap",
        (grid[lower], least[lower]),
        (8, -8),
        textcoords="offset points",
        ha="left",
        color=IDEAL,
        fontsize=9,
    )


NOTHING = "no collective is measured here yet"
ROOM = 0.85  # for labels on the right, in widths of the data


def links(calibration: Calibration, *, ax: Axes | None = None) -> Axes:
    """Time of each collective by bytes, on logarithmic axes: medians with 95 % intervals, and the alpha-beta fits.

    A colour is a collective, a marker a world size. A label tells the largest relative error of the fit; the line is
    drawn where it was fitted.
    """
    with style():
        if ax is None:
            ax = plt.subplots(figsize=(SIZE[0], SIZE[1] * 1.25), layout="constrained")[1]
        if not calibration.rows:
            ax.set_axis_off()
            ax.text(
                0.5, 0.5, NOTHING, ha="center", va="center", transform=ax.transAxes, color=IDEAL
            )
            return ax
        unit = unit_for(row.seconds for row in calibration.rows)
        sizes = sorted({row.world_size for row in calibration.rows})
        labels = [
            _line(
                ax,
                calibration,
                rows,
                color=COLORS[COLLECTIVES.index(name)],
                marker=MARKERS[sizes.index(n) % len(MARKERS)],
            )
            for name, n in itertools.product(COLLECTIVES, sizes)
            if (rows := _rows(calibration, name, n))
        ]
        ax.set(
            xscale="log",
            yscale="log",
            xlabel="bytes of the whole tensor",
            ylabel=f"time of a call ({unit.name})",
        )
        _axes(ax, calibration)
        place(ax, labels)
        return ax


def alt(calibration: Calibration) -> str:
    """What that figure shows, in one sentence."""
    parts = []
    for name, n in itertools.product(
        COLLECTIVES, sorted({row.world_size for row in calibration.rows})
    ):
        rows = _rows(calibration, name, n)
        if rows:
            ends = [
                f"{format_seconds(row.seconds, row.low, row.high)} for {_bytes(row.bytes)}"
                for row in (rows[0], rows[-1])
            ]
            parts.append(
                f"{_name(name)} on {n} ranks, {' and '.join(ends)}{_error(calibration, name, n)}"
            )
    if not parts:
        return "An empty figure: no collective is measured yet."
    return f"Time of collectives by bytes on logarithmic axes: {'; '.join(parts)}."


def _line(
    ax: Axes, calibration: Calibration, rows: list[CollectiveTime], *, color: str, marker: str
) -> Label:
    scale = unit_for(row.seconds for row in calibration.rows).per_second
    name, world_size = rows[0].collective, rows[0].world_size
    x, y, low, high = (
        np.array(
            [
                value if value is not None else row.seconds
                for row, value in zip(rows, values, strict=True)
            ],
            dtype=float,
        )
        for values in zip(
            *((row.bytes, row.seconds, row.low, row.high) for row in rows), strict=True
        )
    )
    errors = scale * np.vstack([y - low, high - y]).clip(min=0)
    text = f"{_name(name)} ×{world_size}"
    ax.errorbar(
        x,
        scale * y,
        yerr=errors,
        color=color,
        marker=marker,
        linestyle="none",
        elinewidth=1.0,
        label=text,
    )
    fit = next(
        (
            found.fit
            for found in calibration.fits
            if (found.collective, found.world_size) == (name, world_size)
        ),
        None,
    )
    if fit is not None:
        at = np.geomspace(fit.smallest_bytes, fit.largest_bytes, 100)
        ax.plot(at, [scale * fit.time(size) for size in at], color=color, linewidth=1.4)
    return Label(x[-1], scale * y[-1], text + _error(calibration, name, world_size), ink(color))


def _axes(ax: Axes, calibration: Calibration) -> None:
    """A tick at every second measured size, times at 1, 2 and 5 of each power of ten, and room for labels."""
    sizes = sorted({row.bytes for row in calibration.rows})
    shown = sizes[:: 2 if len(sizes) > 4 else 1]
    ax.xaxis.set_major_locator(FixedLocator(shown))
    ax.xaxis.set_major_formatter(FixedFormatter([_bytes(size) for size in shown]))
    ax.xaxis.set_minor_locator(NullLocator())
    # Room for the labels from the start: while they stick out of the axes, the layout shrinks these and the room comes out too wide.
    ax.set_xlim(sizes[0] / 1.6, sizes[-1] * max(sizes[-1] / sizes[0], 4) ** ROOM)
    ax.spines["bottom"].set_bounds(sizes[0] / 1.6, sizes[-1])
    plain_log(ax.yaxis)


def _rows(calibration: Calibration, name: Collective, world_size: int) -> list[CollectiveTime]:
    found = [
        row for row in calibration.rows if (row.collective, row.world_size) == (name, world_size)
    ]
    return sorted(found, key=lambda row: row.bytes)


def _error(calibration: Calibration, name: Collective, world_size: int) -> str:
    for found in calibration.fits:
        if (found.collective, found.world_size) == (name, world_size):
            return f", fit within {100 * found.fit.largest_relative_error:.2g} %"
    return ", no fit"


def _name(collective: Collective) -> str:
    return collective.replace("_", "-")


def _bytes(size: int) -> str:
    """Bytes for people, in binary units."""
    for unit, factor in (("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} B"
