"""The cost of synchronising gradients by another method: forward and backward with and without it, in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import distributed as dist
from torch import nn

from lab.config.run import Run
from lab.config.strategies import STRATEGIES
from lab.records.schema import Communication, Gradient, Stat
from lab.worker import strategies
from lab.worker.context import Progress, RankContext
from lab.worker.data.dataset import Dataset
from lab.worker.data.loader import Batch, FastLoader
from lab.worker.measure.clock import FloatArray, stat, synchronize
from lab.worker.measure.ddp_hook import BucketRecorder, Buckets
from lab.worker.measure.overlap import Exposure
from lab.worker.optim import autocast
from lab.worker.train import Training

# With fewer rounds a median has no interval; more would tell little more of one job.
ROUNDS = (5, 12)
SHARE_OF_RUN = 0.25


@dataclass(frozen=True)
class Probe:
    """Rounds of two ways to do forward and backward, on one rank: `spans` is (rounds, 2 ways, begin and end) in s."""

    spans: FloatArray
    buckets: Buckets | None  # of the first way, where ranks exchange anything

    def moved(self, shift: Callable[[FloatArray], FloatArray]) -> Probe:
        """The same on another clock."""
        return Probe(shift(self.spans), self.buckets.shifted(shift) if self.buckets else None)


def probe(
    training: Training,
    run: Run,
    place: RankContext,
    *,
    device: torch.device,
    dataset: Dataset,
    progress: Progress,
) -> Probe | None:
    """Time rounds of the wrapped model against the same without its exchange; None where there is nothing to compare.

    On several ranks the second way is the wrapped model that does not synchronise, on one it is the bare model: hooks
    that DDP left at its parameters return at once. The order in a round is random and equal on all ranks, which meet
    before each part. No step is taken, gradients are dropped, and the model must not be used to train afterwards.
    """
    strategy = strategies.get(run.strategy)
    if not strategy.comparable or (run.world_size == 1 and run.compile):
        return None  # the bare model would have to be compiled first
    batch = FastLoader(dataset.train, run=run, rank=place.rank).micro_batch(0, 0).to(device)

    def pass_through(model: Callable[..., torch.Tensor]) -> None:
        with autocast(run, device):
            loss = model(*batch)
        loss.backward()

    def without() -> None:
        if run.world_size == 1:
            return pass_through(training.model)
        with strategy.no_sync(training.parallel):
            return pass_through(training.forward)

    training.model.train()
    ways = (lambda: pass_through(training.forward), without)
    # A round costs two micro-batches, a step grad_accum of them; one more round warms up after the evaluation.
    rounds = int(np.clip(SHARE_OF_RUN * run.steps * run.grad_accum / 2, *ROUNDS)) + 1
    spans = _rounds(
        ways, rounds, seed=run.seed, training=training, device=device, progress=progress
    )
    recorder = training.recorder
    return Probe(
        spans[1:], recorder.take().after(1) if isinstance(recorder, BucketRecorder) else None
    )


def _rounds(
    ways: Sequence[Callable[[], None]],
    rounds: int,
    *,
    seed: int,
    training: Training,
    device: torch.device,
    progress: Progress,
) -> FloatArray:
    orders = np.random.default_rng(seed).permuted(
        np.tile(np.arange(len(ways)), (rounds, 1)), axis=1
    )
    marks = []
    for number, order in enumerate(orders):
        for way in order:
            _drop_gradients(training)
            synchronize(device)
            dist.barrier()
            begin = training.clock.now()
            ways[way]()
            marks += [begin, training.clock.now()]
        progress("comparing", number + 1, rounds)
    _drop_gradients(training)
    in_time = training.clock.seconds(marks).reshape(rounds, len(ways), 2)
    return np.take_along_axis(in_time, np.argsort(orders, axis=1)[:, :, None], axis=1)


def _drop_gradients(training: Training) -> None:
    for parameter in training.model.parameters():
        parameter.grad = None


def costs(probes: Sequence[Probe]) -> dict[str, Stat]:
    """Fields of Communication from the rounds of all ranks on one clock.

    A part of a round lasts from when the last rank began to when the last one ended. Its exposed communication is
    that of the rank whose gradients came last: the waits of the others for it are no cost of the exchange.
    """
    spans = np.stack([probe.spans for probe in probes])
    lasted = spans[..., 1].max(axis=0) - spans[..., 0].max(axis=0)
    difference = lasted[:, 0] - lasted[:, 1]
    buckets = [probe.buckets for probe in probes if probe.buckets is not None]
    if not buckets:
        return {"ddp_overhead_time": stat(difference)}
    exposure = Exposure.from_buckets(buckets)
    exposed = exposure.exposed[exposure.ready.argmax(axis=0), np.arange(len(difference))]
    return {
        "sync_cost": stat(difference),
        "sync_exposed": stat(exposed),
        "stolen_compute": stat(difference - exposed),
    }


def methods_agree(communication: Communication) -> bool | None:
    """The check of the same name: what was exposed is no more than what synchronising cost, within their intervals.

    The cost may be larger: it holds the compute that communication slowed. None where there are no intervals.
    """
    cost, exposed = communication.sync_cost, communication.sync_exposed
    if cost is None or exposed is None or cost.interval is None or exposed.interval is None:
        return None
    return exposed.interval[0] <= cost.interval[1]


READY_ROUNDS = 7


def readiness(
    training: Training, run: Run, place: RankContext, *, device: torch.device, dataset: Dataset
) -> list[Gradient] | None:
    """The gradients of a backward pass in the order in which they are ready, each by its share of the pass that is over then.

    None on several ranks, where the run is compiled, as the bare model is not, and for a pipeline, whose schedule does
    the backward pass itself. Medians over rounds after training: no step is taken, gradients are dropped.
    """
    if run.world_size > 1 or run.compile or STRATEGIES[run.strategy].splits == "layers":
        return None
    model, clock = training.model, training.clock
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    batch = FastLoader(dataset.train, run=run, rank=place.rank).micro_batch(0, 0).to(device)
    marks: list[object] = [None] * len(parameters)

    def stamp(place: int, _: torch.Tensor) -> None:
        marks[place] = clock.now()

    hooks = [
        parameter.register_post_accumulate_grad_hook(partial(stamp, nth))
        for nth, parameter in enumerate(parameters)
    ]
    model.train()
    try:
        shares = [
            _round(model, batch, run, device, now=clock.now, marks=marks, seconds=clock.seconds)
            for _ in range(READY_ROUNDS + 1)
        ]
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
