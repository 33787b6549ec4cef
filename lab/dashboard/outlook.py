"""What is expected of a configuration before it runs: step, speedup, memory, what limits, and what this is made from."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

from lab.ahead.prediction import Basis, Forecast
from lab.analysis.costs import model_cost
from lab.analysis.demands import layout_of
from lab.cluster import Cluster
from lab.dashboard.bench import alone
from lab.errors import LabError
from lab.plan import state_bytes
from lab.records import Store
from lab.study import Run, Study

LIMITS = {
    "compute": "the forward and backward passes",
    "exposed_communication": "communication beside which nothing is computed",
    "straggler": "waiting for the slowest rank",
    "bubble": "stages of the pipeline that wait",
    "stolen_compute": "communication that takes the cores from computing",
    "data": "loading data",
    "optimizer": "the optimizer",
    "other": "what belongs to no phase",
}


@dataclass(frozen=True)
class Outlook:
    """A forecast with its speedup over the equal run on one rank; `advice` says what would give one where there is none."""

    forecast: Forecast
    speedup: float | None = None
    advice: str = ""


def outlook(run: Run, basis: Basis, *, cluster: Cluster) -> Outlook:
    """What a bench's basis tells of a run; starts nothing."""
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
        if run.strategy == "pipeline_parallel":
            return (
                "Measure it on one rank first, with Strategy ddp: a pipeline of one stage does not tell when gradients are ready."
            )
        if run.world_size == 1:
            return "Run measures it on one rank; predictions of other world sizes and batches are made from that."
        return "Measure it on one rank first: set World size to 1, and press Run."
    try:
        basis.links(run.world_size)
    except LabError:
        return f"The time between ranks is not known: `lab calibrate --cluster {cluster.name}` measures it once."
    return f"{forecast.missing[0].upper()}{forecast.missing[1:]}: measure it."


def panel(found: Outlook, *, cluster: Cluster, history: str) -> str:
    """The outlook as HTML: the numbers or what would give them, then what they are made from and what is known already."""
    return "<br>".join([_numbers(found, cluster), *map(html.escape, _made_from(found)), html.escape(history)])


def _numbers(found: Outlook, cluster: Cluster) -> str:
    from lab.analysis.rounding import format_seconds, rounded

    forecast, prediction = found.forecast, found.forecast.prediction
    if prediction is None:
        return "<b>No prediction yet.</b> " + re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(found.advice))
    useful = prediction.parts["forward"] + prediction.parts["backward"]
    share = (useful if prediction.limit == "compute" else prediction.parts[prediction.limit]) / prediction.step_s
    room = cluster.memory_bytes_per_rank
    cells = {
        "Predicted step": format_seconds(prediction.step_s, prediction.low_s, prediction.high_s),
        "Speedup over 1 rank": f"{rounded(found.speedup)}x" if found.speedup else "not known",
        "Memory of a rank": _bytes(forecast.memory_bytes) + (f" of {_bytes(room)}" if room and forecast.memory_bytes else ""),
        "Limited by": f"{LIMITS.get(prediction.limit, prediction.limit)}, {share:.0%} of the step",
    }
    return " · ".join(f"{html.escape(name)} <b>{html.escape(told)}</b>" for name, told in cells.items())


def _made_from(found: Outlook) -> list[str]:
    forecast = found.forecast
    if forecast.prediction is None:
        return [_cost(forecast.run)]
    beyond = f"; beyond what was measured: {'; '.join(forecast.extrapolated)}" if forecast.extrapolated else ""
    links = "" if forecast.run.world_size == 1 else " and the calibration of the links"
    return [f"From {forecast.basis}{links}{beyond}.", _cost(forecast.run)]


def _cost(run: Run) -> str:
    cost = model_cost(run)
    trained = "" if cost.trainable == cost.parameters else f", of which {cost.trainable / 1e6:.3g} million train"
    return (
        f"{cost.parameters / 1e6:.3g} million parameters{trained}; {state_bytes(run) / 1e6:.3g} MB of weights, gradients and "
        "optimizer state on each rank, and activations on top."
    )


def history(study: Study) -> str:
    """Whether the run of a bench's study was measured before, and what Run does therefore."""
    from lab.progress import clock

    record = Store(study.out).read(study.task())
    if record is None:
        return "Not measured yet."
    if record.completed:
        return f"Measured already, in {clock(record.duration_s or 0.0)}: Run shows it and measures nothing."
    return f"Its last run did not complete ({record.status}): Run measures it again."


def _bytes(size: float | None) -> str:
    if size is None:
        return "not known"
    return f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"
