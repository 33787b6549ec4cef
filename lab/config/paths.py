"""The files that a study may read, in its own folder and LAB_DATA_PATH, and where caches lie."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from lab.config.datasets import Text
from lab.config.run import Run
from lab.errors import InputError, Problem, nearest

MAX_BYTES = 2**30


def cache_roots(variables: Mapping[str, str] = os.environ) -> list[Path]:
    """Where downloads and prepared data lie: LAB_CACHE, then the user's own cache folder."""
    user = Path(variables.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scaling-lab"
    named = variables.get("LAB_CACHE")
    return [Path(named), user] if named else [user]


def text_roots(data_root: Path) -> list[Path]:
    """The folders that may hold text: the study's own, then those of LAB_DATA_PATH in order."""
    folders = os.environ.get("LAB_DATA_PATH", "").split(os.pathsep)
    return [data_root.resolve(), *(Path(folder).resolve() for folder in folders if folder)]


def resolve_text(path: str, data_root: Path) -> Path:
    """The file or folder of texts at `path`, absolute or below one of `text_roots`.

    Links are followed first, so that none leads outside. Raises InputError if it is outside,
    missing or unreadable.
    """
    return _resolve(path, data_root, source="data", key="path", noun="text")


def resolve_weights(path: str, data_root: Path) -> Path:
    """The folder of a model's weights at `path`, under the same rules."""
    return _resolve(path, data_root, source="model", key="weights", noun="folder")


def resolve_inputs(run: Run, data_root: Path) -> None:
    """Raise InputError for the first path of a run that cannot be used."""
    if isinstance(run.dataset, Text):
        resolve_text(run.dataset.path, data_root)
    weights = getattr(run.architecture, "weights", None)
    if weights is not None:
        resolve_weights(weights, data_root)


def _resolve(path: str, data_root: Path, *, source: str, key: str, noun: str) -> Path:
    roots = text_roots(data_root)
    what = f"{path!r} lies outside the study's folder"
    variable = "the environment variable LAB_DATA_PATH"
    advice = f"move the {noun} below {roots[0]}, or name its folder in {variable}"
    try:
        places = [(root / path).resolve() for root in roots]
        inside = [place for place in places if _is_inside(place, roots)]
        existing = [place for place in inside if place.exists()]
        if existing and os.access(existing[0], os.R_OK):
            return existing[0]
        if existing:
            what, advice = f"{path!r} is not readable", "change its permissions"
        elif inside:
            names = [entry.name for entry in inside[0].parent.glob("*")]
            what = f"{path!r}: no such file or folder"
            advice = nearest(inside[0].name, names)
    except (OSError, RuntimeError, ValueError) as error:
        what, advice = f"{path!r} cannot be read: {error}", "name a readable file or folder"
    raise InputError(source, [Problem(key, what, advice)])


def read_texts(path: str, data_root: Path) -> list[str]:
    """The UTF-8 texts of a file, or of all files below a folder in the order of their paths.

    Hidden entries, the study's own output, binary files, and links that lead outside the allowed
    folders are left out. Raises InputError if nothing is left, or more than MAX_BYTES.
    """
    place = resolve_text(path, data_root)
    roots = text_roots(data_root)
    files = [
        file
        for file in _files(place, out=data_root.resolve() / "out")
        if file.is_file() and _is_inside(file.resolve(), roots)  # a loop of links is no file
    ]
    size = sum(file.stat().st_size for file in files)
    if size > MAX_BYTES:
        what = f"{path!r} holds {size / 1e9:.1f} GB of files"
        advice = f"use at most {MAX_BYTES / 1e9:.1f} GB"
        raise InputError("data", [Problem("path", what, advice)])
    texts = [text for text in map(_text, files) if text]
    if not texts:
        problem = Problem("path", f"{path!r} holds no UTF-8 text", "name a folder with text files")
        raise InputError("data", [problem])
    return texts


def _is_inside(place: Path, roots: list[Path]) -> bool:
    return any(place.is_relative_to(root) for root in roots)


def _files(place: Path, *, out: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    for folder, names, files in os.walk(place):
        names[:] = sorted(
            name for name in names if not name.startswith(".") and Path(folder, name) != out
        )
        yield from (Path(folder, name) for name in sorted(files) if not name.startswith("."))


def _text(file: Path) -> str:
    """A file's content, or nothing if it is not text."""
    try:
        text = file.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    return "" if "\0" in text else text
