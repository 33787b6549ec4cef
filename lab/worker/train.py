"""The training loop, shared by all strategies; how ranks cooperate is up to the strategy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import distributed as dist
from torch import nn

from lab.config.run import Run
from lab.errors import LabError
from lab.machine import age
from lab.worker import environment, models, strategies
from lab.worker.checkpoint import Checkpoints
from lab.worker.data.dataset import LOADERS, FastLoader
from lab.worker.distributed import RankJob, mean_over_ranks
from lab.worker.emulation import Pauses, Sleeper, SleepingOptimizer
from lab.worker.environment import RankUse, StateBytes
from lab.worker.measure.clock import Clock, FloatArray, clock_for
from lab.worker.measure.collective_trace import CallRecorder, Calls
from lab.worker.measure.ddp_hook import BucketRecorder, Buckets
from lab.worker.optim import autocast, checkpoint_blocks, compiled, learning_rate, set_products
from lab.worker.strategies.base import Setup


@dataclass(frozen=True)
class Training:
    """What one rank measured while training; times in s."""

    model: nn.Module
    parallel: nn.Module  # the model as its strategy wraps it
    forward: Callable[..., torch.Tensor]  # the same, compiled if the run asks for it
    clock: Clock
    recorder: BucketRecorder | CallRecorder | None
    first_step: int  # 0, or the step from which an interrupted training resumed
    steps: dict[str, FloatArray]  # the clock's laps and this rank's other columns, from first_step
    sent: Buckets | Calls | None  # None if nothing is sent
    loss: FloatArray  # of every step, averaged over the global batch
    setup_time: float  # s, from the start of this process to its first step
    use: RankUse  # of cores and GPUs over the measured steps, of memory in all steps
    state: StateBytes
    parameters: int  # of the whole model

    def without_model(self) -> Training:
        """The same measurements, without the tensors of the model."""
        none = nn.Identity()
        return replace(self, model=none, parallel=none, forward=none, recorder=None)


def train(job: RankJob, *, folder: Path | None = None, pauses: Pauses | None = None) -> Training:
    """Train this rank's part of the run; raises LabError for a loss that is not finite.

    Checkpoints are kept in the repeat's `folder`. Training resumes from the newest one, and
    measurements by step start from there, after another warm-up. With `pauses` the model sleeps
    instead of computing, and leaves no checkpoint.
    """
    run, context, device, progress = job.run, job.context, job.device, job.progress
    set_products(run.stated.precision)
    torch.manual_seed(run.seed)
    model = models.build(run, job.dataset).to(device)
    # Before the strategy shards it.
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    # The same weights everywhere, but the same dropout only if ranks see the same samples.
    torch.manual_seed(run.seed + 1 + context.rank % run.data_parallel_size)
    if run.activation_checkpointing:
        checkpoint_blocks(model)
    if pauses is not None:
        model = Sleeper(model, pauses)
    clock = clock_for(device)
    strategy = strategies.of(run)
    # Gloo handles GPU tensors in host threads, which no stream event can observe.
    timed = device.type == "cpu" or environment.backend(context) != "gloo"
    recorder = strategy.recorder(clock, world_size=run.world_size) if timed else None
    parallel = strategy.wrap(model, Setup(run, device, clock, recorder))
    model = strategy.unwrap(parallel)  # in a pipeline, this rank's stage
    # After wrapping: torch splits DDP's graph at its buckets, which keeps the overlap.
    forward = compiled(parallel) if run.compile and pauses is None else parallel
    # After wrapping, as sharding replaces parameters.
    optimizer: torch.optim.Optimizer
    if isinstance(model, Sleeper):
        optimizer = SleepingOptimizer(model)
    else:
        optimizer = strategy.optimizer(parallel, run)
    # Without it fp16 loses small gradients; other precisions pass through.
    scaler = torch.amp.GradScaler(device.type, enabled=run.precision == "fp16")
    loader = LOADERS[run.loader](job.dataset.train, run=run, rank=context.rank)
    # Allocated at once: small tensors from each step would fragment the heap and memory would grow.
    losses = torch.zeros(run.steps, run.grad_accum, device=device)
    norms = torch.zeros(run.steps, device=device)
    # Reading the loss for the display must be free: on a GPU the host would wait for it, the first
    # stage of a pipeline never gets it, and emulated compute has none.
    pipelined = run.facts.splits == "layers"
    loss_is_near = device.type == "cpu" and not pipelined and pauses is None
    rates, cpu_times = [], []
    repeat = folder if pauses is None else None
    checkpoints = Checkpoints(job, repeat, model, optimizer, scaler, losses)
    first = checkpoints.resume()
    measured_from = first + run.warmup_steps
    # Last before the first step, as preparation is not part of the training's peak.
    environment.reset_peak(device)
    watch = environment.MachineWatch(context, device, run.devices)
    setup_time = age() - context.waited_s
    progress("first step", first, run.steps)

    for step in range(first, run.steps):
        if step == measured_from:
            # The load of other processes is judged over the measured steps only.
            watch.restart()
        # No barrier: a user's loop has none, and it would hide time spent waiting for stragglers.
        cpu_start = time.process_time()
        clock.start()
        rate = learning_rate(run, step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        clock.lap("other")
        for micro in range(run.grad_accum):
            batch = loader.micro_batch(step, micro)
            if device.type == "cuda":
                batch = batch.pin_memory()  # with pageable memory the host would wait for the copy
            clock.lap("data")
            batch = batch.to(device)
            clock.lap("h2d")
            # Gradients are exchanged once per step, in the backward pass of its last micro-batch.
            # DDP reads this at the start of the forward pass, FSDP in the backward pass.
            last = micro == run.grad_accum - 1
            with nullcontext() if last else strategy.no_sync(parallel):
                with autocast(run, device):
                    loss = forward(*batch)
                clock.lap("forward")
                # Divided here, so that accumulated gradients equal those of the whole batch.
                scaler.scale(loss / run.grad_accum).backward()
                clock.lap("backward")
            # It stays on the device, as reading it would stop the host from launching ahead.
            losses[step, micro] = loss.detach()
        # An exchange after the backward pass counts as backward, like DDP's.
        strategy.synchronize(parallel)
        clock.lap("backward")
        scaler.unscale_(optimizer)  # before clipping, which uses the norm of the true gradients
        # With emulated compute, the optimizer's pause includes the time for clipping.
        norms[step] = strategy.clip(parallel, run.grad_clip) if pauses is None else math.nan
        scaler.step(optimizer)
        scaler.update()
        # None instead of zero, so that the next backward pass writes instead of adding.
        optimizer.zero_grad(set_to_none=True)
        # The last lap ends the step: notes, display and checkpoints are not timed.
        clock.lap("optimizer")
        rates.append(rate)
        cpu_times.append(time.process_time() - cpu_start)
        shown = float(losses[step].mean()) if loss_is_near else None
        progress("measuring" if step >= measured_from else "warm-up", step + 1, run.steps, shown)
        checkpoints.after(step + 1)

    loader.close()
    # Marks are read only now, because on CUDA that waits for the device.
    laps = clock.read()
    # Before anything else allocates, as evaluation and checks have their own peaks of memory.
    use = watch.stop()
    sent = recorder.take() if recorder else None
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
        first_step=first,
        steps=laps
        | {
            "cpu_time": np.array(cpu_times),
            "loss": rank_loss[first:],  # the mean over this rank's samples
            "learning_rate": np.array(rates),
            "grad_norm": _values(norms)[first:],
        },
        sent=sent,
        loss=mean_loss,
        setup_time=setup_time,
        use=use,
        state=environment.state_bytes(model.parameters(), optimizer),
        parameters=parameters,
    )


def evaluate(model: nn.Module, job: RankJob) -> tuple[float, float | None]:
    """Mean loss on `eval_batches` global batches of held-out samples, and a classifier's accuracy.

    The result is the same on each rank.
    """
    loader = FastLoader(job.dataset.held_out, run=job.run, rank=job.context.rank)
    batches = list(loader.evaluation())
    scores = []
    model.eval()
    if dist.is_initialized():
        # Running statistics differ by rank, so all ranks evaluate the same model, rank 0's.
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)
    with torch.no_grad(), autocast(job.run, job.device):
        for number, batch in enumerate(batches, start=1):
            scores.append(torch.stack(models.score(model, *batch.to(job.device))))
            job.progress("evaluating", number, len(batches))
    means = mean_over_ranks(_values(torch.stack(scores)), device=job.device)
    loss, accuracy = means.mean(axis=0).tolist()
    return loss, None if math.isnan(accuracy) else accuracy


def _values(tensor: torch.Tensor) -> FloatArray:
    return tensor.double().cpu().numpy()


def _require_finite(loss: FloatArray, run: Run) -> None:
    wrong = np.flatnonzero(~np.isfinite(loss))
    if len(wrong):
        step = int(wrong[0])
        advice = "try a lower learning_rate, more lr_warmup_steps, or precision fp32"
        if step == 0 and run.precision == "fp32":
            advice = "nothing was learned before it, so look at the data, the model and its loss"
        raise LabError(
            f"the loss is {loss[step]} at step {step} of {run.steps} (precision {run.precision}, "
            f"learning_rate {run.learning_rate}): {advice}"
        )
