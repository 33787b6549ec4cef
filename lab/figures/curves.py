"""Training loss over steps and time, efficiency over R, times of collectives over bytes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

from lab.analysis.results import Losses, StudyResults
from lab.analysis.scaling_curves import Curve, Row, labelled_rows, rows_of
from lab.config.strategies import STRATEGIES
from lab.figures.figure import NO_COMMUNICATION, empty_unless, figure, listing, write_instead
from lab.figures.labels import Label, place, place_in_panels
from lab.figures.style import (
    COLORS,
    IDEAL,
    LINE,
    MARKERS,
    MOST_ENTRIES,
    WIDE,
    Arrangement,
    CurveStyle,
    arranged,
    fixed_ticks,
    in_turn,
    ink,
    legend_above,
    legend_height,
    panels,
    plain_log,
    round_locator,
    styled,
    whiskers,
)
from lab.formatting import count, format_seconds, message_size, percent, rounded, unit_for
from lab.perfmodel.calibration import Calibration, CollectiveTime
from lab.perfmodel.collectives import (
    COLLECTIVES,
    efficiency_with_overlap,
    efficiency_without_overlap,
)

__all__ = ["loss_by_step", "loss_by_time", "losses", "overlap_band"]

MOST_POINTS = 300  # per line: about the width of a figure in pixels
MOST_NAMES = 12  # of points between the bounds of overlap; of more, those at its ends
FEW = 3  # with more curves only one end is named, beside the axes
LINKS_HEIGHT = 4.5  # inches
TICK = 1 / 4  # of the logarithm of all sizes, at least between two ticks
ROOM = 0.85  # for labels beside the times of collectives, relative to the width of the data
ROW = 1.5  # inches of a row of panels
RATIO = r"$R = T_\mathrm{compute}\,/\,T_\mathrm{communication}$"
NO_LOSSES = "no loss was recorded"
NO_COLLECTIVES = "no collective has been measured here yet"


_no_losses = empty_unless(lambda results: results.losses, NO_LOSSES)


def _describe_losses(results: StudyResults, by: str, curves: Sequence[Curve] | None = None) -> str:
    """The longest run of each curve, by default of all drawn, in words: over time or over steps."""
    parts = []
    for label, points in results.drawn if curves is None else curves:
        runs = points[points["run_id"].isin(results.losses.keys())]
        for row in rows_of(runs)[-1:]:
            loss = results.losses[row["run_id"]]
            time = format_seconds(len(loss) * row["step_time"])
            parts.append(
                f"{label} on {row.ranks}, from {rounded(loss[0])} to {rounded(loss[-1])} in "
                f"{time if by == 'time' else f'{len(loss)} steps'}"
            )
    return f"Training loss by {by}: {'; '.join(parts)}."


def _with_losses(results: StudyResults, curves: Sequence[Curve]) -> list[str]:
    """The labels of those curves whose losses are known."""
    run_ids = results.losses.keys()
    return [label for label, points in curves if run_ids & set(points["run_id"])]


def _told_apart(results: StudyResults) -> tuple[list[Curve], Arrangement]:
    """The curves of the figure of losses, and their looks: fewer, if all would be a tangle."""
    if arrangement := arranged(_with_losses(results, results.drawn)):
        return results.drawn, arrangement
    ends = results.ends(MOST_ENTRIES)
    return ends, in_turn(_with_losses(results, ends))


def _losses_height(results: StudyResults) -> float:
    _, arrangement = _told_apart(results)
    rows = max(len(arrangement.panels), 1)
    return 1.0 + ROW * rows + legend_height(name for name, *_ in arrangement.legend)


@figure(describe=partial(_describe_losses, by="step"), missing=_no_losses)
def loss_by_step(ax: Axes, results: StudyResults) -> None:
    """Training loss by optimizer step, median over repeats.

    World sizes of one curve are drawn within each other.
    """
    place(ax, _draw_losses(ax, results, by_time=False))


@figure(describe=partial(_describe_losses, by="time"), missing=_no_losses)
def loss_by_time(ax: Axes, results: StudyResults) -> None:
    """Training loss by training time: steps times the median step time.

    Start-up, warm-up cost and evaluation are left out.
    """
    labels = _draw_losses(ax, results, by_time=True)
    place(ax, labels, side="below" if len(results.drawn) <= FEW else "right")


@figure(
    describe=lambda results: _describe_losses(results, "step", _told_apart(results)[0]),
    missing=_no_losses,
    height=_losses_height,
    see=lambda results: (
        f"{_expected(results)}{_stretches(results)} {results.left_out_of(_told_apart(results)[0])}"
    ),
)
def losses(ax: Axes, results: StudyResults) -> None:
    """Training loss, median over repeats, by optimizer step (left) and by training time (right)."""
    _, arrangement = _told_apart(results)
    rows = arrangement.panels
    drawn = panels(ax, 2 * len(rows))
    labels = {}
    for nth, (name, looks) in enumerate(rows.items()):
        by_step, by_time = drawn[2 * nth : 2 * nth + 2]
        _draw_losses(by_step, results, looks, by_time=False)
        labels[by_time] = _draw_losses(by_time, results, looks, by_time=True)
        by_time.set_ylabel("")
        by_step.text(1, 1, name, ha="right", va="top", transform=by_step.transAxes)
    for panel in drawn[:-2]:
        panel.set_xlabel("")  # the panel below has it
    entries = []
    for name, color, dashes in arrangement.legend:
        entry: dict[str, Any] = {"label": name, "color": color, "linestyle": dashes}
        entries.append(Line2D([], [], **entry))
    legend_above(ax, entries)
    place_in_panels(labels, side="below")  # once the layout is final


def _draw_losses(
    ax: Axes, results: StudyResults, looks: Mapping[str, CurveStyle] | None = None, *, by_time: bool
) -> list[Label]:
    """Draw curves with these looks, which a legend names, by default all, and return end labels.

    These are names; with a legend they are the ranks of a few curves by time.
    """
    named = looks is None
    if looks is None:
        looks = in_turn(_with_losses(results, results.drawn)).looks
    labels: list[Label] = []
    few = len(results.drawn) <= FEW
    curves = []
    for label, points in results.drawn:
        if label in looks:
            runs = points[points["run_id"].isin(results.losses.keys())]
            # With more curves than colours, only the most ranks: nested lines are unreadable.
            curves.append((label, runs[-1:] if len(results.drawn) > len(COLORS) else runs))
    rows = [row for _, runs in curves for row in rows_of(runs)]
    unit = unit_for(len(results.losses[row["run_id"]]) * row["step_time"] for row in rows)
    for label, runs in curves:
        _, color, dashes = looks[label]
        ends = []
        for nth, row in enumerate(rows_of(runs), 1):
            name = f"{label}, ×{row['world_size']}"
            steps, loss = thinned(results.losses[row["run_id"]])
            x = steps * (row["step_time"] * unit.factor if by_time else 1)
            inner = nth / len(runs)  # if losses are equal, thin lines lie within thick ones
            width, alpha = (None, None) if by_time else (6 - 4.5 * inner, 0.3 + 0.7 * inner)
            look: dict[str, Any] = {"color": color, "linewidth": width, "alpha": alpha}
            ax.plot(x, loss, label=name, linestyle=dashes, **look)
            ends.append(Label(x[-1], loss[-1], name, ink(color)))
        if few:
            labels += _shortened(ends) if by_time else _merged(ends, label)
        else:
            labels += [end._replace(text=label) for end in (ends[:1] if by_time else ends[-1:])]
    _loss_axis(ax, time_unit=unit.name if by_time else None, ticks=5 if named else 4)
    if named:
        return labels
    several = by_time and few and len({row["world_size"] for row in rows}) > 1
    return [end._replace(text=_world_size_of(end)) for end in labels] if several else []


def thinned(values: Losses) -> tuple[Losses, Losses]:
    """Steps from 1 and values; if more than MOST_POINTS, means over equal intervals.

    The first and the last are kept. So a figure does not grow with the steps of its runs.
    """
    steps = np.arange(1.0, len(values) + 1)
    if len(values) <= MOST_POINTS:
        return steps, values
    stretches = [np.array_split(numbers[1:-1], MOST_POINTS - 2) for numbers in (steps, values)]
    means = (np.array([part.mean() for part in parts]) for parts in stretches)
    x, y = (
        np.concatenate([numbers[:1], inner, numbers[-1:]])
        for numbers, inner in zip((steps, values), means, strict=True)
    )
    return x, y


def _expected(results: StudyResults) -> str:
    """What equal batches have in common; nothing where a loss depends on how ranks share them."""
    qualities = (record.quality for record in results.records if record.completed)
    if any(quality and quality.depends_on_split for quality in qualities):
        return ""
    return (
        "Curves of one model at equal batches should nearly coincide by step; by time, the faster "
        "ones are ahead. "
    )


def _stretches(results: StudyResults) -> str:
    """The note on lines that are means."""
    longest = max(map(len, results.losses.values()), default=0)
    return (
        f"The lines are means over {MOST_POINTS} equal stretches." if longest > MOST_POINTS else ""
    )


def _loss_axis(ax: Axes, *, time_unit: str | None, ticks: int) -> None:
    """Logarithmic if the runs' times differ widely; ticks only where there are losses."""
    starts, ends = np.array([np.asarray(line.get_xdata())[[0, -1]] for line in ax.get_lines()]).T
    last = float(max(ends))
    ax.set(xlabel=f"training time ({time_unit})" if time_unit else "optimizer step")
    ax.set(ylabel="training loss")
    if time_unit and last > WIDE * min(ends):
        ax.set_xscale("log")
        plain_log(ax.xaxis, ends=(float(min(starts)), last), most=ticks)
        return
    places = round_locator(ticks, least=3, integer=not time_unit).tick_values(0, last)
    ax.xaxis.set_major_locator(FixedLocator([tick for tick in places if 0 <= tick <= last]))
    ax.set_xlim(0, last)
    ax.spines["bottom"].set_bounds(0, last)


def _world_size_of(end: Label) -> str:
    return end.text.rsplit(", ", 1)[-1]


def _shortened(ends: list[Label]) -> list[Label]:
    """The whole name at the last end; world sizes at the others, or at the first only if many."""
    ends = sorted(ends, key=lambda end: end.x)
    ends = ends if len(ends) <= 3 else [ends[0], ends[-1]]
    return [*(end._replace(text=_world_size_of(end)) for end in ends[:-1]), *ends[-1:]]


def _merged(ends: list[Label], label: str) -> list[Label]:
    """One label for the world sizes of a curve if their losses end within 1 % of each other."""
    values = [end.y for end in ends]
    if len(ends) < 2 or max(values) - min(values) > 0.01 * abs(max(values)):
        return ends
    names = list(map(_world_size_of, ends))
    sizes = ", ".join(names) if len(names) <= 3 else f"{names[0]} to {names[-1]}"
    x, y = max(end.x for end in ends), float(np.median(values))
    return [Label(x, y, f"{label}\n{sizes}", ends[0].color)]


# Strategies that only average gradients, during the backward pass or after it; these bound R's
# band. Others send weights or activations that compute waits for.
OVERLAPPING = {name for name, facts in STRATEGIES.items() if facts.moves == "gradients"}


def _with_communication(results: StudyResults) -> list[list[Row]]:
    """The points of each drawn curve with communication and a baseline on one rank, with their
    `R`."""
    # Of another baseline, efficiency is that of other changes too, or of communication alone.
    rows = (row for row in labelled_rows(results.summary) if row.is_gain_of_ranks)
    over_one = [row["run_id"] for row in rows if row.base and row.base["world_size"] == 1]
    lines = []
    for _, points in results.drawn:
        overlapping = points["strategy"].isin(OVERLAPPING) & points["run_id"].isin(over_one)
        shown = points[overlapping & (points["communication_time"] > 0)]
        lines += [rows_of(shown.assign(R=shown["compute_time"] / shown["communication_time"]))]
    return lines


_no_communication = empty_unless(
    lambda results: any(_with_communication(results)), NO_COMMUNICATION
)


def _overlaps(results: StudyResults) -> Iterator[str]:
    for (label, _), rows in zip(results.drawn, _with_communication(results), strict=True):
        for row in rows:
            share = percent(row["efficiency"])
            yield f"{label} on {row.ranks}, R {rounded(row['R'])} and efficiency {share}"


@figure(
    describe=listing("Efficiency against R between no and perfect overlap", _overlaps),
    missing=_no_communication,
    see=lambda results: (
        "At the lower edge a step waits for all communication; at the upper one communication "
        "hides behind the backward pass. Points below the band lose time to more than "
        f"communication. {results.left_out}"
    ),
)
def overlap_band(ax: Axes, results: StudyResults) -> None:
    """Efficiency against R = T_compute / T_communication, between no and perfect overlap."""
    labels = []
    lines = _with_communication(results)
    curves = list(zip(results.drawn, lines, strict=True))
    # A long name may lose its end, which tells the points of a curve apart.
    short = any(len(f"{it.label}, {row.ranks}") > LINE for it, rows in curves for row in rows)
    for ((label, _), color, marker), rows in zip(styled(results.drawn), lines, strict=True):
        for row in rows:
            (value,), errors = whiskers([row.estimate("efficiency")], 100)
            ax.errorbar([row["R"]], [value], yerr=errors, color=color, marker=marker)
            place_of = f"x{row['world_size']}" if short else row.ranks
            name = f"{label}, {place_of}" if len(results.drawn) > 1 else row.ranks
            labels.append(Label(row["R"], value, name, ink(color)))
    ratios = [label.x for label in labels]
    grid = np.geomspace(min(0.1, min(ratios) / 2), max(30.0, max(ratios) * 3), 200)
    least = 100 * np.array([efficiency_without_overlap(r) for r in grid])
    most = 100 * np.array([efficiency_with_overlap(r) for r in grid])
    ax.fill_between(grid, least, most, color="#56B4E9", alpha=0.25, linewidth=0)
    for text, edge, at, offset, side in (
        ("no overlap", least, 30, (8, -8), "left"),
        ("perfect overlap", most, 80, (-6, 4), "right"),
    ):
        ax.plot(grid, edge, color=IDEAL, linewidth=1)
        nth = int(np.searchsorted(edge, at))
        look: dict[str, Any] = {"textcoords": "offset points", "color": IDEAL, "fontsize": 9}
        ax.annotate(text, (grid[nth], edge[nth]), offset, ha=side, **look)
    ax.set_xscale("log")
    ax.set(xlim=(grid[0], grid[-1]), ylim=(0, max(105.0, ax.get_ylim()[1])))
    ax.set(xlabel=RATIO, ylabel="efficiency (%)")
    plain_log(ax.xaxis, ends=(grid[0], grid[-1]))
    place(ax, labels if len(labels) <= MOST_NAMES else _outermost(labels))


def _outermost(labels: Sequence[Label]) -> list[Label]:
    """The points with the smallest and largest value of either coordinate."""
    orders = sorted(labels, key=lambda at: at.x), sorted(labels, key=lambda at: at.y)
    return list(dict.fromkeys(order[end] for order in orders for end in (0, -1)))


class _Times(NamedTuple):
    """Times of one collective at one world size, by bytes, and their fit."""

    name: str
    world_size: int
    rows: list[CollectiveTime]
    fit: Any
    color: str

    @property
    def error(self) -> str:
        """The largest error of the fit, formatted for display."""
        if self.fit is None:
            return ", no fit"
        return f", fit within {100 * self.fit.largest_relative_error:.2g} %"


def _times(calibration: Calibration) -> Iterator[_Times]:
    sizes = sorted({row.world_size for row in calibration.rows})
    fits = calibration.fits
    for key in itertools.product(COLLECTIVES, sizes):
        rows = [row for row in calibration.rows if (row.collective, row.world_size) == key]
        if rows:
            rows.sort(key=lambda row: row.bytes)
            color = COLORS[COLLECTIVES.index(key[0])]
            yield _Times(key[0].replace("_", "-"), key[1], rows, fits.get(key), color)


def links(ax: Axes, calibration: Calibration) -> None:
    """Time of each collective by bytes, logarithmic, with 95 % intervals, and the fits.

    A colour is a collective, a marker a world size. A label tells the largest relative error of the
    alpha-beta fit, whose line is drawn where it was fitted.
    """
    if not calibration.rows:
        write_instead(ax, NO_COLLECTIVES)
        return
    unit = unit_for(row.seconds for row in calibration.rows)
    sizes = sorted({row.world_size for row in calibration.rows})
    labels = []
    for times in _times(calibration):
        marker = MARKERS[sizes.index(times.world_size) % len(MARKERS)]
        labels.append(_draw_times(ax, times, marker, unit.factor))
    ax.set(xscale="log", yscale="log", xlabel="bytes of the whole tensor")
    ax.set_ylabel(f"time of a call ({unit.name})")
    _bytes_axis(ax, sorted({row.bytes for row in calibration.rows}))
    plain_log(ax.yaxis)
    place(ax, labels)


def links_alt(calibration: Calibration) -> str:
    """What the figure shows, in one sentence."""
    parts = []
    for times in _times(calibration):
        ends = [
            f"{format_seconds(row.seconds, row.low, row.high)} for {message_size(row.bytes)}"
            for row in (times.rows[0], times.rows[-1])
        ]
        ranks = count(times.world_size, "rank")
        parts.append(f"{times.name} on {ranks}, {' and '.join(ends)}{times.error}")
    if not parts:
        return f"An empty figure: {NO_COLLECTIVES}."
    return f"Time of collectives by bytes on logarithmic axes: {'; '.join(parts)}."


def _draw_times(ax: Axes, times: _Times, marker: str, scale: float) -> Label:
    x = [row.bytes for row in times.rows]
    y, errors = whiskers([(row.seconds, row.low, row.high) for row in times.rows], scale)
    text = f"{times.name} ×{times.world_size}"
    look: dict[str, Any] = {"color": times.color, "marker": marker, "elinewidth": 1.0}
    ax.errorbar(x, y, yerr=errors, linestyle="none", label=text, **look)
    if times.fit is not None:
        grid = np.geomspace(times.fit.smallest_bytes, times.fit.largest_bytes, 100)
        fitted = [scale * times.fit.time(size) for size in grid]
        ax.plot(grid, fitted, color=times.color, linewidth=1.4)
    return Label(x[-1], y[-1], text + times.error, ink(times.color))


def _bytes_axis(ax: Axes, sizes: Sequence[int]) -> None:
    """Ticks at measured sizes that are not too close for their names, and room for labels."""
    shown = [sizes[0]]
    for size in sizes[1:]:
        if size / shown[-1] >= (sizes[-1] / sizes[0]) ** TICK:
            shown.append(size)
    fixed_ticks(ax.xaxis, shown, [message_size(size) for size in shown])
    # Room from the start: while labels stick out of the axes, the layout shrinks the axes, and
    # the room added then would be too wide.
    ax.set_xlim(sizes[0] / 1.6, sizes[-1] * max(sizes[-1] / sizes[0], 4) ** ROOM)
    ax.spines["bottom"].set_bounds(sizes[0] / 1.6, sizes[-1])
