"""Language modelling: byte-pair encoding trained on the text itself, and one stream of its tokens.

Every window of the stream is a sample.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import platform
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lab.config import datasets
from lab.config.models import Transformer
from lab.config.paths import SHAKESPEARE, read_texts
from lab.config.run import Run
from lab.errors import InputError
from lab.formatting import count
from lab.worker.context import Progress
from lab.worker.data.cache import CachedArrays, cached_arrays, fetch
from lab.worker.data.dataset import HELD_OUT, Array, Dataset, Windows

TRAINING_TEXT = 3_000_000  # characters used to train the tokenizer
END_OF_TEXT = "<|endoftext|>"  # token 0 of a tokenizer trained here, after each document
PIECE = 500_000  # characters that are encoded as one text, or a little more
BATCH = 16  # pieces encoded at a time
LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
LIBRARY = f"the standard library of Python {platform.python_version()}"
MAX_BYTES = 6_000_000  # enough for models of this size, and quick to tokenize


def train_tokenizer(documents: Sequence[str], vocab_size: int) -> Any:
    """A byte-level BPE tokenizer as in GPT-2, trained on pieces from all over the text."""
    from tokenizers import ByteLevelBPETokenizer

    stride = -(-sum(map(len, documents)) // TRAINING_TEXT)
    pieces = (piece for text in documents for piece in split_pieces(text, 10_000)[::stride])
    settings = {"min_frequency": 0, "special_tokens": [END_OF_TEXT], "show_progress": False}
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(pieces, vocab_size, **settings)
    return tokenizer


def load_tokenizer(path: Path) -> Any:
    """A tokenizer from its file tokenizer.json; raises OSError or ValueError."""
    from tokenizers import Tokenizer

    text = path.read_text(encoding="utf-8")
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # noqa: BLE001  (the library raises no narrower one)
        raise ValueError(f"{path} is not a tokenizer: {error}") from None


def keep_tokenizer(
    folder: Path, texts: Sequence[str], *, vocab_size: int, published: Path | None
) -> Any:
    """The published tokenizer or one trained on the texts, kept in the folder; raises OSError."""
    tokenizer = load_tokenizer(published) if published else train_tokenizer(texts, vocab_size)
    # The library's own method raises no OSError.
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    return tokenizer


def token_dtype(vocab_size: int) -> type[np.unsignedinteger[Any]]:
    """The smallest type that holds a vocabulary, as loaders read tokens from disk."""
    return np.uint16 if vocab_size <= 2**16 else np.uint32


def split_pieces(text: str, size: int) -> list[str]:
    """The text cut before words, every `size` characters or a little later."""
    pieces, start = [], 0
    while len(text) - start > size:
        cut = text.find(" ", start + size)
        if cut < 0 or cut > start + 2 * size:  # a text may have no spaces
            cut = start + size
        pieces.append(text[start:cut])
        start = cut
    return [*pieces, text[start:]]


def tokenize(
    documents: Sequence[str], *, vocab_size: int, progress: Progress, tokenizer: Path | None = None
) -> CachedArrays:
    """The documents as tokens: `train` and, the last tenth, `held_out`; cached or built now.

    The tokenizer is trained on them or loaded from a file; it lies beside the arrays as
    `tokenizer.json`.
    """

    def build(folder: Path) -> dict[str, Array]:
        progress("data", 0, len(documents))
        encoder = keep_tokenizer(folder, documents, vocab_size=vocab_size, published=tokenizer)
        tokens, ends = _encode(encoder, documents, token_dtype(vocab_size), progress)
        split = _split(ends, len(tokens))
        return {"train": tokens[:split], "held_out": tokens[split:]}

    key = _key(documents, vocab_size, tokenizer)
    return cached_arrays("tokens", key, build, progress=progress)


def _key(documents: Sequence[str], vocab_size: int, tokenizer: Path | None) -> str:
    digest = hashlib.sha256(f"stream {vocab_size}".encode())
    if tokenizer is not None:
        digest.update(tokenizer.read_bytes())
    for document in documents:
        content = document.encode()
        # The length distinguishes texts that differ only in where a document ends.
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


def _encode(
    tokenizer: Any, documents: Sequence[str], dtype: type[Any], progress: Progress
) -> tuple[Array, list[int]]:
    """The tokens of all documents, each followed by end-of-text, and where each document ends."""
    end_of_text = tokenizer.token_to_id(END_OF_TEXT)
    parts: list[Array] = []
    ends: list[int] = []
    length = number = 0
    pieces = _pieces(documents)
    while batch := list(itertools.islice(pieces, BATCH)):
        encodings = tokenizer.encode_batch([piece for piece, _ in batch])
        for encoding, (_, is_last) in zip(encodings, batch, strict=True):
            ids = encoding.ids + [end_of_text] * is_last
            parts.append(np.asarray(ids, dtype=dtype))
            length += len(ids)
            if is_last:
                ends.append(length)
        number += len(batch)
        progress("data", number, number + 1)
    return np.concatenate(parts), ends


def _pieces(documents: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """The pieces of all documents, each with whether it ends its document."""
    for document in documents:
        *pieces, last = split_pieces(document, PIECE)
        yield from ((piece, False) for piece in pieces)
        yield last, True


def _split(ends: Sequence[int], length: int) -> int:
    """Where the held-out part begins: at the end of a document if one is near nine tenths."""
    target = round(length * (1 - HELD_OUT))
    # Cutting a document in two would show the model the beginning of what it is tested on.
    nearest = min(ends, key=lambda end: abs(end - target))
    return nearest if abs(nearest - target) < 0.02 * length else target


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
            raise InputError.of("data", config.kind, what, advice)
    size = f"{(len(train) + len(held_out)) / 1e6:.3g}M tokens"
    return Dataset(
        train=Windows(train, block_size=model.block_size),
        held_out=Windows(held_out, block_size=model.block_size),
        sha256=cached.sha256,
        description=f"{corpus.description}, {size}, vocabulary {vocab_size}",
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
    return Corpus(documents, f"{len(documents)} files of {LIBRARY}")


def read_text(config: datasets.Text, data_root: Path, progress: Progress) -> Corpus:
    """The texts at the configured path, as `lab.config.paths` allows; raises InputError."""
    texts = read_texts(config.path, data_root)
    return Corpus(texts, f"{count(len(texts), 'text file')} of {config.path}")


def read_shakespeare(config: object, data_root: Path, progress: Progress) -> Corpus:
    """Tiny Shakespeare, downloaded once; raises LabError like `fetch`."""
    path = fetch(SHAKESPEARE, instead="stdlib", progress=progress)
    return Corpus([path.read_text(encoding="utf-8")], SHAKESPEARE.name)


SOURCES: dict[str, Callable[..., Corpus]] = {
    "stdlib": read_stdlib,
    "text": read_text,
    "shakespeare": read_shakespeare,
}
