"""What inference records say: quantized against base, over repeats, as rows and as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from lab.analysis.scaling_curves import ranks
from lab.config.run import Run
from lab.config.study import Study
from lab.formatting import format_seconds, percent, rounded
from lab.records.inference import ClassificationPoint, Inference
from lab.records.schema import Stat
from lab.records.store import Record

SMALL_GROWTH = (
    1.5  # of the time between tokens over the batch sizes: below it the calls count, not their work
)
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
    low, high = (
        (min(low for low, _ in bounds), max(high for _, high in bounds)) if bounds else (None, None)
    )
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
        keys = [
            (point.prompt_tokens, point.batch_size) for point in inference_of(repeats[0]).points
        ]
        for number, (length, size) in enumerate(keys):
            points = [
                inference_of(record).points[number]
                for record in repeats
                if len(inference_of(record).points) > number
            ]
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
                    **{
                        f"between tokens, {name}": format_seconds(found.median(model, name))
                        for name in ("p50", "p90", "p99")
                    },
                    "tokens/s": f"{found.median(model, 'decode_tokens_per_second'):.0f}",
                    "GB/s": f"{bandwidth / 1e9:.2f}",
                    "of memory bandwidth": percent(bandwidth / roofline)
                    if roofline
                    else "not measured",
                }
            )
    return rows


def size_cells(repeats: Sequence[Record]) -> dict[str, Any]:
    """How large the quantized model is, in MB and over the base, and how long it took to make."""
    found = inference_of(repeats[0])
    assert found.size is not None
    took = [
        seconds for record in repeats if (seconds := inference_of(record).quantize_time) is not None
    ]
    return {
        "quantization": found.quantization,
        "on disk (MB)": f"{found.size.disk / 1e6:.2f}",
        "in memory (MB)": f"{found.size.memory / 1e6:.2f}",
        "of the base": percent(found.size.memory / found.base_size.memory),
        "time to quantize": format_seconds(float(np.median(took))) if took else "not measured",
    }


def output_cells(found: Inference) -> dict[str, Any]:
    """How far its logits are from the base's, and by which method it was made."""
    return {
        "largest error of logits": f"{max(found.output_errors.values()):.1e}",
        "method": found.method,
    }


def quality_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Sizes, perplexity and agreement, a row per quantization: they do not depend on the number of ranks."""
    rows: dict[str, dict[str, Any]] = {}
    for repeats in by_run(records):
        found = inference_of(repeats[0])
        if (
            found.unavailable
            or found.size is None
            or found.perplexity_ratio is None
            or found.same_tokens is None
        ):
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
    return [
        _sentence(row, compared(records))
        for row in compared(records)
        if row.record.run.quantization != "none"
    ]


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
    alike = [
        other
        for other in others
        if (other.record.run_id, other.prompt_tokens) == (row.record.run_id, row.prompt_tokens)
    ]
    least, most = (choose(alike, key=lambda other: other.batch_size) for choose in (min, max))
    growth = most.median("quantized", "p50") / least.median("quantized", "p50")
    if most.batch_size > least.batch_size:
        calls = (
            "so dispatching the calls counts for more than their work"
            if growth < SMALL_GROWTH
            else "so their work counts"
        )
        yield f"its own time between tokens grows {growth:.1f} times from batch {least.batch_size} to {most.batch_size}, {calls}"
    threads = row.record.environment.threads_per_rank if row.record.environment else None
    yield f"{found.method}, on {found.arithmetic or 'unknown arithmetic'}" + (
        f" with {threads} thread(s) per rank" if threads else ""
    )


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


def classifier_speed_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
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


def classifier_quality_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Sizes, accuracy and agreement, a row per quantization: they do not depend on the number of ranks."""
    rows: dict[str, dict[str, Any]] = {}
    for repeats in by_run(records):
        found = inference_of(repeats[0])
        if (
            found.unavailable
            or found.size is None
            or found.accuracy_change is None
            or found.same_classes is None
        ):
            continue
        rows[found.quantization] = {
            **size_cells(repeats),
            "accuracy": percent(found.accuracy),
            "base accuracy": percent(found.base_accuracy),
            "change (points)": _points(found),
            "same class": percent(
                found.same_classes.value, found.same_classes.low, found.same_classes.high
            ),
            "samples": found.held_out_samples,
            **output_cells(found),
        }
    return list(rows.values())


def _points(found: Inference) -> str:
    """The change of accuracy in percentage points."""
    change = found.accuracy_change
    assert change is not None
    return rounded(
        *(None if part is None else 100 * part for part in (change.value, change.low, change.high))
    )


def classifier_sentences(records: Sequence[Record]) -> list[str]:
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
    return (
        f"{told}: {'lower' if change.value < 0 else 'higher'}, a change of {_points(found)} points."
    )


def best_classifiers(records: Sequence[Record]) -> list[str]:
    """The fastest and the smallest quantized classifier, a sentence each."""
    found = [row for row in classified(records) if row.record.run.quantization != "none"]
    if not found:
        return []
    faster = [row for row in found if (row.ratio.high or 1.0) < 1.0]
    told = ["No quantization is shown to classify faster than the fp32 base here."]
    if faster:
        fastest = min(faster, key=lambda row: row.ratio.value)
        told = [
            f"{fastest.told}, gains the most time: {rounded(*fastest.ratio)} of the fp32 base's time for a batch."
        ]
    smallest = min((inference_of(row.record) for row in found), key=_memory_share)
    told.append(
        f"The smallest is {smallest.quantization}, with {percent(_memory_share(smallest))} of the base's bytes and an accuracy of "
        f"{percent(smallest.accuracy)}, the base's is {percent(smallest.base_accuracy)}."
    )
    return told


def _memory_share(found: Inference) -> float:
    return found.size.memory / found.base_size.memory if found.size else 1.0


STAGES = ("serial", "CPU processes", "CUDA", "several GPUs")
# Seconds of training and of inference by stage: a GPT-2 like model in C++ (block 256, 6 layers, 6 heads, width 384,
# batch 16, 50 epochs of 52,600 tokens); its MPI stages ran 4 processes a node on a 4-core i7-7820HQ, two nodes with CUDA.
PUBLISHED = {
    "serial": (15264.0, 113.0),
    "CPU processes": (1287.0, 112.0),
    "CUDA": (429.0, 8.0),
    "several GPUs": (226.0, 7.8),
}
CITATION = 'presentation "Distributed GPT2 Model Project"; MPI is shown as CPU processes, MPI with CUDA as several GPUs'
TASKS = ("train", "inference")


class Stage(NamedTuple):
    """One stage and task: times in s of one step or one generation, speedup over serial, or why it was not run."""

    name: str
    task: str
    on: str
    seconds: Estimate | None
    speedup: Estimate | None
    published: float
    reason: str


def stage_of(device: str | None, world_size: int) -> str:
    """The stage of a device and a number of ranks."""
    return STAGES[2 * (device == "cuda") + (world_size > 1)]


def stages(study: Study, records: Sequence[Record]) -> list[Stage]:
    """Every stage of both tasks, in the order of STAGES; empty where the study has not both tasks."""
    if {run.task for run in study.runs} != set(TASKS):
        return []
    found: list[Stage] = []
    for column, task in enumerate(TASKS):
        times: dict[str, tuple[Estimate, str]] = {}
        for run in (run for run in study.runs if run.task == task):
            done = [record for record in records if record.run_id == run.id and record.completed]
            seconds = _seconds(done)
            if seconds is not None and done[0].environment is not None:
                device = done[0].environment.device
                times[stage_of(device, run.world_size)] = seconds, ranks(device, run.world_size)
        serial = times.get("serial")
        for name in STAGES:
            published = PUBLISHED["serial"][column] / PUBLISHED[name][column]
            if name in times:
                seconds, on = times[name]
                ratio = (
                    None if serial is None else _ratio(serial[0], seconds, same=name == "serial")
                )
                found.append(Stage(name, task, on, seconds, ratio, published, ""))
            else:
                found.append(
                    Stage(name, task, "", None, None, published, _reason(name, task, study.runs))
                )
    return found


def _seconds(records: Sequence[Record]) -> Estimate | None:
    """Of an optimizer step, or of one batch with the fp32 base."""
    steps = [record.timing.step for record in records if record.timing is not None]
    inferred = [record.inference for record in records if record.inference]
    batches = [found.points[-1].base.total for found in inferred if found.points]
    batches += [found.classifications[-1].base for found in inferred if found.classifications]
    return over(steps or batches) if steps or batches else None


def _ratio(serial: Estimate, stage: Estimate, *, same: bool) -> Estimate:
    if same:
        return Estimate(1.0, None, None)
    bounds = [None, None]
    if None not in (serial.low, serial.high, stage.low, stage.high):
        bounds = [serial.low / stage.high, serial.high / stage.low]  # type: ignore[operator, list-item]
    return Estimate(float(np.divide(serial.value, stage.value)), bounds[0], bounds[1])


def _reason(name: str, task: str, runs: Sequence[Run]) -> str:
    asked = [
        run
        for run in runs
        if run.task == task and (run.needs_device == "cuda") == (name in STAGES[2:])
    ]
    asked = [run for run in asked if (run.world_size > 1) == (name in STAGES[1::2])]
    if not asked:
        return "not part of this study in this form"
    if name in STAGES[2:]:
        return f"not run: it needs {ranks('cuda', asked[0].world_size)}, and there is no record of a cluster with them"
    return "not run yet"
