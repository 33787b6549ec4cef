"""How much of a device is used: of its peak, by micro-batch; of its memory, over a traced step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.text import Text

from lab.analysis.configurations import miscompiled
from lab.analysis.results import StudyResults
from lab.config.run import Run, distinct_labels
from lab.figures.breakdown import COLORS as PHASE_COLORS
from lab.figures.breakdown import no_trace
from lab.figures.figure import empty_unless, figure, listing
from lab.figures.labels import Label, measure, place
from lab.figures.style import COLORS, MARKERS, ink, log2_x, panels, wrapped
from lab.formatting import percent, plain, unit_for
from lab.records.schema import Event, RankMemory
from lab.records.store import Record
from lab.records.table import by_run, grouped, median

__all__ = ["memory_timeline", "mfu_by_batch"]

ONE_BATCH = "no configuration was measured with two micro-batches"
UNCOMPILED = (0, (4, 2))
MOST_PANELS = 4
HELD, RISEN = "#BBBBBB", "#56B4E9"


class _Curve(NamedTuple):
    """MFU by micro-batch of runs that are otherwise equal."""

    name: str
    run: Run  # one of them
    points: list[tuple[int, float]]  # micro-batch in samples, and MFU


def _curves(results: StudyResults) -> list[_Curve]:
    """All curves, without runs that learned something else once compiled."""
    records = [one for one in results.records if one.completed and one.timing]
    runs = {one.run.id: one.run for one in records if one.run.task == "train"}
    wrong = {run.id for run in miscompiled(runs.values(), records)}
    shares = {run_id: median(repeats, "timing.mfu") for run_id, repeats in by_run(records).items()}
    alike = {"micro_batch_size": 1, "global_batch_size": None}
    points = grouped(
        (run.model_copy(update=alike), (run.micro_batch_size, mfu))
        for run_id, run in runs.items()
        if run.micro_batch_size and (mfu := shares[run_id]) is not None and run_id not in wrong
    )
    labels, common = distinct_labels(list(points))
    return [_Curve(labels[run] or common, run, sorted(own)) for run, own in points.items()]


_missing = empty_unless(
    lambda results: any(len(curve.points) > 1 for curve in _curves(results)), ONE_BATCH
)


def _ends(results: StudyResults) -> Iterator[str]:
    for name, _, points in _curves(results):
        ends = dict.fromkeys((points[0], points[-1]))
        yield f"{name}, " + " and ".join(f"{percent(y)} at {x}" for x, y in ends)


def _see(results: StudyResults) -> str:
    compiled = {curve.run.compile for curve in _curves(results)}
    return "Dashed: not compiled." if len(compiled) > 1 else ""


@figure(describe=listing("MFU by micro-batch", _ends), missing=_missing, see=_see)
def mfu_by_batch(ax: Axes, results: StudyResults) -> None:
    """Share of the peak that training uses (MFU), by micro-batch: medians over repeats."""
    curves = _curves(results)
    models = list(dict.fromkeys(str(curve.run.model) for curve in curves))
    dashed = len({curve.run.compile for curve in curves}) > 1
    labels = []
    for name, run, points in curves:
        nth = models.index(str(run.model))
        color, marker = COLORS[nth % len(COLORS)], MARKERS[nth % len(MARKERS)]
        sizes, shares = np.array(points).T
        line = UNCOMPILED if dashed and not run.compile else "-"
        ax.plot(sizes, 100 * shares, color=color, marker=marker, linestyle=line)
        text = f"{name}: {percent(shares[-1])}"
        labels.append(Label(sizes[-1], 100 * shares[-1], text, ink(color)))
    ticks = sorted({size for curve in curves for size, _ in curve.points})
    log2_x(ax, ticks, [str(size) for size in ticks])
    ax.set(xlabel="micro-batch (samples)", ylabel="MFU (%)")
    ax.margins(y=0.12)
    place(ax, labels)


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
        if memory is None or memory.parameters is None or memory.optimizer is None:
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
            panel.set_title(title)
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
        color, _ = PHASE_COLORS.get(bar.name, PHASE_COLORS["other"])
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
    shown: set[str] = set()
    scale = abs(ax.transData.transform((1, 0))[0] - ax.transData.transform((0, 0))[0])
    for text, width in names:
        fits = text.get_window_extent().width < 0.95 * width * scale
        text.set_visible(fits and text.get_text() not in shown)
        if fits:
            shown.add(text.get_text())
