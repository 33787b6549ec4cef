"""The user's own text files."""

from __future__ import annotations

from pathlib import Path

from lab.textfiles import read_texts
from lab.worker.data.tokens import Corpus


def read(path: str, *, data_root: Path) -> Corpus:
    """The texts at `path`, as lab.textfiles allows; raises InputError."""
    texts = read_texts(path, data_root)
    return Corpus(texts, f"{len(texts)} text {'file' if len(texts) == 1 else 'files'} of {path}")
