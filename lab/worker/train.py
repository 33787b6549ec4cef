"""The one training loop; how ranks work together is a strategy, a field of the Run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import distributed as dist
from torch import nn

from lab.config.run import Run
from lab.config.strategies import STRATEGIES
from lab.errors import LabError
from lab.machine import age
from lab.worker import environment, models, strategies
from lab.worker.context import Progress, RankContext
from lab.worker.data.dataset import Dataset
from lab.worker.data.loader import FastLoader, loader_for
from lab.worker.distributed import mean_over_ranks
from lab.worker.emulation import Pauses, Sleeper
from lab.worker.environment import CpuUse, cpu_use
from lab.worker.measure.clock import Clock, FloatArray, clock_for
from lab.worker.measure.collective_trace import CallRecorder, Calls
from lab.worker.measure.ddp_hook import BucketRecorder, Buckets
from lab.worker.optim import autocast, checkpoint_blocks, learning_rate
from lab.worker.resume import Checkpoints


@dataclass(frozen=True)
class Training:
    """What one rank saw while it trained; arrays but `loss` are by step from `first_step` on, times in seconds."""

    model: nn.Module
    parallel: nn.Module  # the model as its strategy wraps it
    forward: Callable[..., torch.Tensor]  # the same, compiled where the run asks for it
    clock: Clock
    recorder: BucketRecorder | CallRecorder | None
    laps: dict[str, FloatArray]
    sent: Buckets | Calls | None  # None where nothing is sent
    cpu_time: FloatArray
    first_step: int  # 0, or from where an interrupted training went on
    rank_loss: FloatArray  # mean over this rank's samples
    loss: FloatArray  # of every step, mean over the global batch
    learning_rate: FloatArray
    grad_norm: FloatArray
    setup_time: float  # s, from the start of this process to its first step
    use: CpuUse  # over the measured steps
    peak_memory: list[int]  # of each device
    held: environment.StateBytes
    parameters: int  # of the whole model


def train(
    run: Run,
    place: RankContext,
    *,
    device: torch.device,
    dataset: Dataset,
    progress: Progress,
    folder: Path | None = None,
    pauses: Pauses | None = None,
) -> Training:
    """Train this rank's share of the run; raises LabError that names the first step whose loss is not finite.

    Checkpoints lie in the repeat's `folder`; training goes on from the newest of them, and what is measured by step is
    measured from there on, with a warm-up of its own. With `pauses` the model sleeps instead of computing, and leaves none.
    """
    torch.manual_seed(run.seed)
    model = models.build(run, dataset).to(device)
    parameters = sum(
        parameter.numel() for parameter in model.parameters() if parameter.requires_grad
    )
    # The same weights everywhere, but the same dropout only where ranks see the same samples.
    torch.manual_seed(run.seed + 1 + place.rank % run.data_parallel_size)
    if run.activation_checkpointing:
        checkpoint_blocks(model)
    if pauses is not None:
        model = Sleeper(model, pauses)
    clock = clock_for(device)
    strategy = strategies.get(run.strategy)
    recorder = strategy.recorder(clock, world_size=run.world_size)
    parallel = strategy.wrap(model, run=run, device=device, clock=clock, recorder=recorder)
    model = strategy.unwrap(parallel)  # of a pipeline, this rank's part
    forward = torch.compile(parallel) if run.compile and pauses is None else parallel
    optimizer = (
        model.optimizer() if isinstance(model, Sleeper) else strategy.optimizer(parallel, run)
    )
    scaler = torch.amp.GradScaler(device.type, enabled=run.precision == "fp16")
    loader = loader_for(dataset, run=run, rank=place.rank)
    # Room made at once: small tensors kept from each step would split the heap and let the resident memory grow.
    losses = torch.zeros(run.steps, run.grad_accum, device=device)
    norms = torch.zeros(run.steps, device=device)
    # On a GPU the host would wait for it; the first stage of a pipeline never sees it, and a sleeper has none.
    pipelined = STRATEGIES[run.strategy].splits == "layers"
    loss_is_near = device.type == "cpu" and not pipelined and pauses is None
    rates, cpu_times = [], []
    checkpoints = Checkpoints(
        folder if pauses is None else None,
        run=run,
        place=place,
        device=device,
        dataset=dataset,
        model=model,
        optimizer=optimizer,
        scaler=scaler,
        losses=losses,
        progress=progress,
    )
    first = checkpoints.resume()
    measured_from = first + run.warmup_steps
    environment.reset_peak(device)
    setup_time, before = age(), cpu_use(place.cores)

    for step in range(first, run.steps):
        if step == measured_from:
            before = cpu_use(place.cores)
        cpu_start = time.process_time()
        clock.start()
        rate = learning_rate(run, step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        clock.lap("other")
        for micro in range(run.grad_accum):
            batch = loader.micro_batch(step, micro)
            if device.type == "cuda":
                batch = batch.pin_memory()
            clock.lap("data")
            batch = batch.to(device)
            clock.lap("h2d")
            # Gradients meet once per step, in the backward pass of its last micro-batch.
            with nullcontext() if micro == run.grad_accum - 1 else strategy.no_sync(parallel):
                with autocast(run, device):
                    loss = forward(*batch)
                clock.lap("forward")
                scaler.scale(loss / run.grad_accum).backward()
                clock.lap("backward")
            losses[step, micro] = (
                loss.detach()
            )  # stays on the device: reading it here would make the host wait
        strategy.synchronize(parallel)
        clock.lap("backward")
        scaler.unscale_(optimizer)
        # The time that clipping takes is part of the optimizer's pause.
        norms[step] = strategy.clip(parallel, run.grad_clip) if pauses is None else math.nan
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        clock.lap("optimizer")
        rates.append(rate)
        cpu_times.append(time.process_time() - cpu_start)
        seen = float(losses[step].mean()) if loss_is_near else None
        progress("measuring" if step >= measured_from else "warm-up", step + 1, run.steps, seen)
        checkpoints.after(step + 1)

    loader.close()
    laps = clock.read()
    sent = recorder.take() if recorder else None
    use = cpu_use(place.cores).since(before)
    peak_memory = environment.peak_memory(device, run.devices)
    rank_loss = _values(strategy.all_losses(losses)).mean(axis=1)
    mean_loss = mean_over_ranks(rank_loss, device=device)
    _require_finite(mean_loss, run)
    checkpoints.finish()
    return Training(
        model=model,
        parallel=parallel,
        forward=forward,
        clock=clock,
        recorder=recorder,
        laps=laps,
        sent=sent,
        cpu_time=np.array(cpu_times),
        first_step=first,
        rank_loss=rank_loss[first:],
        loss=mean_loss,
        learning_rate=np.array(rates),
        grad_norm=_values(norms)[first:],
        setup_time=setup_time,
        use=use,
        peak_memory=peak_memory,
        held=environment.state_bytes(model, optimizer),
        parameters=parameters,
    )


def evaluate(
    model: nn.Module,
    run: Run,
    place: RankContext,
    *,
    device: torch.device,
    dataset: Dataset,
    progress: Progress,
) -> tuple[float, float | None]:
    """Mean loss on `eval_batches` global batches of held-out samples, split over the ranks; the same on each rank.

    Of a classifier also the share of samples whose class it finds, else None.
    """
    batches = list(FastLoader(dataset.held_out, run=run, rank=place.rank).evaluation())
    scores = []
    model.eval()
    _share_buffers(model)
    with torch.no_grad(), autocast(run, device):
        for number, batch in enumerate(batches, start=1):
            scores.append(torch.stack(models.score(model, *batch.to(device))))
            progress("evaluating", number, len(batches))
    loss, accuracy = mean_over_ranks(_values(torch.stack(scores)), device=device).mean(axis=0)
    return float(loss), None if np.isnan(accuracy) else float(accuracy)


def _share_buffers(model: nn.Module) -> None:
    """Give all ranks the running statistics of rank 0: each has its own since the last step, and one model is evaluated."""
    if dist.is_initialized():
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


def _values(tensor: torch.Tensor) -> FloatArray:
    values: FloatArray = tensor.double().cpu().numpy()
    return values


def _require_finite(loss: FloatArray, run: Run) -> None:
    wrong = np.flatnonzero(~np.isfinite(loss))
    if len(wrong):
        step = int(wrong[0])
        raise LabError(
            f"the loss is {loss[step]} at step {step} of {run.steps} (precision {run.precision}, learning_rate {run.learning_rate}): "
            "try a lower learning_rate, more lr_warmup_steps, or precision fp32"
        )
