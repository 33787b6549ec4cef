"""The step of a run from one device's profile and its links: time, interval, and what limits it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

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

WIDTH = 1.96  # half-width of a 95 % interval in standard deviations
SHARE = 0.05  # a part of the step below this share limits nothing


@dataclass(frozen=True)
class Conditions:
    """What a step meets beside its own work: contention, and the errors of its basis.

    `link_error` is the relative standard deviation of the links' costs, `model_error` that of
    earlier predictions.
    """

    contention: Contention = NO_CONTENTION
    link_error: float = 0.0
    model_error: float = 0.0


ALONE = Conditions()


@dataclass(frozen=True)
class Prediction:
    """A step, in s: its time with a 95 % interval, communication in all and exposed, its parts.

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
    ranks, neighbours = layout.world_size, conditions.contention.neighbours
    if ranks > 1 and neighbours > 1:
        buckets = tuple(bucket.later(neighbours) for bucket in buckets)
        profile = profile.scaled(neighbours)
    works = works_of(profile, buckets, layout, links, grad_accum=grad_accum)
    spans = replay(works, conditions.contention)
    end = max((span.end for span in spans), default=0.0)
    device = [span for span in spans if span.work.where == "device" and span.work.name]
    exposed = alone(spans)
    own_s = profile.step_s(grad_accum) / (layout.tensor * layout.pipeline)
    straggler = profile.spread * own_s * slowest_of(ranks)
    step = end + straggler
    parts = dict.fromkeys(("data", "forward", "backward", "optimizer", "bubble", "other"), 0.0)
    for span in device:
        parts[span.work.name] += span.work.seconds
    parts["stolen_compute"] = sum(span.end - span.start - span.work.seconds for span in device)
    parts["exposed_communication"] = exposed
    parts["straggler"] = straggler
    avoidable = {name: parts[name] for name in parts if name not in {"forward", "backward"}}
    costliest = max(avoidable, key=lambda name: avoidable[name])
    error = math.hypot(
        profile.spread * (end - exposed) / math.sqrt(max(ranks, 1)),
        conditions.link_error * exposed,
        conditions.model_error * step,
    )
    return Prediction(
        step_s=step,
        low_s=max(step - WIDTH * error, 0.0),
        high_s=step + WIDTH * error,
        communication_s=covered([span for span in spans if span.work.where == "link"]),
        exposed_s=exposed + straggler,
        parts=parts,
        limit=costliest if parts[costliest] > SHARE * step else "compute",
        bytes_sent=sum(work.bytes or 0 for work in works),
        spans=tuple(spans),
    )


def slowest_of(ranks: int) -> float:
    """Expected maximum of `ranks` independent normal values, in standard deviations (Blom 1958)."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0
