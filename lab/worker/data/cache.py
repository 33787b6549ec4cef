"""Downloads and prepared arrays, kept in a private folder and shared by a user's ranks and jobs."""

from __future__ import annotations

import hashlib
import json
import os
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import TypeVar

import numpy as np
from filelock import FileLock, Timeout

from lab.config.paths import Download, cache_roots
from lab.errors import LabError
from lab.files import whole_folder, write_atomically
from lab.worker.context import Progress
from lab.worker.data.dataset import Array

FORMAT = 2  # of the array folders; changing it rebuilds them
TIMEOUT_S = 30
BLOCK = 2**20  # bytes received between two reports of progress
LOCK_POLL_S = 0.1

T = TypeVar("T")


@dataclass(frozen=True)
class CachedArrays:
    """Named arrays, mapped from the files of a folder."""

    arrays: Mapping[str, Array]
    sha256: str  # of their names, dtypes, shapes and contents
    folder: Path


def in_cache(part: str, name: str) -> Path:
    """Where a named file or folder of the cache lies, or is to be made if it is in no cache.

    A shared cache that this user may not write to is only read and gets no lock; what it lacks is
    made in the user's own cache. Raises LabError if that cannot be written.
    """
    folders = [root / part for root in cache_roots()]
    holder = next((folder for folder in folders if _exists(folder / name)), None)
    return (holder or _made(next(filter(_may_write, folders), folders[-1]))) / name


def _may_write(folder: Path) -> bool:
    """Whether this user may write to a folder of the cache, which need not exist yet."""
    existing = next(filter(_exists, (folder, folder.parent)), None)
    return existing is None or os.access(existing, os.W_OK | os.X_OK)


def _exists(path: Path) -> bool:
    return os.access(path, os.F_OK)  # Path.exists raises where this user may not look


def _made(folder: Path) -> Path:
    advice = "set LAB_CACHE to a folder for data that ranks can write to"
    # One at a time, as the parents of a new folder would get the umask's mode, not 0700.
    for place in (folder.parent, folder):
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise LabError(f"{place}: cannot be made: {error.strerror}; {advice}") from error
    if not _may_write(folder):
        raise LabError(f"{folder}: cannot be written; {advice}")
    return folder


def load_or_build(
    path: Path,
    load: Callable[[], T | None],
    build: Callable[[], object],
    *,
    waiting: Callable[[], None],
) -> T:
    """What `load` reads from `path`, after `build` if there is nothing yet.

    Only one of all ranks and jobs builds, under a lock; the others call `waiting` meanwhile.
    Raises LabError if nothing can be loaded after `build`.
    """
    value = load()
    if value is not None:
        return value
    lock = FileLock(path.with_name(f"{path.name}.lock"))
    while not lock.is_locked:
        try:
            lock.acquire(timeout=LOCK_POLL_S)
        except Timeout:
            waiting()
    try:
        value = load()  # another process may have built it in the meantime
        if value is None:
            build()
            value = load()
    finally:
        lock.release()
    if value is None:
        raise LabError(f"{path}: just written, but not readable: is the disk full?")
    return value


def cached_arrays(
    kind: str, key: str, build: Callable[[Path], Mapping[str, Array]], *, progress: Progress
) -> CachedArrays:
    """The arrays under this key, cached or made by `build`, which may add files to its folder.

    Raises LabError if the cache cannot be written.
    """
    folder = in_cache(kind, hashlib.sha256(f"{FORMAT} {key}".encode()).hexdigest()[:32])
    waiting = partial(progress, "data", 0, 1)
    try:
        return load_or_build(
            folder, partial(_load, folder), partial(_build, folder, build), waiting=waiting
        )
    except OSError as error:
        if error.filename is not None:
            raise
        raise LabError(f"{folder}: {error.strerror or error}: is the disk full?") from error


def _load(folder: Path) -> CachedArrays | None:
    """The arrays in a folder; None if there are none or a file is incomplete."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        sizes = meta.get("bytes", {})  # unknown in folders of earlier versions
        if any((folder / name).stat().st_size != size for name, size in sizes.items()):
            return None
        arrays = {}
        for name, shape in meta["shapes"].items():
            # A plain view of the mapped file, as numpy's memmap class costs time at every slice.
            arrays[name] = np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r"))
            if list(arrays[name].shape) != shape:
                return None
        return CachedArrays(arrays, str(meta["sha256"]), folder)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, EOFError):
        return None


def _build(folder: Path, build: Callable[[Path], Mapping[str, Array]]) -> None:
    digest, shapes = hashlib.sha256(), {}
    with whole_folder(folder, durable=False) as building:  # readers take no lock
        for name, values in sorted(build(building).items()):
            array = np.ascontiguousarray(values)
            np.save(building / f"{name}.npy", array)
            digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
            digest.update(array.data.cast("B"))
            shapes[name] = array.shape
        sizes = {path.name: path.stat().st_size for path in building.iterdir()}
        meta = {"format": FORMAT, "sha256": digest.hexdigest(), "shapes": shapes, "bytes": sizes}
        (building / "meta.json").write_text(json.dumps(meta))


def fetch(download: Download, *, instead: str, progress: Progress) -> Path:
    """The file in the cache, downloaded unless it is there, its SHA-256 checked at each call.

    `instead` names a data set that needs no network. Raises LabError for a file that cannot be
    obtained or differs.
    """
    path = in_cache("downloads", download.file)

    def check(digest: str, source: object) -> None:
        if digest != download.sha256:
            raise LabError(
                f"{source} is not {download.name} as published: its SHA-256 is {digest[:12]}..., "
                f"not {download.sha256[:12]}... Remove it if it is a file of yours and run again, "
                f"or use `data: {instead}`."
            )

    def receive() -> None:
        content = bytearray()
        try:
            with urllib.request.urlopen(download.url, timeout=TIMEOUT_S) as response:  # noqa: S310
                # A server that sends more than was published is cut off before it fills the disk.
                while len(content) <= download.size and (block := response.read(BLOCK)):
                    content += block
                    progress("data", len(content), download.size)
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)  # an URLError wraps what happened
            raise LabError(
                f"{download.name} cannot be downloaded ({reason}). Get {download.url} on a machine "
                f"with a network and put it at {path}, or use `data: {instead}`, which needs none."
            ) from None
        check(hashlib.sha256(content).hexdigest(), download.url)
        write_atomically(path, bytes(content), durable=False)  # lost in a power cut: fetched again

    waiting = partial(progress, "data", 0, 1)
    load_or_build(path, lambda: path.exists() or None, receive, waiting=waiting)
    # Checked even if it already existed: users without a network put it here by hand.
    check(file_sha256(path), path)
    return path


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
