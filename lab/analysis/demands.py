"""What a run asks of its ranks: how they share the work, what each sends at a time, what each holds."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from lab.analysis.costs import model_cost
from lab.analysis.layouts import Bucket, Layout, Profile, Sharing, buckets_of
from lab.analysis.memory import MemoryParts, rank_memory
from lab.errors import LabError
from lab.study import DEFAULT_BUCKET_CAP_MB, Run
from lab.workloads import GPT, TextClassifier, vocab_size_of

MIB = 2**20
SHARINGS: dict[str, Sharing] = {"single": "single", "ddp": "ddp", "naive_ddp": "naive_ddp", "zero1": "zero1", "fsdp": "fsdp"}
COMPRESSED = {"none": 1.0, "bf16": 0.5, "fp16": 0.5}


def layout_of(run: Run) -> Layout:
    """How a run's ranks share its work; raises LabError for what the step model does not know."""
    if run.compression not in COMPRESSED:
        raise LabError(f"the step model does not know compression {run.compression!r}")
    if run.strategy == "fsdp" and run.shard_size not in {None, run.world_size}:
        raise LabError("the step model does not know FSDP in which the ranks hold several copies of the model")
    if run.strategy in SHARINGS:
        return Layout(SHARINGS[run.strategy], data=run.world_size)
    model = run.architecture
    if run.strategy not in {"tensor_parallel", "pipeline_parallel"} or not isinstance(model, GPT):
        raise LabError(f"the step model does not know strategy {run.strategy!r}")
    samples = run.micro_batch_size if run.strategy == "tensor_parallel" else run.micro_batch_size / passes(run)
    border = round(samples * model.block_size * model.width * (4 if run.precision == "fp32" else 2))
    if run.strategy == "tensor_parallel":
        return Layout("single", tensor=run.world_size, layers=model.layers, activation_bytes=border)
    return Layout("single", pipeline=run.world_size, layers=model.layers, activation_bytes=border)


def passes(run: Run) -> int:
    """Into how many parts a pipeline splits a micro-batch; 1 for other strategies."""
    return (run.microbatches or run.world_size) if run.strategy == "pipeline_parallel" else 1


def in_passes(profile: Profile, parts: int) -> Profile:
    """The profile of one of so many equal parts of a micro-batch."""
    shares = {name: getattr(profile, name) / parts for name in ("data_s", "forward_s", "backward_s")}
    gradients = tuple(bucket.later(1 / parts) for bucket in profile.gradients)
    return replace(profile, gradients=gradients, **shares)


def messages_of(profile: Profile, run: Run) -> tuple[Bucket, ...]:
    """What the run's strategy sends at a time, with the bytes that its compression leaves."""
    gradients = profile.gradients
    if run.strategy == "ddp":
        # Only where no size is given does DDP make the first bucket small.
        first = MIB if run.bucket_cap_mb == DEFAULT_BUCKET_CAP_MB else None
        gradients = buckets_of(gradients, run.bucket_cap_mb * MIB, first_bytes=first)
    elif run.strategy == "zero1" or run.flat:
        gradients = (Bucket(profile.backward_s, profile.gradient_bytes),)
    elif run.strategy == "fsdp" and (unit := largest_unit(run)):
        gradients = buckets_of(gradients, unit)
    return tuple(replace(bucket, bytes=round(bucket.bytes * COMPRESSED[run.compression])) for bucket in gradients)


def largest_unit(run: Run) -> int:
    """Bytes of one block of a transformer in fp32, which FSDP gathers as one; 0 for other models."""
    model = run.architecture
    return 4 * (12 * model.width**2 + 13 * model.width) if isinstance(model, GPT | TextClassifier) else 0


def memory_of(run: Run) -> MemoryParts:
    """Bytes of a rank when its backward pass begins, or ends where that holds more: what the process itself needs is left out.

    Weights, gradients and AdamW's moments are fp32, also under autocast. Gradients are dropped after each step, so that
    outside of the buffers of DDP and ZeRO-1 they share their room with the activations that the backward pass lets go.
    """
    weights, trainable, kept = _cost(run)
    parts = rank_memory(trainable, layout_of(run), activation_bytes=kept, grad_accum=passes(run), largest_unit=largest_unit(run))
    frozen = 4.0 * (weights - trainable)
    if run.grad_accum > 1 or run.strategy in {"ddp", "zero1"}:
        return replace(parts, weights=parts.weights + frozen)
    together = max(parts.activations, parts.gradients)
    return replace(parts, weights=parts.weights + frozen, gradients=0.0, activations=together)


@lru_cache(maxsize=4096)
def _cost(run: Run) -> tuple[int, int, float]:
    """Parameters, those that train, and the bytes of activations at the peak of one micro-batch."""
    cost = model_cost(run)
    kept: float = cost.activation_bytes
    model = run.architecture
    if isinstance(model, GPT):
        # The gradient of the logits is there before they go, and no larger than they are.
        kept += 4 * min(run.micro_batch_size * model.block_size * vocab_size_of(model, run.dataset), 2**24)
        if run.activation_checkpointing:
            inputs = 4 * run.micro_batch_size * model.block_size * model.width
            kept = kept - _blocks(run) * (1 - 1 / model.layers) + inputs * (model.layers - 1)
    return cost.parameters, cost.trainable, kept


def _blocks(run: Run) -> float:
    """Bytes that all blocks of a GPT keep: what is kept more with twice as many of them."""
    model = run.architecture
    twice = run.model_copy(update={"model": model.model_copy(update={"layers": 2 * getattr(model, "layers", 1)})})
    return float(model_cost(twice).activation_bytes - model_cost(run).activation_bytes)
