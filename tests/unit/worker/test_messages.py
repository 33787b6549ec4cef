"""What ranks tell each other arrives as it was, and makes nothing but values."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lab.records.schema import Event
from lab.worker.distributed import ClockOffset
from lab.worker.environment import CpuUse, StateBytes
from lab.worker.measure.ddp_hook import Buckets
from lab.worker.messages import decode, encode

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner)
        | st.builds(ClockOffset, st.floats(allow_nan=False), st.floats(allow_nan=False))
        | st.builds(StateBytes, st.integers(), st.integers())
    ),
    max_leaves=12,
)


@given(VALUES)
def test_values_arrive_as_they_were(value: Any) -> None:
    assert decode(encode(value)) == value


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3).T,
        np.array([0.1, np.nan, np.inf]),
        np.array([], dtype=np.float32),
        np.array(["forward", "ä"]),
        np.array(True),
    ],
    ids=["turned", "not finite", "empty", "text", "single"],
)
def test_arrays_arrive_as_they_were(array: Any) -> None:
    arrived = decode(encode(array))
    assert arrived.dtype == array.dtype and arrived.shape == array.shape
    np.testing.assert_array_equal(arrived, array)
    arrived[...] = arrived.copy()  # theirs to change


def test_tensors_arrive_as_they_were() -> None:
    states = [torch.get_rng_state(), torch.ones(2, 3, dtype=torch.int64)]
    for arrived, sent in zip(decode(encode(states)), states, strict=True):
        assert arrived.dtype == sent.dtype and torch.equal(arrived, sent)


def test_the_lab_s_own_types_arrive() -> None:
    numbers = np.arange(3)
    buckets = Buckets(numbers, numbers, numbers / 2, numbers / 3, numbers / 4, numbers)
    bars = (np.float64(0.5), [Event(rank=0, name="forward", start=0.0, end=1.0)])
    use = CpuUse(1.0, 0.5, {0: 0.25, 3: 0.5})
    arrived, arrived_bars, arrived_use = decode(encode((buckets, bars, use)))
    assert isinstance(arrived, Buckets) and arrived.bytes.tolist() == [0, 1, 2]
    assert (arrived_bars, arrived_use) == (bars, use)


@pytest.mark.parametrize(
    "message",
    [
        ["os:system", {"command": "true"}],
        ["subprocess:Popen", {"args": "true"}],
        ["lab.files:write_atomically", {"path": "x", "content": ""}],
        ["lab.worker.distributed:TCPStore", {}],
        ["nowhere:Nothing", {}],
    ],
)
def test_a_message_makes_nothing_but_values_of_the_lab(message: Any) -> None:
    with pytest.raises(TypeError, match="do not send"):
        decode(json.dumps(message).encode())


def test_a_pickle_is_no_message() -> None:
    with pytest.raises(ValueError):
        decode(pickle.dumps({"a": 1}))


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", np.array([object()])])
def test_other_types_are_refused_where_they_are_sent(value: Any) -> None:
    with pytest.raises(TypeError, match="do not send"):
        encode(value)
