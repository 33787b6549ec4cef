"""Two models timed in turn: to the first token, between tokens, or to classify a batch."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from lab.config.run import Run
from lab.records.schema import ClassificationPoint, Latency, Point
from lab.records.statistics import stat
from lab.worker.context import Progress
from lab.worker.distributed import all_gather_object
from lab.worker.inference.generate import stream
from lab.worker.inference.quantize import bytes_in_memory
from lab.worker.measure.clock import FloatArray, synchronize
from lab.worker.models.classifier import Classifier
from lab.worker.models.gpt import GPT, Cache


class PromptBatch(NamedTuple):
    """Prompts of one length: their number over all ranks, and this rank's (sequences, tokens)."""

    prompt_tokens: int
    batch_size: int
    prompts: Tensor


def time_generation(
    models: tuple[GPT, GPT], batches: Sequence[PromptBatch], run: Run, progress: Progress
) -> list[Point]:
    """Time base and quantized model generating from each batch; all ranks must call it."""

    def generate(batch: int, model: int) -> FloatArray:
        prompts = batches[batch].prompts
        return _laps(stream(models[model], prompts, new_tokens=run.new_tokens), prompts.device)

    seconds = _in_turn(generate, len(batches), run.rounds, progress)
    points = []
    for number, batch in enumerate(batches):
        of_base, of_quantized = seconds[:, number, 0], seconds[:, number, 1]
        # The median of each round, as a single late token says nothing about the model.
        inter = [np.median(times[:, 1:], axis=1) for times in (of_base, of_quantized)]
        points.append(
            Point(
                prompt_tokens=batch.prompt_tokens,
                batch_size=batch.batch_size,
                base=_latency(of_base, batch, models[0]),
                quantized=_latency(of_quantized, batch, models[1]),
                first_token_ratio=stat(of_quantized[:, 0] / of_base[:, 0]),
                inter_token_ratio=stat(inter[1] / inter[0]),
                total_ratio=stat(of_quantized.sum(axis=1) / of_base.sum(axis=1)),
            )
        )
    return points


def time_classification(
    models: tuple[Classifier, Classifier],
    batches: Mapping[int, Tensor],
    run: Run,
    progress: Progress,
) -> list[ClassificationPoint]:
    """Time base and quantized model on this rank's shares of batches, by the global batch size.

    All ranks must call it.
    """
    shares = list(batches.values())

    def classify(batch: int, model: int) -> FloatArray:
        return _laps(map(models[model].logits, [shares[batch]]), shares[batch].device)

    seconds = _in_turn(classify, len(shares), run.rounds, progress)[..., 0]
    points = []
    for number, size in enumerate(batches):
        base, quantized = seconds[:, number, 0], seconds[:, number, 1]
        point = ClassificationPoint(
            batch_size=size,
            base=stat(base),
            quantized=stat(quantized),
            ratio=stat(quantized / base),  # round by round, so that a slow phase affects both
            base_samples_per_second=size / stat(base).median,
            samples_per_second=size / stat(quantized).median,
        )
        points.append(point)
    return points


def _in_turn(
    work: Callable[[int, int], FloatArray], batches: int, rounds: int, progress: Progress
) -> FloatArray:
    """Seconds (rounds, batches, models, laps) of `work(batch, model)`, each once per round."""
    turns = list(itertools.product(range(batches), range(2)))
    # Kernels are chosen and memory is allocated before anything counts.
    for number, turn in enumerate(turns):
        work(*turn)
        progress("warm-up", number + 1, len(turns))
    seconds: list[list[FloatArray]] = []
    for number in range(rounds):
        # Shuffled in each round, so that no turn always follows the same one; equal on all ranks.
        order = np.random.default_rng(number).permutation(len(turns)).tolist()
        times = {turn: work(*turns[turn]) for turn in order}
        seconds.append([times[turn] for turn in range(len(turns))])
        progress("measuring", number + 1, rounds)
    # A round takes as long as its slowest rank: ranks work independently and only start together.
    ranks = np.stack(all_gather_object(np.array(seconds).reshape(rounds, batches, 2, -1)))
    slowest = ranks.sum(axis=-1).argmax(axis=0)
    return np.take_along_axis(ranks, slowest[None, ..., None], axis=0)[0]


@torch.inference_mode()
def _laps(results: Iterable[Tensor], device: torch.device) -> FloatArray:
    """Seconds to the first result and between the others, started when all ranks are ready."""
    if dist.is_initialized():
        dist.barrier()  # an idle rank would leave its share of the machine to the others
    synchronize(device)
    stamps = [time.perf_counter()]
    for _ in results:
        synchronize(device)  # a token counts when it can be shown
        stamps.append(time.perf_counter())
    return np.diff(stamps)


def _latency(seconds: FloatArray, batch: PromptBatch, model: GPT) -> Latency:
    """One model's latencies from the seconds (rounds, tokens) of a batch."""
    first, inter = stat(seconds[:, 0]), stat(np.median(seconds[:, 1:], axis=1))
    p50, p90, p99 = (float(value) for value in np.percentile(seconds[:, 1:], [50, 90, 99]))
    # A step reads each weight once for all sequences (the embedding as the head, one row of the
    # positions), and each sequence's cache, which holds half of the new tokens on average.
    weights = bytes_in_memory(model) - model.positions.weight.nbytes
    width, dtype = model.embedding.embedding_dim, model.norm.weight.dtype
    cached = len(batch.prompts) * (batch.prompt_tokens + seconds.shape[1] / 2)
    read = round(weights + cached * Cache.bytes_per_token(len(model.blocks), width, dtype))
    return Latency(
        first_token=first,
        inter_token=inter,
        p50=p50,
        p90=p90,
        p99=p99,
        total=stat(seconds.sum(axis=1)),
        prefill_tokens_per_second=batch.batch_size * batch.prompt_tokens / first.median,
        decode_tokens_per_second=batch.batch_size / inter.median,
        bytes_per_token=read,
        bytes_per_second=read / inter.median,
    )
