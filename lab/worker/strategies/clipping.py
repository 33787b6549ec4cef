"""The norm of gradients that lie on several ranks, and their clipping by it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import distributed as dist
from torch.distributed import ProcessGroup


@torch.no_grad()
def clip(
    gradients: Sequence[torch.Tensor],
    max_norm: float,
    *,
    copies: Sequence[torch.Tensor] = (),
    group: ProcessGroup | None = None,
) -> torch.Tensor:
    """Scale the gradients of all ranks of a group to this norm where theirs together is larger; the norm before.

    `copies` are scaled and not counted: another rank counts them. One all-reduce of a number.
    """
    device = next(iter([*gradients, *copies])).device
    squares = [gradient.float().square().sum() for gradient in gradients]
    total = torch.stack(squares).sum() if squares else torch.zeros((), device=device)
    dist.all_reduce(total, group=group)
    norm = total.sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_ does it
    torch._foreach_mul_([*gradients, *copies], factor)
    return norm
