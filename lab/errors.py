"""Errors that are meant for people: what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class LabError(Exception):
    """Something failed or is not trustworthy; the command ends with status 1."""

    exit_status = 1


@dataclass(frozen=True)
class Problem:
    """One fault of an input: where it is, what is wrong, and what to do about it."""

    where: str
    what: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f"; {self.advice}" if self.advice else "")


class InputError(LabError):
    """What the user gave cannot be used; the command ends with status 2 and no job was started."""

    exit_status = 2

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__(str(self))

    def __reduce__(self) -> tuple[type[InputError], tuple[str, tuple[Problem, ...]]]:
        # So that it can be pickled, from one process to another.
        return type(self), (self.source, self.problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return f"{self.source}: {self.problems[0]}"
        listed = "\n".join(f"  - {problem}" for problem in self.problems)
        return f"{self.source}: {len(self.problems)} problems\n{listed}"


def nearest(word: str, choices: Iterable[str]) -> str:
    """Advice that names the choice closest to `word`, or all choices where none is close."""
    names = sorted(str(choice) for choice in choices)
    close = difflib.get_close_matches(str(word), names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return "choose one of: " + ", ".join(names) if names else "there are no choices yet"
