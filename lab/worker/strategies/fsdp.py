"""Fully sharded data parallelism: ranks keep shards and gather a block while computing it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from lab.config.run import Run
from lab.worker.optim import DTYPES, blocks_of
from lab.worker.strategies.base import Setup
from lab.worker.strategies.sharded import DTensorStrategy, require_dtensor


class Fsdp(DTensorStrategy):
    """torch's fully_shard on each block and on the rest; hybrid by `shard_size`."""

    def wrap(self, model: nn.Module, setup: Setup) -> nn.Module:
        """The model itself with DTensors as parameters; raises InputError for an old torch."""
        run = setup.run
        require_dtensor(setup.device)
        mesh = _mesh(run, setup.device)
        # Blocks before the whole model, as a parameter belongs to the innermost sharded module.
        for block in blocks_of(model):
            fully_shard(
                block,
                mesh=mesh,
                reshard_after_forward=run.reshard_after_forward,
                mp_policy=_policy(run, setup.device),
            )
        # By default torch keeps the rest gathered, because the backward pass needs it first.
        rest: dict[str, Any] = {} if run.reshard_after_forward else {"reshard_after_forward": False}
        fully_shard(model, mesh=mesh, **rest)
        return model

    @contextmanager
    def no_sync(self, parallel: nn.Module) -> Iterator[None]:
        """Accumulate whole gradients on each rank; parameters are still gathered."""
        assert isinstance(parallel, FSDPModule)
        parallel.set_requires_gradient_sync(False)
        yield
        parallel.set_requires_gradient_sync(True)


def _policy(run: Run, device: torch.device) -> MixedPrecisionPolicy:
    """On CUDA, gather a block's weights in the precision of its products.

    Activations between blocks and the sums of gradients stay in fp32, as under autocast.
    """
    dtype = DTYPES[run.stated.precision]
    low = device.type == "cuda" and dtype != torch.float32
    return MixedPrecisionPolicy(
        param_dtype=dtype if low else None,
        reduce_dtype=torch.float32 if low else None,
        cast_forward_inputs=False,
    )


def _mesh(run: Run, device: torch.device) -> DeviceMesh:
    if run.shard_size is None or run.shard_size == run.world_size:
        return init_device_mesh(device.type, (run.world_size,))
    shape = (run.world_size // run.shard_size, run.shard_size)
    return init_device_mesh(device.type, shape, mesh_dim_names=("copies", "shards"))


STRATEGY = Fsdp()
