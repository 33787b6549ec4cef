"""Ways to train in parallel, one module each."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import nn

from lab.errors import InputError, Problem, nearest
from lab.study import Run
from lab.worker.communication import Recorder
from lab.worker.strategies import ddp, single


class Strategy(Protocol):
    """What the training loop asks of a way to train in parallel; a module with these functions is one."""

    needs_group: bool  # whether it works on a process group, at world size 1 too

    def wrap(self, model: nn.Module, *, run: Run, device: torch.device, recorder: Recorder | None) -> nn.Module:
        """The model as the loop calls it, its parameters those of the model; what it sends is stamped by the recorder."""

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        """Where gradients are only added up, for all but the last micro-batch of a step."""


STRATEGIES: dict[str, Strategy] = {"single": single, "ddp": ddp}


def get(name: str) -> Strategy:
    """The strategy of this name; raises InputError with the nearest one."""
    if name not in STRATEGIES:
        raise InputError("strategy", [Problem("strategy", f"{name!r} is no strategy", nearest(name, STRATEGIES))])
    return STRATEGIES[name]
