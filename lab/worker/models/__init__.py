"""The models that the lab trains."""

from __future__ import annotations

from torch import nn

from lab.errors import InputError, Problem
from lab.study import Run
from lab.worker.models.gpt import GPT


def build(run: Run, *, vocab_size: int) -> nn.Module:
    """The run's model on the CPU, its weights drawn from torch's present seed; `vocab_size` is that of the data.

    Called with tokens and targets, each (samples, tokens), it answers with the mean loss.
    Raises InputError where the model's own vocabulary is too small for the data's.
    """
    config = run.architecture
    if config.vocab_size is not None and config.vocab_size < vocab_size:
        what = f"{config.vocab_size} is less than the {vocab_size} tokens of the data"
        raise InputError("model", [Problem("vocab_size", what, "leave it out, or choose a smaller vocab_size of the data")])
    return GPT(config, vocab_size=config.vocab_size or vocab_size)
