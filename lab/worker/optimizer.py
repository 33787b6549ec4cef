"""The optimizer of every run: AdamW that decays matrices and leaves biases and norms alone."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from lab.study import Run


def decayed_and_not(parameters: Iterable[nn.Parameter]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Those that train, divided into matrices and the others."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    return [p for p in trained if p.dim() >= 2], [p for p in trained if p.dim() < 2]


def adamw(decayed: Iterable[Iterable[torch.Tensor]], others: Iterable[Iterable[torch.Tensor]], run: Run) -> torch.optim.AdamW:
    """AdamW over groups of parameters of one kind each, the first of them with the run's weight decay."""
    groups = [{"params": list(group), "weight_decay": run.weight_decay} for group in decayed]
    groups += [{"params": list(group), "weight_decay": 0.0} for group in others]
    return torch.optim.AdamW(groups, lr=run.learning_rate, betas=(0.9, 0.95), fused=True)


def optimizer_for(model: nn.Module, run: Run) -> torch.optim.Optimizer:
    """The optimizer of a model whose parameters are all of one kind."""
    decayed, others = decayed_and_not(model.parameters())
    return adamw([decayed], [others], run)
