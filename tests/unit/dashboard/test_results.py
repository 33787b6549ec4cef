"""The results of the bench: clusters side by side, what changed since the last run, its figures."""

from __future__ import annotations

import math
import re

import factories
import pytest
from benches import choose, content, keep
from matplotlib.figure import Figure

import lab
from lab.config.emulation import Emulated, Link
from lab.dashboard import results
from lab.dashboard.board import Dashboard
from lab.dashboard.results import MARKS, Key
from lab.figures import StudyResults
from lab.perfmodel.frozen import Score
from lab.perfmodel.simulate import Deviation
from lab.records.store import Record
from lab.records.table import table

SLOW = Emulated(link=Link(bandwidth_gbit=1), way="pacing")


def at(minute: int) -> str:
    return f"2025-01-01T00:{minute:02}:00+00:00"


def finished(minute: int, step_time: float, **surroundings: object):  # type: ignore[no-untyped-def]
    """Makes the record of a run that ended at this minute."""

    def made(run, **_):  # type: ignore[no-untyped-def]
        record = factories.record(run, step_time=step_time, **surroundings)
        return record.model_copy(update={"finished_at": at(minute), "started_at": at(0)})

    return made


def figures(dashboard: Dashboard) -> list[str]:
    """The alternative texts of the figures."""
    data = [output["data"] for output in dashboard.results.outputs]
    return [one["text/plain"] for one in data if "<img" in one.get("text/html", "")]


def test_one_configuration_on_two_clusters_is_one_figure(shown: Dashboard) -> None:
    keep(shown, finished(1, 0.1))
    choose(shown, global_batch_size=16)
    keep(shown, finished(2, 0.2))
    choose(shown, cluster="one", global_batch_size=8)
    keep(shown, finished(3, 0.4, emulated=SLOW))
    again = lab.dashboard()
    rates, steps, _ = figures(again)
    for alt in (rates, steps):
        assert "batch 8, two" in alt and "batch 8, one, emulated link 1 Gbit/s" in alt
    assert "batch 16" not in rates, "another configuration on another cluster"
    assert "this configuration on one and two" in content(again)
    choose(again, cluster="two", global_batch_size=8)
    again.run_button.click()
    rates, *_ = figures(again)
    assert "batch 16, two" in rates and "batch 8, one, emulated" in rates


def test_the_command_of_the_report_finds_a_bench_in_any_folder(shown: Dashboard) -> None:
    study = keep(lab.dashboard(folder="elsewhere"))
    command = re.search("`lab report (.*)`", content(lab.dashboard(folder="elsewhere")))
    assert command and lab.Study.load(command[1]).folder == study.folder


def test_what_changed_is_a_sentence_with_the_ratio(shown: Dashboard) -> None:
    keep(shown, finished(1, 0.1))
    assert "Changed" not in content(lab.dashboard()), "there is no run before the first"
    choose(shown, world_size=2, precision="bf16", cluster="two")
    keep(shown, finished(2, 0.05))
    shown = lab.dashboard()
    sentence = re.search(r"Changed since the last run: .*", content(shown).replace("\\", ""))
    assert sentence is not None
    assert "Precision fp32 → bf16, World size 1 → 2. A step takes 0.5" in sentence[0]
    choose(shown, world_size=1, precision="fp32", cluster="one")
    keep(shown, finished(3, 0.051))
    sentence = re.search(
        r"Changed since the last run: .*", content(lab.dashboard()).replace("\\", "")
    )
    assert sentence is not None
    assert "Network two → one. Whether a step became longer or shorter: cannot tell" in sentence[0]


def test_ratio_covers_steps_processes_and_load() -> None:
    quick, slow = (factories.record(factories.run(), step_time=time) for time in (0.1, 0.2))
    times = results.ratio(slow, quick, processes=Deviation(0.01))
    assert times is not None
    value, low, high = times
    # Both medians deviate by 0.01 / 1.96, and both processes by 0.01.
    expected = 1.96 * math.sqrt(2 * (0.01 / 1.96) ** 2 + 2 * 0.01**2)
    assert value == pytest.approx(2.0) and low * high == pytest.approx(4.0)
    assert math.log(high / value) == pytest.approx(expected, rel=1e-3)
    loaded = factories.record(factories.run(), step_time=0.2, foreign_cpu=0.1)
    wider = results.ratio(loaded, quick, processes=Deviation(0.01))
    assert wider is not None and wider[2] > high
    unknown = results.ratio(slow, quick, processes=None)
    assert unknown is not None and unknown[2] > high
    assert "too few steps" in results.compared(results.ratio(short(slow), quick, processes=None))


def short(record: Record) -> Record:
    """A record of too few steps for an interval."""
    assert record.timing is not None
    step = record.timing.step.model_copy(update={"interval": None})
    return record.model_copy(update={"timing": record.timing.model_copy(update={"step": step})})


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ((0.5, 0.45, 0.55), "A step takes 0.50"),
        ((1.0, 0.9, 1.1), "cannot tell, [0.90, 1.10] times as long"),
        ((2.0, 0.0, 4.0), "cannot tell, [0.0, 4.0] times as long"),
    ],
)
def test_a_claim_needs_an_interval_without_one(
    times: tuple[float, float, float], words: str
) -> None:
    assert words in results.compared(times)


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
    for name, mark in MARKS.items():
        runs = on_two_clusters(records)
        ax = getattr(lab.figures, name)(runs, ax=Figure(layout="constrained").subplots())
        mark(ax, runs.curves, meant=("slow", meant.run_id), expected={})
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
        MARKS[name](ax, runs.curves, meant=None, expected=expected)
        (diamond,) = (line for line in ax.lines if line.get_marker() == "D")
        assert diamond.get_xdata()[0] == pytest.approx(x)
        assert y is None or diamond.get_ydata()[0] == pytest.approx(y)
        assert ax.get_xlim()[1] > x
    assert (
        "x2, batch 64, fp32 on slow a step of 250" in results.predictions_in_words(expected)
        and results.predictions_in_words({}) == ""
    )
