"""Judging one answer: what is not right is told with a hint, and counts as an error for whoever grades."""

from __future__ import annotations

import math
from collections.abc import Mapping

CLOSE = 0.02  # relative; answers are often read from tables that are rounded


class WrongAnswerError(AssertionError):
    """An answer that is not right yet; the message is the hint, and a notebook shows nothing but it."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def require(condition: bool, hint: str = "") -> None:
    """Raise WrongAnswerError with a hint where a condition does not hold; without one, the exercise's own hint is told."""
    if not condition:
        raise WrongAnswerError(hint)


def number(answer: object) -> float:
    """An answer as a float; raises WrongAnswerError for what is no finite number."""
    value = answer.item() if hasattr(answer, "item") and getattr(answer, "size", 1) == 1 else answer
    known = isinstance(value, int | float) and not isinstance(value, bool)
    require(known, f"A single number is wanted; this is a {type(answer).__name__}.")
    require(math.isfinite(float(value)), f"{value} is no finite number: look at what was divided by what.")  # type: ignore[arg-type]
    return float(value)  # type: ignore[arg-type]


def close(value: float, right: float, within: float = CLOSE) -> bool:
    """Whether a value lies within a relative distance of the right one; an exact 0 is only close to itself."""
    return math.isclose(value, right, rel_tol=within, abs_tol=1e-12)


def judge(answer: object, right: float, *, mistakes: Mapping[str, float] | None = None, within: float = CLOSE) -> float:
    """The answer as a number where it is close to `right`; else WrongAnswerError.

    `mistakes` holds wrong results that come of a known misunderstanding, by the hint that clears it up.
    """
    value = number(answer)
    if not close(value, right, within):
        for hint, wrong in (mistakes or {}).items():
            require(not close(value, wrong, within), hint)
        require(False)
    return value
