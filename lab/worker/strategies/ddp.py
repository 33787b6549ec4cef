"""DistributedDataParallel: gradients are averaged in buckets during the backward pass."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from lab.config.run import DEFAULT_BUCKET_CAP_MB, POWERSGD_FIRST_STEP, Run
from lab.errors import InputError
from lab.formatting import MIB
from lab.worker.distributed import averaging
from lab.worker.measure.ddp_hook import BucketRecorder, Exchange, Sent, unrecorded
from lab.worker.optim import DTYPES
from lab.worker.strategies.base import Setup, Strategy


class Ddp(Strategy[DistributedDataParallel]):
    """torch's DDP with a hook that timestamps each bucket."""

    comparable = True
    records = BucketRecorder

    def wrap(self, model: nn.Module, setup: Setup) -> DistributedDataParallel:
        """The model with its parameters broadcast from rank 0.

        Raises InputError for PowerSGD over gloo in more than one bucket.
        """
        run, device, recorder = setup.run, setup.device, setup.recorder
        _require_one_bucket(model, run)
        parallel = DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            # None is DDP's default, which makes the first bucket small so that communication
            # starts early; passing the same size as a number does not.
            bucket_cap_mb=None if run.bucket_cap_mb == DEFAULT_BUCKET_CAP_MB else run.bucket_cap_mb,
            gradient_as_bucket_view=run.gradient_as_bucket_view,
            static_graph=run.static_graph,
        )
        if isinstance(recorder, BucketRecorder):
            recorder.exchange = exchange_for(run)
            parallel.register_comm_hook(recorder, BucketRecorder.send)
        elif run.compression != "none":
            # One rank sends nothing but still rounds its gradients, as several ranks do.
            parallel.register_comm_hook(exchange_for(run), unrecorded)
        return parallel

    def no_sync(self, parallel: DistributedDataParallel) -> AbstractContextManager[None]:
        """Send no bucket inside; the next pass outside sends the sum."""
        return parallel.no_sync()


def _require_one_bucket(model: nn.Module, run: Run) -> None:
    # Over gloo, its collectives for several buckets would be matched in different orders.
    if run.compression != "powersgd" or dist.get_backend() != "gloo":
        return
    needed = sum(parameter.nbytes for parameter in model.parameters()) / MIB
    if run.bucket_cap_mb == DEFAULT_BUCKET_CAP_MB or run.bucket_cap_mb < needed:
        what = (
            f"at {run.bucket_cap_mb:g} MiB DDP splits {needed:.1f} MiB of gradients, "
            "but over gloo PowerSGD needs one bucket"
        )
        advice = (
            f"use at least {int(max(needed, DEFAULT_BUCKET_CAP_MB)) + 1}, or another compression"
        )
        raise InputError.of("run", "bucket_cap_mb", what, advice)


def exchange_for(run: Run) -> Exchange:
    """The exchange of the run's `compression`, in the default process group."""
    match run.compression:
        case "none":
            return all_reduce
        case "bf16" | "fp16":
            return partial(cast_all_reduce, dtype=DTYPES[run.compression])
        case "powersgd":
            state = PowerSGDState(
                None,
                matrix_approximation_rank=run.powersgd_rank,
                start_powerSGD_iter=POWERSGD_FIRST_STEP,
                random_seed=run.seed,
            )
            return partial(powersgd, state)


def all_reduce(bucket: GradBucket) -> Sent:
    """Average the gradients unchanged."""
    buffer = bucket.buffer()
    work = dist.all_reduce(buffer, averaging(buffer), async_op=True)
    return Sent(work.get_future(), buffer.nbytes)


def cast_all_reduce(bucket: GradBucket, *, dtype: torch.dtype) -> Sent:
    """Average the gradients, rounded to `dtype` on the link."""
    # Written out, as torch's own bf16 hook rejects gloo.
    buffer = bucket.buffer()
    rounded = buffer.to(dtype)
    future = dist.all_reduce(rounded, averaging(rounded), async_op=True).get_future()
    return Sent(future.then(lambda done: buffer.copy_(done.value()[0])), rounded.nbytes)


def powersgd(state: Any, bucket: GradBucket) -> Sent:
    """torch's PowerSGD (Vogels et al., 2019) with error feedback; plain means at first."""
    before = state.total_numel_after_compression
    future = powerSGD_hook(state, bucket)
    elements = state.total_numel_after_compression - before
    buffer = bucket.buffer()
    # torch counts no bytes in the first steps, which send the whole bucket.
    return Sent(future, elements * buffer.itemsize or buffer.nbytes)


STRATEGY = Ddp()
