"""One process, nothing between it and the model: the baseline of a baseline."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from lab.study import Run
from lab.worker.communication import Recorder

needs_group = False


def wrap(model: nn.Module, *, run: Run, device: torch.device, recorder: Recorder | None) -> nn.Module:
    """The model itself."""
    return model


def no_sync(model: nn.Module) -> AbstractContextManager[None]:
    """Nothing is ever synchronized."""
    return nullcontext()
