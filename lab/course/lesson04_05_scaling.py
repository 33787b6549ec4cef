"""Checks of lessons 04 and 05: strong and weak scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lab.analysis.laws import amdahl_speedup, gustafson_speedup
from lab.analysis.laws import karp_flatt as serial_fraction
from lab.course.check import exercise, judge, number, require
from lab.course.language import tr

# What two decimals of a speedup change a small serial fraction by.
ROUNDED = 0.003
NEARLY_EQUAL = 0.005  # of losses


@exercise("04.prediction")
def strong_prediction(answer: object, *, step_s: Mapping[int, float], ranks: int) -> str:
    """Write down the speedup you expect, above 0; it need not be right, but it must be yours."""
    expected = number(answer)
    require(expected > 0)
    measured = step_s[1] / step_s[ranks]
    return tr(
        "You expected {expected:.2f}, and {measured:.2f} was measured. Before you go on: what "
        "explains the difference?",
        expected=expected,
        measured=measured,
    )


@exercise("04.speedup")
def speedup(answer: object, *, step_s: Mapping[int, float], ranks: int) -> str:
    """T(1) / T(N): by how many times a step is faster than on one rank."""
    right = step_s[1] / step_s[ranks]
    mistakes = {
        _turned(): 1 / right,
        tr("This is the efficiency; do not divide by N yet."): right / ranks,
    }
    judge(answer, right, mistakes=mistakes)
    return tr(
        "A step is {right:.2f} times as fast on {ranks} ranks as on one.", right=right, ranks=ranks
    )


@exercise("04.efficiency")
def efficiency(answer: object, *, step_s: Mapping[int, float], ranks: int) -> str:
    """The speedup over the speedup that N ranks would ideally give, which is N."""
    right = step_s[1] / step_s[ranks] / ranks
    judge(answer, right, mistakes={tr("Divide the speedup by N."): right * ranks}, unit="fraction")
    if right > 1:
        return tr("{right:.0%}: above 100 %, so noise or a weakened baseline.", right=right)
    return tr(
        "{right:.0%}: this much of each rank's time went into work that one rank would have had to "
        "do too.",
        right=right,
    )


@exercise("04.slowest")
def slowest(answer: object, *, one_s: float, ranks_s: Sequence[float]) -> str:
    """A synchronous step ends when the last rank has ended: take the slowest rank at each world
    size.
    """
    right = one_s / max(ranks_s)
    mean = one_s / (sum(ranks_s) / len(ranks_s))
    mistakes = {
        tr(
            "{mean:.2f} is the speedup of the mean over ranks, which is what was published; "
            "who waits for whom?",
            mean=mean,
        ): mean,
        tr("That is the fastest rank; the others have not ended yet."): one_s / min(ranks_s),
        _turned(): 1 / right,
    }
    judge(answer, right, mistakes=mistakes)
    return tr(
        "{right:.2f} instead of {mean:.2f}: the mean over ranks made {gain:.0%} out of nothing.",
        right=right,
        mean=mean,
        gain=mean / right - 1,
    )


@exercise("04.karp-flatt")
def karp_flatt(answer: object, *, step_s: Mapping[int, float], ranks: int) -> str:
    """f = (1/S - 1/N) / (1 - 1/N), with the measured speedup S on N ranks."""
    speedup = step_s[1] / step_s[ranks]
    right = serial_fraction(speedup, ranks)
    mistakes = {tr("The denominator is missing: divide by 1 - 1/N."): 1 / speedup - 1 / ranks}
    if abs(number(answer) - right) > ROUNDED:
        judge(answer, right, mistakes=mistakes, unit="fraction")
    if right < 0:
        return tr(
            "{right:.1%}: a negative serial fraction means a speedup above N. Noise, or a "
            "weakened baseline: measure again.",
            right=right,
        )
    if right > 1:
        return tr(
            "{right:.1%}: above 100 %, because a step on N ranks takes longer than on one. No "
            "serial part explains that: something was added, such as communication.",
            right=right,
        )
    return tr("A serial fraction of {right:.1%} would explain this speedup.", right=right)


@exercise("04.limit")
def limit(answer: object, *, fraction: float) -> str:
    """Let N grow in S = 1 / (f + (1 - f)/N): what remains?"""
    judge(answer, 1 / fraction)
    return tr(
        "If {fraction:.1%} stayed serial, no number of nodes would give more than {most:.1f} "
        "times one.",
        fraction=fraction,
        most=1 / fraction,
    )


@exercise("04.amdahl")
def amdahl(answer: object, *, fraction: float, ranks: int, measured: float) -> str:
    """S = 1 / (f + (1 - f)/N), with N the number of nodes."""
    right = amdahl_speedup(ranks, fraction)
    scaled = gustafson_speedup(ranks, fraction)
    mistakes = {
        tr("This is Gustafson's law, where the work grows with the ranks."): scaled,
        _turned(): 1 / right,
    }
    judge(answer, right, mistakes=mistakes)
    return tr(
        "{right:.1f} on {ranks} nodes, if the serial fraction stays what it was. Measured was "
        "{measured:.1f}: the law is {off:+.0%} off.",
        right=right,
        ranks=ranks,
        measured=measured,
        off=right / measured - 1,
    )


@exercise("05.efficiency")
def weak_efficiency(answer: object, *, step_s: Mapping[int, float], ranks: int) -> str:
    """The work per rank is the same, so an ideal step takes as long as on one rank: T(1) / T(N)."""
    right = step_s[1] / step_s[ranks]
    mistakes = {
        tr("Do not divide by N: each rank's work did not shrink."): right / ranks,
        tr("That is the inverse: divide the ideal T(1) by the longer T(N)."): 1 / right,
    }
    judge(answer, right, mistakes=mistakes, unit="fraction")
    if right > 1:
        return tr("{right:.0%}: above 100 %, so noise or a weakened baseline.", right=right)
    return tr(
        "{right:.0%}: a step with {ranks} times the samples takes {times:.2f} times as long.",
        right=right,
        ranks=ranks,
        times=1 / right,
    )


@exercise("05.throughput")
def scaled_speedup(answer: object, *, step_s: Mapping[int, float], ranks: int) -> str:
    """Samples per second on N ranks over samples per second on one."""
    right = ranks * step_s[1] / step_s[ranks]
    mistakes = {
        tr(
            "N ranks do N times the samples in a step: this is the ratio of step times alone."
        ): right / ranks,
        _turned(): 1 / right,
    }
    judge(answer, right, mistakes=mistakes)
    return tr(
        "{ranks} ranks train {right:.2f} times as many samples per second.",
        ranks=ranks,
        right=right,
    )


@exercise("05.gustafson")
def gustafson(answer: object, *, fraction: float, ranks: int) -> str:
    """S = f + (1 - f) N: in the time of the parallel part, N ranks do N times as much."""
    right = gustafson_speedup(ranks, fraction)
    mistakes = {
        tr("This is Amdahl's law, where the work stays the same."): amdahl_speedup(ranks, fraction)
    }
    judge(answer, right, mistakes=mistakes, within=0.01)
    return tr(
        "{right:.1f}, where Amdahl allows {fixed:.1f} for a fixed amount of work.",
        right=right,
        fixed=amdahl_speedup(ranks, fraction),
    )


@exercise("05.steps")
def steps(answer: object, *, samples: int, batch_per_rank: int, ranks: int) -> str:
    """Each step consumes the global batch; an epoch consumes all samples once."""
    right = samples / (batch_per_rank * ranks)
    mistakes = {tr("The global batch is N times the batch per rank."): samples / batch_per_rank}
    judge(answer, right, mistakes=mistakes, within=0.01)
    return tr(
        "{right:,.0f} updates of the model instead of {before:,.0f}: each must do the work of "
        "{ranks}.",
        right=right,
        before=samples / batch_per_rank,
        ranks=ranks,
    )


@exercise("05.learning-rate")
def learning_rate(answer: object, *, rate: float, factor: int) -> str:
    """For Adam and AdamW the learning rate grows with the square root of the batch."""
    right, lower = rate * factor**0.5, rate / factor**0.5
    mistakes = {
        tr("That is the linear rule, which is for SGD."): rate * factor,
        tr("A larger batch has a gradient with less noise: the step may be larger."): lower,
    }
    judge(answer, right, mistakes=mistakes, within=0.01)
    return tr(
        "{right:.2g}, from which to begin the search for the best one: the rule ends where the "
        "gradient has hardly any noise left to average away.",
        right=right,
    )


@exercise("05.learning")
def learning(answer: object, *, small: Sequence[float], large: Sequence[float], factor: int) -> str:
    """Compare after equal samples: the larger batch has made fewer steps by then."""
    steps = min(len(small) // factor, len(large))
    right = large[steps - 1] - small[steps * factor - 1]
    at_equal_steps = large[-1] - small[len(large) - 1]
    mistakes = {
        tr(
            "These are equal steps, and the larger batch has seen more samples by then."
        ): at_equal_steps,
        tr("The sign is wrong: subtract the small batch's loss from the large one's."): -right,
    }
    if abs(number(answer) - right) > NEARLY_EQUAL:
        judge(answer, right, mistakes=mistakes)
    values = {"small": steps * factor, "large": steps, "apart": abs(right)}
    if right > 0:
        return tr(
            "After {small} small or {large} large steps the loss of the large batch is {apart:.3f} "
            "higher.",
            **values,
        )
    return tr(
        "After {small} small or {large} large steps the loss of the large batch is {apart:.3f} "
        "lower.",
        **values,
    )


def _turned() -> str:
    return tr("The other way round: above 1 means that more ranks are faster.")
