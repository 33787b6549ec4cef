"""Fully sharded data parallelism: each rank keeps a share of every block, and gathers a block while it is computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from lab.config.run import Run
from lab.worker.measure.clock import Clock
from lab.worker.measure.collective_trace import CallRecorder
from lab.worker.measure.ddp_hook import BucketRecorder
from lab.worker.optim import blocks_of
from lab.worker.strategies.base import Strategy, clip, require_dtensor


class Fsdp(Strategy):
    """torch's fully_shard on each block and on what is left; hybrid where a copy of the model has fewer ranks than there are."""

    def wrap(
        self,
        model: nn.Module,
        *,
        run: Run,
        device: torch.device,
        clock: Clock,
        recorder: BucketRecorder | CallRecorder | None,
    ) -> nn.Module:
        """The model itself, its parameters turned into DTensors; raises InputError on CPU where torch is too old for it."""
        require_dtensor(device)
        mesh = _mesh(run, device)
        for block in blocks_of(model):
            fully_shard(block, mesh=mesh, reshard_after_forward=run.reshard_after_forward)
        # What no block holds is needed first in the backward pass: torch keeps it gathered where it is not told.
        if run.reshard_after_forward:
            fully_shard(model, mesh=mesh)
        else:
            fully_shard(model, mesh=mesh, reshard_after_forward=False)
        return model

    def no_sync(self, parallel: nn.Module) -> AbstractContextManager[None]:
        """Gradients stay whole on each rank and are added up; parameters are gathered all the same."""
        return _unsynchronized(parallel)

    def clip(self, parallel: nn.Module, max_norm: float) -> torch.Tensor:
        """By the norm of all shares of one copy of the model."""
        gradients = [
            parameter.grad
            for parameter in parallel.parameters()
            if isinstance(parameter.grad, DTensor)
        ]
        mesh = gradients[0].device_mesh
        return clip(
            [gradient.to_local() for gradient in gradients],
            max_norm,
            group=mesh.get_group(mesh.ndim - 1),
        )

    def replicated(self, parallel: nn.Module) -> Iterable[torch.Tensor]:
        """Each parameter, gathered."""
        return (
            parameter.full_tensor()
            for parameter in parallel.parameters()
            if isinstance(parameter, DTensor)
        )


@contextmanager
def _unsynchronized(parallel: nn.Module) -> Iterator[None]:
    assert isinstance(parallel, FSDPModule)
    parallel.set_requires_gradient_sync(False)
    yield
    parallel.set_requires_gradient_sync(True)


def _mesh(run: Run, device: torch.device) -> DeviceMesh:
    if run.shard_size is None or run.shard_size == run.world_size:
        return init_device_mesh(device.type, (run.world_size,))
    copies = run.world_size // run.shard_size
    return init_device_mesh(
        device.type, (copies, run.shard_size), mesh_dim_names=("copies", "shards")
    )


STRATEGY = Fsdp()
