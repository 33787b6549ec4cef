"""The optimizer of every run: AdamW that decays matrices and leaves biases and norms alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lab.config.run import Run
from lab.errors import InputError, Problem

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def decayed_and_not(
    parameters: Iterable[nn.Parameter],
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Those that train, divided into matrices and the others."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    return [p for p in trained if p.dim() >= 2], [p for p in trained if p.dim() < 2]


def adamw(
    decayed: Iterable[Iterable[torch.Tensor]], others: Iterable[Iterable[torch.Tensor]], run: Run
) -> torch.optim.AdamW:
    """AdamW over groups of parameters of one kind each, the first of them with the run's weight decay."""
    groups = [{"params": list(group), "weight_decay": run.weight_decay} for group in decayed]
    groups += [{"params": list(group), "weight_decay": 0.0} for group in others]
    return torch.optim.AdamW(groups, lr=run.learning_rate, betas=(0.9, 0.95), fused=True)


def optimizer_for(model: nn.Module, run: Run) -> torch.optim.Optimizer:
    """The optimizer of a model whose parameters are all of one kind."""
    decayed, others = decayed_and_not(model.parameters())
    return adamw([decayed], [others], run)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The equal blocks of a model, which it keeps in a list of this name; none where it has no such list."""
    blocks = getattr(model, "blocks", None)
    return list(blocks) if isinstance(blocks, nn.ModuleList) else []


def checkpoint_blocks(model: nn.Module) -> None:
    """Let every block keep its inputs alone for the backward pass, and there compute the rest again (Chen et al., 2016).

    Modules and the names of their parameters stay as they are. Raises InputError where the model has no blocks.
    """
    blocks = blocks_of(model)
    if not blocks:
        what = "this model is no list of equal blocks"
        raise InputError(
            "run",
            [Problem("activation_checkpointing", what, "leave it out, or train a transformer")],
        )
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def learning_rate(run: Run, step: int) -> float:
    """Linear warm-up over `lr_warmup_steps`, then half a cosine down to `min_learning_rate` at the last step."""
    if step < run.lr_warmup_steps:
        return run.learning_rate * (step + 1) / run.lr_warmup_steps
    done = (step - run.lr_warmup_steps) / max(run.steps - 1 - run.lr_warmup_steps, 1)
    return run.min_learning_rate + 0.5 * (1 + math.cos(math.pi * done)) * (
        run.learning_rate - run.min_learning_rate
    )


def autocast(run: Run, device: torch.device) -> torch.autocast:
    """The run's precision for the forward pass; weights stay in fp32."""
    return torch.autocast(device.type, dtype=DTYPES[run.precision], enabled=run.precision != "fp32")
