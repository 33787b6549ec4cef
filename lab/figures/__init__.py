"""One function per figure: (records, *, ax=None) -> Axes; draws what the analysis computes, never shows, never saves.

`records` is a list of Record, a Study, or a study's name or folder. Baseline and scaling are those of the study; for a
list of records they are keywords, one rank and strong scaling where not given.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Unpack

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from lab.analysis.scaling_curves import baseline_name, device_of, ranks
from lab.analysis.stages import stages
from lab.config.study import Study
from lab.figures import breakdown, curves, data, inference
from lab.figures import curves as band
from lab.figures.data import Against, PlotData, Source, plot_data
from lab.figures.descriptions import alt_text
from lab.figures.labels import Label, place
from lab.figures.style import IDEAL, SIZE, WIDE, ink, line_looks, plain_log, style
from lab.formatting import format_seconds, percent, rounded, unit_for
from lab.records.store import OneStudy, load_records

__all__ = [
    "FIGURES",
    "alt_text",
    "efficiency",
    "latency_throughput",
    "loss_by_step",
    "loss_by_time",
    "overlap_band",
    "size_perplexity",
    "speedup",
    "stage_ratios",
    "step_breakdown",
    "step_time",
    "step_timeline",
    "style",
    "throughput",
]
NOTHING = "no completed run yet"
NO_COMMUNICATION = "no communication was measured: it takes a completed run on two ranks"
NO_LEARNING = "nothing was learned: the ranks' compute was emulated"
NO_INFERENCE = "no completed run of inference yet"
NO_PHASES = "no phases of a step are known"
NO_BASELINE = "no completed run of the baseline yet"


def step_time(records: Source, *, ax: Axes | None = None, **against: Unpack[Against]) -> Axes:
    """Step time by world size, in the unit that suits: median over repeats with 95 % intervals."""
    seen = plot_data(records, **against)
    unit = unit_for(seen.summary["step_time"])
    return _by_world_size(
        seen,
        "step_time",
        ax,
        ylabel=f"step time ({unit.name})",
        factor=unit.per_second,
        text=format_seconds,
    )


def throughput(records: Source, *, ax: Axes | None = None, **against: Unpack[Against]) -> Axes:
    """Samples per second of all ranks by world size: median over repeats with 95 % intervals."""
    return _by_world_size(
        plot_data(records, **against),
        "samples_per_second",
        ax,
        ylabel="throughput (samples/s)",
        text=_with("/s"),
    )


def speedup(records: Source, *, ax: Axes | None = None, **against: Unpack[Against]) -> Axes:
    """Speedup over the baseline by world size with 95 % intervals, the ideal, and what was predicted beforehand.

    For weak scaling it is the ratio of throughputs.
    """
    seen = plot_data(records, **against)
    return _by_world_size(
        seen, "speedup", ax, ylabel=f"speedup over {baseline_name(seen.summary)}", text=_with("×")
    )


def efficiency(records: Source, *, ax: Axes | None = None, **against: Unpack[Against]) -> Axes:
    """Efficiency in per cent by world size with 95 % intervals, and the ideal."""
    return _by_world_size(
        plot_data(records, **against),
        "efficiency",
        ax,
        ylabel="efficiency (%)",
        factor=100.0,
        text=percent,
    )


def step_breakdown(records: Source, *, ax: Axes | None = None, **against: Unpack[Against]) -> Axes:
    """Where the time of a step goes: a bar per configuration, a part per phase, medians over repeats.

    Phases that took no time anywhere are left out. Exposed communication is a part of its own, and taken from the
    backward phase, where it was measured; it is not drawn where it was not.
    """
    seen = plot_data(records, **against)
    with style():
        ax = _axes(ax, seen, height=breakdown.phases_height(seen.lines))
        if seen.summary.empty:
            return _say(ax, NOTHING)
        if not seen.summary["forward_time"].notna().any():
            return _say(ax, NO_PHASES)
        breakdown.draw_phases(ax, seen.lines)
        return ax


def loss_by_step(records: Source, *, ax: Axes | None = None, **against: Unpack[Against]) -> Axes:
    """Training loss by optimizer step, median over repeats; world sizes of one line are drawn within each other."""
    return _losses(plot_data(records, **against), ax, by_time=False)


def loss_by_time(records: Source, *, ax: Axes | None = None, **against: Unpack[Against]) -> Axes:
    """Training loss by training time: steps times the median step time, without start-up, warm-up cost and evaluation."""
    return _losses(plot_data(records, **against), ax, by_time=True)


def overlap_band(records: Source, *, ax: Axes | None = None, **against: Unpack[Against]) -> Axes:
    """Measured efficiency against R = T_compute / T_communication, in the band between no overlap and perfect overlap."""
    seen = plot_data(records, **against)
    with style():
        ax = _axes(ax, seen)
        return (
            ax
            if band.draw_overlap_band(ax, seen.lines)
            else _say(ax, NOTHING if seen.summary.empty else NO_COMMUNICATION)
        )


def step_timeline(records: Source, *, ax: Axes | None = None, **against: Unpack[Against]) -> Axes:
    """The median step of the record on the most ranks: compute and the buckets on the link, rank by rank."""
    seen = plot_data(records, **against)
    events = breakdown.events(seen.records)
    with style():
        ax = _axes(ax, seen, height=breakdown.timeline_height(events))
        if not events:
            return _say(ax, NOTHING if seen.summary.empty else NO_COMMUNICATION)
        breakdown.draw_timeline(ax, events)
        return ax


def latency_throughput(records: OneStudy, *, ax: Axes | None = None) -> Axes:
    """Time between tokens against tokens/s of base and quantized models, over batch sizes, at the longest prompt."""
    with style():
        ax = _axes(ax)
        return (
            ax
            if inference.latency_throughput(ax, load_records(records))
            else _say(ax, NO_INFERENCE)
        )


def size_perplexity(records: OneStudy, *, ax: Axes | None = None) -> Axes:
    """Perplexity against size in memory of base and quantized models, with the line of those that none beats in both."""
    with style():
        ax = _axes(ax)
        return (
            ax if inference.size_perplexity(ax, load_records(records)) else _say(ax, NO_INFERENCE)
        )


def stage_ratios(study: Study, *, ax: Axes | None = None) -> Axes:
    """Speedup over serial of each stage of a study, training and inference, beside the published ladder."""
    with style():
        ax = _axes(ax)
        found = stages(study, load_records(study))
        if not found:
            return _say(ax, NOTHING)
        inference.stage_ratios(ax, found)
        return ax


FIGURES = {
    figure.__name__: figure
    for figure in (
        step_time,
        speedup,
        efficiency,
        throughput,
        step_breakdown,
        loss_by_step,
        loss_by_time,
        overlap_band,
        step_timeline,
    )
}


def _axes(ax: Axes | None, seen: PlotData | None = None, *, height: float = 0.0) -> Axes:
    """The given axes, or those of a new figure of the usual size, higher where `height` in inches asks for it.

    They say what was emulated in all that is drawn on them.
    """
    if ax is None:
        ax = plt.subplots(figsize=(SIZE[0], max(SIZE[1], height)), layout="constrained")[1]
    if seen is not None and seen.emulated:
        ax.set_title(seen.emulated, loc="left")
    return ax


def _say(ax: Axes, sentence: str) -> Axes:
    ax.set_axis_off()
    ax.text(0.5, 0.5, sentence, ha="center", va="center", transform=ax.transAxes, color=IDEAL)
    return ax


def _with(unit: str) -> Callable[..., str]:
    return lambda *value: rounded(*value) + unit


def _without_interval(text: str) -> str:
    return re.sub(r" \[.*\]", "", text)


def _by_world_size(
    seen: PlotData,
    name: str,
    ax: Axes | None,
    *,
    ylabel: str,
    factor: float = 1.0,
    text: Callable[..., str],
) -> Axes:
    with style():
        ax = _axes(ax, seen)
        if not seen.summary[name].notna().any():
            return _say(ax, NOTHING if seen.summary.empty else NO_BASELINE)
        labels = _ideal(ax, seen, name, factor) if name in {"speedup", "efficiency"} else []
        for (label, points), (color, marker) in zip(
            seen.lines, line_looks(len(seen.lines)), strict=True
        ):
            points = points[points[name].notna()]
            if len(points):
                value, low, high = (points[name + end] * factor for end in ("", "_low", "_high"))
                errors = np.vstack([value - low, high - value]).clip(min=0)
                ax.errorbar(
                    points["world_size"],
                    value,
                    yerr=errors,
                    color=color,
                    marker=marker,
                    label=label,
                )
                end = text(*(points[name + end].iloc[-1] for end in ("", "_low", "_high")))
                labels.append(
                    Label(
                        points["world_size"].iloc[-1],
                        value.iloc[-1],
                        f"{label}: {_without_interval(end)}",
                        ink(color),
                    )
                )
                if name == "speedup":
                    labels += data.draw_predictions(ax, seen, points, color=ink(color))
        _world_size_axis(ax, seen)
        ax.set(ylabel=ylabel)
        _value_axis(ax, name)
        if seen.notice:
            ax.set_title(seen.notice, color=IDEAL, fontsize="medium", loc="left")
        place(ax, labels)
        return ax


def _ideal(ax: Axes, seen: PlotData, name: str, factor: float) -> list[Label]:
    """The line of perfect scaling, where all speedups are over one world size."""
    own = seen.summary["run_id"] == seen.summary["baseline_run_id"]
    bases = set(seen.summary["world_size"][own])
    sizes = np.array(sorted(set(seen.summary["world_size"][seen.summary[name].notna()])))
    if len(bases) != 1 or len(sizes) < 2:
        return []
    values = sizes / bases.pop() if name == "speedup" else np.full(len(sizes), factor)
    ax.plot(
        sizes, values, color=IDEAL, linestyle=(0, (4, 3)), linewidth=1.2, label="ideal", zorder=1
    )
    return [Label(sizes[-1], values[-1], "ideal", IDEAL)]


def _world_size_axis(ax: Axes, seen: PlotData) -> None:
    """Logarithmic, with a tick at each measured world size and nowhere else."""
    sizes = sorted({int(size) for size in seen.summary["world_size"]})
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(sizes))
    ax.xaxis.set_major_formatter(FixedFormatter([str(size) for size in sizes]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set(xlabel=ranks(device_of(seen.summary)), xlim=(sizes[0] / 1.15, sizes[-1] * 1.15))
    ax.spines["bottom"].set_bounds(*ax.get_xlim())


def _value_axis(ax: Axes, name: str) -> None:
    """From zero; logarithmic for speedups, where the ideal is then straight, and for step times that differ much."""
    low, high = ax.dataLim.y0, ax.dataLim.y1
    if name == "speedup":
        ax.set_yscale("log", base=2)
        low, high = ax.get_ylim()
        between = (1.0, 1.5) if high <= 8 * low else (1.0,)
        ticks = [
            tick
            for power in range(-10, 21)
            for part in between
            if low <= (tick := part * 2.0**power) <= high
        ]
        ax.yaxis.set_major_locator(FixedLocator(ticks))
        ax.yaxis.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in ticks]))
        ax.yaxis.set_minor_locator(NullLocator())
    elif name == "step_time" and 0 < low < high / WIDE:
        ax.set_yscale("log")
        plain_log(ax.yaxis)
    else:
        ax.set_ylim(0, ax.get_ylim()[1] * 1.04)


def _losses(seen: PlotData, ax: Axes | None, *, by_time: bool) -> Axes:
    with style():
        ax = _axes(ax, seen)
        if not seen.losses:
            return _say(ax, NOTHING if seen.summary.empty else NO_LEARNING)
        curves.draw_losses(ax, seen, by_time=by_time)
        return ax
