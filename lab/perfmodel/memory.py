"""Memory of a rank: parameters, gradients, optimizer and activations, and how ranks share them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lab.config.run import value_bytes
from lab.config.strategies import State
from lab.perfmodel.layout import SHARDED, Candidate, Layout, Sharing
from lab.perfmodel.transformer import Transformer


@dataclass(frozen=True)
class StateBytes:
    """Bytes per parameter of weights, gradients and optimizer."""

    weights: int
    gradients: int
    optimizer: int


# AdamW as the lab trains: everything in fp32. In mixed precision with fp32 masters: Rajbhandari et
# al. (2020), section 3.1.
FP32 = StateBytes(4, 4, 8)
FROZEN = StateBytes(4, 0, 0)  # parameters that do not train
MIXED = StateBytes(2, 2, 12)
ACCUMULATED = StateBytes(2, 4, 12)  # gradients summed in fp32, as Megatron and nanotron do
# Bytes held relative to those of the matrices' values, without and with a gate, which comes with
# copies in fp32 and of rotations; bytes of a logit with its gradient, which gated code also holds
# in fp32, a little of it undivided on every tensor parallel rank; bytes of an idle rank.
# With a gate: the peaks of 525 layouts of nanotron (Ultra-Scale Playbook 2025); without: the
# micro-batches that ran in 40 GB (llm-foundry's benchmarks of MPT).
PLAIN, GATED, IDLE = 1.0, 1.62, 0.4e9
LOGIT, GATED_LOGIT, WHOLE_LOGIT = 6, 12, 0.6
# Share of a GPU's nominal GB, which are GiB on the card, that training may use; the back end takes
# the rest.
USABLE = 0.95


@dataclass(frozen=True)
class MemoryParts:
    """Peak bytes of a rank."""

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

    ZeRO's stages 1, 2 and 3 (FSDP): Rajbhandari et al. (2020), figure 1.
    """

    def part(name: State) -> float:
        sharded = name in SHARDED[sharing]
        return parameters * float(getattr(state, name)) / (ranks if sharded else 1)

    return MemoryParts(part("weights"), part("gradients"), part("optimizer"))


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

    A pipeline's first stage holds the activations of as many micro-batches as there are stages, or
    of all if fewer (Narayanan et al. 2021). FSDP holds `largest_unit` bytes of gathered weights,
    twice because it gathers ahead.
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


def transformer_memory(
    model: Transformer,
    sequence: int,
    candidate: Candidate,
    *,
    state: StateBytes = ACCUMULATED,
    balanced: bool = False,
    first_stage: bool = False,
) -> MemoryParts:
    """Bytes of the fullest rank of a layout with fused attention, or of rank 0, which is in the
    `first_stage` and whose peak most programs print.

    A pipeline's first stage holds the activations of as many micro-batches as there are stages, its
    last those of one plus the logits (Narayanan et al. 2021); zero-bubble schedules hold them for
    the weights' gradients in every stage (Qi et al. 2023). `balanced` stages count the head as
    layers. Full checkpointing keeps the input of each layer, and all activations of one. Without
    sequence parallelism every tensor parallel rank holds the full inputs of attention and MLP.
    """
    layout, accum = candidate.layout, candidate.grad_accum
    tokens = candidate.micro_batch * sequence / layout.context
    value = value_bytes(candidate.precision)
    longest, rest = model.stage_layers(layout.pipeline, balanced=balanced)
    both = 1 if model.tied or layout.pipeline > 1 else 2
    dense, experts = model.block() - model.routed, model.routed / layout.expert
    # An expert has fewer copies than the rest of the model, which share less of its state.
    own, of_experts = (
        state_memory(count / layout.tensor, sharing=layout.sharing, ranks=ranks, state=state)
        for count, ranks in (
            (longest * dense + both * model.embedding, layout.data),
            (longest * experts, max(layout.data // layout.expert, 1)),
        )
    )
    mlp = (3 if model.gated else 2) * model.hidden * model.active
    split = mlp + 2 * model.width * (1 + model.key_value_share)
    per_value = GATED if model.gated else PLAIN
    logit = GATED_LOGIT / layout.tensor + WHOLE_LOGIT if model.gated else LOGIT / layout.tensor
    inputs = value * tokens * 2 * model.width / (layout.tensor if layout.sequence_parallel else 1)
    layer = per_value * value * tokens * split / layout.tensor + inputs
    kept, once = layer, 0.0
    if candidate.checkpointing == "full":
        kept = value * tokens * model.width / (layout.tensor if layout.sequence_parallel else 1)
        once = layer
    ahead = (layout.pipeline - 1) / layout.interleave if layout.interleave > 1 else 0.0
    first = min(accum, layout.in_flight + ahead) * longest * kept + once
    delayed = 1 if layout.schedule == "1f1b" else min(accum, layout.in_flight)
    last = delayed * rest * kept + once + logit * model.vocabulary * tokens
    if first_stage and layout.pipeline > 1:
        last = 0.0
    gathers = layout.sharing == "fsdp" and layout.data > 1
    return MemoryParts(
        weights=own.weights + of_experts.weights,
        gradients=own.gradients + of_experts.gradients,
        optimizer=own.optimizer + of_experts.optimizer,
        activations=max(first, last) + IDLE,
        gathered=2 * (dense + experts) * state.weights / layout.tensor if gathers else 0.0,
    )
