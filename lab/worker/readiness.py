"""When each gradient of one rank is ready: what a prediction replays against the link."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import nn

from lab.jobs.place import Place
from lab.records import Gradient
from lab.study import Run
from lab.worker.data.dataset import Dataset
from lab.worker.data.loading import Batch, FastLoader
from lab.worker.train import Training, autocast

ROUNDS = 7


def readiness(training: Training, run: Run, place: Place, *, device: torch.device, dataset: Dataset) -> list[Gradient] | None:
    """The gradients of a backward pass in the order in which they are ready, each by its share of the pass that is over then.

    None on several ranks, where the run is compiled, as the bare model is not, and for a pipeline, whose schedule does
    the backward pass itself. Medians over rounds after training: no step is taken, gradients are dropped.
    """
    if run.world_size > 1 or run.compile or run.strategy == "pipeline_parallel":
        return None
    model, clock = training.model, training.clock
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    batch = FastLoader(dataset.train, run=run, rank=place.rank).micro_batch(0, 0).to(device)
    marks: list[object] = [None] * len(parameters)

    def stamp(place: int, _: torch.Tensor) -> None:
        marks[place] = clock.now()

    hooks = [parameter.register_post_accumulate_grad_hook(partial(stamp, nth)) for nth, parameter in enumerate(parameters)]
    model.train()
    try:
        shares = [_round(model, batch, run, device, now=clock.now, marks=marks, seconds=clock.seconds) for _ in range(ROUNDS + 1)]
    finally:
        for hook in hooks:
            hook.remove()
        for parameter in parameters:
            parameter.grad = None
    ready = np.median(shares[1:], axis=0)
    order = np.argsort(ready, kind="stable")
    return [Gradient(ready=float(ready[nth]), bytes=parameters[nth].nbytes) for nth in order]


def _round(
    model: nn.Module,
    batch: Batch,
    run: Run,
    device: torch.device,
    *,
    now: Callable[[], object],
    marks: list[object],
    seconds: Callable[[list[object]], np.ndarray],
) -> np.ndarray:
    """Of each parameter the share of one backward pass after which its gradient was there; 1 where none came."""
    for parameter in model.parameters():
        parameter.grad = None
    with autocast(run, device):
        loss = model(*batch)
    marks[:] = [None] * len(marks)
    begin = now()
    loss.backward()
    end = now()
    came = [nth for nth, mark in enumerate(marks) if mark is not None]
    found = np.ones(len(marks))
    times = seconds([begin, *(marks[nth] for nth in came), end])
    found[came] = np.clip((times[1:-1] - times[0]) / (times[-1] - times[0]), 0.0, 1.0)
    return found
