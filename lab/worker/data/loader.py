"""Micro-batches as tensors: slices of what was prepared, or sample by sample by a DataLoader."""

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
    """What a model is called with: inputs and targets, samples along the first axis."""

    inputs: torch.Tensor
    targets: torch.Tensor

    def pin_memory(self) -> Batch:
        """The same in page-locked memory, which a GPU reads by itself."""
        # A slice of windows has gaps, which torch would close in pageable memory before the copy.
        return Batch(*(tensor.contiguous().pin_memory() for tensor in self))

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        # The host goes on to launch work while pinned memory is copied.
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in self))


def loader_for(dataset: Dataset, *, run: Run, rank: int) -> FastLoader | ClassicLoader:
    """The loader that the run names, over the samples to train on; both give the same batches."""
    loader = ClassicLoader if run.loader == "classic" else FastLoader
    return loader(dataset.train, run=run, rank=rank)


class FastLoader:
    """Slices of arrays that are mapped into memory: nothing is made while the model waits."""

    def __init__(self, samples: Samples, *, run: Run, rank: int) -> None:
        self.samples = samples
        self.sampler = Sampler(len(samples), run=run, rank=rank, epochs=samples.epochs)

    def micro_batch(self, step: int, micro: int) -> Batch:
        """The rank's `micro`-th micro-batch of a step."""
        return self._batch(self.sampler.micro_batch(step, micro))

    def evaluation(self) -> Iterator[Batch]:
        """The rank's share of the samples that the model is evaluated on."""
        return map(self._batch, self.sampler.evaluation())  # one at a time in memory

    def _batch(self, indices: Array) -> Batch:
        return Batch(*map(torch.as_tensor, self.samples.take(indices)))

    def close(self) -> None:
        """Nothing works in the background."""


class ClassicLoader:
    """torch's DataLoader over samples that are made one by one: text is tokenized in `__getitem__`.

    `loader_workers` processes make them ahead, on the cores of their rank.
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
        """The rank's `micro`-th micro-batch of a step; steps and micro-batches in their order."""
        expected = next(self._order)
        # A DataLoader cannot skip or go back.
        assert self._batches is not None and expected == (step, micro)
        return Batch(*next(self._batches))

    def close(self) -> None:
        """End the worker processes."""
        self._batches = None  # a DataLoader's iterator stops its workers when it is freed


def _silence_tokenizers(worker: int) -> None:
    # A tokenizer's own threads do not survive the fork of a DataLoader's worker: it would warn.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
