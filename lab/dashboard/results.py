"""The results of the bench: a run in words, what changed, then the table and figures of all.

The figures mark the run that is meant, and what was predicted before it was measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from math import exp
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from lab.analysis.results import StudyResults
from lab.analysis.scaling_curves import Curve, rows_of
from lab.config.study import Study
from lab.dashboard.form import NAMES, OF_RUN
from lab.dashboard.panels import CANNOT_TELL, expected_step, is_unsure
from lab.dashboard.store import Bench
from lab.errors import LabError
from lab.figures.breakdown import BAR
from lab.figures.style import whiskers
from lab.formatting import count, format_seconds, interval_of, joined, rounded, unit_for
from lab.perfmodel.calibration import load_calibration
from lab.perfmodel.frozen import Score, signed
from lab.perfmodel.simulate import (
    NORMAL_95,
    Deviation,
    half_width,
    of_foreign_load,
    of_processes,
    spread,
)
from lab.records.store import Record
from lab.records.table import table
from lab.report import blocks, sections

INK = "black"
Key = tuple[str, str]  # of a result: the name of its cluster, and the run's id
Interval = tuple[float, float, float]  # a value and the ends of its interval
Part = blocks.Markdown | blocks.Table | blocks.Figure


class Entry(NamedTuple):
    """A measured run, among the results of its study."""

    among: StudyResults
    record: Record

    @property
    def cluster(self) -> str:
        """The name of its cluster."""
        return self.among.study.folder.parent.name

    @property
    def key(self) -> Key:
        """What identifies it on a bench."""
        return self.cluster, self.record.run_id

    @property
    def score(self) -> Score | None:
        """Its prediction from before it was measured, if there is one."""
        scores = {score.frozen.run_id: score for score in self.among.scores}
        return scores.get(self.record.run_id)

    @property
    def speedup(self) -> float | None:
        """Over the equal run at world size 1, if that was measured."""
        speedups = self.among.summary.set_index("run_id")["speedup"].dropna()
        return speedups.get(self.record.run_id)


def results(bench: Bench, study: Study | None = None) -> list[Part]:
    """The results of a bench as page parts: the run of `study`, else the latest, then all."""
    studies = map(StudyResults, bench.studies())
    measured = [Entry(among, record) for among in studies for record in among.records]
    ids = {(study.folder.parent.name, run.id) for run in study.runs} if study else set()
    candidates = [entry for entry in measured if not ids or entry.key in ids]
    if not candidates:
        return [blocks.Markdown.of("Nothing has been measured on this bench yet.")]
    marked = max(candidates, key=lambda entry: entry.record.finished_at)
    record, again = marked.record, marked.among.study.command("report")
    trust: list[Part] = []
    if record.completed:
        strip = sections.strip(marked.among, run_ids=[record.run_id])
        trust = [strip, blocks.Markdown.of(beside(marked.score))]
    return [
        blocks.Markdown.of(f"{record.run.label} on {marked.cluster}", heading=4),
        sections.outcome(StudyResults([record])),
        *trust,
        *map(blocks.Markdown.of, filter(None, [since_the_last(measured, marked)])),
        _table(measured, marked),
        *_figures(measured, marked),
        blocks.Markdown(
            f"All world sizes of this configuration are a study of their own: `{again}`."
        ),
    ]


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


def _table(entries: list[Entry], marked: Entry) -> blocks.Table:
    several = len({entry.cluster for entry in entries}) > 1
    rows = [
        {"": "▶" if entry == marked else ""}
        | ({"cluster": entry.cluster} if several else {})
        | _row(entry)
        for entry in sorted(entries, key=_order)
    ]
    caption = (
        "All runs of this bench, ▶ the one above: median step of the slowest rank, speedup over "
        "the equal run on 1 rank"
    )
    return blocks.Table.of_rows(caption, rows)


def _order(entry: Entry) -> tuple[Any, ...]:
    run = entry.record.run
    names = (entry.cluster, str(run.data), str(run.model), run.strategy, run.precision)
    return *names, run.global_batch_size, run.grad_accum, run.steps, run.world_size, run.id


def _row(entry: Entry) -> dict[str, str]:
    record, score = entry.record, entry.score
    run, timing = record.run, record.timing
    accumulation = f", accumulation {run.grad_accum}" if run.grad_accum > 1 else ""
    gain = "1 rank not measured" if entry.speedup is None else f"{entry.speedup:.3g}"
    return {
        "configuration": f"{run.label}{accumulation}, {count(run.steps, 'step')}",
        "step time": format_seconds(timing.step.median) if timing else record.status,
        "predicted": expected_step(score.frozen) if score else "-",
        "samples/s": rounded(timing.samples_per_second) if timing else "-",
        "speedup": gain if timing else "-",
        "last loss": "-" if record.final_loss is None else f"{record.final_loss:.3f}",
    }


def _figures(entries: list[Entry], marked: Entry) -> list[Part]:
    """Throughput and step breakdown of the runs near the marked one, and its loss."""
    near = [entry for entry in entries if entry.record.completed and _is_near(entry, marked)]
    if not near:
        return []
    others = len({entry.key for entry in near}) > 1 and marked.record.completed
    expected = {
        entry.key: score for entry in near if (score := entry.score) and not is_unsure(score.frozen)
    }
    # Each cluster is a machine with its own curves and baselines.
    runs = StudyResults([entry.record for entry in near])
    runs.table = table(runs.records).assign(machine=[entry.cluster for entry in near])
    meant = marked.key if others else None
    figures = [
        blocks.figure(name, runs, mark=partial(mark, meant=meant, expected=expected))
        for name, mark in MARKS.items()
    ]
    words = predictions_in_words(expected)
    return [
        blocks.Markdown.of(_note(near, ringed=others, predicted=bool(expected))),
        *(dataclasses.replace(figure, alt=f"{figure.alt} {words}".strip()) for figure in figures),
        blocks.figure("loss_by_step", [marked.record] if marked.record.completed else runs.records),
    ]


def _is_near(entry: Entry, marked: Entry) -> bool:
    """Whether a run is of the marked one's configuration, or of its cluster, model and data."""
    if entry.cluster != marked.cluster:
        return entry.among.study.folder.name == marked.among.study.folder.name
    runs = entry.record.run, marked.record.run
    return (runs[0].model, runs[0].data) == (runs[1].model, runs[1].data)


def _note(near: list[Entry], *, ringed: bool, predicted: bool) -> str:
    clusters = sorted({entry.cluster for entry in near})
    elsewhere = f", and this configuration on {joined(clusters)}" if len(clusters) > 1 else ""
    mark = "; this run is ringed and framed" if ringed else ""
    diamonds = "; diamonds are predictions from before the runs, with their intervals"
    return f"Runs of the same model on the same data{elsewhere}{mark}{diamonds * predicted}."


def predictions_in_words(expected: Mapping[Key, Score]) -> str:
    """The predictions as text, for readers who cannot see the marks."""
    steps = [
        f"{score.frozen.run.label} on {cluster} a step of {expected_step(score.frozen)}"
        for (cluster, _), score in expected.items()
    ]
    return f"Predicted beforehand: {'; '.join(steps)}." if steps else ""


def mark_points(
    ax: Axes, lines: list[Curve], *, meant: Key | None, expected: Mapping[Key, Score]
) -> None:
    """A circle around the point of the run that is meant, and the predicted rates."""
    rows = {_key(row): row for _, points in lines for row in rows_of(points)}
    for key in rows.keys() & expected.keys():
        frozen = expected[key].frozen
        batch = frozen.run.stated.global_batch_size
        interval = batch / frozen.step_s, batch / frozen.high_s, batch / frozen.low_s
        (rate,), errors = whiskers([interval])
        _diamond(ax, frozen.run.world_size, rate, yerr=errors)
    if meant in rows:
        place = rows[meant]["world_size"], rows[meant]["samples_per_second"]
        ax.plot(*place, "o", markersize=11, fillstyle="none", color=INK)


def mark_bars(
    ax: Axes, lines: list[Curve], *, meant: Key | None, expected: Mapping[Key, Score]
) -> None:
    """A frame around the bar of the run that is meant, and predicted ends of steps below bars."""
    unit = unit_for([float(step) for _, points in lines for step in points["step_time"]])
    # The line with the longest first bar is on top.
    ordered = sorted(lines, key=lambda line: -float(line.points["step_time"].iloc[0]))
    keys = [_key(row) for _, points in ordered for row in rows_of(points)]
    places = dict(zip(keys, map(float, ax.get_yticks()), strict=True))
    for key, y in places.items():
        if key in expected:
            frozen = expected[key].frozen
            interval = (frozen.step_s, frozen.low_s, frozen.high_s)
            (step,), errors = whiskers([interval], unit.factor)
            _diamond(ax, step, y + BAR / 2, xerr=errors)
            ax.set_xlim(right=max(ax.get_xlim()[1], 1.04 * frozen.high_s * unit.factor))
    if meant in places:
        y, boxes = places[meant], [patch.get_bbox() for patch in list[Any](ax.patches)]
        width = max(box.x1 for box in boxes if box.y0 <= y <= box.y1)
        ax.barh(y, width, height=BAR, fill=False, edgecolor=INK, linewidth=2)


# What is added to the figures of a bench, by their names.
MARKS = {"throughput": mark_points, "step_breakdown": mark_bars}


def _key(row: Mapping[Any, Any]) -> Key:
    """The key of a row of a summary that has a column `machine`."""
    return row["machine"], row["run_id"]


def _diamond(ax: Axes, x: float, y: float, **interval: Any) -> None:
    """A hollow diamond for a prediction, with its interval."""
    look: dict[str, Any] = {"fmt": "D", "fillstyle": "none", "color": INK, "capsize": 3}
    ax.errorbar(x, y, label="_predicted", **interval, **look)


def since_the_last(entries: list[Entry], marked: Entry) -> str:
    """The settings that changed since the run before this one, and how the steps compare.

    Empty for the first completed run, and for one that did not complete.
    """
    record = marked.record
    earlier = [
        entry
        for entry in entries
        if entry.record.completed and entry.record.finished_at < record.finished_at
    ]
    if not earlier or not record.completed:
        return ""
    last = max(earlier, key=lambda entry: entry.record.finished_at)
    before, after = _settings(last), _settings(marked)
    changes = [
        f"{NAMES[name][0]} {value} → {after[name]}"
        for name, value in before.items()
        if value != after[name]
    ]
    sentence = compared(ratio(record, last.record, processes=_known(marked.cluster)))
    return f"Changed since the last run: {', '.join(changes) or 'nothing'}. {sentence}"


def _settings(entry: Entry) -> dict[str, str]:
    of_run = {name: str(getattr(entry.record.run, name)) for name in OF_RUN}
    return of_run | {"cluster": entry.cluster}


def _known(cluster: str) -> Deviation | None:
    """How far equal processes differ by the calibration of a cluster, if there is one."""
    try:
        calibration = load_calibration(cluster)
    except LabError:  # the profile is gone, its results are not
        return None
    return spread(calibration.processes) if calibration else None


def ratio(record: Record, last: Record, *, processes: Deviation | None) -> Interval | None:
    """The ratio of the median steps of two runs; None if too few steps were timed.

    Its 95 % interval covers the spread of steps, foreign load, and how far processes that run the
    same differ: `processes`, or else what was once measured.
    """
    timings = [one.timing for one in (record, last) if one.timing and one.timing.step.interval]
    if len(timings) < 2:
        return None
    deviations = [of_processes(processes, basis=1, measured=1)]
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
