"""Checks of lessons 00 and 01: the hardware and a study's demands; one device and its noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from lab.config.cluster import Cluster
from lab.config.datasets import vocab_size_of
from lab.config.models import GPT
from lab.config.run import Run
from lab.config.study import Study
from lab.course.check import CLOSE, exercise, judge, number, require
from lab.course.language import tr
from lab.perfmodel.flops import gpt_flops_per_token, gpt_parameters
from lab.perfmodel.memory import FP32, state_memory
from lab.records.store import Record

# Standard deviations of a normal distribution: 95 % lies within 1.96 on both sides, and 80 % lies
# below 0.84, which is the power to detect a difference of the requested size.
CERTAIN, POWER = 1.96, 0.84


@exercise("00.ranks")
def ranks(answer: object, *, profile: Cluster) -> str:
    """Each rank needs a device of its own: a GPU, or a core. Read the line that describes the
    cluster.
    """
    capacity = profile.capacity
    judge(answer, capacity, within=0)
    return tr(
        "The world size may be up to {capacity} on this cluster; a larger one is refused before "
        "any job starts.",
        capacity=capacity,
    )


@exercise("00.jobs")
def jobs(answer: object, *, study: Study) -> str:
    """Every combination of the grid's values is a run, and every run is repeated."""
    runs = len(study.runs)
    mistakes = {
        tr(
            "{runs} is the number of runs: each is repeated {repeats} times.",
            runs=runs,
            repeats=study.repeats,
        ): runs
    }
    judge(answer, len(study.tasks), mistakes=mistakes, within=0)
    return tr(
        "{runs} runs times {repeats}: {jobs} jobs, each of which starts afresh.",
        runs=runs,
        repeats=study.repeats,
        jobs=len(study.tasks),
    )


@exercise("00.micro-batch")
def micro_batch(answer: object, *, global_batch_size: int, world_size: int, grad_accum: int) -> str:
    """global_batch_size = micro_batch_size * grad_accum * world_size: divide by what is known."""
    piece, share = global_batch_size / grad_accum, global_batch_size / world_size
    right = global_batch_size / (world_size * grad_accum)
    mistakes = {
        tr("Every rank gets its share of the batch: divide by the world size too."): piece,
        tr("A rank takes its share in grad_accum pieces: divide by them too."): share,
    }
    value = judge(answer, right, mistakes=mistakes, within=0)
    return tr(
        "{value:.0f} samples are in memory at a time, on each of {world_size} ranks.",
        value=value,
        world_size=world_size,
    )


@exercise("00.largest-model")
def largest_model(answer: object, *, memory_bytes: float) -> str:
    """A parameter takes 4 bytes for itself, 4 for its gradient and 8 for AdamW's two moments."""
    most = memory_bytes / state_memory(1, state=FP32).total
    mistakes = {
        tr(
            "That many weights fit; training keeps a gradient and two moments of each."
        ): memory_bytes / 4,
        tr("Weights and gradients fit; where do AdamW's two moments go?"): memory_bytes / 8,
        tr("Give the plain count of parameters, not millions of them."): most / 1e6,
        tr("MB and GB: parameters are a plain count here, memory is in bytes."): most / 1e9,
    }
    require(number(answer) > 0, "Give a positive number of parameters.")
    judge(answer, most, mistakes=mistakes)
    return tr(
        "At most {millions:,.0f} million parameters, and no byte is left for activations: the "
        "real limit is lower.",
        millions=most / 1e6,
    )


@exercise("01.prediction")
def prediction(answer: object, *, measured: float) -> str:
    """Write down what you expect, as a number above 0; it need not be right, it must be yours."""
    expected = number(answer)
    require(expected > 0)
    return tr(
        "You expected {expected:.3g}, and {measured:.3g} was measured: a factor of {factor:.2f} "
        "apart.",
        expected=expected,
        measured=measured,
        factor=max(expected / measured, measured / expected),
    )


@exercise("01.parameters")
def parameters(answer: object, *, run: Run) -> str:
    """Add the two embeddings, 12 d^2 + 13 d for each layer, and 2 d for the last layer norm; the
    head is the embedding.
    """
    model, vocabulary = _gpt(run)
    right, rows = gpt_parameters(model, vocabulary), vocabulary * model.width
    others = (model.layers - 1) * (12 * model.width**2 + 13 * model.width)
    mistakes = {
        tr("The head shares its matrix with the token embedding: count it once."): right + rows,
        tr("One layer is counted; the model has several."): right - others,
        tr("The token embedding is missing: one row of width d per word."): right - rows,
    }
    judge(answer, right, mistakes=mistakes, within=0)
    return tr(
        "{right:,} parameters, {size:.1f} MB in fp32: this much is sent in every step once there "
        "are two ranks.",
        right=right,
        size=4 * right / 1e6,
    )


@exercise("01.flops")
def flops(answer: object, *, run: Run) -> str:
    """6 FLOPs for each parameter that multiplies (not the position embedding), and 12 L T d for
    attention.
    """
    model, vocabulary = _gpt(run)
    right = gpt_flops_per_token(model, vocabulary)
    attention = 12 * model.layers * model.block_size * model.width
    mistakes = {
        tr("That is the forward pass; the backward pass costs twice as much again."): right / 3,
        tr("Attention is missing: 12 L T d for scores and weighted sums."): right - attention,
    }
    judge(answer, right, mistakes=mistakes, within=0.001)
    return tr("{millions:.2f} million FLOPs per token.", millions=right / 1e6)


@exercise("01.mfu")
def mfu(answer: object, *, record: Record, peak: float) -> str:
    """FLOPs per token times tokens per second is what the model needs per second; divide it by the
    device's peak.
    """
    assert record.timing is not None and record.timing.flops_per_second is not None
    right = record.timing.flops_per_second / (peak * record.run.world_size)
    mistakes = {
        tr("That is the forward pass alone; training needs three times as much."): right / 3,
        tr("Divide what the model needs by the peak, not the other way round."): 1 / right,
    }
    judge(answer, right, mistakes=mistakes, unit="fraction", within=0.05)
    return tr(
        "The device spends {right:.1%} of its peak on the model's own arithmetic.", right=right
    )


@exercise("01.noise")
def noise(answer: object, *, step_s: Sequence[float]) -> str:
    """Standard deviation of the repeats (with n - 1) over their mean."""
    mean, deviation = statistics.fmean(step_s), statistics.stdev(step_s)
    right, by_n = deviation / mean, statistics.pstdev(step_s) / mean
    mistakes = {
        tr("Divide by n - 1: the mean comes from the same repeats."): by_n,
        tr("This is the standard deviation in seconds; divide it by the mean."): deviation,
    }
    judge(answer, right, mistakes=mistakes, unit="fraction")
    return tr("Repeats of the same job differ by {right:.1%} (standard deviation).", right=right)


@exercise("01.repeats")
def repeats(answer: object, *, step_s: Sequence[float], difference: float) -> str:
    """n = 2 ((1.96 + 0.84) cv / d)^2, rounded up: both means that are compared are noisy."""
    cv = statistics.stdev(step_s) / statistics.fmean(step_s)
    exact = ((CERTAIN + POWER) * cv / difference) ** 2
    right = max(1, math.ceil(2 * exact))
    of_one = max(1, math.ceil(exact))
    mistakes = {
        tr(
            "Both configurations are noisy: the variance of a difference is the sum of two."
        ): of_one,
        tr(
            "With so few, a real difference of this size is found in one of two attempts; "
            "four of five need 1.96 + 0.84 standard errors."
        ): max(1, math.ceil(2 * (CERTAIN * cv / difference) ** 2)),
    }
    # The coefficient of variation was right within CLOSE, and so is what follows from it.
    fewest, most = (max(1, math.ceil(2 * exact * (1 + off) ** 2)) for off in (-CLOSE, CLOSE))
    if number(answer) not in range(fewest, most + 1):
        judge(answer, right, mistakes=mistakes, within=0)
    return tr(
        "With {right} of each, a difference of {difference:.0%} is found in four of five attempts "
        "on this machine, as quiet as it was; never take fewer than 3.",
        right=right,
        difference=difference,
    )


def _gpt(run: Run) -> tuple[GPT, int]:
    assert isinstance(run.architecture, GPT), "the lesson counts a GPT"
    return run.architecture, vocab_size_of(run.architecture, run.dataset)
