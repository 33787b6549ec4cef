"""Topic classification made from the sources of the running interpreter: what is this piece of code about?

Not a published task. Four topics, each a list of modules of the standard library; a sample is a run of whole lines of
one of their files, comments and docstrings included. Every tenth piece is held out, so both parts hold pieces of the
same files.
"""

from __future__ import annotations

import hashlib
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from lab.jobs.place import Progress
from lab.worker.data.stdlib import LEFT_OUT
from lab.worker.data.texts import Source, Texts

# Modules that every build has; those that a version lacks are passed over.
TOPICS = {
    "network": "http email urllib xmlrpc wsgiref smtplib ftplib imaplib poplib socketserver socket ssl ipaddress mailbox nntplib",
    "concurrency": "asyncio concurrent multiprocessing threading subprocess queue selectors sched signal contextvars _pyio",
    "language": "importlib ast dis inspect tokenize pickle pickletools typing dataclasses traceback pdb bdb doctest enum functools",
    "files and formats": "tarfile zipfile gzip bz2 lzma shutil pathlib json csv configparser plistlib xml html tempfile sqlite3",
}
PIECE = 480  # characters, or a little more
HELD_OUT_EVERY = 10


def source(*, progress: Progress) -> Source:
    """The pieces, as many of each topic: those that the smallest topic has."""
    pieces = [list(_pieces(Path(sysconfig.get_path("stdlib")), modules.split())) for modules in TOPICS.values()]
    count = min(map(len, pieces))
    even = [[of_topic[index * len(of_topic) // count] for index in range(count)] for of_topic in pieces]
    content = hashlib.sha256("\0".join(piece for of_topic in even for piece in of_topic).encode()).hexdigest()
    progress("data", 1, 1)

    def part(held_out: bool) -> Texts:
        chosen = [index for index in range(count) if (index % HELD_OUT_EVERY == HELD_OUT_EVERY - 1) == held_out]
        rows = [(of_topic[index], label) for label, of_topic in enumerate(even) for index in chosen]
        return Texts([text for text, _ in rows], [label for _, label in rows])

    return Source(
        fingerprint=f"topics {content}",
        description=f"{len(TOPICS)} topics of the standard library of Python {platform.python_version()}",
        classes=len(TOPICS),
        read=lambda: (part(False), part(True)),
    )


def _pieces(root: Path, modules: list[str]) -> Iterator[str]:
    for module in modules:
        files = [root / f"{module}.py"] if (root / f"{module}.py").is_file() else sorted((root / module).rglob("*.py"))
        for file in files:
            if not LEFT_OUT.intersection(file.relative_to(root).parts):
                yield from _cut(file.read_text(encoding="utf-8", errors="replace"))


def _cut(text: str) -> Iterator[str]:
    """Whole lines up to PIECE characters; what is left at the end of a file is too little to tell."""
    piece = ""
    for line in text.splitlines(keepends=True):
        piece += line
        if len(piece) >= PIECE:
            yield piece
            piece = ""
