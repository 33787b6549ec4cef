"""One study on several machines, side by side, each with its own baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from lab.analysis.scaling import Samples, against_baseline, farthest, ratio, shown, summary
from lab.analysis.scaling_curves import Row, labelled_rows, over_repeats, rows_of, time_units
from lab.config.study import Study
from lab.errors import InputError, Problem, items
from lab.formatting import count, extent, rounded
from lab.records.store import Record, kept_form, load_records, other_form
from lab.records.table import table

NOT_RUN = "not run"


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
        tables = [table(study).assign(machine=machine) for machine, study in self.studies.items()]
        return pd.concat(tables, ignore_index=True)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per configuration and machine, each against the baseline of its own machine."""
        study = next(iter(self.studies.values()))
        return summary(self.table, baseline=study.baseline, scaling=study.scaling)

    def sentences(self) -> list[str]:
        """How fast each machine is relative to the first, and each one's gain at the most ranks."""
        first, *others = self.studies
        texts = [text for machine in others for text in self._throughputs(machine, first)]
        for machine, of_machine in self.summary.groupby("machine", sort=False):
            if ends := farthest(of_machine):
                row = max(ends, key=lambda row: (row["world_size"], row["speedup"]))
                texts.append(f"On {machine}, {row.place}, {against_baseline(row)}.")
        return texts

    def _throughputs(self, machine: str, first: str) -> Iterator[str]:
        """Over the configurations that both ran: the range, and how many differ significantly."""
        pairs = [
            (rates, self._rates[first, run_id])
            for (where, run_id), rates in self._rates.items()
            if where == machine and (first, run_id) in self._rates
        ]
        if not pairs:
            return
        ratios = [ratio(here, there) for here, there in pairs]
        fewest = min(min(here.size, there.size) for here, there in pairs)
        judged = shown(ratios, fewest, gain="faster", loss="slower")
        yield (
            f"{machine} has {extent(ratios)} times the throughput of {first} in "
            f"{count(len(pairs), 'shared configuration')}, {judged}."
        )

    @cached_property
    def _rates(self) -> dict[tuple[Any, Any], Samples]:
        """Samples per second of each completed repeat, by machine and run id."""
        done = self.table[self.table["status"] == "completed"]
        groups = done.groupby(["machine", "run_id"], sort=False)["samples_per_second"]
        return {(key[0], key[1]): rates.to_numpy(float) for key, rates in groups}

    def tables(self) -> list[tuple[str, pd.DataFrame]]:
        """Captions and tables of text: a row per shared configuration, a column per machine."""
        machines, units = list(self.studies), time_units(self.summary)
        rows = {(row["machine"], row["run_id"]): row for row in rows_of(self.summary)}
        labels = _labels(self.summary[self.summary.duplicated("run_id", keep=False)])
        quantities: dict[str, Callable[[Row], str]] = {
            "Step time": lambda row: row.text("step_time", units),
            f"Throughput, times that of {machines[0]}": lambda row: self._times(row, machines[0]),
            "Speedup over the same machine's baseline": lambda row: row.text("speedup"),
            "Efficiency": lambda row: row.text("efficiency"),
        }
        tables, over = [], over_repeats(self.summary["repeats"])
        for quantity, text in quantities.items():
            columns = {
                machine: {
                    label: text(rows[machine, run]) if (machine, run) in rows else NOT_RUN
                    for run, label in labels.items()
                }
                for machine in machines
            }
            tables.append((f"{quantity}, {over}", pd.DataFrame(columns)))
        return tables

    def _times(self, row: Row, first: str) -> str:
        """The machine's throughput over that of the first machine."""
        if row["machine"] == first:
            return "1"
        there = self._rates.get((first, row["run_id"]))
        if there is None:
            return NOT_RUN
        return rounded(*ratio(self._rates[row["machine"], row["run_id"]], there))


def _labels(summary: pd.DataFrame) -> dict[str, str]:
    """World size and curve of each configuration, by run id, whichever machine it ran on."""
    alike = summary.drop_duplicates("run_id").assign(device="", emulated="")
    rows = labelled_rows(alike.drop(columns="machine"))
    labels = {row["run_id"]: f"{row.ranks}, {row.label}" for row in rows}
    return {run_id: labels[run_id] for run_id in alike["run_id"]}


def compare(studies: Sequence[str | Path | Study], *, quick: bool = False) -> Comparison:
    """The same study as measured on several machines, from one folder of each.

    Raises InputError for fewer than two folders, for a folder without completed records, and for
    studies that have no configuration in common.
    """
    wanted = "a list of studies, their names or folders"
    sources = items(studies, Study | str | Path, "studies", wanted)
    loaded = [Study.of(study, quick=quick) for study in sources]
    records = [load_records(study) for study in loaded]
    hint = "run the study there, or copy its out/ from the machine it ran on"
    problems = [
        Problem(
            str(study.folder),
            "holds no completed record",
            other_form(study) or kept_form(study) or hint,
        )
        for study, of_study in zip(loaded, records, strict=True)
        if not any(record.completed for record in of_study)
    ]
    if len(loaded) < 2 or len({study.folder for study in loaded}) < len(loaded):
        what = "a comparison needs at least two different folders"
        problems.append(Problem("STUDY", what, "name one folder per machine"))
    elif not problems and not set.intersection(
        *({record.run_id for record in of_study} for of_study in records)
    ):
        what = "these folders have no configuration in common"
        problems.append(Problem("STUDY", what, "run the same study file on each machine"))
    if problems:
        raise InputError("compare", problems)
    return Comparison(dict(zip(_names(loaded, records), loaded, strict=True)))


def _names(studies: Sequence[Study], records: Sequence[Sequence[Record]]) -> list[str]:
    """Names of machines: the device; if it is the same, also the host or cluster; else the folder.

    A machine that emulates several others is named after what it emulates.
    """
    places = [
        next(record.environment for record in of_study if record.environment)
        for of_study in records
    ]
    devices = [place.gpu or place.cpu for place in places]
    emulated = [f"emulated {place.emulated.label}" if place.emulated else "" for place in places]
    kinds = [", ".join(filter(None, parts)) for parts in zip(devices, emulated, strict=True)]
    if len({(place.gpu or place.cpu, place.hosts[0]) for place in places}) == 1:
        kinds = [label or kind for label, kind in zip(emulated, kinds, strict=True)]
    hosts = [place.cluster if place.slurm_job_id else place.hosts[0] for place in places]
    folders = [f"{study.folder.parent.name}/{study.name}" for study in studies]
    for details in ([""] * len(kinds), hosts, folders):
        names = [
            f"{kind} ({detail})" if detail else kind
            for kind, detail in zip(kinds, details, strict=True)
        ]
        if len(set(names)) == len(names):
            return names
    return [str(study.folder) for study in studies]
