"""One study on several machines, compared: each machine keeps its own curve, baseline and column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from lab.errors import InputError, Problem
from lab.page import Table
from lab.records import Record, load_records, table
from lab.report import NOTEBOOKS, Report, execute, export
from lab.study import Study

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Comparison:
    """Folders of one study, each filled on a machine of its own, by the machine's name."""

    studies: dict[str, Study]

    @property
    def records(self) -> list[Record]:
        """The records of all machines."""
        return [record for study in self.studies.values() for record in load_records(study)]

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per repeat as in `lab.table`, with the column `machine`."""
        import pandas as pd

        return pd.concat([table(study).assign(machine=machine) for machine, study in self.studies.items()], ignore_index=True)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per configuration and machine, each against the baseline of its own machine."""
        from lab.analysis.scaling import summary

        study = next(iter(self.studies.values()))
        return summary(self.table, baseline=study.baseline, scaling=study.scaling)

    def tables(self) -> list[Table]:
        """Step time, throughput, speedup and efficiency: a row per shared configuration, a column per machine."""
        from lab.analysis.comparison import machine_tables

        return [Table(caption, frame) for caption, frame in machine_tables(self.summary, self.table)]


def compare(studies: Sequence[str | Path | Study], *, quick: bool = False) -> Comparison:
    """The same study as measured on several machines, from one folder of each.

    Raises InputError for fewer than two folders, for one without completed records, and for studies that have no
    configuration in common.
    """
    loaded = [study if isinstance(study, Study) else Study.load(study, quick=quick) for study in studies]
    problems = [
        Problem(
            str(study.folder), "no completed record in it", "run the study there, or copy its out/ from the machine it ran on"
        )
        for study in loaded
        if not any(record.completed for record in load_records(study))
    ]
    if len(loaded) < 2 or len({study.folder for study in loaded}) < len(loaded):
        problems.append(Problem("STUDY", "a comparison needs two different folders or more", "name one folder per machine"))
    if problems:
        raise InputError("compare", problems)
    shared = set.intersection(*({record.run_id for record in load_records(study)} for study in loaded))
    if not shared:
        what = "these folders have no configuration in common"
        raise InputError("compare", [Problem("STUDY", what, "run one study file on each machine")])
    return Comparison(dict(zip(_names(loaded), loaded, strict=True)))


def report_comparison(comparison: Comparison, out: Path) -> Report:
    """Execute the notebook that compares machines, and write `compare.{ipynb,html,pdf}` into the folder `out`."""
    made = Report(*(out / f"compare.{suffix}" for suffix in ("ipynb", "html", "pdf")))
    studies = list(comparison.studies.values())
    parameters = {"studies": [str(study.folder) for study in studies], "quick": studies[0].quick}
    execute(NOTEBOOKS / "compare.ipynb", made.notebook, parameters)
    for target in (made.html, made.pdf):
        export(made.notebook, target, title=f"{studies[0].title}: machines compared")
    return made


def _names(studies: Sequence[Study]) -> list[str]:
    """A machine is called by its device; those of one kind also by their host or cluster, and at last by their folder."""
    seen = [next(record.environment for record in load_records(study) if record.environment) for study in studies]
    kinds = [(place.gpu or place.cpu) + (f", emulated {place.emulated.label}" if place.emulated else "") for place in seen]
    hosts = [place.cluster if place.slurm_job_id else place.hosts[0] for place in seen]
    folders = [f"{study.folder.parent.name}/{study.name}" for study in studies]
    candidates = [kinds] + [[f"{kind} ({where})" for kind, where in zip(kinds, more, strict=True)] for more in (hosts, folders)]
    return next((names for names in candidates if max(Counter(names).values()) == 1), [str(study.folder) for study in studies])
