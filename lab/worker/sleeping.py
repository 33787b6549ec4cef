"""A model that sleeps instead of computing, under the real wrapper, buckets and network.

Gradients are zero and nothing is learned; when each gradient is there, and how large it is, is as in the model itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Pauses:
    """A rank's step on one micro-batch, in s: each stage of the backward pass ends with the gradients of some parameters.

    `stages` holds how long each took and the places of its parameters among those that train; `rest` comes after the last.
    """

    forward: float
    stages: tuple[tuple[float, tuple[int, ...]], ...]
    rest: float
    optimizer: float

    @property
    def backward(self) -> float:
        """The whole backward pass."""
        return sum(seconds for seconds, _ in self.stages) + self.rest

    @property
    def totals(self) -> dict[str, float]:
        """What the record tells of it."""
        return {"forward": self.forward, "backward": self.backward, "optimizer": self.optimizer}

    def lasting(self, seconds: float) -> Pauses:
        """The same order of gradients in a step of this length: a third of it forward, the rest backward (Kaplan et al., 2020)."""
        factor = 2 / 3 * seconds / self.backward
        stages = tuple((factor * took, which) for took, which in self.stages)
        return Pauses(seconds / 3, stages, factor * self.rest, 0.0)


class Sleep:
    """Sleeps on average as long as it is asked to: what one sleep took too long, the next ones leave out."""

    def __init__(self) -> None:
        self._late = 0.0

    def __call__(self, seconds: float) -> None:
        """Sleep for so long, less what earlier sleeps took too long."""
        begin = time.perf_counter()
        if seconds > self._late:
            time.sleep(seconds - self._late)
        self._late = max(self._late + time.perf_counter() - begin - seconds, 0.0)


class Sleeper(nn.Module):
    """A model whose passes are sleep, and whose gradients, all zero, come when the model's own would."""

    def __init__(self, model: nn.Module, pauses: Pauses) -> None:
        super().__init__()
        self.model, self.pauses, self.sleep = model, pauses, Sleep()

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Zero, after the time of a forward pass; at once where the model is evaluated."""
        loss: torch.Tensor = torch.zeros((), requires_grad=self.training)
        if not self.training:
            return loss
        self.sleep(self.pauses.forward)
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        loss = _Stage.apply(loss, self.sleep, self.pauses.rest)  # type: ignore[no-untyped-call]
        for seconds, which in reversed(self.pauses.stages):
            loss = _Stage.apply(loss, self.sleep, seconds, *(parameters[place] for place in which))  # type: ignore[no-untyped-call]
        return loss

    def optimizer(self) -> SleepingOptimizer:
        """What takes the time of the model's optimizer."""
        return SleepingOptimizer(self.parameters(), self.sleep, self.pauses.optimizer)


class _Stage(torch.autograd.Function):
    """The identity; backward it sleeps, then hands out zero gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sleep: Sleep, seconds: float, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.sleep, ctx.seconds, ctx.parameters = sleep, seconds, parameters
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor | None, ...]:
        ctx.sleep(ctx.seconds)
        zeros = (parameter.new_zeros(()).expand_as(parameter) for parameter in ctx.parameters)
        return gradients[0], None, None, *zeros


class SleepingOptimizer(torch.optim.Optimizer):
    """Takes the time of a step and changes nothing."""

    def __init__(self, parameters: Iterable[torch.Tensor], sleep: Sleep, seconds: float) -> None:
        super().__init__(parameters, {"lr": 0.0})
        self._sleep, self._seconds = sleep, seconds

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # nothing could be computed again
        """Sleep."""
        self._sleep(self._seconds)
