"""The loss of a language model's head, without ever holding all its logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lab.analysis.networks import CHUNK_LOGITS


def linear_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of `hidden @ weight.T`; hidden (tokens, width), weight (vocabulary, width), targets (tokens,)."""
    if len(targets) * len(weight) <= 2 * CHUNK_LOGITS:
        return functional.cross_entropy(functional.linear(hidden, weight), targets)
    chunk = max(CHUNK_LOGITS // len(weight), 1)
    loss: Tensor = _Chunked.apply(hidden, weight, targets, chunk)  # type: ignore[no-untyped-call]
    return loss


class _Chunked(torch.autograd.Function):
    """Goes over the tokens in chunks, and in the backward pass computes each chunk's logits again."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
        device = hidden.device.type
        autocast = torch.is_autocast_enabled(device)
        ctx.dtype = torch.get_autocast_dtype(device) if autocast else hidden.dtype
        ctx.save_for_backward(hidden, weight, targets)
        ctx.chunk = chunk
        cast = weight.to(ctx.dtype)
        total = hidden.new_zeros((), dtype=torch.float32)
        for part, target in zip(hidden.split(chunk), targets.split(chunk), strict=True):
            logits = functional.linear(part.to(ctx.dtype), cast)
            total += functional.cross_entropy(logits.float(), target, reduction="sum")
        return total / len(targets)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        hidden, weight, targets = ctx.saved_tensors
        cast = weight.to(ctx.dtype)
        scale = grads[0] / len(targets)
        hidden_grad, weight_grad = torch.empty_like(hidden), torch.zeros_like(weight)
        parts = (tensor.split(ctx.chunk) for tensor in (hidden, targets, hidden_grad))
        for part, target, part_grad in zip(*parts, strict=True):
            low = part.to(ctx.dtype)
            error = torch.softmax(functional.linear(low, cast).float(), dim=-1)
            error[torch.arange(len(target), device=target.device), target] -= 1
            error = error.mul_(scale).to(ctx.dtype)
            part_grad.copy_(error @ cast)
            if error.dtype == weight_grad.dtype:
                weight_grad.addmm_(error.t(), low)
            else:
                weight_grad += error.t() @ low
        return hidden_grad, weight_grad, None, None
