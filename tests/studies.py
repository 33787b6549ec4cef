"""A study that is small enough to be run many times in tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

SMALL_STUDY = {
    "title": "A small study",
    "question": "Does it work?",
    "scaling": "strong",
    "base": {
        "model": {"kind": "gpt", "layers": 1, "heads": 1, "width": 16, "block_size": 16},
        "data": {"kind": "text", "path": "corpus.txt", "vocab_size": 300},
        "steps": 4,
        "warmup_steps": 1,
        "eval_batches": 1,
    },
    "grid": {"global_batch_size": [4], "world_size": [1, 2]},
    "repeats": 1,
    "baseline": {"world_size": 1},
}
CORPUS = "".join(f"def square_{i}(x):\n    return x * {i} + x ** 2  # the sum of two terms\n\n" for i in range(400))

# A run that would take hours, so that it can be disturbed while it measures.
LONG = {
    "model": {"kind": "gpt", "layers": 1, "heads": 1, "width": 16, "block_size": 16},
    "data": {"kind": "text", "path": "corpus.txt", "vocab_size": 300},
    "warmup_steps": 1,
    "eval_batches": 1,
    "global_batch_size": 4,
    "steps": 5_000_000,
}

StudyMaker = Callable[..., Path]
