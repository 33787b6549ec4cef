"""Texts that a trained model writes after prompts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lab.errors import InputError, Problem
from lab.worker.checkpoint import Checkpoint
from lab.worker.generate import Sampling, by_length, generate
from lab.worker.trained import load


def complete(found: Checkpoint, prompts: Sequence[str], *, new_tokens: int, sampling: Sampling) -> list[str]:
    """What the model writes after each prompt, on a GPU where there is one; prompts of one length in tokens share a batch.

    Raises InputError for a prompt that is empty or too long for the model.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(found.tokenizer))
    encoded = [tokenizer.encode(prompt).ids for prompt in prompts]
    empty = [Problem("prompt", f"{prompt!r} has no tokens") for prompt, ids in zip(prompts, encoded, strict=True) if not ids]
    if empty:
        raise InputError("generate", empty)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load(found, device=device)
    texts = [""] * len(prompts)
    for numbers in by_length(encoded):
        batch = torch.tensor([encoded[number] for number in numbers], device=device)
        made = generate(model, batch, new_tokens=new_tokens, sampling=sampling, first=numbers[0])
        for number, ids in zip(numbers, made.tolist(), strict=True):
            texts[number] = tokenizer.decode(ids)
    return texts
