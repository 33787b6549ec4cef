"""DistributedDataParallel: each rank holds the model, gradients are averaged in buckets during the backward pass."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lab.errors import InputError, Problem
from lab.study import DEFAULT_BUCKET_CAP_MB, Run
from lab.worker import compression
from lab.worker.calls import CallRecorder
from lab.worker.communication import Recorder, recorded, unrecorded
from lab.worker.strategies.strategy import Strategy
from lab.worker.timing import Clock


class Ddp(Strategy):
    """torch's DDP with a hook that stamps each bucket."""

    comparable = True

    def recorder(self, clock: Clock, *, world_size: int) -> Recorder | CallRecorder | None:
        """The recorder of buckets."""
        return Recorder(clock) if world_size > 1 else None

    def wrap(
        self, model: nn.Module, *, run: Run, device: torch.device, clock: Clock, recorder: Recorder | CallRecorder | None
    ) -> nn.Module:
        """The model with its parameters broadcast from rank 0, its gradients sent as the run's settings of DDP say.

        Raises InputError for PowerSGD over gloo in more than one bucket: its collectives would meet in unequal order.
        """
        _require_one_bucket(model, run)
        parallel = DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            # Only where no size is given does DDP make the first bucket small.
            bucket_cap_mb=None if run.bucket_cap_mb == DEFAULT_BUCKET_CAP_MB else run.bucket_cap_mb,
            gradient_as_bucket_view=run.gradient_as_bucket_view,
            static_graph=run.static_graph,
        )
        if isinstance(recorder, Recorder):
            recorder.exchange = compression.exchange_for(run)
            parallel.register_comm_hook(recorder, recorded)
        elif run.compression != "none":
            parallel.register_comm_hook(compression.exchange_for(run), unrecorded)
        return parallel

    def bare(self, parallel: nn.Module) -> nn.Module:
        """The model that DDP wraps."""
        model: nn.Module = _ddp(parallel).module
        return model

    def no_sync(self, parallel: nn.Module) -> AbstractContextManager[None]:
        """No bucket is sent; the next step outside of it sends the sum."""
        return _ddp(parallel).no_sync()


def _ddp(parallel: nn.Module) -> DistributedDataParallel:
    assert isinstance(parallel, DistributedDataParallel)
    return parallel


def _require_one_bucket(model: nn.Module, run: Run) -> None:
    needed = sum(parameter.nbytes for parameter in model.parameters()) / 2**20
    if run.compression != "powersgd" or dist.get_backend() != "gloo":
        return
    if run.bucket_cap_mb == DEFAULT_BUCKET_CAP_MB or run.bucket_cap_mb < needed:
        what = f"at {run.bucket_cap_mb:g} MiB DDP splits {needed:.1f} MiB of gradients, and over gloo PowerSGD needs one bucket"
        raise InputError("run", [Problem("bucket_cap_mb", what, f"at least {max(int(needed) + 1, 26)}, or another compression")])
