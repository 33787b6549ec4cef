"""The environment variables that the lab alone reads; all of their names begin with LAB_."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping

from lab.errors import Problem

PREFIX = "LAB_"
NAMES = ("LAB_CACHE", "LAB_CATALOGUE", "LAB_DATA_PATH", "LAB_PRELOAD", "LAB_REPEAT_DISTURBED")
SWITCHES = {"LAB_PRELOAD", "LAB_REPEAT_DISTURBED"}  # which only 0 turns off


def doubtful_variables(
    variables: Mapping[str, str] = os.environ, *, likeness: float = 0.6
) -> Iterator[Problem]:
    """What seems meant for the lab but has no effect: misspelt names, and unknown switch values.

    `likeness` is how close a name must come to one of the lab's, as by difflib; 1 is equality.
    """
    names = {name.removeprefix(PREFIX): name for name in NAMES}
    for name, value in sorted(variables.items()):
        if name in SWITCHES and value not in {"", "0", "1"}:
            yield Problem(name, f"{value!r} has no effect", "0 turns it off")
        elif name.startswith(PREFIX) and name not in NAMES:
            # Compared without the prefix: other programs have variables that begin like these.
            close = difflib.get_close_matches(
                name.removeprefix(PREFIX), names, n=1, cutoff=likeness
            )
            if close:
                advice = f"did you mean {names[close[0]]}?"
                yield Problem(name, "the lab reads no such variable", advice)
