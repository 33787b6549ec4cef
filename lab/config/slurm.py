"""What a job requests from Slurm: the keys of a profile with `executor: slurm`, and its variables.

`$NAME`, `${NAME}` and a leading `~` are expanded on the node: by a rank itself, and in a job script
by its shell. Both give the same result, and neither can be made to run a command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from string import Template
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field

from lab.config.base import Frozen, InvalidValueError
from lab.errors import Problem, nearest

VARIABLE_NAME = r"[A-Za-z_][A-Za-z0-9_]*"


def _template(text: str) -> Template:
    """The text as a template; InvalidValueError for what a shell would treat as more than that."""
    if re.match(r"~(/|$)", text):
        text = "${HOME}" + text[1:]
    elif text.startswith("~"):
        advice = "write out the folder, or use $HOME"
        raise InvalidValueError(f"{text!r}: only your own ~ is expanded", advice)
    template = Template(text)
    if not template.is_valid():
        advice = (
            "write $NAME or ${NAME} for a variable, $$ for a dollar sign; put commands in `setup`"
        )
        raise InvalidValueError(f"{text!r} has a $ without a variable's name", advice)
    return template


def check_variables(text: str) -> str:
    """The text itself; raises InvalidValueError if it cannot be expanded anywhere."""
    _template(text)
    return text


def uses_variables(text: str) -> bool:
    """Whether anything in a text would be expanded."""
    matches = Template.pattern.finditer(text)
    return text.startswith("~") or any(match["invalid"] is None for match in matches)


def expand(text: str, variables: Mapping[str, str]) -> str:
    """The text with its variables' values; raises InvalidValueError for one that is not set."""
    try:
        return _template(text).substitute(variables)
    except KeyError as error:
        what = f"{text!r}: {error.args[0]} is not set"
        raise InvalidValueError(what, "set it there, or write it out") from None


def for_shell(text: str) -> str:
    """The text as one word for bash, which ends the script with a message if one is not set."""
    template, word, end = _template(text).template, "", 0
    for match in Template.pattern.finditer(template):
        plain, end = template[end : match.start()], match.end()
        name = match["named"] or match["braced"]
        plain += "" if name else "$"
        word += shlex.quote(plain) if plain else ""
        word += f'"${{{name}?is not set here}}"' if name else ""
    rest = template[end:]
    return (word + (shlex.quote(rest) if rest else "")) or "''"


def command_for_shell(command: str) -> str:
    """A command whose words bash expands and splits no further."""
    return " ".join(map(for_shell, shlex.split(command)))


# sbatch options that the lab sets itself, so not allowed in `extra`, with what to do instead.
_RESERVED = {
    "time": "use time_limit_min",
    "nodes": "use nodes",
    "ntasks": "use nodes and gpus_per_node or cores_per_node",
    "ntasks-per-node": "use gpus_per_node or cores_per_node",
    "tasks-per-node": "use gpus_per_node or cores_per_node",
    "cpus-per-task": "use cpus_per_gpu or cores_per_rank",
    "cpus-per-gpu": "use cpus_per_gpu",
    **dict.fromkeys(
        ("gpus", "gpus-per-node", "gpus-per-task"), "use gpus_per_node, gpu_type and gpu_flag"
    ),
    **dict.fromkeys(("mem", "mem-per-cpu", "mem-per-gpu"), "use mem_gb"),
    "array": "use array_limit or submit_limit",
    **dict.fromkeys(
        ("job-name", "output", "error", "open-mode", "signal", "requeue", "wrap", "chdir"),
        "leave it out",
    ),
}
# Those of them that may be left out with `false`, where a site sets them itself or refuses them.
_DISPENSABLE = ("cpus-per-task", "ntasks-per-node", "requeue")
# The same for `srun`: what the lab gives to srun, and what would change which processes it starts.
_RESERVED_BY_STEPS = {
    **{name: _RESERVED[name] for name in ("nodes", "ntasks", "ntasks-per-node", "cpus-per-task")},
    **dict.fromkeys(
        ("output", "error", "input", "kill-on-bad-exit", "multi-prog", "jobid", "chdir"),
        "leave it out",
    ),
}
_GRES = "use gpus_per_node, gpu_type and gpu_flag: gres; in extra.gres only other resources"
# A job needs the environment of `lab run`, and its ranks that of the job.
_EXPORT = "set variables in environment, and clear others in setup, as by `module purge`"


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
    *("uid", "gid"),
)
_ANSWERS_OF_SRUN = ("test-only", "help", "usage", "version", "pty", "uid", "gid")


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
    # The option that asks for GPUs; none where a job has all those of its nodes.
    gpu_flag: Literal["gres", "gpus-per-node", "gpus", "gpus-per-task", "none"] = "gpus-per-node"
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
    # Jobs of a study that are in the queue at once, waiting or running.
    submit_limit: int | None = Field(default=None, ge=1, le=1_000_000)
    extra: dict[str, str | int | bool] = {}  # further options of sbatch, passed on unchanged
    srun: dict[str, str | int | bool] = {}  # the same for srun, which starts the ranks


# The keys so marked, by their option.
SBATCH_OPTIONS = {
    key.replace("_", "-"): key
    for key, field in SlurmKeys.model_fields.items()
    if field.json_schema_extra == {"sbatch": True}
}


def _refused(
    command: str, reserved: Mapping[str, str], answers: Iterable[str]
) -> dict[str, tuple[str, str]]:
    """What is wrong with each option that may not be passed on to a command, and what to do."""
    changes = f"this option changes what {command} does or prints, which the lab relies on"
    return {
        **dict.fromkeys(answers, (changes, "leave it out")),
        **{option: ("the lab sets this option", advice) for option, advice in reserved.items()},
        "clusters": ("all of Slurm's commands must ask the same cluster", "set SLURM_CLUSTERS"),
        "export": ("ranks need the environment that they inherit", _EXPORT),
    }


_REFUSED = {
    "sbatch": _refused(
        "sbatch", {o: f"use {key}" for o, key in SBATCH_OPTIONS.items()} | _RESERVED, _ANSWERS
    ),
    "srun": _refused("srun", _RESERVED_BY_STEPS, _ANSWERS_OF_SRUN),
}


def _fault(command: str, option: str) -> tuple[str, str] | None:
    """What is wrong with an option of a command, and what to do; None if it may be passed on."""
    refused = _REFUSED[command]
    if option in refused:
        return refused[option]
    # Slurm's commands take an abbreviation for the option.
    for full in sorted({*refused, "gres"} if option else ()):
        if full.startswith(option) and full != option:
            return f"{command} would take it for --{full}", "write the option that you mean in full"
    if not re.fullmatch(r"[a-z][a-z0-9-]*", option):
        advice = f"write it as in `{command} --help`, without the dashes"
        return f"{command} has no option of this name", advice
    return None


def advice_on_unknown(key: str, names: Collection[str]) -> str:
    """What to do with an unknown key of a profile for Slurm, which may be an option of sbatch."""
    if reserved := (_RESERVED | {"gres": _GRES}).get(key.replace("_", "-")):
        return reserved
    advice = nearest(key, names)
    if advice.startswith("did you mean"):
        return advice
    return f"options of sbatch belong in extra, those of srun in srun; or {advice}"


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
    if keys.gpu_type is not None and keys.gpu_flag == "none":
        advice = "choose nodes by constraint or partition, or set gpu_flag"
        yield Problem("gpu_type", "gpu_flag: none asks for no GPUs", advice)
    yield from _option_problems("extra", keys.extra, "sbatch")
    yield from _option_problems("srun", keys.srun, "srun")
    if re.search(r"(^|,)(gres/)?gpu\b", str(keys.extra.get("gres", ""))):
        yield Problem("extra.gres", "the lab asks for the GPUs", _GRES)


def _option_problems(
    key: str, options: Mapping[str, str | int | bool], command: str
) -> Iterator[Problem]:
    for name, value in options.items():
        where, option = f"{key}.{name}", name.replace("_", "-")
        if value is False and option in _DISPENSABLE and command == "sbatch":
            continue
        if fault := _fault(command, option):
            yield Problem(where, *fault)
        elif isinstance(value, str) and uses_variables(value):
            yield Problem(where, f"{value!r}: {_UNEXPANDED}", "write it out")
        elif isinstance(value, str) and ("\n" in value or not value):
            advice = "write true for an option without a value"
            yield Problem(where, f"{value!r} is not one line of text", advice)
