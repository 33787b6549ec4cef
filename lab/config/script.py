"""A user's training script, run unchanged: its command, its placeholders, its sources."""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from lab.config.base import Frozen, InvalidValueError
from lab.config.own import hash_files, local_files, parsed
from lab.errors import nearest

PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
# What a command may name besides the settings of its run; `out` is a folder per repeat.
OF_RANK = ("rank", "local_rank", "out")
SCRIPT_OUT = "script"  # the name of `{out}` in a repeat's folder
# Size limit of files that a script names or is given; larger ones are data.
_SETTINGS_FILES = {".py", ".yaml", ".yml", ".json", ".toml"}
_LARGEST_FILE = 2**20
_LAUNCHERS = {"python", "python3", "torchrun", "accelerate", "fabric"}


class Script(Frozen):
    """A Python script with its arguments, which the lab runs on each rank and does not change.

    `command` begins with the script's path in `directory`, in which the script runs and which is
    relative to the study's folder. A setting of the run in braces, such as `{micro_batch_size}`,
    stands for its value, as do `{rank}`, `{local_rank}` and `{out}`, a new folder. `launcher`
    determines the script's environment variables: torchrun's, or none, as for `python train.py`.

    `source` is the SHA-256 of the script, of what it imports from beside it, and of the settings
    files that it names or is given. The lab fills it in when a study is read.
    """

    task: ClassVar[Literal["its own task"]] = "its own task"
    depends_on_split: ClassVar[str] = "the script decides"
    kind: Literal["script"] = "script"
    command: tuple[str, ...] = Field(strict=False, min_length=1)
    directory: str = "."
    launcher: Literal["torchrun", "python"] = "torchrun"
    source: str = ""

    @field_validator("command", mode="before")
    @classmethod
    def _split(cls, command: Any) -> Any:
        """Split a one-line command as a shell would."""
        if not isinstance(command, str):
            return command
        try:
            return shlex.split(command)
        except ValueError as error:
            raise InvalidValueError(
                f"{command!r}: {error}", "close the quote, or write a list"
            ) from None

    @field_validator("command")
    @classmethod
    def _begins_with_a_script(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if not command[0].endswith(".py"):
            what = f"{command[0]!r} is not a Python script"
            advice = "begin with the script, such as train.py"
            if Path(command[0]).name in _LAUNCHERS:
                advice = "leave it out: the lab itself starts the script on each rank"
            raise InvalidValueError(what, advice)
        return command

    @model_validator(mode="after")
    def _is_there(self, info: ValidationInfo) -> Script:
        """Add the digest of the sources if the study's folder is known."""
        context: dict[str, Any] = info.context or {}
        if "folder" in context:
            key = ("script", self.command, self.directory)
            if key not in context["digests"]:
                context["digests"][key] = self.digest(context["folder"])
            # Frozen for everyone else, but the model is not complete before this.
            self.__dict__["source"] = context["digests"][key]
        return self

    @property
    def label(self) -> str:
        """A short name: the script's, and its arguments."""
        return ", ".join(part for part in (self.name, " ".join(self.command[1:])) if part)

    @property
    def name(self) -> str:
        """The script's file."""
        return Path(self.command[0]).name

    @property
    def placeholders(self) -> list[str]:
        """The names in braces in its arguments."""
        return [name for part in self.command[1:] for name in PLACEHOLDER.findall(part)]

    def arguments(self, values: Mapping[str, Any]) -> list[str]:
        """Its arguments with values in place of the names."""
        return [
            PLACEHOLDER.sub(lambda match: str(values[match[1]]), part) for part in self.command[1:]
        ]

    def path(self, folder: Path) -> Path:
        """The script's file; `folder` is the study's."""
        # Unlike `Path.resolve`, this leaves a loop of links to be found missing.
        return Path(os.path.realpath(folder / self.directory / self.command[0]))

    def is_unchanged(self, folder: Path) -> bool:
        """Whether the sources are still those of the run."""
        return self.digest(folder) == self.source

    def digest(self, folder: Path) -> str:
        """SHA-256 of its sources; InvalidValueError if it cannot be read."""
        path = self.path(folder)
        if not path.is_file():
            advice = nearest(path.name, sorted(one.name for one in path.parent.glob("*.py")))
            raise InvalidValueError(f"no script {self.command[0]!r}", advice)
        files = local_files(path, path.parent)
        named = [name for file in files for name in _constants(file)]
        given = [part.split("=")[-1] for part in self.command[1:]]
        for name, place in [
            *((n, path.parent) for n in named),
            *((g, folder / self.directory) for g in given),
        ]:
            if (file := _settings_file(name, place)) is not None:
                files.add(file)
        # The script's folder may move; files elsewhere are identified by name.
        return hash_files({_name_of(file, path.parent): file for file in files})


def _constants(file: Path) -> Iterator[str]:
    """String constants in a source file, some of which name files that it runs or reads."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _settings_file(name: str, place: Path) -> Path | None:
    if Path(name).suffix not in _SETTINGS_FILES or "\n" in name or len(name) > 255:
        return None
    path = Path(os.path.realpath(place / name))
    return path if path.is_file() and path.stat().st_size <= _LARGEST_FILE else None


def _name_of(file: Path, folder: Path) -> str:
    return str(file.relative_to(folder)) if file.is_relative_to(folder) else file.name
