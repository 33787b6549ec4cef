"""How much of a device's peak is used, by the size of the batch that it computes at once."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from lab.analysis.configurations import miscompiled
from lab.config.run import Run, distinct_labels
from lab.figures.data import StudyResults
from lab.figures.figure import figure, no_runs
from lab.figures.labels import Label, place
from lab.figures.style import COLORS, MARKERS, ink
from lab.formatting import percent
from lab.records.table import median

__all__ = ["mfu_by_batch"]

ONE_BATCH = "no configuration was measured with two micro-batches"
UNCOMPILED = (0, (4, 2))
Points = list[tuple[int, float]]


def _curves(results: StudyResults) -> dict[Run, Points]:
    """MFU by micro-batch of otherwise equal runs, by one of these; wrongly compiled ones not."""
    records = [one for one in results.records if one.completed and one.timing]
    runs = {one.run.id: one.run for one in records if one.run.task == "train"}
    wrong = {run.id for run in miscompiled(runs.values(), records)}
    points: dict[Run, Points] = defaultdict(list)
    for run_id, run in runs.items():
        mfu = median([one for one in records if one.run.id == run_id], "timing.mfu")
        if run.micro_batch_size and mfu is not None and run_id not in wrong:
            alike = run.model_copy(update={"micro_batch_size": 1, "global_batch_size": None})
            points[alike].append((run.micro_batch_size, mfu))
    return {run: sorted(known) for run, known in points.items()}


def _missing(results: StudyResults) -> str:
    if reason := no_runs(results):
        return reason
    return "" if any(len(known) > 1 for known in _curves(results).values()) else ONE_BATCH


def _names(results: StudyResults) -> dict[Run, str]:
    labels, common = distinct_labels(list(_curves(results)))
    return {run: label or common for run, label in labels.items()}


def _describe(results: StudyResults) -> str:
    names = _names(results)
    ends = (
        f"{names[run]}, "
        + " and ".join(f"{percent(mfu)} at {size}" for size, mfu in [*known[:1], *known[1:][-1:]])
        for run, known in _curves(results).items()
    )
    return f"MFU by micro-batch: {'; '.join(ends)}."


def _see(results: StudyResults) -> str:
    compiled = {run.compile for run in _curves(results)}
    return "Dashed: not compiled." if len(compiled) > 1 else ""


@figure(describe=_describe, missing=_missing, see=_see)
def mfu_by_batch(ax: Axes, results: StudyResults) -> None:
    """Share of the peak that training uses (MFU), by micro-batch: medians over repeats."""
    drawn, names = _curves(results), _names(results)
    models = list(dict.fromkeys(str(run.model) for run in drawn))
    dashed = len({run.compile for run in drawn}) > 1
    labels = []
    for run, known in drawn.items():
        nth = models.index(str(run.model))
        color, marker = COLORS[nth % len(COLORS)], MARKERS[nth % len(MARKERS)]
        sizes, shares = np.array(known).T
        line = UNCOMPILED if dashed and not run.compile else "-"
        ax.plot(sizes, 100 * shares, color=color, marker=marker, linestyle=line)
        text = f"{names[run]}: {percent(shares[-1])}"
        labels.append(Label(sizes[-1], 100 * shares[-1], text, ink(color)))
    sizes = sorted({size for known in drawn.values() for size, _ in known})
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(sizes))
    ax.xaxis.set_major_formatter(FixedFormatter([str(size) for size in sizes]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set(xlabel="micro-batch (samples)", ylabel="MFU (%)")
    ax.margins(y=0.12)
    place(ax, labels)
