"""Step time, throughput, speedup and efficiency by world size, with intervals and the ideal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lab.analysis.reported import ReportedTable
from lab.analysis.results import StudyResults
from lab.analysis.scaling import beyond_baseline
from lab.analysis.scaling_curves import (
    baseline_name,
    common_ranks,
    compares,
    device_of,
    memory_name,
    ranks,
    ranks_vary,
    rate_name,
    rows_of,
    time_name,
)
from lab.figures.figure import Sentence, empty_unless, figure, has, no_runs
from lab.figures.labels import Label, place, place_in_panels, room_beside, write_beside
from lab.figures.style import (
    COLORS,
    IDEAL,
    SIZE,
    WIDE,
    fixed_ticks,
    ink,
    legend_above,
    legend_height,
    log2_x,
    panels,
    plain_log,
    styled,
    whiskers,
    wrapped,
)
from lab.formatting import (
    MILLION,
    Unit,
    bytes_unit,
    capitalized,
    drawn_value,
    format_bytes,
    format_seconds,
    percent,
    rounded,
    unit_for,
    value_of,
)

__all__ = ["efficiency", "mfu", "overview", "peak_memory", "speedup", "step_time", "throughput"]

NO_BASELINE = "no run of the baseline has completed yet"
PREDICTED = "predicted beforehand"
REPEATS = "Medians over repeats with intervals."
ONE_REPEAT = "One repeat each, which gives no interval."
BAR = 0.62  # relative to the distance between bars
NARROW, WHOLE = 34, 40  # characters of a name in a line, beside panels and in a figure
BESIDE, BELOW = 22, 42  # characters of a line: beside a panel, below all panels of a row
FEW_TICKS = 4  # of world sizes in panels


class Quantity(NamedTuple):
    """How a column of a summary is described and drawn."""

    column: str
    name: Callable[[pd.DataFrame], str]
    text: Callable[..., str]  # of a value and the ends of its interval
    unit: Callable[[pd.DataFrame], Unit] = lambda _: Unit("", 1.0)
    sign: str = ""  # behind a drawn value

    def drawn(self, *value: Any) -> str:
        """A value beside its drawn interval."""
        return drawn_value(self.text, *value) + self.sign

    def axis(self, summary: pd.DataFrame) -> tuple[str, float]:
        """Its name with its unit, and the factor for values."""
        name, unit = self.name(summary), self.unit(summary)
        return f"{name} ({unit.name})" if unit.name else name, unit.factor


def _millions(*value: float) -> str:
    """A rate and the ends of its interval in millions: `4.56M`."""
    return f"{rounded(*(one / MILLION for one in value))}M"


PERCENT = Unit("%", 100.0)
SPEEDUP = Quantity("speedup", lambda of: f"speedup over {baseline_name(of)}", rounded, sign="×")
EFFICIENCY = Quantity("efficiency", lambda _: "efficiency", percent, lambda _: PERCENT)
MFU = Quantity("mfu", lambda _: "MFU", percent, lambda _: PERCENT)


def _time(results: StudyResults) -> Quantity:
    """Times, in one unit for all."""
    unit = unit_for(results.summary.get("step_time", ()))
    return Quantity("step_time", time_name, partial(format_seconds, unit=unit), lambda _: unit)


def _memory(results: StudyResults) -> Quantity:
    """Memory, in one unit for all."""
    unit = bytes_unit(results.summary["peak_memory"])
    return Quantity(
        "peak_memory", memory_name, lambda value, *_: format_bytes(value, unit=unit), lambda _: unit
    )


def _throughput(results: StudyResults) -> Quantity:
    """Rates, all in millions if the highest is a million or more."""
    large = results.summary["samples_per_second"].max() >= MILLION
    text = _millions if large else rounded
    _, sign, period = rate_name(results.summary).partition("/")
    return Quantity(
        "samples_per_second", lambda of: f"throughput ({rate_name(of)})", text, sign=sign + period
    )


def _points_alone(results: StudyResults) -> bool:
    """Whether no curve has two world sizes, so that configurations are categories, not curves."""
    return not results.summary.empty and all(len(points) < 2 for _, points in results.curves)


def _bars(results: StudyResults) -> bool:
    """Whether the overview has bars: for categories, or for more curves than colours."""
    return _points_alone(results) or len(results.curves) > len(COLORS)


def _height(results: StudyResults) -> float:
    """Room for a row per configuration, if these are categories."""
    return _rows_height(_names(results)) if _points_alone(results) else SIZE[1]


def _rows_height(names: Sequence[str]) -> float:
    """Inches for a bar per configuration, whose names may have several lines."""
    return 1.0 + (0.12 + 0.15 * max(name.count("\n") + 1 for name in names)) * len(names)


def _lacks(column: str, table: str, study: str = "") -> Sentence:
    """The reason why a column without values has no figure: in a table, and in a study."""

    def missing(results: StudyResults) -> str:
        reason = f"the table {table}" if "per" in results.summary or not study else study
        return empty_unless(has(column), reason)(results)

    return missing


_no_baseline = _lacks("speedup", "permits no speedup", NO_BASELINE)
_no_times = _lacks("step_time", "gives no times")
_no_rates = _lacks("samples_per_second", "gives no rates")
_no_memory = _lacks("peak_memory", "gives no memory", "memory is unknown")
_no_mfu = _lacks("mfu", "gives no MFU", "MFU is unknown")


@figure(describe=lambda it: _ends(it, _time(it)), missing=_no_times, height=_height)
def step_time(ax: Axes, results: StudyResults) -> None:
    """Step time by world size, in the unit that suits: median over repeats with intervals.

    For a table it is the time that the table gives, be it of an epoch or of the whole run.
    """
    _draw(ax, results, _time(results))


@figure(describe=lambda it: _ends(it, _throughput(it)), missing=_no_rates, height=_height)
def throughput(ax: Axes, results: StudyResults) -> None:
    """Samples per second of all ranks by world size: median over repeats with intervals."""
    _draw(ax, results, _throughput(results))


def _describe_speedup(results: StudyResults) -> str:
    predicted = [
        f"{label}, {rounded(forecast[-1][1])} on {forecast[-1][0]}"
        for label, points in results.drawn
        if (forecast := _predicted(results, points))
    ]
    return _ends(results, SPEEDUP) + (
        f" Predicted beforehand: {'; '.join(predicted)}." if predicted else ""
    )


@figure(describe=_describe_speedup, missing=_no_baseline, height=_height)
def speedup(ax: Axes, results: StudyResults) -> None:
    """Speedup over the baseline by world size with intervals, the ideal, and any predictions.

    For weak scaling it is the ratio of throughputs. Predictions were made before the runs.
    """
    _draw(ax, results, SPEEDUP)


@figure(describe=lambda results: _ends(results, EFFICIENCY), missing=_no_baseline, height=_height)
def efficiency(ax: Axes, results: StudyResults) -> None:
    """Efficiency in per cent by world size with intervals, and the ideal."""
    _draw(ax, results, EFFICIENCY)


@figure(describe=lambda it: _ends(it, _memory(it)), missing=_no_memory, height=_height)
def peak_memory(ax: Axes, results: StudyResults) -> None:
    """Peak memory of the rank that uses most, by world size: median over repeats."""
    _draw(ax, results, _memory(results))


@figure(describe=lambda results: _ends(results, MFU), missing=_no_mfu, height=_height)
def mfu(ax: Axes, results: StudyResults) -> None:
    """Model FLOPs utilization in per cent of the peak by world size: median over repeats."""
    _draw(ax, results, MFU)


def quantities(results: StudyResults) -> list[Quantity]:
    """What the overview shows: four quantities as curves, a table's all, or three as bars."""
    curves = [SPEEDUP, EFFICIENCY, _time(results), _throughput(results)]
    if isinstance(results.source, ReportedTable):
        curves += [_memory(results), MFU]
    faster = [SPEEDUP] * (not beyond_baseline(results.summary).empty)
    bars = [_time(results), *faster, _memory(results)]
    wanted = bars if _bars(results) else curves
    return [quantity for quantity in wanted if has(quantity.column)(results)]


def _overview_height(results: StudyResults) -> float:
    if _bars(results):
        return _rows_height(_names_in_overview(results))
    rows = -(-len(quantities(results)) // 2)
    return 2.2 * rows + legend_height([label for label, _ in results.drawn])


def _describe_overview(results: StudyResults) -> str:
    drawn = compares(results.summary) and not _no_baseline(results)
    sentences = [_describe_speedup(results)] if drawn else []
    sentences += [
        _ends(results, quantity)
        for quantity in quantities(results)
        if quantity.column in {"step_time", "peak_memory", "mfu"}
    ]
    return " ".join(sentences)


def _best(results: StudyResults) -> str:
    """The configuration whose median is farthest from its baseline's, if it is quiet."""
    candidates = [
        (row, label) for label, points in results.curves for row in rows_of(beyond_baseline(points))
    ]
    if not candidates:
        return ""
    row, label = max(candidates, key=lambda one: float(one[0]["speedup"]))
    if row["run_id"] not in set(results.noise.quiet(results.summary)["run_id"]):
        return ""
    place = f" on {row.ranks}" * (not common_ranks(results.summary))
    share = f" (efficiency {value_of(row.text('efficiency'))})" * ranks_vary(results.summary)
    return f"The highest speedup is {row.text('speedup')}, that of {label}{place}{share}."


def _see(results: StudyResults) -> str:
    """What is drawn, on which ranks that all bars share, and what to look at."""
    lows, shared = results.summary.get("step_time_low"), common_ranks(_most_ranks(results))
    measured = lows is not None and lows.notna().any()
    sentences = [
        REPEATS if measured else ONE_REPEAT,
        f"All are on {shared}." if shared and _bars(results) else "",
        _best(results),
        results.left_out,
    ]
    return " ".join(filter(None, sentences))


@figure(describe=_describe_overview, missing=no_runs, height=_overview_height, see=_see)
def overview(ax: Axes, results: StudyResults) -> None:
    """Results by configuration.

    By world size speedup, efficiency, step time and throughput, with the ideal and predictions. Of
    configurations that have one world size each, and of many, bars of step time, speedup and
    memory, on the most ranks that each has.
    """
    shown = quantities(results)
    if _bars(results):
        drawn = panels(ax, len(shown), columns=len(shown))
        for nth, (panel, quantity) in enumerate(zip(drawn, shown, strict=True)):
            names = [] if nth else _names_in_overview(results)
            _draw_bars(panel, results, quantity, names, width=BELOW // len(drawn))
        room_beside(*drawn)
        return
    drawn = panels(ax, len(shown))
    labels = {
        panel: _draw_curves(panel, results, quantity, named=False)
        for panel, quantity in zip(drawn, shown, strict=True)
    }
    for panel in drawn[:-2]:
        panel.set_xlabel("")  # the panel below has it
    legend_above(ax, drawn[0].get_legend_handles_labels()[0])
    place_in_panels(labels)  # once the layout is final


def _ends(results: StudyResults, quantity: Quantity) -> str:
    """The first and the last point of each curve, in words."""
    parts = []
    for label, points in results.drawn:
        rows = rows_of(points[points[quantity.column].notna()])
        ends = [
            f"{quantity.text(*row.estimate(quantity.column))} on {row.ranks}"
            for row in rows[:1] + rows[1:][-1:]
        ]
        if ends:
            parts.append(f"{label}, {' and '.join(ends)}")
    by = "configuration" if _points_alone(results) else "world size"
    return f"{capitalized(quantity.name(results.summary))} by {by}: {'; '.join(parts)}."


def _draw(ax: Axes, results: StudyResults, quantity: Quantity) -> None:
    """A line per curve with its name and last value, or a bar per category."""
    if _points_alone(results):
        _draw_bars(ax, results, quantity, _names(results))
        room_beside(ax)
    else:
        place(ax, _draw_curves(ax, results, quantity))


def _draw_curves(
    ax: Axes, results: StudyResults, quantity: Quantity, *, named: bool = True
) -> list[Label]:
    """Draw a line per curve and return end labels: last values and, if `named`, all names."""
    column, (name, factor) = quantity.column, quantity.axis(results.summary)
    ax.set_ylabel(name if named else textwrap.fill(name, BESIDE))
    labels = _ideal(ax, results, column, factor) if column in {"speedup", "efficiency"} else []
    for (label, points), color, marker in styled(results.drawn):
        points = points[points[column].notna()]
        if points.empty:
            continue
        rows = rows_of(points)
        sizes = [row["world_size"] for row in rows]
        values, errors = whiskers([row.estimate(column) for row in rows], factor)
        ax.errorbar(sizes, values, yerr=errors, color=color, marker=marker, label=label)
        last = quantity.drawn(*rows[-1].estimate(column))
        shown = f"{label}: {last}" if named else last
        labels.append(Label(sizes[-1], values[-1], shown, ink(color)))
        if column == "speedup":
            labels += _draw_predicted(ax, _predicted(results, points), color=ink(color))
    _world_size_axis(ax, results, most=3 * FEW_TICKS if named else FEW_TICKS)
    _value_axis(ax, column)
    return labels if named else [label for label in labels if label.text[0].isdigit()]


def _most_ranks(results: StudyResults) -> pd.DataFrame:
    """The rows that have a bar: each configuration on its most ranks."""
    return pd.concat([points.tail(1) for _, points in results.drawn])


def _names(results: StudyResults, *, width: int = WHOLE, shared: str = "") -> list[str]:
    """The name of each bar in lines of this width, with its ranks unless they are the `shared`."""
    rows = zip(results.drawn, rows_of(_most_ranks(results)), strict=True)
    names = [label if row.ranks == shared else f"{label}, {row.ranks}" for (label, _), row in rows]
    return [wrapped(name, width=width, most=4) for name in names]


def _names_in_overview(results: StudyResults) -> list[str]:
    """The name of each bar beside several panels; the caption tells the ranks that all share."""
    return _names(results, width=NARROW, shared=common_ranks(_most_ranks(results)))


def _draw_bars(
    ax: Axes, results: StudyResults, quantity: Quantity, names: Sequence[str], *, width: int = WHOLE
) -> None:
    """A bar from zero per configuration with its value and interval, and a name if there are any.

    `width` is that of the axis in characters.
    """
    axis, factor = quantity.axis(results.summary)
    estimates = [row.estimate(quantity.column) for row in rows_of(_most_ranks(results))]
    ends = factor * np.nan_to_num(np.array(estimates, dtype=float)).max(axis=1)
    for y, (estimate, end) in enumerate(zip(estimates, ends, strict=True)):
        if pd.isna(estimate.value):
            continue
        (value,), errors = whiskers([estimate], factor)
        ax.barh(y, value, height=BAR, color=COLORS[0], alpha=0.85)
        if np.nan_to_num(errors).any():
            ax.errorbar(value, y, xerr=errors, color="black", linestyle="none", linewidth=1)
        write_beside(ax, quantity.drawn(*estimate), (end, y), fontsize=8.5)
    fixed_ticks(ax.yaxis, range(len(estimates)), names or [""] * len(estimates))
    ax.set(xlabel=textwrap.fill(axis, width), xlim=(0, max(ends)))
    ax.xaxis.set_major_formatter("{x:.10g}")
    ax.set_ylim(len(estimates) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0, labelsize=9)
    ax.grid(visible=True, axis="x")
    ax.grid(visible=False, axis="y")


def _ideal(ax: Axes, results: StudyResults, column: str, factor: float) -> list[Label]:
    """Draw perfect scaling, if all speedups are relative to one world size."""
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
        for row in rows_of(points)
        if (frozen := results.predicted.get(row["run_id"])) and pd.notna(row["speedup"])
    ]


def _draw_predicted(ax: Axes, points: list[tuple[int, float]], *, color: str) -> list[Label]:
    """Hollow diamonds, and the label that says what they are."""
    if not points:
        return []
    look: dict[str, Any] = {"markersize": 9, "fillstyle": "none", "markeredgewidth": 1.4}
    names = {line.get_label() for line in ax.get_lines()}
    name = f"{'_' * (PREDICTED in names)}{PREDICTED}"
    ax.plot(*zip(*points, strict=True), "D", color=color, label=name, zorder=4, **look)
    return [Label(*points[-1], PREDICTED, color)]


def _world_size_axis(ax: Axes, results: StudyResults, *, most: int) -> None:
    """Logarithmic, with ticks only at measured world sizes, a limited number of them labelled."""
    sizes = sorted({int(size) for size in results.summary["world_size"]})
    every = -(-len(sizes) // most)
    names = [str(size) if not nth % every else "" for nth, size in enumerate(sizes)]
    log2_x(ax, sizes, names)
    ax.set(xlabel=ranks(device_of(results.summary)), xlim=(sizes[0] / 1.15, sizes[-1] * 1.15))
    ax.spines["bottom"].set_bounds(*ax.get_xlim())


def _value_axis(ax: Axes, column: str) -> None:
    """From zero; logarithmic for speedups, so that the ideal is straight, and for unequal times."""
    low, high = ax.dataLim.y0, ax.dataLim.y1
    if column == "speedup":
        ax.set_yscale("log", base=2)
        low, high = ax.get_ylim()
        between = (1.0, 1.5) if high <= 8 * low else (1.0,)
        powers = [part * 2.0**power for power in range(-10, 21) for part in between]
        ticks = [tick for tick in powers if low <= tick <= high]
        fixed_ticks(ax.yaxis, ticks, [f"{tick:g}" for tick in ticks])
    elif column == "step_time" and 0 < low < high / WIDE:
        ax.set_yscale("log")
        plain_log(ax.yaxis)
    else:
        ax.set_ylim(0, ax.get_ylim()[1] * 1.04)
        if column == "samples_per_second" and high >= MILLION:
            ax.yaxis.set_major_formatter(lambda rate, _: f"{rate / MILLION:g}M" if rate else "0")
