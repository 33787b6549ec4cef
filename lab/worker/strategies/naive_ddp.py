"""Naive DDP: the backward pass first, then the average of every gradient, while nothing else is done.

What DDP does better: it sends a gradient while the backward pass computes the next, and many small ones together.
"""

from __future__ import annotations

import torch
from torch import distributed as dist
from torch import nn

from lab.config.run import Run
from lab.worker.measure.clock import Clock
from lab.worker.measure.collective_trace import CallRecorder
from lab.worker.measure.ddp_hook import BucketRecorder
from lab.worker.strategies.base import Strategy


class NaiveDdp(Strategy):
    """One all-reduce per parameter, or one for all of them (`flat`)."""

    def wrap(
        self,
        model: nn.Module,
        *,
        run: Run,
        device: torch.device,
        clock: Clock,
        recorder: BucketRecorder | CallRecorder | None,
    ) -> nn.Module:
        """The model with its parameters broadcast from rank 0."""
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
        return Replica(model, flat=run.flat)

    def unwrap(self, parallel: nn.Module) -> nn.Module:
        """The replica's model."""
        return replica_of(parallel).module

    def synchronize(self, parallel: nn.Module) -> None:
        """Average the gradients over the ranks."""
        gradients = [
            parameter.grad for parameter in parallel.parameters() if parameter.grad is not None
        ]
        if not replica_of(parallel).flat:
            for gradient in gradients:
                _average(gradient)
            return
        # A copy there and back buys one latency instead of one per parameter.
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        _average(flat)
        parts = flat.split([gradient.numel() for gradient in gradients])
        torch._foreach_copy_(
            gradients, [part.view_as(g) for part, g in zip(parts, gradients, strict=True)]
        )


class Replica(nn.Module):
    """A rank's copy of the model."""

    def __init__(self, model: nn.Module, *, flat: bool) -> None:
        super().__init__()
        self.module, self.flat = model, flat

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss of the rank's samples."""
        loss: torch.Tensor = self.module(inputs, targets)
        return loss


def replica_of(parallel: nn.Module) -> Replica:
    """The wrapped model as what it is."""
    assert isinstance(parallel, Replica)
    return parallel


def _average(tensor: torch.Tensor) -> None:
    tensor.div_(dist.get_world_size())  # before the sum, which might overflow
    dist.all_reduce(tensor)


STRATEGY = NaiveDdp()
