"""What limits a configuration, and what to change first; sentences only where the numbers support them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lab.analysis.laws import karp_flatt
from lab.analysis.scaling_curves import curves, link, median, phase, ranks, step, trained
from lab.config.labels import distinct_labels
from lab.config.run import Run
from lab.formatting import format_seconds, percent, rounded
from lab.perfmodel.collectives import efficiency_with_overlap, efficiency_without_overlap
from lab.records.store import Record

# A part of the step below this share limits nothing that is worth a change.
SHARE = 0.05
FEWEST_REPEATS = 3


class Part(NamedTuple):
    """A part of a step that does not train: what it is called, its column, and what to change first."""

    name: str
    column: str
    remedy: str


PARTS = (
    Part(
        "moving gradients",
        "transfer_time",
        "a faster link, fewer bytes (bf16 compression, gradient accumulation) or more work per rank",
    ),
    Part(
        "waiting for the slowest rank",
        "straggler_time",
        "equal ranks: cores of their own, equal batches, no other load",
    ),
    Part(
        "waiting for data",
        "data_time",
        "data that is ready before the step: more loader processes within the cores, or a memory map",
    ),
    Part(
        "the optimizer",
        "optimizer_time",
        "a fused or sharded optimizer, or a larger batch for each step of it",
    ),
    Part(
        "the host between the phases",
        "other_time",
        "a larger batch per rank, or compile: the step is bound by launches",
    ),
    Part(
        "moving the batch to the device",
        "h2d_time",
        "pinned memory and a copy that overlaps with compute",
    ),
)


def limits(summary: pd.DataFrame) -> list[str]:
    """One sentence for each configuration on the most ranks of its line: what takes the time that compute does not."""
    return [sentence for label, points in curves(summary) for sentence in _line(label, points)]


def _line(label: str, points: pd.DataFrame) -> Iterator[str]:
    row = points.to_dict("records")[-1]
    where = f"At {label} on {ranks(row['device'], row['world_size'])}"
    costs = sorted(
        ((row[part.column], part) for part in PARTS if pd.notna(row.get(part.column))),
        key=lambda cost: -cost[0],
    )
    if costs and costs[0][0] > SHARE * row["step_time"]:
        cost, part = costs[0]
        share = percent(cost / row["step_time"])
        spread = _spread(row, part.column)
        yield f"{where}, {part.name} takes {format_seconds(cost, *spread)} of a step ({share}); first to change: {part.remedy}."
    elif row["world_size"] > 1 and row["exposed_communication_time"] < SHARE * row["step_time"]:
        yield f"{where}, compute limits the step: every other part takes less than {100 * SHARE:.0f} % of it."
    yield from _ratio(where, row)
    yield from _karp_flatt(where, points)


def _spread(row: Mapping[Any, Any], column: str) -> tuple[float | None, float | None]:
    low, high = row.get(f"{column}_low"), row.get(f"{column}_high")
    return (low, high) if pd.notna(low) and pd.notna(high) else (None, None)


def _ratio(where: str, row: Mapping[Any, Any]) -> Iterator[str]:
    """The ratio of compute to communication, and what the closed forms make of it."""
    communication = row["communication_time"]
    if not row["world_size"] > 1 or pd.isna(communication) or communication <= 0:
        return
    r = row["compute_time"] / communication
    least, most = efficiency_without_overlap(r), efficiency_with_overlap(r)
    measured = ""
    if pd.notna(row["efficiency"]) and row["baseline_run_id"] != row["run_id"]:
        measured = f"; measured: {percent(row['efficiency'], row['efficiency_low'], row['efficiency_high'])}"
    yield (
        f"{where}, R = T_compute / T_communication is {rounded(r)}: efficiency {percent(least)} without overlap, "
        f"{percent(most)} with all of the backward pass to hide behind{measured}."
    )


def _karp_flatt(where: str, points: pd.DataFrame) -> Iterator[str]:
    """Karp and Flatt's serial fraction of the largest configuration, with the interval that the speedup's gives."""
    row = points.to_dict("records")[-1]
    base = points[points["run_id"] == row["baseline_run_id"]]
    if (
        row["scaling"] != "strong"
        or base.empty
        or row["run_id"] == row["baseline_run_id"]
        or row["repeats"] < FEWEST_REPEATS
    ):
        return
    n = row["world_size"] / base["world_size"].iloc[0]
    if pd.isna(row["speedup_low"]) or row["speedup_high"] > n or row["speedup_low"] < 1:
        return  # outside 1 to N a speedup has no serial fraction
    low, value, high = (
        karp_flatt(row[name], n) for name in ("speedup_high", "speedup", "speedup_low")
    )
    yield f"{where}, Karp and Flatt's serial fraction is {percent(value, low, high)}."


LOSS_SHARE = 0.05  # of the step: below it a cause is none
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
        return most if known[most] > LOSS_SHARE * self.step else "compute"


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
    labels, _ = distinct_labels([one.run for one in found])
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
    labels, _ = distinct_labels([one.run for one in found])
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
