"""Emulated compute: for how long ranks sleep, measured on one of them or that of a described GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from lab.config.emulation import MEASURED
from lab.config.run import Run
from lab.config.strategies import STRATEGIES
from lab.errors import InputError, Problem
from lab.perfmodel.flops import flops_per_sample
from lab.perfmodel.hardware import emulated_gpu
from lab.worker import models
from lab.worker.context import RankContext
from lab.worker.data.dataset import Dataset
from lab.worker.data.loader import FastLoader
from lab.worker.distributed import all_gather_object
from lab.worker.measure.clock import FloatArray
from lab.worker.optim import autocast, checkpoint_blocks, optimizer_for

WARMUP, ROUNDS, BUDGET_S = 2, 7, 60.0
# Samples that are enough to see in which order and in what proportion of time gradients come.
FEW = 2
# Gradients that were complete within this time of each other, in s, come together: a sleep is not much finer.
GRAIN = 2e-4


def pauses_for(
    run: Run, place: RankContext, *, device: torch.device, dataset: Dataset
) -> Pauses | None:
    """What each rank sleeps for: rank 0 measures it while the others wait; None where compute is real.

    A described GPU takes the model's FLOPs over its peak and the profile's `mfu`, gradients in the measured order.
    Raises InputError for a precision of which the GPU's peak is not known.
    """
    emulated = place.emulated
    if emulated is None or emulated.compute is None:
        return None
    assert STRATEGIES[run.strategy].emulable, "launch refuses others"
    described = emulated.compute.emulated != MEASURED
    samples = min(FEW, run.micro_batch_size) if described else run.micro_batch_size
    pauses = all_gather_object(
        _measured(run, device=device, dataset=dataset, samples=samples) if place.rank == 0 else None
    )[0]
    assert pauses is not None
    if not described:
        return pauses
    known = emulated_gpu(emulated.compute.emulated).peak(run.precision)
    if known is None:
        what = f"no figure of {emulated.compute.emulated} for precision {run.precision}"
        raise InputError(
            "run", [Problem("precision", what, "choose another precision or another GPU")]
        )
    return pauses.lasting(
        flops_per_sample(run) * run.micro_batch_size / (known[0] * emulated.compute.mfu)
    )


def told(place: RankContext, pauses: Pauses | None) -> RankContext:
    """The place with what its ranks sleep for, for the record."""
    if pauses is None or place.emulated is None:
        return place
    return replace(place, emulated=place.emulated.model_copy(update={"step": pauses.totals}))


def _measured(run: Run, *, device: torch.device, dataset: Dataset, samples: int) -> Pauses:
    """Medians over up to ROUNDS steps of the real model on this rank alone, as many as there is time for."""
    torch.manual_seed(run.seed)
    model = models.build(run, dataset).to(device)
    if run.activation_checkpointing:
        checkpoint_blocks(model)
    forward = torch.compile(model) if run.compile else model
    optimizer = optimizer_for(model, run)
    inputs, targets = FastLoader(dataset.train, run=run, rank=0).micro_batch(0, 0).to(device)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    ready = np.zeros(len(parameters))
    for place, parameter in enumerate(parameters):
        parameter.register_post_accumulate_grad_hook(_stamp(ready, place))
    seen: list[list[float]] = []
    end = time.monotonic() + BUDGET_S
    while len(seen) <= WARMUP or (len(seen) < WARMUP + ROUNDS and time.monotonic() < end):
        marks = [time.perf_counter()]
        with autocast(run, device):
            loss = forward(inputs[:samples], targets[:samples])
        marks.append(time.perf_counter())
        loss.backward()
        marks.append(time.perf_counter())
        nn.utils.clip_grad_norm_(parameters, run.grad_clip)
        optimizer.step()
        marks.append(time.perf_counter())
        optimizer.zero_grad(set_to_none=True)
        seen.append([*np.diff(marks), *(ready - marks[1])])
    forward_s, backward_s, optimizer_s, *moments = np.median(seen[WARMUP:], axis=0).tolist()
    stages = _stages(np.array(moments))
    rest = max(backward_s - sum(seconds for seconds, _ in stages), 0.0)
    return Pauses(forward_s, stages, rest, optimizer_s)


def _stamp(ready: FloatArray, place: int) -> Callable[[torch.Tensor], None]:
    def stamp(_: torch.Tensor) -> None:
        ready[place] = time.perf_counter()

    return stamp


def _stages(moments: FloatArray) -> tuple[tuple[float, tuple[int, ...]], ...]:
    """Parameters by the moment of their gradient, those together that lie within GRAIN."""
    order = np.argsort(moments, kind="stable")
    begins = [0]
    for position in range(1, len(order)):
        if moments[order[position]] - moments[order[begins[-1]]] > GRAIN:
            begins.append(position)
    groups = np.split(order, begins[1:])
    ends = [float(moments[group[-1]]) for group in groups]
    return tuple(
        (max(end - before, 0.0), tuple(map(int, group)))
        for end, before, group in zip(ends, [0.0, *ends], groups, strict=False)
    )


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
    def forward(
        ctx: Any, x: torch.Tensor, sleep: Sleep, seconds: float, *parameters: torch.Tensor
    ) -> torch.Tensor:
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
