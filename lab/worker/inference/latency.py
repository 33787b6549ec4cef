"""Two models timed in turn: time to first token, time between tokens and bandwidth, or time to classify a batch."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from lab.records.inference import ClassificationPoint, Latency, Point
from lab.worker.context import Progress
from lab.worker.distributed import all_gather_object
from lab.worker.inference.generate import stream
from lab.worker.inference.quantize import bytes_in_memory
from lab.worker.measure.clock import FloatArray, stat, synchronize
from lab.worker.models.classifier import Classifier
from lab.worker.models.gpt import GPT, Cache


class Asked(NamedTuple):
    """One point to measure: the batch over all ranks, and this rank's prompts (sequences, tokens)."""

    prompt_tokens: int
    batch_size: int
    prompts: Tensor


def measure_points(
    base: GPT,
    quantized: GPT,
    points: Sequence[Asked],
    *,
    new_tokens: int,
    rounds: int,
    progress: Progress,
) -> list[Point]:
    """Time both models generating at each point; all ranks must call it."""

    def generated(point: int, which: int) -> FloatArray:
        prompts = points[point].prompts
        return _laps(
            stream((base, quantized)[which], prompts, new_tokens=new_tokens), prompts.device
        )

    seconds = _in_turn(generated, len(points), rounds=rounds, progress=progress)
    return [
        _point(asked, seconds[:, number], base, quantized) for number, asked in enumerate(points)
    ]


def measure_classifications(
    base: Classifier,
    quantized: Classifier,
    batches: Mapping[int, Tensor],
    *,
    rounds: int,
    progress: Progress,
) -> list[ClassificationPoint]:
    """Time both models on a batch of each size over all ranks, of which this rank has the share given; all ranks must call it."""
    shares = list(batches.values())

    def classified(point: int, which: int) -> FloatArray:
        samples = shares[point]
        return _laps(((base, quantized)[which].logits(part) for part in (samples,)), samples.device)

    seconds = _in_turn(classified, len(shares), rounds=rounds, progress=progress)[..., 0]
    return [_classification(size, *seconds[:, number].T) for number, size in enumerate(batches)]


def _in_turn(
    work: Callable[[int, int], FloatArray], points: int, *, rounds: int, progress: Progress
) -> FloatArray:
    """Seconds (rounds, points, models, laps) of `work` by point and model; in each round all of them once, in an order of its own.

    The order is the same on all ranks. A round's time is that of the rank which took the longest in all: ranks work on
    their own and only start together. Each model goes through each point once before anything is timed.
    """
    turns = list(itertools.product(range(points), range(2)))
    for number, turn in enumerate(turns):
        work(*turn)
        progress("warm-up", number + 1, len(turns))
    seconds: list[list[FloatArray]] = []
    for number in range(rounds):
        order = np.random.default_rng(number).permutation(len(turns)).tolist()
        timed = {turn: work(*turns[turn]) for turn in order}
        seconds.append([timed[turn] for turn in range(len(turns))])
        progress("measuring", number + 1, rounds)
    mine = np.array(seconds).reshape(rounds, points, 2, -1)
    return _of_slowest(np.stack(all_gather_object(mine)))


@torch.inference_mode()
def _laps(results: Iterator[Tensor], device: torch.device) -> FloatArray:
    """Seconds to the first result and between all others, begun when all ranks are there."""
    if dist.is_initialized():
        dist.barrier()
    synchronize(device)
    stamps = [time.perf_counter()]
    for _ in results:
        synchronize(device)  # a result is there when it can be shown
        stamps.append(time.perf_counter())
    return np.diff(stamps)


def _of_slowest(ranks: FloatArray) -> FloatArray:
    """From (ranks, rounds, points, 2, laps) the laps of the rank with the longest total of each turn."""
    slowest = ranks.sum(axis=-1).argmax(axis=0)
    chosen: FloatArray = np.take_along_axis(ranks, slowest[None, ..., None], axis=0)[0]
    return chosen


def _point(asked: Asked, seconds: FloatArray, base: GPT, quantized: GPT) -> Point:
    of_base, of_quantized = seconds[:, 0], seconds[:, 1]
    between = [np.median(times[:, 1:], axis=1) for times in (of_base, of_quantized)]
    return Point(
        prompt_tokens=asked.prompt_tokens,
        batch_size=asked.batch_size,
        base=latency(of_base, asked, base),
        quantized=latency(of_quantized, asked, quantized),
        first_token_ratio=stat(of_quantized[:, 0] / of_base[:, 0]),
        inter_token_ratio=stat(between[1] / between[0]),
        total_ratio=stat(of_quantized.sum(axis=1) / of_base.sum(axis=1)),
    )


def _classification(
    batch_size: int, base: FloatArray, quantized: FloatArray
) -> ClassificationPoint:
    of_base, of_quantized = stat(base), stat(quantized)
    return ClassificationPoint(
        batch_size=batch_size,
        base=of_base,
        quantized=of_quantized,
        ratio=stat(quantized / base),
        base_samples_per_second=batch_size / of_base.median,
        samples_per_second=batch_size / of_quantized.median,
    )


def latency(seconds: FloatArray, asked: Asked, model: GPT) -> Latency:
    """What the times of one model at one point say; `seconds` is (rounds, tokens)."""
    first, inter = stat(seconds[:, 0]), stat(np.median(seconds[:, 1:], axis=1))
    p50, p90, p99 = (float(value) for value in np.percentile(seconds[:, 1:], [50, 90, 99]))
    read = bytes_per_token(
        model, sequences=len(asked.prompts), kept_tokens=asked.prompt_tokens + seconds.shape[1] / 2
    )
    return Latency(
        first_token=first,
        inter_token=inter,
        p50=p50,
        p90=p90,
        p99=p99,
        total=stat(seconds.sum(axis=1)),
        prefill_tokens_per_second=asked.batch_size * asked.prompt_tokens / first.median,
        decode_tokens_per_second=asked.batch_size / inter.median,
        bytes_per_token=read,
        bytes_per_second=read / inter.median,
    )


def bytes_per_token(model: GPT, *, sequences: int, kept_tokens: float) -> int:
    """Bytes that one step of decoding must read: each weight once for all sequences, and the cache of each of them.

    The embedding counts as the head's weight; of the position embeddings only one row is read.
    """
    weights = bytes_in_memory(model) - model.positions.weight.nbytes
    of_cache = Cache.bytes_per_token(
        len(model.blocks), model.embedding.embedding_dim, model.norm.weight.dtype
    )
    return round(weights + sequences * kept_tokens * of_cache)
