"""Times of collectives by bytes: measured points with their intervals, and the fitted lines."""

from __future__ import annotations

import itertools

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from lab.analysis.links import COLLECTIVES, Collective
from lab.analysis.rounding import format_seconds, unit_for
from lab.calibration import Calibration, CollectiveTime
from lab.drawing.direct_labels import Label, place
from lab.drawing.look import COLORS, IDEAL, MARKERS, SIZE, ink, plain_log, style

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
            ax.text(0.5, 0.5, NOTHING, ha="center", va="center", transform=ax.transAxes, color=IDEAL)
            return ax
        unit = unit_for(row.seconds for row in calibration.rows)
        sizes = sorted({row.world_size for row in calibration.rows})
        labels = [
            _line(ax, calibration, rows, color=COLORS[COLLECTIVES.index(name)], marker=MARKERS[sizes.index(n) % len(MARKERS)])
            for name, n in itertools.product(COLLECTIVES, sizes)
            if (rows := _rows(calibration, name, n))
        ]
        ax.set(xscale="log", yscale="log", xlabel="bytes of the whole tensor", ylabel=f"time of a call ({unit.name})")
        _axes(ax, calibration)
        place(ax, labels)
        return ax


def alt(calibration: Calibration) -> str:
    """What that figure shows, in one sentence."""
    parts = []
    for name, n in itertools.product(COLLECTIVES, sorted({row.world_size for row in calibration.rows})):
        rows = _rows(calibration, name, n)
        if rows:
            ends = [f"{format_seconds(row.seconds, row.low, row.high)} for {_bytes(row.bytes)}" for row in (rows[0], rows[-1])]
            parts.append(f"{_name(name)} on {n} ranks, {' and '.join(ends)}{_error(calibration, name, n)}")
    if not parts:
        return "An empty figure: no collective is measured yet."
    return f"Time of collectives by bytes on logarithmic axes: {'; '.join(parts)}."


def _line(ax: Axes, calibration: Calibration, rows: list[CollectiveTime], *, color: str, marker: str) -> Label:
    scale = unit_for(row.seconds for row in calibration.rows).per_second
    name, world_size = rows[0].collective, rows[0].world_size
    x, y, low, high = (
        np.array([value if value is not None else row.seconds for row, value in zip(rows, values, strict=True)], dtype=float)
        for values in zip(*((row.bytes, row.seconds, row.low, row.high) for row in rows), strict=True)
    )
    errors = scale * np.vstack([y - low, high - y]).clip(min=0)
    text = f"{_name(name)} ×{world_size}"
    ax.errorbar(x, scale * y, yerr=errors, color=color, marker=marker, linestyle="none", elinewidth=1.0, label=text)
    fit = next((found.fit for found in calibration.fits if (found.collective, found.world_size) == (name, world_size)), None)
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
    found = [row for row in calibration.rows if (row.collective, row.world_size) == (name, world_size)]
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
