"""The step of a run from one device's profile and its links: time, interval, and what limits it.

Intervals combine deviations that were estimated from few values, or from many.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from lab.config.run import Run
from lab.perfmodel.layout import (
    NO_CONTENTION,
    Bucket,
    Contention,
    Layout,
    Links,
    Profile,
    Span,
    alone,
    covered,
    replay,
    works_of,
)
from lab.perfmodel.memory import layout_of, messages_of

LEVEL = 0.95
NORMAL_95 = 1.96  # standard deviations around the mean that cover LEVEL of a normal distribution
# Standard deviations between the quantiles at 10 and 90 % of a normal distribution.
P10_TO_P90 = 2.563
# Five processes that ran one step on their own cores differed by 3.5 %.
UNKNOWN_SPREAD = 0.035
# The standard deviation of a sample median relative to that of the mean, for normal values.
OF_MEDIAN = math.sqrt(math.pi / 2)
# The most that one competitor gets of a core that a rank wants for itself.
MOST_FOREIGN = 0.5
SHARE = 0.05  # a part of the step below this share is not a limit


@dataclass(frozen=True)
class Deviation:
    """A relative standard deviation, and its degrees of freedom."""

    sd: float
    freedom: float = math.inf

    def times(self, factor: float) -> Deviation:
        """The same for a quantity that deviates this many times as much."""
        return Deviation(self.sd * factor, self.freedom)


EXACT = Deviation(0.0)


def half_width(deviations: Iterable[Deviation]) -> float:
    """Half width of the 95 % interval of a quantity with all of these independent deviations.

    Student's t with the degrees of freedom by Welch (1947) and Satterthwaite (1946).
    """
    from scipy.special import stdtrit

    parts = [part for part in deviations if part.sd > 0]
    if not parts:
        return 0.0
    variance = sum(part.sd**2 for part in parts)
    # A sum of few degrees of freedom: an infinite part adds nothing to it.
    inverse = sum(part.sd**4 / part.freedom for part in parts) / variance**2
    freedom = min(1 / inverse if inverse else math.inf, 1e6)
    return float(stdtrit(freedom, 0.5 + LEVEL / 2)) * math.sqrt(variance)


def spread(groups: Iterable[Sequence[float]]) -> Deviation | None:
    """The pooled relative deviation within groups of values; None if all groups have one value.

    It uses logarithms, because times of small and large steps deviate by similar shares.
    """
    squares, freedom = 0.0, 0
    for group in groups:
        logs = [math.log(value) for value in group]
        mean = statistics.fmean(logs)
        squares += sum((value - mean) ** 2 for value in logs)
        freedom += len(logs) - 1
    return Deviation(math.sqrt(squares / freedom), freedom) if freedom else None


def of_processes(
    spread_of_one: Deviation | None, *, basis: int, measured: int, noise: float = 1.0
) -> Deviation:
    """Deviation of the median over `measured` processes from that over `basis`, by their spread.

    What is predicted from the basis has `noise` times its deviation.
    """
    spread_of_one = spread_of_one or Deviation(UNKNOWN_SPREAD, 4)

    def share(count: int) -> float:
        return (OF_MEDIAN if count > 2 else 1.0) ** 2 / count

    return spread_of_one.times(math.sqrt(noise**2 * share(basis) + share(measured)))


def of_foreign_load(share: float) -> Deviation:
    """Deviation of a step that lost a `share` of its core to others, and might run without them."""
    share = min(share, MOST_FOREIGN)
    return Deviation(share / (1 - share) / NORMAL_95)


@dataclass(frozen=True)
class Conditions:
    """The conditions of a step beyond its own work: contention, and the errors of its basis.

    `link_error` is the relative standard deviation of the links' costs, `model_error` that of
    earlier predictions; `deviations` are others of the whole step. A step takes `factor` times as
    long as its parts, plus `call_s` for its strategy's calls and `node_s` for its nodes.
    `processes` is the relative standard deviation of one step between processes, the slowest of
    which the others wait for.
    """

    contention: Contention = NO_CONTENTION
    link_error: float = 0.0
    model_error: float = 0.0
    deviations: tuple[Deviation, ...] = ()
    factor: float = 1.0
    call_s: float = 0.0
    node_s: float = 0.0
    processes: float = 0.0


ALONE = Conditions()


# Of a prediction, what is written down.
PREDICTED = ("step_s", "low_s", "high_s", "communication_s", "exposed_s", "parts", "limit")


@dataclass(frozen=True)
class Prediction:
    """A step, in s: its time with a 95 % interval, total and exposed communication, its parts.

    `parts` hold data, forward, backward, optimizer, exposed_communication, straggler, bubble,
    stolen_compute, call_overhead, node_overhead, other; they add up to the step. `limit` names the
    costliest part that training itself does not need, or compute.
    """

    step_s: float
    low_s: float
    high_s: float
    communication_s: float
    exposed_s: float
    parts: dict[str, float]
    limit: str
    bytes_sent: int


def predict(
    profile: Profile,
    buckets: Sequence[Bucket],
    layout: Layout,
    links: Links,
    *,
    grad_accum: int = 1,
    conditions: Conditions = ALONE,
) -> Prediction:
    """Replay the step of a rank and add the cost of the slowest rank and of the strategy's calls.

    The interval combines the errors of profile, links and earlier predictions and all other
    deviations as independent and relative: it extends by the same factor below and above the step.
    """
    ranks, neighbours = layout.world_size, conditions.contention.neighbours
    if ranks > 1 and neighbours > 1:
        buckets = tuple(bucket.later(neighbours) for bucket in buckets)
        profile = profile.scaled(neighbours)
    works = works_of(profile, buckets, layout, links, grad_accum=grad_accum)
    spans = replay(works, conditions.contention)
    factor = conditions.factor
    end = factor * max((span.end for span in spans), default=0.0)
    exposed = factor * alone(spans)
    own_s = factor * profile.step_s(grad_accum) * layout.compute_share
    # Independent deviations of the parts between waits add up; those of a whole step average out.
    waits = layout.waits(grad_accum, len(buckets))
    deviation = math.hypot(profile.spread * math.sqrt(waits), conditions.processes)
    straggler = deviation * own_s * slowest_of(ranks)
    step = end + straggler + conditions.call_s + conditions.node_s
    parts = _device_parts(spans, factor) | {
        "exposed_communication": exposed,
        "straggler": straggler,
        "call_overhead": conditions.call_s,
        "node_overhead": conditions.node_s,
    }
    # One device must update its weights; of several, each updates all of them again.
    needed = {"forward", "backward", *(("optimizer",) if ranks == 1 else ())}
    avoidable = {name: parts[name] for name in parts if name not in needed}
    costliest = max(avoidable, key=lambda name: avoidable[name])
    width = half_width(
        (
            Deviation(profile.error),
            Deviation(straggler / step / 2),
            Deviation(conditions.link_error * exposed / step),
            Deviation(conditions.model_error),
            *conditions.deviations,
        )
    )
    return Prediction(
        step_s=step,
        low_s=step / (1 + width),
        high_s=step * (1 + width),
        communication_s=factor * covered([s for s in spans if s.work.where == "link"]),
        exposed_s=exposed + straggler,
        parts=parts,
        limit=costliest if parts[costliest] > SHARE * step else "compute",
        bytes_sent=sum(work.bytes or 0 for work in works),
    )


def predict_run(
    run: Run, profile: Profile, links: Links, *, conditions: Conditions = ALONE
) -> Prediction:
    """The step of a run, from one device's profile for the samples of one pass.

    A pipeline passes a micro-batch on in parts. Raises LabError as `layout_of` does.
    """
    return predict(
        profile,
        messages_of(profile, run),
        layout_of(run),
        links,
        grad_accum=run.grad_accum * run.passes,
        conditions=conditions,
    )


def _device_parts(spans: Sequence[Span], factor: float) -> dict[str, float]:
    """Seconds of the device by part: its own work, and what communication adds to it."""
    device = [span for span in spans if span.work.where == "device" and span.work.name]
    parts = dict.fromkeys(("data", "forward", "backward", "optimizer", "bubble", "other"), 0.0)
    for span in device:
        parts[span.work.name] += factor * span.work.seconds
    stolen = factor * sum(span.end - span.start - span.work.seconds for span in device)
    return parts | {"stolen_compute": stolen}


def slowest_of(ranks: int) -> float:
    """Expected maximum of `ranks` independent normal values, in standard deviations (Blom 1958)."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0
