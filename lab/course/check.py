"""`lab.check`: judge a student's answer to an exercise, with a hint if it is wrong.

Each `lesson*.py` beside this file registers the exercises of one or two notebooks.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import math
import pkgutil
import traceback
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import cache
from numbers import Real
from pathlib import Path
from types import FunctionType
from typing import Any, Literal, NamedTuple

from lab.course.language import tr
from lab.errors import InputError, LabError, nearest, require_type
from lab.files import write_atomically

ANSWERS = "answers"  # a folder beside the notebook, handed in with it
PREDICTION = ".prediction"  # ends the names of exercises that ask for an expectation
CLOSE = 0.02  # relative; answers are often read from rounded tables
Judge = Callable[..., str]
Unit = Literal["fraction", "bytes", "bytes/s", "s"]
# Other units in which an answer may be given by mistake, with their sizes.
OTHERS: dict[Unit, dict[str, float]] = {
    "fraction": {"%": 0.01},
    "bytes": {"kB": 1e3, "MB": 1e6, "GB": 1e9},
    "bytes/s": {"MB/s": 1e6, "GB/s": 1e9},
    "s": {"ms": 1e-3, "µs": 1e-6},
}


class WrongAnswerError(AssertionError):
    """An answer that is not right yet; a notebook shows only the message, which is the hint."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class Exercise(NamedTuple):
    """`judge` takes the answer and the measurements, and returns what a right answer means.

    `hint` is in English: `verdict` translates it.
    """

    hint: str
    judge: Judge


EXERCISES: dict[str, Exercise] = {}
PLAIN = (bool, int, float, str)  # kinds of answers, and of what collections hold


def exercise(name: str) -> Callable[[Judge], Judge]:
    """Register a judge under its exercise's name, as in `04.speedup`; its docstring is the hint."""

    def register(judge: Judge) -> Judge:
        earlier = EXERCISES.get(name)
        assert earlier is None or earlier.judge.__qualname__ == judge.__qualname__, f"{name} twice"
        EXERCISES[name] = Exercise(" ".join((judge.__doc__ or "").split()), judge)
        return judge

    return register


@cache
def exercises() -> dict[str, Exercise]:
    """All exercises by name."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)], "lab.course."):
        if module.name.startswith("lab.course.lesson"):
            importlib.import_module(module.name)  # registers its exercises
    return EXERCISES


def check(name: str, answer: object, **measured: Any) -> None:
    """Judge an answer, using what was `measured` if the right answer depends on it.

    A right answer gets one sentence in the notebook. Raises WrongAnswerError, an AssertionError
    with a hint, for a wrong one; InputError for an unknown exercise. In a notebook the answer is
    kept in a file beside it, so that it can be graded without running the notebook.
    """
    from IPython.display import display

    from lab.report.blocks import Markdown  # loads matplotlib, which judging alone does not need

    _keep(name, answer)
    # Displayed, not returned: nbgrader would take a returned value for the points.
    display(Markdown.of(verdict(name, answer, **measured)))


def _keep(name: str, answer: object) -> None:
    from IPython import get_ipython

    if get_ipython() is None or name not in exercises():
        return
    with contextlib.suppress(OSError):
        write_atomically(Path(ANSWERS, f"{name}.txt"), kept(answer).encode(), durable=False)


def kept(answer: object) -> str:
    """An answer as text, which `read_kept` reads; "None" if it has no plain form."""
    with contextlib.suppress(Exception):  # whatever a student's object does
        text = repr(_plain(answer))
        read_kept(text)
        return text
    return "None"


def read_kept(text: str) -> Any:
    """The answer that `kept` wrote; of other text, raises what `ast.literal_eval` does."""
    return ast.literal_eval(_NotFinite().visit(ast.parse(text.strip(), mode="eval")))


class _NotFinite(ast.NodeTransformer):
    """Makes constants of nan and inf, which are written as names."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(float(node.id)) if node.id in {"nan", "inf"} else node


def _plain(answer: Any) -> Any:
    """An answer as numbers, text and collections; None if it has no such form."""
    if type(answer) in PLAIN:
        return answer
    # An array of one element counts as a number.
    answer = _result_of("tolist", _result_of("item", answer))
    if isinstance(answer, dict):
        return {_plain(key): _plain(value) for key, value in answer.items()}
    if isinstance(answer, list | tuple):
        places = map(_plain, answer)
        return list(places) if isinstance(answer, list) else tuple(places)
    # Subclasses, such as an IntEnum, may be written in any way.
    for kind in PLAIN:
        if isinstance(answer, kind):
            return kind(answer)
    return float(answer) if isinstance(answer, Real | Decimal) else None


def _result_of(method: str, answer: Any) -> Any:
    """What `item` or `tolist` of numpy, pandas and torch returns; without it the answer itself."""
    with contextlib.suppress(Exception):  # there are several items, or it belongs to a class
        return getattr(answer, method)()
    return answer


def verdict(name: str, answer: object, **measured: Any) -> str:
    """The sentence that a right answer gets; raises as `check` does."""
    require_type(name, str, "name", "the name of an exercise, then its answer")
    registered = exercises()
    if name not in registered:
        raise InputError.of("check", name, "no such exercise", nearest(name, registered))
    exercise = registered[name]
    try:
        inspect.signature(exercise.judge).bind(answer, **measured)
    except TypeError as error:
        raise InputError.of("check", name, str(error), "give what the lesson gives") from None
    if _is_missing(answer):
        hint = tr(exercise.hint)
        raise WrongAnswerError(tr("{name}: no answer yet. {hint}", name=name, hint=hint))
    try:
        meaning = exercise.judge(answer, **measured)
    except LabError:
        raise
    except WrongAnswerError as error:
        hint = str(error) or tr(exercise.hint)
    except Exception as error:  # noqa: BLE001 an answer of a shape that no judge expects
        hint = _unexpected(answer, error)
    else:
        if name.endswith(PREDICTION):
            return tr("{name}: noted. {meaning}", name=name, meaning=meaning)
        return tr("{name}: right. {meaning}", name=name, meaning=meaning)
    raise WrongAnswerError(tr("{name}: not yet. {hint}", name=name, hint=hint))


def _unexpected(answer: object, error: Exception) -> str:
    """How a student's function failed, with its line, or that an answer has no known form."""
    what = traceback.format_exception_only(error)[-1].strip()
    file = answer.__code__.co_filename if type(answer) is FunctionType else None
    frames = traceback.extract_tb(error.__traceback__)
    if lines := [frame.lineno for frame in frames if frame.filename == file]:
        return tr("The function fails in line {line} ({error}).", line=lines[-1], error=what)
    return tr("The answer has an unexpected form ({error}).", error=what)


def _is_missing(answer: object) -> bool:
    """Whether an exercise is as handed out: empty, or empty in each of several places."""
    places: Any = answer if type(answer) in {tuple, list} else (answer,)
    return all(
        place is None or place is Ellipsis or (type(place) is str and not place.strip())
        for place in places
    )


def require(condition: bool, message: str = "", /, **values: object) -> None:
    """Raise WrongAnswerError unless a condition holds: with a message, which it passes to `tr`.

    Without one, the hint is the exercise's.
    """
    if not condition:
        raise WrongAnswerError(message and tr(message, **values))


def number(answer: object) -> float:
    """An answer as a float; raises WrongAnswerError unless it is one finite number."""
    value = _result_of("item", answer)
    require(not isinstance(value, str), "Give a number, without quotation marks or a unit.")
    require(
        not isinstance(value, tuple),
        "Give a single number; its decimal mark is a point: a comma makes a tuple of it.",
    )
    plain = isinstance(value, Real | Decimal) and not isinstance(value, bool)
    require(plain, "Give a single number; this is of type {kind}.", kind=type(answer).__name__)
    try:
        result = float(value)
    except OverflowError:  # a whole number beyond all floats
        result = math.inf
    require(
        math.isfinite(result),
        "{value} is not a finite number: check what was divided by what.",
        value=result,
    )
    return result


def numbers(answer: object, count: int, hint: str) -> list[float]:
    """An answer as `count` floats, given as a tuple, list or array; `hint` says what they are."""
    values = _result_of("tolist", answer)
    complete = isinstance(values, tuple | list) and len(values) == count
    if not complete or any(value is None for value in values):
        raise WrongAnswerError(hint)
    return list(map(number, values))


def close(value: float, right: float, within: float = CLOSE) -> bool:
    """Whether a value is within a relative distance of the right one; only 0 is close to 0."""
    return math.isclose(value, right, rel_tol=within, abs_tol=1e-12)


def judge(
    answer: object,
    right: float,
    *,
    mistakes: Mapping[str, float] | None = None,
    unit: Unit | None = None,
    within: float = CLOSE,
    hint: str = "",
) -> float:
    """The answer as a number if it is close to `right`; raises WrongAnswerError otherwise.

    `mistakes` maps hints to the results of the misunderstandings that they clear up, to which
    `unit` adds the right answer in other units. An answer that is rounded too far is told so.
    `hint` is for all other answers; the default is the exercise's.
    """
    value = number(answer)
    if not close(value, right, within):
        hints = dict(mistakes or {})
        if unit:
            hints |= {_wanted(unit, one): right / size for one, size in OTHERS[unit].items()}
        for clears_up, wrong in hints.items():
            if close(value, wrong, within):
                raise WrongAnswerError(clears_up)
        require(not _is_rounded(value, right), "Nearly: give more digits.")
        raise WrongAnswerError(hint)
    return value


def _is_rounded(value: float, right: float) -> bool:
    """Whether a value with decimals is the right one to the digits that it has."""
    digits = len(Decimal(repr(value)).normalize().as_tuple().digits)
    return not value.is_integer() and value == float(f"{right:.{digits - 1}e}")


def _wanted(unit: Unit, other: str) -> str:
    hints: dict[Unit, str] = {
        "fraction": tr("Give a fraction, not per cent."),
        "bytes": tr("Give bytes, not {other}.", other=other),
        "bytes/s": tr("Give bytes per second, not {other}.", other=other),
        "s": tr("Give seconds, not {other}.", other=other),
    }
    return hints[unit]
