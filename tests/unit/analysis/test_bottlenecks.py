"""What limits a configuration: sentences with the numbers of records, none without them."""

from __future__ import annotations

import pytest
from factories import record, repeats, run
from hypothesis import given
from hypothesis import strategies as st

from lab import figures
from lab.analysis.bottlenecks import limits
from lab.analysis.scaling import summary
from lab.figures import alt_text
from lab.perfmodel.collectives import efficiency_with_overlap, efficiency_without_overlap
from lab.records.schema import Communication, Event
from lab.records.store import Record
from lab.records.table import table


@pytest.mark.parametrize(
    ("r", "without", "overlapped"),
    [(0.0, 0.0, 0.0), (1.0, 0.5, 0.75), (3.0, 0.75, 1.0), (0.5, 1 / 3, 3 / 7)],
)
def test_closed_forms(r: float, without: float, overlapped: float) -> None:
    assert efficiency_without_overlap(r) == pytest.approx(without)
    assert efficiency_with_overlap(r) == pytest.approx(overlapped)


@given(st.floats(0, 1e6), st.floats(0, 1))
def test_overlap_never_hurts_and_nothing_exceeds_one(r: float, share: float) -> None:
    least, most = efficiency_without_overlap(r), efficiency_with_overlap(r, backward_share=share)
    assert 0 <= least <= most + 1e-12 <= 1 + 2e-12


def test_closed_forms_refuse_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="negative"):
        efficiency_without_overlap(-1)
    with pytest.raises(ValueError, match="outside"):
        efficiency_with_overlap(1, backward_share=2)


def with_communication(made: Record, *, exposed: float, straggler: float) -> Record:
    from factories import stat

    assert made.communication is not None
    parts = {
        "straggler": stat(straggler),
        "transfer": stat(exposed - straggler),
        "exposed": stat(exposed),
    }
    return made.model_copy(update={"communication": made.communication.model_copy(update=parts)})


def study_records(*, exposed: float, straggler: float) -> list[Record]:
    ones = [record(run(1), repeat, step_time=0.200 + 0.001 * repeat) for repeat in range(3)]
    pair = [
        with_communication(
            record(
                run(2),
                repeat,
                step_time=0.130 + 0.001 * repeat,
                communication=(exposed + 0.01, exposed),
            ),
            exposed=exposed,
            straggler=straggler,
        )
        for repeat in range(3)
    ]
    return ones + pair


@pytest.mark.parametrize(
    ("exposed", "straggler", "words"),
    [
        (0.030, 0.002, "moving gradients takes"),
        (0.030, 0.026, "waiting for the slowest rank takes"),
        (0.001, 0.0, "the optimizer takes"),
    ],
)
def test_the_largest_cost_is_named(exposed: float, straggler: float, words: str) -> None:
    sentences = limits(
        summary(
            table(study_records(exposed=exposed, straggler=straggler)),
            baseline={"world_size": 1},
            scaling="strong",
        )
    )
    assert any(words in sentence for sentence in sentences), sentences
    assert any("R = T_compute / T_communication" in sentence for sentence in sentences)


def test_karp_flatt_is_that_of_the_speedup() -> None:
    sentences = limits(
        summary(
            table(study_records(exposed=0.03, straggler=0.0)),
            baseline={"world_size": 1},
            scaling="strong",
        )
    )
    speedup = 0.201 / 0.131
    expected = 100 * (1 / speedup - 1 / 2) / (1 - 1 / 2)
    (sentence,) = [sentence for sentence in sentences if "Karp" in sentence]
    assert f"{expected:.0f}" in sentence


def test_without_measured_communication_nothing_is_said_of_it() -> None:
    made = [*repeats(run(1), [0.2, 0.21]), *repeats(run(2), [0.11, 0.12])]
    sentences = limits(summary(table(made), baseline={"world_size": 1}, scaling="strong"))
    assert not any(
        "gradients" in sentence or "T_communication" in sentence for sentence in sentences
    )


def test_timeline_and_band_draw_what_was_measured() -> None:
    made = study_records(exposed=0.03, straggler=0.0)
    events = [
        Event(rank=rank, name=name, start=start, end=end, ready=ready, bytes=size)
        for rank in (0, 1)
        for name, start, end, ready, size in (
            ("forward", 0.0, 0.04, None, None),
            ("backward", 0.04, 0.10, None, None),
            ("bucket 0", 0.07, 0.12, 0.069, 4_000_000),
            ("optimizer", 0.12, 0.13, None, None),
        )
    ]
    made = [
        item.model_copy(
            update={"communication": item.communication.model_copy(update={"timeline": events})}
        )
        if item.communication
        else item
        for item in made
    ]
    assert isinstance(made[-1].communication, Communication)
    axes = figures.step_timeline(made)
    assert len(axes.patches) == len(events)
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "rank 0 compute",
        "rank 0 link",
        "rank 1 compute",
        "rank 1 link",
    ]
    assert "1 buckets" in alt_text("step_timeline", made)
    axes = figures.overlap_band(made)
    drawn = [line for line in axes.lines if len(line.get_xdata()) == 1]
    r = (0.131 * (0.30 + 0.55) - 0.03) / 0.04
    assert drawn and drawn[0].get_xdata()[0] == pytest.approx(r, rel=0.1)
