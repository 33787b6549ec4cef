"""Scaling curves: configurations that differ only in world size, and their labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lab.config.run import Run, setting_label
from lab.config.strategies import SETTINGS
from lab.config.study import Scaling as Scaling
from lab.formatting import Unit, format_seconds, percent, range_of, rounded, unit_for

FIELDS = tuple(Run.model_fields)
# How long a run trains and evaluates: in a label only if nothing else distinguishes curves.
LENGTHS = {"steps", "warmup_steps", "lr_warmup_steps", "eval_batches"}
# Batch fields that follow from the world size, and those that set how much work a step is.
PER_RANK, GLOBAL = {"micro_batch_size", "grad_accum"}, {"global_batch_size"}
FREE = {"strong": PER_RANK, "weak": GLOBAL, "none": PER_RANK}
WORK = {"strong": GLOBAL, "weak": PER_RANK, "none": GLOBAL}
# What a baseline shares with a run unless the study names another value for it.
EQUAL = [f for f in FIELDS if f not in {"world_size", "strategy", *SETTINGS, *PER_RANK, *GLOBAL}]
EXPOSED_TIME = "exposed_communication_time"
SHARES = ("efficiency", "mfu")  # quantities that are written in per cent
GIVEN = ("step_time", "samples_per_second", "mfu")  # those that a results table gives itself
SHORT = 0.01  # a column of which even the longest time is less than this of a unit has its own
WHOLE_RANGE = 4  # the range of up to this many repeats is their interval, and called so


class Estimate(NamedTuple):
    """A value and the ends of its interval over repeats, NaN if there is none."""

    value: float
    low: float = math.nan
    high: float = math.nan

    def over(self, other: Estimate) -> Estimate:
        """Their ratio, with the ends that both intervals permit if all of these are positive."""
        ratio = self.value / other.value
        if not (self.low > 0 and other.low > 0):
            return Estimate(ratio)
        return Estimate(ratio, self.low / other.high, self.high / other.low)


class Curve(NamedTuple):
    """A short name, and the rows of a summary by world size."""

    label: str
    points: pd.DataFrame


def curves(summary: pd.DataFrame) -> list[Curve]:
    """Group a summary's rows by all but the world size and the batch fields that follow from it.

    A label names the model if it differs between curves, the batch, what else differs
    (`gpt2-small, batch 64, bf16`), and what was emulated.
    """
    if summary.empty:
        return []
    if "configuration" in summary:
        return list(_reported_curves(summary))
    free = FREE[summary["scaling"].iloc[0]]
    machine = ["machine"] if "machine" in summary else []
    fields = [*FIELDS, "device", *machine, "emulated"]
    fixed = [field for field in fields if field not in free | {"world_size"}]
    # Plain tuples: pandas groups a few rows by forty columns much slower than by one number.
    rows = rows_of(summary)
    values = {field: [hashable(row[field]) for row in rows] for field in fields}
    for extra in ([], ["grad_accum"], ["micro_batch_size"], ["grad_accum", "micro_batch_size"]):
        keys = list(dict.fromkeys(fixed + extra))
        identities = list(zip(*(values[key] for key in keys), strict=True))
        if len(set(zip(identities, values["world_size"], strict=True))) == len(summary):
            break
    varied = [key for key in keys if len(set(values[key])) > 1]
    models = shortest(sorted(set(summary["model"])))
    numbers: dict[tuple[Any, ...], int] = {}
    number_of = [numbers.setdefault(identity, len(numbers)) for identity in identities]
    groups = [
        rows.sort_values("world_size", ignore_index=True)
        for _, rows in summary.groupby(np.array(number_of), sort=False)
    ]
    for named in ([key for key in varied if key not in LENGTHS], varied):
        labels = [_label(rows.iloc[0], named, models) for rows in groups]
        if len(set(labels)) == len(labels):
            break
    return list(map(Curve, labels, groups))


def _reported_curves(summary: pd.DataFrame) -> Iterator[Curve]:
    """The curves that a results table names, each with its baseline.

    A row that only serves as a baseline for others is not a curve of its own.
    """
    groups = dict(list(summary.groupby("configuration", sort=False)))
    shared = {
        base
        for label, rows in groups.items()
        for base in rows["baseline_run_id"].dropna()
        if base not in set(rows["run_id"])
    }
    for label, rows in groups.items():
        if set(rows["run_id"]) <= shared:
            continue
        points = summary[summary["run_id"].isin({*rows["run_id"], *rows["baseline_run_id"]})]
        yield Curve(str(label), points.sort_values("world_size", ignore_index=True))


def _label(row: pd.Series[Any], varied: Sequence[str], models: Mapping[str, str]) -> str:
    implied = {"global_batch_size", "emulated"} | ({"device"} if "machine" in varied else set())
    unknown = pd.isna(row["micro_batch_size"])  # of a script that did not report it
    parts = [models[row["model"]]] if unknown or "model" in varied else []
    if row["scaling"] == "weak" and not unknown:
        parts.append(f"batch {row['micro_batch_size'] * row['grad_accum']} per rank")
        implied |= set() if "grad_accum" in varied else {"micro_batch_size"}
    elif not unknown:
        parts.append(f"batch {row['global_batch_size']}")
    for key in varied:
        value = row[key]
        if key in implied | {"model"} or (key == "own_strategy" and pd.isna(value)):
            continue
        if key == "strategy" and "own_strategy" in varied and pd.notna(row["own_strategy"]):
            continue  # it is named after its factory and arguments
        if key == "own_strategy":
            parts.append(value)
        elif key in {"data", "strategy", "precision", "device", "machine"}:
            parts.append({"cpu": "CPU", "cuda": "GPU"}.get(str(value), str(value)))
        elif pd.notna(value) and value != Run.model_fields[key].default:
            parts.append(setting_label(key, value))
    if row["emulated"] and row["emulated"] not in str(row.get("machine")):
        parts.append(f"emulated {row['emulated']}")
    return ", ".join(parts)


def shortest(names: Sequence[str]) -> dict[str, str]:
    """As much of each name, up to a comma, as distinguishes it from the others."""
    parts = {name: name.split(", ") for name in names}
    for length in range(1, max(map(len, parts.values()), default=0)):
        short = {name: ", ".join(words[:length]) for name, words in parts.items()}
        if len(set(short.values())) == len(short):
            return short
    return {name: name for name in names}


def hashable(cell: Any) -> Any:
    """The cell, or None if it is missing: NaN, which differs from itself, is not found in a set."""
    return None if cell is pd.NA or cell != cell else cell


class Row(dict[Any, Any]):
    """A row of a summary, with what sentences, tables and figures say of it."""

    label = ""  # of its curve
    base: Row | None = None  # what it is compared with, which may be itself

    @property
    def ranks(self) -> str:
        """Its ranks in words, such as `2 CPU processes`."""
        return ranks(self["device"], self["world_size"])

    def key(self, of: str = "run_id") -> tuple[Any, ...]:
        """What identifies it among the rows of its summary, or its baseline, by this column."""
        return self.get("machine"), self["emulated"], self[of]

    @property
    def place(self) -> str:
        """Its ranks and its curve: `2 CPU processes at batch 16`."""
        return f"{self.ranks} {at(self.label)}"

    @property
    def is_baseline(self) -> bool:
        """Whether it is the baseline of its curve."""
        return bool(self["run_id"] == self["baseline_run_id"])

    @property
    def is_compared(self) -> bool:
        """Whether its speedup is over another configuration of its summary."""
        return self.base is not None and not self.is_baseline and pd.notna(self["speedup"])

    @property
    def is_gain_of_ranks(self) -> bool:
        """Whether its speedup is that of more ranks alone, whatever strategy uses them."""
        base = self.base
        if base is None or not self.is_compared or base["world_size"] >= self["world_size"]:
            return False
        return all(hashable(self[field]) == hashable(base[field]) for field in EQUAL)

    def estimate(self, quantity: str) -> Estimate:
        """A quantity with the ends of its interval, if it has one."""
        ends = (self.get(f"{quantity}_{end}", math.nan) for end in ("low", "high"))
        return Estimate(self[quantity], *ends)

    def text(self, quantity: str, units: Mapping[str, Unit] | None = None) -> str:
        """A quantity with its interval: a time (in a unit of `time_units`), a share, a number."""
        given = "configuration" in self and quantity in GIVEN
        if quantity.endswith("_time"):
            unit = (units or {}).get(quantity)
            return format_seconds(*self.estimate(quantity), unit=unit, given=given)
        return (percent if quantity in SHARES else rounded)(*self.estimate(quantity), given=given)


def rows_of(frame: pd.DataFrame) -> list[Row]:
    """The rows of a summary, with native Python numbers.

    For a frame of few rows and many columns, pandas' `to_dict` takes ten times as long.
    """
    names, rows = list(frame), frame.to_numpy(dtype=object).tolist()
    return [Row(zip(names, row, strict=True)) for row in rows]


def time_units(summary: pd.DataFrame) -> dict[str, Unit]:
    """A unit for each column of times, so that its cells can be compared: that of the median step.

    Where even the longest time is a hundredth of that, it is the unit of the longest.
    """
    of_step = unit_for([summary["step_time"].median()])
    longest = {name: summary[name].max() for name in map(str, summary) if name.endswith("_time")}
    return {
        name: of_step if time * of_step.factor >= SHORT else unit_for([time])
        for name, time in longest.items()
    }


def rows_by_curve(summary: pd.DataFrame) -> list[list[Row]]:
    """The rows of each curve by world size, with its label and their baselines."""
    lines = [(label, rows_of(points)) for label, points in curves(summary)]
    every = {row.key(): row for _, rows in lines for row in rows}
    for label, rows in lines:
        own = {row.key(): row for row in rows}  # of a table several may hold a baseline
        for row in rows:
            base = row.key("baseline_run_id")
            row.label, row.base = label, own.get(base) or every.get(base)
    return [rows for _, rows in lines]


def labelled_rows(summary: pd.DataFrame) -> list[Row]:
    """The rows of all curves, one curve after the other."""
    return [row for rows in rows_by_curve(summary) for row in rows]


def borrowed_rows(summary: pd.DataFrame) -> list[Row]:
    """The rows of a results table that are on one curve as the baseline of another one."""
    rows = labelled_rows(summary)
    labels = {row.label for row in rows}
    return [row for row in rows if row["configuration"] in labels - {row.label}]


def measured_rows(summary: pd.DataFrame) -> list[Row]:
    """The rows of all curves of a results table, without those that they only borrow."""
    borrowed = {(row.label, row["run_id"]) for row in borrowed_rows(summary)}
    return [row for row in labelled_rows(summary) if (row.label, row["run_id"]) not in borrowed]


def interval_name(repeats: Sequence[int]) -> str:
    """What the intervals of values from these numbers of repeats are; empty if none has one.

    The range of two to four repeats covers the median of all possible ones in 50 to 88 % of cases
    (1 - 2^(1 - n)).
    """
    several = [count for count in repeats if count > 1]
    if not several:
        return ""
    if max(several) <= WHOLE_RANGE:
        return "range"
    few = min(several) <= WHOLE_RANGE
    return "95 % interval" + f"; of up to {WHOLE_RANGE} repeats their range" * few


def over_repeats(repeats: Iterable[int]) -> str:
    """What a value with its interval is, for a caption: `median over 3 repeats [range]`."""
    counts = [*map(int, repeats)]
    interval = interval_name(counts)
    if not interval:
        return "from one repeat, which gives no interval"
    return f"median over {range_of(counts, 'repeat')} [{interval}]"


def ranks(device: str | None, count: int | None = None) -> str:
    """Ranks on a kind of device, in words: `1 GPU`, `4 CPU processes`, without a count `GPUs`."""
    words = {"cuda": "GPU", "cpu": "CPU process", "node": "node", "core": "core"}
    word = words.get(str(device), "rank")
    plural = word + ("es" if word.endswith("s") else "s")
    return plural if count is None else f"{count} {word if count == 1 else plural}"


def common_ranks(summary: pd.DataFrame) -> str:
    """The ranks of its configurations, such as `1 GPU`, if several all have the same; else empty.

    Where a caption tells them, its rows need not.
    """
    alike = len(summary) > 1 and len(set(summary["world_size"])) == len(set(summary["device"])) == 1
    return ranks(device_of(summary), summary["world_size"].iloc[0]) if alike else ""


def named_rows(summary: pd.DataFrame, shared: str) -> Iterator[tuple[str, Row]]:
    """Each row of the curves with its name, without the ranks that all share."""
    for row in labelled_rows(summary):
        yield row.label if row.ranks == shared else f"{row.ranks}, {row.label}", row


def at(label: str) -> str:
    """A curve's label with its preposition: `at batch 16`, but `with train.py`."""
    return f"{'at' if label.startswith('batch ') else 'with'} {label}"


def time_name(summary: pd.DataFrame) -> str:
    """What its times are: `step time`, or for a results table perhaps `epoch time` or `time`."""
    per = set(summary["per"]) if "per" in summary else {"step"}
    return {"step": "step time", "epoch": "epoch time"}.get(per.pop(), "time")


def rate_name(summary: pd.DataFrame) -> str:
    """The unit of its rates: `samples/s`, or of a results table what it states: `ns/day`, `1/s`."""
    if "rate_of" not in summary:
        return "samples/s"
    first = summary.iloc[0]
    return f"{first['rate_of'] or '1'}/{first['rate_per']}"


def memory_name(summary: pd.DataFrame) -> str:
    """What its memory is: the peak of a rank, or for a results table what its column holds."""
    return "memory" if "per" in summary else "peak memory of a rank"


def device_of(summary: pd.DataFrame) -> str | None:
    """The kind of device of all configurations; None if they differ or it is unknown."""
    devices = set(summary["device"])
    return str(devices.pop()) if len(devices) == 1 else None


def compares(summary: pd.DataFrame) -> bool:
    """Whether any configuration is compared with another; also if all baselines are missing.

    The work of a script may be unknown, so that its runs are compared with none of the others.
    """
    others = summary["run_id"] != summary["baseline_run_id"]
    return bool(others.any() and (others.all() or summary.loc[others, "speedup"].notna().any()))


def ranks_vary(summary: pd.DataFrame) -> bool:
    """Whether a configuration has other ranks than its baseline, or none to be compared with.

    If not, each efficiency equals its speedup.
    """
    rows = rows_of(summary)
    sizes = {row.key(): row["world_size"] for row in rows}
    return any(sizes.get(row.key("baseline_run_id")) != row["world_size"] for row in rows)


def baseline_name(summary: pd.DataFrame) -> str:
    """What speedups are relative to: `1 CPU process` if every curve has it, or `the baseline`."""
    own = all(
        set(points["baseline_run_id"].dropna()) <= set(points["run_id"])
        for _, points in curves(summary)
    )
    sizes = set(summary["world_size"][summary["run_id"] == summary["baseline_run_id"]])
    return ranks(device_of(summary), sizes.pop()) if own and len(sizes) == 1 else "the baseline"
