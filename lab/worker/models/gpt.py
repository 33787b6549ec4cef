"""GPT-2: attention, blocks, and the KV cache."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from lab.config import models
from lab.worker.models.head import linear_cross_entropy


class Attention(nn.Module):
    """Multi-head self-attention, either causal or over the tokens that a mask permits."""

    def __init__(self, config: models.GPT | models.TextClassifier) -> None:
        super().__init__()
        self.head_width = config.width // config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.projection = nn.Linear(config.width, config.width)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, cache: LayerCache | None = None
    ) -> Tensor:
        """Map (samples, tokens, width) to its shape; `mask` (samples, 1, 1, tokens) is True to see.

        With a non-empty cache, x is the one token that follows those in it.
        """
        # The number of heads follows from the width: with tensor parallelism a rank has only some.
        q, k, v = (
            part.unflatten(2, (-1, self.head_width)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        # The token after a cache may attend to all of it; "causal" would show it only the first.
        causal = mask is None and (cache is None or cache.empty)
        if cache is not None:
            k, v = cache.extend(k, v)
        mixed = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, dropout_p=dropout
        )
        projected: Tensor = self.projection(mixed.transpose(1, 2).flatten(2))
        return projected


class Block(nn.Module):
    """Attention and an MLP, each with pre-normalization and added to the residual stream."""

    def __init__(self, config: models.GPT | models.TextClassifier) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm_2 = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, cache: LayerCache | None = None
    ) -> Tensor:
        """Map (samples, tokens, width) to its shape, with the mask and the cache of Attention."""
        x = x + self.dropout(self.attention(self.norm_1(x), mask, cache))
        hidden = functional.gelu(self.up(self.norm_2(x)), approximate="tanh")
        out: Tensor = x + self.dropout(self.down(hidden))
        return out


class GPT(nn.Module):
    """GPT-2 (Radford et al., 2019): pre-norm, GELU, learned positions, embedding and head tied."""

    def __init__(self, config: models.GPT, *, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, config.width)
        self.positions = nn.Embedding(config.block_size, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.apply(init_weights)
        # Each block adds twice to the residual stream, whose variance must not grow with depth.
        for name, parameter in self.named_parameters():
            if name.endswith(("projection.weight", "down.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.layers))

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Mean loss in nats per token with targets, else logits; both are (samples, tokens)."""
        x = self._hidden(tokens)
        if targets is None:
            return functional.linear(x, self.embedding.weight)  # tied: the head is the embedding
        return linear_cross_entropy(x.flatten(0, 1), self.embedding.weight, targets.flatten())

    def extend(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Logits (samples, vocabulary) of the next token: first a prompt, then token by token."""
        return functional.linear(self._hidden(tokens, cache)[:, -1], self.embedding.weight)

    def _hidden(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        begin = cache.length if cache is not None else 0
        positions = torch.arange(begin, begin + tokens.shape[1], device=tokens.device)
        x = self.dropout(self.embedding(tokens) + self.positions(positions))
        for number, block in enumerate(self.blocks):
            x = block(x, cache=cache.layers[number] if cache is not None else None)
        normalized: Tensor = self.norm(x)
        return normalized


def init_weights(module: nn.Module) -> None:
    """Matrices from a normal distribution of standard deviation 0.02, biases zero, as in GPT-2."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


class LayerCache:
    """Keys and values of one layer, each (samples, heads, capacity, head width)."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length = capacity, 0
        self._buffers: tuple[Tensor, Tensor] | None = None

    @property
    def empty(self) -> bool:
        """Whether it holds no token yet."""
        return self._buffers is None

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append new tokens, (samples, heads, tokens, head width); those of all tokens so far."""
        if self._buffers is None:
            # Allocated once, as concatenation would copy the whole cache for every token.
            shape = (*keys.shape[:2], self.capacity, keys.shape[3])
            self._buffers = keys.new_empty(shape), keys.new_empty(shape)
        begin, self.length = self.length, self.length + keys.shape[2]
        for buffer, new in zip(self._buffers, (keys, values), strict=True):
            buffer[:, :, begin : self.length] = new
        all_keys, all_values = self._buffers
        return all_keys[:, :, : self.length], all_values[:, :, : self.length]


class Cache:
    """The cache of a whole model for one batch of sequences of equal length."""

    def __init__(self, layers: int, capacity: int) -> None:
        self.layers = [LayerCache(capacity) for _ in range(layers)]

    @property
    def length(self) -> int:
        """Tokens in it."""
        return self.layers[0].length

    @staticmethod
    def bytes_per_token(layers: int, width: int, dtype: torch.dtype) -> int:
        """Bytes of keys and values for one token of one sequence."""
        return 2 * layers * width * dtype.itemsize
