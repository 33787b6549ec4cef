"""Samples by global index, which of them a step sees, and the loaders that fetch them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from lab.config.run import Run

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]
# Of data that is published without a split, one sample in ten is held out.
HELD_OUT_EVERY = 10
HELD_OUT = 1 / HELD_OUT_EVERY
TRAINING, EVALUATION, GENERATION = range(3)  # independent random number streams from one seed


class Samples(Protocol):
    """The samples that a loader draws from."""

    epochs: bool  # whether each sample is seen once before any is seen again

    def __len__(self) -> int: ...

    def take(self, indices: Indices) -> tuple[Array, Array]:
        """Inputs and targets of these samples, along the first axis."""

    def __getitem__(self, index: int) -> tuple[Array, Array]:
        """Input and target of one sample, made on the fly without any preparation."""


class Windows:
    """Every window of a stream is a sample: inputs and targets one token later, int64."""

    epochs = False  # windows overlap, so there is no pass over all of them

    def __init__(self, tokens: npt.NDArray[np.unsignedinteger[Any]], *, block_size: int) -> None:
        # A view, so the windows take no memory beyond the tokens.
        self._windows = np.lib.stride_tricks.sliding_window_view(tokens, block_size + 1)

    def __len__(self) -> int:
        return len(self._windows)

    def take(self, indices: Indices | int) -> tuple[Array, Array]:
        """Inputs and targets (samples, tokens) that begin at these tokens."""
        windows = self._windows[indices].astype(np.int64)
        return windows[..., :-1], windows[..., 1:]

    __getitem__ = take


class Labelled:
    """Samples with a class each: tokens (samples, tokens) or images (samples, channels, y, x).

    `encoder` tokenizes the text of a single sample again.
    """

    epochs = True

    def __init__(
        self, inputs: Array, labels: Array, encoder: Callable[[int], Array] | None = None
    ) -> None:
        self.inputs = inputs
        self.labels = labels.astype(np.int64)  # converted once, not at each step
        self.encoder = encoder

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Indices) -> tuple[Array, Array]:
        """Inputs and classes of these samples."""
        return _widened(self.inputs[indices]), self.labels[indices]

    def __getitem__(self, index: int) -> tuple[Array, Array]:
        inputs = self.encoder(index) if self.encoder else np.array(self.inputs[index])
        return _widened(inputs), np.asarray(self.labels[index])


def _widened(inputs: Array) -> Array:
    # Images stay bytes until they are on the device: a quarter of the copy that fp32 would need.
    # Tokens index an embedding, which does not take unsigned integers.
    return inputs if inputs.dtype == np.uint8 else inputs.astype(np.int64)


@dataclass(frozen=True)
class Dataset:
    """The data that a run trains and is evaluated on."""

    train: Samples
    held_out: Samples
    sha256: str  # of all samples and the split position
    description: str
    tokens_per_sample: int | None = None  # None for images
    vocab_size: int = 0  # of texts
    classes: int = 0  # of labelled samples
    channels: int = 0  # of images
    pad: int = 0  # the token that pads short texts
    tokenizer: Path | None = None  # the file of the tokenizer that made the tokens
    pretrained: Path | None = None  # the folder whose tokenizer made the tokens


class Sampler:
    """The global indices of one rank's micro-batches, out of `count` samples.

    A step's samples depend only on the seed, the step and the global batch size. With `epochs`,
    each sample is drawn once per epoch, in an order that changes with the epoch. Ranks take
    consecutive slices of the global batch, and micro-batches consecutive slices of the rank's.
    Ranks that split the model take the same slice; a process with several devices takes the slices
    of all of them.
    """

    def __init__(self, count: int, *, run: Run, rank: int, epochs: bool) -> None:
        self.count, self.run, self.epochs = count, run, epochs
        self.shares = min(run.data_parallel_size, run.processes)
        self.rank = rank % self.shares
        # Samples in a micro-batch of this process.
        self.size = run.stated.global_batch_size // (run.grad_accum * self.shares)
        self._step: tuple[int, Indices] | None = None
        self._epoch: tuple[tuple[int, int, int], Indices] | None = None

    def micro_batch(self, step: int, micro: int) -> Indices:
        """The `micro`-th micro-batch of a training step."""
        if self._step is None or self._step[0] != step:
            samples = self.run.stated.global_batch_size
            # Each rank draws the whole global batch and takes its slice, without communication.
            self._step = step, self._draw(samples, seed=self.run.seed, stream=TRAINING, step=step)
        first = (self.rank * self.run.grad_accum + micro) * self.size
        return self._step[1][first : first + self.size]

    def evaluation(self) -> list[Indices]:
        """The rank's share of `eval_batches` global batches, the same for all seeds and sizes."""
        share = self.run.eval_batches * self.run.grad_accum
        indices = self._draw(share * self.size * self.shares, seed=0, stream=EVALUATION, step=0)
        return list(indices.reshape(self.shares, share, self.size)[self.rank])

    def _draw(self, samples: int, *, seed: int, stream: int, step: int) -> Indices:
        if not self.epochs:
            return random_numbers(seed, stream, step).integers(0, self.count, size=samples)
        epoch, first = divmod(step * samples, self.count)
        drawn = self._shuffled(seed, stream, epoch)[first : first + samples]
        while len(drawn) < samples:  # a batch may extend into the next epochs
            epoch += 1
            more = self._shuffled(seed, stream, epoch)[: samples - len(drawn)]
            drawn = np.concatenate([drawn, more])
        return drawn

    def _shuffled(self, seed: int, stream: int, epoch: int) -> Indices:
        key = (seed, stream, epoch)
        if self._epoch is None or self._epoch[0] != key:  # most steps stay in the last one's epoch
            self._epoch = key, random_numbers(seed, stream, epoch).permutation(self.count)
        return self._epoch[1]


def random_numbers(seed: int, stream: int, place: int) -> np.random.Generator:
    """A generator at any position of a stream, without drawing what lies before it.

    Philox encrypts a counter (Salmon et al., 2011).
    """
    return np.random.Generator(np.random.Philox(key=[seed, stream], counter=[0, 0, 0, place]))


class Batch(NamedTuple):
    """The arguments of a model: inputs and targets, samples along the first axis."""

    inputs: torch.Tensor
    targets: torch.Tensor

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory, which a GPU reads by itself."""
        # A slice of windows is not contiguous; torch would make it so in pageable memory first.
        return Batch(*(tensor.contiguous().pin_memory() for tensor in self))

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        # The host continues to launch work while pinned memory is copied.
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in self))


class FastLoader:
    """Slices of memory-mapped arrays: nothing is prepared while the model waits."""

    def __init__(self, samples: Samples, *, run: Run, rank: int) -> None:
        self.samples = samples
        self.sampler = Sampler(len(samples), run=run, rank=rank, epochs=samples.epochs)

    def micro_batch(self, step: int, micro: int) -> Batch:
        """The rank's `micro`-th micro-batch of a step."""
        return self._batch(self.sampler.micro_batch(step, micro))

    def evaluation(self) -> Iterator[Batch]:
        """The rank's share of the evaluation samples."""
        return map(self._batch, self.sampler.evaluation())  # one at a time in memory

    def _batch(self, indices: Array) -> Batch:
        return Batch(*map(torch.as_tensor, self.samples.take(indices)))

    def close(self) -> None:
        """Do nothing, as nothing runs in the background."""


class ClassicLoader:
    """torch's DataLoader over samples made one by one, with text tokenized in `__getitem__`.

    `loader_workers` processes prepare them ahead, on the cores of their rank.
    """

    def __init__(self, samples: Samples, *, run: Run, rank: int) -> None:
        sampler = Sampler(len(samples), run=run, rank=rank, epochs=samples.epochs)
        order = itertools.product(range(run.steps), range(run.grad_accum))
        batches = DataLoader(
            cast("TorchDataset[tuple[Array, Array]]", samples),
            batch_sampler=(sampler.micro_batch(*place).tolist() for place in order),
            num_workers=run.loader_workers,
            collate_fn=getattr(samples, "collate", None),  # else torch's own
            worker_init_fn=_silence_tokenizers,
        )
        self._batches: Iterator[list[torch.Tensor]] | None = iter(batches)
        self._order = itertools.product(range(run.steps), range(run.grad_accum))

    def micro_batch(self, step: int, micro: int) -> Batch:
        """The rank's `micro`-th micro-batch of a step; must be called in order."""
        expected = next(self._order)
        # A DataLoader cannot skip or go back.
        assert self._batches is not None and expected == (step, micro)
        return Batch(*next(self._batches))

    def close(self) -> None:
        """End the worker processes."""
        self._batches = None  # freeing a DataLoader's iterator stops its workers


def _silence_tokenizers(worker: int) -> None:
    # A tokenizer's threads do not survive the fork of a DataLoader's worker, and it would warn.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


# By a run's `loader`; both give the same batches.
LOADERS: dict[str, type[FastLoader | ClassicLoader]] = {
    "fast": FastLoader,
    "classic": ClassicLoader,
}
