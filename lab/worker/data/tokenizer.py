"""Byte-pair encoding that is trained on the text itself."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.worker.context import Progress
from lab.worker.data.cache import Array, stored

TRAINING_TEXT = 3_000_000  # characters that the tokenizer is trained on
END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0  # the first token that a tokenizer of ours learns; it pads short texts too


def train_tokenizer(documents: Sequence[str], vocab_size: int) -> Any:
    """A byte-level BPE tokenizer as in GPT-2, on pieces spread evenly over the text where there is much of it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[END_OF_TEXT],
        show_progress=False,
    )
    stride = -(-sum(map(len, documents)) // TRAINING_TEXT)
    tokenizer.train_from_iterator(
        (piece for document in documents for piece in split_pieces(document, 10_000)[::stride]),
        trainer,
    )
    return tokenizer


def load_tokenizer(path: Path) -> Any:
    """A tokenizer from its file tokenizer.json; raises OSError or ValueError where it is none."""
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001  (the library raises no narrower one)
        raise ValueError(f"{path} is no tokenizer: {error}") from None


def split_pieces(text: str, size: int) -> list[str]:
    """The text cut before words, every `size` characters or a little later."""
    found, start = [], 0
    while len(text) - start > size:
        cut = text.find(" ", start + size)
        if cut < 0 or cut > start + 2 * size:
            cut = start + size
        found.append(text[start:cut])
        start = cut
    return [*found, text[start:]]


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


def tokenize(
    corpus: Corpus, *, vocab_size: int, progress: Progress, tokenizer: Path | None = None
) -> Tokens:
    """The corpus as tokens, from the cache or built into it, by a tokenizer of its own or that of a file."""

    def build(folder: Path) -> dict[str, Array]:
        progress("data", 0, len(corpus.documents))
        encoder = (
            train_tokenizer(corpus.documents, vocab_size)
            if tokenizer is None
            else load_tokenizer(tokenizer)
        )
        encoder.save(str(folder / "tokenizer.json"))
        tokens, ends = _encode(
            encoder, corpus, np.uint16 if vocab_size <= 2**16 else np.uint32, progress
        )
        split = _split(ends, len(tokens))
        return {"train": tokens[:split], "held_out": tokens[split:]}

    found = stored("tokens", _key(corpus, vocab_size, tokenizer), build, progress=progress)
    train, held_out = found.arrays["train"], found.arrays["held_out"]
    description = f"{corpus.description}, {(len(train) + len(held_out)) / 1e6:.2f}M tokens, vocabulary {vocab_size}"
    return Tokens(
        train, held_out, vocab_size, found.sha256, description, found.folder / "tokenizer.json"
    )


def _key(corpus: Corpus, vocab_size: int, tokenizer: Path | None) -> str:
    digest = hashlib.sha256(f"stream {vocab_size}".encode())
    if tokenizer is not None:
        digest.update(tokenizer.read_bytes())
    for document in corpus.documents:
        content = document.encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


def _encode(
    tokenizer: Any, corpus: Corpus, dtype: type, progress: Progress
) -> tuple[npt.NDArray[Any], list[int]]:
    """All documents, each followed by the end-of-text token, and the position after each of them."""
    end_of_text = tokenizer.token_to_id(END_OF_TEXT)
    parts: list[npt.NDArray[Any]] = []
    ends: list[int] = []
    length = 0
    for number, batch in enumerate(_batches(corpus.documents)):
        for encoding, is_last in zip(
            tokenizer.encode_batch([piece for piece, _ in batch]),
            (last for _, last in batch),
            strict=True,
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
        pieces = split_pieces(document, PIECE)
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
