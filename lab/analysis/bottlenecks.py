"""What limits a configuration, and what to change first, as far as the numbers support it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lab.analysis.laws import karp_flatt
from lab.analysis.repeats import median, trained
from lab.analysis.scaling import FEWEST_REPEATS
from lab.analysis.scaling_curves import curves, ranks, with_interval
from lab.config.labels import distinct_labels
from lab.config.run import Run
from lab.formatting import NOT_MEASURED, format_seconds, percent, rounded
from lab.perfmodel.collectives import efficiency_with_overlap, efficiency_without_overlap
from lab.records.store import Record

SHARE = 0.05  # of the step: a part below it limits nothing that is worth a change
# Parts of a step that do not train, by column of a summary: their name and what to change first.
PARTS = {
    "transfer_time": (
        "moving gradients",
        "a faster link, fewer bytes (bf16 compression, gradient accumulation) "
        "or more work per rank",
    ),
    "straggler_time": (
        "waiting for the slowest rank",
        "equal ranks: cores of their own, equal batches, no other load",
    ),
    "data_time": (
        "waiting for data",
        "data that is ready before the step: more loader processes within the cores, "
        "or a memory map",
    ),
    "optimizer_time": (
        "the optimizer",
        "a fused or sharded optimizer, or a larger batch for each step of it",
    ),
    "other_time": (
        "the host between the phases",
        "a larger batch per rank, or compile: the step is bound by launches",
    ),
    "h2d_time": (
        "moving the batch to the device",
        "pinned memory and a copy that overlaps with compute",
    ),
}


def limits(summary: pd.DataFrame) -> list[str]:
    """What takes the time that compute does not, on the most ranks of each curve."""
    return [sentence for label, points in curves(summary) for sentence in _limits(label, points)]


def _limits(label: str, points: pd.DataFrame) -> Iterator[str]:
    row = points.to_dict("records")[-1]
    where = f"At {label} on {ranks(row['device'], row['world_size'])}"
    costs = {column: row[column] for column in PARTS if pd.notna(row[column])}
    largest = max(costs, key=lambda column: costs[column], default="")
    if costs and costs[largest] > SHARE * row["step_time"]:
        name, remedy = PARTS[largest]
        time = format_seconds(*with_interval(row, largest))
        share = percent(costs[largest] / row["step_time"])
        yield f"{where}, {name} takes {time} of a step ({share}); first to change: {remedy}."
    elif row["world_size"] > 1 and row["exposed_communication_time"] < SHARE * row["step_time"]:
        less = f"every other part takes less than {100 * SHARE:.0f} % of it"
        yield f"{where}, compute limits the step: {less}."
    if row["world_size"] > 1 and row["communication_time"] > 0:
        yield f"{where}, {_compute_to_communication(row)}."
    if (fraction := _serial_fraction(row, points)) is not None:
        yield f"{where}, Karp and Flatt's serial fraction is {fraction}."


def _compute_to_communication(row: Mapping[Any, Any]) -> str:
    r = row["compute_time"] / row["communication_time"]
    measured = ""
    if pd.notna(row["efficiency"]) and row["baseline_run_id"] != row["run_id"]:
        measured = f"; measured: {percent(*with_interval(row, 'efficiency'))}"
    return (
        f"R = T_compute / T_communication is {rounded(r)}: "
        f"efficiency {percent(efficiency_without_overlap(r))} without overlap, "
        f"{percent(efficiency_with_overlap(r))} with all of the backward pass to hide behind"
        f"{measured}"
    )


def _serial_fraction(row: Mapping[Any, Any], points: pd.DataFrame) -> str | None:
    """By Karp and Flatt, with the ends of the speedup; outside 1 to N a speedup has none."""
    base = points[points["run_id"] == row["baseline_run_id"]]
    own = base.empty or row["run_id"] == row["baseline_run_id"]
    if row["scaling"] != "strong" or own or row["repeats"] < FEWEST_REPEATS:
        return None
    n = row["world_size"] / base["world_size"].iloc[0]
    speedup, low, high = with_interval(row, "speedup")
    if not 1 <= low <= high <= n:
        return None
    return percent(*(karp_flatt(value, n) for value in (speedup, high, low)))


class Causes(NamedTuple):
    """What takes a run's step besides compute: s by cause, None where not known."""

    run: Run
    step: float
    seconds: dict[str, float | None]

    @property
    def largest(self) -> str:
        """The cause that takes most of the step; compute where each takes less than SHARE of it."""
        known = {cause: time for cause, time in self.seconds.items() if time is not None}
        most = max(known, key=lambda cause: known[cause])
        return most if known[most] > SHARE * self.step else "compute"

    @property
    def data_share(self) -> float:
        """How much of the step waits for data."""
        return (self.seconds["waiting for data"] or 0.0) / self.step


def causes(runs: Sequence[Run], records: Sequence[Record]) -> list[Causes]:
    """The causes of each completed training run, medians over repeats.

    Launches are what forward, backward and the host between them take at no samples at all: the
    intercept of a line through their times over the batch, on one rank with the fast loader.
    """
    done = {run: repeats for run, repeats in trained(runs, records).items() if repeats}
    times: dict[tuple[object, ...], dict[int, float]] = {}
    for run, repeats in done.items():
        if run.world_size == 1 and run.loader == "fast":
            work = sum(_phase(repeats, name) for name in ("h2d", "forward", "backward", "other"))
            times.setdefault(_kind(run), {})[run.micro_batch_size] = work / run.grad_accum
    return [
        Causes(
            run=run,
            step=median(repeats, "timing.step.median") or 0.0,
            seconds={
                "waiting for data": _phase(repeats, "data"),
                "waiting for ranks": median(repeats, "communication.straggler.median"),
                "transfer": median(repeats, "communication.transfer.median"),
                "launches": _intercept(times.get(_kind(run), {})),
                "optimizer": _phase(repeats, "optimizer"),
            },
        )
        for run, repeats in done.items()
    ]


def _phase(repeats: Sequence[Record], name: str) -> float:
    return median(repeats, f"timing.phases.{name}.median") or 0.0


def _kind(run: Run) -> tuple[object, ...]:
    return run.model, run.data, run.precision, run.compile, run.needs_device


def _intercept(times: Mapping[int, float]) -> float | None:
    """Of a line through times over batches, at least 0; None from fewer than two batches."""
    if len(times) < 2:
        return None
    return max(float(np.polyfit(list(times), list(times.values()), 1)[1]), 0.0)


def cause_rows(rows: Sequence[Causes]) -> list[dict[str, str]]:
    """One row of text per run: each cause with its share of the step, and the largest."""
    labels, _ = distinct_labels([row.run for row in rows])
    return [
        {"configuration": labels[row.run], "step": format_seconds(row.step)}
        | {cause: _with_share(time, row) for cause, time in row.seconds.items()}
        | {"largest": row.largest}
        for row in rows
    ]


def _with_share(seconds: float | None, row: Causes) -> str:
    if seconds is None:
        return "none" if row.run.world_size == 1 else NOT_MEASURED
    return f"{format_seconds(seconds)} ({100 * seconds / row.step:.1f} %)" if seconds else "0"


def cause_sentences(rows: Sequence[Causes]) -> list[str]:
    """How long a step waits for data with each loader, and what the classic one costs."""
    labels, _ = distinct_labels([row.run for row in rows])
    return [*_data_waits(rows, labels), *_slowdowns(rows, labels)]


def _data_waits(rows: Sequence[Causes], labels: Mapping[Run, str]) -> Iterator[str]:
    for loader in ("fast", "classic"):
        shares = {row.run: row.data_share for row in rows if row.run.loader == loader}
        if shares:
            worst = max(shares, key=lambda run: shares[run])
            yield (
                f"With the {loader} loader a step waits for data for at most "
                f"{percent(shares[worst])} of its time ({labels[worst]})."
            )


def _slowdowns(rows: Sequence[Causes], labels: Mapping[Run, str]) -> Iterator[str]:
    fast = {_with_fast_loader(row.run): row.step for row in rows if row.run.loader == "fast"}
    for row in rows:
        step = fast.get(_with_fast_loader(row.run))
        if row.run.loader == "classic" and step is not None:
            yield (
                f"At {labels[row.run]}, a step takes {rounded(row.step / step)} times that of the "
                f"fast loader, and waits for data for {percent(row.data_share)} of it; "
                "what its processes compute on the ranks' cores slows the rest."
            )


def _with_fast_loader(run: Run) -> str:
    return run.model_copy(update={"loader": "fast", "loader_workers": 0}).id
