"""The sources of the running interpreter's standard library."""

from __future__ import annotations

import platform
import sysconfig
from pathlib import Path

from lab.worker.data.tokens import Corpus

LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
MAX_BYTES = 6_000_000  # enough for models of this size, and tokenized in seconds


def read() -> Corpus:
    """Every n-th Python file in the order of their paths, n so that about MAX_BYTES are left; tests are left out."""
    root = Path(sysconfig.get_path("stdlib"))
    files = [path for path in sorted(root.rglob("*.py")) if not LEFT_OUT.intersection(path.relative_to(root).parts)]
    stride = max(round(sum(path.stat().st_size for path in files) / MAX_BYTES), 1)
    documents = [path.read_text(encoding="utf-8", errors="replace") for path in files[::stride]]
    return Corpus(documents, f"{len(documents)} files of the standard library of Python {platform.python_version()}")
