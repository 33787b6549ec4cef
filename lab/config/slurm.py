"""What a job requests from Slurm: the keys of a profile with `executor: slurm`, and its variables.

`$NAME`, `${NAME}` and a leading `~` are expanded on the node: by a rank itself, and in a job script
by its shell. Both give the same result, and neither can be made to run a command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field

from lab.config.base import Frozen, InvalidValueError
from lab.errors import Problem

VARIABLE_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_VARIABLE = re.compile(rf"\$(?:({VARIABLE_NAME})|\{{({VARIABLE_NAME})\}}|(\$))")


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
    word = ""
    for plain, name in _pieces(text):
        word += shlex.quote(plain) if plain else ""
        word += f'"${{{name}?is not set here}}"' if name else ""
    return word or "''"


def command_for_shell(command: str) -> str:
    """A command whose words bash expands and splits no further."""
    return " ".join(map(for_shell, shlex.split(command)))


# sbatch options that the lab sets itself, so not allowed in `extra`, with the key that sets each.
_TAKEN = {
    "time": "time_limit_min",
    "nodes": "nodes",
    "ntasks": "nodes and gpus_per_node or cores_per_node",
    "ntasks-per-node": "gpus_per_node or cores_per_node",
    "cpus-per-task": "cpus_per_gpu or cores_per_rank",
    "cpus-per-gpu": "cpus_per_gpu",
    "gres": "gpus_per_node with gpu_flag: gres",
    "gpus": "gpus_per_node",
    "gpus-per-node": "gpus_per_node",
    "gpus-per-task": "gpus_per_node",
    "mem": "mem_gb",
    "mem-per-cpu": "mem_gb",
    "mem-per-gpu": "mem_gb",
    "array": "array_limit",
    "export": "environment",
    **dict.fromkeys(
        ("job-name", "output", "error", "open-mode", "signal", "requeue", "wrap", "chdir"),
        "nothing in its place",
    ),
}


_UNEXPANDED = "variables are expanded only in environment, setup, container and python"


def _word(value: str) -> str:
    if uses_variables(value):
        raise InvalidValueError(f"{value!r}: {_UNEXPANDED}", "write it out")
    if not re.fullmatch(r"[\w.,:@+&|*()\[\]/%=-]+", value) or value.startswith("-"):
        advice = "use only letters, digits and . , : @ + & | * ( ) [ ] / % = -"
        raise InvalidValueError(f"{value!r} is not a plain word", advice)
    return value


def _command(value: str) -> str:
    if "\0" in value:
        raise InvalidValueError(f"{value!r} holds a NUL", "leave it out")
    try:
        words = shlex.split(value)
    except ValueError as error:
        what = f"{value!r} is not a command: {str(error).lower()}"
        raise InvalidValueError(what, "close the quotes") from None
    if not words or "\n" in value:
        advice = "give one line, such as 'apptainer exec --nv lab.sif'"
        raise InvalidValueError(f"{value!r} is not a command", advice)
    return value


def _program(value: str) -> str:
    for word in shlex.split(_command(value)):
        check_variables(word)
    tokens = shlex.shlex(value, posix=True, punctuation_chars=True)
    tokens.whitespace_split = True
    for token in tokens:
        if token and set(token) <= set(tokens.punctuation_chars):
            advice = "give one program with its arguments; put commands before it in `setup`"
            raise InvalidValueError(f"{value!r} is more than one program: {token!r}", advice)
    return value


# Options that make sbatch do anything but submit a job and print its number.
_ANSWERS = (
    *("parsable", "test-only", "wait", "help", "usage", "version", "quiet", "verbose"),
    *("clusters", "uid", "gid"),
)


# The value of an option in a script's header, which cannot contain quotes.
Word = Annotated[str, AfterValidator(_word)]
# A shell line with closed quotes.
Command = Annotated[str, AfterValidator(_command)]
# A program and its arguments, in which variables are expanded and nothing is run.
Program = Annotated[str, AfterValidator(_program)]
# Marks a key that becomes the option of sbatch of the same name.
SBATCH = Field(json_schema_extra={"sbatch": True})


class Layout(NamedTuple):
    """How the ranks of one job are placed on nodes."""

    nodes: int
    ranks_per_node: int


class SlurmKeys(Frozen):
    """The keys that only Slurm knows."""

    partition: Annotated[Word | None, SBATCH] = None
    account: Annotated[Word | None, SBATCH] = None
    qos: Annotated[Word | None, SBATCH] = None
    constraint: Annotated[Word | None, SBATCH] = None
    reservation: Annotated[Word | None, SBATCH] = None
    nodes: int = Field(default=1, ge=1, le=100_000)  # the most that one job may have
    gpus_per_node: int = Field(default=0, ge=0, le=1024)  # one rank for each
    # Of nodes without GPUs: one rank for each cores_per_rank.
    cores_per_node: int = Field(default=0, ge=0, le=4096)
    gpu_flag: Literal["gres", "gpus-per-node"] = "gpus-per-node"
    gpu_type: Word | None = None  # as `sinfo -o %G` names it
    cpus_per_gpu: int | None = Field(default=None, ge=1, le=1024)
    # Of a whole node, in GiB; a job gets its ranks' share.
    mem_gb: float | None = Field(default=None, gt=0, le=1_000_000)
    # Shell commands, run once before the ranks start.
    setup: tuple[Command, ...] = Field(default=(), strict=False)
    modules: tuple[Word, ...] = Field(default=(), strict=False)  # loaded before `setup`
    container: Program | None = None  # the command that runs another one inside an image
    python: Program | None = None  # the interpreter on the nodes, if not this one
    # Jobs of a study that run at once.
    array_limit: int | None = Field(default=None, ge=1, le=1_000_000)
    extra: dict[str, str | int | bool] = {}  # further options of sbatch, passed on unchanged


# The keys so marked, by their option.
SBATCH_OPTIONS = {
    key.replace("_", "-"): key
    for key, field in SlurmKeys.model_fields.items()
    if field.json_schema_extra == {"sbatch": True}
}


def _abbreviated(option: str) -> str:
    """The option for which sbatch would take an abbreviation, if the lab refuses that option."""
    refused = sorted({*SBATCH_OPTIONS, *_TAKEN, *_ANSWERS})
    if not option or option in refused:
        return ""
    return next((full for full in refused if full.startswith(option)), "")


def slurm_problems(keys: SlurmKeys) -> Iterator[Problem]:
    """Conflicts between the Slurm keys."""
    if not keys.gpus_per_node and not keys.cores_per_node:
        advice = "give the number of GPUs of a node, or cores_per_node if it has none"
        yield Problem("gpus_per_node", "missing", advice)
    if keys.gpus_per_node and keys.cores_per_node:
        advice = "with GPUs there is a rank for each: use cpus_per_gpu"
        yield Problem("cores_per_node", "given together with gpus_per_node", advice)
    for key in ("cpus_per_gpu", "gpu_type"):
        if not keys.gpus_per_node and getattr(keys, key) is not None:
            yield Problem(key, "there are no GPUs", "set gpus_per_node, or leave it out")
    for key, value in keys.extra.items():
        where, option = f"extra.{key}", key.replace("_", "-")
        if taken := (SBATCH_OPTIONS | _TAKEN).get(option):
            yield Problem(where, "the lab sets this option", f"use {taken}")
        elif full := _abbreviated(option):
            what = f"sbatch would take it for --{full}"
            yield Problem(where, what, "write the option that you mean in full")
        elif option in _ANSWERS:
            what = "this option changes what sbatch does or prints, which the lab relies on"
            yield Problem(where, what, "leave it out")
        elif not re.fullmatch(r"[a-z][a-z0-9_-]*", key):
            advice = "write it as in `sbatch --help`, without the dashes"
            yield Problem(where, "sbatch has no option of this name", advice)
        elif isinstance(value, str) and uses_variables(value):
            yield Problem(where, f"{value!r}: {_UNEXPANDED}", "write it out")
        elif isinstance(value, str) and ("\n" in value or not value):
            advice = "write true for an option without a value"
            yield Problem(where, f"{value!r} is not one line of text", advice)
