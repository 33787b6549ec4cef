"""What quantization trades: latency for throughput, size for quality; and the ladder of stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from lab.analysis import inference
from lab.analysis.inference import GENERATION, Measurement, inferred, measurements
from lab.analysis.results import StudyResults
from lab.analysis.stages import STAGES, TASKS, Stage, stages
from lab.figures.figure import NO_RUNS, figure, listing
from lab.figures.labels import Label, place
from lab.figures.style import COLORS, IDEAL, fixed_ticks, ink, plain_log, styled
from lab.formatting import format_seconds, rounded
from lab.records.table import grouped

__all__ = ["latency_throughput", "size_perplexity", "stage_ratios"]

NO_INFERENCE = "no inference run has completed yet"
ONE_MODEL = "there is only one model, so sizes and quality cannot be compared"
LEAST_SPAN = 0.02  # of the perplexity's axis, so that differences of noise look like none


def _latencies(results: StudyResults) -> dict[str, list[tuple[int, float, float]]]:
    """By model and place: batch size, seconds between tokens, tokens/s, at the longest prompt.

    The base is the median over all jobs. A quantized model is placed relative to it by the ratio to
    the base of its own job, because times of two jobs are not comparable.
    """
    rows = measurements(results.records, GENERATION)
    longest = max((row.points[0].prompt_tokens for row in rows), default=0)
    rows = [row for row in rows if row.points[0].prompt_tokens == longest]
    several = len({inference.place(row.record) for row in rows}) > 1
    bases = grouped((_where(row), row.median("base.p50")) for row in rows)
    several_bases = len({row.record.run.base_precision for row in rows}) > 1
    models: dict[str, dict[int, tuple[int, float, float]]] = {}
    for row in rows:
        base, own = row.record.run.base_precision, row.results.quantization
        size, base_s = row.points[0].batch_size, float(np.median(bases[_where(row)]))
        times: dict[str, float] = {base: base_s}
        if own != "none":
            name = f"{own} of {base}" if several_bases else own
            times[name] = base_s * row.estimate("inter_token_ratio").value
        for name, seconds in times.items():
            name += f", {inference.place(row.record)}" if several else ""
            models.setdefault(name, {})[size] = (size, seconds, size / seconds)
    return {name: sorted(points.values()) for name, points in models.items()}


def _where(row: Measurement) -> tuple[str, str, int]:
    record = row.record
    return inference.place(record), record.run.base_precision, row.points[0].batch_size


def _ends_of_latencies(results: StudyResults) -> Iterator[str]:
    for name, points in _latencies(results).items():
        batch, seconds, rate = points[-1]
        yield f"{name}, {format_seconds(seconds)} and {rounded(rate)} tokens/s at batch {batch}"


@figure(
    describe=listing("Time between tokens against throughput", _ends_of_latencies),
    missing=lambda results: "" if _latencies(results) else NO_INFERENCE,
    height=lambda _: 4.0,
)
def latency_throughput(ax: Axes, results: StudyResults) -> None:
    """Time between tokens against tokens/s of base and quantized models, over batch sizes.

    The base is the median over all jobs; others lie from it by the ratio within their own job.
    """
    labels = []
    for (name, points), color, marker in styled(_latencies(results).items()):
        sizes, seconds, rates = zip(*points, strict=True)
        milliseconds = [1e3 * time for time in seconds]
        line = "-" if len(points) > 1 else "None"
        ax.plot(rates, milliseconds, color=color, marker=marker, linestyle=line, label=name)
        labels.append(Label(rates[-1], milliseconds[-1], f"{name}, batch {sizes[-1]}", ink(color)))
    ax.set(xscale="log", yscale="log", xlabel="throughput in decoding (tokens/s)")
    ax.set_ylabel("median time between tokens (ms)")
    plain_log(ax.xaxis)
    plain_log(ax.yaxis)
    place(ax, labels)


def _sizes(results: StudyResults) -> dict[str, tuple[float, float]]:
    """MB in memory and perplexity by quantization, and those of the base that was quantized."""
    points: dict[str, tuple[float, float]] = {}
    for repeats in inferred(results.records):
        measured, base = repeats[0].inference, repeats[0].run.base_precision
        if measured and measured.base_perplexity is not None:
            points.setdefault(base, (measured.base_size.memory / 1e6, measured.base_perplexity))
        if measured and measured.size is not None and measured.perplexity is not None:
            name = base if measured.quantization == "none" else measured.quantization
            points[name] = measured.size.memory / 1e6, measured.perplexity
    return points


def _sizes_in_words(results: StudyResults) -> Iterator[str]:
    for name, (size, perplexity) in _sizes(results).items():
        yield f"{name}, {size:.2f} MB and {rounded(perplexity)}"


def _no_tradeoff(results: StudyResults) -> str:
    models = _sizes(results)
    return "" if len(models) > 1 else ONE_MODEL if models else NO_INFERENCE


@figure(
    describe=listing("Perplexity against size", _sizes_in_words),
    missing=_no_tradeoff,
    height=lambda _: 4.0,
)
def size_perplexity(ax: Axes, results: StudyResults) -> None:
    """Perplexity against size in memory, with the line of models that none beats in both."""
    points = _sizes(results)
    labels = []
    for (name, (x, y)), color, marker in styled(points.items()):
        ax.plot([x], [y], color=color, marker=marker, linestyle="None", label=name)
        labels.append(Label(x, y, name, ink(color)))
    steps: dict[str, Any] = {"linestyle": (0, (4, 3)), "drawstyle": "steps-post"}
    best = pareto(list(points.values()))
    ax.plot(*zip(*best, strict=True), color=IDEAL, linewidth=1.0, zorder=1, **steps)
    ax.set(xlabel="weights in memory (MB)", ylabel="perplexity on held-out text")
    low, high = min(y for _, y in points.values()), max(y for _, y in points.values())
    margin = max(0.1 * (high - low), (LEAST_SPAN * low - (high - low)) / 2)
    ax.set(xlim=(0, None), ylim=(low - margin, high + margin))
    ax.ticklabel_format(axis="y", useOffset=False)
    place(ax, labels)


def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The Pareto-optimal points, which no other beats or equals in both numbers, by the first."""
    best: list[tuple[float, float]] = []
    for point in sorted(set(points)):
        if not best or point[1] < best[-1][1]:
            best.append(point)
    return best


def _stages(results: StudyResults) -> list[Stage]:
    return stages(results.study, results.records) if results.has_study else []


def _stages_in_words(results: StudyResults) -> Iterator[str]:
    for stage in _stages(results):
        task = "training" if stage.task == "train" else stage.task
        here = rounded(stage.speedup.value) if stage.speedup else "not run"
        yield f"{task} on {stage.name} {here} (published {rounded(stage.published)})"


@figure(
    describe=listing("Speedup over serial by stage", _stages_in_words),
    missing=lambda results: "" if _stages(results) else NO_RUNS,
    height=lambda _: 4.2,
)
def stage_ratios(ax: Axes, results: StudyResults) -> None:
    """Speedup over serial of each stage of a study, beside the published one, as distance from 1.

    Training and inference have marks of their own; what was not run is marked so.
    """
    kinds = [(task, source) for task in TASKS for source in ("here", "published")]
    width, values = 0.8 / len(kinds), [1.0]
    for number, (task, source) in enumerate(kinds):
        color = COLORS[0] if task == "train" else COLORS[1]
        fill = color if source == "here" else "white"
        legend = f"{'training' if task == 'train' else 'inference'}, {source}"
        of_task = [stage for stage in _stages(results) if stage.task == task]
        for nth, stage in enumerate(of_task):
            measured = stage.speedup.value if stage.speedup else np.nan
            value = measured if source == "here" else stage.published
            x = nth - 0.4 + (number + 0.5) * width
            # A bar has no base on a logarithmic axis; a ratio has one at 1.
            ax.plot([x, x], [1.0, value], color=color, linewidth=1.2)
            look: dict[str, Any] = {"color": color, "markerfacecolor": fill, "linestyle": "none"}
            ax.plot(x, value, marker="o", label=None if nth else legend, **look)
            text, y = ("not run", 1.0) if np.isnan(value) else (f"{value:.3g}×", value)
            values.append(y)
            above: dict[str, Any] = {"xytext": (0, 6), "textcoords": "offset points"}
            ax.annotate(text, (x, max(y, 1.0)), ha="center", fontsize=7, rotation=90, **above)
    ax.axhline(1.0, color=IDEAL, linewidth=0.8, zorder=0)
    ax.set_yscale("log")
    plain_log(ax.yaxis)
    ax.set_ylim(min(values) / 1.6, 5 * max(values))
    fixed_ticks(ax.xaxis, range(len(STAGES)), list(STAGES))
    ax.set(ylabel="speedup over serial")
    ax.legend(frameon=False, loc="upper left", fontsize=8)
