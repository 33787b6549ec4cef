"""Micro-batches as tensors: slices of prepared arrays, or sample by sample by a DataLoader."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import NamedTuple, cast

import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from lab.config.run import Run
from lab.worker.data.dataset import Array, Dataset, Sampler, Samples


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


def loader_for(dataset: Dataset, *, run: Run, rank: int) -> FastLoader | ClassicLoader:
    """The run's loader over the training samples; both loaders give the same batches."""
    loader = ClassicLoader if run.loader == "classic" else FastLoader
    return loader(dataset.train, run=run, rank=rank)


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
