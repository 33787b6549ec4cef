"""Folders of weights as published on Hugging Face, tiny and random, and the configurations that fit them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from lab.worker.models.classifier import import_torchvision

WORDS = [
    "[PAD]",
    "[CLS]",
    "[SEP]",
    "[UNK]",
    "<|endoftext|>",
    "the",
    "def",
    "return",
    "self",
    "import",
    "of",
    "a",
    "x",
    "=",
    "(",
    ")",
]
VOCABULARY = 300
_SIZES = {"layers": 2, "heads": 2, "width": 32, "vocab_size": VOCABULARY}


def tokenizer(folder: Path, *, close: bool) -> None:
    """Words as tokens; texts in [CLS] and [SEP] where they are to `close`."""
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if close:
        made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    made.save(str(folder / "tokenizer.json"))


def gpt2_config(folder: Path, *, positions: int = 32) -> dict[str, Any]:
    """The configuration of the GPT-2 in a folder."""
    return {"kind": "gpt", **_SIZES, "block_size": positions, "weights": str(folder)}


def gpt2(folder: Path, *, positions: int = 32) -> dict[str, Any]:
    """Make a GPT-2; its configuration."""
    import_torchvision()
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=VOCABULARY, n_positions=positions, initializer_range=0.3)
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer(folder, close=False)
    return gpt2_config(folder, positions=positions)


def distilbert_config(folder: Path, *, block_size: int = 32) -> dict[str, Any]:
    """The configuration of the DistilBERT in a folder, without dropout."""
    sizes = {**_SIZES, "positions": block_size + 8, "block_size": block_size}
    return {"kind": "distilbert", **sizes, "weights": str(folder), "dropout": 0.0}


def distilbert(folder: Path, *, block_size: int = 32) -> dict[str, Any]:
    """Make a DistilBERT; its configuration."""
    import_torchvision()
    from transformers import DistilBertConfig, DistilBertModel

    sizes = {"n_layers": 2, "n_heads": 2, "dim": 32, "hidden_dim": 128, "vocab_size": VOCABULARY}
    DistilBertModel(DistilBertConfig(**sizes, max_position_embeddings=block_size + 8)).save_pretrained(folder)
    tokenizer(folder, close=True)
    return distilbert_config(folder, block_size=block_size)
