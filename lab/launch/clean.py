"""clean(): what a study's `out/` holds, what of it can go without losing a measurement; it goes."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from lab.config.study import Study
from lab.errors import InputError, LabError
from lab.files import unwritable
from lab.launch import driver
from lab.records.store import Store

# What can go, and how it comes back.
REMOVABLE = {
    "replaced": ("measurements that were replaced, less their records", "never"),
    "logs": ("logs of completed repeats", "never"),
    "checkpoints": ("checkpoints of interrupted repeats", "these start again"),
    "notebooks": ("notebooks of runs", "`lab run`"),
    "artifacts": ("parts of the report as files", "`lab report --artifacts`"),
}


@dataclass(frozen=True)
class Part:
    """Files of one kind below `out/`; `again` is how they come back, empty for what stays."""

    what: str
    files: int
    bytes: int
    again: str = ""


def clean(study: Study, *, remove: bool = False) -> list[Part]:
    """What a study's `out/` holds, the part that stays last; `remove` makes the others go.

    Each record stays, of failures and of what was replaced too, by which hours are counted, and
    each series of a repeat that counts. Raises LabError where jobs or a driver of the study are at
    work, or a file cannot be removed; InputError where nothing may be removed.
    """
    if not study.out.is_dir():
        return []
    if not remove:
        return _parts(study)
    if problems := unwritable(study.out):
        raise InputError(study.name, problems)
    try:
        with FileLock(study.out / "driver.lock", timeout=0):
            _require_no_jobs(study)
            before = _parts(study)
            for path in [path for kind, path in _files(study) if kind]:
                path.unlink(missing_ok=True)
            return before
    except Timeout:
        raise LabError(f"a driver works on {study.name}: wait until it has ended") from None


def _require_no_jobs(study: Study) -> None:
    folders = [Store(study.out).folder(task) for task in study.tasks]
    states = [handle.status().state for handle in driver.handles(folders).values()]
    if alive := sum(state != "ended" for state in states):
        what = "a job of it has" if alive == 1 else f"{alive} jobs of it have"
        raise LabError(f"{study.name}: {what} not ended: see `lab status`, or `lab cancel`")


def _parts(study: Study) -> list[Part]:
    sizes: dict[str, list[int]] = defaultdict(list)
    for kind, path in _files(study):
        sizes[kind].append(path.lstat().st_size)
    parts = [
        Part(what, len(sizes[kind]), sum(sizes[kind]), again)
        for kind, (what, again) in REMOVABLE.items()
        if kind in sizes
    ]
    return [*parts, Part("what stays", len(sizes[""]), sum(sizes[""]))]


def _files(study: Study) -> Iterator[tuple[str, Path]]:
    """Each file below `out/` with the key of REMOVABLE that it falls under; no link is followed."""
    store = Store(study.out)
    completed = {store.folder(record.task) for record in store.records() if record.completed}
    for folder, _, names in os.walk(study.out):
        for name in names:
            path = Path(folder, name)
            yield _kind(path.relative_to(study.out), {*path.parents} & completed), path


def _kind(place: Path, completed: Collection[Path]) -> str:
    """By its place below `out/`, and the completed repeat that it is of, if it is of one."""
    first, *_ = parts = place.parts
    if place.name.endswith("record.json") or len(parts) == 1:
        return ""
    if first in {"replaced", "artifacts"}:
        return first
    if first != "runs" or len(parts) < 4:
        return ""
    if parts[3] == "run.ipynb" or place.name.endswith(".partial.ipynb"):
        return "notebooks"
    if parts[3] == "checkpoint" and not completed:  # else it is the model that a run was to keep
        return "checkpoints"
    return "logs" if parts[3] == "log" and completed else ""
