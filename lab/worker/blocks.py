"""The blocks of a model: what is gathered, checkpointed or moved to another rank as one."""

from __future__ import annotations

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from lab.errors import InputError, Problem


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
        raise InputError("run", [Problem("activation_checkpointing", what, "leave it out, or train a transformer")])
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
