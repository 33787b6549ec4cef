"""Training runs side by side: strategies, loaders of data, and convolutional networks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from lab.config.run import Run, distinct_labels
from lab.formatting import NOT_MEASURED, format_seconds, percent, rounded
from lab.records.store import Record
from lab.records.table import value_at

UNKNOWN = "-"
LOW_LOSS = 0.04
LEAST_DIFFERENCE = 1e-5  # of two losses: none is given as less
Cells = Callable[[Run, Sequence[Record]], dict[str, str]]


def trained(runs: Iterable[Run], records: Sequence[Record]) -> dict[Run, list[Record]]:
    """The completed records of each training run, in the order of the runs."""
    done = [record for record in records if record.completed and record.timing is not None]
    return {
        run: [record for record in done if record.run_id == run.id]
        for run in runs
        if run.task == "train"
    }


def median(records: Sequence[Record], quantity: str | Callable[[Record], Any]) -> float | None:
    """The median over repeats of a quantity, by a path such as `timing.step.median` or a function.

    None where no repeat has it.
    """
    read = quantity if callable(quantity) else lambda record: value_at(record, quantity)
    values = [value for record in records if (value := read(record)) is not None]
    return statistics.median(values) if values else None


def strategy_rows(runs: Sequence[Run], records: Sequence[Record]) -> list[dict[str, str]]:
    """A row of text per training run: step, throughput, memory and traffic of a rank, loss."""
    return _rows(runs, records, _strategy_cells)


def image_rows(runs: Sequence[Run], records: Sequence[Record]) -> list[dict[str, str]]:
    """A row of text per run of a network: a step and its parts, bytes, epochs to a low loss."""
    return _rows(runs, records, _image_cells)


def _rows(runs: Sequence[Run], records: Sequence[Record], cells: Cells) -> list[dict[str, str]]:
    labels, _ = distinct_labels(runs)
    return [
        {"configuration": labels[run]} | (cells(run, done) if done else {"step": "not run"})
        for run, done in trained(runs, records).items()
    ]


def _strategy_cells(run: Run, done: Sequence[Record]) -> dict[str, str]:
    loss = median(done, lambda record: next(reversed(_losses(record)), None))
    peak = median(done, lambda record: max(record.memory.peak) if record.memory else None)
    return {
        "step": format_seconds(median(done, "timing.step.median")),
        "samples/s": rounded(median(done, "timing.samples_per_second")),
        "peak (MB)": _megabytes(peak),
        "weights (MB)": _megabytes(median(done, "memory.parameters")),
        "optimizer (MB)": _megabytes(median(done, "memory.optimizer")),
        "sent (MB)": _megabytes(median(done, "communication.bytes_moved")),
        "last loss": UNKNOWN if loss is None else f"{loss:.4f}",
    }


def _image_cells(run: Run, done: Sequence[Record]) -> dict[str, str]:
    parameters = median(done, "environment.parameters")
    sent = median(done, "communication.bytes_moved")
    epochs = next(filter(None, map(epochs_to_low_loss, done)), NOT_MEASURED)
    cells = {
        "trained": f"{parameters / 1e6:.3g} M" if parameters else UNKNOWN,
        "step": format_seconds(median(done, "timing.step.median")),
        "compute": format_seconds(median(done, _compute)),
        "communication": format_seconds(median(done, "communication.total.median")),
        "exposed": format_seconds(median(done, "communication.exposed.median")),
        "sent (MB)": rounded(None if sent is None else sent / 1e6),
        f"epochs to loss < {LOW_LOSS}": epochs,
    }
    alone = ("communication", "exposed", "sent (MB)") if run.world_size == 1 else ()
    return cells | dict.fromkeys(alone, "none")


def _megabytes(size: float | None) -> str:
    return rounded(size / 1e6) if size else UNKNOWN


def _losses(record: Record) -> Sequence[float]:
    return record.quality.loss if record.quality else ()


def _compute(record: Record) -> float:
    """Forward and backward without the communication exposed in them."""
    seconds = 0.0
    for phase in ("forward", "backward"):
        seconds += value_at(record, f"timing.phases.{phase}.median") or 0.0
        seconds -= value_at(record, f"communication.exposed_in.{phase}") or 0.0
    return seconds


def epochs_to_low_loss(record: Record) -> str | None:
    """The first epoch (from 1) with a mean training loss below LOW_LOSS, or what was reached.

    None where samples make up no epochs, or nothing is known of them.
    """
    samples = record.environment.train_samples if record.environment else None
    if samples is None or record.quality is None:
        return None
    losses, batch = record.quality.loss, record.run.global_batch_size
    means = epoch_means(losses, samples=samples, batch=batch)
    reached = [epoch for epoch, mean in enumerate(means, 1) if mean < LOW_LOSS]
    if reached:
        return str(reached[0])
    best = f"{min(means):.2g}" if means else f"{len(losses) * batch / samples:.1f} epochs"
    return f"not reached ({best})"


def epoch_means(losses: Sequence[float], *, samples: int, batch: int) -> list[float]:
    """The mean loss of each whole epoch; a step belongs to the epoch of its last sample."""
    means: list[float] = []
    first = 0
    while (last := ((len(means) + 1) * samples - 1) // batch) < len(losses):
        part = losses[min(first, last) : last + 1]  # an epoch may be smaller than a batch
        means.append(sum(part) / len(part))
        first = last + 1
    return means


def strategy_sentences(
    runs: Sequence[Run], records: Sequence[Record], *, baseline: Mapping[str, Any]
) -> list[str]:
    """The fastest and smallest strategy of each model, and how far losses are apart."""
    done = {run: repeats for run, repeats in trained(runs, records).items() if repeats}
    labels, _ = distinct_labels(list(done))
    sentences: list[str] = []
    for model in dict.fromkeys(run.model for run in done):
        sentences += _extremes({run: done[run] for run in done if run.model == model}, labels)
    return [*sentences, *_loss_distances(done, baseline, labels)]


def _extremes(done: Mapping[Run, list[Record]], labels: Mapping[Run, str]) -> Iterator[str]:
    if len({run.strategy for run in done}) < 2:
        return
    steps = {run: median(repeats, "timing.step.median") or 0.0 for run, repeats in done.items()}
    fastest = min(steps, key=lambda run: steps[run])
    yield f"The shortest step, {format_seconds(steps[fastest])}, is that of {labels[fastest]}."
    sizes = {run: size for run, repeats in done.items() if (size := median(repeats, _state))}
    if sizes and min(sizes.values()) < 0.99 * max(sizes.values()):
        least = min(sizes, key=lambda run: sizes[run])
        yield (
            f"The least weights and optimizer state on a rank, {rounded(sizes[least] / 1e6)} MB, "
            f"are those of {labels[least]}; the most are {rounded(max(sizes.values()) / 1e6)} MB."
        )


def _state(record: Record) -> float | None:
    memory = record.memory
    return memory.parameters + memory.optimizer if memory and memory.optimizer is not None else None


def _loss_distances(
    done: Mapping[Run, list[Record]], baseline: Mapping[str, Any], labels: Mapping[Run, str]
) -> Iterator[str]:
    """How far losses lie at most from those of a baseline with equal samples and arithmetic."""
    distances: dict[Run, float] = {}
    for base in done:
        if any(getattr(base, key) != value for key, value in baseline.items()):
            continue
        for run in done:
            if run != base and _comparable(run, base):
                distance = _distance(done[run][0], done[base][0])
                distances[run] = max(distance, distances.get(run, 0.0))
    if distances:
        farthest = max(distances, key=lambda run: distances[run])
        yield (
            f"At equal batch, seed and precision the losses of {len(distances)} configurations "
            f"stay within {percent(max(distances[farthest], LEAST_DIFFERENCE))} of the baseline's "
            f"over the whole training; the farthest is {labels[farthest]}."
        )


def _comparable(run: Run, base: Run) -> bool:
    fields = ("model", "data", "global_batch_size", "seed", "precision", "steps", "learning_rate")
    alike = all(getattr(run, field) == getattr(base, field) for field in fields)
    return alike and not run.architecture.depends_on_split


def _distance(record: Record, reference: Record) -> float:
    pairs = zip(_losses(record), _losses(reference), strict=False)
    return max((abs(loss / known - 1) for loss, known in pairs if known), default=0.0)


def loader_sentences(runs: Sequence[Run], records: Sequence[Record]) -> list[str]:
    """How long a step waits for data with each loader, and what the classic one costs."""
    done = {run: repeats for run, repeats in trained(runs, records).items() if repeats}
    labels, _ = distinct_labels(list(done))
    steps = {run: median(repeats, "timing.step.median") or 0.0 for run, repeats in done.items()}
    shares = {
        run: (median(repeats, "timing.phases.data.median") or 0.0) / steps[run]
        for run, repeats in done.items()
    }
    sentences = []
    for loader in ("fast", "classic"):
        if of_loader := [run for run in done if run.loader == loader]:
            worst = max(of_loader, key=lambda run: shares[run])
            sentences.append(
                f"With the {loader} loader a step waits for data for at most "
                f"{percent(shares[worst])} of its time ({labels[worst]})."
            )
    fast = {_with_fast_loader(run): steps[run] for run in done if run.loader == "fast"}
    for run in done:
        step = fast.get(_with_fast_loader(run))
        if run.loader == "classic" and step is not None:
            sentences.append(
                f"At {labels[run]}, a step takes {rounded(steps[run] / step)} times that of the "
                f"fast loader, and waits for data for {percent(shares[run])} of it; "
                "what its processes compute on the ranks' cores slows the rest."
            )
    return sentences


def _with_fast_loader(run: Run) -> str:
    return run.model_copy(update={"loader": "fast", "loader_workers": 0}).id
