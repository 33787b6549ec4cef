"""What a compute-time proposal needs from a results table: where to stop, and the cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple

import numpy as np
import pandas as pd

from lab.analysis.audit.rules.speedup import MARGIN
from lab.analysis.laws import CLOSE, fit_amdahl, fit_gustafson
from lab.analysis.scaling import farthest, speedup_over_baseline
from lab.analysis.scaling_curves import (
    Estimate,
    Row,
    baseline_name,
    measured_rows,
    ranks,
    rows_by_curve,
)
from lab.formatting import (
    MILLION,
    PERIODS,
    capitalized,
    count,
    format_seconds,
    in_words,
    listed,
    percent,
    rounded,
)
from lab.perfmodel.step_law import StepLaw, fit
from lab.records.schema import Unit
from lab.records.table import grouped

# Efficiency thresholds relative to the baseline; the report names both.
WELL_USED, HALF_USED = 0.7, 0.5
EXACT = 1e-6  # a law with a smaller error made the speedups, and its interval means nothing
UNKNOWNS = 4  # of a step's law: latency, bandwidth, overlap and fixed overhead
LEAST_OVERLAP = 0.01  # a smaller one is what the fit leaves of none
# What GPU-hours are counted for, by what a time of the table is of.
COUNTED = {"step": (1000, "1000 steps"), "epoch": (1, "epoch"), "total": (1, "run")}
# And how many of what a rate counts, by its period; of rates per second more if they are higher.
RATED = {"s": (MILLION, "million"), "min": (1000, "1000"), "h": (1000, "1000"), "day": (1, "1")}
HIGH_RATES = ((1e13, (1e12, "trillion")), (1e10, (1e9, "billion")))
EXTREMES = {"highest": 0, "lowest": -1}
MOST_NAMES = 3  # of configurations in a sentence


class Request(NamedTuple):
    """What a proposal applies for: hours of GPUs, nodes or cores."""

    hours: float
    unit: Unit

    def __str__(self) -> str:
        return f"{self.hours:g} {self.unit}-hours"


def headline(summary: pd.DataFrame) -> str:
    """The gain at the most ranks: on every curve if at most two, else on the best and the worst."""
    ends = sorted(farthest(summary), key=lambda row: -row["efficiency"])
    if not ends:
        return ""
    shown = [("On ", row) for row in ends]
    if len(ends) > 2:
        shown = [(f"With the {most} efficiency, on ", ends[nth]) for most, nth in EXTREMES.items()]
        if len({percent(row["efficiency"]) for _, row in shown}) == 1:
            shown = [(f"Of {len(ends)} configurations with the same efficiency, on ", ends[0])]
    return " ".join(
        f"{on}{row.ranks}{f' ({row.label})' * (len(ends) > 1)}, {speedup_over_baseline(row)}."
        for on, row in shown
    )


def stops(summary: pd.DataFrame) -> list[str]:
    """The number of ranks up to which each curve is worth its cost, as far as the table goes."""
    return _of_each(summary, _stop)


def _of_each(summary: pd.DataFrame, say: Callable[[list[Row]], str]) -> list[str]:
    """The statement about each curve, after its name unless there is only one; equal ones once."""
    lines = rows_by_curve(summary)
    labels = grouped((text, rows[0].label) for rows in lines if (text := say(rows)))
    if len(lines) == 1:
        return [f"{capitalized(text)}." for text in labels]
    return [f"{_named(names, len(lines))}: {text}." for text, names in labels.items()]


def _named(names: Sequence[str], of: int) -> str:
    """One name; of several their number and the first of them."""
    if len(names) == 1:
        return names[0]
    if len(names) == of:
        return f"All {of} configurations"
    return f"{len(names)} of {of} configurations ({listed(names, MOST_NAMES)})"


def _stop(rows: Sequence[Row]) -> str:
    points = [row for row in rows if pd.notna(row["efficiency"])]
    if not any(row.is_compared for row in points):
        return ""

    def size(row: Row) -> str:
        return f"{row.ranks} ({percent(row['efficiency'])})"

    if _impossible(points):
        best = max(points, key=lambda row: row["efficiency"])
        return (
            "no stopping point is named, because an efficiency of "
            f"{percent(best['efficiency'])} on {best.ranks} is more than ranks can give: the work "
            "or the baseline differs"
        )
    base, last = points[0], points[-1]
    well, half = (_last_above(points, least) for least in (WELL_USED, HALF_USED))
    lost = "more than half of the time paid for is lost"
    if well is last:
        text = (
            f"efficiency is still {percent(last['efficiency'])} on {last.ranks}, the most in the "
            "table: the stopping point lies beyond"
        )
    elif half is base:
        text = f"stay on {base.ranks}: on {size(points[1])} {lost}"
    else:
        parts = [f"{100 * HALF_USED:.0f} % or more up to {size(half)}"]
        if well is not base:
            parts = [f"{100 * WELL_USED:.0f} % or more up to {size(well)}", *parts[half is well :]]
        text = f"efficiency is {', and '.join(parts)}"
        if half is not last:
            text += f"; on {size(last)} {lost}"
    if dips := [*_below(points, well, WELL_USED), *_below(points, half, HALF_USED)]:
        lowest = min(dips, key=lambda row: row["efficiency"])
        text += f"; before, it is only {percent(lowest['efficiency'])} on {lowest.ranks}"
    times = [row for row in points if pd.notna(row["step_time"])]
    if times and base["scaling"] == "strong":
        shortest = min(times, key=lambda row: row["step_time"])
        if more := [row for row in times if row["world_size"] > shortest["world_size"]]:
            change = "no longer falls" if _is_reached(shortest, more) else "grows again"
            text += f"; beyond {shortest.ranks} the time {change}"
    return text


def _is_reached(shortest: Row, others: Sequence[Row]) -> bool:
    """Whether the interval of another time, without one the time itself, reaches the shortest."""
    times = [row.estimate("step_time") for row in others]
    lows = [time.value if pd.isna(time.low) else time.low for time in times]
    value, _, high = shortest.estimate("step_time")
    return min(lows) <= (value if pd.isna(high) else high)


def _impossible(points: Sequence[Row]) -> bool:
    """Whether an efficiency is above what the audit lets rounding explain."""
    return any(row["efficiency"] > 1 + MARGIN for row in points)


def _last_above(points: Sequence[Row], least: float) -> Row:
    """The row with the most ranks whose efficiency reaches a limit."""
    return [row for row in points if row["efficiency"] >= least][-1]


def _below(points: Sequence[Row], last: Row, least: float) -> list[Row]:
    """Rows of fewer ranks than the last whose efficiency falls short of a limit."""
    fewer = takewhile(lambda row: row is not last, points)
    return [row for row in fewer if row["efficiency"] < least]


def fits(summary: pd.DataFrame) -> list[str]:
    """The law that best fits the speedups of each curve of three or more sizes, and its error."""
    return _of_each(summary, _fit)


def _fit(rows: Sequence[Row]) -> str:
    points = [row for row in rows if pd.notna(row["speedup"])]
    speedups = [row["speedup"] for row in points]
    if len(points) < 3 or min(speedups) <= 0 or _impossible(points):
        return ""
    device, base, kind = (points[0][name] for name in ("device", "world_size", "scaling"))
    sizes = [row["world_size"] / base for row in points]
    if kind == "weak":
        fraction, error = fit_gustafson(sizes, speedups)
        return _law("Gustafson", percent(fraction), error)
    fit = fit_amdahl(sizes, speedups) if kind == "strong" else None
    if fit is None:
        return ""
    exact = fit.largest_error <= EXACT
    interval = () if exact else (fit.low, fit.high)
    text = _law("Amdahl", percent(fit.serial_fraction, *interval), fit.largest_error)
    if fit.low and fit.high and fit.largest_error <= CLOSE:
        ends = (fit.serial_fraction, *(() if exact else (fit.high, fit.low)))
        half = rounded(*(base * (1 + (1 / HALF_USED - 1) / end) for end in ends))
        bound = rounded(*(1 / end for end in ends))
        text += (
            f"; under it, efficiency falls to {100 * HALF_USED:.0f} % on {half} {ranks(device)}, "
            f"and no number of them exceeds a speedup of {bound} over {points[0].ranks}"
        )
    return text


def _law(name: str, fraction: str, error: float) -> str:
    if error > CLOSE:
        return f"{name}'s law does not hold: at best it misses a speedup by {percent(error)}"
    law = f"{name}'s law with a serial fraction of {fraction}"
    return f"{law} fits the speedups {_within(error)}"


def _within(error: float) -> str:
    return "exactly" if error <= EXACT else f"within {percent(error)}"


def step_laws(summary: pd.DataFrame) -> list[str]:
    """The fit by `lab.fit` to the steps of each curve that begins on one rank.

    It needs steps at two or more other numbers of ranks, and the bytes of the gradients. The step
    on one rank is that of a rank's work: in strong scaling an equal share of the baseline's.
    """
    return _of_each(summary, _step_law)


def _step_law(rows: Sequence[Row]) -> str:
    points = pd.DataFrame(rows).dropna(subset=["step_time", "gradient_bytes", "speedup"])
    points = points[points["per"] == "step"]
    kind = set(points["scaling"])
    if len(points) < 3 or points["world_size"].iloc[0] != 1 or kind not in ({"strong"}, {"weak"}):
        return ""
    alone = points["step_time"].iloc[0]
    share = points["world_size"] if kind == {"strong"} else 1
    steps = points.assign(one_device_step_s=alone / share, step_s=points["step_time"])
    law = fit(steps)
    device = points["device"].iloc[0]
    several = steps[steps["world_size"] > 1]
    if law.overlap > LEAST_OVERLAP and len(several) <= UNKNOWNS:
        return ""  # with an overlap, so many unknowns explain any such rows
    fixed, per_byte = _added(several, law)
    adds = {}
    if not fixed.low <= 0:  # NaN if it has no interval
        adds["fixed_overhead_s"] = f"a fixed {format_seconds(*fixed)}"
    if not per_byte.low <= 0:
        size = rounded(points["gradient_bytes"].iloc[0] / 1e6)
        rate = rounded(*(1e-9 / end for end in (per_byte.value, per_byte.high, per_byte.low)))
        adds["bytes_per_s"] = f"its gradients ({size} MB) over links of {rate} GB/s"
        if law.overlap > LEAST_OVERLAP:
            adds["overlap"] = f"of which {percent(law.overlap)} hides behind the backward pass"
    parts = [text for name, text in adds.items() if name not in law.undetermined]
    if not parts or law.largest_relative_error > CLOSE:
        return ""
    most = int(points["world_size"].max())
    last = steps[steps["world_size"] == most].assign(world_size=2 * most)
    if kind == {"strong"}:
        last["one_device_step_s"] /= 2
    return (
        f"to the work of a rank, a step on several {ranks(device)} adds {', '.join(parts)}: "
        f"this fit matches the steps {_within(law.largest_relative_error)} and predicts "
        f"{format_seconds(float(law.predict(last)[0]))} on {ranks(device, 2 * most)}"
    )


def _added(rows: pd.DataFrame, law: StepLaw) -> tuple[Estimate, Estimate]:
    """The fixed overhead in s and the time of a byte, with 95 % intervals by the rows' own errors.

    Student's intervals of least squares in relative errors, as if nothing overlapped; none if the
    law explains the rows exactly or in part by an overlap, nor for unknowns that too few rows fit.
    """
    fixed, per_byte = Estimate(law.fixed_overhead_s), Estimate(1 / law.bytes_per_s)
    steps, n = rows["step_s"].to_numpy(float), rows["world_size"].to_numpy(float)
    spare = len(rows) - 2
    if law.largest_relative_error <= EXACT:  # what is left of an unknown is rounding
        negligible = fixed.value <= EXACT * steps.max()
        return (Estimate(0.0, 0.0, 0.0) if negligible else fixed), per_byte
    if spare < 1 or law.overlap > LEAST_OVERLAP or {"bytes_per_s"} & set(law.undetermined):
        return fixed, per_byte
    from scipy.special import stdtrit  # takes a tenth of the import time of scipy.stats

    traffic = 2 * (n - 1) / n * rows["gradient_bytes"].to_numpy(float)
    scale = traffic.max()  # else the matrix would be ill-conditioned
    terms = np.column_stack([np.ones_like(n), traffic / scale]) / steps[:, None]
    variance = float(np.sum((law.predict(rows) / steps - 1) ** 2)) / spare
    if np.linalg.matrix_rank(terms) < terms.shape[1]:
        return fixed, per_byte
    spread = np.sqrt(variance * np.diag(np.linalg.inv(terms.T @ terms)))
    sides = float(stdtrit(spare, 0.975)) * spread / np.array([1.0, scale])
    ends = [
        Estimate(one.value, one.value - side, one.value + side)
        for one, side in zip((fixed, per_byte), sides.tolist(), strict=True)
    ]
    return ends[0], ends[1]


def costs(summary: pd.DataFrame, request: Request | None = None) -> list[dict[str, str]]:
    """A row for each configuration: its ranks, and their hours for a run, an epoch or 1000 steps.

    `hours = time x ranks / 3600`; from a rate alone, for a million of what it counts. If the
    threads of all ranks are known, they are hours of cores. With a request, they are hours of its
    unit, of which a rank uses one, and it is also said how many times it covers them.
    """
    rows = []
    in_cores = counts_cores(summary, request)
    least: dict[str, float] = {}
    highest = summary["samples_per_second"].max()
    for row in measured_rows(summary):
        hours, counted = hours_of(row, highest)
        if hours is None:
            continue
        unit = request.unit if request else "core" if in_cores else row["unit"]
        hours *= row["cores_per_rank"] if in_cores else 1
        cells = {
            "configuration": row.label,
            ranks(row["device"]): str(row["world_size"]),
            f"{unit}-hours for {_article(counted)}{counted}": rounded(hours),
        }
        if row["scaling"] == "strong" or pd.isna(row["step_time"]):  # else its work may grow
            cells["cost over the fewest"] = rounded(hours / least.setdefault(row.label, hours))
        if request:
            cells[f"{request} pay for"] = _paid(request.hours / hours, row, highest)
        rows.append(cells)
    return rows


def counts_cores(summary: pd.DataFrame, request: Request | None) -> bool:
    """Whether costs are counted in the cores of ranks, which every row then gives."""
    if request and request.unit != "core":
        return False
    return bool(summary["unit"].eq("rank").all() and summary["cores_per_rank"].notna().all())


def _article(counted: str) -> str:
    return "" if counted[0].isdigit() else "an " if counted[0] in "aeiou" else "a "


def hours_of(row: Row, highest: float = math.nan) -> tuple[float | None, str]:
    """The hours of all ranks together, and their unit: a run, an epoch, 1000 steps, a million.

    `highest` is the highest rate that stands beside this one.
    """
    if pd.notna(row["step_time"]):
        times, counted = COUNTED[row["per"]]
        return row["step_time"] * times * row["world_size"] / 3600, counted
    if pd.notna(row["samples_per_second"]):
        many, number = _many(row, highest)
        counted = row["rate_of"] or "of what the rate counts"
        counted = f"{number} {_singular(counted) if many == 1 else counted}"
        seconds = PERIODS[row["rate_per"]] * many / row["samples_per_second"]
        return row["world_size"] * seconds / 3600, counted
    return None, ""


def _many(row: Row, highest: float) -> tuple[float, str]:
    """How many of what a rate counts are costed together, and this number in words."""
    higher = (more for least, more in HIGH_RATES if highest >= least and row["rate_per"] == "s")
    return next(higher, RATED[row["rate_per"]])


def _singular(noun: str) -> str:
    """A noun without its plural's ending, unlike a unit such as ns."""
    return noun.removesuffix("s") if len(noun) > len("ns") else noun


def _paid(times: float, row: Row, highest: float) -> str:
    if pd.isna(row["step_time"]):
        column, noun = "samples_per_second", row["rate_of"] or ""
        many, _ = _many(row, highest)
    else:
        column, (many, counted) = "step_time", COUNTED[row["per"]]
        noun = counted.removeprefix("1000 ").removesuffix("s") + "s"
    number, (center, low, high) = times * many, row.estimate(column)
    # It is known as exactly as the time or the rate.
    text = in_words(number, number * low / center, number * high / center)
    return f"{text} {_singular(noun) if text == '1' else noun}".rstrip()


def _faster(row: Row) -> str:
    """Its gain over the baseline; in weak scaling its time covers more work."""
    times = row.text("speedup")
    weak = row["scaling"] == "weak"
    return f"with {times} times the throughput of" if weak else f"{times} times as fast as on"


def requests(summary: pd.DataFrame, request: Request) -> list[str]:
    """For each curve, the largest efficient job, and how many such jobs the request covers."""
    over = baseline_name(summary)
    in_cores = counts_cores(summary, request)

    def say(rows: Sequence[Row]) -> str:
        points = [row for row in rows if pd.notna(row["efficiency"]) and pd.notna(row["step_time"])]
        if not any(row.is_compared for row in points) or _impossible(points):
            return ""
        row = _last_above(points, WELL_USED)
        hours, counted = hours_of(row)
        if hours is None or row["per"] == "step":
            return ""
        size = row.ranks
        if in_cores:
            hours *= row["cores_per_rank"]
            size += f" x {count(int(row['cores_per_rank']), 'thread')}"
        jobs = math.floor(request.hours / hours)
        if not jobs:
            return (
                f"{_article(counted)}{counted} on {size} takes {rounded(hours)} "
                f"{request.unit}-hours, more than the {request.hours:g} of this request"
            )
        return (
            f"{jobs:,} {counted}{'s' * (jobs != 1)} x {row.text('step_time')} x {size} = "
            f"{rounded(jobs * hours)} of the {request}"
            + f", each {_faster(row)} {over}"
            * (not row.is_baseline)
        )

    return _of_each(summary, say)
