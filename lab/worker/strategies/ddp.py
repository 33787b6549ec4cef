"""DistributedDataParallel: each rank holds the model, gradients are averaged in buckets during the backward pass."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import cast

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lab.errors import InputError, Problem
from lab.study import DEFAULT_BUCKET_CAP_MB, Run
from lab.worker import compression
from lab.worker.communication import Recorder, recorded, unrecorded

needs_group = True


def wrap(model: nn.Module, *, run: Run, device: torch.device, recorder: Recorder | None) -> nn.Module:
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
    if recorder is not None:
        recorder.exchange = compression.exchange_for(run)
        parallel.register_comm_hook(recorder, recorded)
    elif run.compression != "none":
        parallel.register_comm_hook(compression.exchange_for(run), unrecorded)
    return parallel


def no_sync(model: nn.Module) -> AbstractContextManager[None]:
    """No bucket is sent; the next step outside of it sends the sum."""
    return cast(DistributedDataParallel, model).no_sync()


def _require_one_bucket(model: nn.Module, run: Run) -> None:
    needed = sum(parameter.nbytes for parameter in model.parameters()) / 2**20
    if run.compression != "powersgd" or dist.get_backend() != "gloo":
        return
    if run.bucket_cap_mb == DEFAULT_BUCKET_CAP_MB or run.bucket_cap_mb < needed:
        what = f"at {run.bucket_cap_mb:g} MiB DDP splits {needed:.1f} MiB of gradients, and over gloo PowerSGD needs one bucket"
        raise InputError("run", [Problem("bucket_cap_mb", what, f"at least {max(int(needed) + 1, 26)}, or another compression")])
