"""Ways to average a bucket of gradients over the ranks: as it is, in 16 bits, or as a product of thin matrices."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from lab.conflicts import POWERSGD_FIRST_STEP
from lab.study import Run
from lab.worker.communication import Exchange, Sent


def exchange_for(run: Run) -> Exchange:
    """The exchange of the run's `compression`, in the default process group."""
    match run.compression:
        case "none":
            return all_reduce
        case "bf16":
            return partial(cast_all_reduce, dtype=torch.bfloat16)
        case "fp16":
            return partial(cast_all_reduce, dtype=torch.float16)
        case "powersgd":
            state = PowerSGDState(
                None, matrix_approximation_rank=run.powersgd_rank, start_powerSGD_iter=POWERSGD_FIRST_STEP, random_seed=run.seed
            )
            return partial(powersgd, state)


def all_reduce(bucket: GradBucket) -> Sent:
    """The mean of the gradients as they are."""
    buffer = bucket.buffer().div_(dist.get_world_size())  # before the sum, which might overflow
    return Sent(dist.all_reduce(buffer, async_op=True).get_future(), buffer.nbytes)


def cast_all_reduce(bucket: GradBucket, *, dtype: torch.dtype) -> Sent:
    """The mean of the gradients, rounded to `dtype` on the link."""
    buffer = bucket.buffer()
    rounded = buffer.to(dtype).div_(dist.get_world_size())
    future = dist.all_reduce(rounded, async_op=True).get_future()
    return Sent(future.then(lambda done: buffer.copy_(done.value()[0])), rounded.nbytes)


def powersgd(state: Any, bucket: GradBucket) -> Sent:
    """PowerSGD (Vogels et al., 2019) by torch, with error feedback; plain means before step POWERSGD_FIRST_STEP."""
    before = state.total_numel_after_compression
    future = powerSGD_hook(state, bucket)
    sent = state.total_numel_after_compression - before
    buffer = bucket.buffer()
    return Sent(future, sent * buffer.itemsize or buffer.nbytes)
