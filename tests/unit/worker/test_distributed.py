"""The process group of a run."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from torch import distributed as dist
from torch.distributed import TCPStore

from lab.worker import distributed
from lab.worker.context import RankContext
from lab.worker.distributed import averaging, open_store
from lab.worker.script.main import _torchrun


def test_a_group_outlives_what_was_wrapped_with_it(tmp_path: Path) -> None:
    """DDP's reducer would free it under Python's lock, for which a thread of the group waits."""
    place = RankContext(0, 1, 0, "cpu", (0,), 1, "local", tmp_path / "address", timeout_s=60.0)
    with distributed.process_group(place, device=torch.device("cpu")):
        formed = dist.group.WORLD
    assert not dist.is_initialized()
    assert any(group is formed for group in distributed._LEFT)


def test_nccls_own_limit_comes_after_the_watchdogs(tmp_path: Path) -> None:
    place = RankContext(0, 2, 0, "cuda", (0,), 1, "local", tmp_path / "address", timeout_s=900.0)
    assert distributed._collective_timeout(place) > place.start_timeout_s >= place.timeout_s
    assert distributed._collective_timeout(replace(place, backend="gloo")) == place.timeout_s


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
    elsewhere = replace(context, rank=1, host="198.51.100.2")
    meant = _torchrun(elsewhere, other.underlying_store)
    assert (meant["MASTER_ADDR"], meant["MASTER_PORT"]) == (host, str(port))
    plain = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    assert not plain.check(["key"])
