"""lab.check: answer one exercise of a lesson."""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lab.errors import InputError, Problem, nearest
from lab.report.blocks import Markdown


def exercises() -> dict[str, Exercise]:
    """All exercises by name."""
    # Each module of a lesson registers its exercises when it is imported.
    for module in pkgutil.iter_modules([str(Path(__file__).parent)], "lab.course."):
        if module.name.startswith("lab.course.lesson"):
            importlib.import_module(module.name)
    return EXERCISES


def check(name: str, answer: object, **given: Any) -> None:
    """Say whether the answer to an exercise is right; `given` is what was measured, where the right answer follows from it.

    Shows one sentence in a notebook where it is right. Raises WrongAnswerError, an AssertionError with a hint, where it
    is not; InputError for an exercise that does not exist.
    """
    from IPython.display import display

    # Displayed and not returned: nbgrader takes a returned value for the points.
    display(Markdown.of(verdict(name, answer, **given)))  # type: ignore[no-untyped-call]


def verdict(name: str, answer: object, **given: Any) -> str:
    """The sentence that a right answer gets; raises as `check` does."""
    known = exercises()
    if name not in known:
        raise InputError("check", [Problem(name, "no such exercise", nearest(name, known))])
    exercise = known[name]
    if answer is None or answer is Ellipsis:
        raise WrongAnswerError(f"{name}: no answer yet. {exercise.hint}")
    try:
        told = exercise.judge(answer, **given)
    except WrongAnswerError as error:
        raise WrongAnswerError(f"{name}: not yet. {str(error) or exercise.hint}") from None
    return f"{name}: right. {told}"


Judge = Callable[..., str]


class Exercise(NamedTuple):
    """`judge` takes the answer and what was measured, and returns what a right answer means; `hint` is for all others."""

    hint: str
    judge: Judge


EXERCISES: dict[str, Exercise] = {}


def exercise(name: str, hint: str) -> Callable[[Judge], Judge]:
    """Register a check under the name of its exercise, lesson and topic as in `04.speedup`."""

    def register(judge: Judge) -> Judge:
        assert name not in EXERCISES or EXERCISES[name].judge.__qualname__ == judge.__qualname__, (
            f"two checks are named {name}"
        )
        EXERCISES[name] = Exercise(hint, judge)
        return judge

    return register


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
    require(
        math.isfinite(float(value)),
        f"{value} is no finite number: look at what was divided by what.",
    )  # type: ignore[arg-type]
    return float(value)  # type: ignore[arg-type]


def close(value: float, right: float, within: float = CLOSE) -> bool:
    """Whether a value lies within a relative distance of the right one; an exact 0 is only close to itself."""
    return math.isclose(value, right, rel_tol=within, abs_tol=1e-12)


def judge(
    answer: object,
    right: float,
    *,
    mistakes: Mapping[str, float] | None = None,
    within: float = CLOSE,
) -> float:
    """The answer as a number where it is close to `right`; else WrongAnswerError.

    `mistakes` holds wrong results that come of a known misunderstanding, by the hint that clears it up.
    """
    value = number(answer)
    if not close(value, right, within):
        for hint, wrong in (mistakes or {}).items():
            require(not close(value, wrong, within), hint)
        require(False)
    return value
