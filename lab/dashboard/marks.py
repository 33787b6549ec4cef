"""What the bench draws upon its figures: the run that is meant, and what was predicted of the runs beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lab.ahead.scoring import Score

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from lab.analysis.lines import Curve

FIGURES = ("throughput", "step_breakdown")
INK = "black"


def draw(ax: Axes, lines: list[Curve], *, figure: str, run_id: str, expected: Mapping[str, Score]) -> None:
    """Mark the run with this id, and add the predictions by run id, on one of FIGURES; an empty id marks none."""
    if figure == "throughput":
        rates(ax, lines, expected)
        ring(ax, lines, run_id)
    else:
        steps(ax, lines, expected)
        frame(ax, lines, run_id)


def in_words(expected: Mapping[str, Score]) -> str:
    """The predictions, for those who do not see the marks."""
    from lab.analysis.rounding import format_seconds

    told = [f"{score.frozen.run.label} a step of {format_seconds(score.frozen.step_s)}" for score in expected.values()]
    return f"Predicted beforehand: {'; '.join(told)}." if told else ""


def ring(ax: Axes, lines: list[Curve], run_id: str) -> None:
    """A circle around the run's point."""
    for _, points in lines:
        for row in points[points["run_id"] == run_id].to_dict("records"):
            ax.plot(row["world_size"], row["samples_per_second"], "o", markersize=11, fillstyle="none", color=INK)


def rates(ax: Axes, lines: list[Curve], expected: Mapping[str, Score]) -> None:
    """A hollow diamond with its interval for each run that was predicted."""
    drawn = {run_id for _, points in lines for run_id in points["run_id"]}
    for run_id in drawn & set(expected):
        frozen = expected[run_id].frozen
        middle, low, high = (frozen.run.global_batch_size / seconds for seconds in (frozen.step_s, frozen.high_s, _low(frozen)))
        reach = [[middle - low], [high - middle]]
        ax.errorbar(
            frozen.run.world_size, middle, yerr=reach, fmt="D", fillstyle="none", color=INK, capsize=3, label="_predicted"
        )


def _low(frozen: Any) -> float:
    # An interval that reaches down to nothing would make the rate infinite.
    return max(float(frozen.low_s), 0.2 * float(frozen.step_s))


def frame(ax: Axes, lines: list[Curve], run_id: str) -> None:
    """A frame around the run's bar."""
    from lab.drawing.phase_bars import BAR

    places = bars(ax, lines)
    if run_id in places:
        y = places[run_id]
        parts: list[Any] = [patch for patch in ax.patches if _lies_on(patch, y)]
        width = max(patch.get_x() + patch.get_width() for patch in parts)
        ax.barh(y, width, height=BAR, fill=False, edgecolor=INK, linewidth=2)


def steps(ax: Axes, lines: list[Curve], expected: Mapping[str, Score]) -> None:
    """The same below the bar of each run that was predicted, where its step was expected to end."""
    from lab.analysis.rounding import unit_for
    from lab.drawing.phase_bars import BAR

    unit = unit_for([float(step) for _, points in lines for step in points["step_time"]])
    for run_id, y in bars(ax, lines).items():
        if run_id in expected:
            frozen = expected[run_id].frozen
            middle, low, high = (seconds * unit.per_second for seconds in (frozen.step_s, frozen.low_s, frozen.high_s))
            reach = [[middle - low], [high - middle]]
            ax.errorbar(middle, y + BAR / 2, xerr=reach, fmt="D", fillstyle="none", color=INK, capsize=3, label="_predicted")
            ax.set_xlim(right=max(ax.get_xlim()[1], 1.04 * high))


def bars(ax: Axes, lines: list[Curve]) -> dict[str, float]:
    """Where the bar of each run lies, in the order of the figure: the line with the longest first bar on top."""
    ordered = sorted(lines, key=lambda line: -float(line.points["step_time"].iloc[0]))
    ids = [run_id for _, points in ordered for run_id in points["run_id"]]
    return dict(zip(ids, map(float, ax.get_yticks()), strict=True))


def _lies_on(patch: Any, y: float) -> bool:
    return bool(patch.get_y() <= y <= patch.get_y() + patch.get_height())
