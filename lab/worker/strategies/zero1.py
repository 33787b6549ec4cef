"""ZeRO stage 1 (Rajbhandari et al., 2020): each rank keeps the optimizer's state of its share of the parameters.

Gradients are reduced and scattered, so that a rank gets the average of its share; it updates that share, and the
parameters are gathered. Together this moves the bytes of one all-reduce.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from lab.config.run import Run
from lab.worker.measure.clock import Clock
from lab.worker.measure.collective_trace import CallRecorder
from lab.worker.measure.ddp_hook import BucketRecorder
from lab.worker.optim import adamw, decayed_and_not
from lab.worker.strategies.base import Strategy, clip


class Zero1(Strategy):
    """Written out on flat buffers, one for the parameters that are decayed and one for the others."""

    def wrap(
        self,
        model: nn.Module,
        *,
        run: Run,
        device: torch.device,
        clock: Clock,
        recorder: BucketRecorder | CallRecorder | None,
    ) -> nn.Module:
        """The model with its parameters broadcast from rank 0 and laid out in flat buffers."""
        parallel = Sharded(model)
        for flat in parallel.flats:
            dist.broadcast(flat.values, src=0)
        return parallel

    def unwrap(self, parallel: nn.Module) -> nn.Module:
        """The model, whole on each rank."""
        return _sharded(parallel).module

    def synchronize(self, parallel: nn.Module) -> None:
        """Bring each rank the average gradient of its share."""
        for flat in _sharded(parallel).flats:
            flat.reduce()

    def optimizer(self, parallel: nn.Module, run: Run) -> torch.optim.Optimizer:
        """AdamW of this rank's share, which gathers the parameters when it has done its step."""
        flats = _sharded(parallel).flats
        decayed, others = ([[flat.shard]] for flat in flats)
        optimizer = adamw(decayed, others, run)

        def gather(*_: Any) -> None:
            for flat in flats:
                flat.gather()

        optimizer.register_step_post_hook(gather)
        return optimizer

    def clip(self, parallel: nn.Module, max_norm: float) -> torch.Tensor:
        """By the norm of all shares."""
        return clip(
            [flat.shard.grad for flat in _sharded(parallel).flats if flat.shard.grad is not None],
            max_norm,
        )


class Sharded(nn.Module):
    """A model whose parameters are views of flat buffers that the ranks share out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = model
        self.flats = tuple(Flat(group) for group in decayed_and_not(model.parameters()))

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss of the rank's samples."""
        loss: torch.Tensor = self.module(inputs, targets)
        return loss


class Flat:
    """Parameters one after the other in one buffer, padded so that it divides; `shard` is this rank's part of it."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters, self.world_size = parameters, dist.get_world_size()
        self.sizes = [parameter.numel() for parameter in parameters]
        length = -(-max(sum(self.sizes), 1) // self.world_size) * self.world_size
        self.values = torch.zeros(length, device=parameters[0].device if parameters else None)
        for parameter, part in zip(
            parameters, self.values.split([*self.sizes, length - sum(self.sizes)]), strict=False
        ):
            part.copy_(parameter.detach().flatten())
            parameter.data = part.view_as(parameter)
        self.shard = nn.Parameter(self.values.chunk(self.world_size)[dist.get_rank()])

    @torch.no_grad()
    def reduce(self) -> None:
        """Average the gradients, each rank its share; the whole ones are dropped."""
        gradients = torch.zeros_like(self.values)
        for parameter, part in zip(
            self.parameters,
            gradients.split([*self.sizes, len(gradients) - sum(self.sizes)]),
            strict=False,
        ):
            if parameter.grad is not None:
                part.copy_(parameter.grad.flatten())
                parameter.grad = None
        gradients /= self.world_size
        share = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(share, gradients)
        self.shard.grad = share

    @torch.no_grad()
    def gather(self) -> None:
        """Bring every rank the shares of all."""
        dist.all_gather_into_tensor(self.values, self.shard.detach())


def _sharded(parallel: nn.Module) -> Sharded:
    assert isinstance(parallel, Sharded)
    return parallel


STRATEGY = Zero1()
