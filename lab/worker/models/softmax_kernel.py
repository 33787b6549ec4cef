"""A GPU's kernel of a softmax with cross-entropy, whose gradient takes the place of the logits.

It reads the logits twice and writes them once. torch's own operators move several times as many
bytes, half of them in fp32. Only ranks with a GPU import it, as builds of torch for CPUs come
without Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 4096, 8  # logits that the threads of one row read at a time, and those threads / 32


def losses_and_errors(logits: Tensor, targets: Tensor, words: int, *, learns: bool) -> Tensor:
    """The losses (rows, 1) in fp32 of logits (rows, columns), whose first `words` columns count.

    `targets` are (rows, 1). If it `learns`, each row of logits becomes its loss's gradient by them,
    which is zero in the columns that do not count.
    """
    losses = torch.empty(targets.shape, dtype=torch.float32, device=logits.device)
    size, columns = len(logits), logits.shape[1]
    _row[(size,)](
        *(logits, targets, losses, logits.stride(0), words, columns, learns, BLOCK), num_warps=WARPS
    )
    return losses


@triton.jit  # type: ignore[untyped-decorator]
def _row(  # type: ignore[no-untyped-def]
    logits,
    targets,
    losses,
    stride,
    words: tl.constexpr,
    columns: tl.constexpr,
    learns: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row)
    # Before the first reduction, whose barrier keeps it ahead of the threads that overwrite it.
    own = tl.load(logits + target).to(tl.float32)
    offsets = tl.arange(0, block)
    largest, total = float("-inf"), 0.0
    for begin in range(0, words, block):
        at = begin + offsets
        x = tl.load(logits + at, mask=at < words, other=float("-inf")).to(tl.float32)
        above = tl.maximum(largest, tl.max(x, 0))
        total = total * tl.exp(largest - above) + tl.sum(tl.exp(x - above), 0)
        largest = above
    tl.store(losses + row, largest + tl.log(total) - own)
    if learns:
        for begin in range(0, columns, block):
            at = begin + offsets
            x = tl.load(logits + at, mask=at < words, other=float("-inf")).to(tl.float32)
            error = tl.exp(x - largest) / total - tl.where(at == target, 1.0, 0.0)
            tl.store(logits + at, error.to(logits.dtype.element_ty), mask=at < columns)
