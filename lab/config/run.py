"""Run: one configuration of training or inference, its id, label and valid combinations."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from lab.config import datasets, models
from lab.config.base import Counts, Frozen, InvalidValueError, Quantization
from lab.config.own import OF_RANK, Script
from lab.config.strategies import (
    OWN,
    SCRIPT,
    SCRIPT_NAME,
    STRATEGIES,
    OwnStrategy,
    Strategy,
    StrategyFacts,
)
from lab.errors import LabError, nearest
from lab.formatting import count

DEFAULT_BUCKET_CAP_MB = 25.0
MANY = 1_000_000_000  # samples or batches: beyond what any machine takes at once
LONGEST = 60  # characters of a part of a label
POWERSGD_FIRST_STEP = 2  # before it, DDP may still change its buckets
# Parts of a model: ranks that hold them see the same samples.
_MODEL_PARTS = {"tensors", "layers"}
# Settings of a script's run that control its measurement and need not be in its command.
_OF_MEASURING = {"model", "data", "strategy", "world_size", "steps", "warmup_steps", "needs_device"}
_STATED = {"global_batch_size", "micro_batch_size", "grad_accum", "precision"}
PrecisionName = Literal["fp32", "tf32", "bf16", "fp16"]
# Explicit mantissa bits of a product's inputs: IEEE 754, and for TF32 NVIDIA's A100 whitepaper.
MANTISSA_BITS: dict[PrecisionName, int] = {"fp32": 23, "tf32": 10, "bf16": 7, "fp16": 10}
_NAMES = {"powersgd": "PowerSGD", "gpipe": "GPipe", "1f1b": "1F1B"}


def value_bytes(precision: str) -> int:
    """Bytes of a value that a product in this precision returns; TF32 rounds only inside it."""
    return 4 if precision in {"fp32", "tf32"} else 2


@dataclass(frozen=True)
class LabelFormat:
    """How a label shows a setting that is not at its default, and if it is 1.

    Those that are `last` follow all others.
    """

    text: str
    one: str = ""
    last: bool = False


class InferenceSettings(Frozen):
    """The fields of a Run that inference needs.

    An inference run is a training run plus what is done with its model. Unless the model already
    exists, it is trained on one process as the other fields specify; then a quantized copy and the
    base run alternately. A language model generates at every pair of a prompt length and a batch
    size; a classifier classifies batches of each size. Batch sizes are samples over all ranks.
    """

    task: Literal["train", "inference"] = "train"
    needs_device: Literal["any", "cpu", "cuda"] = "any"  # skipped if the cluster has none
    quantization: Quantization = "none"  # of the copy compared with the base
    # Of the base, in which the other is made. Left out of dumps at its default: predictions that
    # were frozen before it keep their digest.
    base_precision: Annotated[Literal["fp32", "bf16"], LabelFormat("base in {}")] = Field(
        default="fp32", exclude_if=lambda precision: precision == "fp32"
    )
    prompt_tokens: Counts = (64,)
    batch_sizes: Counts = (1, 8)
    new_tokens: int = Field(default=32, ge=2, le=1_000_000)  # generated per sequence
    rounds: int = Field(default=7, ge=5, le=10_000)  # with base and copy in turn


# Settings that a training run ignores.
INFERENCE_ONLY = InferenceSettings.model_fields.keys() - {"task", "needs_device"}


class Stated(NamedTuple):
    """What every run of the lab's own training specifies, and a script or table may leave open."""

    global_batch_size: int
    micro_batch_size: int
    precision: PrecisionName


class Run(InferenceSettings):
    """One configuration: everything that changes the measurement, and nothing about where it runs.

    `world_size` counts the devices that share the work. Batches are in samples: `global_batch_size
    = micro_batch_size * grad_accum * data_parallel_size`, the last being the world size unless
    ranks split the model and see the same samples. Any of `global_batch_size`, `micro_batch_size`
    and `grad_accum` that is not given follows from the others. `steps` counts optimizer steps; the
    first `warmup_steps` of them are excluded from every measure. A script decides batch sizes and
    precision itself, so they are None unless the study states them.
    """

    model: datasets.ModelField = "gpt-nano"
    data: Annotated[datasets.DataField, LabelFormat("{}")] = "stdlib"
    strategy: Strategy = "ddp"
    # What makes a strategy of the user's own, whose reference is `strategy`. Left out of dumps
    # if there is none: predictions that were frozen before it keep their digest.
    own_strategy: OwnStrategy | None = Field(default=None, exclude_if=lambda own: own is None)
    precision: PrecisionName | None = "fp32"
    world_size: int = Field(default=1, ge=1, le=1_000_000)
    global_batch_size: int | None = Field(ge=1, le=MANY)
    micro_batch_size: int | None = Field(ge=1, le=MANY)
    grad_accum: Annotated[int, LabelFormat("accumulation {}")] = Field(default=1, ge=1, le=MANY)
    steps: int = Field(default=60, ge=2, le=100_000_000)
    warmup_steps: int = Field(default=10, ge=0, le=100_000_000)
    learning_rate: Annotated[float, LabelFormat("learning rate {}", last=True)] = Field(
        default=1e-3, gt=0, le=10
    )
    min_learning_rate: Annotated[float, LabelFormat("minimum learning rate {}", last=True)] = Field(
        default=1e-4, ge=0, le=10
    )
    lr_warmup_steps: int = Field(default=10, ge=0, le=100_000_000)
    weight_decay: Annotated[float, LabelFormat("weight decay {}", last=True)] = Field(
        default=0.1, ge=0
    )
    grad_clip: Annotated[float, LabelFormat("clipping at {}", last=True)] = Field(default=1.0, gt=0)
    compile: Annotated[bool, LabelFormat("compiled")] = False
    seed: Annotated[int, LabelFormat("seed {}", last=True)] = Field(default=1337, ge=0, le=2**31)
    eval_batches: int = Field(default=4, ge=1, le=MANY)  # global batches of held-out samples
    # MiB of gradients that DDP sends at a time; by default its first bucket holds 1 MiB.
    bucket_cap_mb: Annotated[float, LabelFormat("buckets of {} MiB")] = Field(
        default=DEFAULT_BUCKET_CAP_MB, gt=0, le=1_000_000
    )
    # Gradients live in DDP's buckets, not beside them.
    gradient_as_bucket_view: Annotated[bool, LabelFormat("gradients beside the buckets")] = True
    # Promises DDP that every step uses the same parameters.
    static_graph: Annotated[bool, LabelFormat("static graph")] = False
    compression: Annotated[
        Literal["none", "bf16", "fp16", "powersgd"], LabelFormat("{} on the link")
    ] = "none"
    powersgd_rank: Annotated[int, LabelFormat("rank-{} approximation")] = Field(
        default=1, ge=1, le=1024
    )
    # naive_ddp sends all gradients in one all-reduce, not one by one.
    flat: Annotated[bool, LabelFormat("flat")] = False
    # fsdp frees gathered parameters until the backward pass.
    reshard_after_forward: Annotated[bool, LabelFormat("no resharding")] = True
    # Ranks that share one copy of the model in fsdp; None: all of them.
    shard_size: Annotated[int | None, LabelFormat("shards on {} ranks")] = Field(default=None, ge=2)
    # Order of passes in a pipeline.
    schedule: Annotated[Literal["gpipe", "1f1b"], LabelFormat("{}")] = "gpipe"
    # Parts of a micro-batch in a pipeline; None: as many as it has stages.
    microbatches: Annotated[int | None, LabelFormat("{} microbatches", one="1 microbatch")] = Field(
        default=None, ge=1
    )
    # Blocks keep only their inputs and recompute the rest.
    activation_checkpointing: Annotated[bool, LabelFormat("checkpointing")] = False
    # Fast: slices of tokens made once; classic: a DataLoader that makes each sample on request.
    loader: Annotated[Literal["fast", "classic"], LabelFormat("{} loader")] = "fast"
    # Processes of the classic loader on each rank.
    loader_workers: Annotated[int, LabelFormat("{} workers", one="1 worker")] = Field(
        default=0, ge=0, le=256
    )
    keep_model: bool = False  # whether the trained model is kept; changes no measurement
    # Whether more steps are traced after the measured ones. It changes no measurement either, but
    # has an id of its own, so that no record without a trace stands for it. Left out of dumps at
    # its default: predictions that were frozen before it keep their digest.
    trace: bool = Field(default=False, exclude_if=lambda traced: not traced)

    @model_validator(mode="before")
    @classmethod
    def _with_own_strategy(cls, content: Any) -> Any:
        """Accept a reference, or a mapping that holds one, as the strategy's name."""
        strategy = content.get("strategy") if isinstance(content, dict) else None
        if isinstance(strategy, dict) or (isinstance(strategy, str) and strategy not in STRATEGIES):
            strategy = OwnStrategy.resolved(strategy)
        if isinstance(strategy, str) and ":" in strategy:
            strategy = content.get("own_strategy") or {"factory": strategy}
        if isinstance(strategy, dict) and isinstance(strategy.get("factory"), str):
            return content | {"strategy": strategy["factory"], "own_strategy": strategy}
        return content

    @model_validator(mode="before")
    @classmethod
    def _decided_by_script(cls, content: Any) -> Any:
        """Leave open what a script decides, without guessing."""
        model = content.get("model") if isinstance(content, dict) else None
        kind = model.get("kind") if isinstance(model, dict) else getattr(model, "kind", "")
        if kind != "script":
            return content
        unknown = dict.fromkeys(("global_batch_size", "micro_batch_size", "precision"))
        return unknown | {"strategy": SCRIPT_NAME, "data": {"kind": "script"}} | content

    @model_validator(mode="before")
    @classmethod
    def _complete_batch(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        names = ("global_batch_size", "micro_batch_size", "grad_accum")
        whole, micro, accum = (content.get(name) for name in names)
        facts = STRATEGIES.get(str(content.get("strategy")))
        world = 1 if facts and facts.splits in _MODEL_PARTS else content.get("world_size", 1)
        sizes = [size for size in (whole, micro, accum) if size is not None]
        if not all(type(size) is int and size > 0 for size in (world, *sizes)):
            return content
        if whole and micro and not accum and whole % (micro * world) == 0:
            accum = whole // (micro * world)
        accum = accum or 1
        if whole and not micro:
            micro = max(whole // (accum * world), 1)
        elif micro and not whole:
            whole = micro * accum * world
        if whole is None:
            return content
        return content | dict(zip(names, (whole, micro, accum), strict=True))

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if faults := list(self._conflicts()):
            raise InvalidValueError(*faults[0], *faults[1:])
        return self

    def _conflicts(self) -> Conflicts:
        return conflicts(self)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """What a notebook shows of a run: all of its fields would fill a paragraph."""
        yield None, self.label
        yield "id", self.id

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with changed fields and a new id; the changes are not validated."""
        copy = super().model_copy(update=update, deep=deep)
        copy.__dict__.pop("id", None)
        return copy

    @cached_property
    def id(self) -> str:
        """Ten hexadecimal digits of the SHA-256 of all that changes the measurement.

        Presets count as what they stand for; fields at their defaults are left out, so that a field
        added later does not rename existing runs.
        """
        unused = {"model", "data", "keep_model"}
        if self.task == "train":
            unused |= INFERENCE_ONLY
        content = self.model_dump(mode="json", exclude_defaults=True, exclude=unused)
        # A script's location does not affect what it does.
        content["model"] = self.architecture.model_dump(mode="json", exclude={"directory"})
        content["data"] = self.dataset.model_dump(mode="json")
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:10]

    @property
    def stated(self) -> Stated:
        """Its batches and precision, for computing with them; LabError if one is None."""
        whole, micro, precision = self.global_batch_size, self.micro_batch_size, self.precision
        if whole is None or micro is None or precision is None:
            raise LabError(f"{self.label}: its batches and precision are not all known")
        return Stated(whole, micro, precision)

    @property
    def facts(self) -> StrategyFacts:
        """The facts of its strategy."""
        if self.strategy == SCRIPT_NAME:
            return SCRIPT
        return OWN if self.own_strategy else STRATEGIES[self.strategy]

    @property
    def data_parallel_size(self) -> int:
        """How many devices see different samples."""
        return 1 if self.facts.splits in _MODEL_PARTS else self.world_size

    @property
    def passes(self) -> int:
        """The number of parts into which a pipeline splits a micro-batch; 1 for others."""
        return (self.microbatches or self.world_size) if self.facts.splits == "layers" else 1

    @property
    def processes(self) -> int:
        """How many ranks a job of this run has."""
        return 1 if self.facts.single_process else self.world_size

    @property
    def devices(self) -> int:
        """How many devices each rank drives."""
        return self.world_size // self.processes

    @property
    def device_needed(self) -> Literal["any", "cpu", "cuda"]:
        """The kind of device that it requires."""
        gpus_only = self.precision == "tf32" or (self.facts.gpus_only and self.world_size > 1)
        return "cuda" if gpus_only else self.needs_device

    @property
    def script(self) -> Script | None:
        """The script that it runs instead of a model, data and a strategy."""
        return self.model if isinstance(self.model, Script) else None

    @property
    def architecture(self) -> models.Model:
        """The model's configuration, looked up if it is a preset's name."""
        return models.MODELS[self.model] if isinstance(self.model, str) else self.model

    @property
    def dataset(self) -> datasets.Data:
        """The data set's configuration, looked up if it is a name."""
        return datasets.DATASETS[self.data] if isinstance(self.data, str) else self.data

    @property
    def names(self) -> dict[str, str]:
        """The names of model and data set, or their labels if they have none.

        A user's own strategy is named after its factory, with its arguments.
        """
        parts = {"model": self.model, "data": self.data}
        names = {k: part if isinstance(part, str) else part.label for k, part in parts.items()}
        own = self.own_strategy
        return names | ({"own_strategy": ", ".join(own.names)} if own else {})

    @property
    def label(self) -> str:
        """A short name: model, strategy, world size, batch, precision, unusual settings.

        The lengths of training and evaluation are left out, and so are the end of long arguments
        and the outer folders of a script.
        """
        model, *parts = self.label_parts
        parts = [part if len(part) <= LONGEST else f"{part[:LONGEST]}…" for part in parts]
        if len(model) > LONGEST:
            end = model[-LONGEST:]
            model = f"…{end[max(end.find('/'), 0) :]}" if self.script else f"{model[:LONGEST]}…"
        return ", ".join([" ".join([model, *parts[:2]]), *parts[2:]])

    @property
    def label_parts(self) -> list[str]:
        """The words of its label: model, strategy or task, number of devices, the rest."""
        names, (model, *sizes) = self.names, self.model_words
        place = f"x{self.world_size}"
        if self.needs_device != "any":
            place += f" on {self.needs_device.upper()}"
        hidden = {"data"} if self.script else set()
        values = {n: names.get(n, getattr(self, n)) for n in _WORDS if n not in hidden}
        settings = [
            setting_label(name, value)
            for name, value in values.items()
            if not self.has_default(name)
        ]
        if self.task == "inference":
            return [model, "inference", place, self.quantization, *sizes, *settings]
        stated = [f"batch {self.global_batch_size}"] if self.global_batch_size else []
        stated += [self.precision] if self.precision else []
        strategy, *args = self.own_strategy.names if self.own_strategy else [self.strategy]
        return [model, strategy, place, *stated, *sizes, *args, *settings]

    @property
    def model_words(self) -> list[str]:
        """The model's name and its sizes, or a script's with its arguments for this run."""
        if self.script is None:
            return self.names["model"].split(", ")
        stay = {name: f"{{{name}}}" for name in OF_RANK}
        values = {name: getattr(self, name) for name in Run.model_fields} | stay
        arguments = " ".join(self.script.arguments(values))
        return [self.script.place, *([arguments] if arguments else [])]

    def has_default(self, name: str) -> bool:
        """Whether a setting has its default value."""
        return bool(getattr(self, name) == _DEFAULTS[name])


_ON = ("on CPU", "on CUDA")
_DEFAULTS = {name: field.default for name, field in Run.model_fields.items()}
_WORDS = {
    name: words
    for last in (False, True)
    for name, field in Run.model_fields.items()
    for words in field.metadata
    if isinstance(words, LabelFormat) and words.last == last
}


def setting_label(setting: str, value: Any) -> str:
    """A setting with its value in a few words: `flat`, `bf16 on the link`, `buckets of 100 MiB`."""
    words = _WORDS.get(setting, LabelFormat(f"{setting.replace('_', ' ')} {{}}"))
    if words.one and value == 1:
        return words.one
    if isinstance(value, float):
        value = f"{value:g}"
    return words.text.format(_NAMES.get(value, value) if isinstance(value, str) else value)


Conflicts = Iterator[tuple[str, str]]


def conflicts(run: Run) -> Conflicts:
    """Every conflict between the fields of a run: what is wrong and what to do about it."""
    yield from _work(run)
    if run.script:
        yield from _of_script(run, run.script)
        return
    yield from _strategy(run)
    yield from _ddp(run)
    yield from _model_parts(run)
    yield from _inference(run)


def _work(run: Run) -> Conflicts:
    whole, unit = run.global_batch_size, run.grad_accum * run.data_parallel_size
    decided = {"global_batch_size": whole, "precision": run.precision}
    for name, value in decided.items():
        if value is None and not run.script:
            yield f"{name} is null", "give it a value"
            return
    micro = run.micro_batch_size
    if whole is not None and micro is not None and micro * unit != whole:
        divisor = f"world_size {run.world_size}"
        if run.data_parallel_size != run.world_size:
            divisor = f"1, because all ranks of '{run.strategy}' see the same samples"
        # Other than what would follow from the rest, it was stated, and grad_accum may follow.
        stated = micro != max(whole // unit, 1)
        size = f"micro_batch_size{f' {micro}' * stated}"
        factors = f"{size} x grad_accum {run.grad_accum} x {divisor}"
        least = unit * micro if stated else unit
        fits = {max(whole // least, 1) * least, math.ceil(whole / least) * least}
        if stated and run.grad_accum > 1:
            fits = {least}
        advice = f"nearest that fits: {' or '.join(map(str, sorted(fits)))}"
        yield f"global_batch_size {whole} is not {factors}", advice
    if misfit := datasets.misfit(run.architecture, run.dataset):
        yield misfit
    if run.loader_workers and run.loader == "fast":
        what = f"loader_workers {run.loader_workers}, but the fast loader has none"
        yield what, "leave it out, or use loader 'classic'"
    if run.warmup_steps >= run.steps:
        steps = count(run.steps, "step")
        what = f"warmup_steps {run.warmup_steps} leaves none of {steps} to measure"
        yield what, "leave at least one"


def _of_script(run: Run, script: Script) -> Conflicts:
    if run.strategy != SCRIPT_NAME:
        yield f"strategy '{run.strategy}' with a script, which has its own", "leave it out"
    if run.dataset != datasets.ScriptData():
        yield "data with a script, which has its own", "leave it out"
    names = [*OF_RANK, *(set(Run.model_fields) - {"model", "data", "strategy", "own_strategy"})]
    for name in dict.fromkeys(script.placeholders):
        if name not in names:
            yield f"unknown placeholder '{{{name}}}' in command", nearest(name, names)
        elif name not in OF_RANK and getattr(run, name) is None:
            yield f"command names '{{{name}}}', which has no value", f"give {name} a value"
    for name in Run.model_fields:
        used = name in {*_OF_MEASURING, *_STATED, *script.placeholders}
        if not used and not run.has_default(name):
            yield f"{name} never reaches the script", f"put {{{name}}} into its command"
    if run.warmup_steps < 1:
        what = "warmup_steps 0, but the first step of a script shows what to measure in the others"
        yield what, "use at least 1"
    if script.launcher == "python" and run.world_size != 1:
        what = f"launcher 'python' starts one process, but world_size is {run.world_size}"
        yield (
            what,
            "use world_size 1 (--ranks 1), or launcher 'torchrun' if it uses torch.distributed",
        )
    if run.task != "train":
        yield "inference is measured on models of the lab, not on a script", "set task: train"


def _strategy(run: Run) -> Conflicts:
    name, facts = f"strategy '{run.strategy}'", run.facts
    if run.strategy == SCRIPT_NAME:
        what = f"{name} is for scripts, but the model is not one"
        yield what, "set model: {kind: script, command: train.py}"
        return
    if run.own_strategy and run.strategy != run.own_strategy.factory:
        what = f"own_strategy together with {name}"
        yield what, "write strategy: {kind: python, factory: 'module:name'}"
    if facts.splits == "nothing" and run.world_size != 1:
        what = f"{name} has one rank, but world_size is {run.world_size}"
        yield what, "use 'ddp' or world_size 1"
    for owner, owned in STRATEGIES.items():
        for setting in owned.settings if owner != run.strategy else ():
            if not run.has_default(setting):
                what = f"{setting} is a setting of {owned.label}, which {name} does not have"
                yield what, f"leave it out, or use '{owner}'"
    if run.precision == "tf32" and run.needs_device == "cpu":
        what = "precision tf32 needs a GPU, but needs_device is cpu"
        yield what, "use fp32, or leave out needs_device"
    if run.precision == "fp16" and facts.partial_gradients:
        what = "precision fp16 needs all gradients to scale the loss"
        yield f"{what}, but a rank of '{run.strategy}' has only some of them", "use bf16"
    if run.compile and not facts.compiles:
        what = f"compile does not work with {name}, which acts between the modules of a model"
        yield what, "set compile: false"
    if run.keep_model and run.data_parallel_size != run.world_size:
        what = f"keep_model, but no rank of {run.strategy} has the whole model"
        yield what, "leave it out, or use another strategy"
    if run.shard_size is not None and run.world_size % run.shard_size:
        what = f"shard_size {run.shard_size} does not divide world_size {run.world_size}"
        yield what, "use one that does, or leave it out"


def _ddp(run: Run) -> Conflicts:
    if run.static_graph and run.grad_accum > 1:
        # DDP learns the graph in the first backward pass, which only accumulates gradients.
        what = (
            f"static_graph with grad_accum {run.grad_accum}: the first backward pass sends nothing"
        )
        yield what, "use grad_accum 1, or static_graph: false"
    if run.powersgd_rank != 1 and run.compression != "powersgd":
        what = f"powersgd_rank {run.powersgd_rank} without PowerSGD"
        yield f"{what} (compression '{run.compression}')", "leave it out"
    if run.compression == "powersgd" and run.warmup_steps < POWERSGD_FIRST_STEP:
        what = f"PowerSGD compresses from step {POWERSGD_FIRST_STEP} on"
        what += f", but warmup_steps is {run.warmup_steps}: steps without it would be measured"
        yield what, f"use warmup_steps {POWERSGD_FIRST_STEP} or more"


def _model_parts(run: Run) -> Conflicts:
    splits, model, ranks = run.facts.splits, run.architecture, run.world_size
    if splits not in _MODEL_PARTS:
        return
    if model.kind != "gpt":
        what = f"strategy '{run.strategy}' can only split a GPT, but the model is '{model.kind}'"
        yield what, "use 'ddp' or 'fsdp'"
        return
    if splits == "tensors":
        if model.heads % ranks:
            heads = count(model.heads, "head")
            what = f"world_size {ranks} does not divide the {heads} of the model"
            yield what, "use one that gives every rank the same number"
        return
    if model.layers < ranks:
        what = (
            f"a pipeline of {ranks} stages needs {ranks} layers, but the model has {model.layers}"
        )
        yield what, "use a smaller world_size"
    if run.grad_accum > 1:
        what = f"grad_accum {run.grad_accum}, but a pipeline accumulates over its microbatches"
        yield what, "use grad_accum 1 and more microbatches"
    if run.micro_batch_size is not None and run.micro_batch_size % run.passes:
        what = f"micro_batch_size {run.micro_batch_size} cannot be cut into {run.passes}"
        yield f"{what} equal microbatches", "use a number that divides it"
    if run.schedule == "1f1b" and run.passes < ranks:
        what = f"schedule '1f1b' needs a microbatch for each of {ranks} stages"
        yield f"{what}, but microbatches is {run.passes}", f"use at least {ranks}"


def _inference(run: Run) -> Conflicts:
    if run.task == "train":
        for name in ("quantization", "base_precision"):
            if not run.has_default(name):
                what = f"{name} is a setting of inference, but this run trains"
                yield what, "leave it out, or use task: inference"
        return
    if run.trace:
        yield "trace is a setting of training, but this run is inference", "leave it out"
    model, longest = run.architecture, max(run.prompt_tokens) + run.new_tokens
    if isinstance(model, models.PythonModel):
        what = "inference is measured on a language model or a classifier of the lab"
        yield f"{what}, not on a model of your own", "set task: train"
    elif not isinstance(model, models.GPT):
        for name in ("prompt_tokens", "new_tokens"):
            if not run.has_default(name):
                what = f"{name} is a setting of text generation, but {model.label} classifies"
                yield what, "leave it out, or choose a GPT"
    elif longest > model.block_size:
        what = (
            f"prompt_tokens {max(run.prompt_tokens)} plus new_tokens {run.new_tokens} is {longest}"
        )
        what += f", but the model has positions for {model.block_size}"
        yield what, "use fewer tokens, or a model with a larger block_size"
    for size in run.batch_sizes:
        if size % run.world_size:
            what = f"batch_sizes {size} is not divisible by world_size {run.world_size}"
            yield what, f"use a multiple of {run.world_size}"


def distinct_labels(runs: Sequence[Run]) -> tuple[dict[Run, str], str]:
    """Labels without the words that all share, and those words; sizes of models if needed."""
    parts = {run: run.label_parts for run in runs}
    if len(parts) > 1:
        parts = _device_apart(parts)
    shared = set.intersection(*map(set, parts.values())) if len(parts) > 1 else set()
    common = _joined(next(iter(parts.values())), shared) if shared else ""
    sizes = {run: set(run.model_words[1:]) for run in runs}
    labels = {run: _joined(own, set(own) - shared - sizes[run]) for run, own in parts.items()}
    if len(set(labels.values())) < len(labels):
        labels = {run: _joined(own, set(own) - shared) for run, own in parts.items()}
    return {run: label or run.label for run, label in labels.items()}, common


def _device_apart(parts: Mapping[Run, list[str]]) -> dict[Run, list[str]]:
    """The parts of labels, with the kind of device as one of its own if all need the same."""
    for device in _ON:
        if all(own[2:3] and own[2].endswith(f" {device}") for own in parts.values()):
            return {
                run: [*own[:2], own[2].removesuffix(f" {device}"), device, *own[3:]]
                for run, own in parts.items()
            }
    return dict(parts)


def _joined(parts: Sequence[str], words: set[str]) -> str:
    """These words of a label: `gpt-nano ddp x2, batch 8`."""
    length = 4 if parts[3:4] and parts[3] in _ON else 3
    head = " ".join(word for word in parts[:length] if word in words)
    rest = (word for word in parts[length:] if word in words)
    return ", ".join([*([head] if head else []), *rest])
