"""One step of every rank as bars in time: compute above, the buckets on the link below."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from lab.analysis.rounding import unit_for
from lab.drawing.direct_labels import measure
from lab.drawing.phase_bars import COLORS, hide_wide
from lab.records import Event, Record

LINK = ("#CC79A7", "black")
HEIGHT = 0.36


def events(records: Sequence[Record]) -> list[Event]:
    """The timeline of the record on the most ranks; of several, the one of the median step time."""
    held = [record for record in records if record.timing and record.communication and record.communication.timeline]
    if not held:
        return []
    most = max(record.run.world_size for record in held)
    widest = sorted((r for r in held if r.run.world_size == most), key=lambda r: r.timing.step.median if r.timing else 0.0)
    chosen = widest[len(widest) // 2].communication
    return chosen.timeline if chosen else []


def height(events: Sequence[Event]) -> float:
    """Inches that these ranks need to be readable."""
    return 1.3 + 0.75 * len({event.rank for event in events})


def draw(ax: Axes, events: Sequence[Event]) -> None:
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
    rows = [(2 * nth + part) * (HEIGHT + 0.06) + nth * 0.25 for nth in range(len(ranks)) for part in (0, 1)]
    ax.set_yticks(rows, [f"rank {rank}{part}" for rank in ranks for part in (" compute", " link")])
    ax.set(xlabel=f"time since the start of the step ({unit.name})", xlim=(0, last * unit.per_second * 1.02))
    ax.set_ylim(rows[-1] + HEIGHT, rows[0] - HEIGHT)
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False)
    measure(ax)
    hide_wide(ax)
