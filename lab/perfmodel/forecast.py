"""Forecasts of runs from what was measured: steps of one rank, and the calibrated links of several.

A run's layout, messages and memory come from its settings; the time of its parts from records on
one rank; what communication costs from the cluster's calibration.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
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
from lab.perfmodel.layout import (
    MICRO_BATCH,
    NO_CONTENTION,
    SHARINGS,
    Bucket,
    Contention,
    Layout,
    Links,
    Profile,
    buckets_of,
)
from lab.perfmodel.memory import MemoryParts, rank_memory
from lab.perfmodel.simulate import Conditions, Prediction, predict
from lab.records.store import Record, Store

MIB = 2**20
# Standard deviations between the quantiles at 10 and 90 % of a normal distribution.
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
# Bytes that a compression of DDP's gradients leaves.
COMPRESSED = {"none": 1.0, "bf16": 0.5, "fp16": 0.5}
LOGITS = 2**24  # values of logits whose gradient exists at once


@dataclass(frozen=True)
class Forecast:
    """What is expected of a run: its step and the peak memory of a rank in bytes, or why nothing.

    `basis` says what it is made from; `extrapolated` names what lies outside of what was measured.
    """

    run: Run
    prediction: Prediction | None = None
    memory_bytes: float | None = None
    basis: str = ""
    extrapolated: tuple[str, ...] = ()
    missing: str = ""


@dataclass(frozen=True)
class MeasuredLinks:
    """The cost of collectives, contention, the fit's relative error, and what is extrapolated."""

    cost: CollectiveSeconds
    contention: Contention = NO_CONTENTION
    error: float = 0.0
    extrapolated: tuple[str, ...] = ()

    def conditions(self, model_error: float) -> Conditions:
        """What a step meets on these links."""
        return Conditions(self.contention, link_error=self.error, model_error=model_error)


@dataclass(frozen=True)
class Basis:
    """What predictions are made from: one-rank records, a calibration, errors of earlier ones."""

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
        """That of a study and a cluster now; records on one rank also of the studies `profiles`."""
        records = tuple(
            record
            for source in (study, *profiles)
            for record in Store(source.out).records()
            if record.completed and record.run.world_size == 1 and record.run.task == "train"
        )
        return cls(records, load_calibration(cluster), model_error)

    def forecast(self, run: Run) -> Forecast:
        """Predict one run, or say what is missing for it."""
        try:
            if run.task != "train":
                raise LabError("inference is measured, not predicted")
            layout = layout_of(run)
            profile, notes = self.profile(run)
            profile = profile.scaled(1 / passes(run), MICRO_BATCH)
            links = self.links(run.world_size)
            prediction = predict(
                profile,
                messages_of(profile, run),
                layout,
                Links(links.cost, links.cost, links.cost),
                grad_accum=run.grad_accum * passes(run),
                conditions=links.conditions(self.model_error),
            )
        except LabError as error:
            return Forecast(run, memory_bytes=self.memory(run), missing=str(error))
        notes += links.extrapolated
        return Forecast(run, prediction, self.memory(run), profile.basis, notes)

    def profile(self, run: Run) -> tuple[Profile, tuple[str, ...]]:
        """One device's step at the run's micro-batch, and how it was interpolated, if it was.

        Records of the run's own strategy go before those of others, which have no wrapper or
        another one. Raises LabError where nothing was measured.
        """
        same = [record for record in self.records if _alike(record.run, run)]
        records = [record for record in same if record.gradients and record.timing]
        if not records:
            reason = (
                "the records on one rank tell no gradients"
                if same
                else "no record on one rank of this model and precision yet"
            )
            raise LabError(f"{reason}: run the study's world size 1")
        records = [one for one in records if one.run.strategy == run.strategy] or records
        sizes = sorted({record.run.micro_batch_size for record in records})
        profiles = {
            size: _measured([one for one in records if one.run.micro_batch_size == size])
            for size in sizes
        }
        if run.micro_batch_size in profiles:
            return profiles[run.micro_batch_size], ()
        note = f"micro-batch {run.micro_batch_size}, measured at {', '.join(map(str, sizes))}"
        return _between(run.micro_batch_size, profiles), (note,)

    def links(self, world_size: int) -> MeasuredLinks:
        """The calibrated links, as a ring on world sizes beyond; LabError without a calibration."""
        if world_size == 1:
            return MeasuredLinks(lambda collective, size: 0.0)
        calibration, sizes = self.calibration, list[int]()
        if calibration:
            fits = (fit for fit in calibration.fits if fit.collective == "all_reduce")
            sizes = sorted({fit.world_size for fit in fits})
        if calibration is None or not sizes:
            raise LabError("the cluster's links are not calibrated: run `lab calibrate`")
        contention = NO_CONTENTION
        if measured := calibration.contention(world_size):
            contention = Contention(measured.device, measured.link, measured.neighbours)
        nearest = min(sizes, key=lambda size: (abs(size - world_size), size))
        error = calibration.fit("all_reduce", nearest).largest_relative_error / 2
        if nearest == world_size:
            return MeasuredLinks(_calibrated(calibration, world_size), contention, error)
        link = calibration.fit("all_reduce", sizes[-1]).of_one_link("all_reduce", sizes[-1])

        def ring(collective: Collective, size: float) -> float:
            return of_all_reduce(collective) * ring_time("all_reduce", size, world_size, *link)

        note = f"{world_size} ranks by a ring of the links between {sizes[-1]}"
        return MeasuredLinks(ring, contention, error, (note,))

    def memory(self, run: Run) -> float | None:
        """Peak bytes: those of the measured run nearest by count, and what the counts differ by.

        Runs of the same model go before others, and where they were measured at several
        micro-batches, a line through these tells what a counted byte takes: an allocator on CPUs
        leaves holes between tensors. None where nothing was measured or can be counted.
        """
        records = [record for record in self.records if record.memory]
        alike = [record for record in records if _alike(record.run, run)]
        peaks: dict[float, list[int]] = {}
        try:
            wanted = memory_of(run).total
            for record in alike or records:
                peak = record.memory.peak if record.memory else []
                peaks.setdefault(memory_of(record.run).total, []).extend(peak)
        except LabError:
            return None
        if not peaks:
            return None
        known = {counted: statistics.median(measured) for counted, measured in peaks.items()}
        counted = min(known, key=lambda size: abs(size - wanted))
        per_byte = 1.0
        if alike and len(known) > 1:
            slope, _ = statistics.linear_regression(list(known), list(known.values()))
            per_byte = min(max(slope, 0.8), 1.5)  # no other slope is possible
        return known[counted] + per_byte * (wanted - counted)


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
    """The profile by repeats of one rank's run: medians over repeats."""
    pairs = [(record.run, record.timing) for record in records if record.timing]

    def phases(names: Iterable[str], *, per_micro_batch: bool = True) -> float:
        return sum(
            statistics.median(
                timing.phases[name].median / (run.grad_accum if per_micro_batch else 1)
                for run, timing in pairs
            )
            for name in names
        )

    backward = phases(["backward"])
    gradients = next(record.gradients for record in records if record.gradients)
    repeats = f"{len(pairs)} record{'s' * (len(pairs) > 1)}"
    return Profile(
        forward_s=phases(["forward"]),
        backward_s=backward,
        optimizer_s=phases(["optimizer"], per_micro_batch=False),
        gradients=tuple(Bucket(one.ready * backward, one.bytes) for one in gradients),
        data_s=phases(["data", "h2d"]),
        other_s=phases(["other"], per_micro_batch=False),
        spread=statistics.median(
            (timing.step.p90 - timing.step.p10) / P10_TO_P90 / timing.step.median
            for _, timing in pairs
        ),
        basis=f"{repeats} of one rank at micro-batch {pairs[0][0].micro_batch_size}",
    )


def _between(micro_batch: int, profiles: Mapping[int, Profile]) -> Profile:
    """A micro-batch that was not measured: on a line through the nearest two, or in proportion.

    Outside of what was measured nothing shrinks faster than in proportion, and more samples never
    take less time: a step holds work that grows with its samples and some that does not.
    """
    nearest, *others = sorted(profiles, key=lambda size: abs(size - micro_batch))
    here, ratio = profiles[nearest], micro_batch / nearest
    inside = min(profiles) < micro_batch < max(profiles)

    def time(name: str) -> float:
        value = float(getattr(here, name))
        if not others:
            return value * ratio
        slope = (getattr(profiles[others[0]], name) - value) / (others[0] - nearest)
        line = float(value + slope * (micro_batch - nearest))
        return line if inside else max(line, value * min(ratio, 1.0))

    return replace(
        here.with_backward(time("backward_s")),
        forward_s=time("forward_s"),
        data_s=time("data_s"),
        basis=f"{here.basis}, scaled to {micro_batch}",
    )


def layout_of(run: Run) -> Layout:
    """How a run's ranks share its work; raises LabError for what the step model does not know."""
    if run.compression not in COMPRESSED:
        raise LabError(f"the step model does not know compression {run.compression!r}")
    if run.strategy == "fsdp" and run.shard_size not in {None, run.world_size}:
        raise LabError("the step model does not know FSDP with several copies of the model")
    if run.strategy in SHARINGS:
        return Layout(SHARINGS[run.strategy], data=run.world_size)
    splits, model = STRATEGIES[run.strategy].splits, run.architecture
    if splits not in {"tensors", "layers"} or not isinstance(model, GPT):
        raise LabError(f"the step model does not know strategy {run.strategy!r}")
    values = run.micro_batch_size / passes(run) * model.block_size * model.width
    border = round(values * (4 if run.precision == "fp32" else 2))
    tensor, pipeline = (run.world_size, 1) if splits == "tensors" else (1, run.world_size)
    return Layout("single", 1, tensor, pipeline, model.layers, border)


def passes(run: Run) -> int:
    """Into how many parts a pipeline splits a micro-batch; 1 for other strategies."""
    pipelined = STRATEGIES[run.strategy].splits == "layers"
    return (run.microbatches or run.world_size) if pipelined else 1


def messages_of(profile: Profile, run: Run) -> tuple[Bucket, ...]:
    """What the run's strategy sends at a time, with the bytes that its compression leaves."""
    buckets = profile.gradients
    if run.strategy == "ddp":
        # Only where no size is given does DDP make the first bucket small.
        first = MIB if run.bucket_cap_mb == DEFAULT_BUCKET_CAP_MB else None
        buckets = buckets_of(buckets, run.bucket_cap_mb * MIB, first_bytes=first)
    elif run.strategy == "zero1" or run.flat:
        buckets = (Bucket(profile.backward_s, profile.gradient_bytes),)
    elif run.strategy == "fsdp" and (unit := largest_unit(run)):
        buckets = buckets_of(buckets, unit)
    share = COMPRESSED[run.compression]
    return tuple(replace(bucket, bytes=round(bucket.bytes * share)) for bucket in buckets)


def largest_unit(run: Run) -> int:
    """Bytes of a transformer's block in fp32, which FSDP gathers as one; 0 for other models."""
    model = run.architecture
    return 4 * block_parameters(model.width) if isinstance(model, GPT | TextClassifier) else 0


def memory_of(run: Run) -> MemoryParts:
    """Bytes of a rank at its peak, as the backward pass begins or ends, without the process's own.

    Weights, gradients and AdamW's moments are fp32, also under autocast. Gradients are dropped
    after each step, so that outside of the buffers of DDP and ZeRO-1 they share their room with the
    activations that the backward pass frees.
    """
    weights, trainable, activations = _cost(run)
    parts = rank_memory(
        trainable,
        layout_of(run),
        activation_bytes=activations,
        grad_accum=passes(run),
        largest_unit=largest_unit(run),
    )
    parts = replace(parts, weights=parts.weights + 4.0 * (weights - trainable))
    if run.grad_accum > 1 or run.strategy in {"ddp", "zero1"}:
        return parts
    return replace(parts, gradients=0.0, activations=max(parts.activations, parts.gradients))


@lru_cache(maxsize=4096)
def _cost(run: Run) -> tuple[int, int, float]:
    """Parameters, those that train, and the bytes of activations at the peak of one micro-batch."""
    cost, model = model_cost(run), run.architecture
    activations: float = cost.activation_bytes
    if isinstance(model, GPT):
        # The gradient of the logits is there before they go, and no larger than they are.
        tokens = run.micro_batch_size * model.block_size
        activations += 4 * min(tokens * vocab_size_of(model, run.dataset), LOGITS)
        if run.activation_checkpointing:
            # What is kept more with twice as many blocks is theirs; all but one keep their input.
            twice = model.model_copy(update={"layers": 2 * model.layers})
            double = model_cost(run.model_copy(update={"model": twice})).activation_bytes
            blocks = double - cost.activation_bytes
            inputs = 4 * tokens * model.width
            activations += inputs * (model.layers - 1) - blocks * (1 - 1 / model.layers)
    return cost.parameters, cost.trainable, activations
