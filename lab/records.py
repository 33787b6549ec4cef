"""Record (what one run measured) and the store of them on disk; table() makes a DataFrame of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lab.atomic import write_atomically
from lab.emulation import Emulated
from lab.errors import LabError
from lab.study import Run, Study, Task, find_folder

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 1
Status = Literal["completed", "failed", "oom", "timeout", "preempted", "cancelled"]

# The parts of a step, in the order in which they happen; all in seconds.
PHASES = ("data", "h2d", "forward", "backward", "optimizer", "other")


class _Part(BaseModel):
    """A part of a record; unknown keys are refused so that a typing error cannot hide a measurement."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")


class Stat(_Part):
    """A distribution over steps: median, 10th and 90th percentile, bootstrap 95 % interval of the median."""

    median: float
    p10: float
    p90: float
    interval: tuple[float, float] | None = Field(description="None where there are too few steps for one")


class Timing(_Part):
    """Where the time of a step went, in seconds; warm-up, compilation and evaluation are outside.

    `step` is that of the slowest rank of each step, `phases` are those of the same rank in the same step and hold
    the keys of PHASES; `per_rank` holds medians by rank of the step and of each phase.
    """

    step: Stat
    phases: dict[str, Stat]
    per_rank: dict[str, list[float]]
    slowest_rank: int = Field(description="the rank that was the slowest most often")
    measured_steps: int
    warmup_steps: int
    setup_time: float = Field(description="s, from the start of rank 0 to its first step, imports included")
    train_time: float = Field(description="s, wall time of the measured steps on the slowest rank")
    samples_per_second: float
    tokens_per_second: float | None = None
    flops_per_second: float = Field(description="model FLOP/s of all ranks together")
    mfu: float | None = Field(description="flops_per_second over peak_flops_per_second of all ranks")
    peak_flops_per_second: float | None = Field(description="of one rank, dense, in the run's precision")
    peak_source: str | None = Field(description="vendor figure with its source, or how it was measured")


class Event(_Part):
    """One bar of a timeline, in seconds from the earliest start of its step on any rank.

    `name` is forward, backward, optimizer, or "bucket k"; a bucket starts when it is handed to the link.
    """

    rank: int
    name: str
    start: float
    end: float
    ready: float | None = Field(default=None, description="when the gradients of a bucket were complete")
    bytes: int | None = Field(default=None, description="of a bucket on the link")


class Communication(_Part):
    """What went over the links, per step: seconds of the slowest rank of each step, bytes per rank.

    None where not measured; at world size 1 nothing is sent, and only `ddp_overhead_time` can be there.
    `total` is the union of the buckets' times on the link, `exposed` its part after the last gradient was computed,
    `overlap` the rest; `straggler` is the part of `exposed` that waited for ranks which came later, `transfer` the rest.
    `sync_cost` comes from another method: rounds of forward and backward with and without synchronisation, in turn.
    """

    total: Stat | None = None
    exposed: Stat | None = None
    straggler: Stat | None = None
    transfer: Stat | None = None
    overlap: Stat | None = None
    bytes: int | None = None
    buckets: list[int] | None = Field(default=None, description="bytes of each bucket on the link, in order")
    per_rank: dict[str, list[float]] = Field(default={}, description="medians by rank of total, exposed, straggler")
    sync_cost: Stat | None = Field(default=None, description="slowest rank with synchronisation, less without; over rounds")
    sync_exposed: Stat | None = Field(default=None, description="exposed in the same rounds, on the rank that others wait for")
    stolen_compute: Stat | None = Field(default=None, description="sync_cost - sync_exposed, round by round")
    ddp_overhead_time: Stat | None = Field(default=None, description="DDP's wrapper less the bare module, at world size 1")
    timeline: list[Event] = Field(default=[], description="the median measured step on all ranks")


class Memory(_Part):
    """Peak memory in bytes by rank, and of what kind: resident set on CPU, allocator's peak on CUDA."""

    kind: Literal["resident", "cuda_allocated"]
    peak: list[int]
    parameters: int = Field(description="bytes of the parameters on one rank")


class Quality(_Part):
    """What the model learned: training loss of each step (mean over the global batch), loss on held-out data."""

    loss: list[float]
    validation_loss: float | None = None
    accuracy: float | None = None


class Failure(_Part):
    """The first cause of a run that did not complete."""

    type: str
    message: str
    rank: int | None = None
    traceback: str = ""
    log: str = Field(default="", description="the last lines of the log of the rank that failed first")


class Environment(_Part):
    """Where and with what a run was measured, read inside the job."""

    cluster: str
    hosts: list[str]
    device: str = Field(description="cpu or cuda")
    backend: str | None = Field(description="gloo or nccl; None at world size 1")
    cpu: str
    cpu_count: int
    cpus_granted: list[list[int]] = Field(description="the cores of each rank")
    threads_per_rank: int
    gpu: str | None = None
    gpu_count: int = 0
    driver: str | None = None
    versions: dict[str, str]
    git_commit: str | None = None
    git_dirty: bool | None = None
    slurm_job_id: str | None = None
    job_id: str | None = None
    data_sha256: str | None = Field(default=None, description="content hash of the tokens that were trained on")
    data_description: str | None = None
    parameters: int | None = Field(default=None, description="trainable parameters of the whole model")
    emulated: Emulated | None = Field(default=None, description="what was not real, and how it was emulated")
    foreign_cpu: float | None = Field(
        default=None, description="cores' worth of other processes on the ranks' cores while measuring"
    )


class Record(_Part):
    """What one repeat of one run measured, or why it could not (contract 4.2)."""

    schema_version: Literal[1] = 1
    run_id: str
    repeat: int
    run: Run
    status: Status
    error: Failure | None = None
    started_at: str | None = Field(default=None, description="ISO 8601, UTC")
    finished_at: str
    environment: Environment | None = None
    timing: Timing | None = None
    communication: Communication | None = None
    memory: Memory | None = None
    quality: Quality | None = None
    checks: dict[str, bool] = {}

    @property
    def completed(self) -> bool:
        """Whether it holds a measurement."""
        return self.status == "completed"

    @property
    def task(self) -> Task:
        """The task that it answers."""
        return Task(self.run, self.repeat)

    @property
    def duration_s(self) -> float | None:
        """Wall time of the job from its start to its record."""
        if self.started_at is None:
            return None
        return (datetime.fromisoformat(self.finished_at) - datetime.fromisoformat(self.started_at)).total_seconds()


class Store:
    """The records of one study on disk: `out/runs/<run id>/<repeat>/{record.json, steps.parquet, run.ipynb, log/}`."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.runs = out / "runs"

    def folder(self, task: Task) -> Path:
        """Where one repeat of one run lies."""
        return self.runs / task.run.id / str(task.repeat)

    def read(self, task: Task) -> Record | None:
        """The record of a task; None where there is none, or one that cannot be read and must be measured again."""
        return read_record(self.folder(task) / "record.json")

    def completed(self, task: Task) -> bool:
        """Whether a task is measured."""
        record = self.read(task)
        return record is not None and record.completed

    def records(self, tasks: Iterable[Task] | None = None) -> list[Record]:
        """The records of these tasks, or all that are there, in a stable order."""
        if tasks is not None:
            found = [self.read(task) for task in tasks]
        else:
            found = [read_record(path) for path in sorted(self.runs.glob("*/*/record.json"))]
        return [record for record in found if record is not None]


def read_record(path: Path) -> Record | None:
    """Read one record; None where it is missing or not whole.

    Raises LabError for a record of a newer schema than this library knows.
    """
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return Record.model_validate_json(content)
    except ValidationError:
        version = _schema_version(content)
        if version is not None and version > SCHEMA_VERSION:
            raise LabError(
                f"{path}: written by a newer lab (schema {version}, this one reads {SCHEMA_VERSION}): update"
            ) from None
        return None


def _schema_version(content: bytes) -> int | None:
    try:
        version = json.loads(content).get("schema_version")
    except (ValueError, AttributeError):
        return None
    return version if isinstance(version, int) else None


def write_record(record: Record, folder: Path) -> Path:
    """Write a record so that at every moment it is there whole or not at all."""
    path = folder / "record.json"
    write_atomically(path, record.model_dump_json(indent=1).encode())
    return path


def load_records(source: Study | str | Path | Sequence[Record], *, tasks: Sequence[Task] | None = None) -> list[Record]:
    """Records of a study's present grid or of some of its `tasks`, of all that lies in a folder, or as they are given."""
    if isinstance(source, Study):
        return Store(source.out).records(source.tasks if tasks is None else tasks)
    if isinstance(source, str | Path):
        return Store(find_folder(source) / "out").records()
    return list(source)


def table(source: Study | str | Path | Sequence[Record]) -> pd.DataFrame:
    """One row per repeat, one column per quantity of DESIGN section 3; times in s, memory in bytes.

    What was not measured is NaN or None, never zero; failed runs are rows too, with their `status`.
    """
    import pandas as pd

    from lab.rows import row

    return pd.DataFrame([row(record) for record in load_records(source)], columns=None)
