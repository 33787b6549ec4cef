"""Training runs side by side: strategies, data loaders, and convolutional networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from lab.analysis.scaling import best, few, judged
from lab.analysis.scaling_curves import EXPOSED_TIME, Row, labelled_rows, ranks, rows_of, time_units
from lab.config.run import Run, distinct_labels
from lab.config.study import Study
from lab.formatting import NOT_MEASURED, count, percent, plain, rounded
from lab.records.store import Record
from lab.records.table import by_run, grouped, median

UNKNOWN = "-"
MOST_NAMES = 6  # of configurations in a sentence
LOW_LOSS = 0.04
LEAST_DIFFERENCE = 1e-5  # of two losses: anything less is rounding
COMPILED_APART = 0.1  # relative difference of losses that compilation does not explain
Text = Callable[[str], str]  # of a quantity of a row
Cells = Callable[[Run, Sequence[Record], Text], dict[str, str]]


def trained(runs: Iterable[Run], records: Sequence[Record]) -> dict[Run, list[Record]]:
    """The completed records of each training run that has some, in the order of the runs."""
    done = by_run(record for record in records if record.completed and record.timing)
    return {run: done[run.id] for run in runs if run.task == "train" and run.id in done}


def outcomes(records: Iterable[Record]) -> dict[str, str]:
    """How the runs ended of which no repeat completed, by run id: `failed or out of memory`."""
    ended = by_run(records)
    return {
        run_id: " or ".join(sorted({record.outcome for record in own}))
        for run_id, own in ended.items()
        if not any(record.completed for record in own)
    }


def table_rows(
    runs: Sequence[Run], records: Sequence[Record], summary: pd.DataFrame, cells: Cells
) -> list[dict[str, str]]:
    """A row of text per training run: its label, and `strategy_cells` or `image_cells`."""
    labels, _ = distinct_labels(runs)
    summarized = {row["run_id"]: row for row in rows_of(summary)}
    done, ended, units = trained(runs, records), outcomes(records), time_units(summary)
    return [
        {"configuration": labels[run]}
        | (
            cells(run, done[run], partial(summarized[run.id].text, units=units))
            if run in done
            else {"step": ended.get(run.id, "not run")}
        )
        for run in runs
        if run.task == "train"
    ]


def strategy_cells(run: Run, done: Sequence[Record], text: Text) -> dict[str, str]:
    """Step, throughput, memory and traffic of a rank, and loss of a configuration."""
    return {
        "step": text("step_time"),
        "samples/s": text("samples_per_second"),
        "peak (MB)": megabytes(median(done, "peak_memory")),
        "weights (MB)": megabytes(median(done, "memory.parameters")),
        "optimizer (MB)": megabytes(median(done, "memory.optimizer")),
        "sent (MB)": megabytes(median(done, "communication.bytes_moved")),
        "last loss": loss(done, "final_loss", unknown=UNKNOWN),
    }


def image_cells(run: Run, done: Sequence[Record], text: Text) -> dict[str, str]:
    """A step of a network and its parts, bytes, and epochs to a low loss."""
    parameters = median(done, "environment.parameters")
    sent = median(done, "communication.bytes_moved")
    epochs = next(filter(None, map(epochs_to_low_loss, done)), NOT_MEASURED)
    cells = {
        "trained": f"{plain(parameters / 1e6)} M" if parameters else UNKNOWN,
        "step": text("step_time"),
        "compute": text("compute_time"),
        "communication": text("communication_time"),
        "exposed": text(EXPOSED_TIME),
        "sent (MB)": megabytes(sent),
        f"epochs to loss < {LOW_LOSS}": epochs,
    }
    alone = ("communication", "exposed", "sent (MB)") if run.world_size == 1 else ()
    return cells | dict.fromkeys(alone, "none")


def megabytes(size: float | None) -> str:
    """Bytes in MB (1e6); `-` where not known, or none."""
    return rounded(size / 1e6) if size else UNKNOWN


def loss(done: Sequence[Record], quantity: str, *, unknown: str = NOT_MEASURED) -> str:
    """The median over repeats of a loss, with four decimals."""
    value = median(done, quantity)
    return unknown if value is None else f"{value:.4f}"


def _losses(record: Record) -> Sequence[float]:
    return record.quality.loss if record.quality else ()


def epochs_to_low_loss(record: Record) -> str | None:
    """The first epoch (from 1) with a mean training loss below LOW_LOSS, or what was reached.

    None if the samples do not make up epochs, or are unknown.
    """
    samples = record.environment.train_samples if record.environment else None
    if samples is None or record.quality is None:
        return None
    losses, batch = record.quality.loss, record.run.stated.global_batch_size
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
    runs: Sequence[Run],
    records: Sequence[Record],
    summary: pd.DataFrame,
    *,
    baseline: Mapping[str, Any],
) -> list[str]:
    """The fastest and the smallest strategy of each model, and how much their losses differ."""
    done, labels = trained(runs, records), _labels(runs)
    sentences: list[str] = []
    for own in _by_model(done):
        names = {run.id: labels[run] for run in own}
        rows = [row for row in labelled_rows(summary) if row["run_id"] in names]
        alike = len({run.global_batch_size for run in own}) == 1
        sentences += [*_fastest(rows, names, alike=alike), *_waits(rows, names)]
    return [*sentences, *untimed_sentences(runs, records, baseline=baseline)]


def untimed_sentences(
    runs: Sequence[Run], records: Sequence[Record], *, baseline: Mapping[str, Any]
) -> list[str]:
    """Results independent of the machine's load: state and bytes per strategy, and losses."""
    done, labels = trained(runs, records), _labels(runs)
    sizes = [text for own in _by_model(done) for text in _extremes(own, labels)]
    return [*sizes, *_loss_distances(done, baseline, labels)]


def _labels(runs: Sequence[Run]) -> dict[Run, str]:
    """Labels that distinguish all training runs."""
    return distinct_labels([run for run in runs if run.task == "train"])[0]


def _by_model(done: Mapping[Run, list[Record]]) -> Iterator[dict[Run, list[Record]]]:
    """The runs of each model that has several strategies."""
    for own in grouped((run.model, run) for run in done).values():
        if len({run.strategy for run in own}) > 1:
            yield {run: done[run] for run in own}


def _waits(rows: Sequence[Row], names: Mapping[str, str]) -> Iterator[str]:
    """The strategies that wait least and most for communication in a step."""
    waits = [row for row in rows if row["world_size"] > 1 and pd.notna(row[EXPOSED_TIME])]
    if len(waits) > 1:
        waits.sort(key=lambda row: row[EXPOSED_TIME])
        ends = waits[0], waits[-1]
        least, most = (f"{row.text(EXPOSED_TIME)} with {names[row['run_id']]}" for row in ends)
        yield f"Exposed communication of a step ranges from {least} to {most}."


def _fastest(rows: Sequence[Row], names: Mapping[str, str], *, alike: bool) -> Iterator[str]:
    """The shortest step, against those whose intervals reach it and against the baseline.

    Unless all batches are `alike`, steps do unequal work, and the highest throughput counts.
    """
    if len(rows) < 2:
        return
    first, level = best(rows, "step_time" if alike else "samples_per_second")
    text = f"The shortest step, {first.text('step_time')}"
    if not alike:
        text = f"The highest throughput, {first.text('samples_per_second')} samples/s"
    text += f", is that of {names[first['run_id']]}"
    if too_few := few(min(row["repeats"] for row in rows)):
        yield f"{text}; {too_few} to rank strategies."
    elif not level:
        yield f"{text}; its interval lies {'below' if alike else 'above'} all others."
    else:
        close = ", ".join(names[row["run_id"]] for row in level)
        yield f"{text}; the intervals do not distinguish it from {close}."
    if first.is_compared and first["baseline_run_id"] in names:
        compared = "step is {} times as fast as that" if alike else "is {} times the throughput"
        yield (
            f"That {compared.format(first.text('speedup'))} of {names[first['baseline_run_id']]}, "
            f"{judged(first)}."
        )


def _extremes(done: Mapping[Run, list[Record]], labels: Mapping[Run, str]) -> Iterator[str]:
    """The strategies that keep the least and the most on a rank, and that send least and most.

    Each on its most ranks: on fewer, the same strategy keeps and sends other amounts.
    """
    ranks: dict[str, int] = {}
    for run in done:
        ranks[run.strategy] = max(run.world_size, ranks.get(run.strategy, 0))
    widest = {run: own for run, own in done.items() if run.world_size == ranks[run.strategy]}
    quantities: dict[str, str | Callable[[Record], float | None]] = {
        "Weights and optimizer state on a rank take": _state,
        "A rank that communicates sends in a step": "communication.bytes_moved",
    }
    for what, quantity in quantities.items():
        sizes = {run: size for run, own in widest.items() if (size := median(own, quantity))}
        if sizes and min(sizes.values()) < 0.99 * max(sizes.values()):
            ends = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
            least, most = (f"{megabytes(sizes[run])} MB ({labels[run]})" for run in ends)
            yield f"{what} from {least} to {most}."


def epoch_sentences(done: Mapping[Run, list[Record]]) -> Iterator[str]:
    """How many networks reached a low loss, and the fewest and the most epochs needed."""
    labels, _ = distinct_labels(list(done))
    reached = {
        run: next(filter(None, map(epochs_to_low_loss, repeats)), None)
        for run, repeats in done.items()
        if run.architecture.kind == "cnn"
    }
    epochs = {labels[run]: int(text) for run, text in reached.items() if text and text.isdigit()}
    if not reached:
        return
    some = f"{len(epochs)} of {count(len(reached), 'configuration')}"
    if not epochs:
        yield f"The mean loss of an epoch fell below {LOW_LOSS} in {some}."
        return
    least, most = min(epochs, key=epochs.__getitem__), max(epochs, key=epochs.__getitem__)
    where = f"in epoch {epochs[least]} ({least})"
    if epochs[least] < epochs[most]:
        where = f"first {where} and last in epoch {epochs[most]} ({most})"
    elif len(epochs) > 1:
        where = f"always in epoch {epochs[least]}"
    yield f"The mean loss of an epoch fell below {LOW_LOSS} in {some}, {where}."


def _state(record: Record) -> float | None:
    memory = record.memory
    if memory is None or memory.parameters is None or memory.optimizer is None:
        return None
    return memory.parameters + memory.optimizer


def learning_sentences(study: Study, records: Sequence[Record]) -> list[str]:
    """How much losses at equal batches differ, and which world sizes have no batch in common."""
    done, labels = trained(study.runs, records), _labels(study.runs)
    batches: dict[int, set[int]] = {}
    for run, repeats in done.items():
        if run.global_batch_size is not None and any(map(_losses, repeats)):
            batches.setdefault(run.world_size, set()).add(run.global_batch_size)
    sentences = list(_loss_distances(done, study.baseline, labels))
    if len(batches) > 1 and not set.intersection(*batches.values()):
        sizes = "; ".join(
            f"{', '.join(map(str, sorted(of_size)))} on {ranks(None, size)}"
            for size, of_size in sorted(batches.items())
        )
        sentences.append(
            f"The global batch differs between world sizes ({sizes}): a step covers a different "
            "number of samples, so losses by step cannot be compared."
        )
    return sentences


def evaluated_samples(run: Run) -> int:
    """How many held-out samples a training run is evaluated on."""
    return run.eval_batches * run.stated.global_batch_size


def _loss_distances(
    done: Mapping[Run, list[Record]], baseline: Mapping[str, Any], labels: Mapping[Run, str]
) -> Iterator[str]:
    """The largest difference in loss from a baseline with equal samples and arithmetic."""
    bases = grouped(
        (_learned(run), run)
        for run in done
        if all(getattr(run, key) == value for key, value in baseline.items())
    )
    distances: dict[Run, float] = {}
    for run in done:
        others = [done[base][0] for base in bases.get(_learned(run), ()) if base != run]
        references = [base for base in others if _losses(base) and _losses(done[run][0])]
        if references and not run.architecture.depends_on_split:
            distances[run] = max(_distance(done[run][0], base) for base in references)
    if distances:
        farthest = max(distances, key=lambda run: distances[run])
        whose = labels[farthest] if " " in labels[farthest] else farthest.label
        if len(distances) > 1:
            whose = f"{len(distances)} configurations"
        text = f"At equal batch, seed and precision, the losses of {whose} lie within"
        text += f" {difference(distances[farthest])} of the baseline's over the whole training"
        several = len(distances) > 1 and distances[farthest] > LEAST_DIFFERENCE
        yield f"{text}; the farthest are those of {labels[farthest]}." if several else f"{text}."


def miscompiled(runs: Iterable[Run], records: Sequence[Record]) -> list[Run]:
    """Compiled runs whose losses are not those of the same run without compilation."""
    done = trained(runs, records)
    bases = {run: run.model_copy(update={"compile": False}) for run in done if run.compile}
    return [
        run
        for run, base in bases.items()
        if base in done and _distance(done[run][0], done[base][0]) > COMPILED_APART
    ]


def difference(losses_apart: float) -> str:
    """A relative difference of losses in percent, or the least that is not rounding."""
    return "0.001 %" if losses_apart <= LEAST_DIFFERENCE else percent(losses_apart)


def _learned(run: Run) -> tuple[str, ...]:
    """The key of runs that should learn the same."""
    fields = ("model", "data", "global_batch_size", "seed", "precision", "steps", "learning_rate")
    return tuple(repr(getattr(run, field)) for field in fields)


def _distance(record: Record, reference: Record) -> float:
    """The largest relative difference of their losses by step; 0 if none are known."""
    pairs = zip(_losses(record), _losses(reference), strict=False)
    own, other = np.array([pair for pair in pairs if pair[1]], dtype=float).reshape(-1, 2).T
    return float(np.abs(own / other - 1).max(initial=0.0))


def loader_sentences(runs: Sequence[Run], records: Sequence[Record]) -> list[str]:
    """How long a step waits for data with each loader, and the cost of the classic one."""
    done = trained(runs, records)
    labels, _ = distinct_labels(list(done))
    steps = {run: median(repeats, "timing.step.median") or 0.0 for run, repeats in done.items()}
    shares = {run: share_of_data(repeats) for run, repeats in done.items()}
    sentences = []
    for loader in ("fast", "classic"):
        if of_loader := [run for run in done if run.loader == loader]:
            worst = max(of_loader, key=shares.__getitem__)
            sentences.append(
                f"With the {loader} loader, a step waits for data for at most "
                f"{percent(shares[worst])} of its time ({labels[worst]})."
            )
    for run in done:
        fast = run.model_copy(update={"loader": "fast", "loader_workers": 0})
        if run.loader == "classic" and fast in done:
            sentences.append(
                f"With {labels[run]}, a step takes {rounded(steps[run] / steps[fast])} times as "
                f"long as with the fast loader, and waits for data for {percent(shares[run])} of "
                "its time."
            )
    return sentences


def share_of_data(records: Sequence[Record]) -> float:
    """The share of a step that waits for data."""
    data = median(records, "timing.phases.data.median")
    return (data or 0.0) / (median(records, "timing.step.median") or 1.0)
