"""Emulated compute: for how long ranks sleep, measured on one of them or that of a described GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from lab.analysis.costs import flops_per_sample
from lab.emulation.profile import CUDA_NAMES, MEASURED, SLEEPING_STRATEGIES
from lab.errors import InputError, Problem
from lab.jobs.place import Place
from lab.study import Run
from lab.worker import models
from lab.worker.blocks import checkpoint_blocks
from lab.worker.data.dataset import Dataset
from lab.worker.data.loading import FastLoader
from lab.worker.group import share
from lab.worker.optimizer import optimizer_for
from lab.worker.peak import vendor_peak
from lab.worker.sleeping import Pauses
from lab.worker.timing import FloatArray
from lab.worker.train import autocast

WARMUP, ROUNDS, BUDGET_S = 2, 7, 60.0
# Samples that are enough to see in which order and in what proportion of time gradients come.
FEW = 2
# Gradients that were complete within this time of each other, in s, come together: a sleep is not much finer.
GRAIN = 2e-4


def pauses_for(run: Run, place: Place, *, device: torch.device, dataset: Dataset) -> Pauses | None:
    """What each rank sleeps for: rank 0 measures it while the others wait; None where compute is real.

    A described GPU takes the model's FLOPs over its peak and the profile's `mfu`, gradients in the measured order.
    Raises InputError for a precision of which the GPU's peak is not known.
    """
    emulated = place.emulated
    if emulated is None or emulated.compute is None:
        return None
    assert run.strategy in SLEEPING_STRATEGIES, "launch refuses others"
    described = emulated.compute.emulated != MEASURED
    samples = min(FEW, run.micro_batch_size) if described else run.micro_batch_size
    pauses = share(_measured(run, device=device, dataset=dataset, samples=samples) if place.rank == 0 else None)[0]
    assert pauses is not None
    if not described:
        return pauses
    known = vendor_peak(CUDA_NAMES[emulated.compute.emulated], precision=run.precision)
    if known is None:
        what = f"no figure of {emulated.compute.emulated} for precision {run.precision}"
        raise InputError("run", [Problem("precision", what, "choose another precision or another GPU")])
    return pauses.lasting(flops_per_sample(run) * run.micro_batch_size / (known[0] * emulated.compute.mfu))


def told(place: Place, pauses: Pauses | None) -> Place:
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
        (max(end - before, 0.0), tuple(map(int, group))) for end, before, group in zip(ends, [0.0, *ends], groups, strict=False)
    )
