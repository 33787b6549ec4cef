"""Speedup and efficiency of configurations over repeats, with intervals, and what these support."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lab.analysis.laws import gustafson_fraction
from lab.analysis.scaling_curves import (
    FIELDS,
    FREE,
    WHOLE_RANGE,
    WORK,
    Estimate,
    Row,
    Scaling,
    hashable,
    rows_by_curve,
    rows_of,
)
from lab.config.strategies import SETTINGS
from lab.errors import InputError, Problem, nearest
from lab.formatting import percent, rounded
from lab.records.schema import PHASES
from lab.records.statistics import bootstrap_interval, median_interval
from lab.records.table import grouped, python_strings

Samples = np.ndarray[Any, np.dtype[np.float64]]
Cells = Mapping[str, Any]
# Quantities measured per repeat that get an interval; times in s. compute_time is forward and
# backward without the communication exposed in them.
EXPOSED = ("communication", "forward", "backward", "optimizer")
COSTS = ("straggler", "transfer", "sync_cost", "stolen_compute", "ddp_overhead")
RATES = ("samples_per_second", "tokens_per_second")
QUANTITIES = (
    *(f"{part}_time" for part in ("step", *PHASES, "compute", "communication")),
    *(f"exposed_{part}_time" for part in EXPOSED),
    *(f"{cost}_time" for cost in COSTS),
    *RATES,
    "mfu",
)
MEDIANS = ("peak_memory", "setup_time", "train_time", "final_loss", "validation_loss")
RATIOS = ("speedup", "efficiency")
# Of a results table, what has an interval of its own, and its column there.
MEASURED = {"step_time": "time", "samples_per_second": "rate"}
# What only records of a table have.
REPORTED = (
    "configuration",
    "per",
    "unit",
    "cores_per_rank",
    "rate_of",
    "rate_per",
    "gradient_bytes",
)
ENDS = ("", "_low", "_high")
RESAMPLES = 1999
SEED = 20250
# The ranges of two sets of n repeats of equal runs are disjoint by chance with probability
# 2 / binomial(2n, n): 1 in 3 for two repeats, 1 in 10 for three.
FEWEST_REPEATS = 3


class Repeats(NamedTuple):
    """The completed repeats of one configuration.

    The first as a row of the table, the devices of all, and the known values of each quantity.
    """

    first: Cells
    devices: Sequence[Any]
    samples: Mapping[str, Samples]


@python_strings()
def summary(table: pd.DataFrame, *, baseline: Mapping[str, Any], scaling: Scaling) -> pd.DataFrame:
    """One row per configuration with completed repeats: medians with 95 % intervals, and speedups.

    Columns: `run_id`, the fields of Run, `scaling`, `device` ("mixed" where repeats disagree),
    `repeats`; QUANTITIES and RATIOS each with `_low` and `_high`; MEDIANS; `baseline_run_id`.
    Unknown values are NaN: an interval from one repeat or of the baseline against itself (1 by
    definition), a speedup without a measured baseline. A table of several machines names them in
    the column `machine`: a configuration and its baseline are on one machine, and both measured or
    both emulated.

    The baseline of a run is the one completed run on the same kind of device that has the values
    of `baseline` and equals the run in every other field. Exempt are the fields that follow from
    the world size (strong: micro_batch_size and grad_accum; weak: global_batch_size) and, on one
    rank or if `baseline` names a strategy, strategy-specific settings. Of several, it is the one
    with equal settings, then grad_accum, then micro_batch_size; else there is none. Work is always
    equal: strong (and "none") at one global batch, weak at one batch per rank. If the batch of a
    script is unknown, it counts as equal if the study says how it scales; else it is not compared.

    With T the median step time over repeats and X the throughput at it, N the world size, B the
    baseline: strong: `speedup = T(B)/T(N)`, `efficiency = speedup N_B/N`; weak: `efficiency =
    T(B)/T(N)`, `speedup = X(N)/X(B)`. Intervals of medians over repeats are by order statistics
    (Hettmansperger and Sheather 1986), of the ratio of two medians by percentile bootstraps (Efron
    1979), resampled independently: a resumed study breaks pairs of repeats, and if the pairs hold,
    the independent interval is the wider one. With two to four repeats it is the whole range.

    The rows of a results table name their curve, scaling and baseline, and the work that a time
    covers relative to the baseline's. An interval that the table gives for a single time is kept.

    Raises InputError for a baseline key that is not a field of a run.
    """
    unknown = [key for key in baseline if key not in FIELDS]
    if unknown:
        problems = [
            Problem(f"baseline.{key}", "unknown key", nearest(key, FIELDS)) for key in unknown
        ]
        raise InputError("baseline", problems)
    identity = [*(["machine"] if "machine" in table else []), "emulated", "run_id"]
    reported = "configuration" in table
    repeats = _configurations(_as_measured(table) if reported else table, identity)
    groups = {_key(group.first): group for group in repeats}
    rows = [_medians(group, identity) for group in groups.values()]
    if reported:
        rows = [row | _stated(group) for row, group in zip(rows, groups.values(), strict=True)]
        named = {row["run_id"]: row for row in rows}
        bases: Sequence[Cells | None] = [named.get(row["baseline_run_id"]) for row in rows]
    else:
        rows = [row | {"scaling": scaling, "baseline_run_id": None} for row in rows]
        bases = _baselines(rows, baseline, scaling)
    for row, base in zip(rows, bases, strict=True):
        if base:
            row["baseline_run_id"] = base["run_id"]
            row |= _ratios(row, groups[_key(row)], base, groups[_key(base)])
    if reported:
        return pd.DataFrame(rows, columns=[*_summary_columns(identity), *REPORTED])
    frame = pd.DataFrame(rows, columns=_summary_columns(identity))
    order = [field for field in FIELDS if field not in FREE[scaling] | {"world_size"}]
    order = ["emulated", *order, "world_size", *sorted(FREE[scaling])]
    # Sorting by all fields takes longer than all else, and few of them vary.
    varied = [name for name in order if len({hashable(row[name]) for row in rows}) > 1]
    if not varied:
        return frame
    return frame.sort_values(varied, ignore_index=True, kind="stable", key=_in_order)


def _in_order(column: pd.Series[Any]) -> pd.Series[Any]:
    """A key that sorts names as they first appear: a study's models as its grid lists them."""
    # What was not emulated has an empty name, and comes first.
    names = dict.fromkeys(["", *(cell for cell in column if isinstance(cell, str))])
    places = {name: nth for nth, name in enumerate(names)}
    return column.map(lambda cell: places.get(cell, cell))


def _summary_columns(identity: Sequence[str]) -> list[str]:
    columns = [*identity, *FIELDS, "scaling", "device", "repeats"]
    columns += [f"{name}{end}" for name in QUANTITIES + RATIOS for end in ENDS]
    return [*columns, *MEDIANS, "baseline_run_id"]


def _as_measured(table: pd.DataFrame) -> pd.DataFrame:
    """A results table with its times and rates as those of steps.

    `step_time` is a time per `per`, `samples_per_second` a rate of `rate_of` per
    `rate_per`.
    """
    times = {"step_time": table["time"], "samples_per_second": table["rate"]}
    devices = table["unit"].map({"GPU": "cuda", "node": "node", "core": "core"}).astype(object)
    return table.assign(**times, device=devices.where(devices.notna(), None))


def _stated(group: Repeats) -> dict[str, Any]:
    """What a results table itself states of a configuration: its scaling, its baseline, and an
    interval of a single time or rate."""
    first = group.first
    stated = {name: first[name] for name in ("scaling", *REPORTED)}
    for name, column in MEASURED.items():
        if len(group.devices) == 1 and pd.notna(first[f"{column}_low"]):
            stated |= {f"{name}{end}": first[f"{column}{end}"] for end in ENDS[1:]}
    return stated | {"baseline_run_id": first["baseline"]}


def _key(row: Cells) -> tuple[Any, ...]:
    return row.get("machine"), row["emulated"], row["run_id"]


def _configurations(table: pd.DataFrame, identity: Sequence[str]) -> list[Repeats]:
    """The completed repeats by configuration, in the order of the table."""
    if table.empty:
        return []
    timed = table[["step_time", "samples_per_second"]].notna().any(axis=1)
    # All at once: group by group and column by column, pandas would take most of a summary's time.
    rows = rows_of(table[(table["status"] == "completed") & timed])
    numbers = _numbers(rows)
    for row in rows:
        row["emulated"] = hashable(row.get("emulated")) or ""
    places = grouped((tuple(row[key] for key in identity), nth) for nth, row in enumerate(rows))
    groups = []
    for own in places.values():
        samples = {name: values[own] for name, values in numbers.items()}
        samples = {name: values[~np.isnan(values)] for name, values in samples.items()}
        devices = [rows[place]["device"] for place in own]
        groups.append(Repeats(rows[own[0]], devices, samples))
    return groups


def _numbers(rows: Sequence[Cells]) -> dict[str, Samples]:
    """Each quantity of these rows, NaN if unknown, with the derived compute time."""
    names = [name for name in (*QUANTITIES, *MEDIANS) if name != "compute_time"]
    cells = np.array([row[name] for name in names for row in rows], dtype=object)
    columns = pd.to_numeric(cells, errors="coerce").astype(np.float64).reshape(len(names), -1)
    numbers = dict(zip(names, columns, strict=True))
    compute = numbers["forward_time"] + numbers["backward_time"]
    for phase in ("forward", "backward"):
        compute = compute - np.nan_to_num(numbers[f"exposed_{phase}_time"])
    return numbers | {"compute_time": compute}


def _medians(group: Repeats, identity: Sequence[str]) -> dict[str, Any]:
    devices = {device for device in group.devices if isinstance(device, str)}
    row: dict[str, Any] = {str(key): group.first[key] for key in (*identity, *FIELDS)}
    row["repeats"] = len(group.devices)
    row["device"] = devices.pop() if len(devices) == 1 else "mixed" if devices else None
    samples = {name: group.samples[name] for name in QUANTITIES}
    for size in {sample.size for sample in samples.values()}:
        names = [name for name, sample in samples.items() if sample.size == size]
        # Together they take the time of one, and draw the same samples as each would alone.
        intervals = np.column_stack(_interval(np.stack([samples[name] for name in names])))
        for name, interval in zip(names, intervals, strict=True):
            row |= _columns(name, interval)
    for name in RATES:
        row |= _at_median_step(name, samples, row)
    for name in MEDIANS:
        values = group.samples[name]
        row[name] = float(np.median(values)) if values.size else float("nan")
    return row


def _at_median_step(rate: str, samples: Mapping[str, Samples], row: Cells) -> dict[str, float]:
    """The rate at the median step, if all steps do the same work.

    Of an even number of repeats, the median rate would be another, and speedups would contradict
    efficiencies.
    """
    steps, rates = samples["step_time"], samples[rate]
    if not steps.size or steps.size != rates.size:
        return {}
    work = steps * rates
    if not np.allclose(work, work[0], rtol=1e-6):
        return {}
    ends = (row[f"step_time{end}"] for end in ("", "_high", "_low"))
    return _columns(rate, [work[0] / end for end in ends])


def _columns(name: str, interval: Sequence[Any], factor: float = 1.0) -> dict[str, float]:
    return {f"{name}{end}": float(part) * factor for end, part in zip(ENDS, interval, strict=True)}


def _ratio_of_medians(top: Any, bottom: Any, axis: int = -1) -> Any:
    return np.median(top, axis=axis) / np.median(bottom, axis=axis)


def _interval(*samples: Samples) -> tuple[Any, Any, Any]:
    """The median of one sample or the ratio of two medians, along the last axis, with interval."""
    fewest = min(sample.shape[-1] for sample in samples)
    nothing = np.full(samples[0].shape[:-1], np.nan)
    if not fewest:
        return nothing, nothing, nothing
    statistic: Any = np.median if len(samples) == 1 else _ratio_of_medians
    value = statistic(*samples, axis=-1)
    if fewest == 1:
        return value, nothing, nothing
    if len(samples) == 1:
        return value, *median_interval(*samples)
    if max(sample.shape[-1] for sample in samples) <= WHOLE_RANGE:
        top, bottom = samples
        return value, top.min(-1) / bottom.max(-1), top.max(-1) / bottom.min(-1)
    return value, *bootstrap_interval(samples, statistic, resamples=RESAMPLES, seed=SEED)


def ratio(top: Samples, bottom: Samples) -> Estimate:
    """The ratio of the medians of two samples, with its interval as in `summary`."""
    return Estimate(*map(float, _interval(top, bottom)))


def _has(row: Cells, baseline: Cells) -> bool:
    return all(row[key] == value for key, value in baseline.items())


def _baselines(rows: Sequence[Cells], baseline: Cells, scaling: Scaling) -> list[Cells | None]:
    """The baseline of each row, by an index of those that can be one."""
    # On one rank the settings of a strategy have no effect.
    settings = set(SETTINGS) if "strategy" in baseline or baseline.get("world_size") == 1 else set()
    free = FREE[scaling] | (set(baseline) - WORK[scaling]) | settings
    equal = sorted({*FIELDS, "device", "machine", "emulated"} - free)
    alike = grouped((_text(row, equal), row) for row in rows if _has(row, baseline))

    def baseline_of(row: Cells) -> Cells | None:
        if _has(row, baseline):
            return row
        if row["device"] == "mixed" or (scaling == "none" and pd.isna(row["global_batch_size"])):
            return None
        bases = alike.get(_text(row, equal), [])
        # Unknown values (NaN) equal nothing, although their text is the same.
        bases = [base for base in bases if all(base.get(key) == row.get(key) for key in equal)]
        for field in (*SETTINGS, "grad_accum", "micro_batch_size"):
            if len(bases) > 1:
                bases = [base for base in bases if base[field] == row[field]] or bases
        return bases[0] if len(bases) == 1 else None

    return list(map(baseline_of, rows))


def _text(row: Cells, keys: Sequence[str]) -> str:
    """Some values of a row as text; equal numbers give equal text."""
    values = (row.get(key) for key in keys)
    return repr([float(one) if isinstance(one, int | float) else one for one in values])


def _ratios(row: Cells, here: Repeats, base: Cells, there: Repeats) -> dict[str, float]:
    """Speedup and efficiency: ratios of times, allowing for the work that each covers, else of
    rates."""
    if base is row:
        return {"speedup": 1.0, "efficiency": 1.0}
    work, ideal = 1.0, row["world_size"] / base["world_size"]
    if "work" in here.first:  # as a results table tells it
        work = here.first["work"]
    elif row["scaling"] == "weak":
        done, before = (one["samples_per_second"] * one["step_time"] for one in (row, base))
        # If samples are unknown, as many are on each rank.
        work = ideal = ideal if pd.isna(done / before) else done / before
    gain = _interval(there.samples["step_time"], here.samples["step_time"])
    if not np.isfinite(gain[0]):
        rates = (group.samples["samples_per_second"] for group in (here, there))
        gain, work = _interval(*rates), 1.0
    speedup = _columns("speedup", gain, factor=work)
    return speedup | _columns("efficiency", gain, factor=work / ideal)


def by_emulation(summary: pd.DataFrame) -> list[pd.DataFrame]:
    """Measured results and those of each emulation, kept apart: none is compared with another."""
    return [part for _, part in summary.groupby("emulated")]


def beyond_baseline(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of a summary that have a baseline other than themselves."""
    return rows[rows["speedup"].notna() & (rows["run_id"] != rows["baseline_run_id"])]


def farthest(summary: pd.DataFrame) -> list[Row]:
    """Of each curve with a row beyond its baseline, the row on the most ranks."""
    beyond = [[row for row in rows if row.is_compared] for rows in rows_by_curve(summary)]
    return [rows[-1] for rows in beyond if rows]


def gains(ends: Sequence[Row], *, most: int) -> Iterator[tuple[Row, str]]:
    """Each of these rows against its baseline; of more than `most`, the best and the worst."""
    shown = [("On", row) for row in ends]
    if len(ends) > most:
        ends = sorted(ends, key=lambda row: -row["speedup"])
        shown = [("At best, on", ends[0]), ("At worst, on", ends[-1])]
    for on, row in shown:
        yield row, f"{on} {row.place}, {against_baseline(row)}."


def base_of(row: Row) -> Row:
    """The baseline of a row that has one."""
    assert row.base is not None
    return row.base


def judged(row: Row, quantity: str = "speedup") -> str:
    """Whether the repeats of a row and of its baseline support that they differ."""
    _, low, high = row.estimate(quantity)
    repeats = min(row["repeats"], base_of(row)["repeats"])
    if row["repeats"] == 1 and any(pd.notna(row.get(f"{name}_low")) for name in MEASURED):
        return "but the table does not say how many repeats its spread covers"
    return verdict(low, high, repeats)


def speedup_over_baseline(row: Row) -> str:
    """One configuration against its baseline, and whether the intervals support the difference."""
    base, times = base_of(row), row.text("speedup")
    over = base.ranks if base.label == row.label else base.place
    thing = {"epoch": "an epoch", "total": "a run"}.get(row.get("per", "step"), "a step")
    compared = (
        f"the throughput is {times} times that of {over}"
        if row["scaling"] == "weak" or pd.isna(row["step_time"])
        else f"{thing} is {times} times as fast as on {over}"
    )
    # On as many ranks the efficiency would repeat the speedup.
    share = f" (efficiency {row.text('efficiency')})" * (row["world_size"] != base["world_size"])
    return f"{compared}{share}, {judged(row)}"


def against_baseline(row: Row) -> str:
    """One configuration against its baseline: in weak scaling by the pace that each rank keeps."""
    if row["scaling"] != "weak" or not row.is_gain_of_ranks:
        return speedup_over_baseline(row)
    n, speedup = row["world_size"] / base_of(row)["world_size"], row.estimate("speedup")
    text = (
        f"each rank keeps {row.text('efficiency')} of its pace, {judged(row, 'efficiency')}; "
        f"the scaled speedup over {base_of(row).ranks} is {rounded(*speedup)}, where {n:g} is ideal"
    )
    # Noise can push a speedup outside 1 to n, for which the law has no fraction.
    if all(1 <= end <= n for end in speedup if pd.notna(end)):
        ends = (speedup.value, speedup.high, speedup.low)
        serial = percent(*(gustafson_fraction(end, n) for end in ends))
        text += f"; by Gustafson's law this is a serial fraction of {serial}"
    return text


def best(rows: Sequence[Row], quantity: str) -> tuple[Row, list[Row]]:
    """The row with the shortest time or the highest rate, and those whose intervals reach it."""
    low, high = f"{quantity}_low", f"{quantity}_high"
    if quantity.endswith("_time"):
        first, *others = sorted(rows, key=lambda row: float(row[quantity]))
        return first, [row for row in others if row[low] <= first[high]]
    first, *others = sorted(rows, key=lambda row: -float(row[quantity]))
    return first, [row for row in others if row[high] >= first[low]]


def few(repeats: int) -> str:
    """Why these repeats are too few to show how much a value varies; empty if they are enough."""
    if repeats >= FEWEST_REPEATS:
        return ""
    return f"{'one repeat is' if repeats == 1 else f'{repeats} repeats are'} too few"


def chance(repeats: int) -> str:
    """How many of equal configurations so few repeats show to differ; empty if hardly any.

    The share is that of the simulations in docs/measuring.md.
    """
    return f"; of equal ones, {repeats} repeats show 1 in 10 to differ" if repeats == 3 else ""


def shown(ratios: Sequence[Estimate], repeats: int, *, gain: str, loss: str) -> str:
    """The verdict on a ratio of speeds; of several, how many their repeats tell from 1."""
    if len(ratios) == 1 or few(repeats):
        return verdict(*ratios[0][1:], repeats)
    gains, losses = sum(one.low > 1 for one in ratios), sum(one.high < 1 for one in ratios)
    odds = chance(repeats) if gains or losses else ""
    return f"{gains} shown to be {gain}, {losses} {loss}{odds}"


def verdict(low: float, high: float, repeats: int) -> str:
    """Whether a ratio of speeds differs from 1 by more than its repeats do among themselves."""
    if few(repeats):
        return f"but {few(repeats)} to show how much this varies"
    if low > 1:
        return "a gain beyond the spread of the repeats"
    if high < 1:
        return "a loss beyond the spread of the repeats"
    return "a difference within the spread of the repeats"
