"""Micro-batches as tensors: slices of what was prepared, or sample by sample as a DataLoader does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from lab.config.run import Run
from lab.worker.data.dataset import Array, Dataset, Sampler, Samples
from lab.worker.data.labelled import quiet_in_workers


class Batch(NamedTuple):
    """What a model is called with: inputs and targets, samples along the first axis."""

    inputs: torch.Tensor
    targets: torch.Tensor

    def pin_memory(self) -> Batch:
        """The same in memory that a GPU can read by itself."""
        return Batch(self.inputs.pin_memory(), self.targets.pin_memory())

    def to(self, device: torch.device) -> Batch:
        """The same on a device, without waiting for the copy."""
        return Batch(
            self.inputs.to(device, non_blocking=True), self.targets.to(device, non_blocking=True)
        )


class Loader(Protocol):
    """What the training loop asks for its data."""

    def micro_batch(self, step: int, micro: int) -> Batch:
        """The rank's `micro`-th micro-batch of a step; steps and micro-batches are asked for in their order."""

    def close(self) -> None:
        """End what works in the background."""


def loader_for(dataset: Dataset, *, run: Run, rank: int) -> Loader:
    """The loader that the run names, over the samples to train on; both give the same samples in the same order."""
    if run.loader == "classic":
        return ClassicLoader(dataset.train, run=run, rank=rank)
    return FastLoader(dataset.train, run=run, rank=rank)


class FastLoader:
    """Slices of arrays that are mapped into memory: nothing is made while the model waits."""

    def __init__(self, samples: Samples, *, run: Run, rank: int) -> None:
        self.samples = samples
        self.sampler = Sampler(len(samples), run=run, rank=rank, epochs=samples.epochs)

    def micro_batch(self, step: int, micro: int) -> Batch:
        """As Loader."""
        return _batch(*self.samples.take(self.sampler.micro_batch(step, micro)))

    def evaluation(self) -> Iterator[Batch]:
        """The rank's share of the samples that the model is evaluated on."""
        return (_batch(*self.samples.take(indices)) for indices in self.sampler.evaluation())

    def close(self) -> None:
        """Nothing works in the background."""


class ClassicLoader:
    """torch's DataLoader over samples that are made one by one when they are asked for: for text, tokenized in `__getitem__`.

    `loader_workers` processes make them ahead, on the cores of their rank.
    """

    def __init__(self, samples: Samples, *, run: Run, rank: int) -> None:
        self._batches: Iterator[list[torch.Tensor]] | None = iter(
            DataLoader(
                _OneByOne(samples),
                batch_sampler=_InOrder(
                    Sampler(len(samples), run=run, rank=rank, epochs=samples.epochs)
                ),
                num_workers=run.loader_workers,
                worker_init_fn=quiet_in_workers,
            )
        )
        self._next = (0, 0)
        self._grad_accum = run.grad_accum

    def micro_batch(self, step: int, micro: int) -> Batch:
        """As Loader."""
        assert self._batches is not None and self._next == (step, micro), (
            "micro-batches come in order"
        )
        self._next = (step, micro + 1) if micro + 1 < self._grad_accum else (step + 1, 0)
        return Batch(*next(self._batches))

    def close(self) -> None:
        """End the worker processes."""
        self._batches = None


class _OneByOne(TorchDataset[tuple[Array, Array]]):
    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __getitem__(self, index: int) -> tuple[Array, Array]:
        return self.samples.make(index)


class _InOrder:
    """The indices of a rank's micro-batches, one after the other."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        run = self.sampler.run
        for step in range(run.steps):
            for micro in range(run.grad_accum):
                yield self.sampler.micro_batch(step, micro).tolist()


def _batch(inputs: Any, targets: Any) -> Batch:
    return Batch(torch.from_numpy(inputs), torch.from_numpy(targets))
