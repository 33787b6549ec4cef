"""Checks of lessons 02 and 03: what collectives send; distributed SGD, which equals plain SGD."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lab.course.check import exercise, judge, number, numbers, require
from lab.course.language import tr
from lab.perfmodel.collectives import busbw as bus_bandwidth
from lab.perfmodel.collectives import fit_link

SIZES = (2, 3, 5)
TOLERANCE = 2e-4  # relative, between losses of the same SGD


@exercise("02.ring")
def ring(answer: object, *, sizes: Sequence[int] = SIZES) -> str:
    """n - 1 rounds that add, then n - 1 rounds that copy; in each, every rank sends one chunk to
    the next rank.
    """
    require(callable(answer), "Give the function itself: all_reduce, without parentheses.")
    for n in sizes:
        _try_ring(answer, n)  # type: ignore[arg-type]
    return tr(
        "Every rank holds the sum, after 2 (n - 1) rounds in which each link carried one chunk. "
        "No all-reduce in which only ranks add sends less; switches that add, such as those of "
        "NVLink SHARP, halve it."
    )


def _try_ring(all_reduce: Callable[[Ring], object], n: int) -> None:
    values = np.random.default_rng(n).integers(0, 100, (n, n, 4)).astype(float)
    tried = Ring(list(map(list, values)))
    all_reduce(tried)
    require(sum(tried.sent) > 0, "Nothing was sent.")
    require(
        not tried.pending,
        "The last messages never arrived: call ring.end_round() after every round.",
    )
    right = values.sum(axis=0)
    wrong = [rank for rank in range(n) if not np.allclose(tried.chunks[rank], right)]
    whole = [
        chunk
        for chunk in range(n)
        if any(np.allclose(tried.chunks[rank][chunk], right[chunk]) for rank in range(n))
    ]
    if wrong:
        require(
            len(whole) < n,
            "With {n} ranks every chunk is summed somewhere, but rank {rank} does not hold all of "
            "the sums: pass them on.",
            n=n,
            rank=wrong[0],
        )
        require(
            False,
            "With {n} ranks, rank {rank} does not end with the sum: which chunk does it send in "
            "which round?",
            n=n,
            rank=wrong[0],
        )
    require(
        tried.busiest <= 1,
        "Some rank was sent two chunks in one round: here a link carries one at a time.",
    )
    most = 2 * (n - 1)
    require(
        tried.rounds <= most,
        "{rounds} rounds with {n} ranks; 2 (n - 1) = {most} are enough.",
        rounds=tried.rounds,
        n=n,
        most=most,
    )


@exercise("02.bytes")
def sent(answer: object, *, size: float, ranks: int) -> str:
    """A chunk is 1/n of the tensor, and each rank sends one in each of 2 (n - 1) rounds."""
    right = 2 * (ranks - 1) / ranks * size
    mistakes = {
        tr("That is reduce-scatter alone; the sums must travel back too."): right / 2,
        tr("A rank sends chunks, not whole tensors."): right * ranks,
        tr(
            "Close for many ranks, but each of the two phases has n - 1 rounds, not n: (n - 1)/n."
        ): 2 * size,
    }
    judge(answer, right, mistakes=mistakes, unit="bytes", within=0.005)
    return tr(
        "{size:.2f} MB; with ever more ranks it approaches {limit:.2f} MB and never exceeds it.",
        size=right / 1e6,
        limit=2 * size / 1e6,
    )


@exercise("02.busbw")
def busbw(answer: object, *, size: float, seconds: float, ranks: int) -> str:
    """algbw is bytes over time; for all-reduce, busbw is algbw times 2 (n - 1)/n."""
    right = bus_bandwidth("all_reduce", ranks, size, seconds)
    algbw, half = size / seconds, right / 2
    mistakes = {
        tr("This is algbw: what the caller sees. A link carries 2 (n - 1)/n times as much."): algbw,
        tr("The factor (n - 1)/n is that of all-gather; all-reduce passes the ring twice."): half,
    }
    judge(answer, right, mistakes=mistakes, unit="bytes/s", within=0.01)
    return tr(
        "{rate:.1f} GB/s on the busiest link: comparable over any number of ranks, and with the "
        "data sheet.",
        rate=right / 1e9,
    )


@exercise("02.alpha-beta")
def alpha_beta(answer: object, *, sizes: Sequence[float], seconds: Sequence[float]) -> str:
    """Two equations t = alpha + bytes/B: subtract them to get B, then insert it into either."""
    alpha, bandwidth = numbers(answer, 2, tr("Give two numbers: (alpha in s, B in bytes/s)."))
    right = (sizes[1] - sizes[0]) / (seconds[1] - seconds[0])
    judge(
        bandwidth,
        right,
        mistakes={tr("The second number is in seconds per byte, the inverse."): 1 / right},
        unit="bytes/s",
        hint=tr("The slope is not right: B = (difference of bytes) / (difference of seconds)."),
    )
    expected = seconds[0] - sizes[0] / right
    require(
        abs(alpha - expected) <= 0.02 * max(abs(expected), min(seconds)),
        "B is right; alpha is what remains of a time after bytes/B.",
    )
    try:
        fit = fit_link(sizes, seconds)
    except ValueError:
        return tr(
            "That solves the equations, but here the larger message took no longer than the "
            "smaller one: other processes disturbed it, and this B means nothing. Measure again."
        )
    return tr(
        "alpha is {alpha:.0f} µs and B is {bandwidth:.2f} GB/s; the lab's fit of these two times "
        "gives {fitted:.2f} GB/s.",
        alpha=expected * 1e6,
        bandwidth=right / 1e9,
        fitted=fit.bytes_per_s / 1e9,
    )


@exercise("02.half")
def half(answer: object, *, alpha_s: float, bytes_per_s: float) -> str:
    """Latency and transfer are equal where alpha = bytes/B."""
    right = alpha_s * bytes_per_s
    judge(answer, right, unit="bytes", within=0.05)
    if not right:
        return tr("This fit found no latency: here even a small message pays for its bytes alone.")
    return tr(
        "Below {size:.0f} kB a message mostly pays for being sent at all: that is why gradients "
        "travel in buckets.",
        size=right / 1e3,
    )


class Ring:
    """`n` ranks in a ring, each with a tensor of `n` chunks; a rank sends only to the next one.

    `chunks[rank][chunk]` is what a rank holds; only `send` changes it. What is sent in a round
    arrives when the round ends, so all ranks send at the same time. Raises ValueError if the number
    of chunks differs from the number of ranks.
    """

    def __init__(self, chunks: Sequence[Sequence[Any]]) -> None:
        self._held = [[np.array(chunk, dtype=float) for chunk in rank] for rank in chunks]
        self.n = len(self._held)
        if any(len(rank) != self.n for rank in self._held):
            raise ValueError(f"each of {self.n} ranks needs {self.n} chunks")
        self.rounds = 0
        self.sent = [0] * self.n
        self.busiest = 0
        self.arrived: set[tuple[int, int]] = set()  # rank and chunk, in the last round
        self._waiting: list[tuple[int, int, Any, bool]] = []

    @property
    def chunks(self) -> list[list[Any]]:
        """What each rank holds, for inspection: changes to it reach no rank."""
        return [[chunk.copy() for chunk in rank] for rank in self._held]

    def send(self, rank: int, chunk: int, *, add: bool) -> None:
        """Send a chunk to the next rank, which adds it to its own or, without `add`, keeps it."""
        value = self._held[rank % self.n][chunk % self.n].copy()
        self._waiting.append(((rank + 1) % self.n, chunk % self.n, value, add))
        self.sent[rank % self.n] += 1

    def end_round(self) -> None:
        """Let everything that was sent arrive."""
        senders = [receiver for receiver, *_ in self._waiting]
        self.busiest = max([self.busiest, *(senders.count(rank) for rank in senders)])
        for receiver, chunk, value, add in self._waiting:
            self._held[receiver][chunk] = self._held[receiver][chunk] + value if add else value
        self.arrived = {(receiver, chunk) for receiver, chunk, *_ in self._waiting}
        self._waiting = []
        self.rounds += 1

    @property
    def pending(self) -> bool:
        """Whether something was sent since the last round ended."""
        return bool(self._waiting)


@exercise("03.average")
def average(answer: object, *, gradients: Sequence[float], samples: Sequence[int]) -> str:
    """A rank's mean stands for as many samples as the rank had: weight the means by it."""
    right = float(np.average(gradients, weights=samples))
    plain = float(np.mean(gradients))
    mistakes = {
        tr(
            "This is the plain mean, right only if all ranks have the same number of samples."
        ): plain,
        tr("That is the sum."): sum(gradients),
    }
    judge(answer, right, mistakes=mistakes, within=0.001)
    return tr(
        "DDP takes the plain mean: that is why every rank must have the same number of samples, "
        "and why an incomplete last batch is left out."
    )


@exercise("03.tensors")
def tensors(answer: object, *, layers: int) -> str:
    """Count the tensors of a layer (each norm and matrix has a weight and a bias), then those of
    the embeddings and of the last norm.
    """
    right = _tensors(layers)
    mistakes = {
        tr("Embeddings (2) and the last norm (weight and bias) are tensors too."): 12 * layers,
        tr("Each norm and matrix has a bias."): 6 * layers + 3,
    }
    judge(answer, right, mistakes=mistakes, within=0)
    return tr(
        "{right} calls in every step, most of them for the few numbers of a norm or a bias.",
        right=right,
    )


@exercise("03.bytes")
def gradient_bytes(answer: object, *, parameters: int) -> str:
    """Every parameter has one gradient, of 4 bytes in fp32."""
    right = 4.0 * parameters
    mistakes = {
        tr("A gradient has 4 bytes."): right / 4,
        tr("Only gradients travel, not the optimizer's moments."): 4 * right,
    }
    judge(answer, right, mistakes=mistakes, unit="bytes", within=0.001)
    return tr("{size:.2f} MB in every step, for any batch size.", size=right / 1e6)


@exercise("03.latency")
def latency(answer: object, *, layers: int, alpha_s: float) -> str:
    """Every call costs alpha once, whatever it carries; flat makes one call instead of one per
    tensor.
    """
    calls = _tensors(layers)
    right = (calls - 1) * alpha_s
    mistakes = {tr("One call remains."): calls * alpha_s}
    judge(answer, right, mistakes=mistakes, unit="s", within=0.005)
    return tr("{ms:.1f} ms in each step, of latency alone.", ms=right * 1e3)


def _tensors(layers: int) -> int:
    return 12 * layers + 4


@exercise("03.losses")
def losses(answer: object, *, curves: Sequence[Sequence[float]]) -> str:
    """max over the steps of |a/b - 1|, for two lists of equal length."""
    reference = np.array(curves[0])
    right = max(float(np.abs(np.array(curve) / reference - 1).max()) for curve in curves[1:])
    value = number(answer)
    require(abs(value - right) <= 0.02 * right + 1e-9)
    require(
        right < TOLERANCE,
        "Your calculation is right, but {right:.1e} is too much: these runs do not train the "
        "same model.",
        right=right,
    )
    return tr(
        "{right:.1e}, nothing but rounding: the same SGD, so only times need comparing.",
        right=right,
    )


@exercise("03.hidden")
def hidden(answer: object, *, total_s: float, exposed_s: float) -> str:
    """What is hidden is total minus exposed; divide it by the total."""
    right = 1 - exposed_s / total_s
    if abs(number(answer) - right) > 0.01:  # of all communication: the share itself may be 0
        exposed = {tr("That is the share that is exposed."): exposed_s / total_s}
        judge(answer, right, mistakes=exposed, unit="fraction")
    return tr("{right:.0%} of the communication cost no time of its own.", right=max(right, 0.0))
