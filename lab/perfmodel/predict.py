"""lab predict: forecasts for a study's runs, here and at other world sizes.

A GPT is also predicted on a machine known only from vendor figures and from published results on
similar ones.
"""

from __future__ import annotations

import html
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from numbers import Integral
from pathlib import Path
from typing import Any

from lab.config.cluster import Cluster
from lab.config.datasets import vocab_size_of
from lab.config.models import GPT
from lab.config.run import Run, value_bytes
from lab.config.study import Study
from lab.errors import InputError, LabError, Problem, items
from lab.formatting import count, format_seconds, html_table, rounded
from lab.perfmodel import hardware, layout_law
from lab.perfmodel.flops import block_parameters, gpt_parameters
from lab.perfmodel.forecast import Forecast
from lab.perfmodel.frameworks import COMPILED_LAB, LAB
from lab.perfmodel.frozen import Score, basis_of, mean_absolute_error, scores, signed
from lab.perfmodel.hardware import Machine
from lab.perfmodel.layout import Bucket, Candidate, Checkpointing, Layout, Links, Profile
from lab.perfmodel.layout_law import LayoutLaw
from lab.perfmodel.layout_terms import Case, further_nodes
from lab.perfmodel.memory import USABLE, layout_of, memory_of
from lab.perfmodel.simulate import PREDICTED, Conditions, predict_run
from lab.perfmodel.transformer import Transformer
from lab.records.store import load_records
from lab.records.table import steps_by_run

# Relative standard deviation of a step that is not based on any measured row: between the values
# for published A100s and H100s (`lab bench public --fit 0`).
ERROR = 0.3
MOST_RANKS = 1_000_000


@dataclass(frozen=True)
class Described:
    """A GPT on a machine known only from vendor figures, trained by the lab, eager or compiled."""

    model: GPT
    vocab_size: int
    machine: Machine
    compiled: bool = False

    @classmethod
    def of(cls, run: Run, machine: Machine) -> Described:
        """A run's model there; raises LabError for models other than GPT."""
        if not isinstance(run.architecture, GPT):
            kind = run.architecture.kind
            raise LabError(f"a described machine trains models of kind gpt, not {kind}")
        words = vocab_size_of(run.architecture, run.dataset)
        return cls(run.architecture, words, machine, compiled=run.compile)

    @property
    def parameters(self) -> int:
        """Trainable parameters."""
        return gpt_parameters(self.model, self.vocab_size)

    @cached_property
    def law(self) -> LayoutLaw:
        """The law of layouts as expected of the lab on this GPU."""
        own = COMPILED_LAB if self.compiled else LAB
        return layout_law.expected(self.machine.gpu.name, own)

    def profile(self, candidate: Candidate) -> Profile:
        """One device's step: products, memory and launches by the law of layouts.

        With tensor parallelism the passes are those of all the candidate's ranks together, each
        slowed by its smaller products and its launches. The gradients of the layers become ready at
        even intervals, those of the tied embedding at the end.
        """
        tensor, model = candidate.layout.tensor, Transformer.of(self.model, self.vocab_size)
        case = Case(model, self.model.block_size, candidate, self.machine)
        parts = self.law.parts(case)
        forward = tensor * parts["compute"] / case.passes
        backward = tensor * parts["compute"] - forward
        layers, layer = self.model.layers, block_parameters(self.model.width)
        value = value_bytes(candidate.precision)
        gradients = [
            Bucket(backward * (nth + 1) / (layers + 1), layer * value, block=nth)
            for nth in range(layers)
        ]
        gradients.append(Bucket(backward, (self.parameters - layers * layer) * value))
        return Profile(
            forward,
            backward,
            tensor * parts["optimizer"],
            tuple(gradients),
            other_s=parts["constant"],
            basis=f"{self.machine.gpu.name} by the law of layouts",
        )

    def conditions(self, layout: Layout) -> Conditions:
        """The conditions of a step in this layout: a cost per further node, the law's error."""
        nodes_s = further_nodes(layout, self.machine) * self.law.coefficients["nodes"]
        return Conditions(model_error=ERROR, node_s=nodes_s)

    @cached_property
    def _run(self) -> Run:
        own = self.model.model_copy(update={"vocab_size": self.model.vocab_size or self.vocab_size})
        return Run.model_validate({"model": own, "micro_batch_size": 1})

    def memory(self, candidate: Candidate) -> float:
        """Peak bytes of a rank, counted as those of the lab's own runs on GPUs."""
        run = self._run.model_copy(update=candidate.settings)
        return memory_of(run, device="cuda", layout=candidate.layout).total

    def links(self, layout: Layout) -> Links:
        """The machine's links, each cost computed once."""
        links = self.machine.links(layout)
        return Links(cache(links.data), cache(links.tensor), cache(links.pipeline))

    @property
    def memory_limit(self) -> float:
        """Bytes of a GPU that training may use; the rest is left to the back end."""
        return USABLE * self.machine.gpu.memory_bytes


@dataclass(frozen=True)
class Expectation:
    """A forecast, its speedup over the study's baseline, what was measured, its frozen score.

    `world_size` differs from the run's if its batch cannot be divided over that many ranks.
    """

    forecast: Forecast
    world_size: int
    speedup: float | None = None
    measured_s: float | None = None
    score: Score | None = None

    @property
    def configuration(self) -> str:
        """Formatted for display."""
        run = self.forecast.run
        strategy = "ddp" if run.strategy == "single" and self.world_size > 1 else run.strategy
        here, there = f"{run.strategy} x{run.world_size}", f"{strategy} x{self.world_size}"
        return run.label.replace(here, there, 1)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Why there is no prediction, or what it is extrapolated from."""
        missing = self.forecast.missing
        return (missing,) if missing else self.forecast.extrapolated

    def row(self, footnotes: Sequence[str] = ()) -> dict[str, Any]:
        """Formatted for display; its remarks as numbers of footnotes."""
        forecast, prediction = self.forecast, self.forecast.prediction
        marks = "".join(f" [{footnotes.index(remark) + 1}]" for remark in self.remarks)
        memory, error = forecast.memory_bytes, ""
        if self.score:  # later measurements do not change it
            frozen = format_seconds(self.score.frozen.step_s)
            error = f"{signed(self.score.error)} ({frozen}, frozen before the run)"
        row = {
            "configuration": self.configuration,
            "step": "not predicted" + marks,
            "speedup": "",
            "exposed": "",
            "memory of a rank": f"{memory / 1e6:,.0f} MB" if memory else "",
            "limited by": "",
            "measured": format_seconds(self.measured_s) if self.measured_s else "",
            "error": error,
        }
        if prediction is None:
            return row
        return row | {
            "step": format_seconds(prediction.step_s, prediction.low_s, prediction.high_s),
            "speedup": rounded(self.speedup) + "x" if self.speedup else "",
            "exposed": format_seconds(prediction.exposed_s),
            "limited by": prediction.limit.replace("_", " ") + marks,
        }

    def content(self) -> dict[str, Any]:
        """For programs: times in s, memory in bytes."""
        forecast, prediction = self.forecast, self.forecast.prediction
        return {
            "run_id": forecast.run.id,
            "configuration": self.configuration,
            "world_size": self.world_size,
            "global_batch_size": forecast.run.global_batch_size,
            "memory_bytes": forecast.memory_bytes,
            "basis": forecast.basis,
            "extrapolated": forecast.extrapolated,
            "missing": forecast.missing,
            "speedup": self.speedup,
            "measured_s": self.measured_s,
            "score": self.score.model_dump(mode="json") if self.score else None,
        } | {name: getattr(prediction, name, None) for name in (*PREDICTED, "bytes_sent")}


@dataclass(frozen=True)
class Expectations:
    """The forecasts for a study, and the scores of its frozen predictions."""

    of: tuple[Expectation, ...]
    scored: tuple[Score, ...] = ()
    baseline: int = 1  # the ranks that speedups are over

    @property
    def error(self) -> float | None:
        """Mean absolute relative error of the scored predictions; None without one."""
        return mean_absolute_error(self.scored)

    def table(self) -> list[dict[str, Any]]:
        """One row per run, for display; numbers in brackets refer to `footnotes`."""
        return [expectation.row(self.footnotes) for expectation in self.of]

    @cached_property
    def footnotes(self) -> list[str]:
        """Why runs are not predicted, and what predictions are extrapolated from."""
        return [*dict.fromkeys(remark for one in self.of for remark in one.remarks)]

    def notes(self) -> list[str]:
        """Footnotes, the basis of predictions and speedups, the errors of frozen ones."""
        numbered = [f"[{number}] {remark}" for number, remark in enumerate(self.footnotes, 1)]
        bases = dict.fromkeys(expectation.forecast.basis for expectation in self.of)
        notes = numbered + [f"From {basis}." for basis in bases if basis]
        if self.baseline > 1 and any(expectation.speedup for expectation in self.of):
            notes.append(f"Speedups are over {self.baseline} ranks.")
        if self.error is not None:
            predicted = any(not expectation.forecast.missing for expectation in self.of)
            disturbed = sum(score.disturbed for score in self.scored)
            notes.append(
                "Predictions that were frozen before their runs: mean absolute error "
                f"{100 * self.error:.1f} % over {count(len(self.scored), 'run')}"
                f"{f', {disturbed} of them disturbed by other processes' * bool(disturbed)}"
                f"{'; it is part of the intervals above' * predicted}."
            )
        return notes

    def _repr_html_(self) -> str:
        notes = (f"<p>{html.escape(note)}</p>" for note in self.notes())
        return html_table(self.table()) + "".join(notes)

    def content(self) -> dict[str, Any]:
        """The same in machine-readable form: times in s, memory in bytes."""
        return {
            "runs": [expectation.content() for expectation in self.of],
            "mean_absolute_error": self.error,
        }


def predict(
    study: Study | str | Path,
    cluster: str | Cluster = "local",
    *,
    world_sizes: Iterable[int] | None = None,
    machine: str | Machine | None = None,
    profiles: Sequence[Study | str | Path] = (),
) -> Expectations:
    """Predict every run of a study, or each of its curves at `world_sizes` beyond the machine.

    Predictions come from records of one rank (the study's, or those of the studies `profiles`) and
    the cluster's calibration, or are for a described `machine` such as
    `h100x8:nvlink4:infiniband-ndr`. At other world sizes the batch follows from the study's
    scaling. Raises InputError for unknown names, and if no curve allows any of the world sizes.
    """
    study = Study.of(study)
    requested: Sequence[tuple[Run, int, Run | None]]
    if world_sizes is None:
        requested = [(run, run.world_size, run) for run in study.runs]
    else:
        sizes = items(world_sizes, Integral, "world_sizes", "whole numbers, such as [2, 4]")
        requested = _extended(study, sizes)
    measured: dict[str, float] = {}
    scored: dict[str, Score] = {}
    if machine is None:
        expected = "a list of studies, by their names or folders"
        others = [*map(Study.of, items(profiles, Study | str | Path, "profiles", expected))]
        forecast = cache(basis_of(study, cluster, profiles=others).forecast)
        steps = steps_by_run(load_records(study))
        measured = {run_id: statistics.median(times) for run_id, times in steps.items()}
        scored = {score.frozen.run_id: score for score in scores(study)}
    else:
        place = hardware.machine(machine)
        forecast = cache(partial(on_described, place=place))
    expectations, ranks = [], study.baseline.get("world_size", 1)
    for run, size, there in requested:
        if there is None:
            missing = f"its batch of {run.global_batch_size} cannot be divided over {size} ranks"
            expectations.append(Expectation(Forecast(run, missing=missing), size))
            continue
        base = at_world_size(there, ranks, study=study)
        speedup = _speedup(forecast(there), forecast(base)) if base else None
        step_s, score = measured.get(there.id), scored.get(there.id)
        expectations.append(Expectation(forecast(there), size, speedup, step_s, score))
    return Expectations(tuple(expectations), tuple(scored.values()), ranks)


def on_described(run: Run, place: Machine) -> Forecast:
    """The forecast for a run on a machine known only from vendor figures."""
    try:
        costing, layout, stated = Described.of(run, place), layout_of(run), run.stated
    except LabError as error:
        return Forecast(run, missing=str(error))
    checkpointing: Checkpointing = "full" if run.activation_checkpointing else "none"
    samples = stated.micro_batch_size // run.passes
    rank = Layout("single", tensor=layout.tensor, layers=layout.layers)
    profile = costing.profile(Candidate(rank, samples, 1, checkpointing, stated.precision))
    memory = memory_of(run, device="cuda").total
    conditions = costing.conditions(layout)
    prediction = predict_run(run, profile, costing.links(layout), conditions=conditions)
    limit = costing.memory_limit
    needs = f"needs {memory / 1e9:.0f} GB, but training may use {limit / 1e9:.0f} GB of a GPU"
    beyond = (f"cannot fit: {needs}",) if memory > limit else ()
    reached = 1 / costing.law.coefficients["flops"]
    basis = f"{place.description}; large products at {100 * reached:.0f} % of its peak assumed"
    return Forecast(run, prediction, memory, basis, beyond)


def at_world_size(run: Run, world_size: int, *, study: Study) -> Run | None:
    """The run on `world_size` ranks by the study's scaling; None if the batch does not allow it."""
    if run.world_size == world_size:
        return run
    content = run.model_dump() | {"world_size": world_size}
    if run.strategy == "single":
        content["strategy"] = "ddp"
    whole, micro = run.global_batch_size, run.micro_batch_size
    split_model = run.data_parallel_size == 1 and run.world_size > 1
    if split_model or whole is None or micro is None:
        pass  # there is nothing to divide
    elif study.scaling == "weak":
        content["global_batch_size"] = micro * run.grad_accum * world_size
    else:
        accum = run.grad_accum if whole % (run.grad_accum * world_size) == 0 else 1
        micro, rest = divmod(whole, accum * world_size)
        if rest:
            return None
        content |= {"micro_batch_size": micro, "grad_accum": accum}
    try:
        return Run.model_validate(content)
    except ValueError:
        return None


def _extended(study: Study, world_sizes: Sequence[int]) -> list[tuple[Run, int, Run | None]]:
    """Each curve of the study at each size: one of its runs, the size, and the run there if any."""
    problems = [
        Problem("--world-size", f"{size} ranks", f"give 1 to {MOST_RANKS:,}")
        for size in world_sizes
        if not 1 <= size <= MOST_RANKS
    ]
    if not world_sizes:
        problems = [Problem("--world-size", "none is given", "give some, such as 8,64,512")]
    if problems:
        raise InputError("predict", problems)
    lines: dict[str, Run] = {}
    for run in study.runs:
        alone = at_world_size(run, 1, study=study)
        lines.setdefault(alone.id if alone else run.id, run)
    runs = [
        (run, size, at_world_size(run, size, study=study))
        for run in lines.values()
        for size in world_sizes
    ]
    if all(there is None for *_, there in runs):
        what = f"no run of this study divides over {', '.join(map(str, world_sizes))} ranks"
        advice = "give sizes that divide its global batch"
        raise InputError.of("predict", "--world-size", what, advice)
    return runs


def _speedup(here: Forecast, base: Forecast) -> float | None:
    """The ratio of throughputs, which at equal batch is that of the steps."""
    if here.prediction is None or base.prediction is None:
        return None
    rate = here.run.stated.global_batch_size / here.prediction.step_s
    return rate / (base.run.stated.global_batch_size / base.prediction.step_s)
