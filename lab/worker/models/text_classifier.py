"""A transformer encoder that says what a text is about."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lab import workloads
from lab.worker.models.classifier import Classifier
from lab.worker.models.gpt import Block, init_weights


class TextClassifier(Classifier):
    """Blocks as in GPT-2 in which each token sees all others, the mean over a text's tokens, a linear head."""

    def __init__(self, config: workloads.TextClassifier, *, vocab_size: int, classes: int, pad: int = 0) -> None:
        super().__init__()
        self.pad = pad
        self.embedding = nn.Embedding(vocab_size, config.width)
        self.positions = nn.Embedding(config.block_size, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, classes)
        self.apply(init_weights)

    def logits(self, inputs: Tensor) -> Tensor:
        """Scores (samples, classes) of tokens (samples, tokens); padding changes nothing."""
        seen = not_padding(inputs, self.pad)
        x = self.dropout(self.embedding(inputs) + self.positions(torch.arange(inputs.shape[1], device=inputs.device)))
        for block in self.blocks:
            x = block(x, seen[:, None, None, :])
        shares = seen / seen.sum(dim=1, keepdim=True)
        pooled = torch.einsum("st,std->sd", shares.to(x.dtype), self.norm(x))
        scores: Tensor = self.head(pooled)
        return scores


def not_padding(tokens: Tensor, pad: int) -> Tensor:
    """True where a token is text, (samples, tokens); the first one always is, so that an empty text has a mean."""
    seen = tokens != pad
    seen[:, 0] = True
    return seen
