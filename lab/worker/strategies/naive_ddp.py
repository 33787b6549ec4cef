"""Naive DDP: the backward pass first, then the average of every gradient, without overlap.

DDP improves on this: it sends a gradient while the backward pass computes the next, and combines
many small ones.
"""

from __future__ import annotations

import torch
from torch import distributed as dist
from torch import nn

from lab.worker.distributed import averaging
from lab.worker.strategies.base import Setup, Strategy, Wrapper


class NaiveDdp(Strategy["Replica"]):
    """One all-reduce per parameter, or one for all of them (`flat`)."""

    def wrap(self, model: nn.Module, setup: Setup) -> Replica:
        """The model with its parameters broadcast from rank 0."""
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
        return Replica(model, flat=setup.run.flat)

    def synchronize(self, parallel: Replica) -> None:
        """Average the gradients over the ranks."""
        gradients = [p.grad for p in parallel.parameters() if p.grad is not None]
        if not parallel.flat:
            for gradient in gradients:
                _average(gradient)
            return
        # Copying there and back buys one latency instead of one per parameter.
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        _average(flat)
        parts = flat.split([gradient.numel() for gradient in gradients])
        averages = [part.view_as(g) for part, g in zip(parts, gradients, strict=True)]
        torch._foreach_copy_(gradients, averages)


class Replica(Wrapper):
    """A rank's copy of the model."""

    def __init__(self, model: nn.Module, *, flat: bool) -> None:
        super().__init__(model)
        self.flat = flat


def _average(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor, averaging(tensor))


STRATEGY = NaiveDdp()
