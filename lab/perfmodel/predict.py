"""lab predict: what is expected of a study's runs, on its own and on other world sizes, beside what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lab.config.cluster import Cluster
from lab.config.datasets import vocab_size_of
from lab.config.models import GPT
from lab.config.run import Run
from lab.config.study import Study
from lab.errors import InputError, LabError, Problem
from lab.perfmodel import hardware
from lab.perfmodel.forecast import Forecast, layout_of, messages_of
from lab.perfmodel.frozen import Score, basis_of, mean_absolute_error, scores
from lab.perfmodel.hardware import FLOPS_REACHED, Described, Machine
from lab.perfmodel.simulate import Conditions
from lab.perfmodel.simulate import predict as predict_step
from lab.records.store import load_records

MOST_RANKS = 1_000_000


@dataclass(frozen=True)
class Expectation:
    """A forecast, its speedup over the study's baseline, and what was measured; `score` is that of its frozen prediction.

    `world_size` differs from the run's where its batch cannot be divided over so many ranks.
    """

    forecast: Forecast
    world_size: int
    speedup: float | None = None
    measured_s: float | None = None
    score: Score | None = None

    @property
    def configuration(self) -> str:
        """For people."""
        run = self.forecast.run
        return run.label.replace(f" x{run.world_size}", f" x{self.world_size}")


@dataclass(frozen=True)
class Expectations:
    """What is expected of a study; `error` is the mean absolute one of its scored predictions, None where none is scored."""

    of: tuple[Expectation, ...]
    scored: tuple[Score, ...] = ()

    @property
    def error(self) -> float | None:
        """Relative."""
        return mean_absolute_error(list(self.scored))

    def table(self) -> list[dict[str, Any]]:
        """One row per run, for people."""
        return [_row(expectation) for expectation in self.of]

    def notes(self) -> list[str]:
        """What the predictions are made from, and how wrong the frozen ones were, as sentences."""
        told = [
            f"From {basis}."
            for basis in dict.fromkeys(expected.forecast.basis for expected in self.of)
            if basis
        ]
        if self.error is not None:
            told.append(
                f"Predictions that were frozen before their runs: mean absolute error {100 * self.error:.1f} % over "
                f"{len(self.scored)} run{'s' * (len(self.scored) > 1)}; it is part of the intervals above."
            )
        return told

    def content(self) -> dict[str, Any]:
        """The same for programs: times in s, memory in bytes."""
        return {
            "runs": [_content(expectation) for expectation in self.of],
            "mean_absolute_error": self.error,
        }


def predict(
    study: Study,
    cluster: str | Cluster = "local",
    *,
    world_sizes: Iterable[int] | None = None,
    machine: str | Machine | None = None,
    profiles: Sequence[Study] = (),
) -> Expectations:
    """Predict every run of a study, or each of its lines on `world_sizes`, which may lie beyond the machine.

    From records of one rank (the study's, or those of the studies `profiles`) and the cluster's calibration, else for a
    described `machine` such as `h100x8:nvlink4:infiniband-ndr`. On other world sizes the batch follows from the study's
    scaling. Raises InputError for unknown names, and where no line can have any of the world sizes.
    """
    asked = (
        [(run, run.world_size, run) for run in study.runs]
        if world_sizes is None
        else _extended(study, list(world_sizes))
    )
    if machine is None:
        forecast = _once(basis_of(study, cluster, profiles=profiles).forecast)
        measured, scored = _measured(study), {score.frozen.run_id: score for score in scores(study)}
    else:
        place = hardware.machine(machine) if isinstance(machine, str) else machine
        forecast, measured, scored = _once(partial(on_described, place=place)), {}, {}
    found = []
    for run, size, other in asked:
        if other is None:
            told = f"its batch of {run.global_batch_size} cannot be divided over {size} ranks"
            found.append(Expectation(Forecast(run, missing=told), size))
            continue
        base = at_world_size(other, study.baseline.get("world_size", 1), study=study)
        speedup = _speedup(forecast(other), forecast(base)) if base else None
        found.append(
            Expectation(
                forecast(other), size, speedup, measured.get(other.id), scored.get(other.id)
            )
        )
    return Expectations(tuple(found), tuple(scored.values()))


def _once(forecast: Callable[[Run], Forecast]) -> Callable[[Run], Forecast]:
    known: dict[str, Forecast] = {}

    def looked_up(run: Run) -> Forecast:
        if run.id not in known:
            known[run.id] = forecast(run)
        return known[run.id]

    return looked_up


def on_described(run: Run, place: Machine) -> Forecast:
    """What a run would take on a machine that is known by its makers' figures alone; links that ranks share included."""
    model = run.architecture
    if not isinstance(model, GPT):
        return Forecast(
            run, missing=f"a described machine trains models of kind gpt, not {model.kind}"
        )
    try:
        layout = layout_of(run)
    except LabError as error:
        return Forecast(run, missing=str(error))
    costing = Described(model, vocab_size_of(model, run.dataset), place)
    checkpointing = "full" if run.activation_checkpointing else "selective"
    asked: dict[str, Any] = {
        "micro_batch": run.micro_batch_size,
        "precision": run.precision,
        "checkpointing": checkpointing,
    }
    profile = costing.profile(**asked)
    memory = costing.memory(layout, grad_accum=run.grad_accum, **asked)
    prediction = predict_step(
        profile,
        messages_of(profile, run),
        layout,
        costing.links(layout),
        grad_accum=run.grad_accum,
        conditions=Conditions(model_error=costing.error),
    )
    room = costing.memory_limit
    far = (
        ()
        if memory <= room
        else (
            f"cannot fit: needs {memory / 1e9:.0f} GB, training may take {room / 1e9:.0f} GB of a GPU",
        )
    )
    return Forecast(
        run,
        prediction,
        memory,
        f"{place.description}; {FLOPS_REACHED:.0%} of its peak assumed",
        far,
    )


def at_world_size(run: Run, world_size: int, *, study: Study) -> Run | None:
    """The run on another number of ranks, its batch as the study's scaling wants it; None where it cannot be divided so."""
    if run.world_size == world_size:
        return run
    content = run.model_dump() | {"world_size": world_size}
    if run.strategy == "single":
        content["strategy"] = "ddp"
    split_model = run.data_parallel_size == 1 and run.world_size > 1
    if study.scaling == "weak" and not split_model:
        content |= {"global_batch_size": run.micro_batch_size * run.grad_accum * world_size}
    elif not split_model:
        accum = run.grad_accum if run.global_batch_size % (run.grad_accum * world_size) == 0 else 1
        if run.global_batch_size % (accum * world_size):
            return None
        content |= {
            "micro_batch_size": run.global_batch_size // (accum * world_size),
            "grad_accum": accum,
        }
    try:
        return Run.model_validate(content)
    except ValueError:
        return None


def _extended(study: Study, world_sizes: Sequence[int]) -> list[tuple[Run, int, Run | None]]:
    """Each line of the study on each size: a run of it, the size, and the run on so many ranks where there can be one."""
    wrong = [size for size in world_sizes if not 1 <= size <= MOST_RANKS]
    if wrong or not world_sizes:
        problems = [
            Problem("--world-size", f"{size} ranks", f"1 to {MOST_RANKS:,}") for size in wrong
        ]
        raise InputError(
            "predict", problems or [Problem("--world-size", "none is given", "such as 8,64,512")]
        )
    lines: dict[str, Run] = {}
    for run in study.runs:
        alone = at_world_size(run, 1, study=study)
        lines.setdefault(alone.id if alone else run.id, run)
    found = [
        (run, size, at_world_size(run, size, study=study))
        for run in lines.values()
        for size in world_sizes
    ]
    if all(other is None for *_, other in found):
        what = f"no run of this study divides over {', '.join(map(str, world_sizes))} ranks"
        raise InputError(
            "predict", [Problem("--world-size", what, "sizes that divide its global batch")]
        )
    return found


def _measured(study: Study) -> dict[str, float]:
    steps: dict[str, list[float]] = {}
    for record in load_records(study):
        if record.completed and record.timing:
            steps.setdefault(record.run_id, []).append(record.timing.step.median)
    return {run_id: statistics.median(times) for run_id, times in steps.items()}


def _speedup(here: Forecast, base: Forecast) -> float | None:
    """The ratio of throughputs, which at an equal batch is that of the steps."""
    if here.prediction is None or base.prediction is None:
        return None
    rates = [
        forecast.run.global_batch_size / forecast.prediction.step_s
        for forecast in (here, base)
        if forecast.prediction
    ]
    return rates[0] / rates[1]


def _row(found: Expectation) -> dict[str, Any]:
    from lab.formatting import format_seconds, rounded

    forecast, prediction = found.forecast, found.forecast.prediction
    row = dict.fromkeys(
        (
            "configuration",
            "step",
            "speedup",
            "exposed",
            "memory of a rank",
            "limited by",
            "measured",
            "error",
        ),
        "",
    )
    row |= {
        "configuration": found.configuration,
        "measured": format_seconds(found.measured_s) if found.measured_s else "",
    }
    if forecast.memory_bytes:
        row["memory of a rank"] = f"{forecast.memory_bytes / 1e6:,.0f} MB"
    if found.score:
        row["error"] = f"{100 * found.score.error:+.1f} % (frozen)"
    if prediction is None:
        return row | {"limited by": f"not predicted: {forecast.missing}"}
    notes = f" ({'; '.join(forecast.extrapolated)})" if forecast.extrapolated else ""
    return row | {
        "step": format_seconds(prediction.step_s, prediction.low_s, prediction.high_s),
        "speedup": rounded(found.speedup) + "x" if found.speedup else "",
        "exposed": format_seconds(prediction.exposed_s),
        "limited by": prediction.limit.replace("_", " ") + notes,
    }


def _content(found: Expectation) -> dict[str, Any]:
    forecast, prediction = found.forecast, found.forecast.prediction
    content: dict[str, Any] = {
        "run_id": forecast.run.id,
        "configuration": found.configuration,
        "world_size": found.world_size,
        "global_batch_size": forecast.run.global_batch_size,
        "memory_bytes": forecast.memory_bytes,
        "basis": forecast.basis,
        "extrapolated": forecast.extrapolated,
        "missing": forecast.missing,
        "speedup": found.speedup,
        "measured_s": found.measured_s,
        "score": found.score.model_dump(mode="json") if found.score else None,
    }
    names = (
        "step_s",
        "low_s",
        "high_s",
        "communication_s",
        "exposed_s",
        "parts",
        "limit",
        "bytes_sent",
    )
    return content | {name: getattr(prediction, name) if prediction else None for name in names}
