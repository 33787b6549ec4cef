"""The runs of the bench, kept as studies: one per configuration, with all its world sizes."""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from lab.config.cluster import Cluster
from lab.config.run import Run
from lab.config.study import STUDY_FILE, Study
from lab.dashboard.form import OF_RUN
from lab.errors import InputError, LabError
from lab.files import read_yaml, write_atomically
from lab.perfmodel.calibration import load_calibration
from lab.perfmodel.forecast import Basis
from lab.perfmodel.frozen import error_so_far
from lab.records.store import Record, Store

TITLE = "Tried on the bench: {run}"
QUESTION = "How long does a step of this configuration take, and what does another rank gain?"
REPEATS = 3  # of a study written from a configuration


@dataclass(frozen=True)
class Bench:
    """A folder of studies, `<cluster>/<id of the equal run at world size 1>`."""

    folder: Path

    def study(self, run: Run, cluster: str) -> Study:
        """The study that a run belongs to, with only this run; writes nothing."""
        base = alone(run)
        return Study(
            folder=self.folder.resolve() / cluster / base.id,
            title=TITLE.format(run=base.label),
            question=QUESTION,
            scaling="strong",
            runs=(run,),
            axes=("world_size",),
            repeats=1,
            baseline={"world_size": 1},
        )

    def keep(self, study: Study) -> None:
        """Write the study file of a run, or add the run's world size to the existing one.

        World size 1 is always included, so that the study has its baseline. Raises InputError if
        the existing file is invalid, or has a list of grids.
        """
        path, run = study.folder / STUDY_FILE, study.runs[0]
        base = run.model_dump(mode="json", exclude={"micro_batch_size", "world_size"})
        content, sizes = _content(base, study.title, repeats=1), {1, run.world_size}
        if path.exists():
            kept = {one.world_size for one in Study.load(study.folder).runs}
            if sizes <= kept:
                return
            content, sizes = read_yaml(path), sizes | kept
        if not isinstance(content["grid"], dict):
            mend = f"make it one grid, or add world_size {run.world_size} to it"
            raise InputError.of(path, "grid", "a list of grids, to which the bench adds none", mend)
        content["grid"]["world_size"] = sorted(sizes)
        write_atomically(path, yaml.safe_dump(content, sort_keys=False).encode())

    def studies(self) -> list[Study]:
        """The kept studies, by cluster; a study file that cannot be read is left out."""
        studies = []
        for path in sorted(self.folder.glob(f"*/*/{STUDY_FILE}")):
            with suppress(LabError):
                studies.append(Study.load(path.parent))
        return studies

    def basis(self, cluster: Cluster) -> Basis:
        """The basis of predictions on a cluster: runs on one rank, calibration, earlier errors.

        A run on one rank uses no link, so it counts for every cluster of this machine whose ranks
        compute the same way.
        """
        studies = self.studies()
        records = [
            record
            for study in studies
            for record in Store(study.out).records()
            if _is_profile(record, cluster, of=study.folder.parent)
        ]
        own = [study for study in studies if study.folder.parent.name == cluster.name]
        return Basis(tuple(records), load_calibration(cluster), error_so_far(*own))


def _is_profile(record: Record, cluster: Cluster, *, of: Path) -> bool:
    """Whether a one-rank record computed as the cluster's ranks do; `of` is the record's folder."""
    place, run = record.environment, record.run
    if not (record.completed and run.world_size == 1 and run.task == "train" and place):
        return False
    compute = place.emulated.compute if place.emulated else None
    here = of.name == cluster.name or (
        cluster.executor == "local" and set(place.hosts) == {socket.gethostname()}
    )
    alike = (cluster.device_kind, cluster.threads_per_rank, cluster.compute)
    return here and (place.device, place.threads_per_rank, compute) == alike


def alone(run: Run) -> Run:
    """The equal run at world size 1: the same global batch in as many micro-batches per rank."""
    return Run.model_validate(run.model_dump(exclude={"micro_batch_size", "world_size"}))


def _content(base: dict[str, Any], title: str, *, repeats: int) -> dict[str, Any]:
    """A strong-scaling study file with an empty grid."""
    content = {"title": title, "question": QUESTION, "scaling": "strong", "base": base, "grid": {}}
    return content | {"repeats": repeats, "baseline": {"world_size": 1}}


def suggested(run: Run) -> str:
    """A name for the study of a run: the words of its label."""
    return re.sub(r"[^a-z0-9]+", "-", run.label.lower()).strip("-")


def send(run: Run, *, name: str, reports: Path) -> Study:
    """Write `<reports>/<name>/study.yaml`; raises InputError for an invalid or taken name."""
    folder = reports.resolve() / name
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,99}", name):
        raise InputError.of(
            "send", "name", f"invalid study name {name!r}", "small letters, digits and -"
        )
    if folder.exists() and any(folder.iterdir()):
        raise InputError.of("send", "name", f"{folder.name} already exists", "choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    base = run.model_dump(mode="json", include=set(OF_RUN) - {"world_size"})
    content = _content(base, f"How {run.label} scales", repeats=REPEATS)
    content["grid"] = {"world_size": world_sizes(run)}
    text = yaml.safe_dump(content, sort_keys=False, width=120)
    write_atomically(folder / STUDY_FILE, text.encode())
    return Study.load(folder)


def world_sizes(run: Run) -> list[int]:
    """1, 2, 4 and so on up to the run's own, as far as its batch can be divided."""
    doubling = {2**power for power in range(run.world_size.bit_length())}
    return [size for size in sorted(doubling | {run.world_size}) if _possible(run, size)]


def _possible(run: Run, world_size: int) -> bool:
    try:
        Run.model_validate(run.model_dump(include=set(OF_RUN)) | {"world_size": world_size})
    except ValidationError:
        return False
    return True
