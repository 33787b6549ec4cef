"""fetch(): bring a study's data into the cache before ranks without a network need it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.text import Text

from lab.config.cluster import Cluster
from lab.config.datasets import PythonData, ScriptData
from lab.config.study import Study
from lab.launch.job import set_variables
from lab.launch.status import Display, bars


@dataclass(frozen=True)
class Fetched:
    """A data set that is ready for its ranks: its contents and the SHA-256 of its samples."""

    data: str
    holds: str
    sha256: str = ""


def fetch(
    study: Study | str | Path, cluster: str | Cluster = "local", *, progress: bool = True
) -> list[Fetched]:
    """Download and prepare all data of a study in this process, with a cluster's variables.

    Ranks find it if they share the cache with this machine. Raises InputError for unusable data,
    and LabError for a file that cannot be obtained or differs from the published one.
    """
    from lab.worker import data
    from lab.worker.inference.main import training_run

    study, profile = Study.of(study), Cluster.of(cluster)
    fetched: dict[tuple[object, object], Fetched] = {}
    with _variables_of(profile), Display(enabled=progress) as display:
        for run in study.runs:
            needed = (run.dataset, run.architecture)
            if needed in fetched:
                continue
            label = run.dataset.label
            if isinstance(run.dataset, PythonData | ScriptData):
                fetched[needed] = Fetched(label, "data read by its own code, which was not run")
                continue
            trained = training_run(run) if run.task == "inference" else run
            show = partial(_show, display, label)
            dataset = data.prepare(trained, data_root=study.folder, progress=show)
            fetched[needed] = Fetched(label, dataset.description, dataset.sha256)
    return list(dict.fromkeys(fetched.values()))


@contextmanager
def _variables_of(profile: Cluster) -> Iterator[None]:
    """The environment of a profile's ranks, as far as it is known on this machine."""
    before = {name: os.environ.get(name) for name in profile.variables}
    try:
        set_variables(profile)
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ |= {} if value is None else {name: value}


def _show(
    display: Display, label: str, phase: str, step: int, steps: int, loss: float | None = None
) -> None:
    display.show(bars([(Text(label), step, steps)]))
