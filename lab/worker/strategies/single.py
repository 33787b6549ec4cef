"""One process, nothing between it and the model: the baseline of a baseline."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

needs_group = False


def wrap(model: nn.Module, *, device: torch.device) -> nn.Module:
    """The model itself."""
    return model


def no_sync(model: nn.Module) -> AbstractContextManager[None]:
    """Nothing is ever synchronized."""
    return nullcontext()
