"""Contention: how much compute and communication slow each other down where they share cores."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import distributed as dist

from lab.calibration import ContentionTime
from lab.jobs.place import Progress
from lab.worker.group import share

BYTES = 4 * 2**20  # near the buckets of small models
SIDE = 128  # products so short that the end of a collective is seen in time
SECONDS, QUICK_SECONDS = 6.0, 1.5
LEAST_ROUNDS = 5


def measure_contention(*, device: torch.device, quick: bool, progress: Progress) -> ContentionTime | None:
    """Matrix products and all-reduces alone and at once, in turn; the slowest rank's medians. All ranks must call it.

    None on CUDA, where the host does not see the end of a product.
    """
    if device.type == "cuda":
        return None
    tensor = torch.ones(BYTES // 4)
    a, b = torch.ones(SIDE, SIDE), torch.ones(SIDE, SIDE)
    rounds: list[tuple[float, float, float, float]] = []
    deadline = time.perf_counter() + (QUICK_SECONDS if quick else SECONDS)
    while True:
        rounds.append((*_alone(tensor, a, b), *_together(tensor, a, b)))
        progress("contention", len(rounds), max(len(rounds) + 1, LEAST_ROUNDS))
        enough = time.perf_counter() > deadline and len(rounds) > LEAST_ROUNDS
        if all(share(enough)):  # the ranks stop after the same round
            break
    slowest = np.max(share(np.array(rounds)[1:]), axis=0)
    product, reduce, product_during, reduce_during = np.median(slowest, axis=0).tolist()
    return ContentionTime(
        device=max(product_during / product, 1.0),
        link=max(reduce_during / reduce, 1.0),
        bytes=BYTES,
        rounds=len(rounds) - 1,
    )


def _alone(tensor: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[float, float]:
    """Seconds of a product and of an all-reduce, each with nothing beside it on this rank."""
    dist.barrier()
    begin = time.perf_counter()
    dist.all_reduce(tensor)
    reduced = time.perf_counter() - begin
    tensor.fill_(1.0)
    dist.barrier()
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < reduced:
        torch.mm(a, b)
        count += 1
    return (time.perf_counter() - begin) / count, reduced


def _together(tensor: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[float, float]:
    """Seconds of a product while an all-reduce is under way, and of the all-reduce."""
    dist.barrier()
    begin, count = time.perf_counter(), 0
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    while not work.is_completed() or count == 0:
        torch.mm(a, b)
        count += 1
    took = time.perf_counter() - begin
    work.wait()
    tensor.fill_(1.0)
    return took / count, took
