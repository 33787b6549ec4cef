"""One study on several machines: own curves, own baselines, ratios between machines."""

from __future__ import annotations

from pathlib import Path

import factories
import pytest

from lab import figures
from lab.analysis.comparison import Comparison, compare
from lab.analysis.scaling import FEWEST_REPEATS
from lab.config.study import Study
from lab.errors import InputError
from lab.records.store import Store, write_record

SPEEDS = {"Slow CPU": {1: 0.4, 2: 0.25}, "Fast CPU": {1: 0.1, 2: 0.08}}


def filled(folder: Path, cpu: str, *, host: str = "node1") -> Study:
    study = Study.load(folder)
    for task in study.tasks:
        seconds = SPEEDS[cpu][task.run.world_size] * (1 + 0.01 * task.repeat)
        place = factories.environment(
            task.run.world_size, cpu=cpu, hosts=[host] * task.run.world_size
        )
        record = factories.record(task.run, task.repeat, step_time=seconds).model_copy(
            update={"environment": place}
        )
        write_record(record, Store(study.out).folder(task))
    return study


@pytest.fixture
def both(make_study) -> Comparison:
    return compare(
        [filled(make_study(name), cpu) for name, cpu in (("a", "Slow CPU"), ("b", "Fast CPU"))]
    )


def test_each_machine_has_its_own_baseline(both: Comparison) -> None:
    for machine, seconds in SPEEDS.items():
        rows = both.summary[both.summary["machine"] == machine].set_index("world_size")
        assert rows.loc[2, "speedup"] == pytest.approx(seconds[1] / seconds[2])
        assert rows.loc[1, "speedup"] == 1


def test_no_curve_joins_two_machines(both: Comparison) -> None:
    ax = figures.speedup(both)
    labels = {text.get_text().split(":")[0] for text in ax.texts}
    assert any("Slow CPU" in label for label in labels) and any(
        "Fast CPU" in label for label in labels
    )
    from lab.analysis.scaling_curves import curves

    assert [set(points["machine"]) for _, points in curves(both.summary)] == [
        {"Slow CPU"},
        {"Fast CPU"},
    ]


def test_the_caption_of_several_machines_names_the_highest_speedup(both: Comparison) -> None:
    caption = figures.overview.caption(figures.StudyResults(both))
    assert "The highest speedup is 1.60, that of batch 4, Slow CPU on 2 CPU processes" in caption


def test_throughput_is_compared_where_both_ran(both: Comparison) -> None:
    tables = {caption.split(",")[0]: frame for caption, frame in both.tables()}
    times = tables["Throughput"]
    assert times["Slow CPU"].tolist() == ["1", "1"]
    assert [cell.split()[0] for cell in times["Fast CPU"]] == ["4.00", "3.12"]
    assert tables["Step time"].index.tolist() == ["1 rank, batch 4", "2 ranks, batch 4"]


def test_the_headline_tells_throughput_and_speedup_of_each_machine(both: Comparison) -> None:
    throughput, slow, fast = both.sentences()
    assert throughput.startswith("Fast CPU has 3.12 to 4.00 times the throughput of Slow CPU in 2")
    assert slow.startswith("On Slow CPU, 2 CPU processes at batch 4, a step is ")
    assert fast.startswith("On Fast CPU, 2 CPU processes at batch 4, a step is ")
    repeats = both.summary["repeats"].min()
    assert ("too few to show how much this varies" in throughput) == (repeats < FEWEST_REPEATS)


def test_one_shared_configuration_gets_its_own_verdict(make_study) -> None:
    grid = {"global_batch_size": [4], "world_size": [1]}
    folders = [
        (make_study(name, grid=grid), cpu) for name, cpu in (("a", "Slow CPU"), ("b", "Fast CPU"))
    ]
    (text,) = compare([filled(folder, cpu) for folder, cpu in folders]).sentences()
    assert text.startswith("Fast CPU has 4.00 ") and ", but " in text and "repeat" in text
    assert "1 shared configuration, " in text


def test_machines_of_one_kind_are_told_apart_by_host(make_study) -> None:
    comparison = compare([filled(make_study(name), "Slow CPU", host=name) for name in ("a", "b")])
    assert list(comparison.studies) == ["Slow CPU (a)", "Slow CPU (b)"]


def test_what_cannot_be_compared_is_refused(make_study) -> None:
    full, empty = filled(make_study("a"), "Slow CPU"), Study.load(make_study("b"))
    with pytest.raises(InputError, match="no completed record") as nothing:
        compare([full, empty])
    assert len(nothing.value.problems) == 1  # not also that nothing is in common
    with pytest.raises(InputError, match="two different folders"):
        compare([full, full])
    other = filled(
        make_study(
            "c", base={"model": "gpt-nano", "data": "stdlib", "steps": 9, "warmup_steps": 2}
        ),
        "Fast CPU",
    )
    with pytest.raises(InputError, match="no configuration in common"):
        compare([full, other])


def test_configurations_with_other_loaders_keep_rows_of_their_own(make_study) -> None:
    own = {"model": "agnews-small", "data": "topics", "steps": 4, "warmup_steps": 1}
    grid = {"loader": ["fast", "classic"], "world_size": [1], "global_batch_size": [4]}
    folders = [make_study(name, base=own, grid=grid) for name in ("a", "b")]
    tables = compare([filled(one, "Slow CPU", host=one.name) for one in folders]).tables()
    assert all(len(frame) == 2 for _, frame in tables)
    assert set(tables[0][1].index) == {"1 rank, batch 4", "1 rank, batch 4, classic loader"}
