"""Times of collectives by size on the ranks of a process group."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import distributed as dist

from lab.analysis.links import COLLECTIVES, Collective
from lab.calibration import CollectiveTime
from lab.errors import LabError
from lab.jobs.place import Progress
from lab.worker.group import share
from lab.worker.timing import stat

KIB, MIB = 2**10, 2**20
SIZES = {"cpu": tuple(4 * KIB * 4**power for power in range(7)), "cuda": tuple(4 * KIB * 4**power for power in range(8))}
MIN_ROUNDS, MAX_ROUNDS = 7, 100
_ITEM = 4  # bytes of an element: gradients are fp32


class _Call(NamedTuple):
    collective: Collective
    bytes: int
    run: Callable[[], object]


def measure_collectives(
    *, device: torch.device, sizes: Sequence[int] | None = None, budget_s: float = 25.0, progress: Progress = lambda *_: None
) -> tuple[list[CollectiveTime], dict[str, str]]:
    """Times of every collective by size (bytes of the whole tensor, ascending), and why some are missing, on each rank.

    All ranks of the group must call it. A time is that of the slowest rank from a barrier to the end of the call, so it
    includes by how much the ranks left the barrier apart. Calls are interleaved over collectives and sizes in rounds,
    as many as fit into `budget_s`, MIN_ROUNDS at least; sizes too large for that are left out. Raises LabError where a
    collective gives a wrong result.
    """
    world_size = dist.get_world_size()
    # Each size in whole elements, and in whole shares of a rank.
    sizes = sorted({max(size // _ITEM // world_size, 1) * world_size * _ITEM for size in sizes or SIZES[device.type]})
    buffers = [torch.zeros(sizes[-1] // _ITEM, device=device) for _ in range(2)]
    missing: dict[str, str] = {name: reason for name in COLLECTIVES if (reason := _check(name, sizes[0], buffers))}
    calls = [_call(name, size, buffers) for size in sizes for name in COLLECTIVES if name not in missing]
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
    lacking = [reason for reason in share(lacks) if reason]
    if lacking:
        reason = f"{dist.get_backend()} of torch {torch.__version__} has none: {lacking[0]}"
    else:
        shares = torch.arange(1, world_size + 1, device=whole.device, dtype=whole.dtype).repeat_interleave(part.numel())
        right = {
            "all_reduce": bool((whole == total).all()),
            "all_gather": bool((whole == shares).all()),
            "reduce_scatter": bool((part == total).all()),
            "broadcast": bool((whole == 1).all()),
        }[collective]
        if not all(share(right)):
            raise LabError(f"{collective} of {dist.get_backend()} gives a wrong result on {world_size} ranks")
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


def _rounds(calls: Sequence[_Call], *, device: torch.device, budget_s: float, progress: Progress) -> np.ndarray:
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
        _wait(device)
        begin = time.perf_counter()
        call.run()
        _wait(device)
        return time.perf_counter() - begin
    # The host waits for the barrier: else the call would queue up behind it and its launch would seem free.
    dist.barrier(device_ids=[device.index])
    torch.cuda.synchronize(device)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call.run()  # the current stream waits for NCCL's, so the event after it marks the end of the transfer
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _agreed(decision: bool, device: torch.device) -> bool:
    """Rank 0's decision, on each rank: clocks differ, and a rank that went on alone would wait forever."""
    told = torch.tensor([int(decision)], device=device)
    dist.broadcast(told, src=0)
    return bool(told.item())
