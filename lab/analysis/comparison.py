"""Machines side by side: what each takes for the same configuration, and how much faster one is than another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from lab.analysis.scaling import ratio
from lab.analysis.scaling_curves import FREE, ranks
from lab.config.study import Study
from lab.errors import InputError, Problem
from lab.formatting import format_seconds, percent, rounded, unit_for
from lab.records.store import Record, load_records
from lab.records.table import table

NOT_THERE = "not run"


def machine_tables(summary: pd.DataFrame, table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Captions and tables of text: a row per configuration that several machines ran, a column per machine.

    `summary` and `table` have a column `machine`. Step time, how many times the throughput of the first machine each
    has, speedup and efficiency over the machine's own baseline.
    """
    machines = list(dict.fromkeys(summary["machine"]))
    shared = [run for run, rows in summary.groupby("run_id", sort=False) if len(rows) > 1]
    unit = unit_for(summary["step_time"])
    cells = {(row["machine"], row["run_id"]): row for row in summary.to_dict("records")}
    labels = _labels(summary, shared)

    def column(machine: str, text: Any) -> dict[str, str]:
        return {
            labels[run]: text(cells[machine, run]) if (machine, run) in cells else NOT_THERE
            for run in shared
        }

    def interval(name: str, text: Any, **options: Any) -> Any:
        return lambda row: str(text(row[name], row[f"{name}_low"], row[f"{name}_high"], **options))

    quantities = {
        "Step time": interval("step_time", format_seconds, unit=unit),
        f"Throughput, times that of {machines[0]}": lambda row: _against(table, row, machines[0]),
        "Speedup over the same machine's baseline": interval("speedup", rounded),
        "Efficiency": interval("efficiency", percent),
    }
    over = "median over repeats [95 % interval]"
    return [
        (f"{name}, {over}", pd.DataFrame({machine: column(machine, text) for machine in machines}))
        for name, text in quantities.items()
    ]


def _against(table: pd.DataFrame, row: dict[Any, Any], first: str) -> str:
    if row["machine"] == first:
        return "1"
    rows = table[(table["run_id"] == row["run_id"]) & (table["status"] == "completed")]
    there, here = (
        rows[rows["machine"] == machine]["samples_per_second"]
        for machine in (first, row["machine"])
    )
    return rounded(*ratio(here.to_numpy(float), there.to_numpy(float))) if len(there) else NOT_THERE


def _labels(summary: pd.DataFrame, shared: Sequence[Any]) -> dict[Any, str]:
    """World size, batch and what else differs between the shared configurations."""
    rows = summary[summary["run_id"].isin(shared)].drop_duplicates("run_id")
    weak = bool(len(rows)) and rows["scaling"].iloc[0] == "weak"
    batch = "micro_batch_size" if weak else "global_batch_size"
    said = {"world_size", batch, *FREE["weak" if weak else "strong"]}
    varied = [
        name
        for name in ("model", "data", "strategy", "precision", "compile")
        if rows[name].nunique() > 1 and name not in said
    ]
    return {
        row["run_id"]: ", ".join(
            [
                ranks(None, row["world_size"]),
                f"batch {row[batch]}{' per rank' if weak else ''}",
                *(str(row[name]) for name in varied),
            ]
        )
        for row in rows.to_dict("records")
    }


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

        return pd.concat(
            [table(study).assign(machine=machine) for machine, study in self.studies.items()],
            ignore_index=True,
        )

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per configuration and machine, each against the baseline of its own machine."""
        from lab.analysis.scaling import summary

        study = next(iter(self.studies.values()))
        return summary(self.table, baseline=study.baseline, scaling=study.scaling)

    def tables(self) -> list[tuple[str, pd.DataFrame]]:
        """Step time, throughput, speedup and efficiency: a row per shared configuration, a column per machine."""

        return machine_tables(self.summary, self.table)


def compare(studies: Sequence[str | Path | Study], *, quick: bool = False) -> Comparison:
    """The same study as measured on several machines, from one folder of each.

    Raises InputError for fewer than two folders, for one without completed records, and for studies that have no
    configuration in common.
    """
    loaded = [
        study if isinstance(study, Study) else Study.load(study, quick=quick) for study in studies
    ]
    problems = [
        Problem(
            str(study.folder),
            "no completed record in it",
            "run the study there, or copy its out/ from the machine it ran on",
        )
        for study in loaded
        if not any(record.completed for record in load_records(study))
    ]
    if len(loaded) < 2 or len({study.folder for study in loaded}) < len(loaded):
        problems.append(
            Problem(
                "STUDY",
                "a comparison needs two different folders or more",
                "name one folder per machine",
            )
        )
    if problems:
        raise InputError("compare", problems)
    shared = set.intersection(
        *({record.run_id for record in load_records(study)} for study in loaded)
    )
    if not shared:
        what = "these folders have no configuration in common"
        raise InputError("compare", [Problem("STUDY", what, "run one study file on each machine")])
    return Comparison(dict(zip(_names(loaded), loaded, strict=True)))


def _names(studies: Sequence[Study]) -> list[str]:
    """A machine is called by its device; those of one kind also by their host or cluster, and at last by their folder.

    One machine that emulates several is called by what it emulates.
    """
    seen = [
        next(record.environment for record in load_records(study) if record.environment)
        for study in studies
    ]
    devices = [place.gpu or place.cpu for place in seen]
    told = [f"emulated {place.emulated.label}" if place.emulated else "" for place in seen]
    kinds = [", ".join(filter(None, both)) for both in zip(devices, told, strict=True)]
    if len({(device, place.hosts[0]) for device, place in zip(devices, seen, strict=True)}) == 1:
        kinds = [emulated or kind for emulated, kind in zip(told, kinds, strict=True)]
    hosts = [place.cluster if place.slurm_job_id else place.hosts[0] for place in seen]
    folders = [f"{study.folder.parent.name}/{study.name}" for study in studies]
    candidates = [kinds] + [
        [f"{kind} ({where})" for kind, where in zip(kinds, more, strict=True)]
        for more in (hosts, folders)
    ]
    return next(
        (names for names in candidates if max(Counter(names).values()) == 1),
        [str(study.folder) for study in studies],
    )
