"""Memory over a traced step: it rises in the forward pass and falls in the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.text import Text

from lab.analysis.results import StudyResults
from lab.config.run import distinct_labels
from lab.figures.breakdown import COLORS, no_trace
from lab.figures.figure import figure, listing
from lab.figures.labels import measure
from lab.figures.style import IDEAL, panels, wrapped
from lab.formatting import plain, unit_for
from lab.records.schema import Event, RankMemory
from lab.records.store import Record

__all__ = ["memory_timeline"]

MOST_PANELS = 4
HELD, RISEN = "#BBBBBB", "#56B4E9"


class _Panel(NamedTuple):
    """The fullest rank of a configuration."""

    label: str
    record: Record
    rank: int
    memory: RankMemory
    phases: list[Event]

    @property
    def peak(self) -> tuple[float, float]:
        """When it is first reached, s from the start of the step, and the bytes."""
        levels, length = self.memory.bytes, self.memory.end - self.memory.start
        return (int(np.argmax(levels)) + 0.5) / len(levels) * length, max(levels)

    @property
    def parts(self) -> str:
        """What is held between steps, in words."""
        memory, held = self.record.memory, self.memory.held
        words = f"{plain(held / 1e6)} MB between steps"
        if memory is None or memory.optimizer is None:
            return words
        rest = held - memory.parameters - memory.optimizer
        parts = {"weights": memory.parameters, "optimizer": memory.optimizer, "other": rest}
        shown = [
            f"{name} {plain(size / 1e6)}" for name, size in parts.items() if size > 0.01 * held
        ]
        return f"{words}: {', '.join(shown)}"

    @property
    def summary(self) -> str:
        """Its numbers in words."""
        when, most = self.peak
        at = when + self.memory.start
        phase = next((bar.name for bar in self.phases if bar.start <= at < bar.end), "step")
        return f"{self.label}, {self.parts}, {plain(most / 1e6)} MB at the peak ({phase})"


def _panels(results: StudyResults) -> list[_Panel]:
    records = {record.run: record for record in reversed(results.records) if record.trace}
    labels, common = distinct_labels(list(reversed(records)))
    made = []
    for run, label in labels.items():
        trace = records[run].trace
        assert trace is not None
        rank = max(range(len(trace.memory)), key=lambda rank: max(trace.memory[rank].bytes))
        phases = [bar for bar in trace.timeline if bar.rank == rank and bar.bytes is None]
        made.append(_Panel(label or common, records[run], rank, trace.memory[rank], phases))
    return made[:MOST_PANELS]


@figure(
    describe=listing("Memory over a step", lambda it: (one.summary for one in _panels(it))),
    missing=no_trace,
    height=lambda it: 0.6 + 1.7 * len(_panels(it)),
    see=lambda _: "What rises and falls within the step are activations, gradients and buffers.",
)
def memory_timeline(ax: Axes, results: StudyResults) -> None:
    """Memory that tensors take over a traced step, on the fullest rank of each configuration.

    At most four configurations are drawn. Phases are shaded; grey is what is held between steps.
    """
    shown = _panels(results)
    unit = unit_for([one.memory.end - one.memory.start for one in shown])
    longest = max(one.memory.end - one.memory.start for one in shown) * unit.factor
    most = max(one.peak[1] for one in shown) / 1e6
    made = panels(ax, len(shown), columns=1)
    names = []
    for panel, one in zip(made, shown, strict=True):
        names.append(_draw(panel, one, unit.factor))
        panel.set(xlim=(0, longest), ylim=(0, 1.4 * most), ylabel="MB")
        if len(shown) > 1:
            name = wrapped(one.label, width=66, most=1)
            title = " ".join(filter(None, [panel.get_title(loc="left"), name]))
            panel.set_title(title, loc="left", color=IDEAL, fontsize="medium")
    made[-1].set_xlabel(f"time since the start of the step ({unit.name})")
    measure(ax)
    for panel, phases in zip(made, names, strict=True):
        _hide_names(panel, phases)


def _draw(ax: Axes, one: _Panel, per_second: float) -> list[tuple[Text, float]]:
    """Draw a panel, and return the names of its phases with the lengths of these."""
    levels = np.array(one.memory.bytes) / 1e6
    length, held = (one.memory.end - one.memory.start) * per_second, one.memory.held / 1e6
    names = []
    edges = np.linspace(0, length, len(levels) + 1)
    ax.stairs(levels, edges, fill=True, color=RISEN)
    ax.fill_between([0, length], [held, held], color=HELD, linewidth=0)
    for bar in one.phases:
        start, end = ((at - one.memory.start) * per_second for at in (max(bar.start, 0.0), bar.end))
        color, _ = COLORS.get(bar.name, COLORS["other"])
        ax.axvspan(start, end, color=color, alpha=0.15, linewidth=0, zorder=0)
        look: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": 8.5}
        at = ax.get_xaxis_transform()
        name = ax.text((start + end) / 2, 0.97, bar.name, transform=at, **look)
        names.append((name, end - start))
    when, peak = one.peak
    near: dict[str, Any] = {"xytext": (0, 2), "textcoords": "offset points", "fontsize": 8.5}
    side = "left" if when * per_second < length / 2 else "right"
    ax.annotate(f"peak {plain(peak / 1e6)} MB", (when * per_second, peak / 1e6), ha=side, **near)
    ax.annotate(one.parts, (0.01 * length, 0), va="bottom", **near)
    return names


def _hide_names(ax: Axes, names: Sequence[tuple[Text, float]]) -> None:
    """Hide names of phases that are wider than their phase, and all but the first of each."""
    known: set[str] = set()
    scale = abs(ax.transData.transform((1, 0))[0] - ax.transData.transform((0, 0))[0])
    for text, width in names:
        fits = text.get_window_extent().width < 0.95 * width * scale
        text.set_visible(fits and text.get_text() not in known)
        if fits:
            known.add(text.get_text())
