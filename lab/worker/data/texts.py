"""Labelled texts as tokens of a fixed length, made once and mapped into memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lab.jobs.place import Progress
from lab.worker.data import bpe
from lab.worker.data.dataset import Dataset, Labelled
from lab.worker.data.store import Array, stored

BATCH = 2000  # texts that are encoded at a time
PADDING = ("[PAD]", "<pad>", bpe.END_OF_TEXT)  # the tokens that pad texts, in the order in which they are looked for


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
        tokens: Array = _fixed([self.tokenizer.encode(self.texts[index]).ids], self.block_size, self.pad, np.int64)[0]
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
        tokenizer = bpe.load(file) if file else bpe.train(train.texts, vocab_size)
        tokenizer.save(str(folder / "tokenizer.json"))
        arrays: dict[str, Array] = {}
        for name, part in (("train", train), ("held_out", held_out)):
            arrays[f"{name}_tokens"] = _encode(_plain(tokenizer, block_size), part.texts, block_size, progress)
            arrays[f"{name}_labels"] = np.asarray(part.labels, dtype=np.uint16)
        return arrays

    by = hashlib.sha256(file.read_bytes()).hexdigest() if file else f"own {vocab_size}"
    found = stored("texts", f"{source.fingerprint} {block_size} {by}", build, progress=progress)
    tokenizer = bpe.load(found.folder / "tokenizer.json")
    encoders: list[Encoder | None] = [None, None]
    if again:
        parts = source.read()
        encoders = [Encoder(part.texts, _plain(tokenizer, block_size), block_size, _pad(tokenizer)) for part in parts]
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
        tokens[first : first + BATCH] = _fixed([encoding.ids for encoding in encodings], block_size, pad, dtype)
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
