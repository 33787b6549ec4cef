"""What the bench shows for a configuration before it runs: its forecast, or how to get one."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

from lab.config.cluster import Cluster
from lab.config.run import Run
from lab.config.study import Study
from lab.dashboard.store import alone
from lab.errors import LabError
from lab.formatting import capitalized, format_seconds, interval_of, percent, plain, rounded
from lab.launch.preflight import state_bytes
from lab.launch.status import clock
from lab.perfmodel.flops import model_cost
from lab.perfmodel.forecast import Basis, Forecast
from lab.perfmodel.frozen import Frozen
from lab.perfmodel.memory import layout_of
from lab.perfmodel.simulate import Prediction
from lab.records.store import Store

CANNOT_TELL = "cannot tell"
UNSURE = 4.0  # an interval with ends this many times apart says little about a step
LIMITS = {
    "compute": "the forward and backward passes",
    "exposed_communication": "communication during which nothing is computed",
    "straggler": "waiting for the slowest rank",
    "bubble": "stages of the pipeline that wait",
    "call_overhead": "what the strategy does around each of its calls",
    "node_overhead": "what every further node costs, by published runs",
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
        return f"No prediction can be made, because {error}: measure it."
    try:
        basis.profile(run)
    except LabError:
        if run.facts.splits == "layers":
            return (
                "Measure it on one rank first, with Strategy ddp: a pipeline of one stage does not "
                "show when gradients are ready."
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
        return f"The time between ranks is not known: Calibrate, or {command}, measures it once."
    return f"{capitalized(forecast.missing)}: measure it."


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
    unsure = is_unsure(prediction)
    gain = f"{rounded(outlook.speedup)}x" if outlook.speedup else "not known"
    share = f"{LIMITS.get(limit, limit)}, {percent(limiting_s / prediction.step_s)} of the step"
    cells = {
        "Predicted step": expected_step(prediction),
        "Speedup over 1 rank": CANNOT_TELL if unsure and forecast.run.world_size > 1 else gain,
        "Memory of a rank": _bytes(forecast.memory_bytes) + of_room,
        "Limited by": CANNOT_TELL if unsure else share,
    }
    bold = (f"{html.escape(name)} <b>{html.escape(cell)}</b>" for name, cell in cells.items())
    return " · ".join(bold)


def expected_step(step: Prediction | Frozen) -> str:
    """A predicted step with its interval, or only a remark if the interval says very little."""
    expected = format_seconds(step.step_s, step.low_s, step.high_s)
    return f"{CANNOT_TELL} {interval_of(expected)}" if is_unsure(step) else expected


def is_unsure(step: Prediction | Frozen) -> bool:
    """Whether a predicted step's interval is so wide that it supports no number and no claim."""
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
    part = f", of which {plain(cost.trainable / 1e6)} million train"
    return (
        f"{plain(cost.parameters / 1e6)} million parameters"
        f"{part if cost.trainable < cost.parameters else ''}; {_bytes(state)} of "
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
