"""What the bench adds to its figures: the run that is meant, and predictions made before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lab.analysis.scaling_curves import rows_of
from lab.dashboard.panels import expected_step
from lab.figures.breakdown import BAR
from lab.figures.style import whiskers
from lab.formatting import unit_for
from lab.perfmodel.frozen import Score

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from lab.analysis.scaling_curves import Curve

FIGURES = ("throughput", "step_breakdown")
INK = "black"
Key = tuple[str, str]  # of a result: the name of its cluster, and the run's id


def key_of(row: Mapping[Any, Any]) -> Key:
    """The key of a row of a summary that has a column `machine`."""
    return row["machine"], row["run_id"]


def draw(
    ax: Axes, lines: list[Curve], *, figure: str, meant: Key | None, expected: Mapping[Key, Score]
) -> None:
    """Mark the run that is meant, if any, and add the predictions, on one of FIGURES."""
    if figure == "throughput":
        rates(ax, lines, expected)
        ring(ax, lines, meant)
    else:
        steps(ax, lines, expected)
        frame(ax, lines, meant)


def in_words(expected: Mapping[Key, Score]) -> str:
    """The predictions as text, for readers who cannot see the marks."""
    steps = [
        f"{score.frozen.run.label} on {cluster} a step of {expected_step(score.frozen)}"
        for (cluster, _), score in expected.items()
    ]
    return f"Predicted beforehand: {'; '.join(steps)}." if steps else ""


def _rows(lines: list[Curve]) -> dict[Key, Mapping[Any, Any]]:
    return {key_of(row): row for _, points in lines for row in rows_of(points)}


def ring(ax: Axes, lines: list[Curve], meant: Key | None) -> None:
    """A circle around the run's point."""
    if row := _rows(lines).get(meant) if meant else None:
        place = row["world_size"], row["samples_per_second"]
        ax.plot(*place, "o", markersize=11, fillstyle="none", color=INK)


def rates(ax: Axes, lines: list[Curve], expected: Mapping[Key, Score]) -> None:
    """A hollow diamond with its interval for each run that was predicted."""
    for key in _rows(lines).keys() & expected.keys():
        frozen = expected[key].frozen
        batch = frozen.run.stated.global_batch_size
        interval = batch / frozen.step_s, batch / frozen.high_s, batch / frozen.low_s
        (rate,), errors = whiskers([interval])
        _diamond(ax, frozen.run.world_size, rate, yerr=errors)


def _diamond(ax: Axes, x: float, y: float, **interval: Any) -> None:
    look: dict[str, Any] = {"fmt": "D", "fillstyle": "none", "color": INK, "capsize": 3}
    ax.errorbar(x, y, label="_predicted", **interval, **look)


def frame(ax: Axes, lines: list[Curve], meant: Key | None) -> None:
    """A frame around the run's bar."""
    places = bars(ax, lines)
    if meant in places:
        y, patches = places[meant], list[Any](ax.patches)
        width = max(
            patch.get_x() + patch.get_width()
            for patch in patches
            if patch.get_y() <= y <= patch.get_y() + patch.get_height()
        )
        ax.barh(y, width, height=BAR, fill=False, edgecolor=INK, linewidth=2)


def steps(ax: Axes, lines: list[Curve], expected: Mapping[Key, Score]) -> None:
    """The same below the bar of each predicted run, at the predicted end of its step."""
    unit = unit_for([float(step) for _, points in lines for step in points["step_time"]])
    for key, y in bars(ax, lines).items():
        if key in expected:
            frozen = expected[key].frozen
            interval = (frozen.step_s, frozen.low_s, frozen.high_s)
            (step,), errors = whiskers([interval], unit.factor)
            _diamond(ax, step, y + BAR / 2, xerr=errors)
            ax.set_xlim(right=max(ax.get_xlim()[1], 1.04 * frozen.high_s * unit.factor))


def bars(ax: Axes, lines: list[Curve]) -> dict[Key, float]:
    """The position of each run's bar: the line with the longest first bar is on top."""
    ordered = sorted(lines, key=lambda line: -float(line.points["step_time"].iloc[0]))
    keys = [key_of(row) for _, points in ordered for row in rows_of(points)]
    return dict(zip(keys, map(float, ax.get_yticks()), strict=True))
