"""The private folder in which downloads and tokens are kept between runs."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from lab.errors import LabError
from lab.worker.context import Progress


def cache_folder(part: str) -> Path:
    """The folder of one kind of content below LAB_CACHE, or below the user's cache folder; made private where it is new."""
    named, xdg = os.environ.get("LAB_CACHE"), os.environ.get("XDG_CACHE_HOME")
    root = Path(named) if named else Path(xdg or Path.home() / ".cache") / "scaling-lab"
    for folder in (root, root / part):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return root / part


@contextmanager
def locked(path: Path, *, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path`, which its holder's death frees; `waiting` is called while another process holds it."""
    with path.open("w") as stream:
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waiting()
                time.sleep(0.1)
        yield


FORMAT = 2
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Stored:
    """Named arrays, mapped from the files of a folder."""

    arrays: Mapping[str, Array]
    sha256: str  # of their names, shapes, types and contents
    folder: Path


def stored(
    kind: str, key: str, build: Callable[[Path], Mapping[str, Array]], *, progress: Progress
) -> Stored:
    """What the cache holds under this key, or what `build` makes for it; `build` may leave further files in its folder.

    Safe beside other ranks and jobs that want the same: one builds under a lock, and what it built appears at once.
    """
    root = cache_folder(kind)
    folder = root / hashlib.sha256(f"{FORMAT} {key}".encode()).hexdigest()[:32]
    found = _load(folder)
    if found is None:
        with locked(folder.with_suffix(".lock"), waiting=lambda: progress("data", 0, 1)):
            found = _load(folder)
            if found is None:
                _build(folder, build)
                found = _load(folder)
    if found is None:
        raise OSError(f"{folder}: written just now and not readable: is the disk full?")
    return found


def _load(folder: Path) -> Stored | None:
    """What is in the cache; None where there is nothing, or something torn."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        # Plain views of the mapped files: numpy's memmap class costs time at every slice.
        arrays = {
            name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r"))
            for name in meta["shapes"]
        }
        whole = all(list(arrays[name].shape) == shape for name, shape in meta["shapes"].items())
        return Stored(arrays, str(meta["sha256"]), folder) if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _build(folder: Path, build: Callable[[Path], Mapping[str, Array]]) -> None:
    for leftover in folder.parent.glob(
        f".{folder.name}.*"
    ):  # of a process that was killed while it built
        shutil.rmtree(leftover, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    arrays = {name: np.ascontiguousarray(array) for name, array in sorted(build(building).items())}
    digest = hashlib.sha256()
    for name, array in arrays.items():
        np.save(building / f"{name}.npy", array)
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.data.cast("B"))
    meta = {
        "format": FORMAT,
        "sha256": digest.hexdigest(),
        "shapes": {name: array.shape for name, array in arrays.items()},
    }
    (building / "meta.json").write_text(json.dumps(meta))
    building.replace(folder)


TIMEOUT_S = 30
BLOCK = 2**20


@dataclass(frozen=True)
class Download:
    """A file as it was published."""

    name: str  # what it is, for people
    url: str
    file: str  # its name in the cache
    size: int  # bytes
    sha256: str


def fetch(download: Download, *, instead: str, progress: Progress) -> Path:
    """The file in the cache, downloaded where it is not there yet, its SHA-256 checked each time.

    `instead` is a data set that needs no network. Raises LabError where the file cannot be had or is another.
    """
    path = cache_folder("downloads") / download.file
    with locked(path.with_name(path.name + ".lock"), waiting=lambda: progress("data", 0, 1)):
        if not path.exists():
            _download(download, path, instead, progress)
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    _require(digest, download, source=str(path), instead=instead)
    return path


def _download(download: Download, path: Path, instead: str, progress: Progress) -> None:
    handle, building = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            digest = _receive(download, stream, path, instead, progress)
        _require(digest, download, source=download.url, instead=instead)
        Path(building).replace(path)
    finally:
        Path(building).unlink(missing_ok=True)


def _receive(
    download: Download, stream: BinaryIO, path: Path, instead: str, progress: Progress
) -> str:
    """Write what the address gives, one block more than expected at most; its SHA-256."""
    digest, received = hashlib.sha256(), 0
    try:
        with urllib.request.urlopen(download.url, timeout=TIMEOUT_S) as response:  # noqa: S310  (addresses are constants)
            while received <= download.size and (block := response.read(BLOCK)):
                stream.write(block)
                digest.update(block)
                received += len(block)
                progress("data", received, download.size)
    except (OSError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", error)
        raise LabError(
            f"{download.name} cannot be downloaded ({reason}). Get {download.url} on a machine with a network, put it at "
            f"{path}, or use `data: {instead}`, which needs no network."
        ) from None
    return digest.hexdigest()


def _require(digest: str, download: Download, *, source: str, instead: str) -> None:
    if digest != download.sha256:
        raise LabError(
            f"{source} is not {download.name} as published: its SHA-256 is {digest[:12]}..., not {download.sha256[:12]}... "
            f"Remove it if it is a file of yours and run again, or use `data: {instead}`."
        )
