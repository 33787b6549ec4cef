"""What does not go together in a Run: each conflict as a sentence, and after `||` what to do about it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lab import workloads
from lab.words import SETTINGS, is_default

if TYPE_CHECKING:
    from lab.study import Run

POWERSGD_FIRST_STEP = 2  # before it, DDP may still change its buckets
# A rank of these holds a part of the gradients only, and a loss scale must be one for all of them.
PARTIAL_GRADIENTS = {"zero1", "fsdp", "tensor_parallel", "pipeline_parallel"}
# These call torch.compile's result as they call the model; the others hook into modules, or call parts of them.
COMPILED = {"single", "naive_ddp", "ddp", "zero1"}


def of(run: Run) -> Iterator[str]:
    """Every conflict between the fields of a run."""
    yield from _work(run)
    yield from _foreign_settings(run)
    yield from _ddp(run)
    yield from _numbers(run)
    yield from _shares_of_the_model(run)
    yield from _kept_model(run)
    yield from _inference(run)


def _work(run: Run) -> Iterator[str]:
    parts = run.micro_batch_size * run.grad_accum * run.data_parallel_size
    if parts != run.global_batch_size:
        unit = run.grad_accum * run.data_parallel_size
        fits = sorted({max(run.global_batch_size // unit, 1) * unit, math.ceil(run.global_batch_size / unit) * unit})
        yield (
            f"global_batch_size {run.global_batch_size} is not micro_batch_size x grad_accum {run.grad_accum} x "
            f"{_divisor(run)} || nearest that divides: {' or '.join(map(str, fits))}"
        )
    if unfit := workloads.misfit(run.architecture, run.dataset):
        yield unfit
    if run.loader_workers and run.loader == "fast":
        yield f"loader_workers {run.loader_workers}: the fast loader has none || leave it out, or use loader 'classic'"
    if run.warmup_steps >= run.steps:
        yield f"warmup_steps {run.warmup_steps} leaves nothing of steps {run.steps} || measure at least one step"


def _divisor(run: Run) -> str:
    if run.data_parallel_size == run.world_size:
        return f"world_size {run.world_size}"
    return f"1, as all ranks of '{run.strategy}' see the same samples"


def _foreign_settings(run: Run) -> Iterator[str]:
    if run.strategy == "single" and run.world_size != 1:
        yield f"strategy 'single' has one rank, world_size is {run.world_size} || use 'ddp' or world_size 1"
    for name, (owner, title) in SETTINGS.items():
        if run.strategy != owner and not is_default(run, name):
            yield f"{name} is a setting of {title}, strategy '{run.strategy}' has none || leave it out, or use '{owner}'"


def _ddp(run: Run) -> Iterator[str]:
    if run.static_graph and run.grad_accum > 1:
        yield (
            f"static_graph with grad_accum {run.grad_accum}: DDP learns the graph in a backward pass that sends gradients, "
            "and the first one sends none || grad_accum 1, or static_graph: false"
        )
    if run.powersgd_rank != 1 and run.compression != "powersgd":
        yield f"powersgd_rank {run.powersgd_rank} without PowerSGD (compression '{run.compression}') || leave it out"
    if run.compression == "powersgd" and run.warmup_steps < POWERSGD_FIRST_STEP:
        yield (
            f"PowerSGD compresses from step {POWERSGD_FIRST_STEP} on, warmup_steps is {run.warmup_steps}: "
            f"steps without it would be measured || warmup_steps {POWERSGD_FIRST_STEP} or more"
        )


def _numbers(run: Run) -> Iterator[str]:
    if run.precision == "fp16" and run.strategy in PARTIAL_GRADIENTS:
        yield f"precision fp16 scales the loss by all gradients, a rank of '{run.strategy}' sees a part of them || use bf16"
    if run.compile and run.strategy not in COMPILED:
        yield f"compile with strategy '{run.strategy}', which works between the modules of the model || compile: false"


def _shares_of_the_model(run: Run) -> Iterator[str]:
    if run.shard_size is not None and run.world_size % run.shard_size:
        yield f"shard_size {run.shard_size} does not divide world_size {run.world_size} || one that does, or leave it out"
    if run.strategy not in {"tensor_parallel", "pipeline_parallel"}:
        return
    model = run.architecture
    if model.kind != "gpt":
        yield f"strategy '{run.strategy}' knows how to divide a GPT, the model is of kind '{model.kind}' || use 'ddp' or 'fsdp'"
    elif run.strategy == "tensor_parallel" and model.heads % run.world_size:
        yield f"world_size {run.world_size} does not divide the {model.heads} heads of the model || give each rank equally many"
    elif run.strategy == "pipeline_parallel":
        yield from _pipeline(run, layers=model.layers)


def _pipeline(run: Run, *, layers: int) -> Iterator[str]:
    stages, parts = run.world_size, run.microbatches or run.world_size
    if layers < stages:
        yield f"a pipeline of {stages} stages needs as many layers, the model has {layers} || a smaller world_size"
    if run.grad_accum > 1:
        yield f"grad_accum {run.grad_accum}: a pipeline adds up gradients over its microbatches || grad_accum 1 and more microbatches"
    if run.micro_batch_size % parts:
        yield f"micro_batch_size {run.micro_batch_size} cannot be cut into {parts} equal microbatches || a number that divides it"
    if run.schedule == "1f1b" and parts < stages:
        yield f"schedule '1f1b' needs a microbatch for each of {stages} stages, microbatches is {parts} || at least {stages}"


def _kept_model(run: Run) -> Iterator[str]:
    if run.keep_model and run.data_parallel_size != run.world_size:
        yield f"keep_model: no rank of {run.strategy} has the whole model || leave it out, or use another strategy"


def _inference(run: Run) -> Iterator[str]:
    if run.task == "train":
        if run.quantization != "none":
            yield "quantization is a setting of inference, this run trains || leave it out, or use task: inference"
        return
    longest = max(run.prompt_tokens) + run.new_tokens
    if not isinstance(run.architecture, workloads.GPT):
        for name in ("prompt_tokens", "new_tokens"):
            if not is_default(run, name):
                yield f"{name} is a setting of generated text, {run.architecture.label} classifies || leave it out, or choose a gpt"
    elif longest > run.architecture.block_size:
        yield (
            f"prompt_tokens {max(run.prompt_tokens)} and new_tokens {run.new_tokens} are {longest}, the model has "
            f"positions for {run.architecture.block_size} || fewer tokens, or a model with a larger block_size"
        )
    for size in run.batch_sizes:
        if size % run.world_size:
            yield f"batch_sizes {size} is not divisible by world_size {run.world_size} || a multiple of {run.world_size}"
