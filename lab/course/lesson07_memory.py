"""Checks of lesson 07: what fills a device, and what sharding takes away."""

from __future__ import annotations

import math

from lab.course.check import exercise, judge, numbers
from lab.course.language import tr
from lab.records.schema import RankMemory

# Bytes per parameter in mixed precision with AdamW: Rajbhandari et al. (2020), section 3.1.
WEIGHT, GRADIENT, OPTIMIZER = 2, 2, 12
STATE = WEIGHT + GRADIENT + OPTIMIZER
# Bytes of a transformer layer's activations in 16 bits per token and unit of width, with attention
# that does not keep its scores: Korthikanti et al. (2023), equation 1 without its second term.
ACTIVATION = 34


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
    mistakes = {
        tr("Every layer keeps its own until its backward pass."): right / layers,
    }
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
    judge(
        answer,
        right,
        mistakes={tr("That is the inverse."): 1 / right},
        unit="fraction",
    )
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
        rank,
        ddp / weights,
        hint=tr("The first is right; DDP holds something more between steps."),
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
