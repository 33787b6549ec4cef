"""The exercises by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

Judge = Callable[..., str]


class Exercise(NamedTuple):
    """`judge` takes the answer and what was measured, and returns what a right answer means; `hint` is for all others."""

    hint: str
    judge: Judge


EXERCISES: dict[str, Exercise] = {}


def exercise(name: str, hint: str) -> Callable[[Judge], Judge]:
    """Register a check under the name of its exercise, lesson and topic as in `04.speedup`."""

    def register(judge: Judge) -> Judge:
        assert name not in EXERCISES or EXERCISES[name].judge.__qualname__ == judge.__qualname__, f"two checks are named {name}"
        EXERCISES[name] = Exercise(hint, judge)
        return judge

    return register
