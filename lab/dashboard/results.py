"""What was measured on the bench, beside what was predicted of it: a table of all runs, and figures of those like the last one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

from lab import page, run_sections
from lab.ahead.scoring import Score, scores
from lab.dashboard import marks
from lab.dashboard.bench import Bench
from lab.records import Record, load_records, table
from lab.study import Study

Entry = tuple[Study, Record]
Key = tuple[str, str, str]


def results(bench: Bench, study: Study | None = None) -> list[page.Prose | page.Table | page.Figure]:
    """What was measured on a bench, as parts of a page: the run of `study`, or else the latest one, beside all others."""
    measured = [(kept, record) for kept in bench.studies() for record in load_records(kept)]
    ids = {_key(study, run.id) for run in study.runs} if study else set()
    wanted = [entry for entry in measured if not ids or _key_of(entry) in ids]
    if not wanted:
        return [page.Prose.of("Nothing has been measured on this bench yet.")]
    marked = max(wanted, key=lambda entry: entry[1].finished_at)
    home, record = marked
    scored = _scores(measured)
    place = f"bench/{home.folder.parent.name}/{home.folder.name}"
    return [
        page.Prose.of(record.run.label, heading=4),
        run_sections.outcome([record]),
        *([page.Prose.of(beside(scored.get(_key_of(marked))))] if record.completed else []),
        _table(measured, marked, scored),
        *_figures(measured, marked, scored),
        page.Prose(f"All world sizes of this configuration are a study of their own: `lab report {place}`."),
    ]


def _key(study: Study, run_id: str) -> Key:
    return study.folder.name, study.folder.parent.name, run_id


def _key_of(entry: Entry) -> Key:
    return _key(entry[0], entry[1].run_id)


def _scores(entries: list[Entry]) -> dict[Key, Score]:
    """What was predicted of the runs before they were measured."""
    kept = {study.folder: study for study, _ in entries}.values()
    return {_key(study, one.frozen.run_id): one for study in kept for one in scores(study)}


def beside(score: Score | None) -> str:
    """A measurement beside its prediction, in a sentence."""
    from lab.analysis.rounding import format_seconds

    if score is None:
        return "It was not predicted: there was nothing yet from which it could be."
    frozen = score.frozen
    expected = format_seconds(frozen.step_s, frozen.low_s, frozen.high_s)
    inside = "inside" if frozen.low_s <= score.measured_s <= frozen.high_s else "outside of"
    return (
        f"Predicted before the run: {expected}, limited by {frozen.limit.replace('_', ' ')}. Measured: "
        f"{format_seconds(score.measured_s)}, {inside} the interval; the prediction was off by {100 * score.error:+.1f} %."
    )


def _table(entries: list[Entry], marked: Entry, scored: Mapping[Key, Score]) -> page.Table:
    import pandas as pd

    speedups = _speedups(entries)
    rows = [
        {"": "▶" if entry == marked else "", "cluster": entry[0].folder.parent.name}
        | _row(entry[1], speedups.get(_key_of(entry)), scored.get(_key_of(entry)))
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


def _row(record: Record, speedup: float | None, score: Score | None) -> dict[str, str]:
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
        "predicted": format_seconds(score.frozen.step_s, score.frozen.low_s, score.frozen.high_s) if score else "-",
        "samples/s": rounded(timing.samples_per_second) if timing else "-",
        "speedup": "-" if timing is None else "1 rank not measured" if speedup is None else f"{speedup:.3g}",
        "last loss": f"{loss[-1]:.3f}" if loss else "-",
    }


def _speedups(entries: list[Entry]) -> dict[Key, float]:
    """Speedup over the equal run at world size 1 of the same study, where that was measured."""
    from lab.analysis.scaling import summary

    found = {}
    for study in {study.folder: study for study, _ in entries}.values():
        lines = summary(table(study), baseline=study.baseline, scaling=study.scaling)
        for row in lines[lines["speedup"].notna()].to_dict("records"):
            found[_key(study, row["run_id"])] = float(row["speedup"])
    return found


def _figures(entries: list[Entry], marked: Entry, scored: Mapping[Key, Score]) -> list[page.Prose | page.Figure]:
    """Throughput, step breakdown and loss of what can be compared with the marked run: same cluster, model and data."""
    run = marked[1].run
    near = [
        entry
        for entry in entries
        if entry[1].completed
        and entry[0].folder.parent == marked[0].folder.parent
        and (entry[1].run.model, entry[1].run.data) == (run.model, run.data)
    ]
    if not near:
        return []
    records = [record for _, record in near]
    others = len({record.run_id for record in records}) > 1 and marked[1].completed
    expected = {entry[1].run_id: score for entry in near if (score := scored.get(_key_of(entry)))}
    note = "Runs of the same model on the same data" + ("; this run is ringed and framed" if others else "")
    note += "; diamonds are predictions from before the runs, with their intervals." if expected else "."
    drawn = partial(marks.draw, run_id=run.id if others else "", expected=expected)
    figures = [page.figure(name, records, mark=partial(drawn, figure=name)) for name in marks.FIGURES]
    told = marks.in_words(expected)
    return [
        page.Prose.of(note),
        *(dataclasses.replace(figure, alt=f"{figure.alt} {told}".strip()) for figure in figures),
        page.figure("loss_by_step", [marked[1]] if marked[1].completed else records),
    ]
