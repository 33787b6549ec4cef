"""The blocks of a model: what is gathered, checkpointed or moved to another rank as one."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from lab.errors import InputError, Problem


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The equal blocks of a model, which it keeps in a list of this name; none where it has no such list."""
    blocks = getattr(model, "blocks", None)
    return list(blocks) if isinstance(blocks, nn.ModuleList) else []


class Checkpointed(nn.Module):
    """A block that keeps its inputs for the backward pass, and there computes the rest again (Chen et al., 2016)."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *inputs: Any, **settings: Any) -> Any:
        """As the block does."""
        return checkpoint(self.block, *inputs, use_reentrant=False, **settings)


def checkpoint_blocks(model: nn.Module) -> None:
    """Make every block of the model a checkpointed one; raises InputError where it has none."""
    blocks = blocks_of(model)
    if not blocks:
        what = "this model is no list of equal blocks"
        raise InputError("run", [Problem("activation_checkpointing", what, "leave it out, or train a transformer")])
    model.blocks = nn.ModuleList(Checkpointed(block) for block in blocks)
