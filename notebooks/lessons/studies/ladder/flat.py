"""Rung 3: the same in one call, with all gradients in one flat tensor."""

import torch
from torch import distributed as dist
from torch import nn

from lab.worker.strategies.base import Setup, Strategy, Wrapper


class FlatDDP(Strategy):
    """One all-reduce per step."""

    def wrap(self, model: nn.Module, setup: Setup) -> Wrapper:
        """All ranks begin with the parameters of rank 0."""
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
        return Wrapper(model)

    def synchronize(self, parallel: Wrapper) -> None:
        """Put the gradients one after the other, average them, and put them back."""
        gradients = [parameter.grad for parameter in parallel.parameters()]
        assert all(gradient is not None for gradient in gradients)
        sizes = [gradient.numel() for gradient in gradients]
        ### BEGIN SOLUTION
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        flat /= dist.get_world_size()
        dist.all_reduce(flat)
        for gradient, part in zip(gradients, flat.split(sizes), strict=True):
            gradient.copy_(part.view_as(gradient))
        ### END SOLUTION
