"""Checks of lesson 08: pipelines and tensor parallelism."""

from __future__ import annotations

import math

from lab.course.check import exercise, judge, number, require
from lab.course.language import tr
from lab.records.schema import Trace

READ_WITHIN = 0.05  # of a step: what can be read off a trace by eye


@exercise("08.bubble")
def bubble(answer: object, *, stages: int, microbatches: int) -> str:
    """Of m + p - 1 time slots a stage works in m: for what share does it wait?"""
    right = (stages - 1) / (microbatches + stages - 1)
    mistakes = {
        tr("This is the bubble over the work; over the whole time the denominator is m + p - 1."): (
            stages - 1
        )
        / microbatches,
        tr("That is the share of the time in which it works."): 1 - right,
    }
    judge(answer, right, mistakes=mistakes, unit="fraction", within=0.01)
    return tr("A stage waits {right:.0%} of the time, however fast the links are.", right=right)


@exercise("08.microbatches")
def microbatches(answer: object, *, stages: int, share: float) -> str:
    """Solve (p - 1)/(m + p - 1) <= share for m, and round up."""
    right = math.ceil((stages - 1) * (1 - share) / share - 1e-9)
    judge(answer, right, mistakes={tr("Give m, not m + p - 1."): right + stages - 1}, within=0)
    return tr(
        "{right} micro-batches. Each is smaller, and below some size the device computes it no "
        "faster.",
        right=right,
    )


@exercise("08.boundary")
def boundary(answer: object, *, batch: int, tokens: int, width: int) -> str:
    """Activations go forward over a boundary and their gradients come back: two tensors of batch x
    tokens x width.
    """
    right = 2 * 4 * batch * tokens * width
    mistakes = {
        tr("The gradients come back too."): right / 2,
        tr("An activation has 4 bytes in fp32."): right / 4,
    }
    judge(answer, right, mistakes=mistakes, unit="bytes", within=0.001)
    return tr(
        "{size:.2f} MB a step, whatever the number of micro-batches or parameters.",
        size=right / 1e6,
    )


@exercise("08.tensor")
def tensor(answer: object, *, batch: int, tokens: int, width: int, layers: int) -> str:
    """Four all-reduces in each layer: one after attention and one after the MLP, forward and again
    backward.
    """
    right = _reduced(batch, tokens, width, layers)
    mistakes = {
        tr("The backward pass needs two of them too."): right / 2,
        tr("Every layer does it."): right / layers,
        tr("An activation has 4 bytes in fp32."): right / 4,
    }
    judge(answer, right, mistakes=mistakes, unit="bytes", within=0.001)
    return tr(
        "{size:.1f} MB a step, in {calls} calls for which the layer must wait.",
        size=right / 1e6,
        calls=4 * layers,
    )


@exercise("08.ratio")
def ratio(
    answer: object, *, batch: int, tokens: int, width: int, layers: int, parameters: float
) -> str:
    """Bytes of tensor parallelism over bytes of gradients, both in fp32."""
    right = _reduced(batch, tokens, width, layers) / (4 * parameters)
    judge(answer, right, mistakes={tr("That is the inverse."): 1 / right})
    if right > 1:
        return tr(
            "{right:.2f} times, more than data parallelism; it grows with the batch, and gradients "
            "do not.",
            right=right,
        )
    return tr(
        "{right:.2f} times, less than data parallelism; it grows with the batch, and gradients do "
        "not.",
        right=right,
    )


@exercise("08.trace")
def trace(answer: object, *, trace: Trace, rank: int) -> str:
    """The step less the stretches in which its operators run, over the step."""
    value, right = number(answer), trace.idle(rank)
    require(not 1 < value <= 100, "Give a share between 0 and 1.")
    if abs(value - right) > READ_WITHIN:
        busy = abs(value - (1 - right)) <= READ_WITHIN
        require(not busy, "That is the share of the time in which it works.")
        require(False)
    others = [trace.idle(other) for other in range(len(trace.memory)) if other != rank]
    listed = ", ".join(f"{100 * share:.0f} %" for share in others)
    return tr(
        "{right:.0%} of the step; the other stages: {listed}. Equal stages would wait equally "
        "long; here the longest stage waits least, and the others wait for it.",
        right=right,
        listed=listed,
    )


@exercise("08.context")
def context(
    answer: object, *, tokens: int, ranks: int, heads: int, key_value_heads: int, width: int
) -> str:
    """A rank has the keys and the values of tokens / ranks, in 2 bytes for a number. In a ring of
    N ranks it passes on N - 1 such parts: its own, and those that it gets.
    """
    part = 2 * 2 * tokens / ranks * width * key_value_heads / heads
    right = (ranks - 1) * part
    mistakes = {
        tr("Keys and values are two tensors, of 2 bytes for a number."): right / 2,
        tr("Several heads of queries share one of keys and values."): right
        * heads
        / key_value_heads,
        tr("After N - 1 rounds every rank has seen all parts."): ranks * part,
        tr("That is one round of the ring."): part,
    }
    judge(answer, right, mistakes=mistakes, unit="bytes", within=0.01)
    return tr(
        "{size:.0f} MB in each layer, which can hide behind the attention to the previous part: "
        "the time of that grows with the square of the tokens.",
        size=right / 1e6,
    )


@exercise("08.experts")
def experts(answer: object, *, tokens: int, width: int, active: int, ranks: int) -> str:
    """Each token goes to its experts and comes back, 2 bytes for each number of its width. Of N
    ranks, its own has one expert in N, so the rest of the tokens leave.
    """
    right = 2 * active * tokens * width * 2 * (ranks - 1) / ranks
    mistakes = {
        tr("Tokens come back too, and every token goes to more than one expert."): right / 2,
        tr("One token in N finds its expert on its own rank."): right * ranks / (ranks - 1),
    }
    judge(answer, right, mistakes=mistakes, unit="bytes", within=0.01)
    return tr(
        "{size:.0f} MB in each layer's forward pass, in two all-to-alls for which the layer must "
        "wait, and longer if many tokens choose the same expert.",
        size=right / 1e6,
    )


def _reduced(batch: int, tokens: int, width: int, layers: int) -> int:
    """Bytes that tensor parallelism reduces in a step, in fp32."""
    return 4 * layers * 4 * batch * tokens * width
