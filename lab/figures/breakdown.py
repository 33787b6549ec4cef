"""Where the time of a step goes: its phases, what it loses by cause, one step rank by rank."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.text import Text
from matplotlib.ticker import PercentFormatter
from matplotlib.transforms import Bbox, blended_transform_factory

from lab.analysis.results import StudyResults
from lab.analysis.scaling_curves import Estimate, rows_of
from lab.analysis.waterfall import Waterfall, names_of, on_most_ranks, with_baseline
from lab.config.run import Run, distinct_labels
from lab.figures.figure import NO_COMMUNICATION, empty_unless, figure, has, listing, no_runs
from lab.figures.labels import measure, room_beside, write_beside
from lab.figures.style import IDEAL, round_locator, wrapped
from lab.formatting import Unit, count, drawn_value, format_seconds, percent, unit_for
from lab.records.schema import PHASES, Communication, Event, Trace
from lab.records.store import Record

__all__ = ["step_breakdown", "step_timeline", "trace_timeline", "waterfall"]

EXPOSED = "exposed communication"
SECONDS = Unit("s", 1.0)
# Okabe and Ito (2008), each with the text colour that can be read on it.
COLORS = {
    "data": ("#E69F00", "black"),
    "h2d": ("#F0E442", "black"),
    "forward": ("#56B4E9", "black"),
    "backward": ("#0072B2", "white"),
    EXPOSED: ("#D55E00", "white"),
    "optimizer": ("#009E73", "black"),
    "other": ("#BBBBBB", "black"),
}
LINK = ("#CC79A7", "black")
BAR = 0.76  # relative to the distance between bars
BETWEEN = 0.7  # extra distance between curves
NAME = 42  # characters of a name in one line
TITLE = 66  # of a name over a waterfall
HEADER = 0.95  # distance of the phase names from the first bar
LANE = 0.36  # height of a lane of the timeline
TIMELINE_MARKS = (
    "A bucket of gradients has a black line where it was ready, and a bar with its number while it "
    "is on the link. A rank waits for what its link carries after the end of its backward pass; "
    "then comes the optimizer."
)
CALL_MARKS = (
    "A bar on the link is a call or a message. The bars of compute contain the waits for them, as "
    "of a pipeline's stage for what it receives."
)
NO_PHASES = "no phases of a step are known"
NO_TRACE = "no step was traced: that takes `trace: true` in a run"
OPERATORS = "operators"
MOST_WATERFALLS = 4
MEASURED = "measured"
STEP, LOSS, GAIN = "#0072B2", "#D55E00", "#009E73"


_no_phases = empty_unless(has("forward_time"), NO_PHASES)


def _longest_parts(results: StudyResults) -> Iterator[str]:
    for label, points in results.drawn:
        row = rows_of(points)[-1]
        times = {name: time for name, time in _parts(row, SECONDS).items() if time > 0}
        longest = sorted(times, key=lambda name: (times[name], name), reverse=True)[:3]
        listed = ", ".join(f"{name} {format_seconds(times[name])}" for name in longest)
        parts = f" with {listed}" if listed else ""
        yield f"{label} on {row.ranks}, {format_seconds(row['step_time'])}{parts}"


@figure(
    describe=listing("Step times as bars, with the longest parts of each", _longest_parts),
    missing=_no_phases,
    height=lambda it: 1.1 + 0.25 * sum(len(curve.points) + BETWEEN for curve in it.drawn),
)
def step_breakdown(ax: Axes, results: StudyResults) -> None:
    """Where the time of a step goes: a bar per configuration, a part per phase.

    Times are medians over repeats. Phases that took no time anywhere are left out. Exposed
    communication, where it was measured, is a part of its own, and taken from the phases that wait.
    """
    # The curve with the longest first bar goes on top.
    curves = sorted(results.drawn, key=lambda curve: -curve.points["step_time"].iloc[0])
    steps = pd.concat([curve.points for curve in curves])
    unit = unit_for(steps["step_time"])
    bars = [_parts(row, unit) for row in rows_of(steps)]
    shown = [name for name in COLORS if any(bar.get(name, 0.0) > 0 for bar in bars)]
    names: dict[float, str] = {}
    y, remaining = 0.0, iter(bars)
    for label, points in curves:
        for nth, row in enumerate(rows_of(points)):
            names[y] = row.ranks if nth else wrapped(f"{label}:  {row.ranks}", width=NAME, most=2)
            _bar(ax, y, next(remaining), shown, format_seconds(row["step_time"]))
            y += 1
        y += BETWEEN
    longest = float(steps["step_time"].max()) * unit.factor
    ax.set(xlabel=f"time of a step ({unit.name})", xlim=(0, longest))
    ax.set_ylim(max(names) + 0.6, -HEADER - 0.5)
    _name_bars(ax, names)
    _name_phases(ax, bars[0], shown)
    _hide_wide(ax)


def _parts(row: Mapping[Any, Any], unit: Unit) -> dict[str, float]:
    """Times by part; unknown ones are left out."""
    times = {phase: row[f"{phase}_time"] for phase in PHASES}
    if pd.notna(row["exposed_communication_time"]):
        times[EXPOSED] = row["exposed_communication_time"]
        for phase in ("forward", "backward", "optimizer"):
            times[phase] = max(times[phase] - row[f"exposed_{phase}_time"], 0.0)
    return {name: float(time) * unit.factor for name, time in times.items() if pd.notna(time)}


def _bar(ax: Axes, y: float, parts: Mapping[str, float], shown: Sequence[str], end: str) -> None:
    left = 0.0
    for name in shown:
        width = parts.get(name, 0.0)
        color, ink = COLORS[name]
        look: dict[str, Any] = {"color": color, "edgecolor": "white", "linewidth": 0.6}
        ax.barh(y, width, left=left, height=BAR, label=name if y == 0 else "", **look)
        _write_inside(ax, left + width / 2, y, f"{width:.3g}", ink, 8.5, va="center_baseline")
        left += width
    write_beside(ax, end, (left, y), va="center_baseline", fontweight="bold")


def _write_inside(
    ax: Axes, x: float, y: float, text: str, color: str, size: float, va: str = "center"
) -> None:
    """Text in the middle of a bar; `_hide_wide` finds it by its gid."""
    ax.text(x, y, text, ha="center", va=va, color=color, fontsize=size, gid="inside")


def _name_phases(ax: Axes, parts: Mapping[str, float], shown: Sequence[str]) -> None:
    """Names in their colours above the first bar, each as near to its part as the others allow."""
    widths = np.array([parts.get(name, 0.0) for name in shown])
    centers = np.cumsum(widths) - widths / 2
    chips = []
    for name, center in zip(shown, centers, strict=True):
        color, ink = COLORS[name]
        box = {"facecolor": color, "edgecolor": "none", "boxstyle": "round,pad=0.2"}
        chip = ax.text(center, -HEADER, name, color=ink, fontsize=8.5, bbox=box, gid="phase")
        chip.set(ha="center", va="center")
        chip.set_in_layout(False)  # it may overlap the bars' names, and must not shrink the axes
        chips.append(chip)
    sheet = measure(ax)
    sizes = [chip.get_window_extent().width + 9 * sheet.dpi / 72 for chip in chips]
    pixels = [float(ax.transData.transform((center, 0))[0]) for center in centers]
    # If they do not fit above the bars, they begin above the bars' names.
    low = ax.bbox.x0 if sum(sizes) <= ax.bbox.width else 0.02 * sheet.bbox.width
    for chip, pixel in zip(chips, spread(pixels, sizes, low=low, high=ax.bbox.x1), strict=True):
        chip.set_x(float(ax.transData.inverted().transform((pixel, 0))[0]))


def spread(
    centers: Sequence[float], widths: Sequence[float], *, low: float, high: float
) -> list[float]:
    """Move intervals of these widths, in order, as little as needed so that none overlaps another.

    They stay between `low` and `high` if all fit there, and otherwise begin at `low`. This is a
    least-squares problem: after subtracting the preceding widths, centers must not decrease.
    """
    from scipy.optimize import isotonic_regression

    offsets = np.cumsum(widths) - np.asarray(widths) / 2
    starts = isotonic_regression(np.subtract(centers, offsets)).x
    moved = np.clip(starts, low, max(low, high - sum(widths))) + offsets
    return [float(center) for center in moved]


def _hide_wide(ax: Axes) -> None:
    """Hide texts inside bars, one per bar in order, that are too wide or overlap another one."""
    inside: list[Text] = [text for text in ax.texts if text.get_gid() == "inside"]
    visible: list[Bbox] = []
    for text, patch in zip(inside, ax.patches, strict=True):
        box = text.get_window_extent()
        if box.width > 0.92 * patch.get_window_extent().width or any(map(box.overlaps, visible)):
            text.set_visible(False)
        else:
            visible.append(box)


def _all_falls(results: StudyResults) -> list[Waterfall]:
    """The most ranks of each curve."""
    return on_most_ranks(with_baseline(results.waterfalls))


def _falls(results: StudyResults) -> list[Waterfall]:
    """The most ranks of each curve; if too many, those that differ most from their first bars."""
    falls = _all_falls(results)
    order = sorted(falls, key=lambda fall: -abs(fall.ideal.value / fall.step.value - 1))
    return [fall for fall in falls if fall in order[:MOST_WATERFALLS]]


_no_falls = empty_unless(lambda results: results.waterfalls, NO_PHASES)


def _falls_in_words(results: StudyResults) -> Iterator[str]:
    for fall in _falls(results):
        unit = unit_for(fall.step[:1])
        losses = ", ".join(f"{name} {_time(loss, unit)}" for name, loss in fall.shown().items())
        start = f"{fall.start} {_time(fall.ideal, unit)}"
        by = f" by {losses}" if losses else ""
        yield f"{fall.place}, from {start} to {_time(fall.step, unit)}{by}"


def _time(amount: Estimate, unit: Unit) -> str:
    return drawn_value(partial(format_seconds, unit=unit), *amount)


def _said_of_falls(results: StudyResults) -> str:
    """The ranks that all share, how many are drawn, and the largest loss."""
    drawn, falls = _falls(results), _all_falls(results)
    shared = names_of(drawn)[1]
    few = f"{len(drawn)} of {count(len(falls), 'configuration')} are drawn"
    sentences = [
        f"{few}, those that lose or gain most." if len(drawn) < len(falls) else "",
        f"All are on {shared}." if shared else "",
        _largest(drawn),
    ]
    return " ".join(filter(None, sentences))


def _largest(drawn: Sequence[Waterfall]) -> str:
    """The largest loss of all that are drawn, if the repeats show that it is the largest."""
    falls = [fall for fall in drawn if fall.supported]
    if not falls:
        several = any(sum(loss.value > 0 for loss in fall.shown().values()) > 1 for fall in drawn)
        return "The repeats do not show which loss is the largest." if several else ""
    fall = max(falls, key=lambda one: one.losses[one.largest].value / one.step.value)
    name = fall.name(fall.largest)
    return f"The largest loss is {name}: {fall.largest_share} of the step of {fall.place}."


@figure(
    describe=listing("Waterfalls to the measured step by cause", _falls_in_words),
    missing=_no_falls,
    height=lambda it: 0.7 + 0.2 * sum(len(fall.shown()) + 3 + BETWEEN for fall in _falls(it)),
    see=_said_of_falls,
)
def waterfall(ax: Axes, results: StudyResults) -> None:
    """What separates the measured step from the first bar: a bar for each loss or gain.

    The configuration on the most ranks of each curve; of more than four curves, those that lose or
    gain most. Bars are shares of the measured step; the rest is time that no phase explains and
    losses below a hundredth of it.
    """
    names: dict[float, str] = {}
    y, farthest = 0.0, 1.0
    falls = _falls(results)
    for name, fall in zip(names_of(falls)[0], falls, strict=True):
        heading = name.replace(f", {results.emulated}", "") if results.emulated else name
        where = blended_transform_factory(ax.figure.transFigure, ax.transData)
        title = ax.text(0.01, y, wrapped(heading, width=TITLE, most=1), transform=where)
        title.set(fontweight="bold", va="center", fontsize=9)
        title.set_in_layout(False)  # it begins above the bars' names
        for bar, left, width, time, color in _steps(fall):
            y += 1
            names[y] = bar
            ax.barh(y, width, left=left, height=BAR, color=color)
            end = max(left, left + width)
            write_beside(ax, time, (end, y), gap=4, fontsize=8.5)
            if bar != MEASURED:  # the start of the next bar
                ax.plot([left + width] * 2, [y, y + 1], color=IDEAL, linewidth=0.8, zorder=0)
            farthest = max(farthest, end)
        y += 1 + BETWEEN
    ax.set(xlabel="share of the measured step", xlim=(0, farthest), ylim=(y - BETWEEN, -0.7))
    ax.xaxis.set_major_locator(round_locator(7))  # as many as beside each other have room
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    _name_bars(ax, names, labelsize=9)


def _name_bars(ax: Axes, names: Mapping[float, str], **look: Any) -> None:
    """The name of each bar by its place, on axes with nothing else beside the bars."""
    ax.set_yticks(list(names), list(names.values()))
    ax.tick_params(axis="y", length=0, **look)
    ax.grid(visible=False)
    ax.spines["left"].set_visible(False)
    room_beside(ax)


def _steps(fall: Waterfall) -> Iterator[tuple[str, float, float, str, str]]:
    """The bars of a waterfall: name, begin and width as shares of the step, time, colour."""
    scale, unit = 1 / fall.step.value, unit_for(fall.step[:1])
    total = fall.ideal.value * scale
    yield fall.start, 0.0, total, _time(fall.ideal, unit), IDEAL
    for name, loss in fall.shown().items():
        sign, color = ("+", LOSS) if loss.value > 0 else ("", GAIN)
        yield name, total, loss.value * scale, f"{sign}{_time(loss, unit)}", color
        total += loss.value * scale
    yield MEASURED, 0.0, 1.0, _time(fall.step, unit), STEP


def _shown(records: Sequence[Record]) -> tuple[Run, Communication] | None:
    """The run on the most ranks that has a timeline; of several, with the median step."""
    steps = [
        (record.run, record.timing.step.median, record.communication)
        for record in records
        if record.timing and record.communication and record.communication.timeline
    ]
    most = max((run.world_size for run, _, _ in steps), default=0)
    widest = [(time, nth) for nth, (run, time, _) in enumerate(steps) if run.world_size == most]
    if not widest:
        return None
    run, _, communication = steps[statistics.median_high(widest)[1]]
    return run, communication


def _events(records: Sequence[Record]) -> list[Event]:
    shown = _shown(records)
    return shown[1].timeline if shown else []


def _configuration(results: StudyResults) -> str:
    """Whose step is shown, where several configurations ran on as many ranks; else empty."""
    shown = _shown(results.records)
    if shown is None:
        return ""
    runs = {record.run for record in results.records if record.timing}
    labels, _ = distinct_labels([run for run in runs if run.world_size == shown[0].world_size])
    return f"The record is that of {labels[shown[0]]}." if len(labels) > 1 else ""


def _place_in_cycle(results: StudyResults) -> str:
    """Which step of a cycle is shown, and how many of the cycle send anything; else empty."""
    shown = _shown(results.records)
    if shown is None or not shown[1].cycle:
        return ""
    run, communication = shown
    step, cycle = communication.timeline_step or 0, communication.cycle
    nth = (step - 1 - run.steps) % len(cycle) + 1
    send = sum(size > 0 for size in cycle)
    return (
        f"It is step {step}, number {nth} of a cycle of {len(cycle)} steps, of which {send} "
        f"send{'s' * (send == 1)} anything."
    )


def _no_timeline(results: StudyResults) -> str:
    if (reason := no_runs(results)) or _events(results.records):
        return reason
    several = results.summary[results.summary["world_size"] > 1]
    if several.empty:
        return f"{NO_COMMUNICATION}: that takes a completed run on two ranks"
    timed = several["communication_time"].notna().any()
    return "no timeline of a step was recorded" if timed else NO_COMMUNICATION


def _describe_timeline(results: StudyResults) -> str:
    events = _events(results.records)
    workers = len({event.rank for event in events})
    sent = sum(_on_link(event) for event in events) // workers
    word = "bucket" if any(event.name.startswith("bucket") for event in events) else "call"
    time = format_seconds(max(event.end for event in events))
    text = (
        f"One step of {workers} ranks in {time}, with {count(sent, word)} on the "
        f"link of each rank. {_place_in_cycle(results)}"
    )
    return text.strip()


def _on_link(event: Event) -> bool:
    return event.bytes is not None or event.name.startswith("bucket")  # of older records


def _marks(results: StudyResults) -> str:
    """How to read the bars: those of buckets, or those of calls and messages."""
    sent = [event for event in _events(results.records) if _lane(event) == "link"]
    buckets = [event.ready is not None for event in sent]
    if any(buckets) and not all(buckets):
        return f"{TIMELINE_MARKS} Other bars on the link are calls."
    return TIMELINE_MARKS if any(buckets) else CALL_MARKS


@figure(
    describe=_describe_timeline,
    missing=_no_timeline,
    height=lambda results: 1.3 + 0.75 * len({one.rank for one in _events(results.records)}),
    see=lambda results: f"{_configuration(results)} {_place_in_cycle(results)} {_marks(results)}",
)
def step_timeline(ax: Axes, results: StudyResults) -> None:
    """The median step of the record on the most ranks: compute and the link, rank by rank.

    A bucket has a black line where its gradients were ready, and a bar while it is on the link.
    """
    _draw_timeline(ax, _events(results.records))


def _draw_timeline(ax: Axes, events: Sequence[Event]) -> None:
    last = max(event.end for event in events)
    unit = unit_for([last])
    heights: dict[tuple[int, str], float] = {}
    for nth, (rank, lane) in enumerate(sorted({(one.rank, _lane(one)) for one in events})):
        before = len({other for other, _ in heights} - {rank})  # ranks above
        heights[rank, lane] = nth * (LANE + 0.06) + before * 0.25
    for event in sorted(events, key=lambda event: event.start):
        lane = _lane(event)
        y = heights[event.rank, lane]
        start, width = event.start * unit.factor, (event.end - event.start) * unit.factor
        color, ink = LINK if lane == "link" else COLORS.get(event.name, COLORS["other"])
        ax.barh(y, width, left=start, height=LANE, color=color, edgecolor="white", linewidth=0.8)
        if event.ready is not None:
            ready = event.ready * unit.factor
            ax.plot([ready, ready], [y - LANE / 2, y + LANE / 2], color="black", linewidth=1)
        name = "" if event.name == OPERATORS else event.name.removeprefix("bucket ")
        _write_inside(ax, start + width / 2, y, name, ink, 8)
    names = [f"rank {rank} {lane}" for rank, lane in heights]
    ax.set_yticks(list(heights.values()), names)
    ax.set_xlabel(f"time since the start of the step ({unit.name})")
    ax.set_xlim(0, last * unit.factor * 1.02)
    ax.set_ylim(max(heights.values()) + LANE, -LANE)
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False)
    measure(ax)
    _hide_wide(ax)


def _lane(event: Event) -> str:
    """Where an event is drawn; the names of lanes are in their order."""
    return OPERATORS if event.name == OPERATORS else "link" if _on_link(event) else "compute"


def _trace(records: Sequence[Record]) -> Trace | None:
    """The trace on the most ranks; of several the first."""
    traced = [record for record in records if record.trace]
    widest = max(traced, key=lambda record: record.run.world_size, default=None)
    return widest.trace if widest else None


no_trace = empty_unless(lambda results: _trace(results.records), NO_TRACE)


def _traced_events(results: StudyResults) -> list[Event]:
    trace = _trace(results.records)
    return [*trace.timeline, *trace.operators] if trace else []


def _trace_height(results: StudyResults) -> float:
    events = _traced_events(results)
    lanes = {(event.rank, _lane(event)) for event in events}
    return 1.1 + 0.38 * len(lanes) + 0.2 * len({event.rank for event in events})


def _describe_trace(results: StudyResults) -> str:
    trace = _trace(results.records)
    assert trace is not None
    time = format_seconds(max(memory.end for memory in trace.memory))
    shares = (f"on rank {n} for {percent(trace.idle(n))} of it" for n in range(len(trace.memory)))
    return f"A traced step of {time}. No operator runs {', '.join(shares)}."


@figure(
    describe=_describe_trace,
    missing=no_trace,
    height=_trace_height,
    see=lambda _: "Where no operator runs, the rank waits.",
)
def trace_timeline(ax: Axes, results: StudyResults) -> None:
    """A traced step on the most ranks: what the lab marked, and when torch ran operators.

    Operators that communicate are not drawn. The profiler makes the step slower than others.
    """
    _draw_timeline(ax, _traced_events(results))
