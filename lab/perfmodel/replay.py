"""Replay of a step: work on a device and on its link, event by event, each slowing the other where
they share cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Where = Literal["device", "link"]
WHERE: tuple[Where, Where] = ("device", "link")


@dataclass(frozen=True)
class Work:
    """Something that takes `seconds` by itself; it starts when all of `after` (places in the list)
    and its queue are done.
    """

    name: str
    where: Where
    seconds: float
    after: tuple[int, ...] = ()
    bytes: int | None = None


@dataclass(frozen=True)
class Span:
    """When a piece of work ran, in s from the start of the step; `ready` is when nothing but its
    queue held it back.
    """

    work: Work
    ready: float
    start: float
    end: float


@dataclass(frozen=True)
class Contention:
    """How many times longer the device and the link take while the other one works too; 1 where
    they share nothing.

    `neighbours` is how many times longer the device takes while those of the other ranks work too.
    """

    device: float = 1.0
    link: float = 1.0
    neighbours: float = 1.0


NO_CONTENTION = Contention()


def replay(works: Sequence[Work], contention: Contention = NO_CONTENTION) -> list[Span]:
    """When each work runs; device and link each do theirs in the order of the list.

    Raises ValueError where a work waits for one that comes later in its own queue, or for itself.
    """
    queues = {
        where: [place for place, work in enumerate(works) if work.where == where] for where in WHERE
    }
    slow = {"device": contention.device, "link": contention.link}
    ends: list[float | None] = [None] * len(works)
    spans: list[Span | None] = [None] * len(works)
    # Of each queue: how far it is, the ready time and the start of what runs, and what is left of
    # it.
    ready, began, left = (dict.fromkeys(WHERE, 0.0) for _ in range(3))
    at = dict.fromkeys(WHERE, 0)
    runs = dict.fromkeys(WHERE, False)
    now = 0.0
    while any(at[where] < len(queues[where]) for where in WHERE):
        for where in WHERE:
            if runs[where] or at[where] == len(queues[where]):
                continue
            work = works[queues[where][at[where]]]
            waits = [end for place in work.after if (end := ends[place]) is not None]
            if len(waits) < len(work.after):
                continue
            ready[where] = max(waits, default=0.0)
            began[where], left[where], runs[where] = now, work.seconds, True
        busy = [where for where in WHERE if runs[where]]
        if not busy:
            raise ValueError("work that waits for itself: no step can do that")
        rate = {where: 1 / slow[where] if len(busy) == 2 else 1.0 for where in busy}
        until = min(left[where] / rate[where] for where in busy)
        now += until
        for where in busy:
            left[where] -= until * rate[where]
            if left[where] <= 1e-12 * max(now, 1e-9):
                place = queues[where][at[where]]
                ends[place] = now
                spans[place] = Span(works[place], ready[where], began[where], now)
                at[where] += 1
                runs[where] = False
    return [span for span in spans if span is not None]


def covered(spans: Sequence[Span], *, since: float = 0.0) -> float:
    """Seconds after `since` in which at least one of the spans ran."""
    total, reached = 0.0, since
    for span in sorted(spans, key=lambda span: span.start):
        total += max(span.end - max(span.start, reached), 0.0)
        reached = max(reached, span.end)
    return total


def alone(spans: Sequence[Span]) -> float:
    """Seconds in which the link worked and the device waited for it: the exposed communication."""
    device = [(span.start, span.end) for span in spans if span.work.where == "device"]
    link = [
        (span.start, span.end) for span in spans if span.work.where == "link"
    ]  # both in the order of time
    exposed, reached, first = 0.0, 0.0, 0
    for begin, end in [*device, (float("inf"), float("inf"))]:
        while begin > reached and first < len(link) and link[first][0] < begin:
            exposed += max(min(link[first][1], begin) - max(link[first][0], reached), 0.0)
            if link[first][1] > begin:
                break
            first += 1
        reached = max(reached, end)
    return exposed
