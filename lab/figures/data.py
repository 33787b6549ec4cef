"""What figures and their alternative texts are made from: the records, their summary, lines and losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lab.analysis.comparison import Comparison
from lab.analysis.scaling import summary
from lab.analysis.scaling_curves import Curve, Scaling, curves
from lab.config.replay import NOTICE
from lab.config.study import Study
from lab.figures.labels import Label
from lab.perfmodel.frozen import Frozen, scores
from lab.records.store import Record, load_records
from lab.records.table import table

Source = Study | str | Path | Sequence[Record] | Comparison


class Against(TypedDict, total=False):
    """What speedups are over, where it is not the study's: values of the baseline's fields, and the kind of scaling."""

    baseline: Mapping[str, Any]
    scaling: Scaling


class PlotData(NamedTuple):
    """Records with their summary and its lines; by run id `losses`, the median over repeats of the loss of each step, and
    what was `predicted` before the runs.

    `emulated` is what was emulated in all of them, which the names of the lines then do not repeat.
    """

    summary: pd.DataFrame
    lines: list[Curve]
    losses: dict[str, np.ndarray[Any, np.dtype[np.float64]]]
    records: Sequence[Record]
    predicted: Mapping[str, Frozen] = {}
    emulated: str = ""

    @property
    def notice(self) -> str:
        """What must stand on a figure of numbers that others published; empty where the lab measured."""
        return (
            NOTICE
            if any(record.environment and record.environment.replay for record in self.records)
            else ""
        )


def plot_data(
    source: Source, *, baseline: Mapping[str, Any] | None = None, scaling: Scaling | None = None
) -> PlotData:
    """Read records of a study (or its name or folder) with its baseline and scaling; of a list: one rank and strong.

    Of a comparison each machine has its own lines.
    """
    if isinstance(source, Comparison):
        return PlotData(source.summary, curves(source.summary), {}, source.records)
    study = (
        source
        if isinstance(source, Study)
        else Study.load(source)
        if isinstance(source, str | Path)
        else None
    )
    records = load_records(source)
    over = baseline if baseline is not None else study.baseline if study else {"world_size": 1}
    found = summary(
        table(records), baseline=over, scaling=scaling or (study.scaling if study else "strong")
    )
    kinds = set(found["emulated"])
    emulated = f"emulated {kind}" if len(kinds) == 1 and (kind := kinds.pop()) else ""
    lines = [Curve(label.removesuffix(f", {emulated}"), points) for label, points in curves(found)]
    predicted = {score.frozen.run_id: score.frozen for score in scores(study)} if study else {}
    return PlotData(found, lines, _losses(records), records, predicted, emulated)


def _losses(records: Sequence[Record]) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    found: dict[str, list[list[float]]] = {}
    for record in records:
        if record.completed and record.timing and record.quality and record.quality.loss:
            found.setdefault(record.run_id, []).append(record.quality.loss)
    return {
        run_id: np.median([loss[: min(map(len, losses))] for loss in losses], axis=0)
        for run_id, losses in found.items()
    }


def predicted_speedups(seen: PlotData, points: pd.DataFrame) -> list[dict[str, Any]]:
    """World size and predicted speedup of the points of a line that were predicted, over the measured baseline."""
    rows = [
        row
        for row in points.to_dict("records")
        if row["run_id"] in seen.predicted and pd.notna(row["speedup"])
    ]
    return [
        {
            "world_size": row["world_size"],
            "speedup": row["speedup"] * row["step_time"] / seen.predicted[row["run_id"]].step_s,
        }
        for row in rows
    ]


def draw_predictions(ax: Axes, seen: PlotData, points: pd.DataFrame, *, color: str) -> list[Label]:
    """Hollow diamonds, and the label that says what they are."""
    found = predicted_speedups(seen, points)
    if not found:
        return []
    sizes, values = zip(*((row["world_size"], row["speedup"]) for row in found), strict=True)
    ax.plot(
        sizes,
        values,
        "D",
        markersize=9,
        fillstyle="none",
        color=color,
        markeredgewidth=1.4,
        label="_predicted",
        zorder=4,
    )
    return [Label(sizes[-1], values[-1], "predicted beforehand", color)]
