"""The look of all figures: sizes, colours, dashes and panels that tell curves apart, ticks."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, NamedTuple, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex, to_rgb
from matplotlib.font_manager import fontManager
from matplotlib.ticker import (
    FixedFormatter,
    FixedLocator,
    LogLocator,
    MaxNLocator,
    NullLocator,
    StrMethodFormatter,
)

from lab.records.table import grouped

Item = TypeVar("Item")
Numbers = np.ndarray[Any, np.dtype[np.float64]]
Interval = tuple[float, float | None, float | None]  # a value with its ends, None or NaN without
SIZE = (6.4, 3.6)  # inches
# Okabe and Ito (2008), safe for colour-blind readers; without black, which marks the ideal, and
# yellow, which is faint on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v")
DASHES = ("-", "--", ":", "-.")
IDEAL = "#595959"
MOST_PANELS = 4  # rows of them in a figure
MOST_IN_PANEL = 8  # curves whose colours and dashes stand for settings
MOST_ENTRIES = 12  # of a legend
LINE = 40  # characters of a name in a line beside a point
LEGEND = 34  # characters of a name in a line above panels
WIDE = 8  # if the longest is this many times the shortest, times have a logarithmic axis
MOST_TICKS = 9  # of a logarithmic axis
ROUND = (1, 2, 5, 10)  # steps between ticks, times a power of ten
# For letters that the first, which comes with Matplotlib, lacks: those that are installed.
FONTS = (
    *("DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC"),
    *("WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback"),
    *("PingFang SC", "Hiragino Sans GB", "Microsoft YaHei", "Arial Unicode MS"),
)
# Some of them have no bold letters, of which Matplotlib warns even where none is needed.
logging.getLogger("matplotlib.font_manager").addFilter(
    lambda record: "Failed to find font weight" not in record.getMessage()
)
STYLE: dict[str, Any] = {
    "figure.figsize": SIZE,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "font.size": 10,
    "axes.labelsize": 10,
    "axes.titlesize": 10,
    "axes.titlecolor": IDEAL,
    "axes.titlelocation": "left",
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


@contextmanager
def style() -> Iterator[None]:
    """The look of all figures as a context.

    Save within it, with metadata={"Date": None}, for the same SVG each time. A letter that no
    installed font has becomes a box, without a warning in the page.
    """
    look = STYLE | {"font.family": installed_fonts()}
    with mpl.rc_context(look), warnings.catch_warnings():  # type: ignore[arg-type]
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")
        yield
        # A notebook's backend, loaded by its first figure, turns this on: else no other is shown.
        interactive = mpl.is_interactive()
    mpl.interactive(interactive)


@cache
def installed_fonts() -> list[str]:
    """Those of `FONTS` that this machine has."""
    names = {font.name for font in fontManager.ttflist}
    return [name for name in FONTS if name in names]


def styled(curves: Iterable[Item]) -> Iterator[tuple[Item, str, str]]:
    """Each curve with its colour and its marker."""
    for nth, curve in enumerate(curves):
        yield curve, COLORS[nth % len(COLORS)], MARKERS[nth % len(MARKERS)]


def log2_x(ax: Axes, values: Sequence[int], names: Sequence[str]) -> None:
    """A logarithmic x axis with ticks only at these values; a name may be empty."""
    ax.set_xscale("log", base=2)
    fixed_ticks(ax.xaxis, values, names)


def fixed_ticks(axis: Axis, values: Sequence[float], names: Sequence[str]) -> None:
    """Ticks only at these values; `set_ticks` would also widen the axis to hold them all."""
    axis.set_major_locator(FixedLocator(values))
    axis.set_major_formatter(FixedFormatter(names))
    axis.set_minor_locator(NullLocator())


def round_ticks(ax: Axes) -> None:
    """Ticks of linear axes at multiples of 1, 2 or 5 times a power of ten, as many as fit."""
    ax.xaxis.set_major_locator(round_locator())
    ax.yaxis.set_major_locator(round_locator(least=3))


def round_locator(
    bins: int | Literal["auto"] = "auto", *, least: int = 2, integer: bool = False
) -> MaxNLocator:
    """Ticks at multiples of 1, 2 or 5 times a power of ten, for `least` in more bins than these."""
    return MaxNLocator(bins, steps=ROUND, integer=integer, min_n_ticks=least)


def panels(ax: Axes, count: int, *, columns: int = 2) -> list[Axes]:
    """Axes for small multiples, row by row, in place of one, which remains to hold a title.

    Raises ValueError for axes that were not placed by a grid.
    """
    spec, sheet = ax.get_subplotspec(), ax.get_figure()
    if spec is None or sheet is None:
        raise ValueError("small multiples need axes that plt.subplots or add_subplot made")
    grid = spec.subgridspec(-(-count // columns), columns, wspace=0.08, hspace=0.06)
    made = [sheet.add_subplot(grid[divmod(nth, columns)]) for nth in range(count)]
    title = ax.get_title(loc="left")
    ax.set_title("", loc="left")
    ax.set_axis_off()
    made[0].set_title(title)
    for panel in made:
        round_ticks(panel)
    return made


def legend_height(names: Iterable[str]) -> float:
    """Height in inches of the names of these curves above panels."""
    lines = [wrapped(name, width=LEGEND).count("\n") + 1 for name in names]
    return 0.25 + 0.17 * sum(lines) / 2


def legend_above(ax: Axes, handles: Sequence[Any]) -> None:
    """Name these lines above all panels; nothing if there is only one."""
    names = [str(handle.get_label()) for handle in handles]
    sheet = ax.get_figure()
    if sheet is not None and len(names) > 1:
        lines = [wrapped(name, width=LEGEND) for name in names]
        longest = max(map(len, lines))
        columns = next((n for n, most in ((4, 11), (3, 17)) if longest <= most), 2)
        look: dict[str, Any] = {"frameon": False, "fontsize": 9, "ncols": columns}
        sheet.legend(handles, lines, loc="outside upper left", **look)


def whiskers(estimates: Sequence[Interval], factor: float = 1.0) -> tuple[Numbers, Numbers]:
    """Values, and how far their intervals reach to either side, for `errorbar`; NaN without one."""
    value, low, high = factor * np.array(estimates, dtype=float).T
    return value, np.vstack([value - low, high - value]).clip(min=0)


def ink(color: str) -> str:
    """A curve's colour for text: darker, for contrast on white."""
    red, green, blue = (0.65 * part for part in to_rgb(color))
    return to_hex((red, green, blue))


def wrapped(label: str, width: int = LINE, *, most: int = 3) -> str:
    """A name in a limited number of lines of about `width` characters, broken only after commas."""
    lines = [""]
    for part in label.replace(", ", ",\0").split("\0"):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += f" {part}" if lines[-1] else part
    return "\n".join(lines[:most]) + " …" * (len(lines) > most)


def plain_log(
    axis: Axis, *, ends: tuple[float, float] | None = None, most: int = MOST_TICKS
) -> None:
    """Ticks at 1, 2 and 5 of each power of ten, as plain numbers; between `ends`, if given.

    If more than `most` lie between the ends, only those at 1 are kept. Within a power of ten there
    are more, if no ends are given, as 1, 2 and 5 may leave one alone; within a factor of two they
    are those of a linear axis.
    """
    low, high = axis.get_view_interval()
    parts = (1, 2, 5) if high >= 10 * low else (1, 1.5, 2, 3, 4, 5, 7)
    if ends:
        axis.set_major_locator(FixedLocator(_ticks(*ends, most)))
    elif high < 2 * low:
        axis.set_major_locator(round_locator(5, least=3))
    else:
        axis.set_major_locator(LogLocator(subs=parts))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_locator(NullLocator())


def _ticks(low: float, high: float, most: int) -> list[float]:
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for parts in ((1, 2, 5), (1,)):
        ticks = [part * 10.0**exponent for exponent in exponents for part in parts]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= most:
            break
    return ticks


class CurveStyle(NamedTuple):
    """Where and how a curve is drawn."""

    panel: str
    color: str
    dashes: str


class Arrangement(NamedTuple):
    """The look of each curve by its label, and the entries of the legend: name, colour, dashes."""

    looks: dict[str, CurveStyle]
    legend: list[tuple[str, str, str]]

    @property
    def panels(self) -> dict[str, dict[str, CurveStyle]]:
        """The looks of the curves in each panel; without panels, of all under an empty name."""
        panels = grouped((look.panel, (label, look)) for label, look in self.looks.items())
        return {panel: dict(looks) for panel, looks in panels.items()}


class _Words(NamedTuple):
    """What of a label a panel stands for, what a colour, and what dashes."""

    panel: str
    color: str
    dashes: str = ""


# Panel, colour and dashes from the words in which labels differ, the simplest first.
_NONE = slice(0)
_WAYS = (
    (_NONE, slice(1), slice(1, None)),
    (_NONE, slice(1, None), slice(1)),
    (slice(1), slice(1, 2), slice(2, None)),
    (slice(1), slice(2, None), slice(1, 2)),
    (slice(1, 2), slice(1), slice(2, None)),
    (slice(1), slice(1, None), _NONE),
    (_NONE, slice(None), _NONE),
)


def arranged(labels: Sequence[str]) -> Arrangement | None:
    """Looks that tell these curves apart at a glance; None if there are too many for that.

    A few curves have a colour each. Of more, colours stand for one setting and dashes for another,
    such as `batch 8` and `compiled`, and if need be panels for a third, such as `gpt2-small`.
    """
    if len(labels) <= len(COLORS):
        return in_turn(labels)
    words = {label: label.split(", ") for label in labels}
    shared = [word for word in words[labels[0]] if all(word in own for own in words.values())]
    apart = {label: [word for word in own if word not in shared] for label, own in words.items()}
    for way in _WAYS:
        parts = {
            label: _Words(*(", ".join(own[part]) for part in way)) for label, own in apart.items()
        }
        if _readable(list(parts.values())):
            return _by_words(parts, common=", ".join(shared))
    return None


def in_turn(labels: Sequence[str]) -> Arrangement:
    """A colour for each curve in one panel, with other dashes in each round of the colours."""
    return _by_words({label: _Words("", label) for label in labels})


def _readable(parts: Sequence[_Words]) -> bool:
    panels, colors, dashes = zip(*parts, strict=True)
    names, several = len(set(colors)), len(set(dashes)) > 1
    return (
        len(set(panels)) <= MOST_PANELS
        and names <= (len(COLORS) if several else MOST_ENTRIES)
        and len(set(dashes)) <= len(DASHES)
        and max(map(panels.count, panels)) <= (MOST_IN_PANEL if several else MOST_ENTRIES)
    )


def _by_words(parts: Mapping[str, _Words], *, common: str = "") -> Arrangement:
    """Looks by the words of each label; `common` ones name a colour that has none of its own."""
    names = dict.fromkeys(words.color for words in parts.values())
    lines = {
        name: (COLORS[nth % len(COLORS)], DASHES[nth // len(COLORS) % len(DASHES)])
        for nth, name in enumerate(names)
    }
    # A setting at its default has no words, and solid lines.
    kinds = sorted(dict.fromkeys(words.dashes for words in parts.values()), key=bool)
    dashes = dict(zip(kinds, DASHES, strict=False)) if len(kinds) > 1 else {}
    looks = {}
    for label, words in parts.items():
        color, line = lines[words.color]
        looks[label] = CurveStyle(words.panel, color, dashes.get(words.dashes, line))
    legend = [(name or common, *line) for name, line in lines.items()]
    return Arrangement(looks, legend + [(kind, IDEAL, dashes[kind]) for kind in dashes if kind])
