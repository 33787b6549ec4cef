"""Ways to train in parallel side by side: what each costs in time, memory and traffic, and that all learn the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lab.analysis.repeats import link, median, step, trained
from lab.analysis.rounding import format_seconds, percent, rounded
from lab.records import Record
from lab.study import Run
from lab.words import distinct

NOT_RUN = "not run"
NONE = "-"
LEAST = 1e-5  # what differs by less is not told more exactly


def strategy_rows(runs: Sequence[Run], records: Sequence[Record]) -> list[dict[str, str]]:
    """One row of text per training run: step, throughput, memory by rank, what a rank sends for a step, last loss."""
    labels, _ = distinct(runs)
    return [
        {"configuration": labels[run]} | (_cells(done) if done else {"step": NOT_RUN})
        for run, done in trained(runs, records).items()
    ]


def _cells(done: Sequence[Record]) -> dict[str, str]:
    return {
        "step": format_seconds(median(done, step)),
        "samples/s": rounded(median(done, lambda record: record.timing.samples_per_second if record.timing else None)),
        "peak (MB)": _megabytes(median(done, lambda record: max(record.memory.peak) if record.memory else None)),
        "weights (MB)": _megabytes(median(done, lambda record: record.memory.parameters if record.memory else None)),
        "optimizer (MB)": _megabytes(median(done, lambda record: record.memory.optimizer if record.memory else None)),
        "sent (MB)": _megabytes(median(done, link("bytes_moved"))),
        "last loss": f"{loss:.4f}" if (loss := median(done, last_loss)) is not None else NONE,
    }


def last_loss(record: Record) -> float | None:
    """The training loss of the last step."""
    return record.quality.loss[-1] if record.quality and record.quality.loss else None


def _megabytes(size: float | None) -> str:
    return rounded(size / 1e6) if size else NONE


def strategy_sentences(runs: Sequence[Run], records: Sequence[Record], *, baseline: Mapping[str, Any]) -> list[str]:
    """The fastest and the one that keeps least, of each model; and how far any loss is from the baseline's."""
    done = {run: found for run, found in trained(runs, records).items() if found}
    models = list(dict.fromkeys(run.model for run in done))
    labels, _ = distinct(list(done))
    return [
        *(sentence for model in models for sentence in _extremes({run: done[run] for run in done if run.model == model}, labels)),
        *_losses(done, baseline, labels),
    ]


def _extremes(done: Mapping[Run, list[Record]], labels: Mapping[Run, str]) -> Iterator[str]:
    if len({run.strategy for run in done}) < 2:
        return
    steps = {run: median(found, step) or 0.0 for run, found in done.items()}
    fastest = min(steps, key=lambda run: steps[run])
    yield f"The shortest step, {format_seconds(steps[fastest])}, is that of {labels[fastest]}."
    kept = {run: median(found, _kept) for run, found in done.items()}
    known = {run: size for run, size in kept.items() if size}
    if known and min(known.values()) < 0.99 * max(known.values()):
        least = min(known, key=lambda run: known[run])
        yield (
            f"The least weights and optimizer state on a rank, {rounded(known[least] / 1e6)} MB, are those of {labels[least]}; "
            f"the most are {rounded(max(known.values()) / 1e6)} MB."
        )


def _kept(record: Record) -> float | None:
    return record.memory.parameters + record.memory.optimizer if record.memory and record.memory.optimizer is not None else None


def _losses(done: Mapping[Run, list[Record]], baseline: Mapping[str, Any], labels: Mapping[Run, str]) -> Iterator[str]:
    """How far the curves lie from those of the baseline with equal samples and arithmetic, at the most."""
    apart: dict[Run, float] = {}
    for base, reference in done.items():
        if any(getattr(base, key) != value for key, value in baseline.items()):
            continue
        for run, found in done.items():
            if run != base and _comparable(run, base):
                apart[run] = max(_distance(found[0], reference[0]), apart.get(run, 0.0))
    if apart:
        widest = max(apart, key=lambda run: apart[run])
        yield (
            f"At equal batch, seed and precision the losses of {len(apart)} configurations stay within {percent(max(apart[widest], LEAST))} "
            f"of the baseline's over the whole training; the farthest is {labels[widest]}."
        )


def _comparable(run: Run, base: Run) -> bool:
    fields = ("model", "data", "global_batch_size", "seed", "precision", "steps", "learning_rate")
    return not run.architecture.depends_on_split and all(getattr(run, field) == getattr(base, field) for field in fields)


def _distance(record: Record, reference: Record) -> float:
    if record.quality is None or reference.quality is None:
        return 0.0
    return max(
        abs(value - known) / abs(known)
        for value, known in zip(record.quality.loss, reference.quality.loss, strict=False)
        if known
    )
