"""Figures: a function that draws results, its texts, its height, and why it may be missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from lab.analysis.results import Source, StudyResults
from lab.analysis.scaling_curves import Scaling
from lab.errors import InputError, nearest, require_type
from lab.figures.style import IDEAL, SIZE, round_ticks, style

Sentence = Callable[[StudyResults], str]
NO_RUNS = "no run has completed yet"
NO_COMMUNICATION = "no communication was measured"


@dataclass(eq=False, repr=False)
class Figure:
    """A figure of a study: calling it draws it and returns its Axes; it is never shown or saved.

    It takes a Study, its name or folder, a list of records, a comparison, or StudyResults. `height`
    is the height it needs to be readable, in inches; `missing` says why it is empty, or "" if it is
    not. Its caption is the first paragraph of its function's docstring, plus what to look at.
    """

    draw: Callable[[Axes, StudyResults], None]
    describe: Sentence
    missing: Sentence
    height: Callable[[StudyResults], float]
    see: Sentence

    def __post_init__(self) -> None:
        self.name, self.__doc__ = self.draw.__name__, self.draw.__doc__

    def __call__(
        self,
        records: Source,
        *,
        ax: Axes | None = None,
        baseline: Mapping[str, Any] | None = None,
        scaling: Scaling | None = None,
    ) -> Axes:
        """Draw into the given axes, or into a new figure of the usual width.

        Speedups use the study's baseline and scaling, unless `baseline` and `scaling` name others.
        """
        require_type(ax, Axes | None, "ax", "matplotlib Axes, such as plt.subplots()[1]")
        results = StudyResults.of(records, baseline=baseline, scaling=scaling)
        with style():
            if ax is None:
                size = SIZE[0], max(SIZE[1], self.height(results))
                ax = plt.subplots(figsize=size, layout="constrained")[1]
            ax.spines[["top", "right"]].set_visible(False)  # those of given axes, in another style
            if results.emulated:
                ax.set_title(results.emulated, wrap=True)
            if reason := self.missing(results):
                return write_instead(ax, reason)
            if results.notice:
                ax.set_title(results.notice)
            round_ticks(ax)
            self.draw(ax, results)
        return ax

    def caption(self, results: StudyResults) -> str:
        """What is drawn, and what to look at; empty if nothing is drawn."""
        if self.missing(results):
            return ""
        drawn = (self.__doc__ or "").partition("\n\n")[0]
        return " ".join(f"{drawn} {self.see(results)}".split())

    def alt_text(self, results: StudyResults) -> str:
        """What it shows, in a sentence or two with numbers, for readers who cannot see it."""
        reason = self.missing(results)
        sentences = [
            f"{results.notice}." if results.notice else "",
            f"An empty figure: {reason}." if reason else self.describe(results),
            f"Everything in it comes from an {results.emulated}." if results.emulated else "",
        ]
        return " ".join(filter(None, sentences))


FIGURES: dict[str, Figure] = {}


def figure(
    *,
    describe: Sentence,
    missing: Sentence,
    height: Callable[[StudyResults], float] = lambda _: SIZE[1],
    see: Sentence = lambda _: "",
) -> Callable[[Callable[[Axes, StudyResults], None]], Figure]:
    """Register a drawing function as a figure under its name.

    `describe` makes its alternative text, `missing` says why there is nothing to draw (empty if
    there is something), `height` is its height in inches, and `see` is a sentence for the caption
    on what to look at.
    """

    def register(draw: Callable[[Axes, StudyResults], None]) -> Figure:
        FIGURES[draw.__name__] = made = Figure(draw, describe, missing, height, see)
        return made

    return register


def figure_named(name: str) -> Figure:
    """One of FIGURES; raises InputError, with the nearest name, for an unknown name."""
    if name not in FIGURES:
        raise InputError.of("figure", name, "unknown figure", nearest(name, FIGURES))
    return FIGURES[name]


def alt_text(
    name: str,
    records: Source,
    *,
    baseline: Mapping[str, Any] | None = None,
    scaling: Scaling | None = None,
) -> str:
    """What the figure of this name shows of these records, in a sentence or two with numbers.

    Raises InputError, with the nearest name, if there is no such figure.
    """
    results = StudyResults.of(records, baseline=baseline, scaling=scaling)
    return figure_named(name).alt_text(results)


def listing(what: str, parts: Callable[[StudyResults], Iterable[str]]) -> Sentence:
    """A sentence on what is drawn, with its parts: `Perplexity against size: fp32, 496 MB; ...`."""
    return lambda results: f"{what}: {'; '.join(parts(results))}."


def no_runs(results: StudyResults) -> str:
    """Why a figure of completed training runs is empty; empty if there are some."""
    return NO_RUNS if results.summary.empty else ""


def empty_unless(known: Callable[[StudyResults], object], reason: str) -> Sentence:
    """Why a figure is empty: no training run has completed, or nothing is `known`, for a reason."""
    return lambda results: no_runs(results) or ("" if known(results) else reason)


def has(column: str) -> Callable[[StudyResults], bool]:
    """Whether any configuration has a value in this column of the summary."""
    return lambda results: bool(results.summary[column].notna().any())


def write_instead(ax: Axes, sentence: str) -> Axes:
    """Write in the middle of the axes why nothing is drawn."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, sentence, ha="center", va="center", transform=ax.transAxes, color=IDEAL)
    return ax
