"""What FSDP and tensor parallelism do with DTensors, of which each rank has a shard."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor

from lab.errors import InputError
from lab.worker.strategies.base import Strategy, clip


class DTensorStrategy(Strategy[nn.Module]):
    """The model itself with DTensors as parameters."""

    def clip(self, parallel: nn.Module, max_norm: float) -> torch.Tensor:
        """Clip by the norm of one copy of the model, counting once what is whole on each rank."""
        gradients = (p.grad for p in parallel.parameters() if p.grad is not None)
        whole, sharded = whole_and_shards(gradients)
        shards, group = [gradient.to_local() for gradient in sharded], shards_group(sharded)
        if dist.get_rank(group) == 0:
            return clip(shards + whole, max_norm, group=group)
        return clip(shards, max_norm, copies=whole, group=group)

    def replicated(self, parallel: nn.Module) -> Iterable[torch.Tensor]:
        """Each parameter that is whole, and the others' sums, which every copy of the model has."""
        return whole_and_sums(parallel.parameters())


def require_dtensor(device: torch.device) -> None:
    """Raise InputError on a CPU whose torch is too old for DTensor."""
    # torch 2.6 raises or crashes in DTensor over gloo. It is recognized by what came later.
    if device.type == "cpu" and not hasattr(torch.cpu.Stream, "record_event"):
        what = f"torch {torch.__version__} cannot shard the tensors of a model on CPU"
        advice = "use a later torch, or strategy ddp or zero1"
        raise InputError.of("run", "strategy", what, advice)


def whole_and_shards(tensors: Iterable[torch.Tensor]) -> tuple[list[torch.Tensor], list[DTensor]]:
    """What this rank has whole of tensors, and those of which it has only a shard."""
    whole: list[torch.Tensor] = []
    shards: list[DTensor] = []
    for tensor in tensors:
        if not isinstance(tensor, DTensor):
            whole.append(tensor)
        elif any(part.is_shard() for part in tensor.placements):
            shards.append(tensor)
        else:  # such as the bias of a layer split by rows
            whole.append(tensor.to_local())
    return whole, shards


def shards_group(shards: Sequence[DTensor]) -> ProcessGroup:
    """The ranks that hold one copy of the model: the mesh's last dimension; others hold more."""
    mesh = shards[0].device_mesh
    return mesh.get_group(mesh.ndim - 1)


@torch.no_grad()
def whole_and_sums(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """What is whole, and the sums and sums of squares (tensors, 2) in fp64 of what is sharded.

    All ranks call it together. Unlike gathering shards, this needs no memory for whole tensors.
    """
    whole, shards = whole_and_shards(tensors)
    if not shards:  # as with FSDP that has not resharded after the last forward pass
        return whole
    wide = (shard.to_local().double() for shard in shards)
    sums = torch.stack([torch.stack([part.sum(), part.square().sum()]) for part in wide])
    dist.all_reduce(sums, group=shards_group(shards))
    return [*whole, sums]
