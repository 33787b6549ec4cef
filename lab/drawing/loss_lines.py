"""Lines of training loss, by optimizer step or by time."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator

from lab.drawing.direct_labels import Label, place
from lab.drawing.look import WIDE, ink, line_looks, plain_log
from lab.drawing.seen import Seen

FEW = 3  # of more lines one end is named, beside the axes


def draw(ax: Axes, seen: Seen, *, by_time: bool) -> None:
    """Draw the losses of each configuration over its steps, or over its steps times its step time in s."""
    labels: list[Label] = []
    few = len(seen.lines) <= FEW
    for (label, points), (color, _) in zip(seen.lines, line_looks(len(seen.lines)), strict=True):
        known = points[points["run_id"].isin(seen.losses.keys())]
        ends = []
        for nth, row in enumerate(known.to_dict("records")):
            loss = seen.losses[row["run_id"]]
            x = np.arange(1, len(loss) + 1) * (row["step_time"] if by_time else 1)
            inner = (nth + 1) / len(known)
            look: dict[str, Any] = {} if by_time else {"linewidth": 6 - 4.5 * inner, "alpha": 0.3 + 0.7 * inner}
            ax.plot(x, loss, color=color, label=f"{label}, ×{row['world_size']}", **look)
            ends.append(Label(x[-1], loss[-1], f"{label}, ×{row['world_size']}", ink(color)))
        if not few:
            labels += [end._replace(text=label) for end in (ends[:1] if by_time else ends[-1:])]
        else:
            labels += _shortened(ends) if by_time else _merged(ends, label)
    _loss_axis(ax, by_time=by_time)
    place(ax, labels, side="below" if by_time and few else "right")


def _loss_axis(ax: Axes, *, by_time: bool) -> None:
    """Optimizer steps, or seconds; logarithmic where the runs took unlike times; ticks only where there are losses."""
    ends = [float(np.asarray(line.get_xdata())[-1]) for line in ax.get_lines()]
    last = max(ends)
    ax.set(xlabel="training time (s)" if by_time else "optimizer step", ylabel="training loss")
    if by_time and last > WIDE * min(ends):
        ax.set_xscale("log")
        plain_log(ax.xaxis, ends=(min(float(np.asarray(line.get_xdata())[0]) for line in ax.get_lines()), last))
        return
    ticks = [tick for tick in MaxNLocator(nbins=8, integer=not by_time).tick_values(0, last) if 0 <= tick <= last]
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.set_xlim(0, last)
    ax.spines["bottom"].set_bounds(0, last)


def _shortened(ends: list[Label]) -> list[Label]:
    """The whole name at the line that ends last, the world size alone at the others; of many, only the first and last."""
    ends = sorted(ends, key=lambda end: end.x)
    ends = ends if len(ends) <= 3 else [ends[0], ends[-1]]
    return [*(end._replace(text=end.text.rsplit(", ", 1)[1]) for end in ends[:-1]), *ends[-1:]]


def _merged(ends: list[Label], label: str) -> list[Label]:
    """One label for the world sizes of a line where their losses end within 1 % of each other."""
    values = [end.y for end in ends]
    if len(ends) < 2 or max(values) - min(values) > 0.01 * abs(max(values)):
        return ends
    names = [end.text.rsplit(", ", 1)[1] for end in ends]
    sizes = ", ".join(names) if len(names) <= 3 else f"{names[0]} to {names[-1]}"
    return [Label(max(end.x for end in ends), float(np.median(values)), f"{label}\n{sizes}", ends[0].color)]
