"""A run's demands on its ranks: how they share its work, what they send, and what they hold."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import lru_cache

from lab.config.datasets import vocab_size_of
from lab.config.models import GPT, TextClassifier
from lab.config.run import DEFAULT_BUCKET_CAP_MB, Run, value_bytes
from lab.errors import LabError
from lab.perfmodel.flops import HEAD_CHUNK, block_parameters, gpt_parameters, model_cost
from lab.perfmodel.layout import SHARINGS, Bucket, Layout, Profile, buckets_of, units_of
from lab.perfmodel.memory import MemoryParts, rank_memory

MIB = 2**20
# Bytes left by a compression of DDP's gradients.
COMPRESSED = {"none": 1.0, "bf16": 0.5, "fp16": 0.5}


def layout_of(run: Run) -> Layout:
    """How a run's ranks share its work; raises LabError for what the step model does not cover."""
    if run.compression not in COMPRESSED:
        raise LabError(f"the step model does not know compression {run.compression!r}")
    if run.strategy == "fsdp" and run.shard_size not in {None, run.world_size}:
        raise LabError("the step model does not know FSDP with several copies of the model")
    if run.strategy in SHARINGS:
        return Layout(SHARINGS[run.strategy], data=run.world_size)
    splits, model = run.facts.splits, run.architecture
    if splits not in {"tensors", "layers"} or not isinstance(model, GPT):
        raise LabError(f"the step model does not know strategy {run.strategy!r}")
    values = run.stated.micro_batch_size / passes(run) * model.block_size * model.width
    border = round(values * value_bytes(run.stated.precision))
    vocabulary = model.vocab_size or vocab_size_of(model, run.dataset)
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
    held = [count * block_parameters(model.width) for count in layers]
    matrix = vocabulary * model.width
    held[0] += matrix
    held[-1] += matrix if ranks > 1 else 0
    return Layout(
        "single",
        pipeline=ranks,
        layers=model.layers,
        activation_bytes=border,
        busiest=max(work) / sum(work),
        largest=max(held) / gpt_parameters(model, vocabulary),
        tied_bytes=4 * matrix if ranks > 1 else 0,
    )


def _work(model: GPT, vocabulary: int) -> tuple[float, float]:
    """FLOPs of a token's forward pass in all blocks, and in the head."""
    width, tokens = model.width, model.block_size
    return model.layers * (24 * width**2 + 4 * tokens * width), 2 * vocabulary * width


def passes(run: Run) -> int:
    """The number of parts into which a pipeline splits a micro-batch; 1 for other strategies."""
    pipelined = run.facts.splits == "layers"
    return (run.microbatches or run.world_size) if pipelined else 1


def messages_of(profile: Profile, run: Run) -> tuple[Bucket, ...]:
    """The run's units of transfer, with the bytes left by its compression."""
    buckets = profile.gradients
    if run.strategy == "ddp":
        # DDP makes the first bucket small only if no size is given.
        first = MIB if run.bucket_cap_mb == DEFAULT_BUCKET_CAP_MB else None
        buckets = buckets_of(buckets, run.bucket_cap_mb * MIB, first_bytes=first)
    elif run.strategy == "zero1" or run.flat:
        buckets = (Bucket(profile.backward_s, profile.gradient_bytes),)
    elif run.strategy == "fsdp":
        unit, known = largest_unit(run), any(one.block is not None for one in buckets)
        # Older records know no blocks; most of a transformer's weights are in blocks of one size.
        buckets = buckets_of(buckets, unit) if unit and not known else units_of(buckets)
    share = COMPRESSED[run.compression]
    return tuple(replace(bucket, bytes=round(bucket.bytes * share)) for bucket in buckets)


def calls_of(run: Run, messages: int) -> int:
    """The calls per step that a strategy adds to the plain loop, for this many messages.

    These are gradient exchanges, gathers and scatters of FSDP's units, the layers of tensor
    parallelism, and for a pipeline the layers of a stage in each part of a micro-batch.
    """
    splits, layers = run.facts.splits, getattr(run.architecture, "layers", 1)
    if splits == "tensors":
        return int(layers * run.grad_accum)
    if splits == "layers":
        return int(-(-layers // run.world_size) * passes(run) * run.grad_accum)
    if run.strategy == "fsdp":
        return messages * (2 * run.grad_accum + 1)
    return messages


def largest_unit(run: Run) -> int:
    """Bytes of a transformer's block in fp32, which FSDP gathers as one; 0 for other models."""
    model = run.architecture
    return 4 * block_parameters(model.width) if isinstance(model, GPT | TextClassifier) else 0


def memory_of(run: Run, *, device: str = "cpu") -> MemoryParts:
    """Peak bytes of a rank, as the backward pass begins or ends, without the process's own.

    Weights, gradients and AdamW's moments are fp32, also under autocast. Gradients are dropped
    after each step, so outside the buffers of DDP and ZeRO-1 they reuse the memory of the
    activations that the backward pass frees.
    """
    weights, trainable, activations = _cost(run, device)
    parts = rank_memory(
        trainable,
        layout_of(run),
        activation_bytes=activations,
        grad_accum=passes(run),
        largest_unit=largest_unit(run),
    )
    parts = replace(parts, weights=parts.weights + 4.0 * (weights - trainable))
    if run.grad_accum > 1 or run.strategy in {"ddp", "zero1"}:
        return parts
    return replace(parts, gradients=0.0, activations=max(parts.activations, parts.gradients))


@lru_cache(maxsize=4096)
def _cost(run: Run, device: str) -> tuple[int, int, float]:
    """Parameters, those that train, and the bytes of activations at the peak of one micro-batch."""
    cost, model = model_cost(run), run.architecture
    activations: float = cost.activation_bytes
    if isinstance(model, GPT):
        # A chunk of logits and its gradient at the end of the forward pass, or the gradient of the
        # head's weight at the start of the backward pass, which scales a copy of it.
        tokens = run.stated.micro_batch_size * model.block_size
        chunk = min(tokens, HEAD_CHUNK[device])
        activations += vocab_size_of(model, run.dataset) * max(8 * chunk, 4 * model.width)
        if run.activation_checkpointing:
            # The increase with twice as many blocks is theirs; all but one keep their input.
            twice = model.model_copy(update={"layers": 2 * model.layers})
            double = model_cost(run.model_copy(update={"model": twice})).activation_bytes
            blocks = double - cost.activation_bytes
            inputs = 4 * tokens * model.width
            activations += inputs * (model.layers - 1) - blocks * (1 - 1 / model.layers)
    return cost.parameters, cost.trainable, activations
