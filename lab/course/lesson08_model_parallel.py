"""Checks of lesson 08: pipelines and tensor parallelism."""

from __future__ import annotations

import math

from lab.course.check import exercise, judge


@exercise("08.bubble")
def bubble(answer: object, *, stages: int, microbatches: int) -> str:
    """Of m + p - 1 slots of time, a stage works in m: what share does it wait?"""
    right = (stages - 1) / (microbatches + stages - 1)
    mistakes = {
        "This is the bubble over the work; over the whole time the denominator is m + p - 1.": (
            stages - 1
        )
        / microbatches,
        "That is the share in which it works.": 1 - right,
    }
    judge(answer, right, mistakes=mistakes, within=0.01)
    return f"A stage waits {right:.0%} of the time, however fast the links are."


@exercise("08.microbatches")
def microbatches(answer: object, *, stages: int, share: float) -> str:
    """Solve (p - 1)/(m + p - 1) <= share for m, and round up."""
    right = math.ceil((stages - 1) * (1 - share) / share - 1e-9)
    judge(
        answer, right, mistakes={"m is wanted, not m + p - 1.": float(right + stages - 1)}, within=0
    )
    return (
        f"{right} microbatches. Each is smaller, and below some size the device computes it "
        "no faster."
    )


@exercise("08.boundary")
def boundary(answer: object, *, batch: int, tokens: int, width: int) -> str:
    """Activations go forward over a boundary and their gradients come back: two tensors of batch x
    tokens x width.
    """
    right = 2 * 4 * batch * tokens * width
    mistakes = {
        "The gradients come back too.": right / 2,
        "An activation has 4 bytes in fp32.": right / 4,
    }
    judge(answer, right, mistakes=mistakes, within=0.001)
    return f"{right / 1e6:.2f} MB a step, whatever the number of microbatches or parameters."


@exercise("08.tensor")
def tensor(answer: object, *, batch: int, tokens: int, width: int, layers: int) -> str:
    """Four all-reduces in each layer: one after attention and one after the MLP, forward and again
    backward.
    """
    right = _reduced(batch, tokens, width, layers)
    mistakes = {
        "The backward pass needs two of them too.": right / 2,
        "Every layer does it.": right / layers,
        "An activation has 4 bytes in fp32.": right / 4,
    }
    judge(answer, right, mistakes=mistakes, within=0.001)
    return f"{right / 1e6:.1f} MB a step, in {4 * layers} calls for which the layer must wait."


@exercise("08.ratio")
def ratio(
    answer: object, *, batch: int, tokens: int, width: int, layers: int, parameters: float
) -> str:
    """Bytes of tensor parallelism over bytes of gradients, both in fp32."""
    right = _reduced(batch, tokens, width, layers) / (4 * parameters)
    judge(answer, right, mistakes={"Turn it over.": 1 / right})
    more = "more" if right > 1 else "less"
    return (
        f"{right:.2f} times, {more} than data parallelism; it grows with the batch, and "
        "gradients do not."
    )


def _reduced(batch: int, tokens: int, width: int, layers: int) -> int:
    """Bytes that tensor parallelism reduces in a step, in fp32."""
    return 4 * layers * 4 * batch * tokens * width
