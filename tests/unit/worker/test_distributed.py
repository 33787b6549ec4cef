"""The process group of a run."""

from __future__ import annotations

import json
import pickle
import socket
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist
from torch.distributed import TCPStore

from lab.errors import LabError
from lab.files import write_atomically
from lab.records.schema import Event
from lab.worker import distributed
from lab.worker.context import RankContext
from lab.worker.distributed import ClockOffset, averaging, decode, encode, open_store
from lab.worker.environment import CpuUse, StateBytes
from lab.worker.measure.ddp_hook import Buckets
from lab.worker.script.main import _torchrun


def test_a_group_outlives_what_was_wrapped_with_it(tmp_path: Path) -> None:
    """DDP's reducer would free it under Python's lock, for which a thread of the group waits."""
    place = RankContext(0, 1, 0, "cpu", (0,), 1, "local", tmp_path / "address", timeout_s=60.0)
    with distributed.process_group(place, device=torch.device("cpu")):
        formed = dist.group.WORLD
    assert not dist.is_initialized()
    assert any(group is formed for group in distributed._LEFT)


def test_the_limit_of_a_back_end_comes_after_the_watchdogs(tmp_path: Path) -> None:
    place = RankContext(0, 2, 0, "cuda", (0,), 1, "local", tmp_path / "address", timeout_s=900.0)
    assert distributed._collective_timeout(place) > place.start_timeout_s >= place.timeout_s
    assert distributed._collective_timeout(replace(place, backend="gloo")) > place.timeout_s + 2


def test_an_average_is_the_same_on_the_way_and_by_hand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On one rank; the integration tests hold the losses of several to each other."""
    place = RankContext(0, 1, 0, "cpu", (0,), 1, "local", tmp_path / "address", timeout_s=60.0)
    with distributed.process_group(place, device=torch.device("cpu")):
        values = torch.arange(6.0)
        assert averaging(values) == dist.ReduceOp.SUM
        monkeypatch.setattr(dist, "get_world_size", lambda: 2)
        averaging(values)
        assert values.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
        monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
        assert averaging(values) == dist.ReduceOp.AVG
        assert values.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("host", "address"), [("127.0.0.1", "127.0.0.1"), ("localhost", "0.0.0.0")]
)
def test_ranks_meet_where_only_they_can(tmp_path: Path, host: str, address: str) -> None:
    """By an address alone, where there is one; with a secret that lies in a private file."""
    meeting = tmp_path / "address"
    context = RankContext(0, 2, 0, "cpu", (0,), 1, "test", meeting, host=host)
    store = open_store(context)
    port = int(meeting.read_text().split()[1])
    listening = [
        one.laddr.ip
        for one in psutil.Process().net_connections("tcp")
        if one.status == psutil.CONN_LISTEN and one.laddr.port == port
    ]
    assert listening == [address]
    assert stat.S_IMODE(meeting.stat().st_mode) == 0o600
    other = open_store(replace(context, rank=1))
    other.set("key", "value")
    assert store.get("key") == b"value"
    # Of two nodes the second is called otherwise, and must be sent to the first.
    elsewhere = replace(context, rank=1, host="198.51.100.2", nodes=2)
    meant = _torchrun(elsewhere, other.underlying_store)
    assert (meant["MASTER_ADDR"], meant["MASTER_PORT"]) == (host, str(port))
    assert [meant[name] for name in ("GROUP_RANK", "GROUP_WORLD_SIZE")] == ["1", "2"]
    assert meant["LOCAL_WORLD_SIZE"] == "1"
    plain = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    assert not plain.check(["key"])


def test_ranks_meet_with_a_torch_whose_newer_backend_takes_no_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def store(*place: Any, use_libuv: bool = True, **options: Any) -> TCPStore:
        if use_libuv and options["master_listen_fd"] is not None:
            raise NotImplementedError("The libuv TCPStore backend does not support it")
        return TCPStore(*place, use_libuv=use_libuv, **options)

    monkeypatch.setattr("lab.worker.distributed.TCPStore", store)
    context = RankContext(0, 2, 0, "cpu", (0,), 1, "test", tmp_path / "address")
    first, second = open_store(context), open_store(replace(context, rank=1))
    second.set("key", "value")
    assert first.get("key") == b"value"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere gloo takes another one")
def test_gloo_takes_the_interface_of_a_ranks_address(tmp_path: Path) -> None:
    context = RankContext(0, 2, 0, "cpu", (0,), 1, "test", tmp_path / "address", nodes=2)
    for name, addresses in psutil.net_if_addrs().items():
        for own in (each.address for each in addresses if each.family == socket.AF_INET):
            assert replace(context, host=own).interface == name
    assert replace(context, host="198.51.100.2").interface is None


def test_a_rank_that_cannot_reach_rank_0_fails_at_once(tmp_path: Path) -> None:
    """As on another node, where an address of the loopback interface leads nowhere."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    meeting = tmp_path / "address"
    write_atomically(meeting, f"127.0.0.1 {port} secret".encode(), mode=0o600)
    context = RankContext(1, 2, 0, "cpu", (0,), 1, "test", meeting)
    with pytest.raises(LabError, match=rf"127.0.0.1, port {port}: Connection refused.*interface"):
        open_store(context)


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
