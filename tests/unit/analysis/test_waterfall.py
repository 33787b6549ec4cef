"""The waterfall of a step: parts that close, each cause from records in which it is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from factories import calibration, record, repeats, run, stat
from hypothesis import given
from hypothesis import strategies as st

import lab
from lab.analysis.findings import advice
from lab.analysis.results import StudyResults
from lab.analysis.scaling import summary
from lab.analysis.waterfall import Waterfall, waterfall_table, waterfalls
from lab.config.emulation import Compute, Emulated
from lab.config.run import Run
from lab.perfmodel.calibration import ContentionTime
from lab.records.schema import Communication
from lab.records.store import Record
from lab.records.table import table

OLD = Path(__file__).parents[2] / "fixtures" / "old_records"
TIMES = {"data": 0.001, "h2d": 0.0, "forward": 0.03, "backward": 0.06, "optimizer": 0.008}


def falls_of(records: Sequence[Record], **study: Any) -> list[Waterfall]:
    frame = summary(
        table(records), **({"baseline": {"world_size": 1}, "scaling": "strong"} | study)
    )
    return waterfalls(frame, records)


def step(
    run: Run,
    repeat: int = 0,
    *,
    transfer: float = 0.0,
    waits: Sequence[float] = (),
    scale: float = 1.0,
    stolen: float = 0.0,
    phases: Mapping[str, float] | None = None,
    **fields: Any,
) -> Record:
    """One repeat of ranks that take TIMES; `waits` are what each rank waits for later ones."""
    times = {name: scale * seconds for name, seconds in (TIMES | dict(phases or {})).items()}
    exposed = transfer + max(waits, default=0.0)
    made = record(
        run,
        repeat,
        step_time=sum(times.values()) + exposed,
        phases=times | {"backward": times["backward"] + exposed, "other": 0.0},
        **fields,
    )
    if run.world_size == 1:
        return made
    waits = waits or [0.0] * run.world_size
    sent = Communication(
        total=stat(exposed or 0.001),
        exposed=stat(exposed),
        per_rank={"exposed": [transfer + wait for wait in waits], "straggler": list(waits)},
        exposed_in={"backward": exposed},
        stolen_compute=stat(stolen) if stolen else None,
    )
    return made.model_copy(update={"communication": sent})


def closes(fall: Waterfall) -> None:
    total = fall.ideal.value + sum(loss.value for loss in fall.losses.values())
    assert total == pytest.approx(fall.step.value, rel=0.02)
    shown = fall.ideal.value + sum(loss.value for loss in fall.shown().values())
    assert shown == pytest.approx(fall.step.value, rel=0.02)


def only(records: Sequence[Record], **study: Any) -> Waterfall:
    """The waterfall of two ranks against one; everything but the asked for cause is as ideal."""
    (fall,) = [fall for fall in falls_of(records, **study) if fall.compared]
    closes(fall)
    return fall


def lost(fall: Waterfall, cause: str) -> float:
    return fall.losses[cause].value if cause in fall.losses else 0.0


def against_one(wide: Sequence[Record], **fields: Any) -> list[Record]:
    return [*(step(run(1), repeat, **fields) for repeat in range(3)), *wide]


def ideal_pair(**fields: Any) -> list[Record]:
    return against_one([step(run(2), repeat, scale=0.5, **fields) for repeat in range(3)])


times = st.floats(1e-4, 10, allow_nan=False)


@st.composite
def arbitrary_records(draw: st.DrawFn) -> list[Record]:
    """Up to five repeats of one rank and of two, whose phases and waits have nothing in common."""
    made = []
    for size in (1, 2):
        for repeat in range(draw(st.integers(1, 5))):
            waits = draw(st.lists(times, min_size=size, max_size=size))
            extra = {name: draw(times) for name in TIMES}
            load = draw(st.floats(0, size))
            one = step(run(size), repeat, phases=extra, waits=waits, foreign_cpu=load)
            uneven = draw(st.floats(0.5, 2.0))  # medians of parts need not add up
            whole = one.timing.model_copy(update={"step": stat(one.timing.step.median * uneven)})  # type: ignore[union-attr]
            made.append(one.model_copy(update={"timing": whole}))
    return made


@given(arbitrary_records())
def test_the_parts_add_up_to_the_step(records: list[Record]) -> None:
    for scaling in ("strong", "weak"):
        frame = summary(table(records), baseline={"world_size": 1}, scaling=scaling)  # type: ignore[arg-type]
        falls = waterfalls(frame, records)
        assert len(falls) == 2
        for fall in falls:
            closes(fall)


@pytest.mark.parametrize("name", ["training", "strategies", "emulated"])
def test_the_parts_of_real_records_add_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(OLD)
    falls = StudyResults(name).waterfalls
    assert {fall.row["run_id"] for fall in falls} == set(StudyResults(name).summary["run_id"])
    for fall in falls:
        closes(fall)
        assert fall.largest in fall.losses and not fall.supported  # of one or two disturbed repeats


def test_nothing_is_lost_of_an_ideal_step() -> None:
    fall = only(ideal_pair())
    assert fall.negligible and not fall.supported
    assert fall.ideal.value == pytest.approx(fall.step.value)


@pytest.mark.parametrize(
    ("cause", "fields"),
    [
        ("transfer", {"transfer": 0.02}),
        ("straggler", {"waits": [0.02, 0.0]}),
        ("data", {"phases": {"data": 0.041}}),
        ("optimizer", {"phases": {"optimizer": 0.048}}),
        ("h2d", {"phases": {"h2d": 0.04}}),
        ("compute", {"phases": {"forward": 0.07}}),
    ],
)
def test_each_cause_is_named_with_its_time(cause: str, fields: dict[str, Any]) -> None:
    fall = only(ideal_pair(**fields))
    assert (fall.largest, fall.supported, fall.negligible) == (cause, True, False)
    assert fall.losses[cause] == pytest.approx((0.02, 0.02, 0.02))
    assert sum(map(abs, (loss.value for loss in fall.losses.values()))) == pytest.approx(0.02)


def test_compute_slowed_by_communication_is_set_apart() -> None:
    fall = only(ideal_pair(phases={"backward": 0.10}, stolen=0.02))
    assert fall.largest == "stolen"
    assert fall.losses["stolen"].value == pytest.approx(0.02)
    assert lost(fall, "compute") == pytest.approx(0.0, abs=1e-9)


def test_gains_are_shown_with_their_sign() -> None:
    fall = only(ideal_pair(phases={"optimizer": 0.002, "forward": 0.07}))
    assert fall.losses["optimizer"].value == pytest.approx(-0.003)
    assert fall.losses["compute"].value == pytest.approx(0.02)
    gain = only(ideal_pair(phases={"optimizer": 0.028, "forward": 0.02}))
    assert list(gain.shown()) == ["compute that shrank further", "the optimizer"]


def test_weak_scaling_keeps_the_baselines_step() -> None:
    batch = {"global_batch_size": None, "micro_batch_size": 8}
    records = [step(run(1, **batch), repeat) for repeat in range(3)]
    records += [step(run(2, **batch), repeat, phases={"forward": 0.05}) for repeat in range(3)]
    fall = only(records, scaling="weak")
    assert fall.ideal.value == pytest.approx(0.099)
    assert fall.losses["compute"].value == pytest.approx(0.02)
    assert fall.name("compute") == "compute that became slower"


def test_what_a_script_may_have_sent_unseen_is_not_called_compute() -> None:
    script = {"model": {"kind": "script", "command": "train.py"}, "global_batch_size": None}
    runs = [run(size, **script, micro_batch_size=8) for size in (1, 2)]
    slow = {1: {}, 2: {"phases": {"backward": 0.1}, "step_time": 0.2}}
    records = [record(one, repeat, **slow[one.world_size]) for one in runs for repeat in range(3)]
    fall = only(records, scaling="weak")
    assert fall.name("compute") == "compute and communication, not told apart"
    assert advice(fall) == "first to measure: how long ranks wait for each other, with a profiler"
    # As of a communication hook of the script's own, of which it is not seen when DDP waits.
    total = [one.model_copy(update={"communication": Communication()}) for one in records]
    assert only(total, scaling="weak").name("compute") == fall.name("compute")
    seen = [
        one.model_copy(update={"communication": Communication(exposed=stat(0.01))})
        for one in records
    ]
    assert only(seen, scaling="weak").name("compute") == "compute that became slower"


def test_on_as_many_ranks_compute_is_faster_or_slower() -> None:
    times = {False: 0.05, True: 0.02}
    records = [
        step(run(1, compile=compile), repeat, phases={"forward": forward})
        for compile, forward in times.items()
        for repeat in range(3)
    ]
    frame = summary(table(records), baseline={"compile": False}, scaling="none")
    faster = next(fall for fall in waterfalls(frame, records) if fall.compared)
    assert faster.losses["compute"].value == pytest.approx(-0.03)
    assert faster.name("compute") == "compute that became faster"


def test_a_baseline_on_as_many_ranks_is_not_called_ideal() -> None:
    records = [
        step(run(1, compile=compile), repeat, phases={"forward": forward})
        for compile, forward in {False: 0.05, True: 0.02}.items()
        for repeat in range(3)
    ]
    results = StudyResults(records, baseline={"compile": False}, scaling="none")
    _, frame = waterfall_table(results.waterfalls)
    assert list(frame.columns) == ["configuration", "baseline", "lost (largest first)", "measured"]
    assert "from baseline 119 ms to 89.0 ms" in lab.figures.FIGURES["waterfall"].alt_text(results)
    caption = lab.figures.FIGURES["waterfall"].caption(results)
    assert "loss is the largest" not in caption and "largest loss" not in caption  # all are gains


def of_batch(size: int) -> dict[str, float]:
    """10 ms whatever the micro-batch, and 1 ms for each sample."""
    return {"forward": 0.0, "backward": 0.010 + 0.001 * size, "optimizer": 0.0, "data": 0.0}


def batches(*alone: int) -> list[Record]:
    """Two ranks that share 64 samples, and one rank with these batches."""
    made = [step(run(2), repeat, phases=of_batch(32)) for repeat in range(3)]
    ones = [step(run(1, size), n, phases=of_batch(size)) for size in alone for n in range(3)]
    return [*ones, *made]


@pytest.mark.parametrize(
    ("alone", "cause"),
    [((32, 64), "batch"), ((16, 64), "launches"), ((64,), "compute")],
)
def test_smaller_micro_batches_are_told_as_far_as_they_are_measured(
    alone: tuple[int, ...], cause: str
) -> None:
    fall = only(batches(*alone))
    assert fall.largest == cause
    assert fall.losses[cause].value == pytest.approx(0.042 - 0.074 / 2)


def test_shared_cores_are_those_of_the_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = ContentionTime(device=1.0, link=1.0, neighbours=1.2, bytes=1, rounds=1)
    known = calibration(2)
    known = known.with_part(known.parts[0].model_copy(update={"contention": shared}))
    monkeypatch.setattr("lab.analysis.waterfall.find_calibration", lambda cluster: known)
    fall = only(ideal_pair(phases={"forward": 0.05}))
    assert fall.losses["neighbours"].value == pytest.approx(0.2 * 0.09 / 2)
    assert fall.losses["compute"].value == pytest.approx(0.010 - 0.009)
    elsewhere = ideal_pair(phases={"forward": 0.05}, cpu="another processor")
    assert "neighbours" not in only(elsewhere).losses


def test_a_calibration_explains_at_most_what_compute_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = ContentionTime(device=1.0, link=1.0, neighbours=3.0, bytes=1, rounds=1)
    known = calibration(2)
    known = known.with_part(known.parts[0].model_copy(update={"contention": shared}))
    monkeypatch.setattr("lab.analysis.waterfall.find_calibration", lambda cluster: known)
    fall = only(ideal_pair(phases={"forward": 0.05}))
    assert fall.losses["neighbours"].value == pytest.approx(0.010)
    assert abs(lost(fall, "compute")) < 1e-9
    faster = only(ideal_pair(phases={"forward": 0.01}))
    assert lost(faster, "neighbours") == 0 and faster.losses["compute"].value < 0


def test_half_of_each_core_doubles_a_step() -> None:
    fall = only(
        ideal_pair(phases={name: 2 * time for name, time in TIMES.items()}, foreign_cpu=1.0)
    )
    assert fall.largest == "others"
    assert fall.losses["others"].value == pytest.approx(0.099 / 2)
    assert lost(fall, "compute") == pytest.approx(0.0, abs=1e-9)


def test_others_on_one_core_are_a_wait_on_the_other() -> None:
    """Rank 1 loses half of its core, and takes twice as long, while rank 0 waits for it."""
    own = sum(TIMES.values()) / 2
    fall = only(ideal_pair(waits=[own, 0.0], foreign_cpu=0.5))
    assert fall.largest == "others"
    assert fall.losses["others"].value == pytest.approx(own)
    assert lost(fall, "straggler") == pytest.approx(0.0, abs=1e-9)


def test_what_sleeps_loses_nothing_to_others() -> None:
    slept = Emulated(compute=Compute(emulated="measured"))
    ones = [step(run(1), n, emulated=slept) for n in range(3)]
    twos = [step(run(2), n, scale=0.5, foreign_cpu=1.0, emulated=slept) for n in range(3)]
    assert "others" not in only([*ones, *twos]).losses


def test_a_pipeline_has_its_bubble() -> None:
    pipeline = run(2, 8, strategy="pipeline_parallel", microbatches=4)
    sent = Communication(exposed=stat(0.03), exposed_in={"forward": 0.01, "backward": 0.02})
    phases = {**TIMES, "forward": 0.03, "backward": 0.06, "other": 0.0}
    wide = [record(pipeline, n, step_time=0.099, phases=phases) for n in range(3)]
    wide = [one.model_copy(update={"communication": sent}) for one in wide]
    ones = [step(run(1, 8, strategy="single"), n, scale=0.8) for n in range(3)]
    fall = only([*ones, *wide], baseline={"strategy": "single", "world_size": 1}, scaling="none")
    assert fall.losses["bubble"].value == pytest.approx(0.06 / 4)
    assert fall.losses["exchange"].value == pytest.approx(0.015)


def test_without_a_baseline_a_step_starts_at_its_compute() -> None:
    (fall,) = falls_of([step(run(2), repeat, transfer=0.03) for repeat in range(3)])
    closes(fall)
    assert not fall.compared and fall.ideal.value == pytest.approx(0.09)
    assert (fall.largest, fall.losses["transfer"].value) == ("transfer", pytest.approx(0.03))


def test_one_repeat_has_no_interval_and_supports_nothing() -> None:
    fall = only([step(run(1)), step(run(2), scale=0.5, transfer=0.03)])
    assert fall.largest == "transfer" and not fall.supported and not fall.negligible
    assert math.isnan(fall.losses["transfer"].low)


def test_losses_that_change_places_are_not_called_the_largest() -> None:
    wide = [
        step(run(2), n, scale=0.5, transfer=0.02 - 0.008 * n, waits=[0.008 * n, 0.0])
        for n in (0, 1, 2)
    ]
    fall = only(against_one(wide))
    assert not fall.supported


def test_the_share_of_a_loss_has_the_digits_of_its_interval() -> None:
    wide = [step(run(2), n, scale=0.5, transfer=0.02 + 0.02 * n) for n in range(3)]
    fall = only(against_one(wide))
    assert fall.supported and fall.largest_share == f"{100 * 0.04 / fall.step.value:.0f} %"


def test_the_table_says_what_the_waterfall_says() -> None:
    records = ideal_pair(transfer=0.02, phases={"optimizer": 0.002, "data": 0.011})
    caption, frame = waterfall_table(falls_of(records))
    (cells,) = frame.to_dict("records")
    assert cells == {
        "configuration": "batch 64 on 2 CPU processes",
        "ideal": "49.5 [49.5, 49.5]",
        "lost (largest first)": "moving gradients 20.0 [20.0, 20.0]; "
        "waiting for data 5.00 [5.00, 5.00]; the optimizer -3.00 [-3.00, -3.00]",
        "measured": "71.5 [71.5, 71.5]",
    }
    assert "in ms [range], on" in caption


def test_nothing_is_said_of_published_steps() -> None:
    bare = record(run(2))
    assert bare.timing is not None
    published = bare.model_copy(update={"timing": bare.timing.model_copy(update={"phases": {}})})
    assert falls_of([published]) == []
    assert "no phases" in lab.figures.waterfall([published]).texts[0].get_text()


def test_the_figure_begins_and_ends_with_ideal_and_measured() -> None:
    records = ideal_pair(transfer=0.02, phases={"optimizer": 0.002})
    ax = lab.figures.waterfall(records)
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        *("ideal", "moving gradients", "the optimizer", "measured")
    ]
    edges = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in ax.patches]  # type: ignore[attr-defined]
    assert edges[0][0] == edges[-1][0] == 0 and edges[-1][1] == pytest.approx(1.0)
    for (_, end), (start, _) in pairwise(edges[:-1]):
        assert end == pytest.approx(start)
    text = lab.figures.alt_text("waterfall", records)
    assert "moving gradients 20.0 ms" in text and "the optimizer -3.00 ms" in text


def test_a_step_that_loses_nothing_names_no_loss() -> None:
    halves = {"data": 0.0, "forward": 0.02, "backward": 0.03, "optimizer": 0.0, "other": 0.0}
    whole = {name: 2 * seconds for name, seconds in halves.items()}
    records = repeats(run(1), [0.1] * 3, phases=whole) + repeats(run(2), [0.05] * 3, phases=halves)
    text = lab.figures.alt_text("waterfall", records)
    assert text.endswith("from ideal 50.0 ms to 50.0 ms.")


@pytest.mark.parametrize(("transfer", "advised"), [(0.02, True), (0.06, False)])
def test_a_change_that_was_measured_to_be_no_faster_is_not_advised(
    transfer: float, advised: bool
) -> None:
    """Half the bytes, which take less time or more."""
    plain, compressed = run(2), run(2, compression="bf16")
    made = [step(run(1), repeat) for repeat in range(3)]
    made += [step(plain, repeat, transfer=0.05) for repeat in range(3)]
    made += [step(compressed, repeat, transfer=transfer) for repeat in range(3)]
    (fall,) = [fall for fall in falls_of(made) if fall.run == plain]
    assert fall.largest == "transfer"
    assert ("bf16 compression" in advice(fall)) is advised
