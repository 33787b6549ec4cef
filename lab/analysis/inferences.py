"""What inference records say: quantized against base, over repeats, as rows and as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from lab.analysis.lines import ranks
from lab.analysis.rounding import format_seconds, percent, rounded
from lab.records import Inference, Record, Stat

SMALL_GROWTH = 1.5  # of the time between tokens over the batch sizes: below it the calls count, not their work
NEAR_ROOFLINE = 0.5


class Estimate(NamedTuple):
    """A median over repeats; the interval spans those of all repeats, so that it is too wide rather than too narrow."""

    value: float
    low: float | None
    high: float | None


class Compared(NamedTuple):
    """The repeats of one configuration that measured one prompt length and batch size."""

    record: Record
    prompt_tokens: int
    batch_size: int
    points: list[Any]

    @property
    def name(self) -> str:
        """Quantization and where it ran, for people."""
        return f"{self.record.run.quantization} on {place(self.record)}"

    def ratio(self, which: str) -> Estimate:
        """Quantized over base: `first_token`, `inter_token` or `total`; below 1 is faster."""
        return over([getattr(point, f"{which}_ratio") for point in self.points])

    def latency(self, model: str, which: str) -> Estimate:
        """Seconds of `base` or `quantized`: `first_token`, `inter_token` or `total`."""
        return over([getattr(getattr(point, model), which) for point in self.points])

    def median(self, model: str, which: str) -> float:
        """A plain number of a Latency, the median over repeats."""
        return float(np.median([getattr(getattr(point, model), which) for point in self.points]))


def over(stats: Sequence[Stat]) -> Estimate:
    """The estimate from one statistic per repeat."""
    bounds = [stat.interval for stat in stats if stat.interval is not None]
    low, high = (min(low for low, _ in bounds), max(high for _, high in bounds)) if bounds else (None, None)
    return Estimate(float(np.median([stat.median for stat in stats])), low, high)


def place(record: Record) -> str:
    """Where a record was measured, such as `2 CPU processes`."""
    return ranks(record.environment.device if record.environment else None, record.run.world_size)


def by_run(records: Sequence[Record]) -> list[list[Record]]:
    """Completed inference records, those of one run together, in their order."""
    runs: dict[str, list[Record]] = {}
    for record in records:
        if record.completed and record.inference is not None:
            runs.setdefault(record.run_id, []).append(record)
    return list(runs.values())


def compared(records: Sequence[Record]) -> list[Compared]:
    """Every configuration at every point that was timed."""
    found = []
    for repeats in by_run(records):
        keys = [(point.prompt_tokens, point.batch_size) for point in inference_of(repeats[0]).points]
        for number, (length, size) in enumerate(keys):
            points = [inference_of(record).points[number] for record in repeats if len(inference_of(record).points) > number]
            found.append(Compared(repeats[0], length, size, points))
    return found


def inference_of(record: Record) -> Inference:
    """What a completed inference record measured."""
    assert record.inference is not None
    return record.inference


def speed_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Ratios of time, quantized over base, a row per configuration and point."""
    return [
        {
            "quantization": row.record.run.quantization,
            "on": place(row.record),
            "prompt": row.prompt_tokens,
            "batch": row.batch_size,
            "first token": rounded(*row.ratio("first_token")),
            "between tokens": rounded(*row.ratio("inter_token")),
            "whole generation": rounded(*row.ratio("total")),
            "tokens/s": f"{row.median('quantized', 'decode_tokens_per_second'):.0f}",
            "base tokens/s": f"{row.median('base', 'decode_tokens_per_second'):.0f}",
        }
        for row in compared(records)
    ]


def latency_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Prefill and decode apart, a row per model and point; base rows come from the runs of each quantization."""
    rows = []
    for found in compared(records):
        roofline = inference_of(found.record).memory_bytes_per_second
        for model in ("base", "quantized"):
            if model == "base" and found.record.run.quantization != "none":
                continue
            bandwidth = found.median(model, "bytes_per_second")
            rows.append(
                {
                    "model": "base (fp32)" if model == "base" else found.record.run.quantization,
                    "on": place(found.record),
                    "prompt": found.prompt_tokens,
                    "batch": found.batch_size,
                    "first token": format_seconds(*found.latency(model, "first_token")),
                    "prefill tokens/s": f"{found.median(model, 'prefill_tokens_per_second'):.0f}",
                    **{f"between tokens, {name}": format_seconds(found.median(model, name)) for name in ("p50", "p90", "p99")},
                    "tokens/s": f"{found.median(model, 'decode_tokens_per_second'):.0f}",
                    "GB/s": f"{bandwidth / 1e9:.2f}",
                    "of memory bandwidth": percent(bandwidth / roofline) if roofline else "not measured",
                }
            )
    return rows


def size_cells(repeats: Sequence[Record]) -> dict[str, Any]:
    """How large the quantized model is, in MB and over the base, and how long it took to make."""
    found = inference_of(repeats[0])
    assert found.size is not None
    took = [seconds for record in repeats if (seconds := inference_of(record).quantize_time) is not None]
    return {
        "quantization": found.quantization,
        "on disk (MB)": f"{found.size.disk / 1e6:.2f}",
        "in memory (MB)": f"{found.size.memory / 1e6:.2f}",
        "of the base": percent(found.size.memory / found.base_size.memory),
        "time to quantize": format_seconds(float(np.median(took))) if took else "not measured",
    }


def output_cells(found: Inference) -> dict[str, Any]:
    """How far its logits are from the base's, and by which method it was made."""
    return {"largest error of logits": f"{max(found.output_errors.values()):.1e}", "method": found.method}


def quality_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Sizes, perplexity and agreement, a row per quantization: they do not depend on the number of ranks."""
    rows: dict[str, dict[str, Any]] = {}
    for repeats in by_run(records):
        found = inference_of(repeats[0])
        if found.unavailable or found.size is None or found.perplexity_ratio is None or found.same_tokens is None:
            continue
        change = [None if part is None else part - 1 for part in _bounds(found.perplexity_ratio)]
        rows[found.quantization] = {
            **size_cells(repeats),
            "perplexity": rounded(found.perplexity),
            "change": percent(*change) if change[0] else "0 %",
            "same likeliest token": percent(*_bounds(found.same_tokens)),
            "same generated tokens": percent(found.generated_alike),
            **output_cells(found),
        }
    return list(rows.values())


def _bounds(share: Any) -> tuple[float, float | None, float | None]:
    return share.value, share.low, share.high


def missing(records: Sequence[Record]) -> list[str]:
    """What could not be measured on this machine, each with its reason."""
    told = {
        f"{inference_of(record).quantization}: {inference_of(record).unavailable}."
        for repeats in by_run(records)
        for record in repeats[:1]
    }
    return sorted(sentence for sentence in told if not sentence.endswith(": ."))


def sentences(records: Sequence[Record]) -> list[str]:
    """What quantization gains or costs at each point where the interval says so, and why where it costs."""
    return [_sentence(row, compared(records)) for row in compared(records) if row.record.run.quantization != "none"]


def _sentence(row: Compared, others: Sequence[Compared]) -> str:
    ratio = row.ratio("inter_token")
    where = f"{row.name}, prompt {row.prompt_tokens}, batch {row.batch_size}"
    told = f"{rounded(*ratio)} of the base's time between tokens"
    if ratio.low is None or ratio.high is None or ratio.low <= 1 <= ratio.high:
        return f"{where}: {told}: no difference is shown."
    if ratio.value < 1:
        return f"{where}: faster, {told}."
    return f"{where}: slower, {told}. Why: {'; '.join(_reasons(row, others))}."


def _reasons(row: Compared, others: Sequence[Compared]) -> Iterator[str]:
    found = inference_of(row.record)
    bandwidth = row.median("base", "bytes_per_second")
    if found.memory_bytes_per_second:
        share = bandwidth / found.memory_bytes_per_second
        limited = (
            "so reading fewer bytes helps little"
            if share < NEAR_ROOFLINE
            else "so fewer bytes could help, and other work outweighs it"
        )
        yield f"the base reads {percent(share)} of the memory bandwidth of a rank in decoding, {limited}"
    alike = [other for other in others if (other.record.run_id, other.prompt_tokens) == (row.record.run_id, row.prompt_tokens)]
    least, most = (choose(alike, key=lambda other: other.batch_size) for choose in (min, max))
    growth = most.median("quantized", "p50") / least.median("quantized", "p50")
    if most.batch_size > least.batch_size:
        calls = "so dispatching the calls counts for more than their work" if growth < SMALL_GROWTH else "so their work counts"
        yield f"its own time between tokens grows {growth:.1f} times from batch {least.batch_size} to {most.batch_size}, {calls}"
    threads = row.record.environment.threads_per_rank if row.record.environment else None
    yield f"{found.method}, on {found.arithmetic or 'unknown arithmetic'}" + (
        f" with {threads} thread(s) per rank" if threads else ""
    )
