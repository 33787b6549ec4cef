"""Memory of a rank: parameters, gradients, optimizer, activations, by how the ranks share them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lab.config.strategies import STRATEGIES
from lab.perfmodel.layout import Layout, Sharing

Checkpointing = Literal["none", "selective", "full"]


@dataclass(frozen=True)
class StateBytes:
    """Bytes per parameter of weights, gradients and optimizer."""

    weights: int
    gradients: int
    optimizer: int


# AdamW as the lab trains: everything in fp32. In mixed precision with fp32 masters: Rajbhandari et
# al. (2020), section 3.1.
FP32 = StateBytes(4, 4, 8)
MIXED = StateBytes(2, 2, 12)


@dataclass(frozen=True)
class MemoryParts:
    """Bytes of a rank at its peak."""

    weights: float
    gradients: float
    optimizer: float
    activations: float = 0.0
    gathered: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.gathered


def state_memory(
    parameters: float,
    *,
    sharing: Sharing = "ddp",
    ranks: int = 1,
    state: StateBytes = MIXED,
) -> MemoryParts:
    """Weights, gradients and optimizer of a rank; `ranks` share what their way of sharing splits.

    ZeRO's stages 1, 2 and 3 (the last is FSDP): Rajbhandari et al. (2020), figure 1.
    """
    sharded = STRATEGIES[sharing].sharded
    parts = {
        name: parameters * getattr(state, name) / (ranks if name in sharded else 1)
        for name in ("weights", "gradients", "optimizer")
    }
    return MemoryParts(**parts)


def transformer_activations(
    *,
    batch: int,
    sequence: int,
    width: int,
    heads: int,
    layers: int,
    tensor: int = 1,
    checkpointing: Checkpointing = "none",
    value_bytes: int = 2,
) -> float:
    """Bytes that transformer layers keep for the backward pass; Korthikanti et al. (2022),
    equations 1 to 6 and table 2.

    `selective` recomputes attention's scores, or never keeps them, as fused attention does; `full`
    keeps the input of each layer. The formulas count values of two bytes and dropout masks of one;
    other `value_bytes` scale the values alone.
    """
    unit = sequence * batch * width
    if checkpointing == "full":
        return layers * unit * value_bytes
    scores = (
        0.0 if checkpointing == "selective" else heads * sequence / width * (2 * value_bytes + 1)
    )
    whole = 4 * value_bytes + 2  # inputs of both norms and of both matrices, and two dropout masks
    split = 12 * value_bytes + scores
    return layers * unit * (whole + split / tensor)


def rank_memory(
    parameters: float,
    layout: Layout,
    *,
    activation_bytes: float = 0.0,
    grad_accum: int = 1,
    state: StateBytes = FP32,
    largest_unit: float = 0.0,
) -> MemoryParts:
    """Bytes of a rank of a layout; `activation_bytes` are those of the whole model for one
    micro-batch on one device.

    A pipeline's first stage holds the activations of as many micro-batches as there are stages, at
    most of all (Narayanan et al. 2021). FSDP holds `largest_unit` bytes of gathered weights, twice
    as it gathers ahead.
    """
    own = state_memory(
        parameters / (layout.tensor * layout.pipeline),
        sharing=layout.sharing,
        ranks=layout.data,
        state=state,
    )
    held = min(layout.pipeline, grad_accum) / layout.pipeline
    gathered = (
        2 * largest_unit / layout.tensor if layout.sharing == "fsdp" and layout.data > 1 else 0.0
    )
    return MemoryParts(
        own.weights,
        own.gradients,
        own.optimizer,
        activations=activation_bytes * held / layout.tensor,
        gathered=gathered,
    )
