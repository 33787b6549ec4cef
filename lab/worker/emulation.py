"""Emulated compute: more ranks than there are cores, each sleeping for measured times.

DDP, its buckets and the network stay real. The duration of a step is measured on rank 0 or that of
a described GPU.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from lab.config.emulation import MEASURED
from lab.errors import InputError
from lab.perfmodel.hardware import emulated_gpu
from lab.worker import models
from lab.worker.distributed import RankJob, all_gather_object
from lab.worker.measure.clock import FloatArray
from lab.worker.optim import autocast, checkpoint_blocks, compiled, optimizer_for

WARMUP, ROUNDS, BUDGET_S = 2, 7, 60.0
# Samples enough to see the order and relative timing of the gradients.
FEW = 2
# Gradients this close in time, in s, are grouped: a sleep is not much finer.
GRAIN = 2e-4

Stage = tuple[float, tuple[int, ...]]


@dataclass(frozen=True)
class Pauses:
    """A rank's step on one micro-batch, in s.

    `stages` divide the backward pass: each has its time and the indices of the trainable parameters
    whose gradients are complete at its end; `rest` is the time after the last.
    """

    forward: float
    stages: tuple[Stage, ...]
    rest: float
    optimizer: float

    @property
    def backward(self) -> float:
        """Duration of the whole backward pass."""
        return sum(seconds for seconds, _ in self.stages) + self.rest

    def lasting(self, seconds: float) -> Pauses:
        """The same order of gradients in a step of this length (Kaplan et al., 2020)."""
        factor = 2 / 3 * seconds / self.backward  # two of the three products are backward
        stages = tuple((factor * duration, indices) for duration, indices in self.stages)
        return Pauses(seconds / 3, stages, factor * self.rest, 0.0)


def pauses_for(job: RankJob) -> Pauses | None:
    """How long each rank sleeps; None if compute is real.

    The step time on a described GPU is the model's FLOPs over its peak and the profile's `mfu`,
    with gradients in the measured order. Raises InputError for a precision without a known peak.
    """
    run, emulated = job.run, job.context.emulated
    if emulated is None or emulated.compute is None:
        return None
    assert run.facts.emulable, "the launcher refuses others"
    described = emulated.compute.emulated != MEASURED
    _, micro_batch, precision = run.stated
    samples = min(FEW, micro_batch) if described else micro_batch
    # Rank 0 measures while the others wait in the collective, as their work would slow it down.
    mine = _measured(job, samples) if job.context.rank == 0 else None
    pauses = all_gather_object(mine)[0]
    assert pauses is not None
    if not described:
        return pauses
    peak = emulated_gpu(emulated.compute.emulated).peak(precision)
    if peak is None:
        what = f"the peak of {emulated.compute.emulated} in {precision} is unknown"
        advice = "choose another precision or another GPU"
        raise InputError.of("run", "precision", what, advice)
    flops = models.flops_per_sample(run, job.dataset)
    if flops is None:
        what = f"the FLOPs of {run.architecture.label} are unknown"
        raise InputError.of(
            "run", "model", what, "use a profile whose compute is `emulated: measured`"
        )
    return pauses.lasting(flops * micro_batch / (peak[0] * emulated.compute.mfu))


def _measured(job: RankJob, samples: int) -> Pauses:
    """Medians over up to ROUNDS steps of the real model on this rank, as BUDGET_S allows."""
    run, device = job.run, job.device
    torch.manual_seed(run.seed)
    model = models.build(run, job.dataset).to(device)
    if run.activation_checkpointing:
        checkpoint_blocks(model)
    forward = compiled(model) if run.compile else model
    optimizer = optimizer_for(model, run)
    inputs, targets = job.first_batch
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    ready = np.zeros(len(parameters))

    def stamp(index: int, _: torch.Tensor) -> None:
        ready[index] = time.perf_counter()

    for index, parameter in enumerate(parameters):
        parameter.register_post_accumulate_grad_hook(partial(stamp, index))
    rounds: list[list[float]] = []
    end = time.monotonic() + BUDGET_S
    while len(rounds) <= WARMUP or (len(rounds) < WARMUP + ROUNDS and time.monotonic() < end):
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
        rounds.append([*np.diff(marks), *(ready - marks[1])])
    forward_s, backward_s, optimizer_s, *moments = np.median(rounds[WARMUP:], axis=0).tolist()
    stages = _stages(np.array(moments))
    # The time that the backward pass takes after the last gradient.
    rest = max(backward_s - sum(seconds for seconds, _ in stages), 0.0)
    return Pauses(forward_s, stages, rest, optimizer_s)


def _stages(moments: FloatArray) -> tuple[Stage, ...]:
    """Parameters by the time of their gradient, grouped if within GRAIN of each other."""
    order = np.argsort(moments, kind="stable")
    begins = [0]
    for position in range(1, len(order)):
        if moments[order[position]] - moments[order[begins[-1]]] > GRAIN:
            begins.append(position)
    groups = np.split(order, begins[1:])
    ends = np.array([moments[group[-1]] for group in groups])
    seconds = np.maximum(np.diff(ends, prepend=0.0), 0.0).tolist()
    return tuple(
        (duration, tuple(group.tolist())) for duration, group in zip(seconds, groups, strict=True)
    )


class Sleep:
    """Sleeps exactly as long as asked on average: later sleeps make up for late wake-ups."""

    def __init__(self) -> None:
        self._late = 0.0

    def __call__(self, seconds: float) -> None:
        """Sleep, shortened by the time that earlier sleeps overran."""
        begin = time.perf_counter()
        if seconds > self._late:
            time.sleep(seconds - self._late)
        self._late = max(self._late + time.perf_counter() - begin - seconds, 0.0)


class Sleeper(nn.Module):
    """A model whose passes sleep and whose zero gradients arrive when the real ones would."""

    def __init__(self, model: nn.Module, pauses: Pauses) -> None:
        super().__init__()
        self.model, self.pauses, self.sleep = model, pauses, Sleep()

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return zero after the time of a forward pass, or at once in evaluation mode."""
        loss: torch.Tensor = torch.zeros((), requires_grad=self.training)
        if not self.training:
            return loss
        self.sleep(self.pauses.forward)
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        # The backward pass traverses the graph in reverse, so its last stage comes first here.
        for seconds, indices in [(self.pauses.rest, ()), *reversed(self.pauses.stages)]:
            loss = _Stage.apply(loss, self.sleep, seconds, *(parameters[i] for i in indices))  # type: ignore[no-untyped-call]
        return loss


class _Stage(torch.autograd.Function):
    """The identity, whose backward pass sleeps and then hands out zero gradients."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, sleep: Sleep, seconds: float, *parameters: torch.Tensor
    ) -> torch.Tensor:
        ctx.sleep, ctx.seconds, ctx.parameters = sleep, seconds, parameters
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor | None, ...]:
        ctx.sleep(ctx.seconds)
        # One zero expanded to the parameter's shape, as filling a whole tensor would take time.
        zeros = (parameter.new_zeros(()).expand_as(parameter) for parameter in ctx.parameters)
        return gradients[0], None, None, *zeros


class SleepingOptimizer(torch.optim.Optimizer):
    """Takes as long as the model's optimizer and changes nothing."""

    def __init__(self, model: Sleeper) -> None:
        super().__init__(model.parameters(), {"lr": 0.0})
        self._sleep, self._seconds = model.sleep, model.pauses.optimizer

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # nothing could be computed again
        """Sleep."""
        self._sleep(self._seconds)
