"""Predict a study's runs from its own one-device records and its cluster's calibration, or for a described machine."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lab.analysis.described import Described
from lab.analysis.layouts import Bucket, Layout, Links, Profile, Sharing, buckets_of
from lab.analysis.links import ring_all_reduce_time
from lab.analysis.machines import FLOPS_REACHED, Machine
from lab.analysis.memory import FP32, rank_memory
from lab.analysis.predict import Conditions, Prediction, predict
from lab.analysis.replay import NO_CONTENTION, Contention
from lab.analysis.topology import CollectiveSeconds
from lab.calibration import Calibration, load_calibration
from lab.cluster import Cluster
from lab.errors import InputError, LabError, Problem
from lab.records import Record, Store
from lab.study import DEFAULT_BUCKET_CAP_MB, Run, Study
from lab.workloads import GPT, vocab_size_of

MIB = 2**20
# Quantiles of a normal distribution at 10 and 90 % are so many standard deviations apart.
P10_TO_P90 = 2.563
# Fields of a run that change what one device does, beside the batch.
_SAME = ("architecture", "dataset", "precision", "compile")
# From this many ranks on a mean over them is out of the question; only what one rank does, and the link, is predicted.
SHARINGS: dict[str, Sharing] = {"single": "single", "ddp": "ddp", "naive_ddp": "naive_ddp", "zero1": "zero1", "fsdp": "fsdp"}


@dataclass(frozen=True)
class Forecast:
    """What is expected of a run: its step and the bytes of a rank at its peak, or why nothing can be said.

    `basis` says what it is made from; `extrapolated` names what lies outside of what was measured.
    """

    run: Run
    prediction: Prediction | None = None
    memory_bytes: float | None = None
    basis: str = ""
    extrapolated: tuple[str, ...] = ()
    missing: str = ""


@dataclass(frozen=True)
class Basis:
    """What predictions are made from: records of one rank, the calibration, and the errors of earlier predictions."""

    records: tuple[Record, ...]
    calibration: Calibration | None
    model_error: float = 0.0

    @classmethod
    def of(cls, study: Study, cluster: str | Cluster = "local") -> Basis:
        """What there is of a study and a cluster now."""
        from lab.scoring import error_so_far

        found = [record for record in Store(study.out).records() if record.completed and record.run.world_size == 1]
        return cls(tuple(found), load_calibration(cluster), error_so_far(study))

    def forecast(self, run: Run) -> Forecast:
        """Predict one run, or say what is missing for it."""
        try:
            return self._forecast(run)
        except LabError as error:
            return Forecast(run, missing=str(error))

    def _forecast(self, run: Run) -> Forecast:
        profile, notes = self._profile(run)
        layout = layout_of(run)
        links, contention, link_error, far = self._links(run.world_size)
        compression = {"bf16": 0.5, "fp16": 0.5}.get(run.compression, 1.0)
        prediction = predict(
            profile,
            sent(profile, run, share=compression),
            layout,
            Links(links, links, links),
            grad_accum=run.grad_accum,
            conditions=Conditions(contention, link_error=link_error, model_error=self.model_error),
        )
        return Forecast(run, prediction, self._memory(run), profile.basis, (*notes, *far))

    def _profile(self, run: Run) -> tuple[Profile, tuple[str, ...]]:
        """One device's step at the run's micro-batch: measured, else a line through what was measured at others."""
        same = [record for record in self.records if all(getattr(record.run, name) == getattr(run, name) for name in _SAME)]
        held = [record for record in same if record.gradients and record.timing]
        if not held:
            what = (
                "no record on one rank of this model and precision" if not same else "the record on one rank tells no gradients"
            )
            raise LabError(f"{what} yet: run the study's world size 1")
        sizes = sorted({record.run.micro_batch_size for record in held})
        profiles = [_measured([record for record in held if record.run.micro_batch_size == size]) for size in sizes]
        if run.micro_batch_size in sizes:
            return profiles[sizes.index(run.micro_batch_size)], ()
        return _between(run.micro_batch_size, sizes, profiles), (
            f"micro-batch {run.micro_batch_size}, measured at {_listed(sizes)}",
        )

    def _links(self, world_size: int) -> tuple[CollectiveSeconds, Contention, float, tuple[str, ...]]:
        """The cost of collectives on so many ranks, contention, the fit's relative error, and what is extrapolated."""
        if world_size == 1:
            return (lambda collective, size: 0.0), NO_CONTENTION, 0.0, ()
        calibration = self.calibration
        sizes = sorted({fit.world_size for fit in calibration.fits if fit.collective == "all_reduce"}) if calibration else []
        if calibration is None or not sizes:
            raise LabError("the cluster's links are not calibrated: run `lab calibrate`")
        measured = calibration.contention(world_size)
        contention = Contention(measured.device, measured.link) if measured else NO_CONTENTION
        nearest = min(sizes, key=lambda size: (abs(size - world_size), size))
        error = calibration.fit("all_reduce", nearest).largest_relative_error / 2
        if nearest == world_size:
            return (lambda collective, size: calibration.time(collective, world_size, size)), contention, error, ()
        alpha, rate = calibration.fit("all_reduce", sizes[-1]).of_one_link("all_reduce", sizes[-1])
        share = {"all_reduce": 1.0, "all_gather": 0.5, "reduce_scatter": 0.5, "broadcast": 0.5}  # of an all-reduce's ring
        return (
            (lambda collective, size: share[collective] * ring_all_reduce_time(size, world_size, alpha, rate)),
            contention,
            error,
            (f"{world_size} ranks by a ring of the links between {sizes[-1]}",),
        )

    def _memory(self, run: Run) -> float | None:
        """The measured peak of one rank at the same micro-batch, less what the others take over of its state."""
        same = [
            record
            for record in self.records
            if record.memory and all(getattr(record.run, name) == getattr(run, name) for name in (*_SAME, "micro_batch_size"))
        ]
        if not same:
            return None
        peak = statistics.median(max(record.memory.peak) for record in same if record.memory)
        parameters = statistics.median(record.memory.parameters for record in same if record.memory) / 4
        whole, own = (rank_memory(parameters, layout, state=FP32).total for layout in (Layout("single"), layout_of(run)))
        return peak - whole + own


def layout_of(run: Run) -> Layout:
    """How a run's ranks share its work; raises LabError for a strategy that the step model does not know."""
    if run.strategy in SHARINGS:
        return Layout(SHARINGS[run.strategy], data=run.world_size)
    model = run.architecture
    activations = (
        run.micro_batch_size
        * getattr(model, "block_size", 0)
        * getattr(model, "width", 0)
        * (4 if run.precision == "fp32" else 2)
    )
    if run.strategy in {"tensor_parallel", "pipeline_parallel"} and activations:
        split = {"tensor": run.world_size} if run.strategy == "tensor_parallel" else {"pipeline": run.world_size}
        return Layout("single", layers=getattr(model, "layers", 1), activation_bytes=activations, **split)
    raise LabError(f"the step model does not know strategy {run.strategy!r}")


def sent(profile: Profile, run: Run, *, share: float = 1.0) -> tuple[Bucket, ...]:
    """What the run's strategy sends at a time, `share` of the bytes on the link."""
    gradients = profile.gradients
    if run.strategy == "ddp":
        # Only where no size is given does DDP make the first bucket small.
        first = MIB if run.bucket_cap_mb == DEFAULT_BUCKET_CAP_MB else None
        gradients = buckets_of(gradients, run.bucket_cap_mb * MIB, first_bytes=first)
    elif run.strategy == "zero1":
        gradients = (Bucket(profile.backward_s, profile.gradient_bytes),)
    return tuple(Bucket(bucket.ready_s, round(bucket.bytes * share)) for bucket in gradients)


def _measured(records: Sequence[Record]) -> Profile:
    """The profile that repeats of one rank's run give: medians over repeats."""
    timings = [record.timing for record in records if record.timing]
    runs = [record.run for record in records]

    def phase(name: str) -> float:
        per_micro = name in {"data", "h2d", "forward", "backward"}
        shares = [run.grad_accum if per_micro else 1 for run in runs]
        return statistics.median(timing.phases[name].median / share for timing, share in zip(timings, shares, strict=True))

    backward = phase("backward")
    gradients = next(record.gradients for record in records if record.gradients)
    jitter = statistics.median((timing.step.p90 - timing.step.p10) / P10_TO_P90 / timing.step.median for timing in timings)
    return Profile(
        forward_s=phase("forward"),
        backward_s=backward,
        optimizer_s=phase("optimizer"),
        gradients=tuple(Bucket(gradient.ready * backward, gradient.bytes) for gradient in gradients),
        data_s=phase("data") + phase("h2d"),
        other_s=phase("other"),
        spread=jitter,
        basis=f"{len(records)} record{'s' * (len(records) > 1)} of one rank at micro-batch {runs[0].micro_batch_size}",
    )


def _between(micro_batch: int, sizes: Sequence[int], profiles: Sequence[Profile]) -> Profile:
    """A micro-batch that was not measured: the nearest two on a line, one alone in proportion; never below half of that."""
    nearest = sorted(range(len(sizes)), key=lambda nth: abs(sizes[nth] - micro_batch))[:2]
    here = profiles[nearest[0]]
    ratio = micro_batch / sizes[nearest[0]]

    def scaled(name: str) -> float:
        value = float(getattr(here, name))
        if len(nearest) == 1:
            return value * ratio
        step = float(getattr(profiles[nearest[1]], name)) - value
        line = value + step * (micro_batch - sizes[nearest[0]]) / (sizes[nearest[1]] - sizes[nearest[0]])
        return max(line, 0.5 * value * min(ratio, 1.0))

    backward = scaled("backward_s")
    factor = backward / here.backward_s
    return Profile(
        forward_s=scaled("forward_s"),
        backward_s=backward,
        optimizer_s=here.optimizer_s,
        gradients=tuple(Bucket(bucket.ready_s * factor, bucket.bytes) for bucket in here.gradients),
        data_s=scaled("data_s"),
        other_s=here.other_s,
        spread=here.spread,
        basis=f"{here.basis}, scaled to {micro_batch}",
    )


def described(run: Run, machine: Machine) -> Forecast:
    """What a run would take on a machine that is known by its makers' figures alone; links that ranks share included."""
    model = run.architecture
    if not isinstance(model, GPT):
        return Forecast(run, missing=f"a described machine trains models of kind gpt, not {model.kind}")
    costing = Described(model, vocab_size_of(model, run.dataset), machine)
    profile = costing.profile(micro_batch=run.micro_batch_size, precision=run.precision)
    try:
        layout = layout_of(run)
    except LabError as error:
        return Forecast(run, missing=str(error))
    memory = costing.memory(
        layout, micro_batch=run.micro_batch_size, grad_accum=run.grad_accum, precision=run.precision, checkpointing="selective"
    )
    conditions = Conditions(model_error=costing.error)
    prediction = predict(
        profile, sent(profile, run), layout, costing.links(layout), grad_accum=run.grad_accum, conditions=conditions
    )
    far = () if memory <= costing.memory_limit else (f"needs {memory / 1e9:.0f} GB, a {machine.gpu.name} has too little",)
    return Forecast(run, prediction, memory, f"{machine.description}; {FLOPS_REACHED:.0%} of its peak assumed", far)


def forecasts(
    study: Study,
    cluster: str | Cluster = "local",
    *,
    world_sizes: Iterable[int] | None = None,
    machine: Machine | None = None,
) -> list[Forecast]:
    """One forecast per run of the study, or per line of it and each of `world_sizes`, which may lie beyond the machine.

    On other world sizes the batch follows from the study's scaling. Raises InputError where no line can have a world size.
    """
    runs = list(study.runs) if world_sizes is None else _extended(study, list(world_sizes))
    if machine is not None:
        return [described(run, machine) for run in runs]
    basis = Basis.of(study, cluster)
    return [basis.forecast(run) for run in runs]


def _extended(study: Study, world_sizes: Sequence[int]) -> list[Run]:
    if wrong := [size for size in world_sizes if not 1 <= size <= 1_000_000]:
        raise InputError("predict", [Problem("--world-size", f"{size} ranks", "1 to 1,000,000") for size in wrong])
    found: dict[str, Run] = {}
    for run in study.runs:
        for size in world_sizes:
            if (other := _at(run, size, weak=study.scaling == "weak")) is not None:
                found[other.id] = other
    if not found:
        what = f"no run of this study divides over {', '.join(map(str, world_sizes))} ranks"
        raise InputError("predict", [Problem("--world-size", what, "sizes that divide its global batch")])
    return list(found.values())


def _at(run: Run, world_size: int, *, weak: bool) -> Run | None:
    """The run on another number of ranks; None where its batch cannot be divided so."""
    content = run.model_dump() | {"world_size": world_size}
    if run.strategy == "single":
        content["strategy"] = "ddp" if world_size > 1 else "single"
    if weak:
        content |= {"global_batch_size": run.micro_batch_size * run.grad_accum * world_size}
    elif run.global_batch_size % (run.grad_accum * world_size) == 0:
        content |= {"micro_batch_size": run.global_batch_size // (run.grad_accum * world_size)}
    elif run.global_batch_size % world_size == 0:
        content |= {"micro_batch_size": run.global_batch_size // world_size, "grad_accum": 1}
    else:
        return None
    return Run.model_validate(content)


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))
