"""What tests of several ranks rely on."""

from __future__ import annotations

import gc
import os
import threading

import pytest
from ranks import on_ranks


def square(rank: int, factor: int) -> int:
    return factor * rank**2


def fail(rank: int) -> None:
    if rank == 1:
        raise ValueError("rank 1 fails")
    threading.Event().wait()


def test_each_rank_answers_in_its_place() -> None:
    assert on_ranks(3, square, 2) == [0, 2, 8]


def test_the_failure_of_a_rank_does_not_wait_for_the_others() -> None:
    with pytest.raises(ValueError, match="rank 1 fails"):
        on_ranks(2, fail)


def variable(rank: int) -> str | None:
    return os.environ.get("OF_A_TEST")


def test_ranks_have_the_environment_that_the_test_has_by_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_ranks(1, variable)
    monkeypatch.setenv("OF_A_TEST", "set")
    assert on_ranks(2, variable) == ["set", "set"]


def frozen(rank: int) -> int:
    return gc.get_freeze_count()


def test_what_ranks_share_is_exempt_from_collections() -> None:
    (objects,) = on_ranks(1, frozen)
    assert objects > 100_000
