"""What is asked for: Run (one configuration) and Study (a grid of them)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from lab.config import datasets, labels, models
from lab.config.base import Counts, Frozen, Quantization
from lab.config.labels import is_default
from lab.config.strategies import STRATEGIES, Strategy


class InferenceSettings(Frozen):
    """The fields of a Run that inference needs.

    An inference run is a training run and what is done with its model: the model is trained as the other fields say,
    on one process, unless it is there already; then a quantized copy works in turn with the fp32 base. A language model
    generates, at every pair of a prompt length and a batch size; a classifier classifies batches of each size. Batch
    sizes are samples over all ranks.
    """

    task: Literal["train", "inference"] = "train"
    needs_device: Literal["any", "cpu", "cuda"] = Field(
        default="any", description="skipped where the cluster has none"
    )
    quantization: Quantization = Field(
        default="none", description="of the copy that is compared with the base"
    )
    prompt_tokens: Counts = (64,)
    batch_sizes: Counts = (1, 8)
    new_tokens: int = Field(default=32, ge=2, le=1_000_000, description="generated per sequence")
    rounds: int = Field(default=7, ge=5, le=10_000, description="of base and copy in turn")


INFERENCE_ONLY = {"quantization", "prompt_tokens", "batch_sizes", "new_tokens", "rounds"}
# The parts of a model among ranks that all see the same samples.
_MODEL_PARTS = {"tensors", "layers"}
DEFAULT_BUCKET_CAP_MB = 25.0


class Run(InferenceSettings):
    """One configuration: everything that changes the measurement, and nothing about where it runs.

    `world_size` counts the devices that share the work. Batches are in samples:
    `global_batch_size = micro_batch_size * grad_accum * data_parallel_size`, the last being the world size but where
    ranks share out the model and not the samples; what is not given of `global_batch_size`, `micro_batch_size` and
    `grad_accum` follows from the others. `steps` counts optimizer steps; the first `warmup_steps` of them are left out
    of every measure.
    """

    model: datasets.ModelField = "gpt-nano"
    data: datasets.DataField = "stdlib"
    strategy: Strategy = "ddp"
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    world_size: int = Field(default=1, ge=1, le=1_000_000)
    global_batch_size: int = Field(ge=1)
    micro_batch_size: int = Field(ge=1)
    grad_accum: int = Field(default=1, ge=1)
    steps: int = Field(default=60, ge=2, le=100_000_000)
    warmup_steps: int = Field(default=10, ge=0)
    learning_rate: float = Field(default=1e-3, gt=0, le=10)
    min_learning_rate: float = Field(default=1e-4, ge=0, le=10)
    lr_warmup_steps: int = Field(default=10, ge=0)
    weight_decay: float = Field(default=0.1, ge=0)
    grad_clip: float = Field(default=1.0, gt=0)
    compile: bool = False
    seed: int = Field(default=1337, ge=0, le=2**31)
    eval_batches: int = Field(default=4, ge=1, description="global batches of held-out samples")
    bucket_cap_mb: float = Field(
        default=DEFAULT_BUCKET_CAP_MB,
        gt=0,
        le=1_000_000,
        description="MiB of gradients that DDP sends at a time; at the default the first bucket holds 1 MiB, as in DDP",
    )
    gradient_as_bucket_view: bool = Field(
        default=True, description="gradients live in DDP's buckets, not beside them"
    )
    static_graph: bool = Field(
        default=False, description="promises DDP that every step uses the same parameters"
    )
    compression: Literal["none", "bf16", "fp16", "powersgd"] = Field(
        default="none", description="of gradients on the link"
    )
    powersgd_rank: int = Field(
        default=1, ge=1, le=1024, description="rank of PowerSGD's approximation"
    )
    flat: bool = Field(
        default=False, description="naive_ddp sends all gradients in one all-reduce, not one by one"
    )
    reshard_after_forward: bool = Field(
        default=True, description="fsdp frees gathered parameters until the backward pass"
    )
    shard_size: int | None = Field(
        default=None,
        ge=2,
        description="ranks that share one copy of the model in fsdp; None: all of them",
    )
    schedule: Literal["gpipe", "1f1b"] = Field(
        default="gpipe", description="order of passes in a pipeline"
    )
    microbatches: int | None = Field(
        default=None,
        ge=1,
        description="parts of a micro-batch in a pipeline; None: as many as it has stages",
    )
    activation_checkpointing: bool = Field(
        default=False, description="blocks keep their inputs alone and compute the rest again"
    )
    loader: Literal["fast", "classic"] = Field(
        default="fast",
        description="fast: slices of tokens made once; classic: a DataLoader that makes each sample when asked",
    )
    loader_workers: int = Field(
        default=0, ge=0, le=256, description="processes of the classic loader on each rank"
    )
    keep_model: bool = Field(
        default=False, description="whether the trained model is kept; changes no measurement"
    )

    @model_validator(mode="before")
    @classmethod
    def _complete_batch(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        whole, micro, accum = (
            given.get(key) for key in ("global_batch_size", "micro_batch_size", "grad_accum")
        )
        facts = STRATEGIES.get(str(given.get("strategy")))
        world = 1 if facts and facts.splits in _MODEL_PARTS else given.get("world_size", 1)
        if not all(
            value is None or (type(value) is int and value > 0)
            for value in (whole, micro, accum, world)
        ):
            return given
        if whole and micro and not accum and whole % (micro * world) == 0:
            accum = whole // (micro * world)
        accum = accum or 1
        if whole and not micro:
            micro = max(whole // (accum * world), 1)
        elif micro and not whole:
            whole = micro * accum * world
        if whole is None:
            return given
        return given | {"global_batch_size": whole, "micro_batch_size": micro, "grad_accum": accum}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for message in conflicts(self):
            raise ValueError(message)
        return self

    @property
    def data_parallel_size(self) -> int:
        """How many devices see samples of their own."""
        return 1 if STRATEGIES[self.strategy].splits in _MODEL_PARTS else self.world_size

    @property
    def processes(self) -> int:
        """How many ranks a job of this run has."""
        return 1 if STRATEGIES[self.strategy].single_process else self.world_size

    @property
    def devices(self) -> int:
        """How many devices each rank drives."""
        return self.world_size // self.processes

    @property
    def device_needed(self) -> Literal["any", "cpu", "cuda"]:
        """The kind of device without which it cannot run: torch's DataParallel divides its work among GPUs only."""
        gpus_only = STRATEGIES[self.strategy].gpus_only and self.world_size > 1
        return "cuda" if gpus_only else self.needs_device

    @property
    def architecture(self) -> models.Model:
        """The model's configuration, looked up where a preset is named."""
        return datasets.model_of(self.model)

    @property
    def dataset(self) -> datasets.Data:
        """The data set's configuration, looked up where it is named."""
        return datasets.data_of(self.data)

    @property
    def id(self) -> str:
        """Ten hexadecimal digits of the SHA-256 of all that changes the measurement.

        Presets count by what they stand for; fields at their defaults are left out, so that a field added later
        does not rename the runs of today.
        """
        unused = {"model", "data", "keep_model"} | (
            set() if self.task == "inference" else INFERENCE_ONLY
        )
        content = self.model_dump(mode="json", exclude_defaults=True, exclude=unused)
        content["model"] = self.architecture.model_dump(mode="json")
        content["data"] = self.dataset.model_dump(mode="json")
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:10]

    @property
    def label(self) -> str:
        """A short name for people: model, strategy, world size, batch, precision, and what is not at its default."""
        return labels.run_label(self)


POWERSGD_FIRST_STEP = 2  # before it, DDP may still change its buckets


def conflicts(run: Run) -> Iterator[str]:
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
        fits = sorted(
            {
                max(run.global_batch_size // unit, 1) * unit,
                math.ceil(run.global_batch_size / unit) * unit,
            }
        )
        yield (
            f"global_batch_size {run.global_batch_size} is not micro_batch_size x grad_accum {run.grad_accum} x "
            f"{_divisor(run)} || nearest that divides: {' or '.join(map(str, fits))}"
        )
    if unfit := datasets.misfit(run.architecture, run.dataset):
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
    if STRATEGIES[run.strategy].splits == "nothing" and run.world_size != 1:
        yield f"strategy '{run.strategy}' has one rank, world_size is {run.world_size} || use 'ddp' or world_size 1"
    for owner, facts in STRATEGIES.items():
        for name in facts.settings:
            if run.strategy != owner and not is_default(run, name):
                yield f"{name} is a setting of {facts.label}, strategy '{run.strategy}' has none || leave it out, or use '{owner}'"


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
    if run.precision == "fp16" and STRATEGIES[run.strategy].partial_gradients:
        yield f"precision fp16 scales the loss by all gradients, a rank of '{run.strategy}' sees a part of them || use bf16"
    if run.compile and not STRATEGIES[run.strategy].compiles:
        yield f"compile with strategy '{run.strategy}', which works between the modules of the model || compile: false"


def _shares_of_the_model(run: Run) -> Iterator[str]:
    if run.shard_size is not None and run.world_size % run.shard_size:
        yield f"shard_size {run.shard_size} does not divide world_size {run.world_size} || one that does, or leave it out"
    splits, model = STRATEGIES[run.strategy].splits, run.architecture
    if splits not in _MODEL_PARTS:
        return
    if model.kind != "gpt":
        yield f"strategy '{run.strategy}' knows how to divide a GPT, the model is of kind '{model.kind}' || use 'ddp' or 'fsdp'"
    elif splits == "tensors" and model.heads % run.world_size:
        yield f"world_size {run.world_size} does not divide the {model.heads} heads of the model || give each rank equally many"
    elif splits == "layers":
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
    if not isinstance(run.architecture, models.GPT):
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
