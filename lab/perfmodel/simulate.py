"""The step of a run from one device's profile and its links: time, interval, and what limits it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

from lab.perfmodel.intervals import Deviation, half_width
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

SHARE = 0.05  # a part of the step below this share is not a limit


@dataclass(frozen=True)
class Conditions:
    """The conditions of a step beyond its own work: contention, and the errors of its basis.

    `link_error` is the relative standard deviation of the links' costs, `model_error` that of
    earlier predictions; `deviations` are others of the whole step. A step takes `factor` times as
    long as its parts, plus `call_s` for its strategy's calls. `processes` is the relative standard
    deviation of one step between processes, the slowest of which the others wait for.
    """

    contention: Contention = NO_CONTENTION
    link_error: float = 0.0
    model_error: float = 0.0
    deviations: tuple[Deviation, ...] = ()
    factor: float = 1.0
    call_s: float = 0.0
    processes: float = 0.0


ALONE = Conditions()


@dataclass(frozen=True)
class Prediction:
    """A step, in s: its time with a 95 % interval, total and exposed communication, its parts.

    `parts` hold data, forward, backward, optimizer, exposed_communication, straggler, bubble,
    stolen_compute, call_overhead, other; they add up to the step. `limit` names the costliest part
    that training itself does not need, or compute.
    """

    step_s: float
    low_s: float
    high_s: float
    communication_s: float
    exposed_s: float
    parts: dict[str, float]
    limit: str
    bytes_sent: int
    spans: tuple[Span, ...] = field(repr=False, default=())


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
    device = [span for span in spans if span.work.where == "device" and span.work.name]
    exposed = factor * alone(spans)
    own_s = factor * profile.step_s(grad_accum) * layout.compute_share
    # Independent deviations of the parts between waits add up; those of a whole step average out.
    waits = layout.waits(grad_accum, len(buckets))
    spread = math.hypot(profile.spread * math.sqrt(waits), conditions.processes)
    straggler = spread * own_s * slowest_of(ranks)
    parts = dict.fromkeys(("data", "forward", "backward", "optimizer", "bubble", "other"), 0.0)
    for span in device:
        parts[span.work.name] += factor * span.work.seconds
    stolen = factor * sum(span.end - span.start - span.work.seconds for span in device)
    step = end + straggler + conditions.call_s
    parts["stolen_compute"] = stolen
    parts["exposed_communication"] = exposed
    parts["straggler"] = straggler
    parts["call_overhead"] = conditions.call_s
    avoidable = {name: parts[name] for name in parts if name not in {"forward", "backward"}}
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
        spans=tuple(spans),
    )


def slowest_of(ranks: int) -> float:
    """Expected maximum of `ranks` independent normal values, in standard deviations (Blom 1958)."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0
