"""clean(): list a study's `out/` and remove what can go without losing a measurement."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import Timeout

from lab.config.study import Study
from lab.errors import InputError, LabError
from lab.files import unwritable
from lab.launch import driver
from lab.launch.status import active
from lab.records.store import LOGS, RECORD, REPLACED, RUN_NOTEBOOK, RUNS, Store
from lab.records.table import grouped

# What can be removed, and how it can be restored.
REMOVABLE = {
    "replaced": ("measurements that were replaced, without their records", "never"),
    "logs": ("logs of completed repeats", "never"),
    "checkpoints": ("checkpoints of interrupted repeats", "these start again"),
    "notebooks": ("notebooks of runs", "`lab run`"),
    "artifacts": ("parts of the report as files", "`lab report --artifacts`"),
    "code": ("copies of the code that jobs ran", "`lab run --snapshot`"),
}


@dataclass(frozen=True)
class Part:
    """Files of one kind below `out/`; `again` is how to restore them, empty for files that stay."""

    what: str
    files: int
    bytes: int
    again: str = ""


def clean(study: Study | str | Path, *, remove: bool = False) -> list[Part]:
    """List what a study's `out/` holds, the part that stays last; `remove` deletes the others.

    Every record stays, including failed and replaced ones, because hours are counted from them, and
    so does every series of a repeat that counts. Raises LabError if jobs or a driver of the study
    are active or a file cannot be removed, and InputError if nothing may be removed.
    """
    study = Study.of(study)
    if not study.out.is_dir():
        return []
    if not remove:
        return _parts(study)
    if problems := unwritable(study.out):
        raise InputError(study.name, problems)
    try:
        with driver.lock(study, timeout_s=0):
            if alive := len(active(study)):
                what = "one of its jobs has" if alive == 1 else f"{alive} of its jobs have"
                advice = "see `lab status`, or use `lab cancel`"
                raise LabError(f"{study.name}: {what} not ended; {advice}")
            before = _parts(study)
            for path in [path for kind, path in _files(study) if kind]:
                path.unlink(missing_ok=True)
            return before
    except Timeout:
        raise LabError(f"a driver is working on {study.name}; wait until it ends") from None


def _parts(study: Study) -> list[Part]:
    sizes = grouped(_sizes(study))
    parts = [
        Part(what, len(sizes[kind]), sum(sizes[kind]), again)
        for kind, (what, again) in REMOVABLE.items()
        if kind in sizes
    ]
    rest = sizes.get("", [])
    return [*parts, Part("what stays", len(rest), sum(rest))]


def _sizes(study: Study) -> Iterator[tuple[str, int]]:
    for kind, path in _files(study):
        with suppress(FileNotFoundError):  # a job has removed it meanwhile
            yield kind, path.lstat().st_size


def _files(study: Study) -> Iterator[tuple[str, Path]]:
    """Each file below `out/` with its key in REMOVABLE; links are not followed."""
    store = Store(study.out)
    completed = {store.folder(record.task) for record in store.records() if record.completed}
    for folder, _, names in os.walk(study.out):
        for name in names:
            path = Path(folder, name)
            yield _kind(path.relative_to(study.out), {*path.parents} & completed), path


def _kind(place: Path, completed: Collection[Path]) -> str:
    """The kind of a file, from its place below `out/` and whether its repeat is completed."""
    first, *_ = parts = place.parts
    if place.name.endswith(RECORD) or len(parts) == 1:
        return ""
    if first in {REPLACED, "artifacts", "code"}:
        return first
    if first != RUNS or len(parts) < 4:
        return ""
    if parts[3] == RUN_NOTEBOOK or place.name.endswith(".partial.ipynb"):
        return "notebooks"
    if parts[3] == "checkpoint" and not completed:  # else it is the model that a run had to keep
        return "checkpoints"
    return "logs" if parts[3] == LOGS and completed else ""
