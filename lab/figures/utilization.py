"""How much of a device's peak is used, by the size of the batch that it computes at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from lab.analysis.configurations import miscompiled
from lab.analysis.results import StudyResults
from lab.config.run import Run, distinct_labels
from lab.figures.figure import empty_unless, figure, listing
from lab.figures.labels import Label, place
from lab.figures.style import COLORS, MARKERS, ink, log2_x
from lab.formatting import percent
from lab.records.table import median

__all__ = ["mfu_by_batch"]

ONE_BATCH = "no configuration was measured with two micro-batches"
UNCOMPILED = (0, (4, 2))


class _Curve(NamedTuple):
    """MFU by micro-batch of runs that are otherwise equal."""

    name: str
    run: Run  # one of them
    points: list[tuple[int, float]]  # micro-batch in samples, and MFU


def _curves(results: StudyResults) -> list[_Curve]:
    """All curves, without runs that learned something else once compiled."""
    records = [one for one in results.records if one.completed and one.timing]
    runs = {one.run.id: one.run for one in records if one.run.task == "train"}
    wrong = {run.id for run in miscompiled(runs.values(), records)}
    points: dict[Run, list[tuple[int, float]]] = defaultdict(list)
    for run_id, run in runs.items():
        mfu = median([one for one in records if one.run.id == run_id], "timing.mfu")
        if run.micro_batch_size and mfu is not None and run_id not in wrong:
            alike = run.model_copy(update={"micro_batch_size": 1, "global_batch_size": None})
            points[alike].append((run.micro_batch_size, mfu))
    labels, common = distinct_labels(list(points))
    return [_Curve(labels[run] or common, run, sorted(known)) for run, known in points.items()]


_missing = empty_unless(
    lambda results: any(len(curve.points) > 1 for curve in _curves(results)), ONE_BATCH
)


def _ends(results: StudyResults) -> Iterator[str]:
    for name, _, points in _curves(results):
        ends = dict.fromkeys((points[0], points[-1]))
        yield f"{name}, " + " and ".join(f"{percent(y)} at {x}" for x, y in ends)


def _see(results: StudyResults) -> str:
    compiled = {curve.run.compile for curve in _curves(results)}
    return "Dashed: not compiled." if len(compiled) > 1 else ""


@figure(describe=listing("MFU by micro-batch", _ends), missing=_missing, see=_see)
def mfu_by_batch(ax: Axes, results: StudyResults) -> None:
    """Share of the peak that training uses (MFU), by micro-batch: medians over repeats."""
    curves = _curves(results)
    models = list(dict.fromkeys(str(curve.run.model) for curve in curves))
    dashed = len({curve.run.compile for curve in curves}) > 1
    labels = []
    for name, run, points in curves:
        nth = models.index(str(run.model))
        color, marker = COLORS[nth % len(COLORS)], MARKERS[nth % len(MARKERS)]
        sizes, shares = np.array(points).T
        line = UNCOMPILED if dashed and not run.compile else "-"
        ax.plot(sizes, 100 * shares, color=color, marker=marker, linestyle=line)
        text = f"{name}: {percent(shares[-1])}"
        labels.append(Label(sizes[-1], 100 * shares[-1], text, ink(color)))
    ticks = sorted({size for curve in curves for size, _ in curve.points})
    log2_x(ax, ticks, [str(size) for size in ticks])
    ax.set(xlabel="micro-batch (samples)", ylabel="MFU (%)")
    ax.margins(y=0.12)
    place(ax, labels)
