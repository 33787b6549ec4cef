"""The law of layouts: what must always hold, and fits to rows that it made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cases import CASES, case
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.perfmodel.frameworks import NANOTRON
from lab.perfmodel.hardware import machine
from lab.perfmodel.layout_law import NAMES, LayoutLaw, expected, fit
from lab.perfmodel.layout_terms import Case


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(CASES), st.integers(2, 8))
def test_more_work_never_takes_less_time(one: Case, factor: int) -> None:
    law = expected("a100")
    candidate = one.candidate
    more = [
        replace(one, candidate=replace(candidate, grad_accum=candidate.grad_accum * factor)),
        replace(one, candidate=replace(candidate, micro_batch=candidate.micro_batch * factor)),
        replace(one, sequence=one.sequence * factor),
        replace(one, model=replace(one.model, layers=one.model.layers * factor)),
        replace(one, candidate=replace(candidate, checkpointing="full")),
    ]
    assert (law.predict(more) > law.predict([one])).all()


def true_law() -> LayoutLaw:
    values = expected("a100").coefficients
    factors = dict(zip(NAMES, np.linspace(0.6, 1.6, len(NAMES)), strict=True))
    return LayoutLaw({name: value * factors[name] for name, value in values.items()})


def test_ten_rows_teach_the_others_and_crashed_neighbours_do_not_spoil_it() -> None:
    truth = true_law().predict(CASES)
    places = np.random.default_rng(1).permutation(len(CASES))
    known, others = places[:10], places[10:]
    law = fit([CASES[place] for place in known], truth[known].tolist())
    rest = [CASES[place] for place in others]
    before = np.abs(expected("a100").predict(rest) / truth[others] - 1).mean()
    error = np.abs(law.predict(rest) / truth[others] - 1).mean()
    assert error < 0.05 < before
    spoiled = truth[known].copy()
    spoiled[3] *= 30
    robust = fit([CASES[place] for place in known], spoiled.tolist())
    assert np.abs(robust.predict(rest) / truth[others] - 1).mean() < 0.1


def test_rows_that_agree_with_what_is_expected_leave_it() -> None:
    """Ten rows that differ from it by chance, each by 5 %, move the others by less than 1 %."""
    law, moved = expected("a100"), []
    steps = law.predict(CASES)
    for seed in range(8):
        rng = np.random.default_rng(seed)
        measured = steps * np.exp(0.05 * rng.standard_normal(len(steps)))
        rows = rng.permutation(len(CASES))[:10]
        fitted = fit([CASES[row] for row in rows], measured[rows].tolist())
        moved.append(np.abs(fitted.predict(CASES) / steps - 1).mean())
    assert np.mean(moved) < 0.01


def test_intervals_allow_for_transfers_that_may_be_delayed() -> None:
    """On 5 to 32 nodes of nanotron the later end is that of delayed ones; a stage has none."""
    few, some, alone = (
        replace(case(data=data, pipeline=stages, accum=8, sharing="zero1"), framework=NANOTRON)
        for data, stages in ((8, 4), (16, 4), (64, 1))
    )
    law = expected("h100", NANOTRON)
    cases = [few, some, alone]
    longer = law.delayed(cases) - law.predict(cases)
    assert longer.tolist() == pytest.approx([0, law.coefficients["stall"] * (4 * 8 + 3), 0])
    _, high = law.intervals(cases)
    assert (high > law.delayed(cases)).all()
    without = [replace(one, framework=replace(NANOTRON, safe_reach=32)) for one in cases]
    low, high = law.intervals(without)
    assert (law.intervals(cases)[0] == low).all()
    assert (law.intervals(cases)[1] > high).tolist() == [False, True, False]


def test_intervals_hold_what_was_predicted_and_rows_narrow_them() -> None:
    prior, truth = expected("a100"), true_law().predict(CASES)
    law = fit(CASES, truth.tolist())
    for some in (prior, law):
        low, high = some.intervals(CASES)
        steps = some.predict(CASES)
        assert ((low < steps) & (steps < high)).all()
    before, after = (np.subtract(*np.log(one.intervals(CASES))[::-1]) for one in (prior, law))
    assert (after < before).all()


def test_ten_rows_that_differ_by_a_fifth_tell_how_far_others_are_off() -> None:
    """Rows pull the law to themselves: what it leaves of them is less than others differ."""
    truth, inside = true_law().predict(CASES), []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        measured = truth * np.exp(0.2 * rng.standard_normal(len(truth)))
        known, others = np.split(rng.permutation(len(CASES)), [10])
        law = fit([CASES[place] for place in known], measured[known].tolist())
        low, high = law.intervals([CASES[place] for place in others])
        inside.append(np.mean((low <= measured[others]) & (measured[others] <= high)))
    assert np.mean(inside) > 0.9


def test_no_rows_leave_what_is_expected() -> None:
    assert fit([], []).coefficients == expected().coefficients
    assert expected("h100-pcie").coefficients["flops"] > expected("a100").coefficients["flops"]


def test_of_as_many_rows_of_two_gpus_the_first_ones_are_expected() -> None:
    h100 = replace(CASES[0], machine=machine("h100"))
    steps = [0.1, 0.1]
    of_a100, of_h100 = fit([CASES[0], h100], steps), fit([h100, CASES[0]], steps)
    assert of_a100.coefficients["flops"] < of_h100.coefficients["flops"]
