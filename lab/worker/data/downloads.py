"""Files of published data sets: downloaded once, checked, kept in the cache."""

from __future__ import annotations

import hashlib
import os
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from lab.errors import LabError
from lab.jobs.place import Progress
from lab.worker.data.cache import cache_folder, locked

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


def _receive(download: Download, stream: BinaryIO, path: Path, instead: str, progress: Progress) -> str:
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
