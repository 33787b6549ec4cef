"""Text to be continued as one stream of tokens, made once and mapped into memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.jobs.place import Progress
from lab.worker.data import bpe
from lab.worker.data.store import Array, stored

HELD_OUT = 0.1
PIECE = 500_000  # characters that are encoded at a time


@dataclass(frozen=True)
class Corpus:
    """The text of a data set, document by document."""

    documents: Sequence[str]
    description: str


@dataclass(frozen=True)
class Tokens:
    """A tokenized corpus: its first nine tenths to train on, the rest held out."""

    train: npt.NDArray[np.unsignedinteger[Any]]
    held_out: npt.NDArray[np.unsignedinteger[Any]]
    vocab_size: int  # as asked for; a small text may have used less of it
    sha256: str  # of all tokens and of where they are split
    description: str
    tokenizer: Path | None = None  # its file in the cache


def tokenize(corpus: Corpus, *, vocab_size: int, progress: Progress, tokenizer: Path | None = None) -> Tokens:
    """The corpus as tokens, from the cache or built into it, by a tokenizer of its own or that of a file."""

    def build(folder: Path) -> dict[str, Array]:
        progress("data", 0, len(corpus.documents))
        encoder = bpe.train(corpus.documents, vocab_size) if tokenizer is None else bpe.load(tokenizer)
        encoder.save(str(folder / "tokenizer.json"))
        tokens, ends = _encode(encoder, corpus, np.uint16 if vocab_size <= 2**16 else np.uint32, progress)
        split = _split(ends, len(tokens))
        return {"train": tokens[:split], "held_out": tokens[split:]}

    found = stored("tokens", _key(corpus, vocab_size, tokenizer), build, progress=progress)
    train, held_out = found.arrays["train"], found.arrays["held_out"]
    description = f"{corpus.description}, {(len(train) + len(held_out)) / 1e6:.2f}M tokens, vocabulary {vocab_size}"
    return Tokens(train, held_out, vocab_size, found.sha256, description, found.folder / "tokenizer.json")


def _key(corpus: Corpus, vocab_size: int, tokenizer: Path | None) -> str:
    digest = hashlib.sha256(f"stream {vocab_size}".encode())
    if tokenizer is not None:
        digest.update(tokenizer.read_bytes())
    for document in corpus.documents:
        content = document.encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


def _encode(tokenizer: Any, corpus: Corpus, dtype: type, progress: Progress) -> tuple[npt.NDArray[Any], list[int]]:
    """All documents, each followed by the end-of-text token, and the position after each of them."""
    end_of_text = tokenizer.token_to_id(bpe.END_OF_TEXT)
    parts: list[npt.NDArray[Any]] = []
    ends: list[int] = []
    length = 0
    for number, batch in enumerate(_batches(corpus.documents)):
        for encoding, is_last in zip(
            tokenizer.encode_batch([piece for piece, _ in batch]), (last for _, last in batch), strict=True
        ):
            ids = encoding.ids + [end_of_text] * is_last
            parts.append(np.asarray(ids, dtype=dtype))
            length += len(ids)
            if is_last:
                ends.append(length)
        progress("data", number, number + 1)
    return np.concatenate(parts), ends


def _batches(documents: Sequence[str]) -> Iterator[list[tuple[str, bool]]]:
    """Pieces of documents in groups of about PIECE characters, each with whether it ends its document."""
    batch: list[tuple[str, bool]] = []
    size = 0
    for document in documents:
        pieces = bpe.pieces(document, PIECE)
        for number, piece in enumerate(pieces, start=1):
            batch.append((piece, number == len(pieces)))
            size += len(piece)
            if size >= PIECE:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _split(ends: Sequence[int], length: int) -> int:
    """Where the held-out part begins: the end of a document near nine tenths, or just there where none is near."""
    wanted = round(length * (1 - HELD_OUT))
    nearest = min(ends, key=lambda end: abs(end - wanted))
    return nearest if abs(nearest - wanted) < 0.02 * length else wanted
