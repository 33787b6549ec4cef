"""The cost of synchronising gradients by another method: forward and backward with and without it, in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import distributed as dist

from lab.jobs.place import Place, Progress
from lab.records import Communication, Stat
from lab.study import Run
from lab.worker import strategies
from lab.worker.communication import Buckets, Recorder
from lab.worker.data.dataset import Dataset
from lab.worker.data.loading import FastLoader
from lab.worker.exposure import Exposure
from lab.worker.timing import FloatArray, stat
from lab.worker.train import Training, autocast

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
    training: Training, run: Run, place: Place, *, device: torch.device, dataset: Dataset, progress: Progress
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
    spans = _rounds(ways, rounds, seed=run.seed, training=training, device=device, progress=progress)
    recorder = training.recorder
    return Probe(spans[1:], recorder.take().after(1) if isinstance(recorder, Recorder) else None)


def _rounds(
    ways: Sequence[Callable[[], None]],
    rounds: int,
    *,
    seed: int,
    training: Training,
    device: torch.device,
    progress: Progress,
) -> FloatArray:
    orders = np.random.default_rng(seed).permuted(np.tile(np.arange(len(ways)), (rounds, 1)), axis=1)
    marks = []
    for number, order in enumerate(orders):
        for way in order:
            _drop_gradients(training)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
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
    exposure = Exposure.of(buckets)
    exposed = exposure.exposed[exposure.ready.argmax(axis=0), np.arange(len(difference))]
    return {"sync_cost": stat(difference), "sync_exposed": stat(exposed), "stolen_compute": stat(difference - exposed)}


def methods_agree(communication: Communication) -> bool | None:
    """The check of the same name: what was exposed is no more than what synchronising cost, within their intervals.

    The cost may be larger: it holds the compute that communication slowed. None where there are no intervals.
    """
    cost, exposed = communication.sync_cost, communication.sync_exposed
    if cost is None or exposed is None or cost.interval is None or exposed.interval is None:
        return None
    return exposed.interval[0] <= cost.interval[1]
