"""Rung 6: ZeRO stage 1: a rank has all parameters, but optimizer state only for its own part."""

import torch
from torch import distributed as dist
from torch import nn

from lab.config.run import Run

# Two of these are torch's collectives, which had other names before torch 2.13.
from lab.worker.strategies.base import (
    Setup,
    Strategy,
    Wrapper,
    all_gather_single,
    clip,
    reduce_scatter_single,
)


class Sharded(Wrapper):
    """A model whose parameters are views of one flat tensor, padded to a multiple of the ranks."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.weights = list(model.parameters())
        self.sizes = [weight.numel() for weight in self.weights]
        n, size = dist.get_world_size(), sum(self.sizes)
        self.flat = torch.zeros(-(-size // n) * n, dtype=self.weights[0].dtype)
        parts = self.flat[:size].split(self.sizes)
        for weight, part in zip(self.weights, parts, strict=True):
            part.copy_(weight.detach().flatten())
            weight.data = part.view_as(weight)  # from now on a view, which changes with `flat`
        dist.broadcast(self.flat, src=0)
        # What this rank updates, a view as well.
        self.shard = nn.Parameter(self.flat.chunk(n)[dist.get_rank()])


class ZeRO1(Strategy):
    """Reduce-scatter the gradients, update a part, all-gather the parameters."""

    def wrap(self, model: nn.Module, setup: Setup) -> Sharded:
        """The model with flat parameters, those of rank 0."""
        return Sharded(model)

    @torch.no_grad()
    def synchronize(self, parallel: Sharded) -> None:
        """Bring this rank the mean gradient of its shard, as `parallel.shard.grad`."""
        gradients = torch.zeros_like(parallel.flat)
        for weight, part in zip(
            parallel.weights,
            gradients.split([*parallel.sizes, len(gradients) - sum(parallel.sizes)])[:-1],
            strict=True,
        ):
            part.copy_(weight.grad.flatten())
            weight.grad = None
        ### BEGIN SOLUTION
        gradients /= dist.get_world_size()
        mean = torch.empty_like(parallel.shard)
        reduce_scatter_single(mean, gradients)
        parallel.shard.grad = mean
        ### END SOLUTION
        assert parallel.shard.grad.shape == parallel.shard.shape

    def optimizer(self, parallel: Sharded, run: Run) -> torch.optim.Optimizer:
        """AdamW of this rank's shard, after whose step all ranks have all parameters."""
        optimizer = torch.optim.AdamW(
            [parallel.shard], lr=run.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
        )

        @torch.no_grad()
        def gather(*_: object) -> None:
            """Called after each step."""
            ### BEGIN SOLUTION
            all_gather_single(parallel.flat, parallel.shard.detach())
            ### END SOLUTION

        optimizer.register_step_post_hook(gather)
        return optimizer

    def clip(self, parallel: Sharded, max_norm: float) -> torch.Tensor:
        """By the norm of all shards: the lab's own, which adds up their squares over the ranks."""
        return clip([parallel.shard.grad], max_norm)
