"""Pictures of the lessons: what they tell those who do not see them is what they draw."""

from __future__ import annotations

import re

import pytest

from lab.course import Ring, pictures
from lab.report.blocks import Figure

EIGHT = range(8)
GPIPE = [("forward", m) for m in EIGHT] + [("backward", m) for m in EIGHT]


def one_f_one_b(stage: int) -> list[tuple[str, int]]:
    ahead = 3 - stage
    passes = [("forward", m) for m in range(ahead)]
    for m in range(8 - ahead):
        passes += [("forward", ahead + m), ("backward", m)]
    return passes + [("backward", m) for m in range(8 - ahead, 8)]


def rectangles(picture: Figure) -> int:
    """Bars that are drawn; the first patch is the sheet, the second the axes."""
    return len(re.findall(r'id="patch_\d+"', picture.svg)) - 2


def test_gpipe_and_1f1b_have_one_bubble_and_different_memory() -> None:
    gpipe = pictures.schedule([GPIPE] * 4)
    interleaved = pictures.schedule([one_f_one_b(stage) for stage in range(4)])
    for picture, kept in ((gpipe, 8), (interleaved, 4)):
        assert "33 slots" in picture.alt and "wait 27 %" in picture.alt  # 3/11 of the time
        assert f"up to {kept} micro-batches" in picture.alt
        assert rectangles(picture) >= 64


def test_stages_that_wait_for_each_other_are_not_drawn() -> None:
    with pytest.raises(ValueError, match="forever"):
        pictures.schedule([[("backward", 0), ("forward", 0)], [("forward", 0), ("backward", 0)]])


def test_a_ring_shows_what_arrived() -> None:
    ring = Ring([[1, 2], [10, 20]])
    ring.send(0, 0, add=True)
    ring.send(1, 1, add=False)
    ring.end_round()
    picture = pictures.chunks(ring)
    assert "rank 0 holds 1, 20; rank 1 holds 11, 20" in picture.alt
    assert "chunk 1 of rank 0, chunk 0 of rank 1" in picture.alt


def test_shares_are_those_of_zero() -> None:
    alt = pictures.shares(1e9, ranks=4, memory=1e10).alt
    # 16 bytes; 4 and a quarter of 12; 2 and a quarter of 14; a quarter of 16.
    assert "DDP 16 GB, ZeRO-1 7 GB, ZeRO-2 5.5 GB, ZeRO-3, FSDP 4 GB" in alt


def test_recomputation_trades_the_peak_for_time() -> None:
    alt = pictures.memory_of_step(
        state_bytes=10e9, gradient_bytes=2e9, layer_bytes=[4e9] * 5, kept_bytes=1e9
    ).alt
    # All five layers against five inputs and one layer that is there again.
    assert "30 GB at the peak, 18 GB with recomputation" in alt
