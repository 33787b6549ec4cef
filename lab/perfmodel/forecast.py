"""Forecasts of runs from measured one-rank steps and from the calibrated links of several ranks.

A run's layout, messages and memory come from its settings, the time of its parts from records on
one rank, and the cost of communication from the cluster's calibration.
"""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from lab.config.run import Run
from lab.errors import LabError
from lab.formatting import count
from lab.perfmodel.calibration import Calibration
from lab.perfmodel.call_costs import call_cost, neighbours
from lab.perfmodel.collectives import Collective, CollectiveSeconds, ring_time
from lab.perfmodel.layout import NO_CONTENTION, STEP, Contention, Links, Profile
from lab.perfmodel.memory import calls_of, layout_of, memory_of, profile_of
from lab.perfmodel.simulate import (
    ALONE,
    NORMAL_95,
    P10_TO_P90,
    Conditions,
    Deviation,
    Prediction,
    of_foreign_load,
    of_processes,
    predict_run,
    spread,
)
from lab.records.schema import PHASES, Environment
from lab.records.store import Record
from lab.records.table import grouped, steps_by_run

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
Kind = tuple[Any, ...]  # the values of these
# Strategies in order of how closely they resemble a plain loop on one rank.
PLAINEST = ("single", "ddp", "naive_ddp", "zero1")
SENDING_NOTHING = {"single", "ddp"}
# Relative, per doubling beyond the measured range: of a micro-batch, and of the ranks.
BEYOND_ERROR = 0.04


@dataclass(frozen=True)
class Forecast:
    """The forecast of a run: its step and a rank's peak memory in bytes, or why there is none.

    `basis` states what it is based on; `extrapolated` names what lies outside the measured range.
    """

    run: Run
    prediction: Prediction | None = None
    memory_bytes: float | None = None
    basis: str = ""
    extrapolated: tuple[str, ...] = ()
    missing: str = ""


@dataclass(frozen=True)
class MeasuredLinks:
    """The cost of collectives, the conditions of a step on them, and what is extrapolated.

    The deviations of the conditions are those of contention, and of ranks that were not calibrated.
    """

    cost: CollectiveSeconds
    conditions: Conditions = ALONE
    extrapolated: tuple[str, ...] = ()

    @property
    def links(self) -> Links:
        """These for each part of the work."""
        return Links(self.cost, self.cost, self.cost)


@dataclass(frozen=True)
class Basis:
    """The basis of predictions: one-rank records, a calibration, errors of earlier predictions.

    They predict the median over `repeats` of a run. `cluster` is the profile whose links they need.
    """

    records: tuple[Record, ...]
    calibration: Calibration | None
    model_error: float = 0.0
    repeats: int = 1
    cluster: str = "local"

    def forecast(self, run: Run) -> Forecast:
        """Predict one run, or state what is missing for it."""
        try:
            if run.task != "train":
                raise LabError("inference is measured, not predicted")
            layout_of(run)  # a strategy without one needs no records
            records = self._like(run)
            profile, notes = self.profile(run)
            links = self.links(run.world_size)
            conditions = self._conditions(run, records, links, profile)
            prediction = predict_run(run, profile, links.links, conditions=conditions)
        except LabError as error:
            return Forecast(run, memory_bytes=self.memory(run), missing=str(error))
        notes += links.extrapolated
        if disturbed := self._disturbed(run, records):
            most = max(one.foreign_share or 0.0 for one in disturbed)
            share = f"up to {100 * most:.0f} % of the ranks' cores"
            notes += (f"other processes took {share} during the measurements behind this",)
        return Forecast(run, prediction, self.memory(run), profile.basis, notes)

    def profile(self, run: Run) -> tuple[Profile, tuple[str, ...]]:
        """One device's step for the samples of one pass, and how it was interpolated, if at all.

        The samples are the run's micro-batch, which a pipeline passes on part by part. Raises
        LabError if nothing was measured.
        """
        records, samples = self._like(run), run.stated.micro_batch_size / run.passes
        sizes = sorted({record.run.stated.micro_batch_size for record in records})
        profiles = {
            size: _measured([one for one in records if one.run.stated.micro_batch_size == size])
            for size in sizes
        }
        if samples in profiles:
            return profiles[int(samples)], ()
        note = f"micro-batch {samples:g} inferred from {' and '.join(map(str, sizes))}"
        return _between(samples, profiles), (note,)

    def _like(self, run: Run) -> list[Record]:
        """Records on one rank of the run's model: of its own strategy, else of the plainest one.

        A plain loop and DDP, which sends nothing there, differ by less than two runs of either, so
        they are pooled; other strategies' wrappers are part of their time. Raises LabError if
        nothing was measured.
        """
        same = self._groups.get(kind_of(run), [])
        records = [record for record in same if record.gradients and record.timing]
        if not records:
            reason = (
                "the records on one rank do not show when gradients are ready"
                if same
                else "no record on one rank of this model and precision yet"
            )
            raise LabError(f"{reason}: measure world size 1 with `lab run`")
        nearest = _nearest(run, records)
        alike = SENDING_NOTHING if nearest in SENDING_NOTHING else {nearest}
        return [one for one in records if one.run.strategy in alike]

    def _conditions(
        self, run: Run, records: Sequence[Record], links: MeasuredLinks, profile: Profile
    ) -> Conditions:
        """The run's conditions, and by how much it may deviate from these records."""
        sizes = {record.run.stated.micro_batch_size for record in records}
        samples = run.stated.micro_batch_size / run.passes
        nearest = min(sizes, key=lambda size: abs(size - samples))
        count = sum(record.run.stated.micro_batch_size == nearest for record in records)
        conditions = links.conditions
        foreign, noise = self._foreign(run, records), _noise(samples, sizes)
        deviations = [
            *conditions.deviations,
            of_processes(self._spread, basis=count, measured=self.repeats, noise=noise),
            of_foreign_load(foreign),
        ]
        # A rank held up by other processes is the slowest, however its process was placed.
        if self._spread is not None and not foreign:
            conditions = replace(conditions, processes=self._spread.sd)
        if not min(sizes) <= samples <= max(sizes):
            doublings = abs(math.log2(samples / nearest))
            deviations.append(Deviation(BEYOND_ERROR * doublings))
        conditions = replace(conditions, deviations=tuple(deviations))
        if run.world_size == 1 or self.calibration is None:
            return conditions
        like = _nearest(run, records)
        cost = call_cost(self.calibration, run, like=like, links=links.links, conditions=conditions)
        if cost is None:
            return conditions
        return replace(
            conditions,
            # What neighbours cost is part of the factors.
            contention=replace(conditions.contention, neighbours=1.0),
            deviations=(*deviations, cost.deviation),
            factor=cost.factor,
            call_s=cost.seconds(calls_of(run, profile), profile.gradient_bytes),
        )

    @cached_property
    def _groups(self) -> dict[Kind, list[Record]]:
        """The records by all that they must share with a run that they predict."""
        return grouped((kind_of(record.run), record) for record in self.records)

    @cached_property
    def _peaks(self) -> dict[Kind, dict[float, float] | None]:
        return {kind: _peaks_of(records) for kind, records in self._groups.items()}

    @cached_property
    def _all_peaks(self) -> dict[float, float] | None:
        return _peaks_of(self.records)

    @cached_property
    def _device(self) -> str:
        return _device_of(self.records)

    @cached_property
    def _spread(self) -> Deviation | None:
        """How much one step differs between processes, in the records and in the calibration."""
        calibrated = self.calibration.processes if self.calibration else []
        return spread([*steps_by_run(self.records).values(), *calibrated])

    def _disturbed(self, run: Run, records: Sequence[Record]) -> list[Environment]:
        """The environments of records and calibration in which others took of the ranks' cores."""
        environments = [record.environment for record in records if record.environment]
        if self.calibration and run.world_size > 1:
            environments += [part.environment for part in self.calibration.parts]
        return [one for one in environments if one.disturbed and one.foreign_share]

    def _foreign(self, run: Run, records: Sequence[Record]) -> float:
        """The largest share of one rank's cores that others may have taken from it, else 0.

        It is as if all of them had been on the cores of one rank, for which the others wait.
        """
        disturbed = self._disturbed(run, records)
        shares = ((one.foreign_share or 0.0) * len(one.cpus_granted) for one in disturbed)
        return max(shares, default=0.0)

    def links(self, world_size: int) -> MeasuredLinks:
        """The calibrated links, at other world sizes a ring of the nearest calibrated ones.

        Raises LabError without a calibration.
        """
        if world_size == 1:
            # What earlier predictions missed was about several ranks; one was measured itself.
            return MeasuredLinks(lambda collective, size: 0.0, Conditions())
        calibration = self.calibration
        fits = calibration.fits if calibration else {}
        sizes = [size for name, size in fits if name == "all_reduce"]
        if calibration is None or not sizes:
            command = f"lab calibrate --cluster {shlex.quote(self.cluster)}"
            raise LabError(f"the cluster's links are not calibrated: run `{command}`")
        contention, deviations = NO_CONTENTION, tuple[Deviation, ...]()
        if measured := calibration.contention(world_size):
            contention = Contention(measured.device, measured.link, measured.neighbours)
        if crowded := neighbours(calibration, world_size):
            contention = replace(contention, neighbours=crowded[0])
            deviations = (crowded[1],)
        nearest = min(sizes, key=lambda size: (abs(size - world_size), size))
        error = calibration.fit("all_reduce", nearest).largest_relative_error / 2
        notes: tuple[str, ...] = ()
        if nearest == world_size:
            cost = _calibrated(calibration, world_size)
            error = calibration.time_error(world_size) or error
        else:
            cost = _ring(calibration, nearest, world_size)
            notes = (f"links of {world_size} ranks extrapolated from {nearest}",)
            deviations += (Deviation(BEYOND_ERROR * abs(math.log2(world_size / nearest))),)
        conditions = Conditions(contention, error, self.model_error, deviations)
        return MeasuredLinks(cost, conditions, notes)

    def memory(self, run: Run) -> float | None:
        """Peak bytes: those of the measured run with the nearest count, plus the count difference.

        Runs of the same model are preferred. If they were measured at several micro-batches, a
        linear fit gives the real cost of a counted byte, because an allocator on CPUs leaves holes
        between tensors. None if nothing was measured or can be counted.
        """
        try:
            counted = memory_of(run, device=self._device).total
        except LabError:
            return None
        alike = self._peaks.get(kind_of(run), {})
        peaks = self._all_peaks if alike == {} else alike
        if not peaks:
            return None
        nearest = min(peaks, key=lambda size: abs(size - counted))
        per_byte = 1.0
        if alike and len(peaks) > 1:
            slope, _ = statistics.linear_regression(list(peaks), list(peaks.values()))
            per_byte = min(max(slope, 0.8), 1.5)  # other slopes are implausible
        return peaks[nearest] + per_byte * (counted - nearest)


def _nearest(run: Run, records: Sequence[Record]) -> str:
    """The run's own strategy if these records have it, else the plainest of theirs."""
    strategies = [record.run.strategy for record in records]
    return next(name for name in (run.strategy, *PLAINEST, *strategies) if name in strategies)


def kind_of(run: Run) -> Kind:
    """The key of runs with the same computation per sample."""
    return tuple(getattr(run, name) for name in SAME)


def _device_of(records: Iterable[Record]) -> str:
    """Where memory was measured: a GPU holds more logits at once."""
    kinds = {record.memory.kind for record in records if record.memory}
    return "cuda" if "cuda_allocated" in kinds else "cpu"


def _peaks_of(records: Iterable[Record]) -> dict[float, float] | None:
    """Median peak bytes of records by their counted bytes; None if one cannot be counted."""
    peaks: dict[float, list[int]] = {}
    try:
        for record in records:
            if record.memory:
                counted = memory_of(record.run, device=_device_of([record])).total
                peaks.setdefault(counted, []).extend(record.memory.peak)
    except LabError:
        return None
    return {counted: statistics.median(measured) for counted, measured in peaks.items()}


def _calibrated(calibration: Calibration, world_size: int) -> CollectiveSeconds:
    """The measured cost; for a collective that was not measured, its share of an all-reduce."""
    measured = {name for name, size in calibration.fits if size == world_size}
    ring = _ring(calibration, world_size, world_size)

    def cost(collective: Collective, size: float) -> float:
        if collective in measured:
            return calibration.time(collective, world_size, size)
        share = ring(collective, size) / ring("all_reduce", size)
        return share * calibration.time("all_reduce", world_size, size)

    return cost


def _ring(calibration: Calibration, measured: int, world_size: int) -> CollectiveSeconds:
    """Collectives as rings over the links that an all-reduce on `measured` ranks had."""
    alpha, rate = calibration.fit("all_reduce", measured).of_one_link("all_reduce", measured)
    return partial(ring_time, world_size=world_size, alpha_s=alpha, bytes_per_s=rate)


def _measured(records: Sequence[Record]) -> Profile:
    """The profile by repeats of one rank's run: medians over repeats."""
    pairs = [(record.run, record.timing) for record in records if record.timing]
    phases = {
        name: statistics.median(
            timing.phases[name].median / (1 if f"{name}_s" in STEP else run.grad_accum)
            for run, timing in pairs
        )
        for name in PHASES
    }
    first = next(record for record in records if record.gradients)
    intervals = [timing.step.interval or (0.0, 0.0) for _, timing in pairs]
    repeats = count(len(pairs), "record")
    return replace(
        profile_of(phases, first.gradients or ()),
        spread=statistics.median(
            (timing.step.p90 - timing.step.p10) / P10_TO_P90 / timing.step.median
            for _, timing in pairs
        ),
        error=statistics.fmean(
            (high - low) / (2 * NORMAL_95) / timing.step.median
            for (low, high), (_, timing) in zip(intervals, pairs, strict=True)
        )
        / math.sqrt(len(pairs)),
        basis=f"{repeats} of one rank at micro-batch {pairs[0][0].micro_batch_size}",
    )


def _between(micro_batch: float, profiles: Mapping[int, Profile]) -> Profile:
    """An unmeasured micro-batch: on a line through its neighbours, or in proportion to one.

    Below the measured range a power law takes the line's place, because a line would turn the noise
    of its two points into a fixed cost. Time shrinks no faster than in proportion, and more samples
    never take less time, because a step has work that grows with its samples and work that does
    not.
    """
    nearest, second = _neighbours(micro_batch, profiles)
    here, ratio = profiles[nearest], micro_batch / nearest

    def time(name: str) -> float:
        value = float(getattr(here, name))
        if second is None:
            return value * ratio
        other = float(getattr(profiles[second], name))
        if micro_batch < min(profiles):
            grows = other > value > 0
            power = math.log(other / value) / math.log(second / nearest) if grows else 0.0
            return value * math.pow(ratio, min(power, 1.0))
        line = value + (other - value) / (second - nearest) * (micro_batch - nearest)
        return line if micro_batch < max(profiles) else max(line, value)

    return replace(
        here.with_backward(time("backward_s")),
        forward_s=time("forward_s"),
        data_s=time("data_s"),
        basis=f"{here.basis}, scaled to {micro_batch:g}",
    )


def _neighbours(micro_batch: float, sizes: Collection[int]) -> tuple[int, int | None]:
    """The nearest measured size and its nearest on the other side of this one, if there is any.

    Outside the measured range it is the nearest two; None stands for a second one that is missing.
    """
    nearest, *others = sorted(sizes, key=lambda size: abs(size - micro_batch))
    across = [size for size in others if (size > micro_batch) != (nearest > micro_batch)]
    return nearest, next(iter(across or others), None)


def _noise(samples: float, sizes: Collection[int]) -> float:
    """The noise of a time by `_between`, relative to that of one measured micro-batch.

    It is that of a power law, whose logarithm is a weighted sum of its neighbours'.
    """
    nearest, second = _neighbours(samples, sizes)
    if second is None or samples == nearest:
        return 1.0
    position = math.log(samples / nearest) / math.log(second / nearest)
    return math.hypot(1 - position, position)
