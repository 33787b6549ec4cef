"""The look of all figures: sizes, colours, markers, and how times are ticked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import matplotlib as mpl
from matplotlib.axis import Axis
from matplotlib.colors import to_hex, to_rgb
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator, StrMethodFormatter

Item = TypeVar("Item")
SIZE = (6.4, 3.6)  # inches
# Okabe and Ito (2008), safe for colour-blind readers; without black, which is the ideal's, and
# yellow, which is faint on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v")
IDEAL = "#595959"
WIDE = 8  # from this ratio of the longest to the shortest on, times have a logarithmic axis
MOST_TICKS = 9  # of a logarithmic axis
STYLE: dict[str, Any] = {
    "figure.figsize": SIZE,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "errorbar.capsize": 3,
    "svg.hashsalt": "scaling-lab",
    "svg.fonttype": "path",
}


def style() -> AbstractContextManager[None]:
    """The look of all figures as a context.

    Save within it, with metadata={"Date": None}, for the same SVG each time.
    """
    return mpl.rc_context(STYLE)  # type: ignore[arg-type]


def styled(curves: Iterable[Item]) -> Iterator[tuple[Item, str, str]]:
    """Each curve with its colour and its marker."""
    for nth, curve in enumerate(curves):
        yield curve, COLORS[nth % len(COLORS)], MARKERS[nth % len(MARKERS)]


def ink(color: str) -> str:
    """A curve's colour for text: darker, for contrast on white."""
    red, green, blue = (0.65 * part for part in to_rgb(color))
    return to_hex((red, green, blue))


def wrapped(label: str, width: int = 40) -> str:
    """A name in lines of about `width` characters, broken after commas alone."""
    lines = [""]
    for part in label.replace(", ", ",\0").split("\0"):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += f" {part}" if lines[-1] else part
    return "\n".join(lines)


def plain_log(axis: Axis, *, ends: tuple[float, float] | None = None) -> None:
    """Ticks at 1, 2 and 5 of each power of ten, as plain numbers; between `ends`, where given.

    Where more than MOST_TICKS lie between the ends, they are at 1 alone.
    """
    axis.set_major_locator(FixedLocator(_ticks(*ends)) if ends else LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_locator(NullLocator())


def _ticks(low: float, high: float) -> list[float]:
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for parts in ((1, 2, 5), (1,)):
        ticks = [part * 10.0**exponent for exponent in exponents for part in parts]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= MOST_TICKS:
            break
    return ticks
