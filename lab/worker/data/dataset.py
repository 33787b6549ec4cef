"""Samples by their global index, for every kind of data alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Samples(Protocol):
    """What a loader draws from."""

    epochs: bool  # whether each sample is seen once before any is seen again

    def __len__(self) -> int:
        """How many samples there are."""

    def take(self, indices: npt.NDArray[np.int64]) -> tuple[Array, Array]:
        """Inputs and targets of these samples, along the first axis."""

    def make(self, index: int) -> tuple[Array, Array]:
        """Input and target of one sample, made as a loader does that prepared nothing."""


class Windows:
    """Consecutive tokens from anywhere in a stream; the targets are the inputs moved by one, both int64 (samples, tokens)."""

    epochs = False  # windows overlap: there is no such thing as all of them once

    def __init__(self, tokens: npt.NDArray[np.unsignedinteger[Any]], *, block_size: int) -> None:
        self._windows = np.lib.stride_tricks.sliding_window_view(tokens, block_size + 1)

    def __len__(self) -> int:
        """Every token but the last `block_size` begins a sample."""
        return len(self._windows)

    def take(self, indices: npt.NDArray[np.int64]) -> tuple[Array, Array]:
        """Inputs and targets that begin at these tokens."""
        windows = self._windows[indices].astype(np.int64)
        return windows[:, :-1], windows[:, 1:]

    def make(self, index: int) -> tuple[Array, Array]:
        """The same for one."""
        window = self._windows[index].astype(np.int64)
        return window[:-1], window[1:]


class Labelled:
    """Samples with a class each: tokens as int64 (samples, tokens), or images as uint8 (samples, channels, rows, columns).

    `again` makes the input of a sample from its source.
    """

    epochs = True

    def __init__(self, inputs: Array, labels: Array, again: Callable[[int], Array] | None = None) -> None:
        self.inputs = inputs
        self.labels = labels.astype(np.int64)  # widened once, not at each step
        self.again = again

    def __len__(self) -> int:
        """One sample for each label."""
        return len(self.labels)

    def take(self, indices: npt.NDArray[np.int64]) -> tuple[Array, Array]:
        """Inputs and classes of these samples."""
        return _wide(self.inputs[indices]), self.labels[indices]

    def make(self, index: int) -> tuple[Array, Array]:
        """Input and class of one sample; text is tokenized here and now."""
        inputs = np.array(self.inputs[index]) if self.again is None else self.again(index)
        return _wide(inputs), np.asarray(self.labels[index])


def _wide(inputs: Array) -> Array:
    # Images stay bytes until they are on the device; tokens index an embedding, which takes no unsigned integers.
    return inputs if inputs.dtype == np.uint8 else inputs.astype(np.int64)


@dataclass(frozen=True)
class Dataset:
    """What a run trains and is evaluated on."""

    train: Samples
    held_out: Samples
    sha256: str  # of all samples and of where they are split
    description: str
    tokens_per_sample: int | None = None  # None for images
    vocab_size: int = 0  # of texts
    classes: int = 0  # of labelled samples
    channels: int = 0  # of images
    pad: int = 0  # the token that fills short texts up
    tokenizer: Path | None = None  # the file of what made the tokens
    pretrained: Path | None = None  # the folder whose tokenizer made the tokens
