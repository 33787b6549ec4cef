"""Predict: the step of a run from one device's profile and the costs of its links, with an interval
and what limits it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from lab.perfmodel.layout import Bucket, Layout, Links, Profile, works_of
from lab.perfmodel.replay import NO_CONTENTION, Contention, Span, alone, covered, replay

# Half-width of a 95 % interval in standard deviations.
WIDTH = 1.96
# A part of the step below this share limits nothing.
SHARE = 0.05


@dataclass(frozen=True)
class Conditions:
    """What a step meets beside its own work: contention, noise of the ranks, what else each step
    costs, s.

    `link_error` is the relative standard deviation of the links' costs, `model_error` that of
    earlier predictions.
    """

    contention: Contention = NO_CONTENTION
    overhead_s: float = 0.0
    link_error: float = 0.0
    model_error: float = 0.0


ALONE = Conditions()


@dataclass(frozen=True)
class Prediction:
    """A step, in s: its time with a 95 % interval, communication in all and exposed, and where the
    rest goes.

    `parts` hold data, forward, backward, optimizer, exposed_communication, straggler, bubble,
    stolen_compute, other; they add up to the step. `limit` names the one that costs most of what
    training itself does not need, or compute.
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
    """Replay the step of a rank and add what the slowest of them costs.

    The interval joins the spread of the profile and the errors of links and of earlier predictions,
    as independent.
    """
    if layout.world_size > 1 and conditions.contention.neighbours > 1:
        buckets = tuple(bucket.later(conditions.contention.neighbours) for bucket in buckets)
        profile = profile.scaled(conditions.contention.neighbours)
    works = works_of(profile, buckets, layout, links, grad_accum=grad_accum)
    spans = replay(works, conditions.contention)
    end = max((span.end for span in spans), default=0.0)
    exposed = alone(spans)
    straggler = (
        profile.spread
        * profile.step_s(grad_accum)
        / (layout.tensor * layout.pipeline)
        * slowest_of(layout.world_size)
    )
    overhead = conditions.overhead_s if layout.world_size > 1 else 0.0
    step = end + straggler + overhead
    parts = _parts(spans, exposed=exposed, straggler=straggler, overhead=overhead)
    communication = covered([span for span in spans if span.work.where == "link"])
    error = math.hypot(
        profile.spread * (end - exposed) / math.sqrt(max(layout.world_size, 1)),
        conditions.link_error * exposed,
        conditions.model_error * step,
    )
    return Prediction(
        step_s=step,
        low_s=max(step - WIDTH * error, 0.0),
        high_s=step + WIDTH * error,
        communication_s=communication,
        exposed_s=exposed + straggler,
        parts=parts,
        limit=_limit(parts, step),
        bytes_sent=sum(work.bytes or 0 for work in works),
        spans=tuple(spans),
    )


def slowest_of(ranks: int) -> float:
    """Expected maximum of so many independent normal values, in standard deviations (Blom 1958)."""
    from statistics import NormalDist

    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0


def _parts(
    spans: Sequence[Span], *, exposed: float, straggler: float, overhead: float
) -> dict[str, float]:
    """Where the step goes; compute that communication slowed is told apart from compute."""
    device = [span for span in spans if span.work.where == "device" and span.work.name]
    parts = dict.fromkeys(("data", "forward", "backward", "optimizer", "bubble", "other"), 0.0)
    for span in device:
        parts[span.work.name] = parts.get(span.work.name, 0.0) + span.work.seconds
    parts["stolen_compute"] = sum(span.end - span.start - span.work.seconds for span in device)
    parts["exposed_communication"] = exposed
    parts["straggler"] = straggler
    parts["other"] += overhead
    return parts


def _limit(parts: dict[str, float], step: float) -> str:
    useful = {"forward", "backward"}
    name = max((part for part in parts if part not in useful), key=lambda part: parts[part])
    return name if parts[name] > SHARE * step else "compute"
