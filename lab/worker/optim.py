"""Optimizer, learning rate and precision of every run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lab.config.run import Run
from lab.errors import InputError, Problem

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def decayed_and_not(
    parameters: Iterable[nn.Parameter],
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Trainable parameters, divided into matrices and all others."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    return [p for p in trained if p.dim() >= 2], [p for p in trained if p.dim() < 2]


def adamw(
    decayed: Iterable[Iterable[torch.Tensor]], others: Iterable[Iterable[torch.Tensor]], run: Run
) -> torch.optim.AdamW:
    """AdamW over homogeneous parameter groups, the first with the run's weight decay."""
    groups = [{"params": list(group), "weight_decay": run.weight_decay} for group in decayed]
    groups += [{"params": list(group), "weight_decay": 0.0} for group in others]
    # Fused: a step over 10.8M parameters on CPU took 8 ms instead of 20.
    return torch.optim.AdamW(groups, lr=run.learning_rate, betas=(0.9, 0.95), fused=True)


def optimizer_for(model: nn.Module, run: Run) -> torch.optim.Optimizer:
    """The optimizer of a model whose parameters are all of one kind."""
    decayed, others = decayed_and_not(model.parameters())
    return adamw([decayed], [others], run)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The model's equal blocks, a ModuleList called `blocks`; none without it."""
    blocks = getattr(model, "blocks", None)
    return list(blocks) if isinstance(blocks, nn.ModuleList) else []


def checkpoint_blocks(model: nn.Module) -> None:
    """Make blocks save only their inputs and recompute the rest in backward (Chen et al., 2016).

    Raises InputError for a model without blocks.
    """
    blocks = blocks_of(model)
    if not blocks:
        what = "this model has no list of equal blocks"
        advice = "leave it out, or train a transformer"
        raise InputError("run", [Problem("activation_checkpointing", what, advice)])
    for block in blocks:
        # A wrapper module would change the parameter names that checkpoints use.
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def learning_rate(run: Run, step: int) -> float:
    """Linear warm-up over `lr_warmup_steps`, then half a cosine down to `min_learning_rate`."""
    if step < run.lr_warmup_steps:
        return run.learning_rate * (step + 1) / run.lr_warmup_steps
    done = (step - run.lr_warmup_steps) / max(run.steps - 1 - run.lr_warmup_steps, 1)
    above = 0.5 * (1 + math.cos(math.pi * done)) * (run.learning_rate - run.min_learning_rate)
    return run.min_learning_rate + above


def set_products(precision: str) -> None:
    """Make fp32 products and convolutions on GPUs compute in fp32, or with `tf32` in TF32.

    By default cuDNN's convolutions round to TF32, whose peak is several times that of fp32.
    """
    cuda: Any = torch.backends.cuda
    cudnn: Any = torch.backends.cudnn
    rounded = precision == "tf32"
    # Both names, as torch refuses to read the older one if the two disagree.
    cuda.matmul.allow_tf32 = cudnn.allow_tf32 = rounded
    if hasattr(cudnn, "conv"):  # since torch 2.9
        for part in (cuda.matmul, cudnn.conv, cudnn.rnn):
            part.fp32_precision = "tf32" if rounded else "ieee"


def autocast(run: Run, device: torch.device) -> torch.autocast:
    """The run's precision for the forward pass; weights stay in fp32."""
    dtype = DTYPES[run.stated.precision]
    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)
