"""Errors that are meant for people: what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import TypeVar

T = TypeVar("T")
INTERRUPTED = 130  # exit status, as shells report it for a command ended by Ctrl-C
MOST_ALIKE = 4  # shown problems of an input that differ only in numbers and names
SHOWN = 60  # letters of a word that is longer than any name or path
LONG_WORD = re.compile(r"\S{300,}")


class LabError(Exception):
    """Something failed or is not trustworthy; the command ends with status 1."""

    exit_status = 1

    def _render_traceback_(self) -> list[str]:
        """What IPython and notebooks show of it: the message is written for whoever reads it."""
        return [f"{type(self).__name__}: {self}"]


@dataclass(frozen=True)
class Problem:
    """One fault of an input: where it is, what is wrong, and what to do about it."""

    where: str
    what: str
    advice: str = ""

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" + (f"; {self.advice}" if self.advice else "")
        return LONG_WORD.sub(
            lambda word: f"{word[0][:SHOWN]}… ({len(word[0]) - SHOWN} more letters)", text
        )


class InputError(LabError):
    """The user's input cannot be used; the command ends with status 2 and no job was started."""

    exit_status = 2

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(dict.fromkeys(problems))  # several runs may have the same one
        super().__init__(str(self))

    @classmethod
    def of(cls, source: str | Path, where: str, what: str, advice: str = "") -> InputError:
        """The error for a single problem."""
        return cls(str(source), [Problem(where, what, advice)])

    def __reduce__(self) -> tuple[type[InputError], tuple[str, tuple[Problem, ...]]]:
        # So that it can be pickled between processes.
        return type(self), (self.source, self.problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return f"{self.source}: {self.problems[0]}"
        listed = "\n".join(f"  - {line}" for line in _lines(self.problems))
        return f"{self.source}: {len(self.problems)} problems\n{listed}"


def _lines(problems: Iterable[Problem]) -> Iterator[str]:
    """One line per problem; of many that differ only in numbers and names, only the first."""
    alike: dict[tuple[str, ...], list[Problem]] = {}
    for problem in problems:
        parts = (problem.where, problem.what, problem.advice)
        alike.setdefault(tuple(re.sub(r"'[^']*'|\d+", "", part) for part in parts), []).append(
            problem
        )
    for group in alike.values():
        shown = group if len(group) <= MOST_ALIKE else group[:1]
        yield from map(str, shown)
        if len(group) > len(shown):
            yield f"  and {len(group) - 1} more like the last"


def combined(errors: Sequence[LabError]) -> LabError:
    """One error for several: a line or more for each, and the highest of their exit statuses."""
    error = LabError("\n".join(map(str, errors)))
    error.exit_status = max(error.exit_status for error in errors)
    return error


def require_type(given: object, kind: type | UnionType, where: str, wanted: str) -> None:
    """Raise InputError for an argument of a function that is of another kind than `wanted`."""
    if not isinstance(given, kind):
        what = f"cannot be of type {type(given).__name__}"
        raise InputError.of("argument", where, what, f"give {wanted}")


def require_choice(given: object, choices: Sequence[str], where: str) -> None:
    """Raise InputError, with the nearest name, for an argument that is none of these."""
    if given not in choices:
        advice = nearest(str(given), choices)
        raise InputError.of("argument", where, f"cannot be {given!r}", advice)


def items(
    given: Iterable[T], kind: type | UnionType, where: str, wanted: str, *, least: int = 0
) -> list[T]:
    """An argument as a list; InputError unless it is `wanted`, a list of items of this kind."""
    require_type(given, list if isinstance(given, str) else Iterable, where, wanted)
    elements = list(given)
    for place, item in enumerate(elements):
        require_type(item, kind, f"{where}[{place}]", wanted)
    if len(elements) < least:
        raise InputError.of("argument", where, "is empty", f"give {wanted}")
    return elements


def path_of(given: object, where: str, wanted: str = "the path of a folder") -> Path:
    """An argument as a path; raises InputError unless it is `wanted`."""
    require_type(given, str | Path, where, wanted)
    if not str(given):
        raise InputError.of("argument", where, "is empty", f"give {wanted}")
    return Path(str(given))


def require_utf8(text: object, where: str) -> None:
    """Raise InputError for a text or path whose bytes this locale cannot read: no page holds it."""
    try:
        str(text).encode()
    except UnicodeEncodeError:
        encoding = sys.getfilesystemencoding()
        what = f"{str(text)!a} has bytes that the locale here ({encoding}) cannot read"
        advice = "change them" if encoding == "utf-8" else "set PYTHONUTF8=1, or change them"
        raise InputError.of("argument", where, what, advice) from None


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def nearest(word: str, choices: Iterable[str]) -> str:
    """Advice that names the choice closest to `word`, or all choices if none is close.

    Close is also one that differs in case, or whose initials are the word: `lr`, `learning_rate`.
    If several choices begin with the word, as `gpt2-small` and `gpt2-xl` with `gpt2`, it names
    these.
    """
    names = sorted(str(choice) for choice in choices)
    said = str(word).lower()
    of_lower = {name.lower(): name for name in names}
    begun = [name for lower, name in of_lower.items() if said and lower.startswith(said)]
    if len(begun) > 1 and said not in of_lower:
        return f"choose one of: {', '.join(begun)}"
    short = [
        name for name in of_lower if "_" in name and said == "".join(p[:1] for p in name.split("_"))
    ]
    if close := short or difflib.get_close_matches(said, of_lower, n=1, cutoff=0.6):
        return f"did you mean {of_lower[close[0]]!r}?"
    return "choose one of: " + ", ".join(names) if names else "there are no choices yet"
