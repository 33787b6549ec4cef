"""Record: what one repeat of a run measured, and the store of a study's records on disk."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from lab.config.own import is_unchanged
from lab.config.run import Run
from lab.config.study import OUT, Study, Task, find_folder
from lab.errors import InputError, LabError, items
from lab.files import read_file, write_atomically
from lab.formatting import brief
from lab.records.schema import (
    Allocation,
    Communication,
    Environment,
    Failure,
    Gradient,
    Inference,
    Memory,
    Moment,
    Observed,
    Quality,
    Reported,
    Section,
    Timing,
    Trace,
)

Model = TypeVar("Model", bound=BaseModel)
# Folders in a study's results: of repeats, of what was expected of them, and of earlier ones.
RUNS, PREDICTIONS, REPLACED = "runs", "predictions", "replaced"
# In the folder of a repeat.
RECORD, RUN_NOTEBOOK, LOGS = "record.json", "run.ipynb", "log"
STEPS, BUCKETS, CALLS = "steps.parquet", "buckets.parquet", "calls.parquet"
DISTURBED = "disturbed"  # where the louder of two attempts is kept complete
KEPT = "kept"  # beside study.yaml: small files for a repository, among them records
LOSSES = re.compile(rb'"loss": \[[^\]]*\]')  # of every step
LONG_BYTES = 100_000  # of a record, most of which are losses
Status = Literal["completed", "failed", "oom", "timeout", "preempted", "cancelled"]
STATUS_LABELS = {"oom": "out of memory", "timeout": "timed out"}


class Record(Section):
    """What one repeat of one run measured, or why it could not."""

    schema_version: Literal[1] = 1
    run_id: str
    repeat: int
    run: Run
    status: Status
    error: Failure | None = None
    started_at: Moment | None = None
    finished_at: Moment
    allocation: Allocation | None = None
    environment: Environment | None = None
    timing: Timing | None = None
    communication: Communication | None = None
    gradients: list[Gradient] | None = None  # of one rank alone, in the order of their readiness
    memory: Memory | None = None
    quality: Quality | None = None
    inference: Inference | None = None
    reported: Reported | None = None  # of a third-party table, with none of the above
    script: Observed | None = None
    trace: Trace | None = None
    checks: dict[str, bool] = {}
    # `foreign_cpu` of the other attempt at this repeat, the louder one, which is kept beside it.
    disturbed: float | None = None

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """What a notebook shows of a record, its step time in s: all of it would fill pages."""
        yield from {"run": self.run.label, "repeat": self.repeat, "status": self.status}.items()
        if self.timing is not None:
            yield "step_time", self.timing.step.median

    @property
    def completed(self) -> bool:
        """Whether it holds a measurement."""
        return self.status == "completed"

    @property
    def outcome(self) -> str:
        """How it ended, in words: `completed`, `out of memory`."""
        return STATUS_LABELS.get(self.status, self.status)

    @property
    def end(self) -> str:
        """How and why it ended, in one line: `failed on rank 1: ValueError: what is wrong`."""
        if self.error is None:
            return self.outcome
        rank = "" if self.error.rank is None else f" on rank {self.error.rank}"
        cause = self.error.cause
        if self.status == "oom":  # torch says so too, and its type once more
            cause = self.error.message.rpartition("out of memory. ")[2] or cause
        return f"{self.outcome}{rank}: {brief(cause)}"

    @property
    def global_batch_size(self) -> int | None:
        """Samples per step on all ranks, from the study or the script; None if in neither."""
        of_script = self.script.samples_per_step if self.script else None
        return self.run.global_batch_size or of_script

    @property
    def peak_memory(self) -> int | None:
        """Peak bytes of the rank that uses most; None if not measured."""
        return max(self.memory.peak) if self.memory else None

    @property
    def final_loss(self) -> float | None:
        """The training loss of the last step; None if no loss was recorded."""
        return self.quality.loss[-1] if self.quality and self.quality.loss else None

    @property
    def foreign_share(self) -> float | None:
        """The share of its ranks' cores that other processes used; None if it is not known."""
        return self.environment.foreign_share if self.environment else None

    @property
    def noisy(self) -> bool:
        """Whether it holds a disturbed measurement; an unjudged one counts as undisturbed."""
        return self.completed and self.environment is not None and self.environment.disturbed

    @property
    def emulation(self) -> str:
        """What was emulated; empty if everything was real."""
        emulated = self.environment and self.environment.emulated
        return emulated.label if emulated else ""

    @property
    def task(self) -> Task:
        """The task that it answers."""
        return Task(self.run, self.repeat)

    @property
    def duration_s(self) -> float | None:
        """Wall time of the job until its record, in s; 0 if the clock was set back meanwhile."""
        if self.started_at is None:
            return None
        passed = datetime.fromisoformat(self.finished_at) - datetime.fromisoformat(self.started_at)
        return max(passed.total_seconds(), 0.0)


class Store:
    """A study's records, `out/runs/<run id>/<repeat>/record.json`, beside their steps and logs."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.runs = out / RUNS

    def folder(self, task: Task) -> Path:
        """The folder of one repeat of one run."""
        return self.runs / task.run.id / str(task.repeat)

    def read(self, task: Task, *, losses: bool = True) -> Record | None:
        """The record of a task; None if it is missing or incomplete and has to be measured."""
        return read_record(self.folder(task) / RECORD, losses=losses)

    def set_aside(self, task: Task) -> Record | None:
        """The louder of two attempts at a task; None if it was measured only once."""
        return read_record(self.folder(task) / DISTURBED / RECORD)

    def completed(self, task: Task) -> bool:
        """Whether a task is measured."""
        record = self.read(task)
        return record is not None and record.completed

    def noisy(self, task: Task) -> bool:
        """Whether a task is measured and was disturbed."""
        record = self.read(task)
        return record is not None and record.noisy

    def damaged(self, task: Task) -> bool:
        """Whether a task's record is there but cannot be understood, and so does not count."""
        return (self.folder(task) / RECORD).exists() and self.read(task, losses=False) is None

    def reason_to_repeat(self, task: Task) -> str:
        """Why a task without a record that counts is measured again; empty if it never was."""
        if self.damaged(task):
            path = self.folder(task) / RECORD
            return f"{path} is damaged and does not count; the next `lab run` measures it again"
        return "it was disturbed, and is measured once more" if self.set_aside(task) else ""

    def records(self, tasks: Iterable[Task] | None = None) -> list[Record]:
        """The records of these tasks, or all that are there, in a stable order."""
        if tasks is not None:
            records = [self.read(task) for task in tasks]
        else:
            records = [read_record(path) for path in sorted(self.runs.glob(f"*/*/{RECORD}"))]
        return [record for record in records if record is not None]


def read_record(path: Path, *, losses: bool = True) -> Record | None:
    """Read one record; None if it is missing or incomplete.

    Without its `losses`, the record of a long training is read in a fifth of the time. Raises
    LabError for a record with a newer schema than this library knows, and for one that cannot be
    read at all.
    """
    try:
        stat = path.stat()
        whole = losses or stat.st_size < LONG_BYTES
        return _validated(path, stat.st_ino, stat.st_mtime_ns, stat.st_size, whole)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        message = "make it readable, or remove it to measure again"
        raise LabError(f"{path}: {error.strerror}; {message}") from None


@lru_cache(maxsize=4096)  # the driver and `lab status` poll all records of a study
def _validated(path: Path, inode: int, mtime_ns: int, size: int, whole: bool) -> Record | None:
    """The record in a file; files are replaced, never edited: inode, time and size identify one."""
    content = read_file(path)
    # In a text within the record, the quotes would be escaped.
    return versioned(Record, path, content if whole else LOSSES.sub(b'"loss": []', content))


def versioned(kind: type[Model], path: Path, content: bytes | None = None) -> Model | None:
    """The `content` of a versioned file; None if incomplete.

    Raises LabError if a newer lab wrote it, and OSError if it cannot be read.
    """
    content = path.read_bytes() if content is None else content
    newest = kind.model_fields["schema_version"].default
    try:
        return kind.model_validate_json(content)
    except ValidationError:
        version = _schema_version(content)
        if version is not None and version > newest:
            schemas = f"schema {version}, this one reads {newest}"
            raise LabError(f"{path}: written by a newer lab ({schemas}); update the lab") from None
        return None


def _schema_version(content: bytes) -> int | None:
    try:
        version = json.loads(content).get("schema_version")
    except (ValueError, AttributeError, RecursionError):
        return None
    return version if isinstance(version, int) else None


def write_record(record: Record, folder: Path) -> Path:
    """Write a record atomically: at any moment it is complete or absent.

    Raises LabError for one that could not be read back, as its measurement would be lost unnoticed.
    """
    path, content = folder / RECORD, record.model_dump_json(indent=1).encode()
    try:
        Record.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise LabError(f"{path}: {where} cannot be read back: {first['msg']}") from None
    write_atomically(path, content)
    return path


OneStudy = Study | str | Path | Sequence[Record]


def load_records(source: OneStudy, *, tasks: Sequence[Task] | None = None) -> list[Record]:
    """Records of a study's grid or of its `tasks`, all those in a folder, or those given."""
    if isinstance(source, Study):
        return Store(source.out).records(source.tasks if tasks is None else tasks)
    if isinstance(source, str | Path):
        return Store(find_folder(source) / OUT).records()
    expected = "a study, its name or its folder, or a list of records"
    return items(source, Record, "source", expected)


def other_form(study: Study) -> str:
    """What to do to see the form of a study, quick or whole, that has completed records if any."""
    try:
        other = Study.load(study.folder, quick=not study.quick)
    except InputError:
        return ""
    if not any(record.completed for record in load_records(other)):
        return ""
    if study.quick:
        return "its full form is measured: leave out --quick"
    return "its quick form is measured: add --quick"


def kept_form(study: Study) -> str:
    """What to do to see the records of a study's kept report, if it has any."""
    kept = study.folder / KEPT / OUT
    if not (kept / RUNS).is_dir():
        return ""
    places = (os.path.relpath(path) for path in (kept, study.out))
    return "its kept report has records: copy {} to {}".format(*places)


def other_commands(study: Study) -> list[str]:
    """Sentences on a folder's records of a script that its rewritten study no longer has."""
    listed = {run.id for run in study.runs}
    sizes: dict[tuple[str, bool], set[int]] = {}
    for run in {record.run for record in Store(study.out).records() if record.completed}:
        if run.script is None or run.id in listed:
            continue
        key = " ".join(run.script.command), is_unchanged(run.script, study.folder)
        sizes.setdefault(key, set()).add(run.world_size)
    return [
        f"kept, and not in this report: {command} on {', '.join(map(str, sorted(ranks)))} "
        f"rank{'s' * (ranks != {1})}"
        + (
            "; its own command reports it again, --name keeps a report of each"
            if unchanged
            else ", before the script was changed"
        )
        for (command, unchanged), ranks in sorted(sizes.items())
    ]
