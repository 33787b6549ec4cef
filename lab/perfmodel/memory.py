"""Memory of a rank: parameters, gradients, optimizer, activations, by how the ranks share them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lab.config.strategies import STRATEGIES, State
from lab.perfmodel.layout import Checkpointing, Layout, Sharing


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
    parameters: float, *, sharing: Sharing = "ddp", ranks: int = 1, state: StateBytes = MIXED
) -> MemoryParts:
    """Weights, gradients and optimizer of a rank, divided by `ranks` if the strategy shards them.

    ZeRO's stages 1 and 3 (FSDP): Rajbhandari et al. (2020), figure 1.
    """

    def part(name: State) -> float:
        sharded = name in STRATEGIES[sharing].sharded
        return parameters * float(getattr(state, name)) / (ranks if sharded else 1)

    return MemoryParts(part("weights"), part("gradients"), part("optimizer"))


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
    """Bytes that transformer layers keep for the backward pass.

    Korthikanti et al. (2022), equations 1 and 2, table 2. `selective` recomputes attention's
    scores, or never keeps them, as fused attention does; `full` keeps the input of each layer. The
    formulas count values of two bytes and dropout masks of one; other `value_bytes` scale the
    values alone.
    """
    unit = sequence * batch * width
    if checkpointing == "full":
        return layers * unit * value_bytes
    scores = heads * sequence / width * (2 * value_bytes + 1)
    whole = 4 * value_bytes + 2  # inputs of both norms and of both matrices, and two dropout masks
    split = 12 * value_bytes + (0.0 if checkpointing == "selective" else scores)
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
    """Bytes of a rank of a layout; `activation_bytes` are a micro-batch's in the whole model.

    A pipeline's first stage holds the activations of as many micro-batches as there are stages, at
    most of all (Narayanan et al. 2021). FSDP holds `largest_unit` bytes of gathered weights, twice
    as it gathers ahead.
    """
    share = parameters / (layout.tensor * layout.pipeline)
    own = state_memory(share, sharing=layout.sharing, ranks=layout.data, state=state)
    gathers = layout.sharing == "fsdp" and layout.data > 1
    micro_batches = min(layout.pipeline, grad_accum) / layout.pipeline
    return replace(
        own,
        activations=activation_bytes * micro_batches / layout.tensor,
        gathered=2 * largest_unit / layout.tensor if gathers else 0.0,
    )
