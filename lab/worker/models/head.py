"""The loss of a language model's head: logits and cross-entropy fused, over chunks of tokens.

The gradients are computed in the forward pass, while the logits of a chunk are available. This
takes three products instead of the four of a loss that drops and recomputes its logits, and no
logits are kept for the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import register_flop_formula

from lab.perfmodel.flops import HEAD_CHUNK

ALIGNED = 64  # words: with 50,257, rows of logits would start at odd addresses
# Up to this many logits, a compiler that sees all of them reduces their cost more than chunks do.
WHOLE_WHEN_COMPILED = 2**25
IGNORED = -100  # the target of tokens that do not count, as in torch's cross-entropy


def linear_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy; hidden (tokens, width), weight (vocabulary, width), targets (tokens,).

    Under autocast the products use its dtype. Targets of -100 do not count.
    """
    if torch.compiler.is_compiling() and len(hidden) * len(weight) <= WHOLE_WHEN_COMPILED:
        return functional.cross_entropy(functional.linear(hidden, weight), targets)
    device = hidden.device.type
    autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else hidden.dtype
    learns = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    loss: Tensor = _loss_and_gradients(hidden, weight, targets, dtype, learns)[0]
    return loss


# A custom operator, as torch.compile would unroll the loop over the chunks.
@torch.library.custom_op("lab::linear_cross_entropy", mutates_args=())
def _loss_and_gradients(
    hidden: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype, learns: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The mean loss, its gradients by hidden and weight times the tokens that count, 1 / these.

    The gradients are empty unless it `learns`.
    """
    loss, hidden_grad, weight_grad, share = _outputs(hidden, weight, dtype, learns)
    counted = targets != IGNORED
    # Without its hidden state a token adds nothing to the weight's gradient.
    low = hidden.to(dtype).masked_fill(~counted[:, None], 0)
    targets = targets.masked_fill(~counted, 0)[:, None]
    words = len(weight)
    cast = functional.pad(weight.to(dtype), (0, 0, 0, -words % ALIGNED))
    rows = min(HEAD_CHUNK.get(hidden.device.type, HEAD_CHUNK["cuda"]), len(low))
    # Allocated once, as memory of this size is returned to the system when it is freed.
    logits = low.new_empty(rows, len(cast))
    shares = logits.new_empty(logits.shape, dtype=loss.dtype)
    losses = shares.new_empty(len(low), 1)
    for begin in range(0, len(low), rows):
        part, target = low[begin : begin + rows], targets[begin : begin + rows]
        chunk, probabilities = logits[: len(part)], shares[: len(part)]
        torch.mm(part, cast.t(), out=chunk)
        chunk[:, words:] = -torch.inf
        wide = chunk if chunk.dtype == loss.dtype else probabilities.copy_(chunk)
        above = wide.amax(1, True) - wide.gather(1, target)
        torch.softmax(wide, 1, out=probabilities)
        # The largest probability is never so small that its logarithm would lose precision.
        losses[begin : begin + rows] = above - probabilities.amax(1, True).log()
        if not learns:
            continue
        # The gradient by the logits, not yet averaged over tokens, which fp16 could not hold.
        probabilities.scatter_add_(1, target, -torch.ones_like(target, dtype=loss.dtype))
        error = chunk.copy_(probabilities)
        torch.mm(error, cast, out=hidden_grad[begin : begin + rows])
        _add_product(weight_grad, error[:, :words].t(), part, first=begin == 0)
    if learns:
        hidden_grad.masked_fill_(~counted[:, None], 0)
    share.copy_(counted.sum()).reciprocal_()
    loss.copy_(losses.masked_fill_(~counted[:, None], 0).sum() * share)
    return loss, hidden_grad, weight_grad, share


def _outputs(
    hidden: Tensor, weight: Tensor, dtype: torch.dtype, learns: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    wide = torch.promote_types(dtype, torch.float32)
    return (
        hidden.new_empty((), dtype=wide),
        hidden.new_empty(hidden.shape if learns else 0, dtype=dtype),
        weight.new_empty(weight.shape if learns else 0, dtype=wide),
        hidden.new_empty((), dtype=wide),
    )


def _add_product(total: Tensor, a: Tensor, b: Tensor, *, first: bool) -> None:
    """Add a product to a sum, whose dtype may be wider than theirs; the first is the sum."""
    if a.dtype == total.dtype:
        total.addmm_(a, b, beta=0 if first else 1)
        return
    # Only CUDA accumulates such a product in fp32, since torch 2.8.
    wide = a.is_cuda and hasattr(torch.ops.aten.mm, "dtype")
    product = torch.mm(a, b, out_dtype=total.dtype) if wide else torch.mm(a, b)
    total.copy_(product) if first else total.add_(product)


@_loss_and_gradients.register_fake
def _(
    hidden: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype, learns: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _outputs(hidden, weight, dtype, learns)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, *gradients = output
    ctx.mark_non_differentiable(*gradients)
    ctx.set_materialize_grads(False)  # else zeros as large as the gradients
    ctx.save_for_backward(*gradients)
    ctx.dtypes = inputs[0].dtype, inputs[1].dtype


def _backward(ctx: Any, grad: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    *gradients, share = ctx.saved_tensors
    scale = grad * share
    hidden_grad, weight_grad = (
        (gradient.to(scale.dtype) * scale).to(dtype) if needed else None
        for gradient, dtype, needed in zip(
            gradients, ctx.dtypes, ctx.needs_input_grad, strict=False
        )
    )
    return hidden_grad, weight_grad, None, None, None


_loss_and_gradients.register_autograd(_backward, setup_context=_save)


@register_flop_formula(torch.ops.lab.linear_cross_entropy)
def _flops(
    hidden_shape: torch.Size,
    weight_shape: torch.Size,
    targets_shape: torch.Size,
    dtype: torch.dtype,
    learns: bool,
    **_: Any,
) -> int:
    """FLOPs of the logits, and of both gradients if they are computed."""
    return (6 if learns else 2) * hidden_shape[0] * hidden_shape[1] * weight_shape[0]
