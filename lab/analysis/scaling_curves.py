"""Lines of a study: configurations that differ in their world size alone, and what they are called."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pandas as pd

from lab.config.run import Run, setting_label
from lab.records.store import Record

Scaling = Literal["strong", "weak", "none"]
FIELDS = tuple(Run.model_fields)
# How long is trained and evaluated: told only where nothing else tells lines apart.
LENGTHS = {"steps", "warmup_steps", "lr_warmup_steps", "eval_batches"}
# Batch fields that follow from the world size, and the one that says how much work a step is.
FREE = {
    "strong": {"micro_batch_size", "grad_accum"},
    "weak": {"global_batch_size"},
    "none": {"micro_batch_size", "grad_accum"},
}
WORK = {
    "strong": {"global_batch_size"},
    "weak": {"micro_batch_size", "grad_accum"},
    "none": {"global_batch_size"},
}


class Curve(NamedTuple):
    """Configurations that differ in their world size alone: a short name and their rows, by world size."""

    label: str
    points: pd.DataFrame


def curves(summary: pd.DataFrame) -> list[Curve]:
    """The lines of a figure: rows of a summary grouped by all but the world size and the batch fields that follow from it.

    A label tells the batch and whatever else differs between lines, such as `batch 64` or `batch 64, bf16`, and always what
    was emulated.
    """
    if summary.empty:
        return []
    scaling = summary["scaling"].iloc[0]
    machine = ["machine"] if "machine" in summary else []
    held = [
        field
        for field in (*FIELDS, "device", *machine, "emulated")
        if field not in FREE[scaling] | {"world_size"}
    ]
    for extra in ([], ["grad_accum"], ["micro_batch_size"], ["grad_accum", "micro_batch_size"]):
        keys = [*held, *(field for field in extra if field not in held)]
        if not summary.duplicated([*keys, "world_size"]).any():
            break
    varied = [key for key in keys if summary[key].nunique(dropna=False) > 1]
    models = _shortest(sorted(set(summary["model"])))
    groups = [
        rows.sort_values("world_size", ignore_index=True)
        for _, rows in summary.groupby(keys, sort=False, dropna=False)
    ]
    for told in ([key for key in varied if key not in LENGTHS], varied):
        labels = [_label(rows.iloc[0], told, models) for rows in groups]
        if len(set(labels)) == len(labels):
            break
    return list(map(Curve, labels, groups))


def _label(row: pd.Series[Any], varied: Sequence[str], models: Mapping[str, str]) -> str:
    weak = row["scaling"] == "weak"
    parts = [
        f"batch {row['micro_batch_size'] * row['grad_accum']} per rank"
        if weak
        else f"batch {row['global_batch_size']}"
    ]
    follow = {
        "global_batch_size",
        *({"micro_batch_size"} if weak and "grad_accum" not in varied else ()),
    }
    for key in varied:
        value = row[key]
        if key in {"emulated", *follow} or (key == "device" and "machine" in varied):
            continue
        if key == "model":
            parts.append(models[value])
        elif key in {"data", "strategy", "precision", "device", "machine"}:
            parts.append({"cpu": "CPU", "cuda": "GPU"}.get(str(value), str(value)))
        elif pd.notna(value) and value != Run.model_fields[key].default:
            parts.append(setting_label(key, value))
    if row["emulated"] and "machine" not in row:  # a machine's name tells it
        parts.append(f"emulated {row['emulated']}")
    return ", ".join(parts)


def _shortest(names: Sequence[str]) -> dict[str, str]:
    """As much of each name, up to a comma, as tells it from the others."""
    parts = {name: name.split(", ") for name in names}
    for length in range(1, max(map(len, parts.values()), default=0)):
        short = {name: ", ".join(words[:length]) for name, words in parts.items()}
        if len(set(short.values())) == len(short):
            return short
    return {name: name for name in names}


def ranks(device: str | None, count: int | None = None) -> str:
    """What a rank is on this kind of device, for people: `1 GPU`, `4 CPU processes`; the plural alone without a count."""
    word = {"cuda": "GPU", "cpu": "CPU process"}.get(str(device), "rank")
    plural = word + ("es" if word.endswith("s") else "s")
    return plural if count is None else f"{count} {word if count == 1 else plural}"


def device_of(summary: pd.DataFrame) -> str | None:
    """The kind of device of all configurations; None where they differ or nothing is known."""
    devices = set(summary["device"])
    return str(devices.pop()) if len(devices) == 1 else None


def baseline_name(summary: pd.DataFrame) -> str:
    """What speedups are over, for people: `1 CPU process` where every line holds its own baseline, else `the baseline`."""
    for _, points in curves(summary):
        others = set(points["baseline_run_id"].dropna()) - set(points["run_id"])
        if others:
            return "the baseline"
    sizes = set(summary["world_size"][summary["run_id"] == summary["baseline_run_id"]])
    return ranks(device_of(summary), sizes.pop()) if len(sizes) == 1 else "the baseline"


Quantity = Callable[[Record], float | None]


def trained(runs: Iterable[Run], records: Sequence[Record]) -> dict[Run, list[Record]]:
    """The completed records of each run that trains, in the order of the runs; none where none completed."""
    done = [record for record in records if record.completed and record.timing is not None]
    return {
        run: [record for record in done if record.run_id == run.id]
        for run in runs
        if run.task == "train"
    }


def median(records: Sequence[Record], quantity: Quantity) -> float | None:
    """The median over repeats of a quantity of each; None where no repeat has it."""
    values = [value for record in records if (value := quantity(record)) is not None]
    return statistics.median(values) if values else None


def step(record: Record) -> float | None:
    """The median step of the slowest rank, in s."""
    return record.timing.step.median if record.timing else None


def phase(name: str) -> Quantity:
    """The quantity that is the median of a phase of the step, in s."""
    return lambda record: (
        record.timing.phases[name].median
        if record.timing and name in record.timing.phases
        else None
    )


def link(name: str) -> Quantity:
    """The quantity that is a number or the median of a part of Communication."""

    def read(record: Record) -> float | None:
        found = getattr(record.communication, name, None)
        return getattr(found, "median", found)

    return read


LOW_ENOUGH = 0.04


class Epochs(NamedTuple):
    """Means of the training loss over whole epochs, and the first epoch (from 1) whose mean is below the limit."""

    means: tuple[float, ...]
    trained: float
    reached: int | None

    @property
    def said(self) -> str:
        """For people: the epoch, or that it was not reached, and the lowest mean."""
        if self.reached is not None:
            return str(self.reached)
        if not self.means:
            return f"not reached ({self.trained:.1f} epochs)"
        return f"not reached ({min(self.means):.2g})"


def epochs(record: Record, *, limit: float = LOW_ENOUGH) -> Epochs | None:
    """The epochs of a completed training; None where samples make up no epochs, or nothing is known of them."""
    samples = record.environment.train_samples if record.environment else None
    if samples is None or record.quality is None:
        return None
    means = epoch_means(record.quality.loss, samples=samples, batch=record.run.global_batch_size)
    reached = next((number for number, mean in enumerate(means, 1) if mean < limit), None)
    return Epochs(
        tuple(means), len(record.quality.loss) * record.run.global_batch_size / samples, reached
    )


def epoch_means(losses: Sequence[float], *, samples: int, batch: int) -> list[float]:
    """The mean loss of each whole epoch; a step belongs to the epoch in which its last sample lies."""
    means: list[float] = []
    first = 0
    while (last := ((len(means) + 1) * samples - 1) // batch) < len(losses):
        part = (
            losses[first : last + 1] or losses[last : last + 1]
        )  # an epoch may be smaller than a batch
        means.append(sum(part) / len(part))
        first = last + 1
    return means
