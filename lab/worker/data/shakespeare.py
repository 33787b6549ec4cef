"""Tiny Shakespeare: forty thousand lines of his plays, as published with char-rnn (Karpathy, 2015)."""

from __future__ import annotations

from lab.jobs.place import Progress
from lab.worker.data.downloads import Download, fetch
from lab.worker.data.tokens import Corpus

TEXT = Download(
    name="Tiny Shakespeare",
    url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    file="tinyshakespeare.txt",
    size=1_115_394,
    sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)


def read(*, progress: Progress) -> Corpus:
    """The text, downloaded once; raises LabError where it cannot be had or is not what was published."""
    return Corpus([fetch(TEXT, instead="stdlib", progress=progress).read_text(encoding="utf-8")], TEXT.name)
