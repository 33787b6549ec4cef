"""Replayed steps against steps counted by hand, and laws that hold for any step."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.perfmodel.collectives import (
    Collective,
    Level,
    collective_seconds,
    ring_time,
    seconds_by_algorithm,
)
from lab.perfmodel.layout import (
    Bucket,
    Contention,
    Layout,
    Links,
    Profile,
    Work,
    alone,
    buckets_of,
    covered,
    replay,
    works_of,
)
from lab.perfmodel.simulate import (
    EXACT,
    UNKNOWN_SPREAD,
    Conditions,
    Deviation,
    Prediction,
    half_width,
    of_foreign_load,
    of_processes,
    predict,
    slowest_of,
    spread,
)


def flat(ranks: int, rate: float = 100.0, alpha: float = 0.0) -> Links:
    cost = partial(ring_time, world_size=ranks, alpha_s=alpha, bytes_per_s=rate)
    return Links(cost, cost, cost)


def fixed(seconds: float) -> Links:
    def cost(collective: Collective, size: float) -> float:
        return seconds

    return Links(cost, cost, cost)


PROFILE = Profile(
    forward_s=2.0,
    backward_s=4.0,
    optimizer_s=1.0,
    gradients=(Bucket(1.0, 100), Bucket(2.0, 100), Bucket(4.0, 200)),
)


def step(sharing: str, links: Links, data: int = 2, **more: object) -> Prediction:
    return predict(PROFILE, PROFILE.gradients, Layout(sharing=sharing, data=data), links, **more)  # type: ignore[arg-type]


def test_one_device_is_its_own_step() -> None:
    prediction = step("ddp", flat(1), data=1)
    assert prediction.step_s == PROFILE.step_s() == 7.0
    assert prediction.communication_s == prediction.exposed_s == 0
    assert prediction.limit == "compute", "its optimizer is no avoidable part"
    assert step("ddp", flat(2, rate=1e9)).limit == "optimizer", "each rank updates all weights"


def test_buckets_hide_behind_the_backward_pass() -> None:
    # Ready at 3, 4 and 6; each of the first two takes 1.5: 3 to 4.5, 4.5 to 6, then 6 to 7.5 by
    # itself.
    prediction = step("ddp", fixed(1.5))
    assert prediction.step_s == pytest.approx(8.5)
    assert prediction.communication_s == pytest.approx(
        4.5
    ) and prediction.exposed_s == pytest.approx(1.5)
    assert prediction.limit == "exposed_communication"
    works = works_of(PROFILE, PROFILE.gradients, Layout(data=2), fixed(1.5))
    links = [work.name for work in works if work.where == "link"]
    assert links == ["bucket 0", "bucket 1", "bucket 2"]
    assert sum(prediction.parts.values()) == pytest.approx(prediction.step_s)


def test_naive_ddp_hides_nothing() -> None:
    prediction = step("naive_ddp", fixed(1.5))
    assert prediction.step_s == pytest.approx(
        7.0 + 3 * 1.5
    ) and prediction.exposed_s == pytest.approx(4.5)


def test_zero1_shares_the_optimizer_and_gathers_its_parameters() -> None:
    prediction = step("zero1", fixed(1.5))
    assert prediction.step_s == pytest.approx(6.0 + 3 * 1.5 + 0.5 + 1.5)


def test_fsdp_gathers_before_it_computes() -> None:
    free = step("fsdp", fixed(0.0))
    assert free.step_s == pytest.approx(6.5)
    slow = step("fsdp", fixed(1.0))
    assert slow.step_s > 7.5  # the first gather and the last scatter cannot hide
    assert sum(slow.parts.values()) == pytest.approx(slow.step_s)


def test_pipeline_has_its_bubble() -> None:
    layout = Layout(sharing="single", pipeline=4, activation_bytes=0)
    prediction = predict(PROFILE, (), layout, fixed(0.0), grad_accum=8)
    assert layout.bubble(8) == 3 / 8
    assert Layout(pipeline=4, interleave=2).bubble(8) == pytest.approx(3 / 16)
    assert prediction.step_s == pytest.approx(8 * 6.0 / 4 * (1 + 3 / 8) + 1.0 / 4)
    assert prediction.limit == "bubble"


def test_zero_bubble_schedules_leave_the_bubbles_of_the_paper() -> None:
    """Qi et al. (2023), table 1, with F = B = W, and with B = 2 where it recomputes."""
    h1 = Layout(sharing="single", pipeline=4, schedule="zb-h1")
    h2 = replace(h1, schedule="zb-h2")
    assert h1.bubble(8) == pytest.approx(3 / 8 / 3) and h2.bubble(8) == pytest.approx(0)
    assert h1.bubble(8, passes=4) == pytest.approx(3 / 8 * (1 + 2 - 1) / 4)
    assert h2.bubble(8, passes=4) == pytest.approx(3 / 8 * (1 + 2 - 2) / 4)
    assert (h1.in_flight, h2.in_flight) == (4, 7)
    prediction = predict(PROFILE, (), h1, fixed(0.0), grad_accum=8)
    assert prediction.step_s == pytest.approx(8 * 6.0 / 4 * (1 + 1 / 8) + 1.0 / 4)
    # The wait for a longer stage remains: two micro-batches of 0.7 instead of 0.5 of the passes.
    assert Layout(pipeline=2, busiest=0.7, schedule="zb-h2").bubble(2) == pytest.approx(0.4)


def test_a_pipeline_is_as_fast_as_its_longest_stage() -> None:
    layout = Layout(sharing="single", pipeline=2, busiest=0.7, largest=0.8)
    # The first micro-batch passes all of the model, the second ends 0.7 of a pass later.
    prediction = predict(PROFILE, (), layout, fixed(0.0), grad_accum=2)
    assert prediction.step_s == pytest.approx(1.7 * 6.0 + 0.8 * 1.0)
    assert sum(prediction.parts.values()) == pytest.approx(prediction.step_s)
    tied = predict(PROFILE, (), Layout("single", pipeline=2, tied_bytes=8), fixed(0.25))
    plain = predict(PROFILE, (), Layout("single", pipeline=2), fixed(0.25))
    assert tied.step_s - plain.step_s == pytest.approx(0.25)


def test_what_tensor_parallelism_leaves_whole_takes_as_long_as_on_one_device() -> None:
    layout = Layout("single", tensor=2, layers=0, divided=0.5, divided_parameters=0.6)
    assert layout.compute_share == 0.75 and layout.parameter_share == pytest.approx(0.7)
    prediction = predict(PROFILE, (), layout, fixed(0.0))
    assert prediction.step_s == pytest.approx(0.75 * 6.0 + 0.7)


def test_a_factor_and_the_costs_of_calls_and_nodes_are_parts_of_the_step() -> None:
    plain = step("naive_ddp", fixed(1.5))
    conditions = Conditions(factor=1.1, call_s=0.4, node_s=9.0)
    slow = step("naive_ddp", fixed(1.5), conditions=conditions)
    assert slow.step_s == pytest.approx(1.1 * plain.step_s + 9.4)
    assert slow.parts["call_overhead"] == 0.4 and slow.parts["node_overhead"] == 9.0
    assert slow.limit == "node_overhead"
    assert sum(slow.parts.values()) == pytest.approx(slow.step_s)


def test_tensor_parallelism_sums_twice_per_layer_and_direction() -> None:
    layout = Layout(sharing="single", tensor=2, layers=3, activation_bytes=8)
    prediction = predict(PROFILE, (), layout, fixed(0.1))
    assert prediction.step_s == pytest.approx(7.0 / 2 + 4 * 3 * 0.1)
    assert prediction.exposed_s == pytest.approx(1.2)


def test_accumulation_sends_once() -> None:
    prediction = step("ddp", fixed(1.5), grad_accum=3)
    assert prediction.step_s == pytest.approx(
        2 * 6.0 + 8.5
    ) and prediction.communication_s == pytest.approx(4.5)


def test_shared_cores_slow_both() -> None:
    spans = replay(
        [Work("a", "device", 4.0), Work("b", "link", 1.0)], Contention(device=2.0, link=2.0)
    )
    assert [span.end for span in spans] == [5.0, 2.0]
    assert covered(spans) == 5.0 and alone(spans) == 0.0
    prediction = step("ddp", fixed(1.5), conditions=Conditions(Contention(1.5, 1.2)))
    assert prediction.step_s > 8.5 and prediction.parts["stolen_compute"] > 0
    assert sum(prediction.parts.values()) == pytest.approx(prediction.step_s)


def test_ranks_that_compute_beside_each_other_slow_compute_and_not_the_link() -> None:
    crowded = Conditions(Contention(neighbours=1.5))
    assert step("ddp", fixed(0.0), conditions=crowded).step_s == pytest.approx(
        1.5 * step("ddp", fixed(0.0)).step_s
    )
    prediction = step("naive_ddp", fixed(1.5), conditions=crowded)
    assert prediction.exposed_s == pytest.approx(step("naive_ddp", fixed(1.5)).exposed_s)
    assert predict(
        PROFILE, (), Layout(sharing="single"), fixed(0.0), conditions=crowded
    ).step_s == pytest.approx(PROFILE.step_s())


def test_work_that_waits_for_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="waits for itself"):
        replay([Work("a", "device", 1.0, after=(1,)), Work("b", "device", 1.0)])


def test_stragglers_grow_with_the_ranks() -> None:
    assert slowest_of(1) == 0.0
    assert slowest_of(2) == pytest.approx(0.5642, abs=0.03)  # 1 / sqrt(pi)
    assert slowest_of(100) == pytest.approx(2.5076, abs=0.02)
    noisy = Profile(2.0, 4.0, 1.0, PROFILE.gradients, spread=0.1)
    prediction = predict(noisy, noisy.gradients, Layout(data=100), fixed(0.0))
    assert prediction.parts["straggler"] == pytest.approx(0.7 * slowest_of(100))
    assert prediction.low_s < prediction.step_s < prediction.high_s
    # Jitter from step to step, and processes that are slower throughout, are independent.
    uneven = Conditions(processes=0.2)
    for ranks in (1, 100):
        prediction = predict(
            noisy, noisy.gradients, Layout(data=ranks), fixed(0.0), conditions=uneven
        )
        waited = 7.0 * 0.05**0.5 * slowest_of(ranks)
        assert prediction.parts["straggler"] == pytest.approx(waited)


def test_buckets_as_ddp_makes_them() -> None:
    gradients = [Bucket(float(nth), 40) for nth in range(1, 6)]
    assert buckets_of(gradients, 100) == (Bucket(3.0, 120), Bucket(5.0, 80))
    assert [bucket.bytes for bucket in buckets_of(gradients, 100, first_bytes=30)] == [40, 120, 40]


def test_collectives_by_hand() -> None:
    one = seconds_by_algorithm("all_reduce", 1e9, [Level(4, 1e-5, 1e9)])
    assert one["ring"] == one["hierarchical"] == pytest.approx(1.5 + 6e-5)
    assert one["tree"] == pytest.approx(2.0 + 4e-5)
    two = (Level(8, 0.0, 100e9), Level(2, 0.0, 25e9))
    # Inside 2 x 7/8 of the bytes at 100 GB/s, between the nodes all of them at 25 GB/s.
    seconds = seconds_by_algorithm("all_reduce", 1e9, two)
    assert seconds["hierarchical"] == pytest.approx(1.75e-2 + 4e-2)
    assert seconds["ring"] == pytest.approx(2 * 15 / 16 / 25)
    assert collective_seconds("all_reduce", 1e9, two) == min(seconds.values())
    assert collective_seconds("all_reduce", 1e9, [Level(1, 1.0, 1.0)]) == 0.0


def test_a_switch_that_sums_moves_an_all_reduce_once() -> None:
    node = Level(8, 1e-6, 4e9, sums_per_s=4e9)
    assert node.seconds("all_reduce", 4e9) == pytest.approx(1 + 2e-6)
    assert replace(node, sums_per_s=0.0).seconds("all_reduce", 4e9) == pytest.approx(1.75 + 14e-6)
    assert node.seconds("all_gather", 4e9) == pytest.approx(7 / 8 + 7e-6)
    # A ring of two sends each byte once as well, without the switch's losses.
    assert Level(2, 0.0, 4e9, sums_per_s=3e9).seconds("all_reduce", 4e9) == pytest.approx(1)
    two = (node, Level(2, 0.0, 1e9))
    assert seconds_by_algorithm("all_reduce", 4e9, two)["hierarchical"] == pytest.approx(5 + 2e-6)


@given(st.floats(1, 1e12), st.integers(1, 512), st.integers(1, 8), st.floats(0, 1e-3))
def test_the_fastest_is_no_slower_than_a_ring(
    size: float, nodes: int, inside: int, alpha: float
) -> None:
    levels = (Level(inside, alpha, 1e11), Level(nodes, alpha, 1e10))
    ring = ring_time("all_reduce", size, inside * nodes, alpha, 1e10 if nodes > 1 else 1e11)
    assert collective_seconds("all_reduce", size, levels) <= ring


times = st.floats(0.001, 10.0)


@settings(max_examples=60, deadline=None)
@given(
    times,
    st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(1, 10**9)), min_size=1, max_size=12),
    st.integers(2, 64),
    st.floats(1e6, 1e11),
    st.floats(1.0, 2.0),
    st.sampled_from(["naive_ddp", "ddp", "zero1", "fsdp"]),
)
def test_any_step_lies_between_its_bounds(
    backward: float,
    gradients: list[tuple[float, int]],
    ranks: int,
    rate: float,
    slow: float,
    sharing: str,
) -> None:
    buckets = tuple(Bucket(share * backward, size) for share, size in sorted(gradients))
    profile = Profile(backward / 2, backward, 0.1 * backward, buckets)
    prediction = predict(
        profile,
        buckets,
        Layout(sharing=sharing, data=ranks),
        flat(ranks, rate),
        conditions=Conditions(Contention(slow, slow)),
    )  # type: ignore[arg-type]
    compute = sum(prediction.parts[name] for name in ("forward", "backward", "optimizer"))
    assert prediction.step_s >= compute * (1 - 1e-9)
    assert prediction.step_s <= (compute + prediction.communication_s) * slow * (1 + 1e-9)
    assert prediction.exposed_s <= prediction.communication_s * (1 + 1e-9)
    assert sum(prediction.parts.values()) == pytest.approx(prediction.step_s)
    quick = predict(profile, buckets, Layout(sharing=sharing, data=ranks), flat(ranks, rate * 2))  # type: ignore[arg-type]
    assert quick.step_s <= prediction.step_s * (1 + 1e-9)


def test_replay_agrees_with_the_closed_forms() -> None:
    whole = (Bucket(4.0, 400),)
    prediction = predict(PROFILE, whole, Layout(data=2), flat(2))
    assert prediction.step_s == pytest.approx(7.0 + ring_time("all_reduce", 400, 2, 0.0, 100.0))


def test_thousands_of_ranks_are_one_replay() -> None:
    levels = (Level(8, 1e-6, 450e9), Level(512, 5e-6, 400e9))
    cost = partial(collective_seconds, levels=levels)
    many = tuple(Bucket(4.0 * nth / 1000, 25_000_000) for nth in range(1, 1001))
    of_many = PROFILE, many, Layout(data=4096), Links(cost, cost, cost)
    assert len(works_of(*of_many)) < 3 * len(many)
    assert predict(*of_many).step_s > PROFILE.step_s()


def test_ranks_that_wait_often_lose_more_to_the_slowest_of_each_part() -> None:
    split = Layout("single", tensor=2, layers=3)
    assert split.waits(2, 0) == 4 * 3 * 2 + 1
    assert Layout("fsdp", data=2).waits(2, 4) == 4 * (2 * 2 + 1) + 1
    assert Layout("ddp", data=2).waits(2, 4) == Layout("fsdp").waits(2, 4) == 1
    noisy = Profile(2.0, 4.0, 1.0, PROFILE.gradients, spread=0.1)
    prediction = predict(noisy, (), split, fixed(0.0))
    # 13 parts of equal length, each with a deviation of 0.35 s / sqrt(13), wait for the slower one.
    assert prediction.parts["straggler"] == pytest.approx(13 * 0.35 / 13**0.5 * slowest_of(2))


DRAWS = 1000


def test_known_deviations_join_as_independent_normal_ones() -> None:
    assert half_width([]) == half_width([EXACT]) == 0.0
    assert half_width([Deviation(0.03), Deviation(0.04)]) == pytest.approx(1.96 * 0.05, rel=1e-3)
    # Four degrees of freedom: 2.776 standard deviations, by any table of Student's t.
    assert half_width([Deviation(0.1, 4)]) == pytest.approx(0.2776, rel=1e-3)
    # A part that is known well makes the sum better known than its worst part.
    assert half_width([Deviation(0.1, 4), Deviation(0.1)]) < 2.776 * 0.1 * math.sqrt(2)


def test_the_spread_is_that_within_groups() -> None:
    assert spread([[0.1], [0.2]]) is None
    pooled = spread([[1.0, math.exp(0.02)], [10.0, 10.0 * math.exp(0.04)], [3.0]])
    assert pooled and pooled.freedom == 2
    assert pooled.sd == pytest.approx(math.sqrt((0.02**2 + 0.04**2) / 2 / 2))


@pytest.mark.parametrize(("basis", "starts", "repeats"), [(1, 3, 1), (2, 5, 3), (1, 4, 2)])
@pytest.mark.parametrize("sd", [0.02, 0.15])
def test_nineteen_of_twenty_measurements_fall_inside(
    basis: int, starts: int, repeats: int, sd: float
) -> None:
    draws = np.random.default_rng(basis + 10 * starts + 100 * repeats)
    inside = 0
    for _ in range(DRAWS):
        # A step of 100 ms in so many processes: of the basis, of the calibration, of the run.
        records, calibrated, run = (
            (0.1 * np.exp(draws.normal(0.0, sd, count))).tolist()
            for count in (basis, starts, repeats)
        )
        known = spread([records, calibrated])
        width = half_width([of_processes(known, basis=basis, measured=repeats)])
        predicted, measured = statistics.median(records), statistics.median(run)
        inside += predicted / (1 + width) <= measured <= predicted * (1 + width)
    assert 0.90 <= inside / DRAWS <= 0.99


def test_without_a_spread_that_of_quiet_cores_is_assumed() -> None:
    assert of_processes(None, basis=1, measured=1).sd == pytest.approx(
        UNKNOWN_SPREAD * math.sqrt(2)
    )
    assert of_processes(None, basis=3, measured=3).sd < of_processes(None, basis=1, measured=3).sd


def test_an_interval_reaches_down_to_the_step_without_the_foreign_load() -> None:
    assert of_foreign_load(0.0) == EXACT
    # Others had half of the cores: by itself the step takes half as long.
    assert 1 + half_width([of_foreign_load(0.5)]) == pytest.approx(2.0, rel=1e-3)
    assert half_width([of_foreign_load(0.99)]) == half_width([of_foreign_load(0.5)])
