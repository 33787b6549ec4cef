"""From the bench to a study: the configuration as a folder that `lab run` takes, with repeats and the world sizes below it."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from pydantic import ValidationError

from lab.atomic import write_atomically
from lab.dashboard.choices import OF_RUN
from lab.errors import InputError, LabError, Problem
from lab.study import Run, Study, find_folder

REPEATS = 3


def suggested(run: Run) -> str:
    """A name for the study of a run: the words of its label."""
    return re.sub(r"[^a-z0-9]+", "-", run.label.lower()).strip("-")


def send(run: Run, *, name: str, reports: Path) -> Study:
    """Write `<reports>/<name>/study.yaml`; raises InputError for a name that cannot be a folder's or that is taken."""
    folder = reports.resolve() / name
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,99}", name):
        raise InputError("send", [Problem("name", f"{name!r} is no name of a study", "small letters, digits and -")])
    if folder.exists() and any(folder.iterdir()):
        raise InputError("send", [Problem("name", f"{folder.name} is there already", "choose another name")])
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "study.yaml", yaml.safe_dump(content(run), sort_keys=False, width=120).encode())
    return Study.load(folder)


def content(run: Run) -> dict[str, object]:
    """What study.yaml then says."""
    base = {name: value for name, value in run.model_dump(mode="json", include=set(OF_RUN)).items() if name != "world_size"}
    return {
        "title": f"How {run.label} scales",
        "question": "How long does a step of this configuration take, and what does a further rank bring?",
        "scaling": "strong",
        "base": base,
        "grid": {"world_size": world_sizes(run)},
        "repeats": REPEATS,
        "baseline": {"world_size": 1},
    }


def world_sizes(run: Run) -> list[int]:
    """1, 2, 4 and so on up to the run's own, those over which its batch can be divided."""
    doubling = {2**power for power in range(run.world_size.bit_length())}
    return [size for size in sorted(doubling | {run.world_size}) if size <= run.world_size and _possible(run, size)]


def _possible(run: Run, world_size: int) -> bool:
    try:
        Run.model_validate(run.model_dump(include=set(OF_RUN)) | {"world_size": world_size})
    except ValidationError:
        return False
    return True


def command(study: Study, cluster: str) -> str:
    """What measures it in a terminal."""
    try:
        named = find_folder(study.name) == study.folder
    except LabError:
        named = False
    return f"lab run {study.name if named else study.folder} --cluster {cluster}"
