"""Closed forms of what communication costs a data-parallel step, with R = T_compute / T_communication of one rank."""

from __future__ import annotations

# Backward costs twice the forward pass (two products of matrices for one), so two thirds of compute can hide communication.
BACKWARD_SHARE = 2 / 3


def efficiency_without_overlap(r: float) -> float:
    """Efficiency where compute and communication take turns: `R / (1 + R)`.

    Raises ValueError for a negative R.
    """
    _check(r)
    return r / (1 + r)


def efficiency_with_overlap(r: float, *, backward_share: float = BACKWARD_SHARE) -> float:
    """Efficiency where communication hides behind the backward pass as far as that reaches.

    The step is `max(T_compute, (1 - backward_share) T_compute + T_communication)`, so the efficiency is
    `1 / max(1, 1 - backward_share + 1 / R)`. Raises ValueError for a negative R or a share outside [0, 1].
    """
    _check(r)
    if not 0 <= backward_share <= 1:
        raise ValueError(f"backward_share {backward_share} is outside [0, 1]")
    return 0.0 if r == 0 else 1 / max(1.0, 1 - backward_share + 1 / r)


def _check(r: float) -> None:
    if r < 0:
        raise ValueError(f"R {r} is negative")
