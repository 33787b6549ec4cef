"""What was tried by hand: kept as small studies, one for each configuration and all its world sizes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from lab import page, run_sections
from lab.atomic import write_atomically
from lab.errors import LabError
from lab.inputs import read_yaml
from lab.records import Record, load_records, table
from lab.study import Run, Study

TITLE = "Tried on the bench: {run}"
QUESTION = "How long does a step of this configuration take, and what does a further rank bring?"


@dataclass(frozen=True)
class Bench:
    """A folder of studies, `<cluster>/<id of the equal run at world size 1>`, that `lab run` and `lab report` read too."""

    folder: Path

    def study(self, run: Run, cluster: str) -> Study:
        """The study that a run belongs to, with this run alone; nothing is written."""
        alone = _alone(run)
        return Study(
            folder=self.folder.resolve() / cluster / alone.id,
            title=TITLE.format(run=alone.label),
            question=QUESTION,
            scaling="strong",
            runs=(run,),
            axes=("world_size",),
            repeats=1,
            baseline={"world_size": 1},
        )

    def keep(self, study: Study) -> None:
        """Write the study file of a run, or add the run's world size to the one that is there.

        World size 1 is always in it: the study is complete when its baseline is measured too.
        """
        path, run = study.folder / "study.yaml", study.runs[0]
        content = read_yaml(path) if path.exists() else _content(study)
        grid = content.setdefault("grid", {})
        sizes = sorted({1, run.world_size, *grid.get("world_size", ())})
        if sizes != grid.get("world_size"):
            grid["world_size"] = sizes
            write_atomically(path, yaml.safe_dump(content, sort_keys=False).encode())

    def studies(self) -> list[Study]:
        """The kept studies, those of one cluster together; a study file that cannot be read is left out."""
        found = []
        for path in sorted(self.folder.glob("*/*/study.yaml")):
            try:
                found.append(Study.load(path.parent))
            except LabError:
                continue
        return found

    def is_driven(self, study: Study) -> bool:
        """Whether a driver, of this process or another, works on a study now."""
        try:
            with FileLock(study.out / "driver.lock").acquire(timeout=0):
                return False
        except Timeout:
            return True


def _alone(run: Run) -> Run:
    """The equal run at world size 1: the same global batch in as many micro-batches per rank."""
    return Run.model_validate(run.model_dump(exclude={"micro_batch_size", "world_size"}))


def _content(study: Study) -> dict[str, Any]:
    base = study.runs[0].model_dump(mode="json", exclude={"micro_batch_size", "world_size"})
    told = {"title": study.title, "question": study.question, "scaling": study.scaling, "base": base}
    return told | {"grid": {}, "repeats": study.repeats, "baseline": study.baseline}


def results(bench: Bench, study: Study | None = None) -> list[page.Prose | page.Table | page.Figure]:
    """What was measured on a bench, as parts of a page: the run of `study`, or else the latest one, beside all others."""
    measured = [(kept, record) for kept in bench.studies() for record in load_records(kept)]
    ids = {(study.folder.name, study.folder.parent.name, run.id) for study in [study] if study for run in study.runs}
    wanted = [entry for entry in measured if not ids or _key(entry) in ids]
    if not wanted:
        return [page.Prose.of("Nothing has been measured on this bench yet.")]
    marked = max(wanted, key=lambda entry: entry[1].finished_at)
    home, record = marked
    place = f"bench/{home.folder.parent.name}/{home.folder.name}"
    return [
        page.Prose.of(record.run.label, heading=4),
        run_sections.outcome([record]),
        _table(measured, marked),
        *_figures(measured, marked),
        page.Prose(f"All world sizes of this configuration are a study of their own: `lab report {place}`."),
    ]


Entry = tuple[Study, Record]


def _key(entry: Entry) -> tuple[str, str, str]:
    study, record = entry
    return study.folder.name, study.folder.parent.name, record.run_id


def _table(entries: list[Entry], marked: Entry) -> page.Table:
    import pandas as pd

    speedups = _speedups(entries)
    rows = [
        {"": "▶" if entry == marked else "", "cluster": entry[0].folder.parent.name} | _row(entry[1], speedups.get(_key(entry)))
        for entry in sorted(entries, key=_order)
    ]
    frame = pd.DataFrame(rows)
    constant = ["cluster"] if frame["cluster"].nunique() == 1 else []
    caption = "All runs of this bench, ▶ the one above: median step of the slowest rank, speedup over the equal run on 1 rank"
    return page.Table(caption, frame.drop(columns=constant), index=False)


def _order(entry: Entry) -> tuple[Any, ...]:
    study, run = entry[0], entry[1].run
    names = (study.folder.parent.name, str(run.data), str(run.model), run.strategy, run.precision)
    return *names, run.global_batch_size, run.grad_accum, run.steps, run.world_size, run.id


def _row(record: Record, speedup: float | None) -> dict[str, str]:
    from lab.analysis.rounding import format_seconds, rounded

    run, timing = record.run, record.timing
    accumulation = f", accumulation {run.grad_accum}" if run.grad_accum > 1 else ""
    loss = record.quality.loss if record.quality else []
    return {
        "configuration": run.label + accumulation,
        "data": str(run.data),
        "steps": str(run.steps),
        "status": record.status,
        "step time": format_seconds(timing.step.median) if timing else "-",
        "samples/s": rounded(timing.samples_per_second) if timing else "-",
        "speedup": "-" if timing is None else "1 rank not measured" if speedup is None else f"{speedup:.3g}",
        "last loss": f"{loss[-1]:.3f}" if loss else "-",
    }


def _speedups(entries: list[Entry]) -> dict[tuple[str, str, str], float]:
    """Speedup over the equal run at world size 1 of the same study, where that was measured."""
    from lab.analysis.scaling import summary

    found = {}
    for study in {study.folder: study for study, _ in entries}.values():
        lines = summary(table(study), baseline=study.baseline, scaling=study.scaling)
        for row in lines[lines["speedup"].notna()].to_dict("records"):
            found[(study.folder.name, study.folder.parent.name, row["run_id"])] = float(row["speedup"])
    return found


def _figures(entries: list[Entry], marked: Entry) -> list[page.Prose | page.Figure]:
    """Throughput and step breakdown of what can be compared with the marked run: same cluster, model and data."""
    run = marked[1].run
    near = [
        record
        for study, record in entries
        if record.completed
        and study.folder.parent == marked[0].folder.parent
        and (record.run.model, record.run.data) == (run.model, run.data)
    ]
    if not near:
        return []
    others = len({record.run_id for record in near}) > 1 and marked[1].completed
    note = "Runs of the same model on the same data" + ("; this run is ringed and framed." if others else ".")
    return [
        page.Prose.of(note),
        *(page.figure(name, near, mark=partial(mark, run_id=run.id if others else "")) for name, mark in MARKS),
    ]


def _ring(ax: Any, lines: Any, run_id: str) -> None:
    for _, points in lines:
        for row in points[points["run_id"] == run_id].to_dict("records"):
            ax.plot(row["world_size"], row["samples_per_second"], "o", markersize=11, fillstyle="none", color="black")


def _frame(ax: Any, lines: Any, run_id: str) -> None:
    """Bars lie in the order of the figure: the line with the longest first bar on top."""
    from lab.drawing.phase_bars import BAR

    ordered = sorted(lines, key=lambda line: -float(line.points["step_time"].iloc[0]))
    ids = [drawn for _, points in ordered for drawn in points["run_id"]]
    if run_id in ids:
        y = ax.get_yticks()[ids.index(run_id)]
        parts = [patch for patch in ax.patches if patch.get_y() <= y <= patch.get_y() + patch.get_height()]
        width = max(patch.get_x() + patch.get_width() for patch in parts)
        ax.barh(y, width, height=BAR, fill=False, edgecolor="black", linewidth=2)


MARKS = (("throughput", _ring), ("step_breakdown", _frame))
