"""Language modelling: text tokenized into one stream, every window of which is a sample."""

from __future__ import annotations

import os
import platform
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from lab.config import datasets
from lab.config.models import Transformer
from lab.config.paths import SHAKESPEARE, read_texts
from lab.config.run import Run
from lab.errors import InputError, Problem
from lab.worker.context import Progress
from lab.worker.data.cache import fetch
from lab.worker.data.dataset import Dataset, Windows
from lab.worker.data.tokenizer import tokenize

LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
MAX_BYTES = 6_000_000  # enough for models of this size, and quick to tokenize


class Corpus(NamedTuple):
    """The text of a data set, document by document."""

    documents: Sequence[str]
    description: str


def prepare(run: Run, *, pretrained: Path | None, data_root: Path, progress: Progress) -> Dataset:
    """Windows of the corpus; raises InputError if a part of it is shorter than one window."""
    config, model = run.dataset, run.architecture
    assert isinstance(config, datasets.Corpora) and isinstance(model, Transformer)
    corpus = SOURCES[config.kind](config, data_root, progress)
    # A pretrained model keeps its own vocabulary and tokenizer.
    vocab_size = datasets.vocab_size_of(model, config) if pretrained else config.vocab_size
    cached = tokenize(
        corpus.documents,
        vocab_size=vocab_size,
        progress=progress,
        tokenizer=pretrained / "tokenizer.json" if pretrained else None,
    )
    train, held_out = cached.arrays["train"], cached.arrays["held_out"]
    needed = model.block_size + 1  # the targets are the inputs shifted by one
    for name, part in (("to train on", train), ("held out", held_out)):
        if len(part) < needed:
            what = f"{len(part)} tokens {name}, but a sample of this model needs {needed}"
            advice = "give more text, or use a smaller block_size"
            raise InputError("data", [Problem(config.kind, what, advice)])
    count = f"{(len(train) + len(held_out)) / 1e6:.2f}M tokens"
    return Dataset(
        train=Windows(train, block_size=model.block_size),
        held_out=Windows(held_out, block_size=model.block_size),
        sha256=cached.sha256,
        description=f"{corpus.description}, {count}, vocabulary {vocab_size}",
        tokens_per_sample=model.block_size,
        vocab_size=vocab_size,  # as configured; a small text may use fewer
        tokenizer=cached.folder / "tokenizer.json",
    )


def read_stdlib(config: object, data_root: Path, progress: Progress) -> Corpus:
    """Evenly spaced source files of the interpreter's standard library, without tests."""
    root = sysconfig.get_path("stdlib")
    files = []
    for folder, folders, names in os.walk(root):
        folders[:] = set(folders) - LEFT_OUT  # not even walked, as site-packages may be large
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    files.sort()  # the file system's order differs between nodes
    stride = max(round(sum(path.stat().st_size for path in files) / MAX_BYTES), 1)
    documents = [path.read_text(encoding="utf-8", errors="replace") for path in files[::stride]]
    library = f"the standard library of Python {platform.python_version()}"
    return Corpus(documents, f"{len(documents)} files of {library}")


def read_text(config: datasets.Text, data_root: Path, progress: Progress) -> Corpus:
    """The texts at the configured path, as `lab.config.paths` allows; raises InputError."""
    texts = read_texts(config.path, data_root)
    files = "1 text file" if len(texts) == 1 else f"{len(texts)} text files"
    return Corpus(texts, f"{files} of {config.path}")


def read_shakespeare(config: object, data_root: Path, progress: Progress) -> Corpus:
    """Tiny Shakespeare, downloaded once; raises LabError like `fetch`."""
    path = fetch(SHAKESPEARE, instead="stdlib", progress=progress)
    return Corpus([path.read_text(encoding="utf-8")], SHAKESPEARE.name)


SOURCES: dict[str, Callable[..., Corpus]] = {
    "stdlib": read_stdlib,
    "text": read_text,
    "shakespeare": read_shakespeare,
}
