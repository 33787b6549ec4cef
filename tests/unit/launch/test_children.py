"""Where the workers of a DataLoader stand when their rank hangs."""

from __future__ import annotations

import multiprocessing
import sys
import time

import pytest
from torch.utils.data import DataLoader, Dataset

from lab.launch.children import Children, busy, listed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks by a real-time signal")


class Stuck(Dataset[int]):
    """Its second sample arrives only when it is freed."""

    def __init__(self) -> None:
        self.freed = multiprocessing.Event()

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        while index == 1 and not self.freed.is_set():
            time.sleep(0.5)
        return index


def test_the_worker_that_is_stuck_is_named_and_the_idle_one_is_not() -> None:
    children = Children()
    data = Stuck()
    loader = iter(DataLoader(data, num_workers=2, batch_size=1))
    idle, stuck = (worker.pid for worker in loader._workers)
    try:
        assert next(loader).tolist() == [0]
        place = f"its DataLoader worker {stuck} stood in __getitem__ (test_children.py:"
        deadline = time.monotonic() + 60
        while place not in (found := busy(stacks := children.stacks())):
            assert time.monotonic() < deadline, found
        assert str(idle) not in found.split("; ")[0]
        text = listed({pid: stacks[pid] for pid in (idle, stuck)})
        assert f"Process {idle}, started by this rank" in text and "time.sleep(0.5)" in text
    finally:
        data.freed.set()
