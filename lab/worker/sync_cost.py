"""A second measure of communication, and when gradients are ready, from passes after training.

The cost of synchronising is the time of a forward and backward pass with the exchange minus that of
one without it, run alternately. It contains the exposed wait and the compute slowed down by
communication, so its difference from the exposed wait is the stolen compute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import distributed as dist

from lab.records.schema import Communication, Gradient, Stat
from lab.records.statistics import stat
from lab.worker import strategies
from lab.worker.distributed import RankJob
from lab.worker.measure.clock import FloatArray, synchronize
from lab.worker.measure.ddp_hook import BucketRecorder, Buckets
from lab.worker.measure.overlap import Exposure
from lab.worker.optim import autocast, blocks_of
from lab.worker.train import Training

# With fewer rounds a median has no interval; more would add little information on one job.
ROUNDS = (5, 12)
SHARE_OF_RUN = 0.25
READY_ROUNDS = 3


@dataclass(frozen=True)
class Probe:
    """Rounds of forward and backward passes with and without the exchange on one rank.

    `spans` is (rounds, with and without, begin and end) in s.
    """

    spans: FloatArray
    buckets: Buckets | None  # from the passes with the exchange, on several ranks

    def shifted(self, shift: Callable[[FloatArray], FloatArray]) -> Probe:
        """The same probe on another clock."""
        return Probe(shift(self.spans), self.buckets.shifted(shift) if self.buckets else None)


def probe(training: Training, job: RankJob) -> Probe | None:
    """Time the wrapped model with and without its exchange; None if that is not possible.

    On several ranks the second way is the wrapped model without synchronisation, on one it is the
    bare model. No step is taken, gradients are dropped, and the model must not be trained
    afterwards.
    """
    run, strategy = job.run, strategies.of(job.run)
    if not strategy.comparable or (run.world_size == 1 and run.compile):
        return None  # the bare model would have to be compiled first
    if run.world_size > 1 and training.recorder is None:
        return None  # as of gloo on CUDA tensors, whose exchange has no meaningful times
    batch = job.first_batch

    def forward_backward(model: Callable[..., torch.Tensor]) -> None:
        with autocast(run, job.device):
            loss = model(*batch)
        loss.backward()

    def without_exchange() -> None:
        if run.world_size == 1:
            # Hooks that DDP left on the model's parameters return at once.
            forward_backward(training.model)
        else:
            with strategy.no_sync(training.parallel):
                forward_backward(training.forward)

    training.model.train()
    ways = (lambda: forward_backward(training.forward), without_exchange)
    # A round takes two micro-batches, a step grad_accum of them; one extra round warms up.
    rounds = 1 + int(np.clip(SHARE_OF_RUN * run.steps * run.grad_accum / 2, *ROUNDS))
    # Random, so that no periodic load favours one way; seeded, so that all ranks agree.
    orders = np.random.default_rng(run.seed).permuted(np.tile([0, 1], (rounds, 1)), axis=1)
    marks = []
    for number, order in enumerate(orders):
        for way in order:
            training.model.zero_grad()
            # Each pass begins with an idle device and with all ranks ready, or waiting for a late
            # rank would count as a cost of the exchange.
            synchronize(job.device)
            dist.barrier()
            begin = training.clock.now()
            ways[way]()
            marks += [begin, training.clock.now()]
        job.progress("comparing", number + 1, rounds)
    training.model.zero_grad()
    in_time = training.clock.seconds(marks).reshape(rounds, len(ways), 2)
    spans = np.take_along_axis(in_time, np.argsort(orders, axis=1)[:, :, None], axis=1)
    recorder = training.recorder
    buckets = recorder.take().after(1) if isinstance(recorder, BucketRecorder) else None
    return Probe(spans[1:], buckets)


def costs(probes: Sequence[Probe]) -> dict[str, Stat]:
    """Fields of Communication from the rounds of all ranks on one clock."""
    spans = np.stack([probe.spans for probe in probes])
    # A pass lasts from the last rank's start to the last rank's end.
    lasted = spans[..., 1].max(axis=0) - spans[..., 0].max(axis=0)
    # Paired by round, so that what disturbs both ways cancels, as it would not in separate blocks.
    difference = lasted[:, 0] - lasted[:, 1]
    buckets = [probe.buckets for probe in probes if probe.buckets is not None]
    if not buckets:
        return {"ddp_overhead_time": stat(difference)}
    rounds = len(difference)
    ready = np.array([[part.ready.max() for part in rank.by_step(rounds)] for rank in buckets])
    # From the rank whose gradients came last: waiting for it is not a cost of the exchange.
    exposed = Exposure.from_buckets(buckets).exposed[ready.argmax(axis=0), np.arange(rounds)]
    return {
        "sync_cost": stat(difference),
        "sync_exposed": stat(exposed),
        "stolen_compute": stat(difference - exposed),
    }


def methods_agree(communication: Communication) -> bool | None:
    """Whether exposed communication is within the cost of synchronising; None without intervals."""
    cost, exposed = communication.sync_cost, communication.sync_exposed
    if cost is None or exposed is None or cost.interval is None or exposed.interval is None:
        return None
    # One-sided, as the cost also contains the compute slowed down by communication.
    return exposed.interval[0] <= cost.interval[1]


def readiness(training: Training, job: RankJob) -> list[Gradient] | None:
    """Gradients in order of readiness, each with the fraction of the backward pass done by then.

    Medians over rounds after training: no step is taken, gradients are dropped. None on several
    ranks, for a compiled run, whose bare model is not compiled, and for a pipeline, whose schedule
    runs the backward pass itself.
    """
    run, model, clock = job.run, training.model, training.clock
    if run.world_size > 1 or run.compile or run.facts.splits == "layers":
        return None
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    batch = job.first_batch
    marks: list[Any] = [None] * len(parameters)

    def stamp(index: int, _: torch.Tensor) -> None:
        marks[index] = clock.now()

    model.train()
    rounds = []
    with ExitStack() as hooks:
        for index, parameter in enumerate(parameters):
            hook = parameter.register_post_accumulate_grad_hook(partial(stamp, index))
            hooks.enter_context(hook)
        for _ in range(1 + READY_ROUNDS):
            model.zero_grad()
            with autocast(run, job.device):
                loss = model(*batch)
            marks[:] = [None] * len(marks)
            begin = clock.now()
            loss.backward()
            end = clock.now()
            # Gradients that never arrive count as the end.
            arrived = [end if mark is None else mark for mark in marks]
            times = clock.seconds([begin, *arrived, end])
            shares = (times[1:-1] - times[0]) / (times[-1] - times[0])
            rounds.append(np.clip(shares, 0.0, 1.0))
    model.zero_grad()
    ready = np.median(rounds[1:], axis=0)  # the first round warms up
    order = np.argsort(ready, kind="stable")
    blocks = {
        parameter: number
        for number, block in enumerate(blocks_of(model))
        for parameter in block.parameters()
    }
    return [
        Gradient(
            ready=float(ready[index]),
            bytes=parameters[index].nbytes,
            block=blocks.get(parameters[index]),
        )
        for index in order
    ]
