"""The course's exercises: right answers, wrong ones and their hints."""

from __future__ import annotations

import math
import re
from collections import namedtuple
from contextlib import nullcontext
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from factories import record, traced
from hypothesis import given
from hypothesis import strategies as st

import lab
from lab.config.cluster import Cluster
from lab.config.run import Run
from lab.config.study import Study
from lab.course.check import WrongAnswerError, exercises, judge, kept, number, read_kept, verdict
from lab.course.lesson02_03_data_parallel import Ring
from lab.perfmodel.flops import gpt_flops_per_token, gpt_parameters
from lab.records.schema import RankMemory

RUN = Run.model_validate({"model": "gpt-nano", "global_batch_size": 8})
N = gpt_parameters(RUN.architecture, 4096)
FLOPS = gpt_flops_per_token(RUN.architecture, 4096)
T = {1: 2.0, 2: 1.25, 4: 1.0}
ALONE = {"phases": {"forward": 2.0, "backward": 4.0, "optimizer": 1.0, "data": 1.0}, "ranks": 2}


def ring_all_reduce(ring: Ring) -> None:
    for add in (True, False):
        for r in range(ring.n - 1):
            for k in range(ring.n):
                ring.send(k, k - r + (not add), add=add)
            ring.end_round()


# Per exercise what is given, the right answer, and wrong answers with a part of the hint that each must get.
CASES: dict[str, tuple[dict[str, Any], Any, dict[Any, str]]] = {
    "00.ranks": (
        {"profile": Cluster(name="two", executor="local", devices=2)},
        2,
        {3: "device of its own"},
    ),
    "00.micro-batch": (
        {"global_batch_size": 96, "world_size": 4, "grad_accum": 3},
        8,
        {32: "world size", 24: "pieces", 7: "divide"},
    ),
    "00.largest-model": (
        {"memory_bytes": 16e9},
        1e9,
        {4e9: "two moments", 2e9: "AdamW", 1.0: "bytes", 1000.0: "not millions"},
    ),
    "01.prediction": ({"measured": 2.0}, 3, {0: "yours"}),
    "01.parameters": (
        {"run": RUN},
        N,
        {N + 4096 * 128: "once", N - 4096 * 128: "token embedding", N - 2 * 128: "last layer norm"},
    ),
    "01.flops": (
        {"run": RUN},
        FLOPS,
        {
            FLOPS / 3: "backward",
            FLOPS - 12 * 4 * 128 * 128: "Attention",
            FLOPS + 6 * 128 * 128: "not the position embedding",
        },
    ),
    "01.noise": (
        {"step_s": [1.0, 1.1, 1.2]},
        0.1 / 1.1,
        {math.sqrt(0.02 / 3) / 1.1: "n - 1", 0.1: "mean", 100 / 11: "per cent"},
    ),
    "01.repeats": (
        {"step_s": [0.95, 1.0, 1.05], "difference": 0.05},
        16,
        {8: "Both|one of two", 3: "rounded", 15.7: "rounded"},
    ),
    "02.bytes": (
        {"size": 8e6, "ranks": 8},
        14e6,
        {7e6: "travel back", 16e6: "n - 1 rounds, not n", 14: "not MB"},
    ),
    "02.busbw": (
        {"size": 1e9, "seconds": 0.1, "ranks": 4},
        15e9,
        {1e10: "algbw", 15: "not GB/s", 7.5e9: "twice"},
    ),
    "02.alpha-beta": (
        {"sizes": [1e6, 2e6], "seconds": [2e-3, 3e-3]},
        (1e-3, 1e9),
        {
            (1e-3, 1e-9): "inverse",
            (0.0, 1e9): "alpha is",
            (1e-3, 1.0): "not GB/s",
            (1e-3, 2e9): "slope",
            (1e-3,): "two numbers",
        },
    ),
    "02.half": ({"alpha_s": 1e-3, "bytes_per_s": 1e9}, 1e6, {1e9: "equal", 1000: "not kB"}),
    "03.average": (
        {"gradients": [1.0, 5.0], "samples": [6, 2]},
        2.0,
        {3.0: "plain mean", 6.0: "sum", 4.0: "weigh"},
    ),
    "03.tensors": ({"layers": 4}, 52, {48: "last norm", 27: "bias", 50: "Count"}),
    "03.bytes": ({"parameters": 1000}, 4000, {1000: "4 bytes", 16000: "moments", 4: "not kB"}),
    "03.latency": (
        {"layers": 4, "alpha_s": 1e-3},
        0.051,
        {0.052: "One call", 52.0: "alpha once", 51.0: "not ms"},
    ),
    "03.losses": ({"curves": [[2.0, 1.0], [2.0, 1.0001]]}, 1e-4, {0.5: "max over"}),
    "03.hidden": (
        {"total_s": 4.0, "exposed_s": 1.0},
        0.75,
        {0.25: "exposed", 0.5: "divide", 75: "per cent"},
    ),
    "04.prediction": ({"step_s": T, "ranks": 2}, 1.9, {-1: "yours"}),
    "04.speedup": ({"step_s": T, "ranks": 2}, 1.6, {0.625: "other way", 0.8: "efficiency"}),
    "04.efficiency": ({"step_s": T, "ranks": 4}, 0.5, {50: "per cent", 2.0: "Divide"}),
    "04.slowest": (
        {"one_s": 8.0, "ranks_s": [4.0, 2.0]},
        2.0,
        {8 / 3: "mean over ranks", 4.0: "fastest"},
    ),
    "04.karp-flatt": ({"step_s": T, "ranks": 2}, 0.25, {0.125: "denominator", 25: "per cent"}),
    "04.limit": ({"fraction": 0.25}, 4, {0.25: "what remains"}),
    "04.amdahl": (
        {"fraction": 0.25, "ranks": 3, "measured": 1.6},
        2.0,
        {2.5: "Gustafson", 0.5: "other way"},
    ),
    "05.efficiency": (
        {"step_s": {1: 1.0, 2: 1.25}, "ranks": 2},
        0.8,
        {0.4: "Do not divide", 1.25: "inverse"},
    ),
    "05.throughput": ({"step_s": {1: 1.0, 2: 1.25}, "ranks": 2}, 1.6, {0.8: "N times the samples"}),
    "05.gustafson": ({"fraction": 0.25, "ranks": 3}, 2.5, {2.0: "Amdahl"}),
    "05.steps": ({"samples": 1000, "batch_per_rank": 5, "ranks": 4}, 50, {200: "global batch"}),
    "05.learning-rate": (
        {"rate": 1e-3, "factor": 4},
        2e-3,
        {4e-3: "for SGD", 5e-4: "may be larger"},
    ),
    "05.learning": (
        {"small": [4.0, 3.0, 2.0, 1.0], "large": [4.0, 2.5, 2.0, 1.5], "factor": 2},
        1.5,
        {0.5: "equal steps", 9.0: "fewer", -1.5: "sign"},
    ),
    "06.ratio": ({"compute_s": 3.0, "communication_s": 1.0}, 3.0, {1 / 3: "inverse"}),
    "06.band": (
        {"compute_s": 2.0, "communication_s": 2.0},
        (0.5, 0.75),
        {(0.75, 0.5): "order", (0.5, 1.0): "max", (0.9, 0.75): "share", (50, 75): "per cent"},
    ),
    "06.required-ratio": ({"efficiency": 0.9}, 9.0, {0.9: "Solve"}),
    "06.break-even": (
        {"gradient_bytes": 1e6, "step_s": 0.5},
        4e6,
        {2e6: "gains only", 32e6: "bits", 4: "not MB/s"},
    ),
    "06.step": (
        {"epoch_s": 10.0, "samples": 1000, "batch_per_rank": 5, "ranks": 4},
        0.2,
        {0.05: "per rank", 200: "not ms"},
    ),
    "06.transfer": (
        {"parameters": 1e6, "ranks": 2, "bytes_per_s": 1e9},
        4e-3,
        {1e-3: "4 bytes", 4.0: "not ms"},
    ),
    "06.culprit": (
        {"rules": ["data-stall", "equal-work"]},
        "data-stall",
        {"equal-work": "as many samples", "baseline": "which of them", 3: "text"},
    ),
    "06.stall": ({"data_s": 0.1, "step_s": 0.4}, 0.25, {4.0: "inverse", 25.0: "per cent"}),
    "07.state": ({"parameters": 7e9}, 112e9, {14e9: "alone", 84e9: "fp32 copy", 112: "not GB"}),
    "07.zero": (
        {"parameters": 1e9, "ranks": 4},
        (7e9, 5.5e9, 4e9),
        {
            (4e9, 5.5e9, 4e9): "Stage 1",
            (7e9, 7e9, 4e9): "Stage 2",
            (7e9, 5.5e9, 5e9): "Stage 3",
            (7, 5.5, 4): "not GB",
        },
    ),
    "07.ranks": ({"parameters": 7e9, "bytes_per_rank": 40e9}, 3, {2: "Round up", 2.8: "rounded"}),
    "07.sent": ({}, 1.5, {1.0: "twice", 3.0: "two passes"}),
    "07.optimizer": ({"sharded": 4e6, "whole": 8e6}, 0.5, {2.0: "inverse"}),
    "07.levels": (
        {"alone": 12e6, "ddp": 16e6, "weights": 4e6},
        (3.0, 4.0),
        {
            (12.0, 16.0): "not MB",
            (4.0, 4.0): "one device",
            (3.0, 3.0): "DDP holds",
            3.0: "two numbers",
        },
    ),
    "07.flattened": (
        {
            "plain": RankMemory(start=0, end=1, held=20, bytes=[20, 100, 60]),
            "recomputed": RankMemory(start=0, end=1, held=20, bytes=[20, 30, 40]),
        },
        0.75,
        {0.6: "Subtract", 0.25: "what is left"},
    ),
    "08.trace": (
        {"trace": traced(record(Run(world_size=2, global_batch_size=8))).trace, "rank": 1},
        0.43,  # read by eye
        {0.6: "works", 0.2: "over the step", 40: "between 0 and 1"},
    ),
    "08.context": (
        {"tokens": 80, "ranks": 4, "heads": 4, "key_value_heads": 2, "width": 10},
        3 * 2 * 2 * 20 * 5,
        {600: "two tensors", 2400: "queries", 1600: "N - 1", 400: "one round"},
    ),
    "08.experts": (
        {"tokens": 10, "width": 8, "active": 2, "ranks": 4},
        2 * 2 * 10 * 8 * 2 * 3 / 4,
        {240: "back", 640: "own rank"},
    ),
    "08.bubble": (
        {"stages": 4, "microbatches": 8},
        3 / 11,
        {0.375: "over the work", 8 / 11: "works"},
    ),
    "08.microbatches": ({"stages": 4, "share": 0.1}, 27, {30: "not m", 26: "round up"}),
    "08.boundary": ({"batch": 2, "tokens": 3, "width": 5}, 240, {120: "come back", 60: "4 bytes"}),
    "08.tensor": (
        {"batch": 2, "tokens": 3, "width": 5, "layers": 7},
        3360,
        {1680: "backward", 480: "Every layer", 840: "4 bytes"},
    ),
    "08.ratio": (
        {"batch": 5, "tokens": 100, "width": 25, "layers": 4, "parameters": 1e5},
        2.0,
        {0.5: "inverse"},
    ),
    "09.epsilon": ({}, 2**-7, {2**-10: "fp16", 2**-23: "fp32", 2**-8: "exponent"}),
    "09.loss-scale": (
        {"gradient": 1e-8},
        8192,
        {4096: "still below", 13: "exponent", 8: "single bit"},
    ),
    "07.activations": (
        {"tokens": 100, "width": 10, "layers": 2},
        68000.0,
        {34000.0: "Every layer", 6.8e-5: "not GB"},
    ),
    "07.recomputation": ({}, 4 / 3, {2.0: "comes again", 1 / 3: "what is added"}),
    "09.speedup": ({"fp32_s": 1.0, "bf16_s": 2.0}, 0.5, {2.0: "inverse"}),
    "09.size": ({"rows": 64, "columns": 64}, 4 * 64 / 68, {4.0: "scales", 2.0: "byte"}),
    "09.decode": (
        {"parameters": 1e9, "bytes_per_weight": 1, "bandwidth": 1e12},
        1000,
        {250: "bytes of fp32", 0.001: "inverse", 500: "read once"},
    ),
    "09.perplexity": ({"base": 10.0, "quantized": 10.5}, 1.05, {1.0: "over", 10 / 10.5: "inverse"}),
    "10.compute": (
        ALONE,
        4.5,
        {4.0: "should make it shorter", 8.0: "share of the samples", 5.0: "reads only"},
    ),
    "10.turns": (ALONE | {"all_reduce_s": 1.0}, 5.5, {4.5: "added", 5500: "not ms"}),
    "10.hidden": (
        ALONE | {"all_reduce_s": 3.0},
        5.5,
        {4.5: "longer"},
    ),
    "10.error": (
        ALONE | {"all_reduce_s": 2.0, "measured": 4.0},
        0.625,
        {62.5: "per cent", 5 / 13: "what was measured"},
    ),
    "10.bandwidth": (
        {"one_s": 1.0, "two_s": 1.5, "gradient_bytes": 1e9},
        2e9,
        {4e9: "is 1", 1e9 / 1.5: "growth", 2: "not GB/s"},
    ),
    "10.score": (
        {"predicted": [1.5, 1.0], "measured": [1.0, 2.0]},
        0.5,
        {50.0: "per cent", 0.1: "mean"},
    ),
    "11.stop": ({"epoch_s": T, "threshold": 0.7}, 2, {4: "economical", 3: "largest"}),
    "11.device-hours": (
        {"epoch_s": {1: 100.0, 4: 36.0}, "epochs": 100, "threshold": 0.5},
        4.0,
        {1.0: "wall time", 14400.0: "not seconds"},
    ),
    "11.price": ({"epoch_s": T, "threshold": 0.5}, 2.0, {0.5: "inverse"}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_right_answer_is_right_and_a_known_mistake_gets_its_hint(name: str) -> None:
    known, right, wrong = CASES[name]
    word = "noted" if name.endswith("prediction") else "right"  # an expectation is not right
    assert verdict(name, right, **known).startswith(f"{name}: {word}.")
    for answer, hint in wrong.items():
        with pytest.raises(WrongAnswerError, match=f"{name}: not yet.*({hint})"):
            verdict(name, answer, **known)


@pytest.mark.parametrize("name", CASES)
def test_no_answer_and_no_number_get_the_exercise_s_hint_or_what_is_wanted(name: str) -> None:
    known, _, _ = CASES[name]
    for answer in ("soon", math.nan, 10**400, [1.0], object()):
        with pytest.raises(WrongAnswerError):
            verdict(name, answer, **known)
    for missing in (None, ..., (None, None), " "):
        with pytest.raises(
            WrongAnswerError, match=f"no answer yet. {re.escape(exercises()[name].hint)}"
        ):
            verdict(name, missing, **known)


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("name", CASES)
def test_every_answer_is_judged_in_the_language_of_the_catalogue(name: str) -> None:
    known, right, wrong = CASES[name]
    texts = [verdict(name, right, **known)]
    for answer in (*wrong, "soon", math.nan, None):
        with pytest.raises(WrongAnswerError) as caught:
            verdict(name, answer, **known)
        texts.append(str(caught.value))
    units = {"kB", "MB", "GB", "ms"}  # of any language
    values = {"str", "nan", *units, *known.get("rules", ())}
    for text in texts:
        assert set(re.findall(r"[A-Za-z]{2}[A-Za-z-]*", text.removeprefix(name))) <= values, text


class Failing:
    """Whatever is asked of it fails."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("not now")

    def __repr__(self) -> str:
        raise RuntimeError("not now")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not now")

    __hash__ = None  # type: ignore[assignment]


class FailingText(str):
    def __str__(self) -> str:
        raise RuntimeError("not now")


Pair = namedtuple("Pair", "first second")
Two = IntEnum("Two", {"TWO": 2})
INSIDE_ITSELF: list[Any] = [1.0]
INSIDE_ITSELF.append(INSIDE_ITSELF)
ITSELF_BY_KEY: dict[str, Any] = {}
ITSELF_BY_KEY["it"] = ITSELF_BY_KEY
DEEP: list[Any] = []
for _ in range(5000):
    DEEP = [DEEP]
ODD = [
    *(math.nan, math.inf, -math.inf, [math.nan, -math.inf], 10**400, -(10**5000), 1j, True),
    *(np.float64, np.ndarray, float, Failing, Failing(), [Failing()], FailingText("data-stall")),
    *(INSIDE_ITSELF, (INSIDE_ITSELF, 1.0), ITSELF_BY_KEY, DEEP, Pair(1.0, 2.0), Pair, Two.TWO),
    *(np.float32(math.nan), np.ones((2, 2)), np.array(["a"]), np.array([None]), np.array(3 + 1j)),
    *(torch.ones(2, requires_grad=True), torch.ones(2, device="meta"), torch.ones(2).to_sparse()),
    *(pd.Series([1.0, math.nan]), pd.Series(["a"]), pd.DataFrame({"item": [1], "tolist": [2]})),
    *(pd.NA, pd.NaT, pd.Timestamp(0), pd.DataFrame(), pd.Index([2.0]), pd.Categorical(["a"])),
    *({1.0, 2.0}, frozenset(), iter([1.0]), (one for one in [1.0]), range(2), map(abs, [1])),
    *("a'b\"c\nd\\e\0", "\ud800", "x" * 20_000, b"2", "nan", "", {(1, 2): {None: [3]}}),
    *({frozenset(): 1}, {(math.nan,): math.inf}, Decimal(2), Fraction(1, 2), Exception("2")),
    *(lambda: 2, lambda *_: {}[2], len, SimpleNamespace(item=lambda: 1 / 0, tolist=lambda: [[]])),
]
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.complex_numbers(),
    lambda parts: (
        st.lists(parts, max_size=3)
        | st.tuples(parts, parts)
        | st.dictionaries(st.text() | st.floats(), parts, max_size=2)
    ),
)


def outcome(name: str, answer: object, known: dict[str, Any]) -> bool:
    """Whether an answer is right; whatever it is, there is a sentence about it."""
    try:
        return bool(verdict(name, answer, **known))
    except WrongAnswerError as error:
        assert re.match(rf"{name}: (not yet|no answer yet)\. \S", str(error))
        return False


@pytest.mark.parametrize("name", CASES)
def test_any_answer_gets_a_sentence_and_the_same_verdict_when_it_is_graded(name: str) -> None:
    known, right, wrong = CASES[name]
    for answer in (*ODD, right, *wrong):
        graded = read_kept(kept(answer))
        assert outcome(name, answer, known) == outcome(name, graded, known), type(answer)


@pytest.mark.parametrize("name", ["02.alpha-beta", "04.speedup", "06.culprit", "08.trace"])
@given(answer=PLAIN)
def test_any_plain_answer_does_so_too(name: str, answer: Any) -> None:
    known, _, _ = CASES[name]
    assert outcome(name, answer, known) == outcome(name, read_kept(kept(answer)), known)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda parts: st.lists(parts) | st.dictionaries(st.text(), parts) | st.tuples(parts),
        max_leaves=9,
    )
)
def test_a_kept_answer_is_read_as_it_was(answer: Any) -> None:
    assert repr(read_kept(kept(answer))) == repr(answer)


def test_what_is_special_stays_so_when_it_is_graded() -> None:
    assert math.isnan(read_kept(kept(math.nan)))
    assert read_kept(kept(np.array([4]))) == read_kept(kept(torch.tensor([[4]]))) == 4
    assert read_kept(kept([math.inf, np.float64(-math.inf)])) == [math.inf, -math.inf]
    assert read_kept(kept({"nan": Two.TWO, 1: Pair("inf", 2)})) == {"nan": 2, 1: ("inf", 2)}


@pytest.mark.parametrize("exact", [Fraction(5, 4), Decimal("1.25")])
def test_exact_numbers_are_numbers(exact: Fraction | Decimal) -> None:
    assert number(exact) == read_kept(kept(exact)) == 1.25


def test_a_function_that_fails_is_told_its_line() -> None:
    def fails(row: Any) -> Any:
        return row[1000]

    line = fails.__code__.co_firstlineno + 1
    with pytest.raises(WrongAnswerError, match=rf"fails in line {line} \(IndexError: .*1000"):
        verdict("09.quantize", fails)
    with pytest.raises(WrongAnswerError, match=r"unexpected form \(TypeError: .* 0 positional"):
        verdict("02.ring", lambda: None)


def test_a_path_that_no_file_can_have_gets_a_sentence(tmp_path: Path) -> None:
    for answer in ("a\0b", "x" * 5000, FailingText("report.html")):
        with pytest.raises(WrongAnswerError, match=r"not yet\."):
            verdict("11.report", answer, study=tmp_path)


def test_a_measurement_that_is_not_given_is_no_wrong_answer() -> None:
    with pytest.raises(lab.InputError, match=r"04\.speedup: missing a required argument: 'ranks'"):
        verdict("04.speedup", 1.6, step_s=T)


def test_numbers_of_numpy_and_pandas_count_as_numbers() -> None:
    assert judge(np.float64(2.01), 2.0) == pytest.approx(2.01)
    assert judge(np.array([4]), 4, within=0) == 4
    assert judge(pd.Series([2.0]), 2.0) == judge(torch.tensor(2.0), 2.0) == 2.0
    for several in (np.ones(2), pd.Series([1.0, 1.0]), torch.ones(2)):
        with pytest.raises(WrongAnswerError, match="single number"):
            judge(several, 1.0)


@pytest.mark.parametrize("name", ["02.alpha-beta", "06.band", "07.zero", "07.levels"])
def test_several_numbers_may_come_as_a_tuple_a_list_or_an_array(name: str) -> None:
    known, right, _ = CASES[name]
    for answer in (right, list(right), np.array(right), pd.Series(right)):
        assert verdict(name, answer, **known).startswith(f"{name}: right.")


def test_a_number_left_out_among_several_is_asked_for() -> None:
    known, _, _ = CASES["02.alpha-beta"]
    with pytest.raises(WrongAnswerError, match=r"Give two numbers: \(alpha in s, B in bytes/s\)"):
        verdict("02.alpha-beta", (1e-3, None), **known)


def test_an_answer_that_follows_from_a_rounded_one_is_right() -> None:
    step_s = [1.0, 1.0464, 0.9536]  # their coefficient of variation is 4.64 %
    for answer, right in ((14, True), (15, True), (12, False), (14.5, False)):
        with nullcontext() if right else pytest.raises(WrongAnswerError):
            verdict("01.repeats", answer, step_s=step_s, difference=0.05)
    quiet = verdict("01.repeats", 1, step_s=[1.0, 1.001, 0.999], difference=0.05)
    assert "With 1 of each, a difference of 5 %" in quiet
    nearly_two = {"step_s": {1: 1.954, 2: 1.0}, "ranks": 2}  # a serial fraction of 0.0235
    verdict("04.karp-flatt", 2 / 1.95 - 1, **nearly_two)
    with pytest.raises(WrongAnswerError, match="denominator"):
        verdict("04.karp-flatt", 0.0118, **nearly_two)


def test_an_answer_that_is_rounded_too_far_is_asked_for_more_digits() -> None:
    known: dict[str, Any] = {"step_s": {1: 1.654, 2: 1.0}, "ranks": 2}
    with pytest.raises(WrongAnswerError, match="give more digits"):
        verdict("04.speedup", 1.7, **known)
    for other in (2, 1.6, 1.73):
        with pytest.raises(WrongAnswerError, match="by how many times"):
            verdict("04.speedup", other, **known)


def test_a_speedup_below_one_is_explained_by_no_serial_fraction() -> None:
    said = verdict("04.karp-flatt", 1.5, step_s={1: 1.0, 2: 1.25}, ranks=2)
    assert "150.0 %: above 100 %" in said and "No serial part explains that" in said


def test_a_share_of_nothing_hidden_and_a_link_without_latency_are_right_answers() -> None:
    assert "0 %" in verdict("03.hidden", 0.0, total_s=2.0, exposed_s=2.0)
    assert "0 %" in verdict("03.hidden", -0.05, total_s=2.0, exposed_s=2.1)
    assert "no latency" in verdict("02.half", 0.0, alpha_s=0.0, bytes_per_s=1e9)


def test_a_rule_of_the_audit_is_named_in_any_case() -> None:
    assert "right" in verdict("06.culprit", " Data-Stall ", rules=["data-stall"])


@pytest.mark.parametrize("bf16_s", [0.97, 1.03])
def test_two_medians_are_no_reason_to_call_bf16_faster_or_slower(bf16_s: float) -> None:
    said = verdict("09.speedup", 1.0 / bf16_s, fp32_s=1.0, bf16_s=bf16_s)
    assert said.endswith("where the repeats of the two overlap, call neither the faster one.")


def test_an_efficiency_above_1_is_not_explained_as_work() -> None:
    times = {"step_s": {1: 2.2, 2: 1.0}, "ranks": 2}
    for name, right in {"04.efficiency": 1.1, "05.efficiency": 2.2}.items():
        assert verdict(name, right, **times).endswith("noise or a weakened baseline.")


def test_a_weak_efficiency_above_1_is_not_called_impossible() -> None:
    with pytest.raises(WrongAnswerError, match=r"the inverse: divide the ideal T\(1\)"):
        verdict("05.efficiency", 0.9, step_s={1: 1.0, 2: 0.9}, ranks=2)


def test_a_small_ratio_is_not_said_to_be_zero() -> None:
    sentence = verdict("06.ratio", 0.02, compute_s=0.02, communication_s=1.0)
    assert "computes 0.0200 times as long" in sentence


def test_scales_count_in_a_large_matrix_too() -> None:
    with pytest.raises(WrongAnswerError, match="scales"):
        verdict("09.size", 4.0, rows=1024, columns=1024)


@given(st.floats(1e-9, 1e12), st.floats(0.0, 0.019))
def test_an_answer_within_two_per_cent_is_right_and_beyond_it_wrong(
    right: float, off: float
) -> None:
    judge(right * (1 + off), right)
    with pytest.raises(WrongAnswerError):
        judge(right * (1.03 + off), right)


def test_jobs_are_runs_times_repeats(make_study: Any) -> None:
    study = Study.load(make_study(repeats=3))
    # Whether they run one after the other depends on the cluster.
    assert "2 runs times 3: 6 jobs, each" in verdict("00.jobs", 6, study=study)
    with pytest.raises(WrongAnswerError, match="repeated 3 times"):
        verdict("00.jobs", 2, study=study)


def test_mfu_is_that_of_the_record() -> None:
    done = record(RUN, step_time=0.1)
    assert done.timing is not None
    verdict("01.mfu", done.timing.flops_per_second / 1e12, record=done, peak=1e12)
    with pytest.raises(WrongAnswerError, match="three times"):
        verdict("01.mfu", done.timing.flops_per_second / 3e12, record=done, peak=1e12)


def test_a_report_is_a_file_of_its_study(tmp_path: Path) -> None:
    for name in ("report.html", "report.pdf"):
        (tmp_path / name).write_text("<p>")
    verdict("11.report", tmp_path / "report.html", study=tmp_path)
    for answer, hint in (
        (tmp_path / "other.html", "no file"),
        (tmp_path / "report.pdf", "not the HTML"),
        (__file__, "another study"),
        (3, "path"),
    ):
        with pytest.raises(WrongAnswerError, match=hint):
            verdict("11.report", answer, study=tmp_path)


def test_rows_are_quantized_to_the_nearest_of_255_integers() -> None:
    def right(row: Any) -> tuple[Any, float]:
        scale = np.abs(row).max() / 127
        return np.round(row / scale), scale

    def in_place(row: Any) -> tuple[Any, float]:
        scale = np.abs(row).max() / 127
        row /= scale
        return np.round(row), scale

    assert "right" in verdict("09.quantize", right) and "right" in verdict("09.quantize", in_place)
    faulty = {
        "Return two": lambda row: row,
        "whole numbers": lambda row: (row, 1.0),
        "every value": lambda row: (row[:1], 1.0),
        "should become 127": lambda row: (np.round(row / 100), 100.0),
        "beyond": lambda row: (np.round(1000 * row), 1e-3),
        "inverse of the scale": lambda row: (right(row)[0], 1 / right(row)[1]),
        "half a scale": lambda row: (
            np.trunc(right(row)[0]) - np.sign(row) * (np.abs(row) < np.abs(row).max()),
            right(row)[1],
        ),
    }
    for hint, wrong in faulty.items():
        with pytest.raises(WrongAnswerError, match=hint):
            verdict("09.quantize", wrong)


def test_equal_sgd_must_be_equal() -> None:
    with pytest.raises(WrongAnswerError, match="do not train the same model"):
        verdict("03.losses", 0.5, curves=[[2.0, 1.0], [2.0, 1.5]])


@given(st.integers(2, 7))
def test_a_ring_sums_for_any_number_of_ranks(n: int) -> None:
    verdict("02.ring", ring_all_reduce, sizes=[n])


def test_faulty_rings_are_told_what_is_wrong() -> None:
    def forgets_the_end(ring: Ring) -> None:
        ring.send(0, 0, add=True)

    def only_reduces(ring: Ring) -> None:
        for r in range(ring.n - 1):
            for k in range(ring.n):
                ring.send(k, k - r, add=True)
            ring.end_round()

    def writes_the_sum(ring: Ring) -> None:
        sums = np.sum(ring.chunks, axis=0)
        for rank in ring.chunks:
            for mine, whole in zip(rank, sums, strict=True):
                mine[...] = whole
        ring.send(0, 0, add=False)
        ring.end_round()

    def one_at_a_time(ring: Ring) -> None:
        for add in (True, False):
            for r in range(ring.n - 1):
                for k in range(ring.n):
                    ring.send(k, k - r + (not add), add=add)
                    ring.end_round()

    cases = [
        (lambda ring: None, "Nothing was sent"),
        (forgets_the_end, "end_round"),
        (only_reduces, "does not hold all"),
        (writes_the_sum, "does not end with the sum"),
    ]
    for faulty, hint in [*cases, (one_at_a_time, "rank"), (3, "function itself")]:
        with pytest.raises(WrongAnswerError, match=hint):
            verdict("02.ring", faulty)


def test_a_ring_needs_as_many_chunks_as_ranks() -> None:
    with pytest.raises(ValueError, match="each of 2 ranks needs 2 chunks"):
        Ring([[1.0], [2.0]])


@pytest.mark.parametrize(
    ("answer", "hint"),
    [("1.65 ms", "or a unit"), ("1,65", "without quotation marks"), ((1, 65), "is a point")],
)
def test_an_answer_as_text_or_with_a_decimal_comma_is_told_how_to_write_it(
    answer: object, hint: str
) -> None:
    with pytest.raises(WrongAnswerError, match=hint):
        verdict("04.speedup", answer, step_s=T, ranks=2)


def test_a_verdict_states_the_right_number_where_a_near_one_was_given() -> None:
    assert "R of 9.0 for 90 %" in verdict("06.required-ratio", 9.15, efficiency=0.9)


def test_an_answer_of_another_type_is_told_its_type() -> None:
    with pytest.raises(WrongAnswerError, match=r"Give a single number; this is of type object\."):
        verdict("04.speedup", object(), step_s=T, ranks=2)


def test_check_counts_for_graders_and_shows_nothing_but_the_hint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(AssertionError) as caught:
        lab.check("04.speedup", 0.5, step_s=T, ranks=2)
    assert isinstance(caught.value, WrongAnswerError) and caught.value._render_traceback_() == [
        str(caught.value)
    ]
    lab.check("04.speedup", 1.6, step_s=T, ranks=2)
    captured = capsys.readouterr()
    assert "right" in captured.out and captured.err == ""
    with pytest.raises(lab.InputError, match=r"did you mean '04\.speedup'"):
        lab.check("04.speedupp", 1.0)


def test_every_check_is_tried() -> None:
    assert set(CASES) | {"00.jobs", "01.mfu", "02.ring", "09.quantize", "11.report"} == set(
        exercises()
    )


@pytest.mark.parametrize("answer", [(1.626,), (1, 626)])
def test_a_comma_in_a_number_is_said_to_make_a_tuple(answer: tuple[float, ...]) -> None:
    with pytest.raises(WrongAnswerError, match="a comma makes a tuple of it"):
        number(answer)
