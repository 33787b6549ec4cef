"""Tensor parallelism (Shoeybi et al., 2019): a rank has some heads and some units of every MLP.

The first layer of each pair is split by columns, the second by rows, so that the only communication
is one all-reduce after the pair and one in its backward pass.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from lab.config.run import Run
from lab.worker.models.gpt import Block
from lab.worker.optim import adamw, decayed_and_not
from lab.worker.strategies.base import Setup
from lab.worker.strategies.sharded import DTensorStrategy, require_dtensor


class TensorParallelism(DTensorStrategy):
    """torch's DTensor on the linear layers of a GPT's blocks."""

    def wrap(self, model: nn.Module, setup: Setup) -> nn.Module:
        """The model itself with DTensors in its linear layers; raises InputError like FSDP."""
        require_dtensor(setup.device)
        world_size = setup.run.world_size
        mesh = init_device_mesh(setup.device.type, (world_size,))
        plan = {
            "attention.qkv": ColwiseParallel(),
            "attention.projection": RowwiseParallel(),
            "up": ColwiseParallel(),
            "down": RowwiseParallel(),
        }
        # Embedding, norms and head stay whole, and equal because all ranks see the same samples.
        for block in model.modules():
            if isinstance(block, Block):
                _order_by_rank(block.attention.qkv, world_size)
                parallelize_module(block, mesh, plan)
        return model

    def optimizer(self, parallel: nn.Module, run: Run) -> torch.optim.Optimizer:
        """AdamW with one kind of tensor per group."""

        def by_kind(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
            # Fused AdamW does not accept a mixture of tensors and DTensors.
            return [
                [p for p in parameters if isinstance(p, DTensor) == sharded]
                for sharded in (True, False)
            ]

        decayed, others = map(by_kind, decayed_and_not(parallel.parameters()))
        return adamw(decayed, others, run)


@torch.no_grad()
def _order_by_rank(qkv: nn.Linear, ranks: int) -> None:
    """Reorder the rows of queries, keys and values by the ranks that receive them."""
    # Splitting the rows unchanged would give the first rank queries and the last one values.
    for parameter in (qkv.weight, qkv.bias):
        parameter.copy_(parameter.unflatten(0, (3, ranks, -1)).transpose(0, 1).flatten(0, 2))


STRATEGY = TensorParallelism()
