"""GPT-2: attention, blocks, the KV cache, and a head whose loss is fused over chunks of tokens.

The head's gradients are computed in the forward pass, while the logits of a chunk are available.
This takes three products instead of the four of a loss that drops and recomputes its logits, and no
logits are kept for the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import register_flop_formula

from lab.config import models
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
    return _loss_and_gradients(hidden, weight, targets, dtype, learns)[0]


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
    losses_and_errors = _losses_and_errors(logits, loss.dtype)
    losses = loss.new_empty(len(low), 1)
    for begin in range(0, len(low), rows):
        part, target = low[begin : begin + rows], targets[begin : begin + rows]
        chunk = logits[: len(part)]
        torch.mm(part, cast.t(), out=chunk)
        losses[begin : begin + rows] = losses_and_errors(chunk, target, words, learns=learns)
        if learns:
            # Not averaged over tokens yet, which fp16 could not hold.
            torch.mm(chunk, cast, out=hidden_grad[begin : begin + rows])
            _add_product(weight_grad, chunk.t(), part, first=begin == 0)
    if learns:
        hidden_grad.masked_fill_(~counted[:, None], 0)
    share.copy_(counted.sum()).reciprocal_()
    loss.copy_(losses.masked_fill_(~counted[:, None], 0).sum() * share)
    return loss, hidden_grad, weight_grad, share


def _losses_and_errors(logits: Tensor, wide: torch.dtype) -> Callable[..., Tensor]:
    """What computes the losses of a chunk of logits and puts their gradient into its place."""
    if logits.is_cuda and wide == torch.float32:
        with suppress(ImportError):  # of Triton, which not all systems with GPUs have
            from lab.worker.models import softmax_kernel

            return softmax_kernel.losses_and_errors
    return partial(_by_operators, torch.empty_like(logits, dtype=wide))


def _by_operators(
    shares: Tensor, logits: Tensor, targets: Tensor, words: int, *, learns: bool
) -> Tensor:
    """The same by torch's operators, with memory for the probabilities of a chunk."""
    probabilities = shares[: len(logits)]
    logits[:, words:] = -torch.inf
    wide = logits if logits.dtype == shares.dtype else probabilities.copy_(logits)
    above = wide.amax(1, True) - wide.gather(1, targets)
    torch.softmax(wide, 1, out=probabilities)
    # The largest probability is never so small that its logarithm would lose precision.
    losses = above - probabilities.amax(1, True).log()
    if learns:
        probabilities.scatter_add_(1, targets, -torch.ones_like(losses))
        logits.copy_(probabilities)
    return losses


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
    """Add a product to a sum, whose dtype may be wider than theirs; the first is the sum.

    Rows of `a` beyond those of the sum do not count.
    """
    if a.dtype == total.dtype:
        total.addmm_(a[: len(total)], b, beta=0 if first else 1)
        return
    # Only CUDA accumulates such a product in fp32, since torch 2.8.
    wide = a.is_cuda and hasattr(torch.ops.aten.mm, "dtype")
    # Of all rows, as their number is a multiple of ALIGNED.
    product = torch.mm(a, b, out_dtype=total.dtype) if wide else torch.mm(a, b)
    product = product[: len(total)]
    total.copy_(product) if first else total.add_(product)


_loss_and_gradients.register_fake(
    lambda hidden, weight, targets, dtype, learns: _outputs(hidden, weight, dtype, learns)
)


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


class Attention(nn.Module):
    """Multi-head self-attention, either causal or over the tokens that a mask permits."""

    def __init__(self, config: models.GPT | models.TextClassifier) -> None:
        super().__init__()
        self.head_width = config.width // config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.projection = nn.Linear(config.width, config.width)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, cache: LayerCache | None = None
    ) -> Tensor:
        """Map (samples, tokens, width) to its shape; `mask` (samples, 1, 1, tokens) is True to see.

        With a non-empty cache, x is the one token that follows those in it.
        """
        # The number of heads follows from the width: with tensor parallelism a rank has only some.
        q, k, v = (
            part.unflatten(2, (-1, self.head_width)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        # The token after a cache may attend to all of it; "causal" would show it only the first.
        causal = mask is None and (cache is None or cache.empty)
        if cache is not None:
            k, v = cache.extend(k, v)
        mixed = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, dropout_p=dropout
        )
        return self.projection(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and an MLP, each with pre-normalization and added to the residual stream."""

    def __init__(self, config: models.GPT | models.TextClassifier) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm_2 = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, cache: LayerCache | None = None
    ) -> Tensor:
        """Map (samples, tokens, width) to its shape, with the mask and the cache of Attention."""
        x = x + self.dropout(self.attention(self.norm_1(x), mask, cache))
        hidden = functional.gelu(self.up(self.norm_2(x)), approximate="tanh")
        return x + self.dropout(self.down(hidden))


class GPT(nn.Module):
    """GPT-2 (Radford et al., 2019): pre-norm, GELU, learned positions, embedding and head tied."""

    def __init__(self, config: models.GPT, *, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, config.width)
        self.positions = nn.Embedding(config.block_size, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.apply(init_weights)
        # Each block adds twice to the residual stream, whose variance must not grow with depth.
        for name, parameter in self.named_parameters():
            if name.endswith(("projection.weight", "down.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.layers))

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Mean loss in nats per token with targets, else logits; both are (samples, tokens)."""
        x = self._hidden(tokens)
        if targets is None:
            return functional.linear(x, self.embedding.weight)  # tied: the head is the embedding
        return linear_cross_entropy(x.flatten(0, 1), self.embedding.weight, targets.flatten())

    def extend(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Logits (samples, vocabulary) of the next token: first a prompt, then token by token."""
        return functional.linear(self._hidden(tokens, cache)[:, -1], self.embedding.weight)

    def _hidden(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        begin = cache.length if cache is not None else 0
        positions = torch.arange(begin, begin + tokens.shape[1], device=tokens.device)
        x = self.dropout(self.embedding(tokens) + self.positions(positions))
        for number, block in enumerate(self.blocks):
            x = block(x, cache=cache.layers[number] if cache is not None else None)
        return self.norm(x)


def init_weights(module: nn.Module) -> None:
    """Matrices from a normal distribution of standard deviation 0.02, biases zero, as in GPT-2."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


class LayerCache:
    """Keys and values of one layer, each (samples, heads, capacity, head width)."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length = capacity, 0
        self._buffers: tuple[Tensor, Tensor] | None = None

    @property
    def empty(self) -> bool:
        """Whether it holds no token yet."""
        return self._buffers is None

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append new tokens, (samples, heads, tokens, head width); those of all tokens so far."""
        if self._buffers is None:
            # Allocated once, as concatenation would copy the whole cache for every token.
            shape = (*keys.shape[:2], self.capacity, keys.shape[3])
            self._buffers = keys.new_empty(shape), keys.new_empty(shape)
        begin, self.length = self.length, self.length + keys.shape[2]
        for buffer, new in zip(self._buffers, (keys, values), strict=True):
            buffer[:, :, begin : self.length] = new
        all_keys, all_values = self._buffers
        return all_keys[:, :, : self.length], all_values[:, :, : self.length]


class Cache:
    """The cache of a whole model for one batch of sequences of equal length."""

    def __init__(self, layers: int, capacity: int) -> None:
        self.layers = [LayerCache(capacity) for _ in range(layers)]

    @property
    def length(self) -> int:
        """Tokens in it."""
        return self.layers[0].length

    @staticmethod
    def bytes_per_token(layers: int, width: int, dtype: torch.dtype) -> int:
        """Bytes of keys and values for one token of one sequence."""
        return 2 * layers * width * dtype.itemsize
