"""The keys and values of tokens that a model has seen, so that the next token costs one token's work."""

from __future__ import annotations

import torch
from torch import Tensor


class LayerCache:
    """Keys and values of one layer, each (samples, heads, capacity, head width); room is made once, for `capacity` tokens."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length = capacity, 0
        self._kept: tuple[Tensor, Tensor] | None = None

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keep those of new tokens, (samples, heads, tokens, head width); all that are kept, the new ones last."""
        if self._kept is None:
            samples, heads, _, width = keys.shape
            self._kept = (
                keys.new_empty(samples, heads, self.capacity, width),
                keys.new_empty(samples, heads, self.capacity, width),
            )
        begin, self.length = self.length, self.length + keys.shape[2]
        kept_keys, kept_values = self._kept
        kept_keys[:, :, begin : self.length] = keys
        kept_values[:, :, begin : self.length] = values
        return kept_keys[:, :, : self.length], kept_values[:, :, : self.length]


class Cache:
    """The cache of a whole model for one batch of sequences of equal length."""

    def __init__(self, layers: int, capacity: int) -> None:
        self.layers = [LayerCache(capacity) for _ in range(layers)]

    @property
    def length(self) -> int:
        """Tokens that it holds."""
        return self.layers[0].length

    @staticmethod
    def bytes_per_token(layers: int, width: int, dtype: torch.dtype) -> int:
        """Bytes of keys and values that one token of one sequence takes."""
        return 2 * layers * width * dtype.itemsize
