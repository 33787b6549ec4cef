"""The sources of the running interpreter's standard library."""

from __future__ import annotations

import platform
import sysconfig
from pathlib import Path

from lab.config.paths import read_texts
from lab.worker.context import Progress
from lab.worker.data.cache import Download, fetch
from lab.worker.data.tokenizer import Corpus

LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
MAX_BYTES = 6_000_000  # enough for models of this size, and tokenized in seconds


def read_stdlib() -> Corpus:
    """Every n-th Python file in the order of their paths, n so that about MAX_BYTES are left; tests are left out."""
    root = Path(sysconfig.get_path("stdlib"))
    files = [
        path
        for path in sorted(root.rglob("*.py"))
        if not LEFT_OUT.intersection(path.relative_to(root).parts)
    ]
    stride = max(round(sum(path.stat().st_size for path in files) / MAX_BYTES), 1)
    documents = [path.read_text(encoding="utf-8", errors="replace") for path in files[::stride]]
    return Corpus(
        documents,
        f"{len(documents)} files of the standard library of Python {platform.python_version()}",
    )


def read_text(path: str, *, data_root: Path) -> Corpus:
    """The texts at `path`, as lab.config.paths allows; raises InputError."""
    texts = read_texts(path, data_root)
    return Corpus(texts, f"{len(texts)} text {'file' if len(texts) == 1 else 'files'} of {path}")


TEXT = Download(
    name="Tiny Shakespeare",
    url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    file="tinyshakespeare.txt",
    size=1_115_394,
    sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)


def read_shakespeare(*, progress: Progress) -> Corpus:
    """The text, downloaded once; raises LabError where it cannot be had or is not what was published."""
    return Corpus(
        [fetch(TEXT, instead="stdlib", progress=progress).read_text(encoding="utf-8")], TEXT.name
    )
