"""Predictions of runs from what was measured: steps of one rank, and the calibration of the links
between several.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from lab.config.cluster import Cluster
from lab.config.datasets import vocab_size_of
from lab.config.models import GPT, TextClassifier
from lab.config.run import DEFAULT_BUCKET_CAP_MB, Run
from lab.config.strategies import STRATEGIES
from lab.config.study import Study
from lab.errors import LabError
from lab.perfmodel.calibration import Calibration, load_calibration
from lab.perfmodel.collectives import Collective, CollectiveSeconds, of_all_reduce, ring_time
from lab.perfmodel.flops import block_parameters, model_cost
from lab.perfmodel.layout import SHARINGS, Bucket, Layout, Links, Profile, buckets_of
from lab.perfmodel.memory import MemoryParts, rank_memory
from lab.perfmodel.replay import NO_CONTENTION, Contention
from lab.perfmodel.simulate import Conditions, Prediction, predict
from lab.records.store import Record, Store

# Quantiles of a normal distribution at 10 and 90 % are so many standard deviations apart.
P10_TO_P90 = 2.563
# Fields of a run that change what one device does, beside strategy and batch.
SAME = (
    "architecture",
    "dataset",
    "precision",
    "compile",
    "activation_checkpointing",
    "loader",
    "loader_workers",
)


@dataclass(frozen=True)
class Forecast:
    """What is expected of a run: its step and the bytes of a rank at its peak, or why nothing can
    be said.

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
    """What predictions are made from: records of one rank, a calibration, and the error of earlier
    predictions.
    """

    records: tuple[Record, ...]
    calibration: Calibration | None
    model_error: float = 0.0

    @classmethod
    def of(
        cls,
        study: Study,
        cluster: str | Cluster = "local",
        *,
        profiles: Sequence[Study] = (),
        model_error: float = 0.0,
    ) -> Basis:
        """What there is of a study and a cluster now; records on one rank are also taken from the
        studies `profiles`.
        """
        found = [
            record
            for place in (study, *profiles)
            for record in Store(place.out).records()
            if record.completed and record.run.world_size == 1 and record.run.task == "train"
        ]
        return cls(tuple(found), load_calibration(cluster), model_error)

    def forecast(self, run: Run) -> Forecast:
        """Predict one run, or say what is missing for it."""
        try:
            return self._forecast(run)
        except LabError as error:
            return Forecast(run, memory_bytes=self.memory(run), missing=str(error))

    def _forecast(self, run: Run) -> Forecast:
        if run.task != "train":
            raise LabError("inference is measured, not predicted")
        layout = layout_of(run)
        profile, notes = self.profile(run)
        profile = in_passes(profile, passes(run))
        links, contention, link_error, far = self.links(run.world_size)
        prediction = predict(
            profile,
            messages_of(profile, run),
            layout,
            Links(links, links, links),
            grad_accum=run.grad_accum * passes(run),
            conditions=Conditions(contention, link_error=link_error, model_error=self.model_error),
        )
        return Forecast(run, prediction, self.memory(run), profile.basis, (*notes, *far))

    def profile(self, run: Run) -> tuple[Profile, tuple[str, ...]]:
        """One device's step at the run's micro-batch: measured, else a line through what was
        measured at others.

        Records of the run's own strategy go before those of others, which have no wrapper or
        another one.
        """
        same = [record for record in self.records if _alike(record.run, run)]
        held = [record for record in same if record.gradients and record.timing]
        if not held:
            told = (
                "the records on one rank tell no gradients"
                if same
                else "no record on one rank of this model and precision yet"
            )
            raise LabError(f"{told}: run the study's world size 1")
        held = [record for record in held if record.run.strategy == run.strategy] or held
        sizes = sorted({record.run.micro_batch_size for record in held})
        profiles = [
            _measured([record for record in held if record.run.micro_batch_size == size])
            for size in sizes
        ]
        if run.micro_batch_size in sizes:
            return profiles[sizes.index(run.micro_batch_size)], ()
        note = f"micro-batch {run.micro_batch_size}, measured at {', '.join(map(str, sizes))}"
        return _between(run.micro_batch_size, sizes, profiles), (note,)

    def links(
        self, world_size: int
    ) -> tuple[CollectiveSeconds, Contention, float, tuple[str, ...]]:
        """The cost of collectives on so many ranks, contention, the fit's relative error, and what
        is extrapolated.
        """
        if world_size == 1:
            return (lambda collective, size: 0.0), NO_CONTENTION, 0.0, ()
        calibration = self.calibration
        sizes = (
            sorted({fit.world_size for fit in calibration.fits if fit.collective == "all_reduce"})
            if calibration
            else []
        )
        if calibration is None or not sizes:
            raise LabError("the cluster's links are not calibrated: run `lab calibrate`")
        measured = calibration.contention(world_size)
        contention = (
            Contention(measured.device, measured.link, measured.neighbours)
            if measured
            else NO_CONTENTION
        )
        nearest = min(sizes, key=lambda size: (abs(size - world_size), size))
        error = calibration.fit("all_reduce", nearest).largest_relative_error / 2
        if nearest == world_size:
            return _calibrated(calibration, world_size), contention, error, ()
        alpha, rate = calibration.fit("all_reduce", sizes[-1]).of_one_link("all_reduce", sizes[-1])
        return (
            (
                lambda collective, size: (
                    of_all_reduce(collective)
                    * ring_time("all_reduce", size, world_size, alpha, rate)
                )
            ),
            contention,
            error,
            (f"{world_size} ranks by a ring of the links between {sizes[-1]}",),
        )

    def memory(self, run: Run) -> float | None:
        """The peak of the measured run that is nearest by its counted bytes, with the difference
        that is counted to this run.

        Runs of the same model go before others, and where they were measured at several
        micro-batches, a line through these tells what a counted byte takes: an allocator on CPUs
        leaves holes between tensors.
        """
        held = [record for record in self.records if record.memory]
        held = [record for record in held if _alike(record.run, run)] or held
        peaks: dict[float, list[int]] = {}
        try:
            wanted = memory_of(run).total
            for record in held:
                peaks.setdefault(memory_of(record.run).total, []).extend(
                    record.memory.peak if record.memory else []
                )
        except LabError:
            return None
        if not peaks:
            return None
        known = {counted: statistics.median(found) for counted, found in peaks.items()}
        counted = min(known, key=lambda size: abs(size - wanted))
        return known[counted] + _per_byte(known if _alike(held[0].run, run) else {}) * (
            wanted - counted
        )


def _per_byte(peaks: Mapping[float, float]) -> float:
    """The slope of a line through peaks by counted bytes; 1 where they tell none that is possible."""
    if len(peaks) < 2:
        return 1.0
    slope, _ = statistics.linear_regression(list(peaks), list(peaks.values()))
    return min(max(slope, 0.8), 1.5)


def _alike(one: Run, other: Run) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in SAME)


def _calibrated(calibration: Calibration, world_size: int) -> CollectiveSeconds:
    """The measured cost; of a collective that was not measured, its share of an all-reduce."""
    known = {fit.collective for fit in calibration.fits if fit.world_size == world_size}

    def cost(collective: Collective, size: float) -> float:
        if collective in known:
            return calibration.time(collective, world_size, size)
        return of_all_reduce(collective) * calibration.time("all_reduce", world_size, size)

    return cost


def _measured(records: Sequence[Record]) -> Profile:
    """The profile that repeats of one rank's run give: medians over repeats."""
    pairs = [(record.run, record.timing) for record in records if record.timing]

    def phase(name: str) -> float:
        per_micro = name in {"data", "h2d", "forward", "backward"}
        return statistics.median(
            timing.phases[name].median / (run.grad_accum if per_micro else 1)
            for run, timing in pairs
        )

    backward = phase("backward")
    gradients = next(record.gradients for record in records if record.gradients)
    jitter = statistics.median(
        (timing.step.p90 - timing.step.p10) / P10_TO_P90 / timing.step.median for _, timing in pairs
    )
    return Profile(
        forward_s=phase("forward"),
        backward_s=backward,
        optimizer_s=phase("optimizer"),
        gradients=tuple(
            Bucket(gradient.ready * backward, gradient.bytes) for gradient in gradients
        ),
        data_s=phase("data") + phase("h2d"),
        other_s=phase("other"),
        spread=jitter,
        basis=f"{len(pairs)} record{'s' * (len(pairs) > 1)} of one rank at micro-batch {pairs[0][0].micro_batch_size}",
    )


def _between(micro_batch: int, sizes: Sequence[int], profiles: Sequence[Profile]) -> Profile:
    """A micro-batch that was not measured: the nearest two on a line, one alone in proportion.

    Outside of what was measured nothing shrinks faster than in proportion, and more samples never
    take less time: a step holds work that grows with its samples and some that does not.
    """
    nearest = sorted(range(len(sizes)), key=lambda nth: abs(sizes[nth] - micro_batch))[:2]
    here = profiles[nearest[0]]
    ratio = micro_batch / sizes[nearest[0]]

    def scaled(name: str) -> float:
        value = float(getattr(here, name))
        if len(nearest) == 1:
            return value * ratio
        step = float(getattr(profiles[nearest[1]], name)) - value
        line = value + step * (micro_batch - sizes[nearest[0]]) / (
            sizes[nearest[1]] - sizes[nearest[0]]
        )
        return line if sizes[0] < micro_batch < sizes[-1] else max(line, value * min(ratio, 1.0))

    backward = scaled("backward_s")
    factor = backward / here.backward_s
    return Profile(
        forward_s=scaled("forward_s"),
        backward_s=backward,
        optimizer_s=here.optimizer_s,
        gradients=tuple(bucket.later(factor) for bucket in here.gradients),
        data_s=scaled("data_s"),
        other_s=here.other_s,
        spread=here.spread,
        basis=f"{here.basis}, scaled to {micro_batch}",
    )


MIB = 2**20
COMPRESSED = {"none": 1.0, "bf16": 0.5, "fp16": 0.5}


def layout_of(run: Run) -> Layout:
    """How a run's ranks share its work; raises LabError for what the step model does not know."""
    if run.compression not in COMPRESSED:
        raise LabError(f"the step model does not know compression {run.compression!r}")
    if run.strategy == "fsdp" and run.shard_size not in {None, run.world_size}:
        raise LabError(
            "the step model does not know FSDP in which the ranks hold several copies of the model"
        )
    if run.strategy in SHARINGS:
        return Layout(SHARINGS[run.strategy], data=run.world_size)
    splits, model = STRATEGIES[run.strategy].splits, run.architecture
    if splits not in {"tensors", "layers"} or not isinstance(model, GPT):
        raise LabError(f"the step model does not know strategy {run.strategy!r}")
    samples = run.micro_batch_size / passes(run)
    border = round(samples * model.block_size * model.width * (4 if run.precision == "fp32" else 2))
    if splits == "tensors":
        return Layout("single", tensor=run.world_size, layers=model.layers, activation_bytes=border)
    return Layout("single", pipeline=run.world_size, layers=model.layers, activation_bytes=border)


def passes(run: Run) -> int:
    """Into how many parts a pipeline splits a micro-batch; 1 for other strategies."""
    pipelined = STRATEGIES[run.strategy].splits == "layers"
    return (run.microbatches or run.world_size) if pipelined else 1


def in_passes(profile: Profile, parts: int) -> Profile:
    """The profile of one of so many equal parts of a micro-batch."""
    shares = {
        name: getattr(profile, name) / parts for name in ("data_s", "forward_s", "backward_s")
    }
    gradients = tuple(bucket.later(1 / parts) for bucket in profile.gradients)
    return replace(profile, gradients=gradients, **shares)


def messages_of(profile: Profile, run: Run) -> tuple[Bucket, ...]:
    """What the run's strategy sends at a time, with the bytes that its compression leaves."""
    gradients = profile.gradients
    if run.strategy == "ddp":
        # Only where no size is given does DDP make the first bucket small.
        first = MIB if run.bucket_cap_mb == DEFAULT_BUCKET_CAP_MB else None
        gradients = buckets_of(gradients, run.bucket_cap_mb * MIB, first_bytes=first)
    elif run.strategy == "zero1" or run.flat:
        gradients = (Bucket(profile.backward_s, profile.gradient_bytes),)
    elif run.strategy == "fsdp" and (unit := largest_unit(run)):
        gradients = buckets_of(gradients, unit)
    return tuple(
        replace(bucket, bytes=round(bucket.bytes * COMPRESSED[run.compression]))
        for bucket in gradients
    )


def largest_unit(run: Run) -> int:
    """Bytes of one block of a transformer in fp32, which FSDP gathers as one; 0 for other models."""
    model = run.architecture
    return 4 * block_parameters(model.width) if isinstance(model, GPT | TextClassifier) else 0


def memory_of(run: Run) -> MemoryParts:
    """Bytes of a rank when its backward pass begins, or ends where that holds more: what the
    process itself needs is left out.

    Weights, gradients and AdamW's moments are fp32, also under autocast. Gradients are dropped
    after each step, so that outside of the buffers of DDP and ZeRO-1 they share their room with the
    activations that the backward pass lets go.
    """
    weights, trainable, kept = _cost(run)
    parts = rank_memory(
        trainable,
        layout_of(run),
        activation_bytes=kept,
        grad_accum=passes(run),
        largest_unit=largest_unit(run),
    )
    frozen = 4.0 * (weights - trainable)
    if run.grad_accum > 1 or run.strategy in {"ddp", "zero1"}:
        return replace(parts, weights=parts.weights + frozen)
    together = max(parts.activations, parts.gradients)
    return replace(parts, weights=parts.weights + frozen, gradients=0.0, activations=together)


@lru_cache(maxsize=4096)
def _cost(run: Run) -> tuple[int, int, float]:
    """Parameters, those that train, and the bytes of activations at the peak of one micro-batch."""
    cost = model_cost(run)
    kept: float = cost.activation_bytes
    model = run.architecture
    if isinstance(model, GPT):
        # The gradient of the logits is there before they go, and no larger than they are.
        kept += 4 * min(
            run.micro_batch_size * model.block_size * vocab_size_of(model, run.dataset), 2**24
        )
        if run.activation_checkpointing:
            inputs = 4 * run.micro_batch_size * model.block_size * model.width
            kept = kept - _blocks(run) * (1 - 1 / model.layers) + inputs * (model.layers - 1)
    return cost.parameters, cost.trainable, kept


def _blocks(run: Run) -> float:
    """Bytes that all blocks of a GPT keep: what is kept more with twice as many of them."""
    model = run.architecture
    twice = run.model_copy(
        update={"model": model.model_copy(update={"layers": 2 * getattr(model, "layers", 1)})}
    )
    return float(model_cost(twice).activation_bytes - model_cost(run).activation_bytes)
