"""Text classification: labelled texts as tokens of a fixed length, mapped into memory."""

from __future__ import annotations

import csv
import hashlib
import re
import sysconfig
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lab.config.datasets import LabelledTexts
from lab.config.models import Transformer
from lab.config.paths import AG_NEWS_TEST, AG_NEWS_TRAIN, IMDB
from lab.config.run import Run
from lab.worker.context import Progress
from lab.worker.data import corpora
from lab.worker.data.cache import cached_arrays, fetch, file_sha256
from lab.worker.data.dataset import HELD_OUT_EVERY, Array, Dataset, Labelled

BATCH = 2000  # texts that are encoded at a time
PADDING = ("[PAD]", "<pad>", corpora.END_OF_TEXT)  # the first one known to the tokenizer is used

IMDB_CLASSES = ("neg", "pos")
# Modules that every build has; those missing from a version are skipped.
TOPICS = {
    "network": "http email urllib xmlrpc wsgiref smtplib ftplib imaplib poplib socketserver "
    "socket ssl ipaddress mailbox nntplib",
    "concurrency": "asyncio concurrent multiprocessing threading subprocess queue selectors "
    "sched signal contextvars _pyio",
    "language": "importlib ast dis inspect tokenize pickle pickletools typing dataclasses "
    "traceback pdb bdb doctest enum functools",
    "files and formats": "tarfile zipfile gzip bz2 lzma shutil pathlib json csv configparser "
    "plistlib xml html tempfile sqlite3",
}
PIECE = 480  # characters of a text, or a little more


@dataclass(frozen=True)
class Texts:
    """Texts and their class numbers."""

    texts: Sequence[str]
    labels: Sequence[int]


@dataclass(frozen=True)
class Source:
    """A source of labelled texts, which are read only if the cache lacks their tokens."""

    fingerprint: str  # changes with the content
    description: str
    read: Callable[[], tuple[Texts, Texts]]  # training and held-out texts


def prepare(run: Run, *, pretrained: Path | None, data_root: Path, progress: Progress) -> Dataset:
    """The texts as tokens (samples, block_size), truncated or padded; cached or built now.

    The tokenizer is trained on the texts or taken from the folder `pretrained`. For the classic
    loader a sample can also be tokenized again from its text. Raises LabError like `fetch`.
    """
    config, model = run.dataset, run.architecture
    assert isinstance(config, LabelledTexts) and isinstance(model, Transformer)
    source, block_size = SOURCES[config.kind](progress), model.block_size
    # A pretrained model knows only the tokens that it was trained with.
    file = pretrained / "tokenizer.json" if pretrained else None

    def build(folder: Path) -> dict[str, Array]:
        train, held_out = source.read()
        progress("data", 0, len(train.texts))
        tokenizer = corpora.keep_tokenizer(
            folder, train.texts, vocab_size=config.vocab_size, published=file
        )
        _set_length(tokenizer, block_size)
        arrays: dict[str, Array] = {}
        for name, part in (("train", train), ("held_out", held_out)):
            arrays[f"{name}_tokens"] = _encode(tokenizer, part.texts, block_size, progress)
            arrays[f"{name}_labels"] = np.asarray(part.labels, dtype=np.uint16)
        return arrays

    tokens = file_sha256(file) if file else f"own {config.vocab_size}"
    key = f"{source.fingerprint} {block_size} {tokens}"
    cached = cached_arrays("texts", key, build, progress=progress)
    tokenizer = corpora.load_tokenizer(cached.folder / "tokenizer.json")
    pad = _set_length(tokenizer, block_size)
    encoders: list[Callable[[int], Array] | None] = [None, None]
    if run.loader == "classic":
        encoders = [partial(_encode_one, tokenizer, part.texts) for part in source.read()]
    train, held_out = (
        Labelled(cached.arrays[f"{name}_tokens"], cached.arrays[f"{name}_labels"], encoder)
        for name, encoder in zip(("train", "held_out"), encoders, strict=True)
    )
    vocabulary = tokenizer.get_vocab_size() if file else config.vocab_size
    texts = f"{len(train)} texts and {len(held_out)} held out"
    return Dataset(
        train,
        held_out,
        sha256=cached.sha256,
        description=f"{source.description}, {texts}, vocabulary {vocabulary}",
        tokens_per_sample=block_size,
        vocab_size=vocabulary,
        classes=config.classes,
        pad=pad,
    )


def _set_length(tokenizer: Any, block_size: int) -> int:
    """Make the tokenizer truncate and pad; returns the padding token."""
    ids = (tokenizer.token_to_id(token) for token in PADDING)
    pad = next((int(number) for number in ids if number is not None), 0)
    tokenizer.enable_truncation(block_size)  # the closing token ([SEP]) stays
    tokenizer.enable_padding(length=block_size, pad_id=pad)
    return pad


def _encode(tokenizer: Any, texts: Sequence[str], block_size: int, progress: Progress) -> Array:
    dtype = corpora.token_dtype(tokenizer.get_vocab_size())
    tokens = np.empty((len(texts), block_size), dtype=dtype)
    for first in range(0, len(texts), BATCH):
        encodings = tokenizer.encode_batch(list(texts[first : first + BATCH]))
        tokens[first : first + BATCH] = [encoding.ids for encoding in encodings]
        progress("data", first, len(texts))
    return tokens


def _encode_one(tokenizer: Any, texts: Sequence[str], index: int) -> Array:
    """One text as tokens (block_size,), int64, as a loader would make them in `__getitem__`."""
    return np.asarray(tokenizer.encode(texts[index]).ids)


def ag_news(progress: Progress) -> Source:
    """News items by topic."""
    downloads = AG_NEWS_TRAIN, AG_NEWS_TEST
    train, test = (fetch(part, instead="topics", progress=progress) for part in downloads)
    return Source(
        fingerprint=f"ag_news {AG_NEWS_TRAIN.sha256} {AG_NEWS_TEST.sha256}",
        description="AG News",
        read=lambda: (_read_ag_news(train), _read_ag_news(test)),
    )


def _read_ag_news(path: Path) -> Texts:
    """Read rows of class (from 1), title and description."""
    texts, labels = [], []
    with path.open(encoding="utf-8", newline="") as stream:  # as the csv module requires
        for label, title, description in csv.reader(stream):
            labels.append(int(label) - 1)
            # A backslash marks a line break of the published text.
            texts.append(f"{title} {description}".replace("\\", " "))
    return Texts(texts, labels)


def imdb(progress: Progress) -> Source:
    """Film reviews, negative and positive."""
    path = fetch(IMDB, instead="topics", progress=progress)
    return Source(f"imdb {IMDB.sha256}", "IMDB", lambda: _read_imdb(path))


def _read_imdb(path: Path) -> tuple[Texts, Texts]:
    """The labelled reviews of the archive in the order of their names."""
    reviews: dict[str, list[tuple[str, str, int]]] = {"train": [], "test": []}
    # Never extracted, as a name in an archive may point outside the folder.
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            name = re.fullmatch(r"aclImdb/(train|test)/(neg|pos)/[^/]+\.txt", member.name)
            content = archive.extractfile(member) if name and member.isfile() else None
            if name and content:
                # The reviews come from web pages and contain their line breaks.
                text = content.read().decode("utf-8").replace("<br />", " ")
                reviews[name[1]].append((member.name, text, IMDB_CLASSES.index(name[2])))
    # Sorted by name, as an archive's order depends on how it was packed.
    train, test = (
        Texts([text for _, text, _ in rows], [label for *_, label in rows])
        for rows in map(sorted, reviews.values())
    )
    return train, test


def topics(progress: Progress) -> Source:
    """Pieces of the standard library's sources, classified by the topic of their module."""
    root = Path(sysconfig.get_path("stdlib"))
    pieces = [list(_pieces(root, modules.split())) for modules in TOPICS.values()]
    count = min(map(len, pieces))  # equal classes, so that guessing is right 1 time in 4
    # Evenly spaced, so that a topic's pieces come from all of its modules.
    even = [[own[index * len(own) // count] for index in range(count)] for own in pieces]
    content = "\0".join(piece for own in even for piece in own)
    progress("data", 1, 1)

    def part(held_out: bool) -> Texts:
        last = HELD_OUT_EVERY - 1
        chosen = [n for n in range(count) if (n % HELD_OUT_EVERY == last) == held_out]
        rows = [(own[index], label) for label, own in enumerate(even) for index in chosen]
        return Texts([text for text, _ in rows], [label for _, label in rows])

    return Source(
        fingerprint=f"topics {hashlib.sha256(content.encode()).hexdigest()}",
        description=f"{len(TOPICS)} topics of {corpora.LIBRARY}",
        read=lambda: (part(False), part(True)),
    )


def _pieces(root: Path, modules: list[str]) -> Iterator[str]:
    """Pieces of whole lines, up to PIECE characters, from the modules' files."""
    for module in modules:
        file = root / f"{module}.py"
        for path in [file] if file.is_file() else sorted((root / module).rglob("*.py")):
            if corpora.LEFT_OUT.intersection(path.relative_to(root).parts):
                continue
            piece = ""  # the rest at the end of a file is too short to show the topic
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines(True):
                piece += line
                if len(piece) >= PIECE:
                    yield piece
                    piece = ""


SOURCES: dict[str, Callable[[Progress], Source]] = {
    "ag_news": ag_news,
    "imdb": imdb,
    "topics": topics,
}
