"""What is asked for: Run (one configuration) and Study (a grid of them)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from lab import conflicts, words, workloads
from lab.errors import InputError, Problem, nearest
from lab.inference import INFERENCE_ONLY, InferenceSettings
from lab.workloads import Frozen

ROOT = Path(__file__).resolve().parent.parent
Strategy = Literal[
    "single",
    "naive_ddp",
    "ddp",
    "zero1",
    "fsdp",
    "tensor_parallel",
    "pipeline_parallel",
    "data_parallel",
    "vanilla_data_parallel",
]
# Ranks that work on the same samples, each on its part of the model.
_SPLIT_MODEL = {"tensor_parallel", "pipeline_parallel"}
# One process that drives all devices.
_ONE_PROCESS = {"data_parallel", "vanilla_data_parallel"}
DEFAULT_BUCKET_CAP_MB = 25.0


class Run(InferenceSettings):
    """One configuration: everything that changes the measurement, and nothing about where it runs.

    `world_size` counts the devices that share the work. Batches are in samples:
    `global_batch_size = micro_batch_size * grad_accum * data_parallel_size`, the last being the world size but where
    ranks share out the model and not the samples; what is not given of `global_batch_size`, `micro_batch_size` and
    `grad_accum` follows from the others. `steps` counts optimizer steps; the first `warmup_steps` of them are left out
    of every measure.
    """

    model: workloads.ModelField = "gpt-nano"
    data: workloads.DataField = "stdlib"
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
    gradient_as_bucket_view: bool = Field(default=True, description="gradients live in DDP's buckets, not beside them")
    static_graph: bool = Field(default=False, description="promises DDP that every step uses the same parameters")
    compression: Literal["none", "bf16", "fp16", "powersgd"] = Field(default="none", description="of gradients on the link")
    powersgd_rank: int = Field(default=1, ge=1, le=1024, description="rank of PowerSGD's approximation")
    flat: bool = Field(default=False, description="naive_ddp sends all gradients in one all-reduce, not one by one")
    reshard_after_forward: bool = Field(default=True, description="fsdp frees gathered parameters until the backward pass")
    shard_size: int | None = Field(
        default=None, ge=2, description="ranks that share one copy of the model in fsdp; None: all of them"
    )
    schedule: Literal["gpipe", "1f1b"] = Field(default="gpipe", description="order of passes in a pipeline")
    microbatches: int | None = Field(
        default=None, ge=1, description="parts of a micro-batch in a pipeline; None: as many as it has stages"
    )
    activation_checkpointing: bool = Field(default=False, description="blocks keep their inputs alone and compute the rest again")
    loader: Literal["fast", "classic"] = Field(
        default="fast", description="fast: slices of tokens made once; classic: a DataLoader that makes each sample when asked"
    )
    loader_workers: int = Field(default=0, ge=0, le=256, description="processes of the classic loader on each rank")
    keep_model: bool = Field(default=False, description="whether the trained model is kept; changes no measurement")

    @model_validator(mode="before")
    @classmethod
    def _complete_batch(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        whole, micro, accum = (given.get(key) for key in ("global_batch_size", "micro_batch_size", "grad_accum"))
        world = 1 if given.get("strategy") in _SPLIT_MODEL else given.get("world_size", 1)
        if not all(value is None or (type(value) is int and value > 0) for value in (whole, micro, accum, world)):
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
        for message in conflicts.of(self):
            raise ValueError(message)
        return self

    @property
    def data_parallel_size(self) -> int:
        """How many devices see samples of their own."""
        return 1 if self.strategy in _SPLIT_MODEL else self.world_size

    @property
    def processes(self) -> int:
        """How many ranks a job of this run has."""
        return 1 if self.strategy in _ONE_PROCESS else self.world_size

    @property
    def devices(self) -> int:
        """How many devices each rank drives."""
        return self.world_size // self.processes

    @property
    def device_needed(self) -> Literal["any", "cpu", "cuda"]:
        """The kind of device without which it cannot run: torch's DataParallel divides its work among GPUs only."""
        return "cuda" if self.strategy == "data_parallel" and self.world_size > 1 else self.needs_device

    @property
    def architecture(self) -> workloads.Model:
        """The model's configuration, looked up where a preset is named."""
        return workloads.model_of(self.model)

    @property
    def dataset(self) -> workloads.Data:
        """The data set's configuration, looked up where it is named."""
        return workloads.data_of(self.data)

    @property
    def id(self) -> str:
        """Ten hexadecimal digits of the SHA-256 of all that changes the measurement.

        Presets count by what they stand for; fields at their defaults are left out, so that a field added later
        does not rename the runs of today.
        """
        unused = {"model", "data", "keep_model"} | (set() if self.task == "inference" else INFERENCE_ONLY)
        content = self.model_dump(mode="json", exclude_defaults=True, exclude=unused)
        content["model"] = self.architecture.model_dump(mode="json")
        content["data"] = self.dataset.model_dump(mode="json")
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:10]

    @property
    def label(self) -> str:
        """A short name for people: model, strategy, world size, batch, precision, and what is not at its default."""
        return words.label(self)


class Task(NamedTuple):
    """One job of a study: a run and the number of its repeat, from 0."""

    run: Run
    repeat: int

    @property
    def label(self) -> str:
        """A short name for people."""
        return f"{self.run.label}, repeat {self.repeat}"


class Study(Frozen):
    """A question, the runs that answer it, and the folder that holds them."""

    folder: Path
    kind: Literal["training", "inference"] = "training"
    title: str
    question: str
    scaling: Literal["strong", "weak", "none"]
    runs: tuple[Run, ...]
    axes: tuple[str, ...] = Field(description="the keys of the grid")
    repeats: int
    baseline: dict[str, Any]
    quick: bool = False

    @classmethod
    def load(cls, study: str | Path, *, quick: bool = False) -> Study:
        """Read a study by its name under `reports/` or by its folder.

        Raises InputError that lists every problem of the file at once.
        """
        from lab.studyfile import read_study

        return read_study(find_folder(study), quick=quick)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def out(self) -> Path:
        """Where everything that is measured and made of this study lies."""
        return self.folder / "out"

    @property
    def tasks(self) -> list[Task]:
        """Every repeat of every run, repeats interleaved over the grid so that a slow drift touches all runs alike."""
        return [Task(run, repeat) for repeat in range(self.repeats) for run in self.runs]

    def task(self, run_id: str = "", repeat: int = 0) -> Task:
        """One repeat of the run with this id, or of the first run where it is empty; raises InputError for another id."""
        ids = {run.id: run for run in self.runs}
        if run_id and run_id not in ids:
            raise InputError(self.name, [Problem("run_id", f"no run {run_id!r} in this study", nearest(run_id, ids))])
        if not 0 <= repeat < self.repeats:
            raise InputError(self.name, [Problem("repeat", f"{repeat}, and the study has repeats 0 to {self.repeats - 1}")])
        return Task(ids[run_id] if run_id else self.runs[0], repeat)


def find_folder(study: str | Path) -> Path:
    """The folder of a study named as under `reports/` or by path; raises InputError with the nearest name."""
    places = [Path(study), Path("reports") / study, ROOT / "reports" / study]
    for place in places:
        if (place / "study.yaml").is_file():
            return place.resolve()
    if Path(study).is_dir():
        raise InputError(
            str(study), [Problem("study.yaml", "there is none in this folder", "a study is a folder with a study.yaml")]
        )
    names = {path.parent.name for root in (Path("reports"), ROOT / "reports") for path in root.glob("*/study.yaml")}
    raise InputError(str(study), [Problem("STUDY", "no such study", nearest(Path(study).name, names))])


def is_baseline(run: Run, baseline: dict[str, Any]) -> bool:
    """Whether a run has every value that the study's baseline names."""
    return all(getattr(run, key) == value for key, value in baseline.items())
