"""Labelled texts as tokens of a fixed length, made once and mapped into memory."""

from __future__ import annotations

import csv
import hashlib
import os
import platform
import re
import sysconfig
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lab.errors import LabError
from lab.worker.context import Progress
from lab.worker.data import tokenizer
from lab.worker.data.cache import Array, Download, fetch, stored
from lab.worker.data.corpora import LEFT_OUT
from lab.worker.data.dataset import Dataset, Labelled
from lab.worker.data.tokenizer import load_tokenizer, train_tokenizer

BATCH = 2000  # texts that are encoded at a time
PADDING = (
    "[PAD]",
    "<pad>",
    tokenizer.END_OF_TEXT,
)  # the tokens that pad texts, in the order in which they are looked for


@dataclass(frozen=True)
class Texts:
    """Texts and the number of the class of each."""

    texts: Sequence[str]
    labels: Sequence[int]


@dataclass(frozen=True)
class Source:
    """Where labelled texts come from: read only where their tokens are not in the cache, or are to be made again."""

    fingerprint: str  # changes with the content
    description: str
    classes: int
    read: Callable[[], tuple[Texts, Texts]]  # to train on, and held out


@dataclass(frozen=True)
class Encoder:
    """Makes the tokens of one text again, as a loader does that tokenizes in `__getitem__`."""

    texts: Sequence[str]
    tokenizer: Any
    block_size: int
    pad: int

    def __call__(self, index: int) -> Array:
        """Tokens (block_size,), int64."""
        tokens: Array = _fixed(
            [self.tokenizer.encode(self.texts[index]).ids], self.block_size, self.pad, np.int64
        )[0]
        return tokens


def tokenized(
    source: Source,
    *,
    block_size: int,
    vocab_size: int,
    progress: Progress,
    pretrained: Path | None = None,
    again: bool = False,
) -> Dataset:
    """The texts as tokens (samples, block_size), cut or padded; from the cache or built into it.

    The tokenizer is trained on the texts, or is that of the folder `pretrained`. With `again` the samples also know how
    to be made from their texts.
    """
    file = pretrained / "tokenizer.json" if pretrained else None

    def build(folder: Path) -> dict[str, Array]:
        train, held_out = source.read()
        progress("data", 0, len(train.texts))
        tokenizer = load_tokenizer(file) if file else train_tokenizer(train.texts, vocab_size)
        tokenizer.save(str(folder / "tokenizer.json"))
        arrays: dict[str, Array] = {}
        for name, part in (("train", train), ("held_out", held_out)):
            arrays[f"{name}_tokens"] = _encode(
                _plain(tokenizer, block_size), part.texts, block_size, progress
            )
            arrays[f"{name}_labels"] = np.asarray(part.labels, dtype=np.uint16)
        return arrays

    by = hashlib.sha256(file.read_bytes()).hexdigest() if file else f"own {vocab_size}"
    found = stored("texts", f"{source.fingerprint} {block_size} {by}", build, progress=progress)
    tokenizer = load_tokenizer(found.folder / "tokenizer.json")
    encoders: list[Encoder | None] = [None, None]
    if again:
        parts = source.read()
        encoders = [
            Encoder(part.texts, _plain(tokenizer, block_size), block_size, _pad(tokenizer))
            for part in parts
        ]
    train, held_out = (
        Labelled(found.arrays[f"{name}_tokens"], found.arrays[f"{name}_labels"], encoder)
        for name, encoder in zip(("train", "held_out"), encoders, strict=True)
    )
    vocabulary = tokenizer.get_vocab_size() if file else vocab_size
    return Dataset(
        train=train,
        held_out=held_out,
        sha256=found.sha256,
        description=f"{source.description}, {len(train)} texts and {len(held_out)} held out, vocabulary {vocabulary}",
        tokens_per_sample=block_size,
        vocab_size=vocabulary,
        classes=source.classes,
        pad=_pad(tokenizer),
    )


def _plain(tokenizer: Any, block_size: int) -> Any:
    """The tokenizer set to cut, so that what closes a text stays when the text is cut, and to leave padding to us."""
    tokenizer.enable_truncation(block_size)
    tokenizer.no_padding()
    return tokenizer


def _pad(tokenizer: Any) -> int:
    found = [number for token in PADDING if (number := tokenizer.token_to_id(token)) is not None]
    return int(found[0]) if found else 0


def _encode(tokenizer: Any, texts: Sequence[str], block_size: int, progress: Progress) -> Array:
    pad = _pad(tokenizer)
    dtype = np.uint16 if tokenizer.get_vocab_size() <= 2**16 else np.uint32
    tokens = np.empty((len(texts), block_size), dtype=dtype)
    for first in range(0, len(texts), BATCH):
        encodings = tokenizer.encode_batch(list(texts[first : first + BATCH]))
        tokens[first : first + BATCH] = _fixed(
            [encoding.ids for encoding in encodings], block_size, pad, dtype
        )
        progress("data", first, len(texts))
    return tokens


def _fixed(rows: Sequence[Sequence[int]], block_size: int, pad: int, dtype: Any) -> Array:
    tokens = np.full((len(rows), block_size), pad, dtype=dtype)
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = ids[:block_size]
    return tokens


def quiet_in_workers(worker: int) -> None:
    """For a process of a DataLoader: the tokenizer's own threads would not survive its fork, and warn of it."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


_ROOT = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv"
TRAIN = Download(
    name="AG News (train)",
    url=f"{_ROOT}/train.csv",
    file="ag_news_train.csv",
    size=29_470_338,
    sha256="76a0a2d2f92b286371fe4d4044640910a04a803fdd2538e0f3f29a5c6f6b672e",
)
TEST = Download(
    name="AG News (test)",
    url=f"{_ROOT}/test.csv",
    file="ag_news_test.csv",
    size=1_857_427,
    sha256="521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699",
)
AG_NEWS_CLASSES = ("world", "sports", "business", "science and technology")


def ag_news_source(*, progress: Progress) -> Source:
    """The news items; raises LabError where they cannot be had or are not what was published."""
    train, test = (fetch(part, instead="topics", progress=progress) for part in (TRAIN, TEST))
    return Source(
        fingerprint=f"ag_news {TRAIN.sha256} {TEST.sha256}",
        description="AG News",
        classes=len(AG_NEWS_CLASSES),
        read=lambda: (_read_ag_news(train), _read_ag_news(test)),
    )


def _read_ag_news(path: Path) -> Texts:
    """Rows of class (from 1), title, description; raises LabError for a row that is none."""
    texts, labels = [], []
    with path.open(encoding="utf-8", newline="") as stream:
        for number, row in enumerate(csv.reader(stream), start=1):
            if len(row) != 3 or row[0] not in {"1", "2", "3", "4"}:
                raise LabError(
                    f"{path}: row {number} is not a class from 1 to 4, a title and a description"
                )
            labels.append(int(row[0]) - 1)
            texts.append(f"{row[1]} {row[2]}".replace("\\", " "))
    return Texts(texts, labels)


ARCHIVE = Download(
    name="IMDB",
    url="https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    file="aclImdb_v1.tar.gz",
    size=84_125_825,
    sha256="c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
)
IMDB_CLASSES = ("neg", "pos")
_REVIEW = re.compile(r"aclImdb/(train|test)/(neg|pos)/[^/]+\.txt")


def imdb_source(*, progress: Progress) -> Source:
    """The reviews; raises LabError where they cannot be had or are not what was published."""
    path = fetch(ARCHIVE, instead="topics", progress=progress)
    return Source(f"imdb {ARCHIVE.sha256}", "IMDB", len(IMDB_CLASSES), lambda: _read_imdb(path))


def _read_imdb(path: Path) -> tuple[Texts, Texts]:
    """The labelled reviews of the archive in the order of their names; nothing of it is written to disk."""
    found: dict[str, list[tuple[str, str, int]]] = {"train": [], "test": []}
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            place = _REVIEW.fullmatch(member.name)
            content = archive.extractfile(member) if place and member.isfile() else None
            if place and content:
                text = content.read().decode("utf-8").replace("<br />", " ")
                found[place[1]].append((member.name, text, IMDB_CLASSES.index(place[2])))
    if not all(found.values()):
        raise LabError(
            f"{path} holds no reviews where they should be: aclImdb/train/pos and the like"
        )
    train, test = (
        Texts([text for _, text, _ in rows], [label for *_, label in rows])
        for rows in map(sorted, found.values())
    )
    return train, test


# Modules that every build has; those that a version lacks are passed over.
TOPICS = {
    "network": "http email urllib xmlrpc wsgiref smtplib ftplib imaplib poplib socketserver socket ssl ipaddress mailbox nntplib",
    "concurrency": "asyncio concurrent multiprocessing threading subprocess queue selectors sched signal contextvars _pyio",
    "language": "importlib ast dis inspect tokenize pickle pickletools typing dataclasses traceback pdb bdb doctest enum functools",
    "files and formats": "tarfile zipfile gzip bz2 lzma shutil pathlib json csv configparser plistlib xml html tempfile sqlite3",
}
PIECE = 480  # characters, or a little more
HELD_OUT_EVERY = 10


def topics_source(*, progress: Progress) -> Source:
    """The pieces, as many of each topic: those that the smallest topic has."""
    pieces = [
        list(_pieces(Path(sysconfig.get_path("stdlib")), modules.split()))
        for modules in TOPICS.values()
    ]
    count = min(map(len, pieces))
    even = [
        [of_topic[index * len(of_topic) // count] for index in range(count)] for of_topic in pieces
    ]
    content = hashlib.sha256(
        "\0".join(piece for of_topic in even for piece in of_topic).encode()
    ).hexdigest()
    progress("data", 1, 1)

    def part(held_out: bool) -> Texts:
        chosen = [
            index
            for index in range(count)
            if (index % HELD_OUT_EVERY == HELD_OUT_EVERY - 1) == held_out
        ]
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
        files = (
            [root / f"{module}.py"]
            if (root / f"{module}.py").is_file()
            else sorted((root / module).rglob("*.py"))
        )
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
