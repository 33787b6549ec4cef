"""ZeRO stage 1 (Rajbhandari et al., 2020): a rank keeps its shard of the optimizer state.

Gradients are reduce-scattered, so that a rank gets the average of its shard. It updates that shard,
and the parameters are all-gathered. Together this moves as many bytes as one all-reduce.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from lab.config.run import Run
from lab.errors import LabError
from lab.worker.distributed import all_gather_single, averaging, reduce_scatter_single
from lab.worker.optim import adamw, decayed_and_not
from lab.worker.strategies.base import Setup, Strategy, Wrapper, clip


class Zero1(Strategy["Sharded"]):
    """ZeRO-1 on two flat buffers, one for the parameters with weight decay and one for the rest."""

    def wrap(self, model: nn.Module, setup: Setup) -> Sharded:
        """The model with its parameters broadcast from rank 0 and laid out in flat buffers."""
        parallel = Sharded(model)
        for flat in parallel.flats:
            dist.broadcast(flat.values, src=0)
        return parallel

    def synchronize(self, parallel: Sharded) -> None:
        """Give each rank the average gradient of its shard."""
        for flat in parallel.flats:
            flat.reduce()

    def optimizer(self, parallel: Sharded, run: Run) -> torch.optim.Optimizer:
        """AdamW on this rank's shard, which gathers the parameters after its step."""
        decayed, others = ([[flat.shard]] for flat in parallel.flats)
        optimizer = adamw(decayed, others, run)

        def gather(*_: Any) -> None:
            for flat in parallel.flats:
                flat.gather()

        # A step hook, so the loop need not know it, and its time counts as the optimizer's.
        optimizer.register_step_post_hook(gather)
        return optimizer

    def clip(self, parallel: Sharded, max_norm: float) -> torch.Tensor:
        """Clip by the norm of all shards."""
        gradients = [flat.shard.grad for flat in parallel.flats if flat.shard.grad is not None]
        return clip(gradients, max_norm)


class Sharded(Wrapper):
    """A model whose parameters are views of flat buffers, which are divided among the ranks."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.flats = tuple(Flat(group) for group in decayed_and_not(model.parameters()))


class Flat:
    """Parameters laid out consecutively in a padded buffer; `shard` is this rank's part of it."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters, self.world_size = parameters, dist.get_world_size()
        size = sum(parameter.numel() for parameter in parameters)
        # Collectives on tensors need equal parts, so it is padded to a multiple of the ranks.
        length = -(-max(size, 1) // self.world_size) * self.world_size
        kinds = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters})
        if len(kinds) > 1:
            raise LabError(
                f"zero1 lays parameters out in one buffer, but these are {' and '.join(kinds)}: "
                "give all the same type"
            )
        like = parameters[0] if parameters else torch.empty(0)
        self.values = torch.zeros(length, dtype=like.dtype, device=like.device)
        for parameter, part in zip(parameters, self._parts(self.values), strict=True):
            part.copy_(parameter.detach().flatten())
            # A view, so that gathering into the buffer updates the model.
            parameter.data = part.view_as(parameter)
        self.shard = nn.Parameter(self.values.chunk(self.world_size)[dist.get_rank()])

    def _parts(self, flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sizes = [parameter.numel() for parameter in self.parameters]
        return flat[: sum(sizes)].split(sizes)

    @torch.no_grad()
    def reduce(self) -> None:
        """Average the gradients, each rank its shard, and drop the whole ones."""
        gradients = torch.zeros_like(self.values)
        for parameter, part in zip(self.parameters, self._parts(gradients), strict=True):
            if parameter.grad is not None:
                part.copy_(parameter.grad.flatten())
                parameter.grad = None  # at once, as the flat copy takes its place
        shard = torch.empty_like(self.shard)
        reduce_scatter_single(shard, gradients, averaging(gradients))
        self.shard.grad = shard

    @torch.no_grad()
    def gather(self) -> None:
        """Gather the shards of all ranks on every rank."""
        all_gather_single(self.values, self.shard.detach())


STRATEGY = Zero1()
