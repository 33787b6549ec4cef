"""Why more ranks do not help: waiting for data, the network, and what a step costs however little work it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lab.analysis.repeats import link, median, phase, step, trained
from lab.analysis.rounding import format_seconds, percent, rounded
from lab.records import Record
from lab.study import Run
from lab.words import distinct

SHARE = 0.05  # of the step: below it a cause is none
WORK = ("h2d", "forward", "backward", "other")
UNKNOWN = "not measured"


class Causes(NamedTuple):
    """Parts of one run's step that do not train, in s; None where not known."""

    run: Run
    step: float
    data: float
    straggler: float | None
    transfer: float | None
    launches: float | None
    optimizer: float

    @property
    def parts(self) -> dict[str, float | None]:
        """The causes by what they are called."""
        return {
            "waiting for data": self.data,
            "waiting for ranks": self.straggler,
            "transfer": self.transfer,
            "launches": self.launches,
            "optimizer": self.optimizer,
        }

    @property
    def largest(self) -> str:
        """The cause that takes most of the step; compute where each takes less than SHARE of it."""
        known = {name: seconds for name, seconds in self.parts.items() if seconds is not None}
        most = max(known, key=lambda name: known[name])
        return most if known[most] > SHARE * self.step else "compute"


def causes(runs: Sequence[Run], records: Sequence[Record]) -> list[Causes]:
    """The causes of each completed training run, medians over repeats.

    Launches are what forward, backward and the host between them take at no samples at all: the intercept of a line
    through their times over the batch of a rank, on one rank with the fast loader. It takes two batches there.
    """
    done = {run: found for run, found in trained(runs, records).items() if found}
    fixed = {kind: _intercept(points) for kind, points in _by_batch(done).items()}
    return [
        Causes(
            run=run,
            step=median(found, step) or 0.0,
            data=median(found, phase("data")) or 0.0,
            straggler=median(found, link("straggler")),
            transfer=median(found, link("transfer")),
            launches=fixed.get(_kind(run)),
            optimizer=median(found, phase("optimizer")) or 0.0,
        )
        for run, found in done.items()
    ]


def _kind(run: Run) -> tuple[object, ...]:
    return run.model, run.data, run.precision, run.compile, run.needs_device


def _by_batch(done: Mapping[Run, list[Record]]) -> dict[tuple[object, ...], dict[int, float]]:
    """By kind of work, the time of a micro-batch on one rank by its size."""
    found: dict[tuple[object, ...], dict[int, float]] = {}
    for run, records in done.items():
        if run.world_size == 1 and run.loader == "fast":
            times = [median(records, phase(name)) or 0.0 for name in WORK]
            found.setdefault(_kind(run), {})[run.micro_batch_size] = sum(times) / run.grad_accum
    return found


def _intercept(times: Mapping[int, float]) -> float | None:
    """Where a line through times over batches begins, at least 0; None where there are less than two batches."""
    if len(times) < 2:
        return None
    return max(float(np.polyfit(list(times), list(times.values()), 1)[1]), 0.0)


def cause_rows(found: Sequence[Causes]) -> list[dict[str, str]]:
    """One row of text per run: each cause with its share of the step, and the largest."""
    labels, _ = distinct([one.run for one in found])
    return [
        {"configuration": labels[one.run], "step": format_seconds(one.step)}
        | {name: _with_share(seconds, one) for name, seconds in one.parts.items()}
        | {"largest": one.largest}
        for one in found
    ]


def _with_share(seconds: float | None, one: Causes) -> str:
    if seconds is None:
        return "none" if one.run.world_size == 1 else UNKNOWN
    return f"{format_seconds(seconds)} ({100 * seconds / one.step:.1f} %)" if seconds else "0"


def cause_sentences(found: Sequence[Causes]) -> list[str]:
    """What each loader makes a step wait, and how much longer a step is with the classic one."""
    labels, _ = distinct([one.run for one in found])
    return [*_stalls(found, labels), *_slowed(found, labels)]


def _stalls(found: Sequence[Causes], labels: Mapping[Run, str]) -> Iterator[str]:
    for loader in ("fast", "classic"):
        rows = [one for one in found if one.run.loader == loader]
        if rows:
            worst = max(rows, key=lambda one: one.data / one.step)
            yield (
                f"With the {loader} loader a step waits for data for at most {percent(worst.data / worst.step)} of its time "
                f"({labels[worst.run]})."
            )


def _slowed(found: Sequence[Causes], labels: Mapping[Run, str]) -> Iterator[str]:
    fast = {_alike(one.run): one for one in found if one.run.loader == "fast"}
    for one in found:
        twin = fast.get(_alike(one.run))
        if one.run.loader == "classic" and twin is not None:
            yield (
                f"At {labels[one.run]}, a step takes {rounded(one.step / twin.step)} times that of the fast loader, and waits for data "
                f"for {percent(one.data / one.step)} of it; what its processes compute on the ranks' cores slows the rest."
            )


def _alike(run: Run) -> str:
    return run.model_copy(update={"loader": "fast", "loader_workers": 0}).id
