"""Step time, throughput, speedup and efficiency by world size, with intervals and the ideal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from lab.analysis.scaling_curves import baseline_name, device_of, ranks
from lab.figures.data import StudyResults
from lab.figures.figure import figure, no_runs
from lab.figures.labels import Label, place
from lab.figures.style import COLORS, IDEAL, SIZE, WIDE, ink, plain_log, styled, wrapped
from lab.formatting import format_seconds, percent, rounded, unit_for, value_of

__all__ = ["efficiency", "speedup", "step_time", "throughput"]

NO_BASELINE = "no run of the baseline has completed yet"


def _points_alone(results: StudyResults) -> bool:
    """Whether no curve has two world sizes: then configurations are categories, not curves."""
    return not results.summary.empty and all(len(points) < 2 for _, points in results.curves)


def _height(results: StudyResults) -> float:
    """Room for a row per configuration, where these are categories."""
    return 0.9 + 0.36 * len(results.curves) if _points_alone(results) else SIZE[1]


def _no_baseline(results: StudyResults) -> str:
    known = results.summary["speedup"].notna().any()
    return no_runs(results) or ("" if known else NO_BASELINE)


@figure(
    describe=lambda results: _ends(results, "step_time", "Step time", format_seconds),
    missing=no_runs,
    height=_height,
)
def step_time(ax: Axes, results: StudyResults) -> None:
    """Step time by world size, in the unit that suits: median over repeats with 95 % intervals."""
    unit = unit_for(results.summary["step_time"])
    ax.set_ylabel(f"step time ({unit.name})")
    _draw(ax, results, "step_time", text=format_seconds, factor=unit.per_second)


@figure(
    describe=lambda results: _ends(
        results, "samples_per_second", "Throughput in samples per second", rounded
    ),
    missing=no_runs,
    height=_height,
)
def throughput(ax: Axes, results: StudyResults) -> None:
    """Samples per second of all ranks by world size: median over repeats with 95 % intervals."""
    ax.set_ylabel("throughput (samples/s)")
    _draw(ax, results, "samples_per_second", text=lambda *value: f"{rounded(*value)}/s")


def _describe_speedup(results: StudyResults) -> str:
    measured = f"Speedup over {baseline_name(results.summary)}"
    predicted = [
        f"{label}, {rounded(known[-1][1])} on {known[-1][0]}"
        for label, points in results.curves
        if (known := _predicted(results, points))
    ]
    return _ends(results, "speedup", measured, rounded) + (
        f" Predicted beforehand: {'; '.join(predicted)}." if predicted else ""
    )


@figure(describe=_describe_speedup, missing=_no_baseline, height=_height)
def speedup(ax: Axes, results: StudyResults) -> None:
    """Speedup over the baseline by world size with 95 % intervals, the ideal, and predictions.

    For weak scaling it is the ratio of throughputs. Predictions were made before the runs.
    """
    ax.set_ylabel(f"speedup over {baseline_name(results.summary)}")
    _draw(ax, results, "speedup", text=lambda *value: f"{rounded(*value)}×")


@figure(
    describe=lambda results: _ends(results, "efficiency", "Efficiency", percent),
    missing=_no_baseline,
    height=_height,
)
def efficiency(ax: Axes, results: StudyResults) -> None:
    """Efficiency in per cent by world size with 95 % intervals, and the ideal."""
    ax.set_ylabel("efficiency (%)")
    _draw(ax, results, "efficiency", text=percent, factor=100.0)


def _ends(results: StudyResults, column: str, what: str, text: Callable[..., str]) -> str:
    """The first and the last point of each curve, in words."""
    parts = []
    for label, points in results.curves:
        known = points[points[column].notna()].to_dict("records")
        ends = [
            f"{text(*_interval(row, column))} on {ranks(row['device'], row['world_size'])}"
            for row in known[:1] + known[1:][-1:]
        ]
        if ends:
            parts.append(f"{label}, {' and '.join(ends)}")
    by = "configuration" if _points_alone(results) else "world size"
    return f"{what} by {by}: {'; '.join(parts)}."


def _interval(rows: Any, column: str) -> tuple[Any, Any, Any]:
    """Value and ends of the interval, of one row or of many."""
    return rows[column], rows[f"{column}_low"], rows[f"{column}_high"]


def _draw(
    ax: Axes, results: StudyResults, column: str, *, text: Callable[..., str], factor: float = 1.0
) -> None:
    """A line per curve of values times `factor`, the last of which is written at its end."""
    if _points_alone(results):
        _draw_categories(ax, results, column, text=text, factor=factor)
        return
    labels = _ideal(ax, results, column, factor) if column in {"speedup", "efficiency"} else []
    for (label, points), color, marker in styled(results.curves):
        points = points[points[column].notna()]
        if points.empty:
            continue
        value, low, high = (factor * numbers for numbers in _interval(points, column))
        errors = np.vstack([value - low, high - value]).clip(min=0)
        sizes = points["world_size"]
        ax.errorbar(sizes, value, yerr=errors, color=color, marker=marker, label=label)
        # Without the interval, which is drawn.
        last = value_of(text(*_interval(points.iloc[-1], column)))
        labels.append(Label(sizes.iloc[-1], value.iloc[-1], f"{label}: {last}", ink(color)))
        if column == "speedup":
            labels += _draw_predicted(ax, _predicted(results, points), color=ink(color))
    _world_size_axis(ax, results)
    _value_axis(ax, column)
    place(ax, labels)


def _draw_categories(
    ax: Axes, results: StudyResults, column: str, *, text: Callable[..., str], factor: float
) -> None:
    """A row per configuration with its value and interval, from zero."""
    rows = [(label, points.iloc[0]) for label, points in results.curves]
    rows = [(label, row) for label, row in rows if pd.notna(row[column])]
    ends = [factor * max(row[column], np.nan_to_num(row[f"{column}_high"])) for _, row in rows]
    for y, ((_, row), end) in enumerate(zip(rows, ends, strict=True)):
        value, low, high = (factor * number for number in _interval(row, column))
        errors = np.nan_to_num([[value - low], [high - value]]).clip(min=0)
        ax.errorbar(value, y, xerr=errors, color=COLORS[0], marker="o", linestyle="none")
        beside: dict[str, Any] = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
        ax.annotate(value_of(text(*_interval(row, column))), (end, y), fontsize=9, **beside)
    names = [wrapped(f"{label}, {ranks(row['device'], row['world_size'])}") for label, row in rows]
    ax.yaxis.set_major_locator(FixedLocator(range(len(rows))))
    ax.yaxis.set_major_formatter(FixedFormatter(names))
    ax.set(xlabel=ax.get_ylabel(), xlim=(0, 1.2 * max(ends)), ylim=(len(rows) - 0.5, -0.5))
    ax.set_ylabel("")
    ax.grid(visible=True, axis="x")
    ax.grid(visible=False, axis="y")


def _ideal(ax: Axes, results: StudyResults, column: str, factor: float) -> list[Label]:
    """Draw perfect scaling, where all speedups are over one world size."""
    summary = results.summary
    bases = set(summary["world_size"][summary["run_id"] == summary["baseline_run_id"]])
    sizes = np.array(sorted(set(summary["world_size"][summary[column].notna()])))
    if len(bases) != 1 or len(sizes) < 2:
        return []
    values = sizes / bases.pop() if column == "speedup" else np.full(len(sizes), factor)
    dashes = (0, (4, 3))
    ax.plot(sizes, values, color=IDEAL, linestyle=dashes, linewidth=1.2, label="ideal", zorder=1)
    return [Label(sizes[-1], values[-1], "ideal", IDEAL)]


def _predicted(results: StudyResults, points: pd.DataFrame) -> list[tuple[int, float]]:
    """World sizes of a curve with their predicted speedups over the measured baseline."""
    return [
        (row["world_size"], row["speedup"] * row["step_time"] / frozen.step_s)
        for row in points.to_dict("records")
        if (frozen := results.predicted.get(row["run_id"])) and pd.notna(row["speedup"])
    ]


def _draw_predicted(ax: Axes, points: list[tuple[int, float]], *, color: str) -> list[Label]:
    """Hollow diamonds, and the label that says what they are."""
    if not points:
        return []
    look: dict[str, Any] = {"markersize": 9, "fillstyle": "none", "markeredgewidth": 1.4}
    ax.plot(*zip(*points, strict=True), "D", color=color, label="_predicted", zorder=4, **look)
    return [Label(*points[-1], "predicted beforehand", color)]


def _world_size_axis(ax: Axes, results: StudyResults) -> None:
    """Logarithmic, with a tick at each measured world size and nowhere else."""
    sizes = sorted({int(size) for size in results.summary["world_size"]})
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(sizes))
    ax.xaxis.set_major_formatter(FixedFormatter([str(size) for size in sizes]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set(xlabel=ranks(device_of(results.summary)), xlim=(sizes[0] / 1.15, sizes[-1] * 1.15))
    ax.spines["bottom"].set_bounds(*ax.get_xlim())


def _value_axis(ax: Axes, column: str) -> None:
    """From zero; logarithmic for speedups, to make the ideal straight, and unlike step times."""
    low, high = ax.dataLim.y0, ax.dataLim.y1
    if column == "speedup":
        ax.set_yscale("log", base=2)
        low, high = ax.get_ylim()
        between = (1.0, 1.5) if high <= 8 * low else (1.0,)
        powers = [part * 2.0**power for power in range(-10, 21) for part in between]
        ticks = [tick for tick in powers if low <= tick <= high]
        ax.yaxis.set_major_locator(FixedLocator(ticks))
        ax.yaxis.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in ticks]))
        ax.yaxis.set_minor_locator(NullLocator())
    elif column == "step_time" and 0 < low < high / WIDE:
        ax.set_yscale("log")
        plain_log(ax.yaxis)
    else:
        ax.set_ylim(0, ax.get_ylim()[1] * 1.04)
