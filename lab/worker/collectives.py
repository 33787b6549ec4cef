"""Times of collectives by size on the ranks of a process group."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import distributed as dist

from lab.errors import LabError
from lab.perfmodel.calibration import CollectiveTime, ContentionTime
from lab.perfmodel.collectives import COLLECTIVES, Collective
from lab.worker.context import Progress
from lab.worker.distributed import all_gather_object
from lab.worker.measure.clock import stat, synchronize

KIB, MIB = 2**10, 2**20
SIZES = {
    "cpu": tuple(4 * KIB * 4**power for power in range(7)),
    "cuda": tuple(4 * KIB * 4**power for power in range(8)),
}
MIN_ROUNDS, MAX_ROUNDS = 7, 100
_ITEM = 4  # bytes of an element: gradients are fp32


class _Call(NamedTuple):
    collective: Collective
    bytes: int
    run: Callable[[], object]


def measure_collectives(
    *,
    device: torch.device,
    sizes: Sequence[int] | None = None,
    budget_s: float = 25.0,
    progress: Progress = lambda *_: None,
) -> tuple[list[CollectiveTime], dict[str, str]]:
    """Times of every collective by size (bytes of the whole tensor, ascending), and why some are missing, on each rank.

    All ranks of the group must call it. A time is that of the slowest rank from a barrier to the end of the call, so it
    includes by how much the ranks left the barrier apart. Calls are interleaved over collectives and sizes in rounds,
    as many as fit into `budget_s`, MIN_ROUNDS at least; sizes too large for that are left out. Raises LabError where a
    collective gives a wrong result.
    """
    world_size = dist.get_world_size()
    # Each size in whole elements, and in whole shares of a rank.
    sizes = sorted(
        {
            max(size // _ITEM // world_size, 1) * world_size * _ITEM
            for size in sizes or SIZES[device.type]
        }
    )
    buffers = [torch.zeros(sizes[-1] // _ITEM, device=device) for _ in range(2)]
    missing: dict[str, str] = {
        name: reason for name in COLLECTIVES if (reason := _check(name, sizes[0], buffers))
    }
    calls = [
        _call(name, size, buffers) for size in sizes for name in COLLECTIVES if name not in missing
    ]
    calls = _affordable(calls, device=device, budget_s=budget_s)
    slowest = _rounds(calls, device=device, budget_s=budget_s, progress=progress)
    rows = []
    for call, seconds in zip(calls, slowest.T, strict=True):
        found = stat(seconds)
        low, high = found.interval or (None, None)
        rows.append(
            CollectiveTime(
                collective=call.collective,
                world_size=world_size,
                bytes=call.bytes,
                seconds=found.median,
                low=low,
                high=high,
                calls=len(seconds),
            )
        )
    return rows, missing


def _call(collective: Collective, size: int, buffers: Sequence[torch.Tensor]) -> _Call:
    """A collective on the first `size` bytes of one buffer; all-gather and reduce-scatter have their share in the other."""
    count = size // _ITEM
    whole, part = buffers[0][:count], buffers[1][: count // dist.get_world_size()]
    # torch 2.13 gave these two new names and warns of the old ones.
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    runs: dict[Collective, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: all_gather(whole, part),
        "reduce_scatter": lambda: reduce_scatter(part, whole),
        "broadcast": lambda: dist.broadcast(whole, src=0),
    }
    return _Call(collective, size, runs[collective])


def _check(collective: Collective, size: int, buffers: Sequence[torch.Tensor]) -> str:
    """Call once with a known answer; the reason where the backend lacks the collective, else nothing.

    Leaves zeros: sums of zeros stay finite however often they are taken.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    whole, part = buffers[0][: size // _ITEM], buffers[1][: size // _ITEM // world_size]
    whole.fill_(rank + 1)
    part.fill_(rank + 1)
    total = world_size * (world_size + 1) / 2
    lacks = ""
    try:
        _call(collective, size, buffers).run()
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        lacks = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    lacking = [reason for reason in all_gather_object(lacks) if reason]
    if lacking:
        reason = f"{dist.get_backend()} of torch {torch.__version__} has none: {lacking[0]}"
    else:
        shares = torch.arange(
            1, world_size + 1, device=whole.device, dtype=whole.dtype
        ).repeat_interleave(part.numel())
        right = {
            "all_reduce": bool((whole == total).all()),
            "all_gather": bool((whole == shares).all()),
            "reduce_scatter": bool((part == total).all()),
            "broadcast": bool((whole == 1).all()),
        }[collective]
        if not all(all_gather_object(right)):
            raise LabError(
                f"{collective} of {dist.get_backend()} gives a wrong result on {world_size} ranks"
            )
        reason = ""
    whole.zero_()
    part.zero_()
    return reason


def _affordable(calls: Sequence[_Call], *, device: torch.device, budget_s: float) -> list[_Call]:
    """Warm up size by size, for as long as MIN_ROUNDS of the next, four times slower at worst, still fit into the budget."""
    chosen: list[_Call] = []
    round_s = 0.0
    for size in sorted({call.bytes for call in calls}):
        of_size = [call for call in calls if call.bytes == size]
        for call in of_size:
            call.run()
        size_s = sum(_timed(call, device) for call in of_size)
        chosen += of_size
        round_s += size_s
        if not _agreed(MIN_ROUNDS * (round_s + 4 * size_s) < budget_s, device):
            break
    return chosen


def _rounds(
    calls: Sequence[_Call], *, device: torch.device, budget_s: float, progress: Progress
) -> np.ndarray:
    """Seconds of the slowest rank by round and call; each round in an order of its own, the same on all ranks."""
    rounds: list[list[float]] = []
    begin = time.perf_counter()
    while len(rounds) < MAX_ROUNDS:
        order = random.Random(len(rounds)).sample(range(len(calls)), len(calls))
        seconds = [0.0] * len(calls)
        for index in order:
            seconds[index] = _timed(calls[index], device)
        rounds.append(seconds)
        used = (time.perf_counter() - begin) / budget_s
        progress("collectives", round(100 * min(max(used, len(rounds) / MAX_ROUNDS), 1.0)), 100)
        if len(rounds) >= MIN_ROUNDS and not _agreed(used < 1, device):
            break
    slowest = torch.tensor(rounds, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.cpu().numpy()


def _timed(call: _Call, device: torch.device) -> float:
    """Seconds of one call on this rank, begun when all ranks are there."""
    if dist.get_backend() != "nccl":
        # Gloo returns when the data is there; what it copies from and to a GPU must be waited for.
        dist.barrier()
        synchronize(device)
        begin = time.perf_counter()
        call.run()
        synchronize(device)
        return time.perf_counter() - begin
    # The host waits for the barrier: else the call would queue up behind it and its launch would seem free.
    dist.barrier(device_ids=[device.index])
    synchronize(device)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call.run()  # the current stream waits for NCCL's, so the event after it marks the end of the transfer
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _agreed(decision: bool, device: torch.device) -> bool:
    """Rank 0's decision, on each rank: clocks differ, and a rank that went on alone would wait forever."""
    told = torch.tensor([int(decision)], device=device)
    dist.broadcast(told, src=0)
    return bool(told.item())


BYTES = 4 * 2**20  # near the buckets of small models
SIDE = 128  # products so short that the end of a collective is seen in time
SECONDS, QUICK_SECONDS = 6.0, 1.5  # for each of the two measurements
LEAST_ROUNDS = 5
ROWS, WIDTH = (
    512,
    192,
)  # tokens and width of a block whose tensors, as those of small models, leave the nearer caches
PASSES = 3  # of that block, timed as one


def measure_contention(
    *, device: torch.device, quick: bool, progress: Progress
) -> ContentionTime | None:
    """Matrix products and all-reduces alone and at once, in turn, the slowest rank's medians; then one rank's training beside
    that of the others, the mean of the ranks' medians. All ranks must call it.

    None on CUDA, where the host does not see the end of a product, and a device is one rank's alone.
    """
    if device.type == "cuda":
        return None
    tensor = torch.ones(BYTES // 4)
    a, b = torch.ones(SIDE, SIDE), torch.ones(SIDE, SIDE)
    seconds = QUICK_SECONDS if quick else SECONDS
    rounds = _contention_rounds(
        lambda: (*_alone(tensor, a, b), *_together(tensor, a, b)),
        seconds=seconds,
        progress=progress,
    )
    product, reduce, product_during, reduce_during = np.median(
        np.max(rounds, axis=0), axis=0
    ).tolist()
    block = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH)
    )
    tokens = torch.randn(ROWS, WIDTH)
    beside = _contention_rounds(
        lambda: _beside_others(block, tokens), seconds=seconds, progress=progress
    )
    return ContentionTime(
        device=max(product_during / product, 1.0),
        link=max(reduce_during / reduce, 1.0),
        neighbours=max(float(np.mean(np.median(beside[..., 1] / beside[..., 0], axis=1))), 1.0),
        bytes=BYTES,
        rounds=rounds.shape[1],
    )


def _contention_rounds(
    measure: Callable[[], tuple[float, ...]], *, seconds: float, progress: Progress
) -> np.ndarray:
    """What every rank measured in every round but the first: ranks x rounds x quantities."""
    rounds: list[tuple[float, ...]] = []
    deadline = time.perf_counter() + seconds
    while True:
        rounds.append(measure())
        progress("contention", len(rounds), max(len(rounds) + 1, LEAST_ROUNDS))
        enough = time.perf_counter() > deadline and len(rounds) > LEAST_ROUNDS
        if all(all_gather_object(enough)):  # the ranks stop after the same round
            return np.array(all_gather_object(np.array(rounds)[1:]))


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
