"""How far the clocks of hosts are apart, from messages there and back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import distributed as dist

from lab.worker.group import share
from lab.worker.timing import FloatArray

EXCHANGES = 20


@dataclass(frozen=True)
class Reading:
    """A clock's distance from that of rank 0 at one moment, both in s: `here` + `offset` is what rank 0 reads."""

    here: float
    offset: float


def read_offset(host: str, *, now: Callable[[], float] = time.perf_counter) -> Reading:
    """This rank's distance from rank 0; all ranks must call it.

    The first rank of each host exchanges messages with rank 0 over gloo, and the exchange with the shortest round trip
    counts, its answer taken as given half-way (as in NTP, RFC 5905, section 8). Ranks of one host share one clock.
    """
    if not dist.is_initialized():
        return Reading(now(), 0.0)
    hosts = share(host)
    leaders = sorted({hosts.index(name) for name in hosts} - {0})
    if not leaders:
        return Reading(now(), 0.0)
    messages = dist.new_group(backend="gloo")
    mine = Reading(now(), 0.0)
    for leader in leaders:
        if dist.get_rank() == 0:
            _answer(leader, messages, now)
        elif dist.get_rank() == leader:
            mine = _ask(messages, now)
    return share(mine)[hosts.index(host)]


def _answer(leader: int, messages: dist.ProcessGroup | None, now: Callable[[], float]) -> None:
    question = torch.zeros(1, dtype=torch.float64)
    for _ in range(EXCHANGES):
        dist.recv(question, leader, group=messages)
        dist.send(torch.tensor([now()], dtype=torch.float64), leader, group=messages)


def _ask(messages: dist.ProcessGroup | None, now: Callable[[], float]) -> Reading:
    answer = torch.zeros(1, dtype=torch.float64)
    found = []
    for _ in range(EXCHANGES):
        begin = now()
        dist.send(answer, 0, group=messages)
        dist.recv(answer, 0, group=messages)
        end = now()
        found.append((end - begin, Reading((begin + end) / 2, float(answer) - (begin + end) / 2)))
    return min(found, key=lambda one: one[0])[1]


def to_rank_0(times: FloatArray, readings: Sequence[Reading]) -> FloatArray:
    """Times of this rank as rank 0 reads them, the drift between two readings taken as even."""
    first, last = readings
    drift = (last.offset - first.offset) / (last.here - first.here) if last.here > first.here else 0.0
    moved: FloatArray = times + first.offset + drift * (np.asarray(times) - first.here)
    return moved
