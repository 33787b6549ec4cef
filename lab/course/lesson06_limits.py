"""Checks of lesson 06: when data parallelism fails, and whose fault it is."""

from __future__ import annotations

from collections.abc import Sequence

from lab.course.check import close, exercise, judge, number, require
from lab.perfmodel.collectives import (
    bus_factor,
    efficiency_with_overlap,
    efficiency_without_overlap,
)

GRADIENT_BYTES = 4  # of a parameter in fp32


@exercise("06.ratio", "R = T_compute / T_communication, both of one step on one rank.")
def ratio(answer: object, *, compute_s: float, communication_s: float) -> str:
    """R of one configuration."""
    right = compute_s / communication_s
    judge(
        answer,
        right,
        mistakes={"Turn it over: R is large where communication is cheap.": 1 / right},
    )
    return f"A rank computes {right:.1f} times as long as gradients are on the link."


@exercise(
    "06.band",
    "Without overlap the two times add up; with it, 2/3 of compute can hide communication: (lower, upper).",
)
def band(answer: object, *, r: float) -> str:
    """Efficiency without overlap and with perfect overlap, as fractions."""
    require(
        isinstance(answer, tuple | list) and len(answer) == 2,
        "Two fractions are wanted: (without overlap, with overlap).",
    )
    low, high = (number(part) for part in answer)  # type: ignore[attr-defined]
    least, most = efficiency_without_overlap(r), efficiency_with_overlap(r)
    require(
        not (close(low, most) and close(high, least)) or close(least, most),
        "Right numbers, wrong order.",
    )
    require(
        close(low, least),
        "Without overlap a step takes T_compute + T_communication: what share of it is compute?",
    )
    require(
        close(high, most),
        "With overlap a step takes max(T_compute, T_compute/3 + T_communication): divide T_compute by it.",
    )
    return f"Between {least:.0%} and {most:.0%}, by how well communication hides."


@exercise("06.required-ratio", "Solve R / (1 + R) = E for R.")
def required_ratio(answer: object, *, efficiency: float) -> str:
    """R that gives an efficiency without overlap."""
    right = judge(answer, efficiency / (1 - efficiency))
    return f"R of {right:.1f} for {efficiency:.0%}. A rule of thumb like 'R must be 3' is one point of the band, not a law."


@exercise("06.break-even", "Set T(1) = T(1)/N + 2 (N - 1)/N * bytes/B and solve for B; N cancels.")
def break_even(answer: object, *, gradient_bytes: float, step_s: float) -> str:
    """Bytes/s of a link below which more ranks are slower than one, without overlap and latency."""
    right = 2 * gradient_bytes / step_s
    mistakes = {
        "A rank sends 2 (N - 1)/N times the gradients; and it gains only (N - 1)/N of a step.": gradient_bytes
        / step_s,
        "Bytes per second are wanted, not bits.": 8 * right,
    }
    judge(answer, right, mistakes=mistakes)
    return f"Below {right / 1e6:,.1f} MB/s ({8 * right / 1e9:.3g} Gbit/s) no number of ranks is faster than one: N is not in the formula."


@exercise(
    "06.step",
    "Samples over global batch are the steps of an epoch; an epoch's time over its steps is a step's.",
)
def step(answer: object, *, epoch_s: float, samples: int, batch_per_rank: int, ranks: int) -> str:
    """Step time in s from an epoch's time."""
    right = epoch_s * batch_per_rank * ranks / samples
    mistakes = {
        "The batch is per rank: the global batch is N times as large, and there are N times fewer steps.": right
        / ranks,
        "Seconds are wanted, not ms.": 1e3 * right,
    }
    judge(answer, right, mistakes=mistakes)
    return f"{right * 1e3:.1f} ms for a step."


@exercise(
    "06.transfer", "2 (N - 1)/N times 4 bytes for each parameter, over the bandwidth of the link."
)
def transfer(answer: object, *, parameters: float, ranks: int, bytes_per_s: float) -> str:
    """Seconds of a ring all-reduce of fp32 gradients, without latency."""
    right = bus_factor("all_reduce", ranks) * GRADIENT_BYTES * parameters / bytes_per_s
    mistakes = {
        "A parameter has 4 bytes in fp32.": right / GRADIENT_BYTES,
        "The ring passes 2 (N - 1)/N times the bytes.": GRADIENT_BYTES * parameters / bytes_per_s,
        "Seconds are wanted, not ms.": 1e3 * right,
    }
    judge(answer, right, mistakes=mistakes)
    return f"{right * 1e3:.2f} ms on this link."


@exercise(
    "06.culprit",
    "Compare the time that gradients need with the time that a step became longer, then read what the audit says of CPUs.",
)
def culprit(answer: object, *, rules: Sequence[str]) -> str:
    """The audit's rule that names the cause of a negative scaling."""
    require(isinstance(answer, str), "The name of a rule is wanted, as text.")
    require(
        answer in rules,
        f"The audit found {', '.join(dict.fromkeys(rules))} in this table: which of them is a cause?",
    )
    require(
        answer != "plausible-bandwidth", "This rule says that the link is not to blame. What is?"
    )
    require(
        answer != "equal-work",
        "Unequal work makes the comparison unfair, but 8 times longer steps need another reason.",
    )
    require(answer == "data-stall")
    return "Loader processes outnumber the CPUs, so every rank waits for data; communication was blamed and is innocent."


@exercise("06.stall", "Time that a step waits for data over the time of the step.")
def stall(answer: object, *, data_s: float, step_s: float) -> str:
    """The share of a step that waits for data."""
    right = data_s / step_s
    judge(
        answer,
        right,
        mistakes={"Turn it over.": 1 / right, "A fraction is wanted, not per cent.": 100 * right},
    )
    return f"{right:.0%} of a step pass before anything is computed, and no link in the world will shorten that."
