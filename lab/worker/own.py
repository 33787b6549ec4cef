"""A user's own code on a rank: imported, called, and blamed by line if it fails."""

from __future__ import annotations

import importlib
import inspect
import itertools
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lab.config.own import Own, Script, is_unchanged
from lab.config.run import Run
from lab.errors import InputError, LabError
from lab.machine import Interrupted

# Errors with a meaning of their own.
OTHERS = (MemoryError, torch.OutOfMemoryError)
_LOOKUP: Any = type(os.environ).__getitem__


def admit(run: Run, folder: Path) -> None:
    """Make modules beside the study importable; LabError if they are not those of the run."""
    parts = (run.architecture, run.dataset, run.own_strategy)
    own = [part for part in parts if isinstance(part, Own)]
    for part in own:
        require_unchanged(part, part.factory, folder)
    if own and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))  # as for a script in that folder


def require_unchanged(code: Own | Script, name: str, folder: Path) -> None:
    """Raise LabError if code of this name is not that of the run; `folder` is the study's."""
    if not is_unchanged(code, folder):
        raise LabError(
            f"{name}, or what it imports, has changed since this run was planned; "
            "start the study again, which makes new runs for the new code"
        )


def make(own: Own, **offered: Any) -> Any:
    """The factory's result from its `args` and those `offered` for which it has a parameter."""
    factory = load(own.factory)
    with blamed(own.factory):
        wanted = inspect.signature(factory).parameters
        known = {name: value for name, value in offered.items() if name in wanted}
        made = factory(**{**known, **own.args})
    if made is None:
        raise LabError(f"{own.factory} returned nothing; return what it makes")
    return made


def load(reference: str) -> Any:
    """The function or class behind `module:name`; LabError if its import fails."""
    module, name = reference.split(":")
    with blamed(reference):
        return getattr(importlib.import_module(module), name)


@contextmanager
def located(folder: Path, explained: Callable[[BaseException], str]) -> Iterator[None]:
    """Report an error in training that passes through a user's code in `folder` by its last line.

    Raises LabError for such an error, and for one of torch outside that code if `explained` says
    what it means; all others stay as they are.
    """
    try:
        yield
    except (*OTHERS, Interrupted):
        raise
    except BaseException as error:
        if wrapped := _of_loader(str(error)):
            raise LabError(wrapped) from error
        if isinstance(error, LabError):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)]
        theirs = [frame for frame in theirs if not _is_library(frame.filename)]
        if not theirs:
            if meaning := explained(error):
                raise LabError(meaning) from error
            raise
        raise LabError(f"{_place(theirs[-1])}: {_what(error, theirs[-1].line)}") from error


def _place(frame: traceback.FrameSummary) -> str:
    return f"{Path(frame.filename).name}, line {frame.lineno}"


@contextmanager
def blamed(reference: str, *, but: type[BaseException] = Interrupted) -> Iterator[None]:
    """Report an error in a user's code by its last line there, with Python's traceback as cause.

    Any exception is an error, even `SystemExit`, except for `but`.
    """
    try:
        yield
    except (InputError, *OTHERS, but):
        raise
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is this module's
        ours = Path(__file__).parents[1]
        others = [frame for frame in frames if not Path(frame.filename).is_relative_to(ours)]
        theirs = [frame for frame in others if not _is_library(frame.filename)] or others
        place = f" in {_place(theirs[-1])}".replace(f" {reference},", "") if theirs else ""
        line = theirs[-1].line if theirs else None
        raise LabError(f"{reference} failed{place}: {_what(error, line)}") from error


def _is_library(file: str) -> bool:
    libraries = (sysconfig.get_path("stdlib"), "<frozen ", *_installed())
    return "site-packages" in file or file.startswith(libraries)


def _installed() -> tuple[str, ...]:
    """Folders that packages were installed into, which need not be called site-packages."""
    # As with `pip install --target`, of which clusters put the folder on PYTHONPATH.
    folders = [Path(folder) for folder in sys.path if folder]
    return tuple(f"{folder}/" for folder in folders if any(folder.glob("*.dist-info")))


def _what(error: BaseException, line: str | None) -> str:
    """The error in words, or with the line of code that raised it if it has none."""
    if isinstance(error, LabError):
        return str(error)
    if _of_environ(error):
        return f"the environment variable {error.args[0]} is not set"
    if wrapped := _of_loader(str(error)):
        return wrapped
    name = type(error).__name__
    if isinstance(error, ZeroDivisionError) and line:  # its text does not say what is zero
        return f"{name}: {error} in `{line}`"
    return f"{name}: {error}" if str(error) else f"{name} by `{line}`" if line else name


def _of_loader(message: str) -> str:
    """The error within the message of torch's that holds a loader process's whole traceback."""
    caught, original, _ = message.partition("\nOriginal Traceback ")
    lines = message.rpartition("Traceback (most recent call last):\n")[2].splitlines()
    text = list(itertools.dropwhile(lambda line: line.startswith(" "), lines))
    if not original or not text:
        return ""
    text[0] = text[0].removeprefix(f"{LabError.__module__}.{LabError.__name__}: ")
    return "\n".join(text) + f" (in {caught.partition(' in ')[2].rstrip('.')})"


def _of_environ(error: BaseException) -> bool:
    """Whether a lookup in `os.environ` raised this, whose only word is the variable's name."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_code is _LOOKUP.__code__
