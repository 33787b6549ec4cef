"""Replay of a step: work on a device and its link, each slowing the other on shared cores."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Where = Literal["device", "link"]


@dataclass(frozen=True)
class Work:
    """What takes `seconds` alone, once all of `after` (places in the list) and its queue are
    done.
    """

    name: str
    where: Where
    seconds: float
    after: tuple[int, ...] = ()
    bytes: int | None = None


@dataclass(frozen=True)
class Span:
    """When a piece of work ran, in s from the start of the step."""

    work: Work
    start: float
    end: float


@dataclass(frozen=True)
class Contention:
    """How many times longer the device and the link take while the other one works too.

    `neighbours` is how many times longer the device takes while those of the other ranks work too.
    """

    device: float = 1.0
    link: float = 1.0
    neighbours: float = 1.0


NO_CONTENTION = Contention()


@dataclass
class _Running:
    place: int
    start: float
    left: float  # s, if nothing slowed it


def replay(works: Sequence[Work], contention: Contention = NO_CONTENTION) -> list[Span]:
    """When each work runs; device and link each do theirs in the order of the list.

    Raises ValueError where a work waits for one that comes later in its own queue, or for itself.
    """
    queues: dict[Where, deque[int]] = {"device": deque(), "link": deque()}
    for place, work in enumerate(works):
        queues[work.where].append(place)
    slow = {"device": contention.device, "link": contention.link}
    running: dict[Where, _Running] = {}
    spans: dict[int, Span] = {}
    now = 0.0
    while len(spans) < len(works):
        for where, queue in queues.items():
            if where not in running and queue and all(at in spans for at in works[queue[0]].after):
                place = queue.popleft()
                running[where] = _Running(place, now, works[place].seconds)
        if not running:
            raise ValueError("work that waits for itself: no step can do that")
        rate = {where: 1 / slow[where] if len(running) == 2 else 1.0 for where in running}
        passed = min(current.left / rate[where] for where, current in running.items())
        now += passed
        for where, current in list(running.items()):
            current.left -= passed * rate[where]
            if current.left <= 1e-12 * max(now, 1e-9):
                spans[current.place] = Span(works[current.place], current.start, now)
                del running[where]
    return [spans[place] for place in range(len(works))]


def covered(spans: Sequence[Span]) -> float:
    """Seconds in which at least one of the spans ran."""
    total = reached = 0.0
    for span in sorted(spans, key=lambda span: span.start):
        total += max(span.end - max(span.start, reached), 0.0)
        reached = max(reached, span.end)
    return total


def alone(spans: Sequence[Span]) -> float:
    """Seconds in which the link worked and the device waited for it: the exposed communication."""
    device = [(span.start, span.end) for span in spans if span.work.where == "device"]
    link = [(span.start, span.end) for span in spans if span.work.where == "link"]
    exposed, reached, first = 0.0, 0.0, 0
    # Both are in the order of time; a gap of the device ends where its next work begins.
    for begin, end in [*device, (float("inf"), float("inf"))]:
        while begin > reached and first < len(link) and link[first][0] < begin:
            exposed += max(min(link[first][1], begin) - max(link[first][0], reached), 0.0)
            if link[first][1] > begin:
                break
            first += 1
        reached = max(reached, end)
    return exposed
