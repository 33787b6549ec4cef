"""Text as tokens: byte-pair encoding trained on the text itself, kept on disk and mapped into memory."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.place import Progress
from lab.worker.data.cache import cache_folder, locked

FORMAT = 1
HELD_OUT = 0.1
PIECE = 500_000  # characters that are encoded at a time
TRAINING_TEXT = 3_000_000  # characters that the tokenizer is trained on


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


def tokenize(corpus: Corpus, *, vocab_size: int, progress: Progress) -> Tokens:
    """The corpus as tokens, from the cache or built into it.

    Safe beside other ranks and jobs that want the same: one builds under a lock, and what it built appears at once.
    """
    root = cache_folder("tokens")
    key = _key(corpus, vocab_size)
    tokens = _load(root / key, corpus, vocab_size)
    if tokens is None:
        with locked(root / f"{key}.lock", waiting=lambda: progress("data", 0, 1)):
            tokens = _load(root / key, corpus, vocab_size)
            if tokens is None:
                _build(root / key, corpus, vocab_size, progress)
                tokens = _load(root / key, corpus, vocab_size)
    if tokens is None:
        raise OSError(f"{root / key}: written just now and not readable: is the disk full?")
    return tokens


def _key(corpus: Corpus, vocab_size: int) -> str:
    digest = hashlib.sha256(f"{FORMAT} {vocab_size}".encode())
    for document in corpus.documents:
        content = document.encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()[:32]


def _load(folder: Path, corpus: Corpus, vocab_size: int) -> Tokens | None:
    """What is in the cache; None where there is nothing, or something torn."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        # Plain views of the mapped files: numpy's memmap class costs time at every slice.
        train, held_out = (np.asarray(np.load(folder / f"{part}.npy", mmap_mode="r")) for part in ("train", "held_out"))
        whole = meta["lengths"] == [len(train), len(held_out)]
        description = f"{corpus.description}, {(len(train) + len(held_out)) / 1e6:.2f}M tokens, vocabulary {vocab_size}"
        return Tokens(train, held_out, vocab_size, meta["sha256"], description, folder / "tokenizer.json") if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _build(folder: Path, corpus: Corpus, vocab_size: int, progress: Progress) -> None:
    for leftover in folder.parent.glob(f".{folder.name}.*"):  # of a process that was killed while it built
        shutil.rmtree(leftover, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    progress("data", 0, len(corpus.documents))
    tokenizer = _train_tokenizer(corpus, vocab_size)
    tokenizer.save(str(building / "tokenizer.json"))
    tokens, ends = _encode(tokenizer, corpus, np.uint16 if vocab_size <= 2**16 else np.uint32, progress)
    split = _split(ends, len(tokens))
    np.save(building / "train.npy", tokens[:split])
    np.save(building / "held_out.npy", tokens[split:])
    digest = hashlib.sha256(tokens.astype("<u4").tobytes() + split.to_bytes(8, "little")).hexdigest()
    meta = {"format": FORMAT, "sha256": digest, "lengths": [split, len(tokens) - split], "learned": tokenizer.get_vocab_size()}
    (building / "meta.json").write_text(json.dumps(meta))
    building.replace(folder)


def _train_tokenizer(corpus: Corpus, vocab_size: int) -> Any:
    """Byte-level BPE as in GPT-2, on pieces spread evenly over the text where there is much of it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    stride = -(-sum(map(len, corpus.documents)) // TRAINING_TEXT)
    tokenizer.train_from_iterator(
        (piece for document in corpus.documents for piece in _pieces(document, 10_000)[::stride]), trainer
    )
    return tokenizer


def _encode(tokenizer: Any, corpus: Corpus, dtype: type, progress: Progress) -> tuple[npt.NDArray[Any], list[int]]:
    """All documents, each followed by the end-of-text token, and the position after each of them."""
    end_of_text = tokenizer.token_to_id("<|endoftext|>")
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
        pieces = _pieces(document, PIECE)
        for number, piece in enumerate(pieces, start=1):
            batch.append((piece, number == len(pieces)))
            size += len(piece)
            if size >= PIECE:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _pieces(text: str, size: int) -> list[str]:
    """The text cut before words, every `size` characters or a little later."""
    pieces, start = [], 0
    while len(text) - start > size:
        cut = text.find(" ", start + size)
        if cut < 0 or cut > start + 2 * size:
            cut = start + size
        pieces.append(text[start:cut])
        start = cut
    return [*pieces, text[start:]]


def _split(ends: Sequence[int], length: int) -> int:
    """Where the held-out part begins: the end of a document near nine tenths, or just there where none is near."""
    wanted = round(length * (1 - HELD_OUT))
    nearest = min(ends, key=lambda end: abs(end - wanted))
    return nearest if abs(nearest - wanted) < 0.02 * length else wanted
