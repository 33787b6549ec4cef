"""Checks of lesson 06: when data parallelism fails, and whose fault it is."""

from __future__ import annotations

from collections.abc import Sequence

from lab.course.check import close, exercise, judge, numbers, require
from lab.course.language import tr
from lab.formatting import rounded
from lab.perfmodel.collectives import (
    bus_factor,
    efficiency_with_overlap,
    efficiency_without_overlap,
)

GRADIENT_BYTES = 4  # of a parameter in fp32


@exercise("06.ratio")
def ratio(answer: object, *, compute_s: float, communication_s: float) -> str:
    """R = T_compute / T_communication, both of one step on one rank."""
    right = compute_s / communication_s
    mistakes = {tr("That is the inverse: R is large where communication is cheap."): 1 / right}
    judge(answer, right, mistakes=mistakes)
    times = rounded(right)
    return tr("A rank computes {times} times as long as gradients are on the link.", times=times)


@exercise("06.band")
def band(answer: object, *, compute_s: float, communication_s: float) -> str:
    """Without overlap the two times add up; with it, 2/3 of compute can hide communication:
    (lower, upper).
    """
    low, high = numbers(answer, 2, tr("Give two fractions: (without overlap, with overlap)."))
    r = compute_s / communication_s
    least, most = efficiency_without_overlap(r), efficiency_with_overlap(r)
    require(
        not (close(low, most) and close(high, least)) or close(least, most),
        "Right numbers, wrong order.",
    )
    judge(
        low,
        least,
        unit="fraction",
        hint=tr(
            "Without overlap a step takes T_compute + T_communication: what share of it is compute?"
        ),
    )
    judge(
        high,
        most,
        unit="fraction",
        hint=tr(
            "With overlap a step takes max(T_compute, T_compute/3 + T_communication): divide "
            "T_compute by it."
        ),
    )
    return tr(
        "Between {least:.0%} and {most:.0%}, depending on how well communication hides.",
        least=least,
        most=most,
    )


@exercise("06.required-ratio")
def required_ratio(answer: object, *, efficiency: float) -> str:
    """Solve R / (1 + R) = E for R."""
    right = efficiency / (1 - efficiency)
    judge(answer, right)
    return tr(
        "R of {right:.1f} for {efficiency:.0%}. A rule of thumb like 'R must be 3' is one point "
        "of the band, not a law.",
        right=right,
        efficiency=efficiency,
    )


@exercise("06.break-even")
def break_even(answer: object, *, gradient_bytes: float, step_s: float) -> str:
    """Set T(1) = T(1)/N + 2 (N - 1)/N * bytes/B and solve for B; N cancels."""
    right = 2 * gradient_bytes / step_s
    mistakes = {
        tr(
            "A rank sends 2 (N - 1)/N times the gradients; it gains only (N - 1)/N of a step."
        ): right / 2,
        tr("Give bytes per second, not bits."): 8 * right,
    }
    judge(answer, right, mistakes=mistakes, unit="bytes/s")
    return tr(
        "Below {rate:,.1f} MB/s ({gbit:.3g} Gbit/s) no number of ranks is faster than one: N is "
        "not in the formula.",
        rate=right / 1e6,
        gbit=8 * right / 1e9,
    )


@exercise("06.step")
def step(answer: object, *, epoch_s: float, samples: int, batch_per_rank: int, ranks: int) -> str:
    """An epoch has samples / global batch steps: divide the time of the epoch by that number."""
    right = epoch_s * batch_per_rank * ranks / samples
    mistakes = {
        tr(
            "The batch is per rank: the global batch is N times as large, and there are N "
            "times fewer steps."
        ): right / ranks,
    }
    judge(answer, right, mistakes=mistakes, unit="s")
    return tr("A step takes {ms:.1f} ms.", ms=right * 1e3)


@exercise("06.transfer")
def transfer(answer: object, *, parameters: float, ranks: int, bytes_per_s: float) -> str:
    """2 (N - 1)/N times 4 bytes for each parameter, over the bandwidth of the link."""
    once = GRADIENT_BYTES * parameters / bytes_per_s
    right = bus_factor("all_reduce", ranks) * GRADIENT_BYTES * parameters / bytes_per_s
    mistakes = {
        tr("A parameter has 4 bytes in fp32."): right / GRADIENT_BYTES,
        tr("The ring passes 2 (N - 1)/N times the bytes."): once,
    }
    judge(answer, right, mistakes=mistakes, unit="s")
    return tr("{ms:.2f} ms on this link.", ms=right * 1e3)


@exercise("06.culprit")
def culprit(answer: object, *, rules: Sequence[str]) -> str:
    """Compare the time that gradients need with the time by which a step became longer, then
    read what the audit says about CPUs.
    """
    require(isinstance(answer, str), "Give the name of a rule, as text.")
    named = str(answer).strip().lower()
    require(
        named in rules,
        "The audit found {rules} in this table: which of them is a cause?",
        rules=", ".join(dict.fromkeys(rules)),
    )
    require(
        named != "plausible-bandwidth", "This rule says that the link is not to blame. What is?"
    )
    require(
        named != "equal-work",
        "Unequal work makes the comparison unfair, but each rank has as many samples in a step "
        "as before: why does a step take almost 9 times as long?",
    )
    require(named == "data-stall")
    return tr(
        "Loader processes outnumber the CPUs, and the gradients, which were blamed, need a small "
        "part of the time by which a step became longer. The likeliest remaining cause is "
        "that ranks wait for data; an experiment with fewer loaders would show it."
    )


@exercise("06.stall")
def stall(answer: object, *, data_s: float, step_s: float) -> str:
    """Time that a step waits for data over the time of the step."""
    right = data_s / step_s
    judge(answer, right, mistakes={tr("That is the inverse."): 1 / right}, unit="fraction")
    return tr(
        "{right:.0%} of a step passes before anything is computed, and a faster link does not "
        "shorten that.",
        right=right,
    )
