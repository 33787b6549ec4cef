"""What quantization trades: latency against throughput, size against perplexity; and the ladder of stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator

from lab.analysis.inference import GENERATION, Measurement, by_run, measurements, place
from lab.analysis.stages import STAGES, Stage
from lab.figures.labels import Label
from lab.figures.labels import place as place_labels
from lab.figures.style import COLORS, IDEAL, ink, line_looks, plain_log
from lab.formatting import format_seconds, rounded
from lab.records.store import Record


def latency_throughput(ax: Axes, records: Sequence[Record]) -> bool:
    """Time between tokens against tokens/s, a line over the batch sizes of each model; whether there is anything."""
    lines = _lines(records)
    labels = []
    for (name, points), (color, marker) in zip(lines.items(), line_looks(len(lines)), strict=True):
        milliseconds, rates = zip(
            *((1e3 * seconds, rate) for _, seconds, rate in points), strict=True
        )
        ax.plot(rates, milliseconds, color=color, marker=marker, label=name)
        labels.append(
            Label(rates[-1], milliseconds[-1], f"{name}, batch {points[-1][0]}", ink(color))
        )
    if not lines:
        return False
    ax.set_xscale("log")
    ax.set_yscale("log")
    plain_log(ax.xaxis)
    plain_log(ax.yaxis)
    ax.set(xlabel="throughput in decoding (tokens/s)", ylabel="median time between tokens (ms)")
    place_labels(ax, labels)
    return True


def _lines(records: Sequence[Record]) -> dict[str, list[tuple[int, float, float]]]:
    """By model and place: batch size, seconds between tokens, tokens/s, at the longest prompt."""
    rows = measurements(records, GENERATION)
    longest = max((row.points[0].prompt_tokens for row in rows), default=0)
    places = {place(row.record) for row in rows}
    lines: dict[str, list[tuple[int, float, float]]] = {}
    for row in (row for row in rows if row.points[0].prompt_tokens == longest):
        model = "base" if row.results.quantization == "none" else "quantized"
        name: str = "fp32" if model == "base" else row.results.quantization
        if len(places) > 1:
            name = f"{name}, {place(row.record)}"
        lines.setdefault(name, []).append(_point(row, model))
    return {name: sorted(points) for name, points in lines.items()}


def _point(row: Measurement, model: str) -> tuple[int, float, float]:
    rate = row.median(f"{model}.decode_tokens_per_second")
    return row.points[0].batch_size, row.median(f"{model}.p50"), rate


def latency_throughput_alt(records: Sequence[Record]) -> str:
    """The same in one sentence."""
    parts = [
        f"{name}, {format_seconds(points[-1][1])} and {rounded(points[-1][2])} tokens/s at batch {points[-1][0]}"
        for name, points in _lines(records).items()
    ]
    return (
        f"Time between tokens against throughput: {'; '.join(parts)}."
        if parts
        else "An empty figure: nothing was timed."
    )


def size_perplexity(ax: Axes, records: Sequence[Record]) -> bool:
    """Perplexity against MB in memory, with the line of models that none beats in both; whether there is anything."""
    points = _sizes(records)
    if not points:
        return False
    for (name, (size, perplexity)), (color, marker) in zip(
        points.items(), line_looks(len(points)), strict=True
    ):
        ax.plot([size], [perplexity], color=color, marker=marker, linestyle="None", label=name)
    best = pareto(list(points.values()))
    ax.plot(
        *zip(*best, strict=True),
        color=IDEAL,
        linestyle=(0, (4, 3)),
        linewidth=1.0,
        drawstyle="steps-post",
        zorder=1,
    )
    ax.set(xlabel="weights in memory (MB)", ylabel="perplexity on held-out text")
    ax.set_xlim(left=0)
    ax.ticklabel_format(axis="y", useOffset=False)
    colors = [ink(color) for color, _ in line_looks(len(points))]
    place_labels(
        ax,
        [
            Label(x, y, name, color)
            for (name, (x, y)), color in zip(points.items(), colors, strict=True)
        ],
    )
    return True


def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other one beats or equals in both numbers, by the first."""
    best: list[tuple[float, float]] = []
    for point in sorted(set(points)):
        if not best or point[1] < best[-1][1]:
            best.append(point)
    return best


def _sizes(records: Sequence[Record]) -> dict[str, tuple[float, float]]:
    points: dict[str, tuple[float, float]] = {}
    for repeats in by_run(records):
        found = repeats[0].inference
        if found is not None and found.size is not None and found.perplexity is not None:
            name = "fp32" if found.quantization == "none" else found.quantization
            points[name] = found.size.memory / 1e6, found.perplexity
    return points


def size_perplexity_alt(records: Sequence[Record]) -> str:
    """The same in one sentence."""
    parts = [
        f"{name}, {size:.2f} MB and {rounded(perplexity)}"
        for name, (size, perplexity) in _sizes(records).items()
    ]
    return (
        f"Perplexity against size: {'; '.join(parts)}."
        if parts
        else "An empty figure: nothing was measured."
    )


def stage_ratios(ax: Axes, found: Sequence[Stage]) -> None:
    """Speedups over serial by stage, measured and published, training and inference; what was not run is named so."""
    kinds = [(task, source) for task in ("train", "inference") for source in ("here", "published")]
    width = 0.8 / len(kinds)
    for number, (task, source) in enumerate(kinds):
        color = COLORS[0] if task == "train" else COLORS[1]
        for x, stage in enumerate(_in_order(found, task)):
            here = stage.speedup.value if stage.speedup else np.nan
            value = here if source == "here" else stage.published
            left = x - 0.4 + (number + 0.5) * width
            look: dict[str, Any] = (
                {"color": color} if source == "here" else {"facecolor": "none", "edgecolor": color}
            )
            label = (
                f"{'training' if task == 'train' else 'inference'}, {source}" if x == 0 else None
            )
            ax.bar(left, value, width=0.9 * width, label=label, **look)
            text = "not run" if np.isnan(value) else f"{value:.3g}×"
            ax.annotate(
                text,
                (left, 1.0 if np.isnan(value) else value),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=7,
                rotation=90,
            )
    ax.set_yscale("log")
    plain_log(ax.yaxis)
    ax.set_ylim(0.5, 300)
    ax.xaxis.set_major_locator(FixedLocator(range(len(STAGES))))
    ax.xaxis.set_major_formatter(FixedFormatter(list(STAGES)))
    ax.set(ylabel="speedup over serial")
    ax.legend(frameon=False, loc="upper left", fontsize=8)


def _in_order(found: Sequence[Stage], task: str) -> list[Stage]:
    return [stage for name in STAGES for stage in found if (stage.name, stage.task) == (name, task)]


def stage_ratios_alt(found: Sequence[Stage]) -> str:
    """The same in one sentence."""
    parts = [
        f"{stage.task} on {stage.name} {rounded(stage.speedup.value) if stage.speedup else 'not run'} (published {rounded(stage.published)})"
        for stage in found
    ]
    return f"Speedup over serial by stage: {'; '.join(parts)}."
