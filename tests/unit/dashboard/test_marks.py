"""What the bench draws upon its figures lies where the run does, and where it was expected."""

from __future__ import annotations

import factories
import pytest
from matplotlib.figure import Figure

import lab
from lab.dashboard import panels
from lab.figures import StudyResults
from lab.perfmodel.frozen import Score
from lab.records.store import Record


def expectation(record: Record, *, step_s: float) -> dict[str, Score]:
    """A prediction of the record's run, with an interval of a tenth to both sides."""
    frozen = factories.frozen(record.run, step_s)
    return {record.run_id: Score(frozen=frozen, measured_s=0.2, repeats=1, error=step_s / 0.2 - 1)}


def test_frame_and_ring_mark_the_run_that_is_meant() -> None:
    times = {1: 0.3, 2: 0.2, 4: 0.15}
    records = [
        factories.record(factories.run(size), step_time=seconds) for size, seconds in times.items()
    ]
    meant = records[1]
    for name, mark in {"step_breakdown": panels.frame, "throughput": panels.ring}.items():
        ax = getattr(lab.figures, name)(records, ax=Figure(layout="constrained").subplots())
        mark(ax, StudyResults(records).curves, meant.run_id)
        if name == "step_breakdown":
            assert (
                ax.patches[-1].get_width() == pytest.approx(200.0) and not ax.patches[-1].get_fill()
            )
        else:
            assert [*ax.lines[-1].get_xdata(), *ax.lines[-1].get_ydata()] == pytest.approx(
                [2, 320.0]
            )


def test_predictions_lie_where_they_were_expected() -> None:
    records = [
        factories.record(factories.run(size), step_time=seconds)
        for size, seconds in {1: 0.3, 2: 0.2}.items()
    ]
    expected = expectation(records[1], step_s=0.25)
    places = {"throughput": (2, 64 / 0.25), "step_breakdown": (250.0, None)}
    for name, (x, y) in places.items():
        ax = getattr(lab.figures, name)(records, ax=Figure(layout="constrained").subplots())
        panels.draw(ax, StudyResults(records).curves, figure=name, run_id="", expected=expected)
        (diamond,) = (line for line in ax.lines if line.get_marker() == "D")
        assert diamond.get_xdata()[0] == pytest.approx(x)
        assert y is None or diamond.get_ydata()[0] == pytest.approx(y)
        assert ax.get_xlim()[1] > x
    assert "a step of 250 ms" in panels.in_words(expected) and panels.in_words({}) == ""
