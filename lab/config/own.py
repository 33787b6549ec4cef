"""A user's own code in a study: a part of a run made by a function or class, or a whole script.

Nothing is imported here. A module is found, read and parsed, so that a wrong name or argument is
rejected before a job starts, and a run's id changes with the code that it measures.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    JsonValue,
    ValidationInfo,
    field_validator,
    model_validator,
)

from lab.config.base import Frozen, InvalidValueError
from lab.errors import nearest

# As in entry points: the module, and the name of the function or class in it.
_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
NAMES = ("factory", "loss")
PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
# What a command may name besides the settings of its run; `out` is a folder per repeat.
OF_RANK = ("rank", "local_rank", "out")
SCRIPT_OUT = "script"  # the name of `{out}` in a repeat's folder
# Size limit of files that a script names or is given; larger ones are data.
_SETTINGS_FILES = {".py", ".yaml", ".yml", ".json", ".toml"}
_LARGEST_FILE = 2**20
_LAUNCHERS = {
    *("python", "python3", "torchrun", "accelerate", "fabric", "deepspeed", "composer"),
    *("mpirun", "mpiexec", "srun"),
    *("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"),
}


def check_reference(value: str) -> str:
    """The value, if it is `module:name`; raises InvalidValueError."""
    if not _REFERENCE.fullmatch(value):
        what = f"{value!r} does not name a function or class of a module"
        raise InvalidValueError(what, "write module:name, such as unet:UNet")
    return value


@cache
def installed(group: str) -> dict[str, str]:
    """References by their names in an entry point group of installed packages."""
    entries = metadata.entry_points(group=group)
    return {entry.name: f"{entry.module}:{entry.attr}" for entry in entries}


Reference = Annotated[str, AfterValidator(check_reference)]


class _Code(Frozen):
    """Code whose `source`, the digest of its files, is filled in when a study is read."""

    @model_validator(mode="after")
    def _with_source(self, info: ValidationInfo) -> Self:
        context: dict[str, Any] = info.context or {}
        if "folder" in context:
            digests, key = context["digests"], self.model_dump_json()
            if key not in digests:
                digests[key] = self.digest(context["folder"])
            # Frozen for everyone else, but the model is not complete before this.
            self.__dict__["source"] = digests[key]
        return self

    def digest(self, folder: Path) -> str:
        """SHA-256 of its files; `folder` is the study's. InvalidValueError if one is missing."""
        raise NotImplementedError


class Own(_Code):
    """What `factory`, called with `args`, makes; the module lies beside the study or is installed.

    A name given by an installed package in `entry_points` stands for its reference. `source` is the
    SHA-256 of the module and of what it imports from beside the study. The lab fills it in when a
    study is read.
    """

    entry_points: ClassVar[str] = ""
    offered: ClassVar[tuple[str, ...]] = ()  # what a factory with such a parameter gets besides
    kind: Literal["python"] = "python"
    factory: Reference
    args: dict[str, JsonValue] = {}
    source: str = ""

    @classmethod
    def resolved(cls, content: Any) -> Any:
        """Settings with an installed name replaced by its reference; other content unchanged.

        The name is the `factory`, or the whole content.
        """
        settings = content if isinstance(content, dict) else {"kind": "python", "factory": content}
        name = settings.get("factory")
        if not isinstance(name, str) or ":" in name or name not in installed(cls.entry_points):
            return content
        return settings | {"factory": installed(cls.entry_points)[name]}

    @model_validator(mode="before")
    @classmethod
    def _of_installed(cls, content: Any) -> Any:
        return cls.resolved(content)

    def __hash__(self) -> int:
        # `args` is not hashable.
        return hash(self.model_dump_json())

    @property
    def names(self) -> list[str]:
        """Its name and its arguments: `UNet`, `width 16`."""
        return [self.factory.split(":")[1], *(f"{key} {value}" for key, value in self.args.items())]

    def digest(self, folder: Path) -> str:
        """SHA-256 of the modules that it names and of what they import beside the study."""
        references = [getattr(self, name, None) for name in NAMES]
        sources = digest([reference for reference in references if reference], folder)
        self._require_arguments(folder)
        return sources

    def _require_arguments(self, folder: Path) -> None:
        """Raise InvalidValueError if the source shows that the factory cannot take `args`."""
        module, name = self.factory.split(":")
        path = find_module(module, folder)
        signature = _signature(name, path) if path and path.is_relative_to(folder) else None
        if path is None or signature is None:
            return
        parameters = signature.parameters
        offered = {key: None for key in self.offered if key in parameters}
        try:
            signature.bind(**(offered | self.args))
        except TypeError as error:
            what, advice = str(error), "add it to args"
            if unknown := [key for key in self.args if key not in parameters]:
                what = f"no argument {unknown[0]!r}"
                advice = nearest(unknown[0], parameters) if parameters else "it takes none at all"
            raise InvalidValueError(f"{name} in {path.name}: {what}", advice) from None


def digest(references: list[str], folder: Path) -> str:
    """SHA-256 of the sources behind references; InvalidValueError if one does not exist."""
    paths: dict[str, Path] = {}
    for reference in references:
        module, _, name = reference.partition(":")
        path = find_module(module, folder)
        if path is None:
            advice = nearest(module, sorted(one.stem for one in folder.glob("*.py")))
            raise InvalidValueError(f"no module {module!r} beside the study or installed", advice)
        if path.is_relative_to(folder):
            _require_name(name, path)
            paths |= {str(one.relative_to(folder)): one for one in local_files(path, folder)}
        else:
            paths[module] = path
    return hash_files(paths)


def hash_files(paths: Mapping[str, Path]) -> str:
    """SHA-256 of the names and contents of files."""
    content = hashlib.sha256()
    for name, path in sorted(paths.items()):
        content.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return content.hexdigest()


def find_module(name: str, folder: Path) -> Path | None:
    """The file of a module in a folder or installed, else None. Imports nothing."""
    first, *rest = name.split(".")
    if local := _file(folder / Path(first, *rest)):
        return local
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None or not spec.has_location:  # part of Python itself
        return None
    origin = Path(spec.origin)
    return _file(origin.parent.joinpath(*rest)) if rest else origin


def _file(place: Path) -> Path | None:
    candidates = (place.with_name(f"{place.name}.py"), place / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


def _require_name(name: str, path: Path) -> None:
    """Raise InvalidValueError if a module's top level neither defines nor imports this name."""
    names: set[str] = set()
    for node in parsed(path).body:
        is_definition = isinstance(node, ast.FunctionDef | ast.ClassDef)
        for part in [node] if is_definition else ast.walk(node):  # also within `if` or `try`
            if isinstance(part, ast.FunctionDef | ast.ClassDef):
                names.add(part.name)
            elif isinstance(part, ast.alias):
                names.add(part.asname or part.name.split(".")[0])
            elif isinstance(part, ast.Name):
                names.add(part.id)
    if name not in names and "*" not in names:
        raise InvalidValueError(f"no {name!r} in {path.name}", nearest(name, names))


def _signature(name: str, path: Path) -> inspect.Signature | None:
    """How a module's function or class is called; None if its source alone does not show that."""
    makers = (ast.FunctionDef, ast.ClassDef)
    named = [node for node in parsed(path).body if isinstance(node, makers) and node.name == name]
    node = named[0] if len(named) == 1 else None
    if node is None or node.decorator_list:  # a decorator may change it
        return None
    if isinstance(node, ast.FunctionDef):
        return _of_function(node)
    if node.keywords:  # a metaclass, which may change it too
        return None
    methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
    start = methods.get("__init__")
    if "__new__" in methods or start is None or start.decorator_list:
        return None
    signature = _of_function(start)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _of_function(node: ast.FunctionDef) -> inspect.Signature:
    """A function's parameters, without types; of a default, only that there is one."""
    kinds, all_of = inspect.Parameter, node.args
    places = [*all_of.posonlyargs, *all_of.args]
    required = len(places) - len(all_of.defaults)
    by_place, either = kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD
    rows: list[tuple[ast.arg, Any, bool]] = [
        (one, by_place if index < len(all_of.posonlyargs) else either, index >= required)
        for index, one in enumerate(places)
    ]
    rows += [(all_of.vararg, kinds.VAR_POSITIONAL, False)] if all_of.vararg else []
    rows += [
        (one, kinds.KEYWORD_ONLY, default is not None)
        for one, default in zip(all_of.kwonlyargs, all_of.kw_defaults, strict=True)
    ]
    rows += [(all_of.kwarg, kinds.VAR_KEYWORD, False)] if all_of.kwarg else []
    return inspect.Signature(
        [kinds(one.arg, kind, default=None if has else kinds.empty) for one, kind, has in rows]
    )


def local_files(path: Path, folder: Path) -> set[Path]:
    """A file in a folder and the files that it imports from there, at any depth."""
    files, waiting = set[Path](), [path]
    while waiting:
        file = waiting.pop()
        if file not in files:
            files.add(file)
            waiting += _local_imports(file, folder)
    return files


def _local_imports(path: Path, folder: Path) -> Iterator[Path]:
    for node in ast.walk(parsed(path)):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parent = _parent(path, node.level, folder)
            if parent is None:
                continue
            module = ".".join([*parent, *([node.module] if node.module else [])])
            modules = [module, *(f"{module}.{alias.name}".strip(".") for alias in node.names)]
        for module in modules:
            if module and (file := _file(folder / Path(*module.split(".")))):
                yield file


def _parent(path: Path, level: int, folder: Path) -> tuple[str, ...] | None:
    """The package of a relative import with this many dots; None if it is outside of the folder."""
    if not level:
        return ()
    outside = level > len(path.parents) or not path.parents[level - 1].is_relative_to(folder)
    return None if outside else path.parents[level - 1].relative_to(folder).parts


def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file; InvalidValueError, with the line, if it is not Python."""
    try:
        return ast.parse(path.read_bytes(), str(path))
    except (RecursionError, MemoryError):  # of nested expressions
        raise InvalidValueError(f"{path.name}: it is nested too deeply", "simplify it") from None
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise InvalidValueError(f"{path.name}{line}: {error.args[0]}", "correct it") from None


class Script(_Code):
    """A Python script with its arguments, which the lab runs on each rank and does not change.

    `command` begins with the script's path in `directory`, or with `-m` and a module there; the
    script runs in `directory`, which is relative to the study's folder. A setting of the run in
    braces, such as `{micro_batch_size}`, stands for its value, as do `{rank}`, `{local_rank}` and
    `{out}`, a new folder. `launcher` determines the script's environment variables: torchrun's, or
    none, as for `python train.py`.

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
        is_module = command[0] == "-m"
        name = command[1] if is_module and command[1:] else Path(command[0]).name
        if name in _LAUNCHERS:
            advice = "leave it out: the lab itself starts the script on each rank"
            raise InvalidValueError(f"{name!r} is not a script but starts one", advice)
        if is_module and not _MODULE.fullmatch(name):
            what = f"{' '.join(command[:2])!r} does not name a module"
            raise InvalidValueError(what, "write -m and its name, such as scripts.train")
        if not is_module and not name.endswith(".py"):
            what = f"{command[0]!r} is not a Python script"
            raise InvalidValueError(what, "begin with the script, such as train.py")
        return command

    @property
    def label(self) -> str:
        """A short name: the script's place, and its arguments."""
        return ", ".join(part for part in (self.place, " ".join(self._arguments)) if part)

    @property
    def module(self) -> str | None:
        """The module that `-m` names; None for a script's path."""
        return self.command[1] if self.command[0] == "-m" else None

    @property
    def name(self) -> str:
        """The script's file, or that of the module."""
        return f"{stem_of(list(self.command))}.py"

    @property
    def place(self) -> str:
        """The script's file with its folders as given, as several may hold a `run.py`."""
        place = os.path.normpath(Path(self.directory, self._file))
        return re.sub(r"^(\.\./)+", "", place)  # these lead to where the user stood

    @property
    def _file(self) -> str:
        return f"{self.module.replace('.', '/')}.py" if self.module else self.command[0]

    @property
    def _arguments(self) -> tuple[str, ...]:
        return self.command[2 if self.module else 1 :]

    @property
    def placeholders(self) -> list[str]:
        """The names in braces in its arguments."""
        return [name for part in self._arguments for name in PLACEHOLDER.findall(part)]

    def arguments(self, values: Mapping[str, Any]) -> list[str]:
        """Its arguments with values in place of the names."""
        return [
            PLACEHOLDER.sub(lambda match: str(values[match[1]]), part) for part in self._arguments
        ]

    def path(self, folder: Path) -> Path:
        """The script's file; `folder` is the study's."""
        package = folder / self.directory / self._file.removesuffix(".py") / "__main__.py"
        if self.module and package.is_file():
            return Path(os.path.realpath(package))
        # Unlike `Path.resolve`, this leaves a loop of links to be found missing.
        return Path(os.path.realpath(folder / self.directory / self._file))

    def root(self, folder: Path) -> Path:
        """The folder that Python finds its modules in; `folder` is the study's."""
        if self.module:
            return Path(os.path.realpath(folder / self.directory))
        return self.path(folder).parent

    def digest(self, folder: Path) -> str:
        """SHA-256 of its sources; InvalidValueError if it cannot be read."""
        path, root = self.path(folder), self.root(folder)
        if not path.is_file():
            scripts = sorted(one.name for one in path.parent.glob("*.py"))
            advice = nearest(path.name, scripts) if scripts else f"{path.parent} has no Python file"
            missing = str(path.relative_to(root)) if self.module else self.command[0]
            raise InvalidValueError(f"no script {missing!r}", advice)
        files = local_files(path, root)
        named = [(name, path.parent) for file in files for name in _constants(file)]
        arguments = [(part.split("=")[-1], folder / self.directory) for part in self._arguments]
        files |= set(filter(None, (_settings_file(*one) for one in [*named, *arguments])))
        # The script's folder may move; files elsewhere are identified by name.
        names = {f: str(f.relative_to(root)) if f.is_relative_to(root) else f.name for f in files}
        return hash_files({name: file for file, name in names.items()})


def stem_of(command: list[str]) -> str:
    """The name of a command's script or module, without its folder and suffix."""
    if command[:1] == ["-m"] and command[1:]:
        return command[1].rpartition(".")[2]
    return Path(command[0]).stem if command else ""


def _constants(file: Path) -> Iterator[str]:
    """String constants in a source file, some of which name files that it runs or reads."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _settings_file(name: str, place: Path) -> Path | None:
    """A constant or an argument as a file, if it names one; systems refuse other names."""
    if Path(name).suffix not in _SETTINGS_FILES:
        return None
    if not name.isprintable() or len(name.encode()) > 255:
        return None
    path = Path(os.path.realpath(place / name))
    return path if path.is_file() and path.stat().st_size <= _LARGEST_FILE else None


def is_unchanged(code: Own | Script, folder: Path) -> bool:
    """Whether a run's code is still that with which it was planned; `folder` is the study's."""
    try:
        return code.digest(folder) == code.source
    except InvalidValueError:  # it is gone
        return False
