"""DistributedDataParallel: each rank holds the model, gradients are averaged in buckets during the backward pass."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

needs_group = True


def wrap(model: nn.Module, *, device: torch.device) -> nn.Module:
    """The model with its parameters broadcast from rank 0 and its gradients living in the buckets."""
    device_ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=device_ids, gradient_as_bucket_view=True)


def no_sync(model: nn.Module) -> AbstractContextManager[None]:
    """No bucket is sent; the next step outside of it sends the sum."""
    return cast(DistributedDataParallel, model).no_sync()
