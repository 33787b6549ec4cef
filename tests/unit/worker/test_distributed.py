"""The process group of a run."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import distributed as dist

from lab.worker import distributed
from lab.worker.context import RankContext


def test_a_group_outlives_what_was_wrapped_with_it(tmp_path: Path) -> None:
    """DDP's reducer would free it under Python's lock, for which a thread of the group waits."""
    place = RankContext(0, 1, 0, "cpu", (0,), 1, "local", tmp_path / "address", timeout_s=60.0)
    with distributed.process_group(place, device=torch.device("cpu")):
        formed = dist.group.WORLD
    assert not dist.is_initialized()
    assert any(group is formed for group in distributed._LEFT)
