"""The private folder in which downloads and tokens are kept between runs."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


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
