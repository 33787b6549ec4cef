"""Prefill and decode of two models, timed in turn: time to first token, time between tokens, bandwidth."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from lab.inference import Latency, Point
from lab.jobs.place import Progress
from lab.worker.generate import stream
from lab.worker.group import share
from lab.worker.models.cache import Cache
from lab.worker.models.gpt import GPT
from lab.worker.quantization import bytes_in_memory
from lab.worker.timing import FloatArray, stat


class Asked(NamedTuple):
    """One point to measure: the batch over all ranks, and this rank's prompts (sequences, tokens)."""

    prompt_tokens: int
    batch_size: int
    prompts: Tensor


def measure_points(
    base: GPT, quantized: GPT, points: Sequence[Asked], *, new_tokens: int, rounds: int, progress: Progress
) -> list[Point]:
    """Time both models at each point; in each round all of them once, in an order of its own, the same on all ranks.

    A round's time is that of the rank which was the slowest from prompt to last token: ranks generate on their own and
    only start together. Each model goes through each point once before anything is timed. All ranks must call it.
    """
    turns = list(itertools.product(range(len(points)), range(2)))
    both = (base, quantized)
    for number, (point, which) in enumerate(turns):
        _generate(both[which], points[point].prompts, new_tokens)
        progress("warm-up", number + 1, len(turns))
    seconds = np.zeros((rounds, len(points), 2, new_tokens))
    for number in range(rounds):
        for turn in np.random.default_rng(number).permutation(len(turns)).tolist():
            point, which = turns[turn]
            seconds[number, point, which] = _generate(both[which], points[point].prompts, new_tokens)
        progress("measuring", number + 1, rounds)
    slowest = _of_slowest(np.stack(share(seconds)))
    return [_point(asked, slowest[:, number], base, quantized) for number, asked in enumerate(points)]


@torch.inference_mode()
def _generate(model: GPT, prompts: Tensor, new_tokens: int) -> FloatArray:
    """Seconds to the first token and between all others, begun when all ranks are there."""
    if dist.is_initialized():
        dist.barrier()
    _wait(prompts.device)
    stamps = [time.perf_counter()]
    for _ in stream(model, prompts, new_tokens=new_tokens):
        _wait(prompts.device)  # a token is there when it can be shown
        stamps.append(time.perf_counter())
    return np.diff(stamps)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _of_slowest(ranks: FloatArray) -> FloatArray:
    """From (ranks, rounds, points, 2, tokens) the tokens of the rank with the longest total of each generation."""
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


def latency(seconds: FloatArray, asked: Asked, model: GPT) -> Latency:
    """What the times of one model at one point say; `seconds` is (rounds, tokens)."""
    first, inter = stat(seconds[:, 0]), stat(np.median(seconds[:, 1:], axis=1))
    p50, p90, p99 = (float(value) for value in np.percentile(seconds[:, 1:], [50, 90, 99]))
    read = bytes_per_token(model, sequences=len(asked.prompts), kept_tokens=asked.prompt_tokens + seconds.shape[1] / 2)
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
    of_cache = Cache.bytes_per_token(len(model.blocks), model.embedding.embedding_dim, model.norm.weight.dtype)
    return round(weights + sequences * kept_tokens * of_cache)
