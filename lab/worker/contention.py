"""Contention: how much compute, communication and the compute of other ranks slow each other down where they share a host."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import distributed as dist

from lab.calibration import ContentionTime
from lab.jobs.place import Progress
from lab.worker.group import share

BYTES = 4 * 2**20  # near the buckets of small models
SIDE = 128  # products so short that the end of a collective is seen in time
SECONDS, QUICK_SECONDS = 6.0, 1.5  # for each of the two measurements
LEAST_ROUNDS = 5
ROWS, WIDTH = 512, 192  # tokens and width of a block whose tensors, as those of small models, leave the nearer caches
PASSES = 3  # of that block, timed as one


def measure_contention(*, device: torch.device, quick: bool, progress: Progress) -> ContentionTime | None:
    """Matrix products and all-reduces alone and at once, in turn, the slowest rank's medians; then one rank's training beside
    that of the others, the mean of the ranks' medians. All ranks must call it.

    None on CUDA, where the host does not see the end of a product, and a device is one rank's alone.
    """
    if device.type == "cuda":
        return None
    tensor = torch.ones(BYTES // 4)
    a, b = torch.ones(SIDE, SIDE), torch.ones(SIDE, SIDE)
    seconds = QUICK_SECONDS if quick else SECONDS
    rounds = _rounds(lambda: (*_alone(tensor, a, b), *_together(tensor, a, b)), seconds=seconds, progress=progress)
    product, reduce, product_during, reduce_during = np.median(np.max(rounds, axis=0), axis=0).tolist()
    block = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH))
    tokens = torch.randn(ROWS, WIDTH)
    beside = _rounds(lambda: _beside_others(block, tokens), seconds=seconds, progress=progress)
    return ContentionTime(
        device=max(product_during / product, 1.0),
        link=max(reduce_during / reduce, 1.0),
        neighbours=max(float(np.mean(np.median(beside[..., 1] / beside[..., 0], axis=1))), 1.0),
        bytes=BYTES,
        rounds=rounds.shape[1],
    )


def _rounds(measure: Callable[[], tuple[float, ...]], *, seconds: float, progress: Progress) -> np.ndarray:
    """What every rank measured in every round but the first: ranks x rounds x quantities."""
    rounds: list[tuple[float, ...]] = []
    deadline = time.perf_counter() + seconds
    while True:
        rounds.append(measure())
        progress("contention", len(rounds), max(len(rounds) + 1, LEAST_ROUNDS))
        enough = time.perf_counter() > deadline and len(rounds) > LEAST_ROUNDS
        if all(share(enough)):  # the ranks stop after the same round
            return np.array(share(np.array(rounds)[1:]))


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


def _beside_others(block: torch.nn.Module, tokens: torch.Tensor) -> tuple[float, float]:
    """Seconds of forward and backward passes while the other ranks wait, and while they do the same."""
    alone = 0.0
    for turn in range(dist.get_world_size()):
        dist.barrier()
        if turn == dist.get_rank():
            alone = _passes(block, tokens)
    dist.barrier()
    return alone, _passes(block, tokens)


def _passes(block: torch.nn.Module, tokens: torch.Tensor) -> float:
    begin = time.perf_counter()
    for _ in range(PASSES):
        block(tokens).square().mean().backward()
    return time.perf_counter() - begin
