"""Checks of lessons 07 and 08: what fills a device, and the models that several devices share."""

from __future__ import annotations

import math

from lab.course.check import exercise, judge, number, numbers, require
from lab.course.language import tr
from lab.records.schema import RankMemory, Trace

# Bytes per parameter in mixed precision with AdamW: Rajbhandari et al. (2020), section 3.1.
WEIGHT, GRADIENT, OPTIMIZER = 2, 2, 12
STATE = WEIGHT + GRADIENT + OPTIMIZER
# Bytes of a transformer layer's activations in 16 bits per token and unit of width, with attention
# that does not keep its scores: Korthikanti et al. (2023), equation 1 without its second term.
ACTIVATION = 34
READ_WITHIN = 0.05  # of a step: what can be read off a trace by eye


@exercise("07.state")
def state(answer: object, *, parameters: float) -> str:
    """2 bytes for a weight, 2 for its gradient, 12 for AdamW: an fp32 copy and two moments."""
    right = STATE * parameters
    mistakes = {
        tr("Those are the weights alone."): 2 * parameters,
        tr("The fp32 copy of the weights is missing: AdamW needs 12 bytes."): 12 * parameters,
    }
    judge(answer, right, mistakes=mistakes, unit="bytes", within=0.001)
    return tr("{size:.0f} GB before the first activation.", size=right / 1e9)


@exercise("07.zero")
def zero(answer: object, *, parameters: float, ranks: int) -> str:
    """Each stage divides one more part by N: the optimizer, then the gradients too, then the
    weights too.
    """
    values = numbers(answer, 3, tr("Give three numbers: (stage 1, stage 2, stage 3)."))
    right = (
        parameters * (WEIGHT + GRADIENT + OPTIMIZER / ranks),
        parameters * (WEIGHT + (GRADIENT + OPTIMIZER) / ranks),
        parameters * STATE / ranks,
    )
    for stage, (value, expected) in enumerate(zip(values, right, strict=True), start=1):
        judge(
            value,
            expected,
            unit="bytes",
            hint=tr(
                "Stage {stage} is not right: which parts does it divide by N, and which not?",
                stage=stage,
            ),
        )
    return tr(
        "{parts} GB: with more ranks the last one tends to zero, the first does not.",
        parts=", ".join(f"{part / 1e9:.1f}" for part in right),
    )


@exercise("07.sent")
def sent(answer: object) -> str:
    """DDP: reduce-scatter and all-gather of gradients. FSDP: all-gather weights for forward, again
    for backward, reduce-scatter gradients.
    """
    mistakes = {
        tr("Weights are gathered twice, because the forward pass frees them again."): 1.0,
        tr("An all-reduce is two passes of the ring, a gather is one."): 3.0,
    }
    judge(answer, 1.5, mistakes=mistakes)
    return tr(
        "Half as much again: that is the price of memory, and the reason why it needs a fast link."
    )


@exercise("07.ranks")
def ranks(answer: object, *, parameters: float, bytes_per_rank: float) -> str:
    """The whole state over what a rank has for it, rounded up."""
    right = math.ceil(STATE * parameters / bytes_per_rank)
    mistakes = {tr("Round up: there are no parts of a device."): right - 1}
    judge(answer, right, mistakes=mistakes, within=0)
    return tr(
        "{right} ranks hold the state; what you kept for activations is all that is left for them.",
        right=right,
    )


@exercise("07.activations")
def activations(answer: object, *, tokens: int, width: int, layers: int) -> str:
    """34 bytes for each token and unit of width, in every layer."""
    right = float(ACTIVATION * tokens * width * layers)
    mistakes = {tr("Every layer keeps its own until its backward pass."): right / layers}
    judge(answer, right, mistakes=mistakes, unit="bytes", within=0.005)
    return tr(
        "{size:.1f} GB for a micro-batch of one sample; with two it is twice that.",
        size=right / 1e9,
    )


@exercise("07.recomputation")
def recomputation(answer: object) -> str:
    """Of the whole step: a forward pass is one part of three, and it is done twice."""
    mistakes = {
        tr("Forward and backward together are three parts; one of them comes again."): 2.0,
        tr("That is what is added; by what factor does the step grow?"): 1 / 3,
    }
    judge(answer, 4 / 3, mistakes=mistakes, within=0.01)
    return tr(
        "A third more arithmetic, for memory that no longer grows with all that a layer computes."
    )


@exercise("07.optimizer")
def optimizer(answer: object, *, sharded: float, whole: float) -> str:
    """Bytes of the optimizer's state on a rank of ZeRO-1 over those on a rank of DDP."""
    right = sharded / whole
    judge(answer, right, mistakes={tr("That is the inverse."): 1 / right}, unit="fraction")
    return tr("{right:.2f}: a rank keeps the state of what it updates.", right=right)


@exercise("07.levels")
def levels(answer: object, *, alone: float, ddp: float, weights: float) -> str:
    """Bytes between two steps over the bytes of the weights. One device keeps weights and both
    moments; what does DDP never give back?
    """
    one, rank = numbers(answer, 2, tr("Give two numbers: (one device, a rank of DDP)."))
    judge(
        one,
        alone / weights,
        mistakes={tr("Give a multiple of the weights, not MB."): 1e-6 * alone},
        hint=tr("Divide what one device holds by the bytes of its weights."),
    )
    judge(
        rank, ddp / weights, hint=tr("The first is right; DDP holds something more between steps.")
    )
    return tr(
        "{alone:.2f} and {ddp:.2f}: weights and two moments, and in DDP the buckets, which stay "
        "allocated and in which the gradients live.",
        alone=alone / weights,
        ddp=ddp / weights,
    )


@exercise("07.flattened")
def flattened(answer: object, *, plain: RankMemory, recomputed: RankMemory) -> str:
    """The rise is the peak less what is held between steps. What share of it is gone?"""
    rises, left = (max(one.bytes) - one.held for one in (plain, recomputed))
    mistakes = {
        tr("Subtract what is held between steps: recomputation cannot take that away."): 1
        - max(recomputed.bytes) / max(plain.bytes),
        tr("That is what is left."): left / rises,
    }
    judge(answer, 1 - left / rises, mistakes=mistakes, unit="fraction")
    return tr(
        "{gone:.0%} of {size:.0f} MB. What is left are the inputs of the blocks, the activations "
        "of one block at a time, and the head.",
        gone=1 - left / rises,
        size=rises / 1e6,
    )


@exercise("08.bubble")
def bubble(answer: object, *, stages: int, microbatches: int) -> str:
    """Of m + p - 1 time slots a stage works in m: for what share does it wait?"""
    right, of_work = (stages - 1) / (microbatches + stages - 1), (stages - 1) / microbatches
    mistakes = {
        tr(
            "This is the bubble over the work; over the whole time the denominator is m + p - 1."
        ): of_work,
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
    of_all = right * heads / key_value_heads
    mistakes = {
        tr("Keys and values are two tensors, of 2 bytes for a number."): right / 2,
        tr("Several heads of queries share one of keys and values."): of_all,
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
