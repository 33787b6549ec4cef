"""What a calibration measures on several ranks: collectives by size, contention with compute."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, assert_never

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist

from lab.errors import LabError, first_line
from lab.formatting import KIB, MIB
from lab.perfmodel.calibration import CollectiveTime, ContentionTime
from lab.perfmodel.collectives import COLLECTIVES, Collective
from lab.records.statistics import bootstrap_interval
from lab.worker.context import Progress
from lab.worker.distributed import all_gather_object, all_gather_single, reduce_scatter_single
from lab.worker.measure.clock import FloatArray, gpu_seconds_of, seconds_of

SIZES = {  # bytes of the whole tensor
    # Closer around the size of a socket's buffer, beyond which a transfer has to wait.
    "cpu": tuple(KIB * size for size in (4, 16, 64, 128, 256, 512, 1024, 4096, 16384)),
    "cuda": tuple(4 * KIB * 4**power for power in range(10)),  # up to 1 GiB
}
MIN_ROUNDS, MAX_ROUNDS = 7, 60
RESAMPLES = 1000
SPIN_CYCLES = 1_000_000  # on a GPU, half a millisecond
_ITEM = 4  # bytes of an element: gradients are fp32

CONTENTION_BYTES = 4 * MIB  # near the buckets of small models
CONTENTION_S, QUICK_CONTENTION_S = 2.5, 1.5  # for each of the two measurements
MIN_CONTENTION_ROUNDS = 5
SIDE = 128  # products short enough for the end of a collective to be seen in time
# Tokens and width of a block whose tensors, like those of small models, exceed the nearer caches.
ROWS, WIDTH = 512, 192
PASSES = 3  # of that block, timed together


class _Call(NamedTuple):
    collective: Collective
    bytes: int
    run: Callable[[], object]


def measure_collectives(
    device: torch.device, sizes: Sequence[int], *, budget_s: float, progress: Progress
) -> tuple[list[CollectiveTime], dict[str, str]]:
    """Times of every collective by size (bytes of the whole tensor), and why some are missing.

    All ranks must call it, and each gets the answer. A time is that of the slowest rank from a
    barrier to the end of the call, so it includes the skew with which ranks leave the barrier.
    Calls are interleaved over collectives and sizes in as many rounds as fit into `budget_s`, but
    at least MIN_ROUNDS; sizes too large for that are left out. Raises LabError for a collective
    that gives a wrong result.
    """
    world_size = dist.get_world_size()
    unit = _ITEM * world_size  # all-gather and reduce-scatter need whole elements on each rank
    sizes = sorted({max(size // unit, 1) * unit for size in sizes})
    buffers = [torch.zeros(sizes[-1] // _ITEM, device=device) for _ in range(2)]
    reasons = {name: _check(name, sizes[0], buffers) for name in COLLECTIVES}
    missing: dict[str, str] = {name: reason for name, reason in reasons.items() if reason}
    calls = [
        _call(name, size, buffers) for size in sizes for name in COLLECTIVES if name not in missing
    ]
    calls = _affordable(calls, device=device, budget_s=budget_s)
    slowest = _rounds(calls, device=device, budget_s=budget_s, progress=progress)
    times = []
    for call, seconds in zip(calls, slowest.T, strict=True):
        low, high = bootstrap_interval([seconds], _middle_mean, resamples=RESAMPLES)
        times.append(
            CollectiveTime(
                collective=call.collective,
                world_size=world_size,
                bytes=call.bytes,
                seconds=float(_middle_mean(seconds)),
                low=float(low),
                high=float(high),
                calls=len(seconds),
            )
        )
    return times, missing


def _middle_mean(seconds: FloatArray, axis: int = -1) -> Any:
    """The mean of the middle 90 %.

    Between two CPU processes a call takes 0.3 or 3 ms, depending on how the kernel wakes the other
    one: the median is one of these by chance, while the many calls of a step take their mean.
    """
    rest = seconds.shape[axis] // 20
    values = np.sort(seconds, axis=axis)
    return values.take(range(rest, values.shape[axis] - rest), axis=axis).mean(axis=axis)


def _views(size: int, buffers: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The first `size` bytes of one buffer, and one rank's share of `size` bytes in the other."""
    count = size // _ITEM
    return buffers[0][:count], buffers[1][: count // dist.get_world_size()]


def _call(collective: Collective, size: int, buffers: Sequence[Tensor]) -> _Call:
    whole, part = _views(size, buffers)
    run: Callable[[], object]
    match collective:
        case "all_reduce":
            run = partial(dist.all_reduce, whole)
        case "all_gather":
            run = partial(all_gather_single, whole, part)
        case "reduce_scatter":
            run = partial(reduce_scatter_single, part, whole)
        case "broadcast":
            run = partial(dist.broadcast, whole, src=0)
        case _:
            assert_never(collective)
    return _Call(collective, size, run)


def _is_right(collective: Collective, whole: Tensor, part: Tensor) -> bool:
    """Whether a call gave what it must where each rank began with its number, counted from 1."""
    ranks = torch.arange(1, dist.get_world_size() + 1, device=whole.device, dtype=whole.dtype)
    match collective:
        case "all_reduce":
            right = whole == ranks.sum()
        case "all_gather":
            right = whole == ranks.repeat_interleave(part.numel())
        case "reduce_scatter":
            right = part == ranks.sum()
        case "broadcast":
            right = whole == 1
        case _:
            assert_never(collective)
    return bool(right.all())


def _check(collective: Collective, size: int, buffers: Sequence[Tensor]) -> str:
    """Call once with a known answer; returns why the backend lacks the collective, else empty."""
    rank = dist.get_rank()
    whole, part = _views(size, buffers)
    whole.fill_(rank + 1)
    part.fill_(rank + 1)
    error_message = ""
    try:
        _call(collective, size, buffers).run()
    except (RuntimeError, AttributeError) as error:
        error_message = first_line(error)
    # All ranks must agree on what is missing, or they would call different collectives and hang.
    errors = [message for message in all_gather_object(error_message) if message]
    if not errors and not all(all_gather_object(_is_right(collective, whole, part))):
        where = f"{dist.get_backend()} gives a wrong result on {dist.get_world_size()} ranks"
        raise LabError(f"{collective} of {where}")
    # Sums of zeros stay finite however often they are repeated.
    whole.zero_()
    part.zero_()
    version = f"{dist.get_backend()} of torch {torch.__version__}"
    return f"{version} does not have it: {errors[0]}" if errors else ""


def _affordable(calls: Sequence[_Call], *, device: torch.device, budget_s: float) -> list[_Call]:
    """Warm up size by size while MIN_ROUNDS of the next, at most four times slower, still fit."""
    affordable: list[_Call] = []
    round_s = 0.0
    for size in sorted({call.bytes for call in calls}):
        of_size = [call for call in calls if call.bytes == size]
        for call in of_size:  # the first call of a size sets up buffers and connections
            call.run()
        size_s = sum(_timed(call, device) for call in of_size)
        affordable += of_size
        round_s += size_s
        # Rank 0 decides: clocks differ, and a rank that continued alone would hang.
        if not all_gather_object(MIN_ROUNDS * (round_s + 4 * size_s) < budget_s)[0]:
            break
    return affordable


def _rounds(
    calls: Sequence[_Call], *, device: torch.device, budget_s: float, progress: Progress
) -> FloatArray:
    """The slowest rank's seconds by round and call."""
    rounds: list[list[float]] = []
    begin = time.perf_counter()
    while len(rounds) < MAX_ROUNDS:
        # Shuffled in each round, so that no call always follows the same one; equal on all ranks.
        order = random.Random(len(rounds)).sample(range(len(calls)), len(calls))
        seconds = [0.0] * len(calls)
        for index in order:
            seconds[index] = _timed(calls[index], device)
        rounds.append(seconds)
        used = (time.perf_counter() - begin) / budget_s
        progress("collectives", round(100 * min(max(used, len(rounds) / MAX_ROUNDS), 1.0)), 100)
        if len(rounds) >= MIN_ROUNDS and not all_gather_object(used < 1)[0]:
            break
    # A collective is complete when its slowest rank is done.
    slowest = torch.tensor(rounds, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.cpu().numpy()


def _timed(call: _Call, device: torch.device) -> float:
    """Seconds of one call on this rank, started when all ranks are ready."""
    if dist.get_backend() != "nccl":
        # Gloo returns when the data has arrived; its copies from and to a GPU must be waited for.
        dist.barrier()
        return seconds_of(call.run, device)
    # While the device spins, the host launches what follows, as it runs ahead in training: launch
    # time is not part of the link's. The ranks synchronize on their devices, not on their hosts.
    torch.cuda._sleep(SPIN_CYCLES)
    dist.all_reduce(torch.zeros(1, device=device))
    # The current stream waits for NCCL's, so an event after the call marks the transfer's end.
    return gpu_seconds_of(call.run)


def measure_contention(
    device: torch.device, *, quick: bool, progress: Progress
) -> ContentionTime | None:
    """How much products and all-reduces slow each other, and one rank's training the others'.

    The first uses the slowest rank's medians, the second the mean over the ranks' medians.
    All ranks must call it. None on CUDA.
    """
    if device.type == "cuda":
        return None  # the host does not see a product end, and each device belongs to one rank
    tensor = torch.ones(CONTENTION_BYTES // _ITEM)
    a, b = torch.ones(SIDE, SIDE), torch.ones(SIDE, SIDE)
    tokens = torch.randn(ROWS, WIDTH)
    block = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
    seconds = QUICK_CONTENTION_S if quick else CONTENTION_S

    def repeat(measure: Callable[[], tuple[float, ...]]) -> FloatArray:
        """Each rank's measurements in all rounds but the first: ranks x rounds x quantities."""
        rounds: list[tuple[float, ...]] = []
        deadline = time.perf_counter() + seconds
        while True:
            rounds.append(measure())  # the first is a warm-up
            progress("contention", len(rounds), max(len(rounds) + 1, MIN_CONTENTION_ROUNDS))
            enough = time.perf_counter() > deadline and len(rounds) > MIN_CONTENTION_ROUNDS
            if all(all_gather_object(enough)):  # the ranks stop after the same round
                return np.array(all_gather_object(np.array(rounds)[1:]))

    rounds = repeat(lambda: (*_alone(tensor, a, b), *_together(tensor, a, b)))
    medians = np.median(rounds.max(axis=0), axis=0).tolist()
    product, reduce, product_during, reduce_during = medians
    beside = repeat(lambda: _beside_others(block, tokens))
    return ContentionTime(
        device=max(product_during / product, 1.0),
        link=max(reduce_during / reduce, 1.0),
        neighbours=max(float(np.mean(np.median(beside[..., 1] / beside[..., 0], axis=1))), 1.0),
        bytes=CONTENTION_BYTES,
        rounds=rounds.shape[1],
    )


def _alone(tensor: Tensor, a: Tensor, b: Tensor) -> tuple[float, float]:
    """Seconds of a product and of an all-reduce, each with nothing else running on this rank."""
    dist.barrier()  # else the wait for a late rank would count as transfer time
    reduced = seconds_of(partial(dist.all_reduce, tensor), tensor.device)
    tensor.fill_(1.0)  # repeated sums would overflow fp32
    dist.barrier()
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < reduced:  # for as long as the products in `_together`
        torch.mm(a, b)
        count += 1
    return (time.perf_counter() - begin) / count, reduced


def _together(tensor: Tensor, a: Tensor, b: Tensor) -> tuple[float, float]:
    """Seconds of a product while an all-reduce is under way, and of the all-reduce."""
    dist.barrier()
    begin, count = time.perf_counter(), 0
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    while not work.is_completed() or count == 0:  # a fast one may end before the first product
        torch.mm(a, b)
        count += 1
    seconds = time.perf_counter() - begin
    work.wait()
    tensor.fill_(1.0)
    return seconds / count, seconds


def _beside_others(block: nn.Module, tokens: Tensor) -> tuple[float, float]:
    """Seconds of forward and backward passes while the other ranks wait, and while they run too."""

    def passes() -> float:
        begin = time.perf_counter()
        for _ in range(PASSES):
            block(tokens).square().mean().backward()
        return time.perf_counter() - begin

    alone = 0.0
    for turn in range(dist.get_world_size()):
        dist.barrier()
        if turn == dist.get_rank():  # the others are waiting in the next barrier
            alone = passes()
    dist.barrier()
    return alone, passes()
