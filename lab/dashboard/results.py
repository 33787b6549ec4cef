"""The results of the bench: a run in words, what changed, then the table and figures of all."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from math import exp
from typing import Any

from lab.analysis.results import StudyResults
from lab.config.study import Study
from lab.dashboard.form import NAMES, OF_RUN
from lab.dashboard.marks import FIGURES, Key, draw, in_words
from lab.dashboard.panels import CANNOT_TELL, expected_step, is_unsure
from lab.dashboard.store import Bench
from lab.errors import LabError
from lab.formatting import count, format_seconds, interval_of, rounded
from lab.perfmodel.calibration import load_calibration
from lab.perfmodel.frozen import Score, scores, signed
from lab.perfmodel.simulate import (
    NORMAL_95,
    Deviation,
    half_width,
    of_foreign_load,
    of_processes,
    spread,
)
from lab.records.store import Record, load_records
from lab.records.table import table
from lab.report import blocks, sections

Entry = tuple[Study, Record]
Interval = tuple[float, float, float]  # a value and the ends of its interval
Part = blocks.Markdown | blocks.Table | blocks.Figure


def results(bench: Bench, study: Study | None = None) -> list[Part]:
    """The results of a bench as page parts: the run of `study`, else the latest, then all."""
    measured = [(it, record) for it in bench.studies() for record in load_records(it)]
    ids = {_key(study, run.id) for run in study.runs} if study else set()
    wanted = [entry for entry in measured if not ids or _key_of(entry) in ids]
    if not wanted:
        return [blocks.Markdown.of("Nothing has been measured on this bench yet.")]
    marked = max(wanted, key=lambda entry: entry[1].finished_at)
    home, record = marked
    scored = _scores(measured)
    place = f"bench/{home.folder.parent.name}/{home.folder.name}"
    return [
        blocks.Markdown.of(f"{record.run.label} on {home.folder.parent.name}", heading=4),
        sections.outcome(StudyResults([record])),
        *(_trust(home, record, scored.get(_key_of(marked))) if record.completed else []),
        *map(blocks.Markdown.of, filter(None, [since_the_last(measured, marked)])),
        _table(measured, marked, scored),
        *_figures(measured, marked, scored),
        blocks.Markdown(
            f"All world sizes of this configuration are a study of their own: `lab report {place}`."
        ),
    ]


def _trust(home: Study, record: Record, score: Score | None) -> list[Part]:
    """The strip of a run, and its prediction."""
    strip = sections.strip(StudyResults(home), run_ids=[record.run_id])
    return [strip, blocks.Markdown.of(beside(score))]


def _key(study: Study, run_id: str) -> Key:
    return study.folder.parent.name, run_id


def _key_of(entry: Entry) -> Key:
    return _key(entry[0], entry[1].run_id)


def _studies(entries: list[Entry]) -> list[Study]:
    """The studies of the entries, each once."""
    return list({study.folder: study for study, _ in entries}.values())


def _scores(entries: list[Entry]) -> dict[Key, Score]:
    """The predictions of the runs before they were measured."""
    return {
        _key(study, score.frozen.run_id): score
        for study in _studies(entries)
        for score in scores(study)
    }


def beside(score: Score | None) -> str:
    """A measurement beside its prediction, in a sentence."""
    if score is None:
        return "It was not predicted: there was nothing yet to predict it from."
    frozen = score.frozen
    expected = f"Predicted before the run: {expected_step(frozen)}"
    measured = f"Measured: {format_seconds(score.measured_s)}"
    if is_unsure(frozen):
        return f"{expected}. {measured}."
    inside = "inside" if score.inside else "outside of"
    return (
        f"{expected}, limited by {frozen.limit.replace('_', ' ')}. {measured}, {inside} the "
        f"interval; the prediction was off by {signed(score.error)}."
    )


def _table(entries: list[Entry], marked: Entry, scored: Mapping[Key, Score]) -> blocks.Table:
    import pandas as pd

    speedups = _speedups(entries)
    rows = [
        {"": "▶" if entry == marked else "", "cluster": entry[0].folder.parent.name}
        | _row(entry[1], speedups.get(_key_of(entry)), scored.get(_key_of(entry)))
        for entry in sorted(entries, key=_order)
    ]
    frame = pd.DataFrame(rows)
    constant = ["cluster"] if frame["cluster"].nunique() == 1 else []
    caption = (
        "All runs of this bench, ▶ the one above: median step of the slowest rank, speedup over "
        "the equal run on 1 rank"
    )
    return blocks.Table(caption, frame.drop(columns=constant), index=False)


def _order(entry: Entry) -> tuple[Any, ...]:
    study, run = entry[0], entry[1].run
    names = (study.folder.parent.name, str(run.data), str(run.model), run.strategy, run.precision)
    return *names, run.global_batch_size, run.grad_accum, run.steps, run.world_size, run.id


def _row(record: Record, speedup: float | None, score: Score | None) -> dict[str, str]:
    run, timing = record.run, record.timing
    accumulation = f", accumulation {run.grad_accum}" if run.grad_accum > 1 else ""
    gain = "1 rank not measured" if speedup is None else f"{speedup:.3g}"
    frozen = score.frozen if score else None
    return {
        "configuration": f"{run.label}{accumulation}, {count(run.steps, 'step')}",
        "step time": format_seconds(timing.step.median) if timing else record.status,
        "predicted": expected_step(frozen) if frozen else "-",
        "samples/s": rounded(timing.samples_per_second) if timing else "-",
        "speedup": gain if timing else "-",
        "last loss": "-" if record.final_loss is None else f"{record.final_loss:.3f}",
    }


def _speedups(entries: list[Entry]) -> dict[Key, float]:
    """Speedup over the equal run at world size 1 of the same study, if that was measured."""
    from lab.analysis.scaling import summary

    speedups = {}
    for study in _studies(entries):
        rows = summary(table(study), baseline=study.baseline, scaling=study.scaling)
        for row in rows[rows["speedup"].notna()].to_dict("records"):
            speedups[_key(study, row["run_id"])] = float(row["speedup"])
    return speedups


def _figures(entries: list[Entry], marked: Entry, scored: Mapping[Key, Score]) -> list[Part]:
    """Throughput and step breakdown of the runs near the marked one, and its loss."""
    near = [entry for entry in entries if entry[1].completed and _is_near(entry, marked)]
    if not near:
        return []
    keys = [_key_of(entry) for entry in near]
    others = len(set(keys)) > 1 and marked[1].completed
    expected = {
        key: score for key in keys if (score := scored.get(key)) and not is_unsure(score.frozen)
    }
    drawn = partial(draw, meant=_key_of(marked) if others else None, expected=expected)
    runs = _on_clusters(near)
    figures = [blocks.figure(name, runs, mark=partial(drawn, figure=name)) for name in FIGURES]
    words = in_words(expected)
    return [
        blocks.Markdown.of(_note(near, ringed=others, predicted=bool(expected))),
        *(dataclasses.replace(figure, alt=f"{figure.alt} {words}".strip()) for figure in figures),
        blocks.figure("loss_by_step", [marked[1]] if marked[1].completed else runs.records),
    ]


def _is_near(entry: Entry, marked: Entry) -> bool:
    """Whether a run is of the marked one's configuration, or of its cluster, model and data."""
    (study, record), (home, meant) = entry, marked
    if study.folder.parent != home.folder.parent:
        return study.folder.name == home.folder.name
    return (record.run.model, record.run.data) == (meant.run.model, meant.run.data)


def _on_clusters(entries: list[Entry]) -> StudyResults:
    """The results of runs, each cluster a machine with its own curves and baselines."""
    runs = StudyResults([record for _, record in entries])
    clusters = [study.folder.parent.name for study, _ in entries]
    runs.table = table(runs.records).assign(machine=clusters)
    return runs


def _note(near: list[Entry], *, ringed: bool, predicted: bool) -> str:
    clusters = sorted({study.folder.parent.name for study, _ in near})
    elsewhere = f", and this configuration on {' and '.join(clusters)}" if len(clusters) > 1 else ""
    mark = "; this run is ringed and framed" if ringed else ""
    diamonds = "; diamonds are predictions from before the runs, with their intervals"
    return f"Runs of the same model on the same data{elsewhere}{mark}{diamonds * predicted}."


def since_the_last(entries: list[Entry], marked: Entry) -> str:
    """The settings that changed since the run before this one, and how the steps compare.

    Empty for the first completed run, and for one that did not complete.
    """
    home, record = marked
    earlier = [
        entry
        for entry in entries
        if entry[1].completed and entry[1].finished_at < record.finished_at
    ]
    if not earlier or not record.completed:
        return ""
    last = max(earlier, key=lambda entry: entry[1].finished_at)
    before, after = _settings(last), _settings(marked)
    changes = [
        f"{NAMES[name][0]} {value} → {after[name]}"
        for name, value in before.items()
        if value != after[name]
    ]
    sentence = compared(ratio(record, last[1], known=_known(home.folder.parent.name)))
    return f"Changed since the last run: {', '.join(changes) or 'nothing'}. {sentence}"


def _settings(entry: Entry) -> dict[str, str]:
    study, record = entry
    of_run = {name: str(getattr(record.run, name)) for name in OF_RUN}
    return of_run | {"cluster": study.folder.parent.name}


def _known(cluster: str) -> Deviation | None:
    """How far equal processes differ by the calibration of a cluster, if there is one."""
    try:
        calibration = load_calibration(cluster)
    except LabError:  # the profile is gone, its results are not
        return None
    return spread(calibration.processes) if calibration else None


def ratio(record: Record, last: Record, *, known: Deviation | None) -> Interval | None:
    """The ratio of the median steps of two runs; None if too few steps were timed.

    Its 95 % interval covers the spread of steps, foreign load, and how far processes that run the
    same differ: `known`, or else what was once measured.
    """
    timings = [one.timing for one in (record, last) if one.timing and one.timing.step.interval]
    if len(timings) < 2:
        return None
    deviations = [of_processes(known, basis=1, measured=1)]
    deviations += [of_foreign_load(one.foreign_share or 0.0) for one in (record, last)]
    for timing in timings:
        low, high = timing.step.interval or (0.0, 0.0)
        deviations.append(Deviation((high - low) / (2 * NORMAL_95) / timing.step.median))
    value, factor = timings[0].step.median / timings[1].step.median, exp(half_width(deviations))
    return value, value / factor, value * factor


def compared(times: Interval | None) -> str:
    """How much longer or shorter a step became, claimed only if the interval excludes no change."""
    question = f"Whether a step became longer or shorter: {CANNOT_TELL}"
    if times is None:
        return f"{question}, too few steps were timed."
    _, low, high = times
    if low <= 1 <= high:
        return f"{question}, {interval_of(rounded(*times))} times as long."
    return f"A step takes {rounded(*times)} times as long."
