"""Fixtures of the tests of a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist

from lab.worker.distributed import leave_group


@pytest.fixture(autouse=True)
def no_group_left() -> Iterator[None]:
    """End the process group that a failed test leaves, in which all later ones would fail."""
    yield
    if dist.is_initialized():
        leave_group()
