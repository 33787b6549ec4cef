"""Where a step loses time against the ideal: by cause, in parts that add up to the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from lab.analysis.scaling import FEWEST_REPEATS, RESAMPLES, SEED
from lab.analysis.scaling_curves import (
    Estimate,
    Row,
    at,
    common_ranks,
    interval_name,
    labelled_rows,
)
from lab.config.run import Run
from lab.formatting import capitalized, percent, rounded, unit_for, value_of
from lab.perfmodel.calibration import Calibration, find_calibration
from lab.perfmodel.forecast import kind_of
from lab.perfmodel.layout import Layout
from lab.records.schema import Communication, Environment
from lab.records.store import Record
from lab.records.table import grouped

Draws = np.ndarray[Any, np.dtype[np.float64]]  # the value, then one per resample of the repeats
Calibrated = Callable[[str], Calibration | None]  # by cluster profile
# Causes of time that the ideal step does not have, in display order.
CAUSES = {
    "batch": "smaller micro-batches",
    "launches": "launch overhead",
    "neighbours": "cores and memory shared by ranks",
    "stolen": "compute slowed by communication",
    "others": "other processes",
    "compute": "compute that did not shrink",
    "straggler": "waiting for slower ranks",
    "transfer": "transfer",
    "exchange": "transfer and waiting for other ranks",
    "bubble": "stages of the pipeline that wait",
    "data": "waiting for data",
    "h2d": "moving the batch to the device",
    "optimizer": "the optimizer",
    "host": "the host between the phases",
    "rest": "time that no phase explains",
}
DERIVED = {"batch", "launches", "neighbours"}  # from other runs; the rest is in each record
PARTS = [cause for cause in CAUSES if cause not in DERIVED]
SHARE = 0.05  # of the step: a smaller loss is not worth a change
SHOWN = 0.01  # of the step: a smaller loss is shown with the rest
TINY = 1e-9  # s, finer than any clock
CERTAIN = 0.95  # of the resamples: the share in which a cause is the largest loss


@dataclass(frozen=True)
class Waterfall:
    """The way from the ideal step to the measured one, in s; `losses` may be gains.

    The ideal step is the baseline's, divided by the ratio of ranks if the work is shared. Without a
    baseline, or for the baseline itself, it is the step's own compute, and `compared` is False.
    """

    row: Row  # of the summary
    run: Run
    environment: Environment | None
    compared: bool
    shared: bool  # whether it has the baseline's work on more ranks
    alike: bool  # whether the baseline has as many ranks, so that nothing ideal is expected of it
    ideal: Estimate
    losses: dict[str, Estimate]  # by cause, as far as known; they add up to step - ideal
    repeats: int  # the fewest that it is based on
    largest: str  # loss
    supported: bool = field(repr=False)  # whether the repeats show that it is the largest
    unseen: bool = False  # whether its compute may hold waits for other ranks, which were not seen
    rates: Mapping[Run, float] = field(default_factory=dict, repr=False)  # samples/s of all

    @property
    def step(self) -> Estimate:
        """The measured step, as in the summary."""
        return self.row.estimate("step_time")

    @property
    def largest_share(self) -> str:
        """The share of the step that the largest loss takes, formatted for display."""
        ends = (end / self.step.value for end in self.losses[self.largest])
        return value_of(percent(*ends))

    @property
    def place(self) -> str:
        """Its curve and its ranks, formatted for display."""
        return f"{self.row.label} on {self.row.ranks}"

    @property
    def start(self) -> str:
        """What the way begins with: the ideal, a baseline on as many ranks, or the own compute."""
        if not self.compared:
            return "compute"
        return "baseline" if self.alike else "ideal"

    @property
    def opening(self) -> str:
        """How a sentence on it begins: `At batch 16 on 2 CPU processes`."""
        return capitalized(at(self.place))

    @property
    def negligible(self) -> bool:
        """Whether the repeats show that no loss takes SHARE of the step."""
        most = SHARE * self.step.value
        enough = self.repeats >= FEWEST_REPEATS
        return enough and all(loss.high <= most for loss in self.losses.values())

    def name(self, cause: str) -> str:
        """The name of a cause in a step of this strategy and scaling."""
        if cause == "transfer":
            return f"moving {self.run.facts.moves}"
        if cause == "host" and self.run.script:
            return "what the script does between the phases"
        if cause == "compute" and self.unseen:
            return "compute and communication, not told apart"
        if cause == "compute":
            gain = self.losses[cause].value < 0
            if not self.shared:
                return f"compute that became {'faster' if gain else 'slower'}"
            return "compute that shrank further" if gain else CAUSES[cause]
        return CAUSES[cause]

    def shown(self) -> dict[str, Estimate]:
        """The losses of at least SHOWN of the step by name, and the remaining loss."""
        least = SHOWN * self.step.value
        shown = {
            self.name(cause): loss
            for cause, loss in self.losses.items()
            if cause != "rest" and abs(loss.value) >= least
        }
        lost = self.step.value - self.ideal.value
        rest = lost - sum(loss.value for loss in shown.values())
        return shown | ({"the rest": Estimate(rest)} if abs(rest) >= least else {})


def waterfalls(summary: pd.DataFrame, records: Sequence[Record]) -> list[Waterfall]:
    """One per configuration whose phases are known, in the order of the curves.

    Medians of parts do not add up. Each configuration is therefore represented by the repeat with
    the median step, whose parts do; the intervals are bootstraps over repeats of that choice.
    """
    measured = grouped(
        ((record.emulation, record.run_id), record)
        for record in records
        if record.completed and record.timing
        if {"forward", "backward"} <= record.timing.phases.keys()
    )
    calibrated, baselines = cache(find_calibration), set(summary["baseline_run_id"].dropna())
    # Resamples of a run are large, and for most runs they are used only once.
    shared = {
        (emulated, run_id): _Steps(repeats, calibrated)
        for (emulated, run_id), repeats in measured.items()
        if run_id in baselines or repeats[0].run.world_size == 1
    }
    alone = grouped(
        ((emulated, kind_of(one.run)), one)
        for (emulated, _), one in shared.items()
        if one.run.world_size == 1
    )
    falls = []
    for row in labelled_rows(summary):
        emulated, run_id = row["emulated"], row["run_id"]
        if repeats := measured.get((emulated, run_id)):
            own = shared.get((emulated, run_id)) or _Steps(repeats, calibrated)
            base = shared.get((emulated, row["baseline_run_id"]), own)
            alike = alone.get((emulated, kind_of(own.run)), ())
            falls.append(_waterfall(row, own, base, _by_size(alike, own.run.strategy)))
    by_emulation = grouped((fall.row["emulated"], fall) for fall in falls)
    rates = {
        emulated: {fall.run: fall.row["samples_per_second"] for fall in own}
        for emulated, own in by_emulation.items()
    }
    return [replace(fall, rates=rates[fall.row["emulated"]]) for fall in falls]


def with_baseline(falls: Sequence[Waterfall]) -> list[Waterfall]:
    """Those that have a baseline; all of them if none has one."""
    return [fall for fall in falls if fall.compared] or list(falls)


def names_of(falls: Sequence[Waterfall]) -> tuple[list[str], str]:
    """The place of each, without the ranks that all have in common, and those ranks."""
    shared = common_ranks(pd.DataFrame([fall.row for fall in falls]))
    return [fall.row.label if shared else fall.place for fall in falls], shared


def on_most_ranks(falls: Sequence[Waterfall]) -> list[Waterfall]:
    """The last one of each curve."""
    return list({fall.row.label: fall for fall in falls}.values())


def _by_size(alone: Sequence[_Steps], strategy: str) -> dict[int, Draws]:
    """Compute of a micro-batch on one rank by its size, preferably with this strategy."""
    return {
        size: one.draws["compute"] / one.run.grad_accum
        for one in sorted(alone, key=lambda one: one.run.strategy == strategy)
        if (size := one.run.micro_batch_size) is not None
    }


def _waterfall(row: Row, own: _Steps, base: _Steps, alone: Mapping[int, Draws]) -> Waterfall:
    share = 1.0 if row["scaling"] == "weak" else base.run.world_size / own.run.world_size
    ideal, losses = _losses(own, base, 0.0 if base is own else share, alone)
    repeats = min(own.repeats, base.repeats)
    amounts = {cause: _estimate(losses[cause], repeats) for cause in CAUSES if cause in losses}
    largest = max(amounts, key=lambda cause: amounts[cause].value)
    resampled = np.stack(list(losses.values()))[:, 1:]
    return Waterfall(
        row=row,
        run=own.run,
        environment=own.environment,
        compared=base is not own,
        shared=share != 1.0,
        alike=base.run.world_size == own.run.world_size,
        ideal=_estimate(ideal, repeats),
        losses=amounts,
        repeats=repeats,
        largest=largest,
        supported=repeats >= FEWEST_REPEATS
        and amounts[largest].value > SHARE * row["step_time"]
        and amounts[largest].low > 0
        and np.mean(resampled.max(axis=0) == losses[largest][1:]) >= CERTAIN,
        unseen=own.unseen,
    )


def _estimate(draws: Draws, repeats: int) -> Estimate:
    """The value, and the 95 % interval of its resamples."""
    ends = np.percentile(draws[1:], [2.5, 97.5]) if repeats > 1 else ()
    return Estimate(float(draws[0]), *map(float, ends))


def _losses(
    own: _Steps, base: _Steps, share: float, alone: Mapping[int, Draws]
) -> tuple[Draws, dict[str, Draws]]:
    """`share` times the baseline's step, and the measured step's extra time by cause.

    A share of 0 means that there is no baseline.
    """
    losses = {part: own.draws[part] - share * base.draws[part] for part in PARTS}
    expected, derived = share * base.draws["compute"], dict[str, Draws]()
    run, intercept = own.run, _intercept(alone)
    size, base_size = run.micro_batch_size, base.run.micro_batch_size
    accum = share * base.run.grad_accum
    # Ranks that share a model do not divide samples.
    changed = run.data_parallel_size == run.world_size and (size != base_size or not share)
    compute = [alone[one] for one in (size, base_size) if one is not None and one in alone]
    if changed and share and len(compute) == 2:
        derived["batch"] = run.grad_accum * compute[0] - accum * compute[1]
    elif changed and intercept is not None:
        launches = intercept * (run.grad_accum - accum)
        derived["launches"] = _at_most(launches, losses["compute"]) if share else launches
    losses["compute"] = losses["compute"] - sum(derived.values())
    if share and own.neighbours is not None:
        expected = sum(derived.values(), start=expected)
        estimate = expected * (own.neighbours / (base.neighbours or 1.0) - 1)
        derived["neighbours"] = _at_most(estimate, losses["compute"])
        losses["compute"] = losses["compute"] - derived["neighbours"]
    ideal = share * base.draws["step"] if share else losses.pop("compute")
    present = {part: times for part, times in losses.items() if np.abs(times).max() > TINY}
    return ideal, derived | present or {"rest": 0.0 * ideal}


def _at_most(estimate: Draws, lost: Draws) -> Draws:
    """An extrapolated or calibrated loss, cut to what was lost in fact, which is never below 0."""
    bounded: Draws = np.minimum(estimate, np.maximum(lost, 0.0))
    return bounded


def _intercept(alone: Mapping[int, Draws]) -> Draws | None:
    """A micro-batch's fixed time, from a linear fit; None with fewer than two sizes."""
    if len(alone) < 2:
        return None
    times = np.stack(list(alone.values()))
    intercepts: Draws = np.clip(np.polyfit(list(alone), times, 1)[1], 0.0, times.min(axis=0))
    return intercepts


class _Steps:
    """The repeats of one run: each part of its step, with its resamples."""

    def __init__(self, repeats: Sequence[Record], calibrated: Calibrated) -> None:
        self.run, self.environment = repeats[0].run, repeats[0].environment
        self.repeats = len(repeats)
        sent = [record.communication for record in repeats]
        unknown = any(one is None or one.exposed is None for one in sent)
        self.unseen = self.run.world_size > 1 and unknown
        rows = [_parts(record) for record in repeats]
        self.draws = dict(zip(rows[0], _resampled(rows, self.run.id), strict=True))
        self.neighbours = _neighbours(self.run, self.environment, calibrated)


def _resampled(rows: Sequence[Mapping[str, float]], seed: str) -> Draws:
    """By part: the value in the repeat with the median step, and in that of each resample.

    With two repeats in the middle, it is their mean.
    """
    values, count = np.array([list(row.values()) for row in rows]), len(rows)
    rng = np.random.default_rng([SEED, int(seed, 16)])
    drawn = np.vstack([np.arange(count), rng.integers(0, count, (RESAMPLES, count))])
    order = np.argsort(values[drawn, 0], axis=1, kind="stable")
    middle = np.take_along_axis(drawn, order[:, [(count - 1) // 2, count // 2]], axis=1)
    means: Draws = values[middle].mean(axis=1).T
    return means


def _parts(record: Record) -> dict[str, float]:
    """The step of one repeat in s, and its parts on the rank that waits longest for the others."""
    timing, sent, run = record.timing, record.communication or Communication(), record.run
    assert timing is not None
    waits, late = sent.per_rank.get("straggler", []), 0.0
    waited: float | None
    if waits and timing.per_rank.keys() >= timing.phases.keys():
        # The last rank to finish changes from step to step, and with it the ranks that wait.
        rank = int(np.argmax(waits))
        phases = {name: timing.per_rank[name][rank] for name in timing.phases}
        exposed, waited = sent.per_rank["exposed"][rank], waits[rank]
        # The step ends with its slowest rank, so its extra time is also a wait for it.
        late = timing.step.median - timing.per_rank["step"][rank]
    else:
        phases = {name: stat.median for name, stat in timing.phases.items()}
        exposed = sent.exposed.median if sent.exposed else 0.0
        waited = sent.straggler.median if sent.straggler else None
    # Records without phases are from DDP, which waits at the end of its backward pass.
    places = sent.exposed_in if sum(sent.exposed_in.values()) > 0 else {"backward": 1.0}
    for name, seconds in places.items():
        phases[name] = phases.get(name, 0.0) - exposed * seconds / sum(places.values())
    parts = dict.fromkeys(("step", *PARTS), 0.0)
    parts["step"] = timing.step.median
    parts |= {name: phases.get(name, 0.0) for name in ("data", "h2d", "optimizer")}
    parts["compute"] = phases["forward"] + phases["backward"]
    parts["host"] = phases.get("other", 0.0)
    if sent.stolen_compute is not None:
        parts["stolen"] = sent.stolen_compute.median
        parts["compute"] -= parts["stolen"]
    if waited is None:
        # Idle over useful time of a pipeline's stage.
        layers = Layout(pipeline=run.world_size if run.facts.splits == "layers" else 1)
        parts["bubble"] = min(layers.bubble(run.passes) * parts["compute"], exposed)
        parts["exchange"] = exposed - parts["bubble"]
    else:
        parts |= {"straggler": waited + late, "transfer": exposed - waited}
    _set_apart_others(parts, record.environment, [max(waits) - wait for wait in waits])
    parts["rest"] = parts["step"] - sum(parts[part] for part in PARTS)
    return parts


def _set_apart_others(
    parts: dict[str, float], place: Environment | None, later: Sequence[float]
) -> None:
    """Subtract from the parts the time that other processes took on the ranks' cores.

    `later` is how much longer each rank works than the first to finish. Time taken from such a rank
    makes the others wait, while a waiting rank loses nothing. So the time counts there first, and
    the rest is spread evenly over all ranks.
    """
    if place is None or not place.foreign_share or not _computes_on_cores(place):
        return
    taken = place.foreign_share * parts["step"] * max(len(later), 1)
    if sum(later) > 0:
        explained = min(taken / sum(later), 1.0) * max(later)
        taken -= min(taken, sum(later))
        parts["straggler"] -= explained
        parts["others"] += explained
    share = min(taken / (parts["step"] * max(len(later), 1)), 1.0)
    for part in ("compute", "stolen", "data", "optimizer", "host"):
        parts["others"] += share * parts[part]
        parts[part] *= 1 - share


def _computes_on_cores(place: Environment) -> bool:
    return place.device == "cpu" and not (place.emulated and place.emulated.compute)


def _neighbours(run: Run, place: Environment | None, calibrated: Calibrated) -> float | None:
    """How many times longer a rank computes next to the others, if that is calibrated."""
    if run.world_size == 1 or place is None or not _computes_on_cores(place):
        return None
    calibration = calibrated(place.profile)
    for part in calibration.parts if calibration else ():
        same = part.environment.cpu == place.cpu and part.world_size == run.world_size
        if same and part.contention is not None:
            return part.contention.neighbours
    return None


def waterfall_table(falls: Sequence[Waterfall]) -> tuple[str, pd.DataFrame]:
    """A caption and a row of text per configuration: ideal step, losses by size, measured step."""
    falls = with_baseline(falls)
    starts = {fall.start for fall in falls}
    start = starts.pop() if len(starts) == 1 else "ideal"
    unit = unit_for([min(fall.step.value for fall in falls)])

    def text(amount: Estimate) -> str:
        return rounded(*(seconds * unit.factor for seconds in amount))

    rows, (names, shared) = [], names_of(falls)
    for name, fall in zip(names, falls, strict=True):
        losses = sorted(fall.shown().items(), key=lambda item: -item[1].value)
        cells = {start: text(fall.ideal)}
        cells["lost (largest first)"] = "; ".join(f"{cause} {text(loss)}" for cause, loss in losses)
        rows.append({"configuration": name} | cells | {"measured": text(fall.step)})
    interval = interval_name([fall.repeats for fall in falls])
    caption = (
        f"Where the time of a step goes, in {unit.name}{f' [{interval}]' if interval else ''}, on "
        "the rank that waits longest for the others, in the repeat with the median step; the rest "
        f"is time that no phase explains and causes below {100 * SHOWN:.0f} % of a step; a "
        "negative loss is a gain"
    ) + (f". All: {shared}" if shared else "")
    return caption, pd.DataFrame(rows)
