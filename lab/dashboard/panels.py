"""What the bench shows for a configuration: its forecast before it runs, then all results."""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lab.config.cluster import Cluster
from lab.config.run import Run
from lab.config.study import Study
from lab.dashboard.store import Bench, alone
from lab.errors import LabError
from lab.figures.data import StudyResults
from lab.formatting import format_seconds, rounded, unit_for
from lab.launch.preflight import state_bytes
from lab.launch.status import clock
from lab.perfmodel.flops import model_cost
from lab.perfmodel.forecast import Basis, Forecast
from lab.perfmodel.frozen import Score, scores
from lab.perfmodel.requirements import layout_of
from lab.records.store import Record, Store, load_records
from lab.records.table import table
from lab.report import blocks, sections

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from lab.analysis.scaling_curves import Curve
    from lab.perfmodel.frozen import Frozen
    from lab.perfmodel.simulate import Prediction

Entry = tuple[Study, Record]
Key = tuple[str, str, str]
Part = blocks.Markdown | blocks.Table | blocks.Figure
FIGURES = ("throughput", "step_breakdown")
INK = "black"
CANNOT_TELL = "cannot tell"
UNSURE = 4.0  # an interval with ends this many times apart says little about a step
LIMITS = {
    "compute": "the forward and backward passes",
    "exposed_communication": "communication beside which nothing is computed",
    "straggler": "waiting for the slowest rank",
    "bubble": "stages of the pipeline that wait",
    "call_overhead": "what the strategy does around each of its calls",
    "stolen_compute": "communication that takes the cores from computing",
    "data": "loading data",
    "optimizer": "the optimizer",
    "other": "what belongs to no phase",
}


@dataclass(frozen=True)
class Outlook:
    """A forecast and its speedup over the equal run on one rank; `advice` says how to get one."""

    forecast: Forecast
    speedup: float | None = None
    advice: str = ""


def outlook(run: Run, basis: Basis, *, cluster: Cluster) -> Outlook:
    """The forecast of a run, without starting anything."""
    forecast = basis.forecast(run)
    if forecast.prediction is None:
        return Outlook(forecast, advice=_advice(forecast, basis, cluster))
    base = basis.forecast(alone(run)).prediction
    return Outlook(forecast, base.step_s / forecast.prediction.step_s if base else None)


def _advice(forecast: Forecast, basis: Basis, cluster: Cluster) -> str:
    run = forecast.run
    try:
        layout_of(run)
    except LabError as error:
        return f"No prediction can be made, as {error}: measure it."
    try:
        basis.profile(run)
    except LabError:
        if run.facts.splits == "layers":
            return (
                "Measure it on one rank first, with Strategy ddp: a pipeline of one stage does not "
                "tell when gradients are ready."
            )
        if run.world_size == 1:
            return (
                "Run measures it on one rank; predictions of other world sizes and batches are "
                "made from that."
            )
        return "Measure it on one rank first: set World size to 1, and press Run."
    try:
        basis.links(run.world_size)
    except LabError:
        command = f"`lab calibrate --cluster {cluster.name}`"
        return f"The time between ranks is not known: {command} measures it once."
    return f"{forecast.missing[0].upper()}{forecast.missing[1:]}: measure it."


def panel(outlook: Outlook, *, cluster: Cluster, history: str) -> str:
    """The outlook as HTML: numbers or how to get them, their basis, and the run's history."""
    lines = [*_basis(outlook), history]
    return "<br>".join([_numbers(outlook, cluster), *map(html.escape, lines)])


def _numbers(outlook: Outlook, cluster: Cluster) -> str:
    forecast, prediction = outlook.forecast, outlook.forecast.prediction
    if prediction is None:
        advice = re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(outlook.advice))
        return f"<b>No prediction yet.</b> {advice}"
    parts, limit = prediction.parts, prediction.limit
    limiting_s = parts["forward"] + parts["backward"] if limit == "compute" else parts[limit]
    room = cluster.memory_bytes_per_rank
    of_room = f" of {_bytes(room)}" if room and forecast.memory_bytes else ""
    gain = f"{rounded(outlook.speedup)}x" if outlook.speedup else "not known"
    cells = {
        "Predicted step": expected_step(prediction),
        "Speedup over 1 rank": CANNOT_TELL if _is_unsure(prediction) else gain,
        "Memory of a rank": _bytes(forecast.memory_bytes) + of_room,
        "Limited by": f"{LIMITS.get(limit, limit)}, {limiting_s / prediction.step_s:.0%} of the "
        "step",
    }
    bold = (f"{html.escape(name)} <b>{html.escape(cell)}</b>" for name, cell in cells.items())
    return " · ".join(bold)


def expected_step(step: Prediction | Frozen) -> str:
    """A predicted step with its interval, or only a remark if the interval says very little."""
    if _is_unsure(step):
        return f"{CANNOT_TELL}: {format_seconds(step.low_s)} to {format_seconds(step.high_s)}"
    return format_seconds(step.step_s, step.low_s, step.high_s)


def _is_unsure(step: Prediction | Frozen) -> bool:
    return step.high_s > UNSURE * step.low_s


def _basis(outlook: Outlook) -> list[str]:
    """The basis of a forecast, and the model's cost."""
    forecast = outlook.forecast
    if forecast.prediction is None:
        return [_cost(forecast.run)]
    beyond = "; ".join(forecast.extrapolated)
    beyond = f"; beyond what was measured: {beyond}" if beyond else ""
    links = "" if forecast.run.world_size == 1 else " and the calibration of the links"
    return [f"From {forecast.basis}{links}{beyond}.", _cost(forecast.run)]


def _cost(run: Run) -> str:
    state = state_bytes(run)
    if state is None:
        return "What a model or a strategy of your own takes is known once it has been measured."
    cost = model_cost(run)
    part = f", of which {cost.trainable / 1e6:.3g} million train"
    return (
        f"{cost.parameters / 1e6:.3g} million parameters"
        f"{part if cost.trainable < cost.parameters else ''}; {state / 1e6:.3g} MB of "
        "weights, gradients and optimizer state on each rank, and activations on top."
    )


def history(study: Study) -> str:
    """Whether the run of a bench's study was measured before, and what Run will do."""
    record = Store(study.out).read(study.task())
    if record is None:
        return "Not measured yet."
    if record.completed:
        duration = clock(record.duration_s or 0.0)
        return f"Measured already, in {duration}: Run shows it and measures nothing."
    return f"Its last run did not complete ({record.status}): Run measures it again."


def _bytes(size: float | None) -> str:
    if size is None:
        return "not known"
    return f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"


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
        blocks.Markdown.of(record.run.label, heading=4),
        sections.outcome(StudyResults([record])),
        *(_trust(home, record, scored.get(_key_of(marked))) if record.completed else []),
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
    return study.folder.name, study.folder.parent.name, run_id


def _key_of(entry: Entry) -> Key:
    return _key(entry[0], entry[1].run_id)


def _scores(entries: list[Entry]) -> dict[Key, Score]:
    """The predictions of the runs before they were measured."""
    studies = {study.folder: study for study, _ in entries}.values()
    return {_key(study, it.frozen.run_id): it for study in studies for it in scores(study)}


def beside(score: Score | None) -> str:
    """A measurement beside its prediction, in a sentence."""
    if score is None:
        return "It was not predicted: there was nothing yet from which it could be."
    frozen = score.frozen
    inside = "inside" if score.inside else "outside of"
    return (
        f"Predicted before the run: {expected_step(frozen)}, limited by "
        f"{frozen.limit.replace('_', ' ')}. Measured: {format_seconds(score.measured_s)}, {inside} "
        f"the interval; the prediction was off by {100 * score.error:+.1f} %."
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
    loss = record.quality.loss if record.quality else []
    return {
        "configuration": run.label + accumulation,
        "data": str(run.data),
        "steps": str(run.steps),
        "status": record.status,
        "step time": format_seconds(timing.step.median) if timing else "-",
        "predicted": expected_step(frozen) if frozen else "-",
        "samples/s": rounded(timing.samples_per_second) if timing else "-",
        "speedup": gain if timing else "-",
        "last loss": f"{loss[-1]:.3f}" if loss else "-",
    }


def _speedups(entries: list[Entry]) -> dict[Key, float]:
    """Speedup over the equal run at world size 1 of the same study, if that was measured."""
    from lab.analysis.scaling import summary

    speedups = {}
    for study in {study.folder: study for study, _ in entries}.values():
        rows = summary(table(study), baseline=study.baseline, scaling=study.scaling)
        for row in rows[rows["speedup"].notna()].to_dict("records"):
            speedups[_key(study, row["run_id"])] = float(row["speedup"])
    return speedups


def _figures(entries: list[Entry], marked: Entry, scored: Mapping[Key, Score]) -> list[Part]:
    """Throughput, step breakdown and loss of the runs on the marked one's cluster, model, data."""
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
    ringed = "; this run is ringed and framed" if others else ""
    diamonds = "; diamonds are predictions from before the runs, with their intervals"
    note = f"Runs of the same model on the same data{ringed}{diamonds if expected else ''}."
    drawn = partial(draw, run_id=run.id if others else "", expected=expected)
    figures = [blocks.figure(name, records, mark=partial(drawn, figure=name)) for name in FIGURES]
    words = in_words(expected)
    return [
        blocks.Markdown.of(note),
        *(dataclasses.replace(figure, alt=f"{figure.alt} {words}".strip()) for figure in figures),
        blocks.figure("loss_by_step", [marked[1]] if marked[1].completed else records),
    ]


def draw(
    ax: Axes, lines: list[Curve], *, figure: str, run_id: str, expected: Mapping[str, Score]
) -> None:
    """Mark a run by its id (none if empty) and add the predictions by run id, on one of FIGURES."""
    if figure == "throughput":
        rates(ax, lines, expected)
        ring(ax, lines, run_id)
    else:
        steps(ax, lines, expected)
        frame(ax, lines, run_id)


def in_words(expected: Mapping[str, Score]) -> str:
    """The predictions as text, for readers who cannot see the marks."""
    steps = [
        f"{score.frozen.run.label} a step of {format_seconds(score.frozen.step_s)}"
        for score in expected.values()
    ]
    return f"Predicted beforehand: {'; '.join(steps)}." if steps else ""


def ring(ax: Axes, lines: list[Curve], run_id: str) -> None:
    """A circle around the run's point."""
    for _, points in lines:
        for row in points[points["run_id"] == run_id].to_dict("records"):
            place = row["world_size"], row["samples_per_second"]
            ax.plot(*place, "o", markersize=11, fillstyle="none", color=INK)


def rates(ax: Axes, lines: list[Curve], expected: Mapping[str, Score]) -> None:
    """A hollow diamond with its interval for each run that was predicted."""
    drawn = {run_id for _, points in lines for run_id in points["run_id"]}
    for run_id in drawn & set(expected):
        frozen = expected[run_id].frozen
        # An interval that reaches zero would make the rate infinite.
        low_s = max(frozen.low_s, 0.2 * frozen.step_s)
        batch = frozen.run.stated.global_batch_size
        middle, low, high = (batch / seconds for seconds in (frozen.step_s, frozen.high_s, low_s))
        _diamond(ax, frozen.run.world_size, middle, yerr=[[middle - low], [high - middle]])


def _diamond(ax: Axes, x: float, y: float, **interval: Any) -> None:
    look: dict[str, Any] = {"fmt": "D", "fillstyle": "none", "color": INK, "capsize": 3}
    ax.errorbar(x, y, label="_predicted", **interval, **look)


def frame(ax: Axes, lines: list[Curve], run_id: str) -> None:
    """A frame around the run's bar."""
    from lab.figures.breakdown import BAR

    places = bars(ax, lines)
    if run_id in places:
        y = places[run_id]
        parts: list[Any] = [patch for patch in ax.patches if _lies_on(patch, y)]
        width = max(patch.get_x() + patch.get_width() for patch in parts)
        ax.barh(y, width, height=BAR, fill=False, edgecolor=INK, linewidth=2)


def steps(ax: Axes, lines: list[Curve], expected: Mapping[str, Score]) -> None:
    """The same below the bar of each predicted run, at the predicted end of its step."""
    from lab.figures.breakdown import BAR

    unit = unit_for([float(step) for _, points in lines for step in points["step_time"]])
    for run_id, y in bars(ax, lines).items():
        if run_id in expected:
            frozen = expected[run_id].frozen
            times = (frozen.step_s, frozen.low_s, frozen.high_s)
            middle, low, high = (seconds * unit.per_second for seconds in times)
            _diamond(ax, middle, y + BAR / 2, xerr=[[middle - low], [high - middle]])
            ax.set_xlim(right=max(ax.get_xlim()[1], 1.04 * high))


def bars(ax: Axes, lines: list[Curve]) -> dict[str, float]:
    """The position of each run's bar: the line with the longest first bar is on top."""
    ordered = sorted(lines, key=lambda line: -float(line.points["step_time"].iloc[0]))
    ids = [run_id for _, points in ordered for run_id in points["run_id"]]
    return dict(zip(ids, map(float, ax.get_yticks()), strict=True))


def _lies_on(patch: Any, y: float) -> bool:
    return bool(patch.get_y() <= y <= patch.get_y() + patch.get_height())
