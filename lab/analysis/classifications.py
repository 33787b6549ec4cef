"""What inference records of classifiers say: quantized against base, over repeats, as rows and as sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lab.analysis.inferences import Estimate, by_run, inference_of, output_cells, over, place, size_cells
from lab.analysis.rounding import format_seconds, percent, rounded
from lab.records import ClassificationPoint, Inference, Record


class Classified(NamedTuple):
    """The repeats of one configuration that measured one batch size."""

    record: Record
    batch_size: int
    points: list[ClassificationPoint]

    @property
    def ratio(self) -> Estimate:
        """Time for a batch, quantized over base; below 1 is faster."""
        return over([point.ratio for point in self.points])

    def rate(self, which: str) -> float:
        """Samples/s, `samples_per_second` or `base_samples_per_second`, the median over repeats."""
        return float(np.median([getattr(point, which) for point in self.points]))

    @property
    def told(self) -> str:
        """What it is, for people."""
        return f"{self.record.run.quantization} on {place(self.record)}, batch {self.batch_size}"


def classified(records: Sequence[Record]) -> list[Classified]:
    """Every configuration at every batch size that was timed."""
    found = []
    for repeats in by_run(records):
        for number, point in enumerate(inference_of(repeats[0]).classifications):
            points = [
                inference_of(record).classifications[number]
                for record in repeats
                if len(inference_of(record).classifications) > number
            ]
            found.append(Classified(repeats[0], point.batch_size, points))
    return found


def speed_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Times and their ratios, quantized over base, a row per configuration and batch size."""
    return [
        {
            "quantization": row.record.run.quantization,
            "on": place(row.record),
            "batch": row.batch_size,
            "time of a batch, over base": rounded(*row.ratio),
            "time of a batch": format_seconds(*over([point.quantized for point in row.points])),
            "base time": format_seconds(*over([point.base for point in row.points])),
            "samples/s": f"{row.rate('samples_per_second'):.0f}",
            "base samples/s": f"{row.rate('base_samples_per_second'):.0f}",
        }
        for row in classified(records)
    ]


def quality_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Sizes, accuracy and agreement, a row per quantization: they do not depend on the number of ranks."""
    rows: dict[str, dict[str, Any]] = {}
    for repeats in by_run(records):
        found = inference_of(repeats[0])
        if found.unavailable or found.size is None or found.accuracy_change is None or found.same_classes is None:
            continue
        rows[found.quantization] = {
            **size_cells(repeats),
            "accuracy": percent(found.accuracy),
            "base accuracy": percent(found.base_accuracy),
            "change (points)": _points(found),
            "same class": percent(found.same_classes.value, found.same_classes.low, found.same_classes.high),
            "samples": found.held_out_samples,
            **output_cells(found),
        }
    return list(rows.values())


def _points(found: Inference) -> str:
    """The change of accuracy in percentage points."""
    change = found.accuracy_change
    assert change is not None
    return rounded(*(None if part is None else 100 * part for part in (change.value, change.low, change.high)))


def sentences(records: Sequence[Record]) -> list[str]:
    """What quantization gains or costs a classifier, claimed where the interval says so."""
    rows = [row for row in classified(records) if row.record.run.quantization != "none"]
    costs = {row.record.run.quantization: _cost(inference_of(row.record)) for row in rows}
    return [*map(_speed, rows), *costs.values()]


def _speed(row: Classified) -> str:
    ratio = row.ratio
    told = f"{rounded(*ratio)} of the base's time for a batch"
    if ratio.low is None or ratio.high is None or ratio.low <= 1 <= ratio.high:
        return f"{row.told}: {told}: no difference is shown."
    if ratio.value < 1:
        return f"{row.told}: faster, {told}."
    found = inference_of(row.record)
    return f"{row.told}: slower, {told}. It ran {found.method}, on {found.arithmetic or 'unknown arithmetic'}."


def _cost(found: Inference) -> str:
    change = found.accuracy_change
    assert change is not None
    told = f"{found.quantization}: accuracy {percent(found.accuracy)}, the base's {percent(found.base_accuracy)}"
    if change.low is None or change.high is None or change.low <= 0 <= change.high:
        return f"{told}: no difference is shown on {found.held_out_samples} samples."
    return f"{told}: {'lower' if change.value < 0 else 'higher'}, a change of {_points(found)} points."


def best(records: Sequence[Record]) -> list[str]:
    """The fastest and the smallest quantized classifier, a sentence each."""
    found = [row for row in classified(records) if row.record.run.quantization != "none"]
    if not found:
        return []
    faster = [row for row in found if (row.ratio.high or 1.0) < 1.0]
    told = ["No quantization is shown to classify faster than the fp32 base here."]
    if faster:
        fastest = min(faster, key=lambda row: row.ratio.value)
        told = [f"{fastest.told}, gains the most time: {rounded(*fastest.ratio)} of the fp32 base's time for a batch."]
    smallest = min((inference_of(row.record) for row in found), key=_memory_share)
    told.append(
        f"The smallest is {smallest.quantization}, with {percent(_memory_share(smallest))} of the base's bytes and an accuracy of "
        f"{percent(smallest.accuracy)}, the base's is {percent(smallest.base_accuracy)}."
    )
    return told


def _memory_share(found: Inference) -> float:
    return found.size.memory / found.base_size.memory if found.size else 1.0
