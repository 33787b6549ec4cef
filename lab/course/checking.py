"""lab.check: answer one exercise of a lesson."""

from __future__ import annotations

import importlib
from typing import Any

from lab.course.answers import WrongAnswerError
from lab.course.registry import EXERCISES, Exercise
from lab.errors import InputError, Problem, nearest
from lab.page import Prose

# One module of checks per topic; each registers its exercises when it is imported.
TOPICS = (
    "setup",
    "baseline",
    "collectives",
    "data_parallel",
    "scaling",
    "limits",
    "memory",
    "model_parallel",
    "precision",
    "prediction",
    "proposal",
)


def exercises() -> dict[str, Exercise]:
    """All exercises by name."""
    for topic in TOPICS:
        importlib.import_module(f"lab.course.{topic}")
    return EXERCISES


def check(name: str, answer: object, **given: Any) -> None:
    """Say whether the answer to an exercise is right; `given` is what was measured, where the right answer follows from it.

    Shows one sentence in a notebook where it is right. Raises WrongAnswerError, an AssertionError with a hint, where it
    is not; InputError for an exercise that does not exist.
    """
    from IPython.display import display

    # Displayed and not returned: nbgrader takes a returned value for the points.
    display(Prose.of(verdict(name, answer, **given)))  # type: ignore[no-untyped-call]


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
