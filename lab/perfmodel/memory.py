"""A run's demands on its ranks: how they share its work, what they send, and what they hold.

Memory is that of parameters, gradients, optimizer and activations.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from lab.config.datasets import vocab_size_of
from lab.config.models import GPT, TextClassifier
from lab.config.run import DEFAULT_BUCKET_CAP_MB, Run, value_bytes
from lab.config.strategies import State
from lab.errors import LabError
from lab.formatting import MIB
from lab.perfmodel.flops import HEAD_CHUNK, block_parameters, gpt_parameters, model_cost
from lab.perfmodel.layout import SHARDED, SHARINGS, Bucket, Layout, Profile, Sharing, sent
from lab.perfmodel.transformer import Transformer
from lab.records.schema import Gradient

# Libraries' buffers on a GPU: what the peaks of GPT-2 on an H200 (reports/gpu-training) have beyond
# all parts.
WORKSPACES = 0.3e9
# Share of a GPU's nominal GB, which are GiB on the card, that training may use; the back end takes
# the rest.
USABLE = 0.95
# Bytes left by a compression of DDP's gradients.
COMPRESSED = {"none": 1.0, "bf16": 0.5, "fp16": 0.5}


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
BF16 = StateBytes(2, 2, 4)  # no masters
ACCUMULATED = StateBytes(2, 4, 12)  # gradients summed in fp32, as Megatron and nanotron do


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
    parameters: float,
    *,
    frozen: float = 0.0,
    sharded: frozenset[State] = frozenset(),
    ranks: int = 1,
    state: StateBytes = MIXED,
) -> MemoryParts:
    """Weights, gradients and optimizer of a rank; those that are sharded are divided by `ranks`.

    `frozen` parameters, which come on top, have weights alone. ZeRO's stages 1, 2 and 3 (FSDP):
    Rajbhandari et al. (2020), figure 1.
    """

    def part(name: State, of: float) -> float:
        return of * float(getattr(state, name)) / (ranks if name in sharded else 1)

    return MemoryParts(
        part("weights", parameters + frozen),
        part("gradients", parameters),
        part("optimizer", parameters),
    )


def require_known_model(run: Run) -> None:
    """Raise LabError for a script, whose model is unknown."""
    if run.script:
        raise LabError("the lab does not know a script's model, so it only measures its steps")


def layout_of(run: Run) -> Layout:
    """How a run's ranks share its work; raises LabError for what the step model does not cover."""
    require_known_model(run)
    if run.compression not in COMPRESSED:
        raise LabError(f"the step model does not know compression {run.compression!r}")
    if run.strategy == "fsdp" and run.shard_size not in {None, run.world_size}:
        raise LabError("the step model does not know FSDP with several copies of the model")
    if run.strategy in SHARINGS:
        return Layout(SHARINGS[run.strategy], data=run.world_size)
    splits, model = run.facts.splits, run.architecture
    if splits not in {"tensors", "layers"} or not isinstance(model, GPT):
        raise LabError(f"the step model does not know strategy {run.strategy!r}")
    values = run.stated.micro_batch_size / run.passes * model.block_size * model.width
    border = round(values * value_bytes(run.stated.precision))
    vocabulary = vocab_size_of(model, run.dataset)
    ranks = run.world_size
    return (_tensors if splits == "tensors" else _stages)(model, vocabulary, ranks, border)


def _tensors(model: GPT, vocabulary: int, ranks: int, border: int) -> Layout:
    """The blocks' products are divided; embedding, norms and head are whole on each rank."""
    blocks, head = _work(model, vocabulary)
    divided = 12 * model.layers * model.width**2
    return Layout(
        "single",
        tensor=ranks,
        layers=model.layers,
        activation_bytes=border,
        divided=blocks / (blocks + head),
        divided_parameters=divided / gpt_parameters(model, vocabulary),
    )


def _stages(model: GPT, vocabulary: int, ranks: int, border: int) -> Layout:
    """Consecutive blocks per rank, and on the last the head, whose matrix the first also holds."""
    blocks, head = _work(model, vocabulary)
    cuts = [model.layers * cut // ranks for cut in range(ranks + 1)]
    layers = [end - begin for begin, end in itertools.pairwise(cuts)]
    work = [blocks * count / model.layers for count in layers]
    work[-1] += head
    whole, matrix = gpt_parameters(model, vocabulary), vocabulary * model.width
    parameters = [count * block_parameters(model.width) for count in layers]
    parameters[0] += whole - sum(parameters)  # embeddings and the last norm
    parameters[-1] += matrix if ranks > 1 else 0
    return Layout(
        "single",
        pipeline=ranks,
        layers=model.layers,
        activation_bytes=border,
        busiest=max(work) / sum(work),
        largest=max(parameters) / whole,
        tied_bytes=4 * matrix if ranks > 1 else 0,
    )


def _work(model: GPT, vocabulary: int) -> tuple[float, float]:
    """FLOPs of a token's forward pass in all blocks, and in the head."""
    sizes = Transformer.of(model, vocabulary)
    return model.layers * sizes.layer_flops(1, model.block_size), 2 * sizes.embedding


def messages_of(profile: Profile, run: Run) -> tuple[Bucket, ...]:
    """The run's units of transfer, with the bytes left by its compression."""
    # One flat buffer is sent as ZeRO-1 sends its own.
    sharing: Sharing = "zero1" if run.flat else SHARINGS.get(run.strategy, "single")
    # DDP makes the first bucket small only if no size is given.
    first = MIB if run.bucket_cap_mb == DEFAULT_BUCKET_CAP_MB else None
    buckets = sent(profile, sharing, cap_bytes=run.bucket_cap_mb * MIB, first_bytes=first)
    share = COMPRESSED[run.compression]
    return tuple(replace(bucket, bytes=round(bucket.bytes * share)) for bucket in buckets)


def profile_of(phases: Mapping[str, float], gradients: Sequence[Gradient]) -> Profile:
    """A run's profile by its record on one rank: s of a micro-batch's phases, and gradients."""
    backward = phases["backward"]
    return Profile(
        forward_s=phases["forward"],
        backward_s=backward,
        optimizer_s=phases["optimizer"],
        gradients=tuple(
            Bucket(one.ready * backward, one.bytes, block=one.block) for one in gradients
        ),
        data_s=phases["data"] + phases["h2d"],
        other_s=phases["other"],
    )


def calls_of(run: Run, profile: Profile) -> int:
    """The calls per step that a strategy adds to the plain loop.

    These are gradient exchanges, gathers and scatters of FSDP's units, the layers of tensor
    parallelism, and for a pipeline the layers of a stage in each part of a micro-batch.
    """
    splits, layers = run.facts.splits, getattr(run.architecture, "layers", 1)
    if splits == "tensors":
        return int(layers * run.grad_accum)
    if splits == "layers":
        return int(-(-layers // run.world_size) * run.passes * run.grad_accum)
    messages = len(messages_of(profile, run))
    if run.strategy == "fsdp":
        return messages * (2 * run.grad_accum + 1)
    return messages


def memory_of(run: Run, *, device: str = "cpu", layout: Layout | None = None) -> MemoryParts:
    """Peak bytes of a rank, as the backward pass begins or ends, without the process's own.

    The ranks share the run's work by its strategy, or in another `layout`. A pipeline's first stage
    holds the activations of as many micro-batches as are in flight, or of all if fewer, but one
    copy of its weights. FSDP holds a gathered unit twice, because it gathers ahead.
    Weights, gradients and AdamW's moments are fp32, also under autocast, whose copies of weights
    count as activations. Gradients are dropped after each step, so outside the buffers of DDP and
    ZeRO-1 they reuse the memory of the activations that the backward pass frees.
    """
    layout = layout or layout_of(run)
    # The same for all runs that keep the same of a micro-batch.
    alike = {"strategy": "fsdp" if run.strategy == "fsdp" else "single", "grad_accum": 1}
    weights, trainable, activations, copies = _cost(run.model_copy(update=alike), device)
    share = layout.parameter_share
    parts = state_memory(
        trainable * share,
        frozen=(weights - trainable) * share,
        sharded=SHARDED[layout.sharing],
        ranks=layout.data,
        state=FP32,
    )
    in_flight = min(layout.in_flight, run.grad_accum * run.passes)
    on_rank = (activations * in_flight + copies) / layout.pipeline / layout.tensor
    gathered, model = 0.0, run.architecture
    if layout.sharing == "fsdp" and layout.data > 1 and isinstance(model, GPT | TextClassifier):
        gathered = 2 * 4 * block_parameters(model.width) / layout.tensor  # a block in fp32
    workspaces = WORKSPACES if device == "cuda" else 0.0
    parts = replace(parts, activations=on_rank + workspaces, gathered=gathered)
    if run.grad_accum > 1 or run.strategy in {"ddp", "zero1"}:
        return parts
    return replace(parts, gradients=0.0, activations=max(parts.activations, parts.gradients))


@lru_cache(maxsize=4096)
def _cost(run: Run, device: str) -> tuple[int, int, float, int]:
    """Parameters, those that train, and the bytes of activations at the peak of one micro-batch.

    Then those of the weights' copies in low precision.
    """
    cost, model = model_cost(run), run.architecture
    activations: float = cost.activation_bytes
    # FSDP on CUDA gathers weights in low precision, and frees them.
    freed = run.strategy == "fsdp" and device == "cuda" and run.reshard_after_forward
    copies = 0 if freed or run.activation_checkpointing else cost.copy_bytes
    if isinstance(model, GPT):
        # A chunk of logits at the end of the forward pass, on a CPU with probabilities too, or the
        # gradient of the head's weight at the start of the backward pass, which scales a copy.
        tokens = run.stated.micro_batch_size * model.block_size
        chunk = min(tokens, HEAD_CHUNK[device])
        chunk *= value_bytes(run.stated.precision) if device == "cuda" else 8
        activations += vocab_size_of(model, run.dataset) * max(chunk, 4 * model.width)
        if run.activation_checkpointing:
            # The increase with twice as many blocks is theirs; all but one keep their input.
            twice = model.model_copy(update={"layers": 2 * model.layers})
            double = model_cost(run.model_copy(update={"model": twice})).activation_bytes
            blocks = double - cost.activation_bytes
            inputs = 4 * tokens * model.width
            activations += inputs * (model.layers - 1) - blocks * (1 - 1 / model.layers)
    return cost.parameters, cost.trainable, activations, copies
