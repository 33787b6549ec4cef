"""The one training loop; how ranks work together is a strategy, a field of the Run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from lab.errors import LabError
from lab.place import Place, Progress
from lab.study import Run
from lab.worker import memory, models, strategies
from lab.worker.communication import Buckets, Recorder
from lab.worker.data.sampling import Sampler
from lab.worker.data.tokens import Tokens
from lab.worker.foreign import CpuUse, cpu_use
from lab.worker.group import mean_over_ranks
from lab.worker.peak import DTYPES
from lab.worker.sleeping import Pauses, Sleeper
from lab.worker.timing import Clock, FloatArray, clock_for


@dataclass(frozen=True)
class Training:
    """What one rank saw while it trained; arrays are by step, times in seconds."""

    model: nn.Module
    parallel: nn.Module  # the model as its strategy wraps it
    forward: Callable[..., torch.Tensor]  # the same, compiled where the run asks for it
    clock: Clock
    recorder: Recorder | None
    laps: dict[str, FloatArray]
    buckets: Buckets | None  # None at world size 1, where nothing is sent
    cpu_time: FloatArray
    rank_loss: FloatArray  # mean over this rank's samples
    loss: FloatArray  # mean over the global batch
    learning_rate: FloatArray
    grad_norm: FloatArray
    first_step_at: float  # time.time()
    use: CpuUse  # over the measured steps
    peak_memory: int


def train(
    run: Run,
    place: Place,
    *,
    device: torch.device,
    tokens: Tokens,
    progress: Progress,
    pauses: Pauses | None = None,
) -> Training:
    """Train this rank's share of the run; raises LabError that names the first step whose loss is not finite.

    With `pauses` the model sleeps instead of computing.
    """
    torch.manual_seed(run.seed)
    model = models.build(run, vocab_size=tokens.vocab_size).to(device)
    if pauses is not None:
        model = Sleeper(model, pauses)
    torch.manual_seed(run.seed + 1 + place.rank)  # the same weights everywhere, but not the same dropout
    clock = clock_for(device)
    recorder = Recorder(clock) if run.world_size > 1 else None
    strategy = strategies.get(run.strategy)
    parallel = strategy.wrap(model, run=run, device=device, recorder=recorder)
    forward = torch.compile(parallel) if run.compile and pauses is None else parallel
    optimizer = model.optimizer() if isinstance(model, Sleeper) else optimizer_for(model, run)
    scaler = torch.amp.GradScaler(device.type, enabled=run.precision == "fp16")
    sampler = Sampler(tokens.train, run=run, rank=place.rank)
    # Room made at once: small tensors kept from each step would split the heap and let the resident memory grow.
    losses = torch.zeros(run.steps, run.grad_accum, device=device)
    norms = torch.zeros(run.steps, device=device)
    rates, cpu_times = [], []
    memory.reset_peak(device)
    first_step_at, before = time.time(), cpu_use(place.cores)

    for step in range(run.steps):
        if step == run.warmup_steps:
            before = cpu_use(place.cores)
        cpu_start = time.process_time()
        clock.start()
        rate = learning_rate(run, step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        clock.lap("other")
        for micro in range(run.grad_accum):
            batch = torch.from_numpy(sampler.micro_batch(step, micro))
            if device.type == "cuda":
                batch = batch.pin_memory()
            clock.lap("data")
            batch = batch.to(device, non_blocking=True)
            clock.lap("h2d")
            # Gradients meet once per step, in the backward pass of its last micro-batch.
            with nullcontext() if micro == run.grad_accum - 1 else strategy.no_sync(parallel):
                with autocast(run, device):
                    loss = forward(batch[:, :-1], batch[:, 1:])
                clock.lap("forward")
                scaler.scale(loss / run.grad_accum).backward()
                clock.lap("backward")
            losses[step, micro] = loss.detach()  # stays on the device: reading it here would make the host wait
        scaler.unscale_(optimizer)
        norms[step] = nn.utils.clip_grad_norm_(model.parameters(), run.grad_clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        clock.lap("optimizer")
        rates.append(rate)
        cpu_times.append(time.process_time() - cpu_start)
        progress("measuring" if step >= run.warmup_steps else "warm-up", step + 1, run.steps)

    laps = clock.read()
    buckets = recorder.take() if recorder else None
    use = cpu_use(place.cores).since(before)
    peak_memory = memory.peak(device)
    rank_loss = _values(losses).mean(axis=1)
    mean_loss = mean_over_ranks(rank_loss, device=device)
    _require_finite(mean_loss, run)
    return Training(
        model=model,
        parallel=parallel,
        forward=forward,
        clock=clock,
        recorder=recorder,
        laps=laps,
        buckets=buckets,
        cpu_time=np.array(cpu_times),
        rank_loss=rank_loss,
        loss=mean_loss,
        learning_rate=np.array(rates),
        grad_norm=_values(norms),
        first_step_at=first_step_at,
        use=use,
        peak_memory=peak_memory,
    )


def evaluate(model: nn.Module, run: Run, place: Place, *, device: torch.device, tokens: Tokens, progress: Progress) -> float:
    """Mean loss on `eval_batches` global batches of held-out samples, split over the ranks; the same on each rank."""
    batches = Sampler(tokens.held_out, run=run, rank=place.rank).evaluation()
    losses = []
    model.eval()
    with torch.inference_mode(), autocast(run, device):
        for number, windows in enumerate(batches, start=1):
            batch = torch.from_numpy(windows).to(device)
            losses.append(model(batch[:, :-1], batch[:, 1:]))
            progress("evaluating", number, len(batches))
    return float(mean_over_ranks(_values(torch.stack(losses)), device=device).mean())


def learning_rate(run: Run, step: int) -> float:
    """Linear warm-up over `lr_warmup_steps`, then half a cosine down to `min_learning_rate` at the last step."""
    if step < run.lr_warmup_steps:
        return run.learning_rate * (step + 1) / run.lr_warmup_steps
    done = (step - run.lr_warmup_steps) / max(run.steps - 1 - run.lr_warmup_steps, 1)
    return run.min_learning_rate + 0.5 * (1 + math.cos(math.pi * done)) * (run.learning_rate - run.min_learning_rate)


def autocast(run: Run, device: torch.device) -> torch.autocast:
    """The run's precision for the forward pass; weights stay in fp32."""
    return torch.autocast(device.type, dtype=DTYPES[run.precision], enabled=run.precision != "fp32")


def optimizer_for(model: nn.Module, run: Run) -> torch.optim.Optimizer:
    """AdamW that decays matrices and leaves biases and norms alone."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": run.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=run.learning_rate, betas=(0.9, 0.95), fused=True)


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
