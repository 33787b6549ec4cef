"""Direct labels: the name of a line beside its end, where nothing else is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from lab.figures.style import wrapped

GAP = 7  # points between a line's end and its label
MOST = 0.7  # of the width of the axes for a label: the lines need the rest
Points = np.ndarray[Any, np.dtype[np.float64]]


class Label(NamedTuple):
    """A text for the point (x, y) in data coordinates."""

    x: float
    y: float
    text: str
    color: str


def place(ax: Axes, labels: Sequence[Label], *, side: str = "right") -> list[Annotation]:
    """Write labels beside their points (`right`) or under them (`below`), away from lines and from each other.

    Makes room within the axes, so that no label is clipped. Call it last: it measures what is drawn.
    """
    labels = [label for label in labels if np.isfinite(label.x) and np.isfinite(label.y)]
    texts = [
        _write(ax, label, side) for label in sorted(labels, key=lambda label: (label.y, label.x))
    ]
    if not texts:
        return texts
    figure = measure(ax)
    _make_room(ax, texts, side, figure.dpi / 72)
    measure(ax)
    drawn, taken = _drawn_points(ax), list[Bbox]()
    for text in texts:
        start, box = text.xyann, text.get_window_extent()
        line = box.height * 72 / figure.dpi
        shifts = sorted(
            (step * line / 4 for step in range(-24, 25)), key=lambda shift: (abs(shift), shift)
        )
        moved = {shift: box.translated(0, shift * figure.dpi / 72) for shift in shifts}
        best = min(
            shifts, key=lambda shift: _cost(moved[shift], shift / line, taken, drawn, ax.bbox)
        )
        text.xyann = (start[0], start[1] + best)
        taken.append(moved[best])
    return texts


def measure(ax: Axes) -> Figure:
    """Lay out the figure of an axes, so that extents in pixels are known."""
    figure = ax.get_figure(root=True)
    if figure is None:
        raise ValueError("the axes belong to no figure")
    figure.draw_without_rendering()
    return figure


def _write(ax: Axes, label: Label, side: str) -> Annotation:
    offset, ha, va = (
        ((GAP, 0), "left", "center") if side == "right" else ((0, -GAP), "center", "top")
    )
    return ax.annotate(
        wrapped(label.text),
        (label.x, label.y),
        xytext=offset,
        textcoords="offset points",
        color=label.color,
        ha=ha,
        va=va,
        zorder=5,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5},
    )


def _make_room(ax: Axes, texts: Sequence[Annotation], side: str, pixels_per_point: float) -> None:
    """Widen the x axis until every label ends within it; for labels below points, the y axis by two lines and a half."""
    boxes, frame = [text.get_window_extent() for text in texts], ax.bbox
    gap = (GAP + 2) * pixels_per_point
    reach = [
        min(box.width + gap, MOST * frame.width) if side == "right" else box.width / 2 + 2
        for box in boxes
    ]
    scale = ax.xaxis.get_transform()
    left, right = scale.transform(np.asarray(ax.get_xlim(), dtype=float))
    for _ in range(20):
        ends = [
            ax.transData.transform(text.xy)[0] + width
            for text, width in zip(texts, reach, strict=True)
        ]
        if max(ends) <= frame.x1:
            break
        right = left + (right - left) * min((max(ends) - frame.x0) / frame.width, 1.5)
        ax.set_xlim(*scale.inverted().transform(np.asarray([left, right])))
    if side == "below":
        low, high = ax.get_ylim()
        ax.set_ylim(low - (high - low) * 2.5 * boxes[0].height / frame.height, high)


def _drawn_points(ax: Axes) -> Points:
    """Pixels along all lines of an axes, close enough to each other that no label fits between two."""
    found = [np.empty((0, 2))]
    for line in ax.get_lines():
        points = line.get_transform().transform(
            np.column_stack(line.get_data(orig=False)).astype(float)
        )
        points = points[np.isfinite(points).all(axis=1)]
        if len(points) > 1 and line.get_linestyle() != "None":
            along = np.linspace(0, len(points) - 1, 400)
            points = np.column_stack(
                [np.interp(along, np.arange(len(points)), points[:, axis]) for axis in (0, 1)]
            )
        found.append(points)
    return np.vstack(found)


def _cost(box: Bbox, distance: float, taken: Sequence[Bbox], drawn: Points, frame: Bbox) -> float:
    """How bad a place is: another label counts most, then the frame's edge, then lines, then the distance in lines of text."""
    covered = float(((drawn > box.min) & (drawn < box.max)).all(axis=1).sum())
    outside = bool(box.y0 < frame.y0 or box.y1 > frame.y1)
    return (
        1e6 * sum(map(box.overlaps, taken)) + 1e4 * outside + 5 * min(covered, 20) + abs(distance)
    )
