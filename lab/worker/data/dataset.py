"""Samples by their global index, for every kind of data alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lab.config.run import Run

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

    def __init__(
        self, inputs: Array, labels: Array, again: Callable[[int], Array] | None = None
    ) -> None:
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


_TRAINING, _EVALUATION = 0, 1
Indices = npt.NDArray[np.int64]


class Sampler:
    """The global indices of one rank's micro-batches, of `count` samples.

    A step's samples are a function of the seed, the step and the global batch size alone. With `epochs` all samples are
    drawn once, in an order of the epoch's own, before any is drawn again; else each is drawn from all. Ranks take
    consecutive slices of the global batch, micro-batches consecutive slices of the rank's; ranks that share out the
    model take the same slice, and a process of several devices that of all of them.
    """

    def __init__(self, count: int, *, run: Run, rank: int, epochs: bool) -> None:
        self.count, self.run, self.epochs = count, run, epochs
        self.shares = min(run.data_parallel_size, run.processes)
        self.rank = rank % self.shares
        self.size = run.global_batch_size // (
            run.grad_accum * self.shares
        )  # of a micro-batch of this process
        self._step = -1
        self._indices = np.empty(0, dtype=np.int64)
        self._numbers = _Numbers()
        self._order: tuple[tuple[int, int, int], Indices] | None = None

    def micro_batch(self, step: int, micro: int) -> Indices:
        """The `micro`-th micro-batch of a training step."""
        if step != self._step:
            self._step = step
            self._indices = self._draw(
                self.run.global_batch_size, seed=self.run.seed, stream=_TRAINING, step=step
            )
        first = (self.rank * self.run.grad_accum + micro) * self.size
        return self._indices[first : first + self.size]

    def evaluation(self) -> list[Indices]:
        """The rank's share of `eval_batches` global batches, the same samples at every seed and world size."""
        share = self.run.eval_batches * self.run.grad_accum
        indices = self._draw(share * self.size * self.shares, seed=0, stream=_EVALUATION, step=0)
        return list(indices.reshape(self.shares, share, self.size)[self.rank])

    def _draw(self, samples: int, *, seed: int, stream: int, step: int) -> Indices:
        if not self.epochs:
            return self._numbers.at(seed, stream, step).integers(0, self.count, size=samples)
        epoch, first = divmod(step * samples, self.count)
        drawn = self._shuffled(seed, stream, epoch)[first : first + samples]
        while len(drawn) < samples:
            epoch += 1
            drawn = np.concatenate(
                [drawn, self._shuffled(seed, stream, epoch)[: samples - len(drawn)]]
            )
        return drawn

    def _shuffled(self, seed: int, stream: int, epoch: int) -> Indices:
        """The order of an epoch; the last one is kept."""
        key = (seed, stream, epoch)
        if self._order is None or self._order[0] != key:
            self._order = (key, self._numbers.at(seed, stream, epoch).permutation(self.count))
        return self._order[1]


class _Numbers:
    """Random numbers of any place of a stream, without drawing those before it: Philox counts."""

    def __init__(self) -> None:
        self._philox = np.random.Philox(key=0)
        self._generator = np.random.Generator(self._philox)
        # One generator is set to its places: each step would wait longer for a new one.
        self._fresh = self._philox.state

    def at(self, seed: int, stream: int, place: int) -> np.random.Generator:
        """The generator, set to the beginning of that place."""
        self._fresh["state"]["key"][:] = seed, stream
        self._fresh["state"]["counter"][3] = place
        self._philox.state = self._fresh
        return self._generator
