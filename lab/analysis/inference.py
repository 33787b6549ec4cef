"""Quantized models against their base, over repeats: time, bytes, quality, and why one is slower.

Language models are timed by prompt length and batch size, classifiers by batch size: the same
tables, with the columns of GENERATION or CLASSIFICATION.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from lab.analysis.scaling import few
from lab.analysis.scaling_curves import Estimate, ranks
from lab.config.study import Study
from lab.formatting import NOT_MEASURED, count, extent, format_seconds, percent, rounded, unit_for
from lab.records.schema import Inference, Point, Share, Stat
from lab.records.statistics import share_interval
from lab.records.store import Record
from lab.records.table import by_run, grouped, median

MODELS = ("quantized", "base")


def estimate(stats: Sequence[Stat]) -> Estimate:
    """The median over repeats of one statistic of each.

    The interval spans those of all repeats, so it is rather too wide.
    """
    value = float(np.median([stat.median for stat in stats]))
    intervals = [stat.interval for stat in stats if stat.interval is not None]
    if not intervals:
        return Estimate(value)
    lows, highs = zip(*intervals, strict=True)
    return Estimate(value, min(lows), max(highs))


class Measurement(NamedTuple):
    """The points of one configuration at one batch size (and prompt length), one per repeat.

    Quantities are named by their path in Point or ClassificationPoint, such as `quantized.p50`.
    """

    record: Record
    points: list[Any]

    @property
    def results(self) -> Inference:
        """What the first repeat measured."""
        return inference_of(self.record)

    @property
    def label(self) -> str:
        """Prompt length and batch size, formatted for display."""
        point = self.points[0]
        prompt = f"with prompt {point.prompt_tokens} " if isinstance(point, Point) else ""
        return f"{prompt}at batch {point.batch_size}"

    def estimate(self, path: str) -> Estimate:
        """The estimate of a Stat."""
        return estimate([attrgetter(path)(point) for point in self.points])

    def median(self, path: str) -> float:
        """The median over repeats of a number."""
        return float(np.median([attrgetter(path)(point) for point in self.points]))


class Kind(NamedTuple):
    """The measurements of one kind of model, and the columns of its tables.

    `points` and `quality` are fields of Inference, `ratio` is one of its points.
    """

    points: str
    quality: str
    ratio: str
    time: str
    speed_columns: dict[str, Callable[[Measurement], Any]]
    quality_columns: dict[str, Callable[[Inference], Any]]
    summary: Callable[[Inference], str]


def _estimate(path: str, text: Callable[..., str] = rounded) -> Callable[[Measurement], str]:
    return lambda row: text(*row.estimate(path))


def _rate(path: str) -> Callable[[Measurement], str]:
    return lambda row: f"{row.median(path):.0f}"


def _share(
    share: Share | None, text: Callable[..., str], factor: float = 1, less: float = 0
) -> str:
    ends = (share.value, share.low, share.high) if share else (None, None, None)
    return text(*(None if end is None else factor * (end - less) for end in ends))


def _perplexity(ratio: Share | None) -> str:
    """By how much the perplexity is higher or lower, if its interval shows which."""
    if ratio is None:
        return "perplexity not measured"
    if ratio.low is not None and ratio.high is not None:
        if ratio.low > 1:
            return f"a perplexity {_share(ratio, percent, less=1)} higher"
        if ratio.high < 1:
            lower = percent(1 - ratio.value, 1 - ratio.high, 1 - ratio.low)
            return f"a perplexity {lower} lower"
    return f"perplexity changed by {_share(ratio, percent, less=1)}"


GENERATION = Kind(
    points="points",
    quality="perplexity_ratio",
    ratio="inter_token_ratio",
    time="time between tokens",
    speed_columns={
        "prompt": lambda row: row.points[0].prompt_tokens,
        "batch": lambda row: row.points[0].batch_size,
        "first token": _estimate("first_token_ratio"),
        "between tokens": _estimate("inter_token_ratio"),
        "whole generation": _estimate("total_ratio"),
        "tokens/s": _rate("quantized.decode_tokens_per_second"),
        "base tokens/s": _rate("base.decode_tokens_per_second"),
    },
    quality_columns={
        "perplexity": lambda results: rounded(results.perplexity),
        "change": lambda results: _share(results.perplexity_ratio, percent, less=1),
        "same likeliest token": lambda results: _share(results.same_tokens, percent),
        "same generated tokens": lambda results: percent(results.generated_alike),
    },
    summary=lambda results: _perplexity(results.perplexity_ratio),
)
CLASSIFICATION = Kind(
    points="classifications",
    quality="accuracy_change",
    ratio="ratio",
    time="time for a batch",
    speed_columns={
        "batch": lambda row: row.points[0].batch_size,
        "time of a batch, over base": _estimate("ratio"),
        "time of a batch": _estimate("quantized", format_seconds),
        "base time": _estimate("base", format_seconds),
        "samples/s": _rate("samples_per_second"),
        "base samples/s": _rate("base_samples_per_second"),
    },
    quality_columns={
        "accuracy": lambda results: accuracy(results.accuracy, results.held_out_samples),
        "base accuracy": lambda results: accuracy(results.base_accuracy, results.held_out_samples),
        "change (points)": lambda results: _share(results.accuracy_change, rounded, factor=100),
        "same class": lambda results: _share(results.same_classes, percent),
    },
    summary=lambda results: (
        f"an accuracy of {accuracy(results.accuracy, results.held_out_samples)} against the base's "
        f"{accuracy(results.base_accuracy, results.held_out_samples)}"
        if results.accuracy is not None
        else "accuracy not measured"
    ),
)
KINDS = (GENERATION, CLASSIFICATION)


def accuracy(share: float | None, samples: int | None) -> str:
    """A share of samples with Wilson's interval and their number: `88.0 [78, 94] % of 64`."""
    if share is None:
        return NOT_MEASURED
    ends = share_interval(share, samples) if samples else (None, None)
    return f"{percent(share, *ends)} of {samples or 'an unknown number of'} samples"


def place(record: Record) -> str:
    """Where a record was measured, such as `2 CPU processes`."""
    return ranks(record.environment.device if record.environment else None, record.run.world_size)


def inference_of(record: Record) -> Inference:
    """What a completed inference record measured."""
    assert record.inference is not None
    return record.inference


def inferred(records: Sequence[Record]) -> list[list[Record]]:
    """Completed inference records grouped by run, in order."""
    return [*by_run(one for one in records if one.completed and one.inference).values()]


def measurements(records: Sequence[Record], kind: Kind) -> list[Measurement]:
    """Every configuration at every point that was timed."""
    rows = []
    for repeats in inferred(records):
        points = [getattr(inference_of(record), kind.points) for record in repeats]
        for number in range(len(points[0])):
            timed = [of_repeat[number] for of_repeat in points if len(of_repeat) > number]
            rows.append(Measurement(repeats[0], timed))
    return rows


def _quantized(records: Sequence[Record], kind: Kind) -> list[Measurement]:
    return [row for row in measurements(records, kind) if row.results.quantization != "none"]


def speed_rows(records: Sequence[Record], kind: Kind) -> list[dict[str, Any]]:
    """Times and rates of the quantized model and its base, a row per configuration and point."""
    return [
        {"quantization": row.results.quantization, "on": place(row.record)}
        | {column: text(row) for column, text in kind.speed_columns.items()}
        for row in measurements(records, kind)
    ]


def latency_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Prefill and decode separately: a row per model and point, above the base of its own job.

    Times of two jobs are not comparable, because the other load on the machine differs.
    """
    rows, measured = [], measurements(records, GENERATION)
    unit = unit_for(row.median(f"{model}.p50") for row in measured for model in MODELS)
    for row in measured:
        quantization, roofline = row.results.quantization, row.results.memory_bytes_per_second
        base = f"its base ({row.record.run.base_precision})"
        for model, name in zip(MODELS, (quantization, base), strict=True):
            bandwidth = row.median(f"{model}.bytes_per_second")
            share = bandwidth / roofline if roofline else None
            cells = {
                "model": name,
                "on": place(row.record),
                "prompt": row.points[0].prompt_tokens,
                "batch": row.points[0].batch_size,
                "first token": _estimate(f"{model}.first_token", format_seconds)(row),
                "prefill tokens/s": _rate(f"{model}.prefill_tokens_per_second")(row),
            }
            for quantile in ("p50", "p90", "p99"):
                time = format_seconds(row.median(f"{model}.{quantile}"), unit=unit)
                cells[f"between tokens, {quantile}"] = time
            cells["tokens/s"] = _rate(f"{model}.decode_tokens_per_second")(row)
            cells["GB/s"] = f"{bandwidth / 1e9:.2f}"
            rows.append(cells | {"of memory bandwidth": percent(share)})
    return rows


def quality_rows(records: Sequence[Record], kind: Kind) -> list[dict[str, Any]]:
    """Sizes, quality and agreement by quantization; they do not depend on the number of ranks."""
    rows: dict[str, dict[str, Any]] = {}
    for repeats in inferred(records):
        results = inference_of(repeats[0])
        if results.unavailable or results.size is None or getattr(results, kind.quality) is None:
            continue
        rows[results.quantization] = {
            "quantization": results.quantization,
            "on disk (MB)": f"{results.size.disk / 1e6:.2f}",
            "in memory (MB)": f"{results.size.memory / 1e6:.2f}",
            "of the base": percent(_memory_share(results)),
            "time to quantize": format_seconds(median(repeats, "inference.quantize_time")),
            **{column: text(results) for column, text in kind.quality_columns.items()},
            "largest error of logits": f"{max(results.output_errors.values()):.1e}",
        }
    return list(rows.values())


def _memory_share(results: Inference) -> float:
    return results.size.memory / results.base_size.memory if results.size else 1.0


def answer(study: Study, records: Sequence[Record]) -> list[str]:
    """What each quantization gains in time and memory, and costs."""
    texts = [text for kind in KINDS for text in _tradeoffs(records, kind)]
    first = [inference_of(of_run[0]) for of_run in inferred(records)]
    compared = {one.quantization for one in first if not one.unavailable}
    if gone := {run.quantization for run in study.runs} - {"none"} - compared:
        texts.append(f"Not measured: {', '.join(sorted(gone))}.")
    return texts or ["No inference run has completed yet."]


def _tradeoffs(records: Sequence[Record], kind: Kind) -> Iterator[str]:
    """A sentence per quantization: time over all its points, bytes and quality."""
    rows = _quantized(records, kind)
    noise = noise_of(records, kind)
    for name, own in grouped((row.results.quantization, row) for row in rows).items():
        yield f"{name}: {_times(own, kind, noise)}, {_size_and_quality(own[0].results, kind)}."
    if rows and noise:
        yield f"A second copy of the base differs by up to {percent(noise)}: that much is noise."


def _size_and_quality(results: Inference, kind: Kind) -> str:
    return f"{percent(_memory_share(results))} of the base's bytes, {kind.summary(results)}"


def untimed(records: Sequence[Record]) -> list[str]:
    """Results that do not depend on the machine's load: size and quality of each quantization."""
    return [
        f"{name}: {_size_and_quality(results, kind)}."
        for kind in KINDS
        for name, results in {
            row.results.quantization: row.results for row in _quantized(records, kind)
        }.items()
    ]


def _times(rows: Sequence[Measurement], kind: Kind, noise: float) -> str:
    """Ratios of time over the points of one quantization, and how many show a clear gain."""
    verdicts = Counter(_verdict(row, kind, noise) for row in rows)
    decided = [
        f"{verdicts[word]} of {len(rows)} {word}" for word in (FASTER, SLOWER) if word in verdicts
    ]
    if len(rows) == 1 or not decided:
        decided = [next(iter(verdicts))]
    times = extent([row.estimate(kind.ratio) for row in rows])
    return f"{times} times the base's {kind.time} ({' and '.join(decided)})"


FASTER, SLOWER, UNDECIDED = "faster", "slower", "no difference is shown"


def noise_of(records: Sequence[Record], kind: Kind) -> float:
    """The largest deviation from 1 of the ratio of a second copy of the base; 0 if none was timed.

    Both copies compute the same, so a difference within their interval is not significant.
    """
    copies = [row for row in measurements(records, kind) if row.results.quantization == "none"]
    ends = [end for row in copies for end in row.estimate(kind.ratio) if not math.isnan(end)]
    return max((abs(end - 1) for end in ends), default=0.0)


def _verdict(row: Measurement, kind: Kind, noise: float) -> str:
    """Whether a time differs from the base's by more than noise and in enough repeats."""
    _, low, high = row.estimate(kind.ratio)
    if too_few := few(len(row.points)):
        return f"{too_few} to show how much this varies"
    if high < 1 - noise:
        return FASTER
    return SLOWER if low > 1 + noise else UNDECIDED


def sentences(records: Sequence[Record]) -> list[str]:
    """What each quantization gains or costs, if intervals support it, and why it is slower."""
    texts, accuracies = list[str](), dict[str, str]()
    for kind in KINDS:
        rows, noise = _quantized(records, kind), noise_of(records, kind)
        for _, own in groupby(rows, key=lambda row: row.record.run_id):
            texts.append(_speed([*own], kind, noise))
        changed = [row.results for row in rows if row.results.accuracy_change]
        accuracies |= {results.quantization: _accuracy(results) for results in changed}
    return [*texts, *accuracies.values()]


def _speed(rows: Sequence[Measurement], kind: Kind, noise: float) -> str:
    """What the ratios of time of one configuration show, why it is slower, and its method."""
    by_verdict = grouped((_verdict(row, kind, noise), row) for row in rows)
    shown = [f"{verdict} ({_ratios(alike, kind)})" for verdict, alike in by_verdict.items()]
    model = f"{rows[0].results.quantization} on {place(rows[0].record)}"
    text = f"{model}, in multiples of the base's {kind.time}: {'; '.join(shown)}."
    slower = by_verdict.get(SLOWER)
    reasons = _why_slow(slower, rows) if slower and kind is GENERATION else []
    return " ".join([text, *reasons, f"Method: {_method(rows[0])}."])


def _ratios(rows: Sequence[Measurement], kind: Kind) -> str:
    """Each ratio with its interval; of more than two their extent, as a table has them all."""
    if len(rows) > 2:
        ends = extent([row.estimate(kind.ratio) for row in rows])
        return f"{ends} in {len(rows)} comparisons"
    return ", ".join(f"{rounded(*row.estimate(kind.ratio))} {row.label}" for row in rows)


def _method(row: Measurement) -> str:
    method = f"{row.results.method}, on {row.results.arithmetic or 'unknown arithmetic'}"
    threads = row.record.environment.threads_per_rank if row.record.environment else None
    return f"{method}, {count(threads, 'thread')} per rank" if threads else method


def _why_slow(slower: Sequence[Measurement], rows: Sequence[Measurement]) -> list[str]:
    """Bounds on what fewer bytes can save, and on what more sequences cost."""
    reasons = []
    if bandwidth := slower[0].results.memory_bytes_per_second:
        shares = [row.median("base.bytes_per_second") / bandwidth for row in slower]
        left = [
            row.median("quantized.bytes_per_token") / row.median("base.bytes_per_token")
            for row in slower
        ]
        # What fits into a cache is read faster than memory, but cannot take more than all the time.
        saved = max(min(share, 1) * (1 - rest) for share, rest in zip(shares, left, strict=True))
        reasons.append(
            f"Where it is slower, the base reads {_percents(shares)} of the memory bandwidth of a "
            f"rank in decoding, so fewer bytes can save at most {percent(max(saved, 0))} of its "
            "time."
        )
    prompts = {row.points[0].prompt_tokens for row in slower}
    fixed = [_fixed_share(rows, prompt) for prompt in sorted(prompts)]
    if constant := [share for share in fixed if share is not None]:
        least = min(row.points[0].batch_size for row in rows)
        reasons.append(
            f"{_percents(constant)} of its own time between tokens at batch {least} does not "
            "grow with the batch, as dispatching calls, reading weights and converting them do not."
        )
    return reasons


def _percents(shares: Sequence[float]) -> str:
    return f"{extent([(100 * share,) for share in shares])} %"


def _fixed_share(rows: Sequence[Measurement], prompt_tokens: int) -> float | None:
    """The share of the time at the least batch size that does not grow with the batch, if times are
    linear in it between the least and the largest; None if there is only one batch size."""
    times: dict[int, float] = {
        row.points[0].batch_size: row.median("quantized.p50")
        for row in rows
        if row.points[0].prompt_tokens == prompt_tokens
    }
    least, most = min(times), max(times)
    if least == most:
        return None
    per_sequence = (times[most] - times[least]) / (most - least)
    return min(max(0.0, 1 - per_sequence * least / times[least]), 1.0)


def _accuracy(results: Inference) -> str:
    change = results.accuracy_change
    assert change is not None
    samples = results.held_out_samples
    own, base = accuracy(results.accuracy, samples), accuracy(results.base_accuracy, samples)
    text = f"{results.quantization}: accuracy {own} against the base's {base}"
    if change.low is None or change.high is None or change.low <= 0 <= change.high:
        return f"{text}: no difference is shown."
    direction = "lower" if change.value < 0 else "higher"
    return f"{text}: {direction}, a change of {_share(change, rounded, factor=100)} points."


def missing(records: Sequence[Record]) -> list[str]:
    """What could not be measured on this machine, each with its reason."""
    first = [inference_of(repeats[0]) for repeats in inferred(records)]
    return sorted({f"{one.quantization}: {one.unavailable}." for one in first if one.unavailable})
