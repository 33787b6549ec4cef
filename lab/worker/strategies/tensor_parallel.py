"""Tensor parallelism (Shoeybi et al., 2019): each rank has some heads of every attention and some units of every perceptron.

The first layer of each pair is divided by columns, the second by rows, so that one all-reduce after the pair, and
one in its backward pass, is all that is sent. Embedding, norms and head are whole on each rank and stay equal by
themselves: all ranks see the same samples.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from lab.config.run import Run
from lab.worker.measure.clock import Clock
from lab.worker.measure.collective_trace import CallRecorder
from lab.worker.measure.ddp_hook import BucketRecorder
from lab.worker.models.gpt import Block
from lab.worker.optim import adamw, decayed_and_not
from lab.worker.strategies.base import Strategy, clip, require_dtensor


class TensorParallelism(Strategy):
    """torch's DTensor on the linear layers of a GPT's blocks."""

    def wrap(
        self,
        model: nn.Module,
        *,
        run: Run,
        device: torch.device,
        clock: Clock,
        recorder: BucketRecorder | CallRecorder | None,
    ) -> nn.Module:
        """The model itself, the linear layers of its blocks turned into DTensors; raises InputError as FSDP does."""
        require_dtensor(device)
        mesh = init_device_mesh(device.type, (run.world_size,))
        for block in model.modules():
            if isinstance(block, Block):
                _order_by_rank(block.attention.qkv, run.world_size)
                parallelize_module(
                    block,
                    mesh,
                    {
                        "attention.qkv": ColwiseParallel(),
                        "attention.projection": RowwiseParallel(),
                        "up": ColwiseParallel(),
                        "down": RowwiseParallel(),
                    },
                )
        return model

    def optimizer(self, parallel: nn.Module, run: Run) -> torch.optim.Optimizer:
        """AdamW in groups of one kind of tensor each: fused, it takes no mixture."""
        decayed, others = (
            (_of_kind(group, DTensor), _of_kind(group, None))
            for group in decayed_and_not(parallel.parameters())
        )
        return adamw(decayed, others, run)

    def clip(self, parallel: nn.Module, max_norm: float) -> torch.Tensor:
        """By the norm of all shares, and once of what is whole on each rank."""
        gradients = [
            parameter.grad for parameter in parallel.parameters() if parameter.grad is not None
        ]
        shares = [_local(gradient) for gradient in gradients if _divided(gradient)]
        whole = [_local(gradient) for gradient in gradients if not _divided(gradient)]
        if dist.get_rank() == 0:
            return clip(shares + whole, max_norm)
        return clip(shares, max_norm, copies=whole)

    def replicated(self, parallel: nn.Module) -> Iterable[torch.Tensor]:
        """Each parameter, gathered where it is divided."""
        return (p.full_tensor() if isinstance(p, DTensor) else p for p in parallel.parameters())


def _of_kind(parameters: list[nn.Parameter], kind: type | None) -> list[nn.Parameter]:
    return [
        parameter for parameter in parameters if isinstance(parameter, DTensor) == (kind is DTensor)
    ]


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _divided(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, DTensor) and any(
        placement.is_shard() for placement in tensor.placements
    )


@torch.no_grad()
def _order_by_rank(qkv: nn.Linear, ranks: int) -> None:
    """Bring the rows of queries, keys and values into the order of the ranks that get them."""
    for parameter in (qkv.weight, qkv.bias):
        parameter.copy_(parameter.unflatten(0, (3, ranks, -1)).transpose(0, 1).flatten(0, 2))


STRATEGY = TensorParallelism()
