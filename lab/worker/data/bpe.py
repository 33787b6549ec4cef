"""Byte-pair encoding that is trained on the text itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

TRAINING_TEXT = 3_000_000  # characters that the tokenizer is trained on
END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0  # the first token that a tokenizer of ours learns; it pads short texts too


def train(documents: Sequence[str], vocab_size: int) -> Any:
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
    tokenizer.train_from_iterator((piece for document in documents for piece in pieces(document, 10_000)[::stride]), trainer)
    return tokenizer


def load(path: Path) -> Any:
    """A tokenizer from its file tokenizer.json; raises OSError or ValueError where it is none."""
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001  (the library raises no narrower one)
        raise ValueError(f"{path} is no tokenizer: {error}") from None


def pieces(text: str, size: int) -> list[str]:
    """The text cut before words, every `size` characters or a little later."""
    found, start = [], 0
    while len(text) - start > size:
        cut = text.find(" ", start + size)
        if cut < 0 or cut > start + 2 * size:
            cut = start + size
        found.append(text[start:cut])
        start = cut
    return [*found, text[start:]]
