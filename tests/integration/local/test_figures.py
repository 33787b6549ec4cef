"""No text of a figure lies upon another one, and nothing is cut off at its edge."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import pytest

mpl.use("Agg")
import matplotlib.pyplot as plt
from factories import record, repeats, run, traced
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from lab import figures
from lab.config.study import Study
from lab.figures import StudyResults, curves, style
from lab.figures.style import SIZE
from lab.perfmodel.calibration import read_calibration

KEPT = Path(__file__).parents[2] / "fixtures" / "old_records" / "reports"


def texts(sheet: Figure) -> Iterator[Text]:
    """Every text that is seen: labels, ticks, titles, legends."""
    for ax in sheet.axes:
        yield from ax.texts
        yield from (ax.title, ax._left_title, ax._right_title)
        if ax.axison:
            yield from _axes_texts(ax)
        if legend := ax.get_legend():
            yield from legend.get_texts()
    for legend in sheet.legends:
        yield from legend.get_texts()


def _axes_texts(ax: Axes) -> Iterator[Text]:
    for axis, (low, high) in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
        yield axis.label
        ends = min(low, high), max(low, high)
        for tick in axis.get_major_ticks():
            if ends[0] <= tick.get_loc() <= ends[1]:
                yield tick.label1


def faults(sheet: Figure) -> list[str]:
    sheet.draw_without_rendering()
    visible_texts = [
        text for text in texts(sheet) if text.get_visible() and text.get_text().strip()
    ]
    boxes = [(text.get_text(), text.get_window_extent()) for text in visible_texts]
    frame = sheet.bbox.padded(1)
    cut = [
        f"cut: {text}"
        for text, box in boxes
        if box.x0 < frame.x0 or box.x1 > frame.x1 or box.y0 < frame.y0 or box.y1 > frame.y1
    ]
    legends = [*sheet.legends, *filter(None, (ax.get_legend() for ax in sheet.axes))]
    outside = [(text, box) for text, (_, box) in zip(visible_texts, boxes, strict=True)]
    close = [
        f"{text.get_text()!r} upon a legend"
        for legend in legends
        for text, box in outside
        if text not in legend.get_texts() and legend.get_window_extent().overlaps(box)
    ]
    close += [f"{first!r} touches {second!r}" for first, second in _touching_ticks(sheet)]
    return (
        close
        + cut
        + [
            f"{first!r} upon {second!r}"
            for (first, one), (second, other) in itertools.combinations(boxes, 2)
            if one.padded(-0.75).overlaps(other.padded(-0.75))
        ]
    )


def _touching_ticks(sheet: Figure) -> Iterator[tuple[str, str]]:
    """Names of neighbouring ticks below an axis with less than half a letter between them."""
    for ax in (ax for ax in sheet.axes if ax.axison):
        ends = sorted(ax.get_xlim())
        ticks = (
            tick for tick in ax.xaxis.get_major_ticks() if ends[0] <= tick.get_loc() <= ends[1]
        )
        labels = [tick.label1 for tick in ticks if tick.label1.get_text()]
        for one, other in itertools.pairwise(labels):
            if one.get_window_extent().padded(3).overlaps(other.get_window_extent()):
                yield one.get_text(), other.get_text()


STRATEGIES = ("ddp", "fsdp", "naive_ddp", "zero1", "tensor_parallel", "pipeline_parallel")
MADE = {
    "one curve": [
        one for n in (1, 2, 4, 8) for one in repeats(run(n), [0.2 / n, 0.21 / n, 0.22 / n])
    ],
    "curves that end together": [
        record(
            run(n, batch), step_time=batch / n * (1 + 0.001 * batch / 64), communication=(0.1, 0.05)
        )
        for n in (1, 2, 4)
        for batch in (64, 128, 256, 512)
    ],
    "categories": [
        record(run(2, strategy=name), step_time=0.1 + 0.01 * nth)
        for nth, name in enumerate(STRATEGIES)
    ],
    "more curves than colours": [
        record(run(n, batch, precision=precision), step_time=batch / n**0.9)
        for n in (1, 2)
        for batch in (64, 128, 256, 512, 1024)
        for precision in ("fp32", "bf16")
    ],
    "many world sizes": [record(run(2**n, 4096), step_time=1 / 2**n) for n in range(11)],
    "one configuration": [record(run(1))],
    "one traced step": [traced(record(run(2)))],
    "traced steps": [
        traced(record(run(1, activation_checkpointing=again), step_time=0.1))
        for again in (False, True)
    ],
}


@functools.cache
def results_of(source: str) -> StudyResults:
    """The results of made-up or kept records, whose summary all figures share, as in a report."""
    return StudyResults(MADE[source] if source in MADE else Study.load(KEPT / source))


@pytest.mark.parametrize("name", figures.FIGURES)
@pytest.mark.parametrize("kind", MADE)
def test_figures_of_made_up_records(kind: str, name: str) -> None:
    results = results_of(kind)
    drawing = figures.FIGURES[name]
    if not drawing.missing(results):
        assert faults(drawing(results).figure) == []


@pytest.mark.parametrize("name", figures.FIGURES)
@pytest.mark.parametrize("study", sorted(path.name for path in KEPT.iterdir()))
def test_figures_of_kept_records(study: str, name: str) -> None:
    results = results_of(study)
    drawing = figures.FIGURES[name]
    if not drawing.missing(results):
        assert faults(drawing(results).figure) == []


def test_times_of_collectives_of_the_kept_calibration() -> None:
    kept = Path(__file__).parents[3] / "reports/quickstart/kept/slurm/calibration/local.json"
    calibration = read_calibration(kept)
    assert calibration
    with style():
        sheet = plt.figure(figsize=(SIZE[0], curves.LINKS_HEIGHT), layout="constrained")
        curves.links(sheet.subplots(), calibration)
        assert faults(sheet) == []


def test_a_collision_and_a_cut_text_would_be_found() -> None:
    sheet, ax = plt.subplots()
    ax.text(0.5, 0.5, "one")
    ax.text(0.5, 0.5, "two")
    ax.text(1.1, 0.5, "x" * 80)
    ax.plot([0, 1], label="curve")
    ax.legend(loc="upper left")
    ax.text(0, 0.99, "three", va="top")
    ax.set_xticks([0.5, 0.51])
    sheet_faults = faults(sheet)
    assert "'three' upon a legend" in sheet_faults and "'0.50' touches '0.51'" in sheet_faults
    assert "'one' upon 'two'" in sheet_faults and f"cut: {'x' * 80}" in sheet_faults
