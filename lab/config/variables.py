"""Variables in a profile: `$NAME`, `${NAME}` and a leading `~`, expanded on the node.

A rank expands them itself, and a job script leaves them to its shell. Both give the same result,
and neither can be made to run a command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from lab.config.base import InvalidValueError

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_VARIABLE = re.compile(rf"\$(?:({_NAME})|\{{({_NAME})\}}|(\$))")


def _pieces(text: str) -> list[tuple[str, str]]:
    """Each piece of plain text with the name of the variable that follows it, if any.

    Raises InvalidValueError for anything that a shell would treat as more than a variable.
    """
    if re.match(r"~(/|$)", text):
        text = "${HOME}" + text[1:]
    elif text.startswith("~"):
        advice = "write out the folder, or use $HOME"
        raise InvalidValueError(f"{text!r}: only your own ~ is expanded", advice)
    pieces, plain, end = [], "", 0
    for match in _VARIABLE.finditer(text):
        plain += _plain(text[end : match.start()])
        end = match.end()
        if match[3]:
            plain += "$"
        else:
            pieces.append((plain, match[1] or match[2]))
            plain = ""
    return [*pieces, (plain + _plain(text[end:]), "")]


def _plain(text: str) -> str:
    if "$" in text:
        advice = (
            "write $NAME or ${NAME} for a variable, $$ for a dollar sign; put commands in `setup`"
        )
        raise InvalidValueError(f"{text!r} has a $ without a variable's name", advice)
    return text


def check_variables(text: str) -> str:
    """The text itself; raises InvalidValueError if it cannot be expanded anywhere."""
    _pieces(text)
    return text


def uses_variables(text: str) -> bool:
    """Whether anything in a text would be expanded."""
    return bool(_VARIABLE.search(text)) or text.startswith("~")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """The text with its variables' values; raises InvalidValueError for one that is not set."""
    expanded = ""
    for plain, name in _pieces(text):
        if name and name not in variables:
            raise InvalidValueError(f"{text!r}: {name} is not set", "set it there, or write it out")
        expanded += plain + (variables[name] if name else "")
    return expanded


def for_shell(text: str) -> str:
    """The text as one word for bash, which ends the script with a message if one is not set."""
    return (
        "".join(
            (shlex.quote(plain) if plain else "")
            + (f'"${{{name}?is not set here}}"' if name else "")
            for plain, name in _pieces(text)
        )
        or "''"
    )


def command_for_shell(command: str) -> str:
    """A command whose words bash expands and splits no further."""
    return " ".join(map(for_shell, shlex.split(command)))
