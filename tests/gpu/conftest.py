"""Fixtures of the tests of a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from lab.worker.distributed import leave_group


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a GPU each test ends within a minute; a CPU that others use promises no time."""
    for item in items if torch.cuda.is_available() else []:
        if "gpu" in item.path.parts and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(60))


@pytest.fixture(autouse=True)
def no_group_left() -> Iterator[None]:
    """End the process group that a failed test leaves, in which all later ones would fail."""
    yield
    if dist.is_initialized():
        leave_group()
