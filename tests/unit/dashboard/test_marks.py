"""What the bench draws upon its figures lies where the run does, and where it was expected."""

from __future__ import annotations

import factories
import pytest
from matplotlib.figure import Figure

import lab
from lab.dashboard import marks
from lab.dashboard.marks import Key
from lab.figures import StudyResults
from lab.perfmodel.frozen import Score
from lab.records.store import Record
from lab.records.table import table


def on_two_clusters(records: list[Record]) -> StudyResults:
    """Each record twice: on `local`, and on `slow` as it is, which is what the tests mean."""
    faster = [factories.record(record.run, step_time=0.01) for record in records]
    runs = StudyResults([*faster, *records])
    clusters = ["local"] * len(faster) + ["slow"] * len(records)
    runs.table = table(runs.records).assign(machine=clusters)
    return runs


def expectation(record: Record, *, step_s: float) -> dict[Key, Score]:
    """A prediction of the record's run, with an interval of a tenth to both sides."""
    frozen = factories.frozen(record.run, step_s)
    return {
        ("slow", record.run_id): Score(
            frozen=frozen, measured_s=0.2, repeats=1, error=step_s / 0.2 - 1
        )
    }


def test_frame_and_ring_mark_the_run_that_is_meant() -> None:
    times = {1: 0.3, 2: 0.2, 4: 0.15}
    records = [
        factories.record(factories.run(size), step_time=seconds) for size, seconds in times.items()
    ]
    meant = records[1]
    for name, mark in {"step_breakdown": marks.frame, "throughput": marks.ring}.items():
        runs = on_two_clusters(records)
        ax = getattr(lab.figures, name)(runs, ax=Figure(layout="constrained").subplots())
        mark(ax, runs.curves, ("slow", meant.run_id))
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
        runs = on_two_clusters(records)
        ax = getattr(lab.figures, name)(runs, ax=Figure(layout="constrained").subplots())
        marks.draw(ax, runs.curves, figure=name, meant=None, expected=expected)
        (diamond,) = (line for line in ax.lines if line.get_marker() == "D")
        assert diamond.get_xdata()[0] == pytest.approx(x)
        assert y is None or diamond.get_ydata()[0] == pytest.approx(y)
        assert ax.get_xlim()[1] > x
    assert (
        "x2, batch 64, fp32 on slow a step of 250" in marks.in_words(expected)
        and marks.in_words({}) == ""
    )
