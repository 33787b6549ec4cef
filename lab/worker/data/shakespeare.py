"""Tiny Shakespeare: forty thousand lines of his plays, as published with char-rnn (Karpathy, 2015)."""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from pathlib import Path

from lab.atomic import write_atomically
from lab.errors import LabError
from lab.place import Progress
from lab.worker.data.cache import cache_folder, locked
from lab.worker.data.tokens import Corpus

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SIZE = 1_115_394
TIMEOUT_S = 30


def read(*, progress: Progress) -> Corpus:
    """The text, downloaded once; raises LabError where it cannot be had or is not what was published."""
    path = cache_folder("downloads") / "tinyshakespeare.txt"
    with locked(path.with_suffix(".lock"), waiting=lambda: progress("data", 0, 1)):
        if not path.exists():
            write_atomically(path, _checked(_download(path), source=URL))
    return Corpus([_checked(path.read_bytes(), source=str(path)).decode()], "Tiny Shakespeare")


def _download(path: Path) -> bytes:
    try:
        with urllib.request.urlopen(URL, timeout=TIMEOUT_S) as response:
            content: bytes = response.read(SIZE + 1)
    except (OSError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", error)
        raise LabError(
            f"Tiny Shakespeare cannot be downloaded ({reason}). Get {URL} on a machine with a network, put it at {path}, "
            "or use `data: stdlib`, which needs no network."
        ) from None
    return content


def _checked(content: bytes, *, source: str) -> bytes:
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise LabError(
            f"{source} is not Tiny Shakespeare as published: {len(content)} bytes with another SHA-256 than {SHA256[:12]}... "
            "Remove it if it is a file of yours and run again, or use `data: stdlib`."
        )
    return content
