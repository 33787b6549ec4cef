"""Direct labels: the name of a curve beside its end, where nothing else is drawn."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from lab.figures.style import wrapped

GAP = 9  # points between a curve's end and its label: beyond the mark of a prediction
MOST = 0.7  # of the width of the axes for a label: the curves need the rest
NEAR, FAR = 3, 24  # lines by which a label below or beside its point is moved at most
DISORDER = 200  # cost of a label below that of a lower point: more than of lines it covers
LEADER = 2  # lines by which a label is moved without a line to its point
LINES = 15  # of all labels together, in a figure of the usual height
CORNERS = np.array([(-1, -1), (-1, 1), (1, -1), (1, 1)])  # of a mark, from its middle
Points = np.ndarray[Any, np.dtype[np.float64]]


class Label(NamedTuple):
    """A text for the point (x, y) in data coordinates."""

    x: float
    y: float
    text: str
    color: str


def place(ax: Axes, labels: Sequence[Label], *, side: str = "right") -> None:
    """Write labels beside their points (`right`) or under them (`below`), away from what is drawn.

    Makes room within the axes so that no label is clipped. Call it last: it measures the drawing.
    """
    place_in_panels({ax: labels}, side=side)


def place_in_panels(labels: Mapping[Axes, Sequence[Label]], *, side: str = "right") -> None:
    """`place` for several axes of one figure, whose drawing is measured once for all of them."""
    written = {ax: texts for ax, ends in labels.items() if (texts := _written(ax, ends, side))}
    if not written:
        return
    scale = measure(next(iter(written))).dpi / 72  # pixels per point
    widened = [_make_room(ax, texts, side, scale) for ax, texts in written.items()]
    if any(widened):
        measure(next(iter(written)))
    for ax, texts in written.items():
        _move_apart(ax, texts, scale)


def write_beside(
    ax: Axes, text: str, point: tuple[float, float], *, gap: float = 5, **look: Any
) -> None:
    """Write a text to the right of the end of a bar, for which `room_beside` makes room."""
    look = {"va": "center", "textcoords": "offset points"} | look
    ax.annotate(text, point, (gap, 0), **look)


def room_beside(*panels: Axes) -> None:
    """Widen the x axes of bars from zero until every text beside a bar ends within its axes."""
    beside = {ax: [text for text in ax.texts if isinstance(text, Annotation)] for ax in panels}
    every = list(itertools.chain(*beside.values()))
    for text in every:
        text.set_in_layout(False)  # it gets room within the axes, which need not shrink
    scale = measure(panels[0]).dpi / 72
    for ax, texts in beside.items():
        width, (_, most) = ax.bbox.width, ax.get_xlim()
        for text in texts:
            free = max(width - text.get_window_extent().width - 8 * scale, (1 - MOST) * width)
            most = max(most, float(text.xy[0]) * width / free)
        ax.set_xlim(0, most)
    for text in every:
        text.set_in_layout(True)


def measure(ax: Axes) -> Figure:
    """Lay out the figure of an axes, so that extents in pixels are known."""
    figure = ax.get_figure(root=True)
    if figure is None:
        raise ValueError("the axes belong to no figure")
    if engine := figure.get_layout_engine():
        engine.execute(figure)  # drawing would do it too, and then take as long again
    return figure


def _written(ax: Axes, labels: Sequence[Label], side: str) -> list[Annotation]:
    """The labels with a finite point, from the lowest up, not yet moved apart."""
    labels = [label for label in labels if np.isfinite([label.x, label.y]).all()]
    most = min(max(LINES // max(len(labels), 1), 1), 3)
    return [_write(ax, label, side, most) for label in sorted(labels, key=lambda at: (at.y, at.x))]


def _write(ax: Axes, label: Label, side: str, most: int) -> Annotation:
    beside = {"xytext": (GAP, 0), "ha": "left", "va": "center"}
    below = {"xytext": (0, -GAP), "ha": "center", "va": "top"}
    where: dict[str, Any] = beside if side == "right" else below
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5}
    look: dict[str, Any] = {"color": label.color, "zorder": 5, "bbox": box}
    text, point = wrapped(label.text, most=most), (label.x, label.y)
    annotation = ax.annotate(text, point, textcoords="offset points", **where, **look)
    annotation.set_in_layout(False)  # it gets room within the axes, which need not shrink
    return annotation


def _move_apart(ax: Axes, texts: Sequence[Annotation], scale: float) -> None:
    """Move labels up or down to where they cover least; `scale` is pixels per point.

    Each is placed in turn, from the lowest up or from the highest down, whichever costs less.
    """
    others = (text for text in ax.texts if text not in texts)
    drawn, taken = _drawn_points(ax, scale), [text.get_window_extent() for text in others]
    # The white box of a label is wider than its text, and would cut the axis below.
    frame = Bbox.from_extents(ax.bbox.x0, ax.bbox.y0 + 2 * scale, ax.bbox.x1, ax.bbox.y1)
    orders = (list(texts), list(texts)[::-1])
    placed = [_placed(order, taken, drawn, frame, scale) for order in orders]
    _, shifts = min(placed, key=lambda one: one[0])
    for text, up in shifts:
        x, y = text.xyann
        text.xyann = (x, y + up)
        text.set_in_layout(True)  # other axes of the figure may still shrink these
        line = text.get_window_extent().height / (text.get_text().count("\n") + 1) / scale
        if abs(up) > LEADER * line and text.get_verticalalignment() == "center":
            _lead(ax, text)


def _placed(
    texts: Sequence[Annotation], taken: Sequence[Bbox], drawn: Points, frame: Bbox, scale: float
) -> tuple[float, list[tuple[Annotation, float]]]:
    """Each label in this order with the points by which it is moved up, and their total cost."""
    taken, total, shifts = list(taken), 0.0, []
    columns: dict[float, list[tuple[float, float]]] = {}  # heights of points and labels by x
    for text in texts:
        box, (x, y) = text.get_window_extent(), text.xy
        line, column = box.height / scale, columns.setdefault(x, [])
        # A label that is far above or below its point would seem to be another curve's.
        most = 4 * (NEAR if text.get_verticalalignment() == "top" else FAR)
        best, least = 0.0, float("inf")
        steps = sorted(range(-most, most + 1), key=lambda step: (abs(step), step))
        for up in (step * line / 4 for step in steps):
            if abs(up) / line >= least:  # all that follow cost at least their distance
                break
            moved = box.translated(0, up * scale)
            cost = _cost(moved, up / line, taken, drawn, frame)
            cost += DISORDER * any((y - at) * (moved.y0 - low) < 0 for at, low in column)
            if cost < least:
                best, least = up, cost
        taken.append(box.translated(0, best * scale))
        column.append((y, taken[-1].y0))
        shifts.append((text, best))
        total += least
    return total, shifts


def _lead(ax: Axes, text: Annotation) -> None:
    """A thin line from a point to its label, which is too far away to be seen as its own."""
    look: dict[str, Any] = {"arrowstyle": "-", "linewidth": 0.6, "alpha": 0.7, "shrinkA": 0}
    look |= {"color": text.get_color(), "shrinkB": GAP / 3}
    line = ax.annotate("", text.xy, text.xyann, textcoords="offset points", arrowprops=look)
    line.set_in_layout(False)


def _make_room(ax: Axes, texts: Sequence[Annotation], side: str, pixels_per_point: float) -> bool:
    """Widen the x axis until every label ends within it, for labels below also the y axis.

    Returns whether an axis is wider now.
    """
    limits = ax.get_xlim(), ax.get_ylim()
    boxes, frame = [text.get_window_extent() for text in texts], ax.bbox
    gap = (GAP + 2) * pixels_per_point
    reach = [
        min(box.width + gap, MOST * frame.width) if side == "right" else box.width / 2 + 2
        for box in boxes
    ]
    scale = ax.xaxis.get_transform()
    left, right = scale.transform(np.asarray(ax.get_xlim(), dtype=float))
    for _ in range(20):  # a wider axis moves the points, and with them the ends of their labels
        starts = [ax.transData.transform(text.xy)[0] for text in texts]
        end = max(start + width for start, width in zip(starts, reach, strict=True))
        if end <= frame.x1:
            break
        right = left + (right - left) * min((end - frame.x0) / frame.width, 1.5)
        ax.set_xlim(*scale.inverted().transform(np.asarray([left, right])))
    if side == "below":
        low, high = ax.get_ylim()
        ax.set_ylim(low - (high - low) * 2.5 * boxes[0].height / frame.height, high)
    return limits != (ax.get_xlim(), ax.get_ylim())


def _drawn_points(ax: Axes, scale: float) -> Points:
    """Pixels along all lines and intervals of an axes, and the corners of its marks.

    They are spaced so closely that no label fits between two. `scale` is pixels per point.
    """
    lines = [np.empty((0, 2))]
    for line in ax.get_lines():
        data = np.column_stack(line.get_data(orig=False)).astype(float)
        points = line.get_transform().transform(data)
        points = points[np.isfinite(points).all(axis=1)]
        if len(points) > 1 and line.get_linestyle() != "None":
            at, nodes = np.linspace(0, len(points) - 1, 400), np.arange(len(points))
            points = np.column_stack([np.interp(at, nodes, points[:, axis]) for axis in (0, 1)])
        lines.append(points)
        if line.get_marker() not in {"None", "none", "", " ", None}:  # hidden by its corners
            half = line.get_markersize() / 2 * scale
            marks = line.get_transform().transform(data)
            lines += [marks + corner for corner in half * CORNERS]
    bars = (one for one in ax.collections if isinstance(one, LineCollection))
    for bar in bars:  # of intervals
        for segment in filter(len, bar.get_segments()):
            ends = bar.get_transform().transform(segment)
            lines.append(np.linspace(ends[0], ends[-1], 50))
    points = np.vstack(lines)
    finite: Points = points[np.isfinite(points).all(axis=1)]
    return finite


def _cost(box: Bbox, distance: float, taken: Sequence[Bbox], drawn: Points, frame: Bbox) -> float:
    """The cost of a position: other labels count most, then the frame, lines, and distance."""
    covered = float(((drawn > box.min) & (drawn < box.max)).all(axis=1).sum())
    outside = bool(box.y0 < frame.y0 or box.y1 > frame.y1)
    overlaps = sum(map(box.expanded(1.0, 1.1).overlaps, taken))
    return 1e6 * overlaps + 1e4 * outside + 5 * min(covered, 20) + abs(distance)
