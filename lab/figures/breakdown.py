"""Bars of the phases of a step, with their names and times written on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from lab.analysis.scaling_curves import Curve, ranks
from lab.figures.labels import measure
from lab.figures.style import wrapped
from lab.formatting import Unit, format_seconds, unit_for
from lab.records.schema import PHASES, Event
from lab.records.store import Record

# Okabe and Ito (2008), each with the text colour that can be read on it.
EXPOSED = "exposed communication"
COLORS = {
    "data": ("#E69F00", "black"),
    "h2d": ("#F0E442", "black"),
    "forward": ("#56B4E9", "black"),
    "backward": ("#0072B2", "white"),
    EXPOSED: ("#D55E00", "white"),
    "optimizer": ("#009E73", "black"),
    "other": ("#BBBBBB", "black"),
}
BAR = 0.76  # of the distance between bars
BETWEEN = 0.7  # extra distance between lines
NAME = 42  # characters of a name in one line
HEADER = 0.95  # distance of the phase names from the first bar


def phases_height(lines: Sequence[Curve]) -> float:
    """Inches that these bars need to be readable."""
    return 1.1 + 0.25 * (sum(len(line.points) for line in lines) + BETWEEN * len(lines))


def draw_phases(ax: Axes, lines: Sequence[Curve]) -> None:
    """Draw a bar per configuration, the line with the longest first bar on top; times in s become ms or s on the axis."""
    lines = sorted(lines, key=lambda line: -float(line.points["step_time"].iloc[0]))
    steps = pd.concat([line.points for line in lines])
    unit = unit_for(steps["step_time"])
    parts = [_parts(row, unit) for row in steps.to_dict("records")]
    shown = [name for name in COLORS if any(bar.get(name, 0.0) > 0 for bar in parts)]
    bars = iter(parts)
    places: dict[float, str] = {}
    y = 0.0
    for label, points in lines:
        for nth, row in enumerate(points.to_dict("records")):
            workers = ranks(row["device"], row["world_size"])
            places[y] = wrapped(f"{label}:  {workers}", width=NAME) if nth == 0 else workers
            _bar(ax, y, next(bars), shown, row["step_time"])
            y += 1
        y += BETWEEN
    longest = float(steps["step_time"].max()) * unit.per_second
    ax.set(
        yticks=list(places),
        yticklabels=list(places.values()),
        xlabel=f"time of a step ({unit.name})",
        xlim=(0, 1.14 * longest),
    )
    ax.set_ylim(max(places) + 0.6, -HEADER - 0.5)
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False)
    ax.spines["left"].set_visible(False)
    _make_room(ax, longest)
    _name_phases(ax, parts[0], shown)
    hide_wide(ax)


def _parts(row: dict[Any, Any], unit: Unit) -> dict[str, float]:
    """Times by part; what is not known is left out."""
    times = {phase: row[f"{phase}_time"] for phase in PHASES}
    if pd.notna(row["exposed_communication_time"]):
        times[EXPOSED] = row["exposed_communication_time"]
        for phase in ("forward", "backward", "optimizer"):
            times[phase] = max(times[phase] - row[f"exposed_{phase}_time"], 0.0)
    return {name: float(time) * unit.per_second for name, time in times.items() if pd.notna(time)}


def _bar(ax: Axes, y: float, parts: dict[str, float], shown: Sequence[str], step: float) -> None:
    left = 0.0
    for name in shown:
        width = parts.get(name, 0.0)
        color, ink = COLORS[name]
        ax.barh(
            y,
            width,
            left=left,
            height=BAR,
            color=color,
            edgecolor="white",
            linewidth=0.6,
            label=name if y == 0 else "",
        )
        ax.text(
            left + width / 2,
            y,
            f"{width:.3g}",
            ha="center",
            va="center_baseline",
            color=ink,
            fontsize=8.5,
            gid="inside",
        )
        left += width
    ax.annotate(
        format_seconds(step),
        (left, y),
        xytext=(5, 0),
        textcoords="offset points",
        va="center_baseline",
        fontweight="bold",
    )


def _make_room(ax: Axes, longest: float) -> None:
    """End the axis where the text beside the longest bar ends."""
    scale = measure(ax).dpi / 72
    widest = max(
        text.get_window_extent().width for text in ax.texts if isinstance(text, Annotation)
    )
    ax.set_xlim(0, longest * ax.bbox.width / (ax.bbox.width - widest - 8 * scale))


def _name_phases(ax: Axes, parts: dict[str, float], shown: Sequence[str]) -> None:
    """Names in their colours above the first bar, each as near to its part as its neighbours allow."""
    centers, left = [], 0.0
    for name in shown:
        centers.append(left + parts.get(name, 0.0) / 2)
        left += parts.get(name, 0.0)
    chips = []
    for name, center in zip(shown, centers, strict=True):
        color, ink = COLORS[name]
        chip = {"facecolor": color, "edgecolor": "none", "boxstyle": "round,pad=0.2"}
        chips.append(
            ax.text(
                center,
                -HEADER,
                name,
                ha="center",
                va="center",
                color=ink,
                fontsize=8.5,
                bbox=chip,
                gid="phase",
            )
        )
        chips[-1].set_in_layout(
            False
        )  # they may lie above the labels of the bars, and must not shrink the axes
    pixels_per_point = measure(ax).dpi / 72
    widths = [chip.get_window_extent().width + 9 * pixels_per_point for chip in chips]
    pixels = [float(ax.transData.transform((center, 0))[0]) for center in centers]
    # Where they do not fit above the bars, they begin above the names of these.
    low = ax.bbox.x0 if sum(widths) <= ax.bbox.width else 0.02 * measure(ax).bbox.width
    for text, pixel in zip(chips, spread(pixels, widths, low=low, high=ax.bbox.x1), strict=True):
        text.set_x(float(ax.transData.inverted().transform((pixel, 0))[0]))


def spread(
    centers: Sequence[float], widths: Sequence[float], *, low: float, high: float
) -> list[float]:
    """Move intervals of these widths, in order, as little as needed so that none overlaps another.

    They stay between `low` and `high` where all fit there, and begin at `low` where they do not.
    """
    groups: list[_Group] = []
    for center, width in zip(centers, widths, strict=True):
        groups.append(_Group([width], [center - width / 2]))
        while len(groups) > 1 and groups[-2].start(low, high) + groups[-2].width > groups[-1].start(
            low, high
        ):
            last = groups.pop()
            groups[-1] = groups[-1].joined(last)
    moved = []
    for group in groups:
        start = group.start(low, high)
        for width in group.widths:
            moved.append(start + width / 2)
            start += width
    return moved


class _Group(NamedTuple):
    """Intervals that touch; each wish is where the group would begin if this member lay where it wants to."""

    widths: list[float]
    wishes: list[float]

    @property
    def width(self) -> float:
        return sum(self.widths)

    def start(self, low: float, high: float) -> float:
        return max(min(sum(self.wishes) / len(self.wishes), high - self.width), low)

    def joined(self, other: _Group) -> _Group:
        return _Group(
            self.widths + other.widths, self.wishes + [wish - self.width for wish in other.wishes]
        )


def hide_wide(ax: Axes) -> None:
    """Hide the texts with gid "inside", one for each bar in their order, that do not fit into their bar or lie upon another."""
    inside: list[Text] = [text for text in ax.texts if text.get_gid() == "inside"]
    kept: list[Bbox] = []
    for text, patch in zip(inside, ax.patches, strict=True):
        box = text.get_window_extent()
        if box.width > 0.92 * patch.get_window_extent().width or any(map(box.overlaps, kept)):
            text.set_visible(False)
        else:
            kept.append(box)


LINK = ("#CC79A7", "black")
HEIGHT = 0.36


def events(records: Sequence[Record]) -> list[Event]:
    """The timeline of the record on the most ranks; of several, the one of the median step time."""
    held = [
        record
        for record in records
        if record.timing and record.communication and record.communication.timeline
    ]
    if not held:
        return []
    most = max(record.run.world_size for record in held)
    widest = sorted(
        (r for r in held if r.run.world_size == most),
        key=lambda r: r.timing.step.median if r.timing else 0.0,
    )
    chosen = widest[len(widest) // 2].communication
    return chosen.timeline if chosen else []


def timeline_height(events: Sequence[Event]) -> float:
    """Inches that these ranks need to be readable."""
    return 1.3 + 0.75 * len({event.rank for event in events})


def draw_timeline(ax: Axes, events: Sequence[Event]) -> None:
    """Draw the events of one step; a bucket has a tick where its gradients were ready, and a bar while it is on the link."""
    last = max(event.end for event in events)
    unit = unit_for([last])
    ranks = sorted({event.rank for event in events})
    for event in sorted(events, key=lambda event: event.start):
        on_link = event.bytes is not None or event.name.startswith("bucket")
        row = 2 * ranks.index(event.rank) + on_link
        y = row * (HEIGHT + 0.06) + ranks.index(event.rank) * 0.25
        start, width = event.start * unit.per_second, (event.end - event.start) * unit.per_second
        color, ink = LINK if on_link else COLORS.get(event.name, COLORS["other"])
        ax.barh(y, width, left=start, height=HEIGHT, color=color, edgecolor="white", linewidth=0.8)
        if event.ready is not None:
            ready = event.ready * unit.per_second
            ax.plot([ready, ready], [y - HEIGHT / 2, y + HEIGHT / 2], color="black", linewidth=1)
        ax.text(
            start + width / 2,
            y,
            event.name.removeprefix("bucket "),
            ha="center",
            va="center",
            color=ink,
            fontsize=8,
            gid="inside",
        )
    rows = [
        (2 * nth + part) * (HEIGHT + 0.06) + nth * 0.25
        for nth in range(len(ranks))
        for part in (0, 1)
    ]
    ax.set_yticks(rows, [f"rank {rank}{part}" for rank in ranks for part in (" compute", " link")])
    ax.set(
        xlabel=f"time since the start of the step ({unit.name})",
        xlim=(0, last * unit.per_second * 1.02),
    )
    ax.set_ylim(rows[-1] + HEIGHT, rows[0] - HEIGHT)
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False)
    measure(ax)
    hide_wide(ax)
