"""What a compute-time proposal needs from a results table: where to stop, and the cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lab.analysis.audit.rules.speedup import MARGIN
from lab.analysis.laws import CLOSE, fit_amdahl, fit_gustafson
from lab.analysis.scaling import beyond_baseline, farthest, labels_of, speedup_over_baseline
from lab.analysis.scaling_curves import (
    Estimate,
    baseline_name,
    curves,
    ranks,
    rows_of,
    with_interval,
)
from lab.formatting import MILLION, capitalized, format_seconds, in_words, listed, percent, rounded
from lab.perfmodel.step_law import StepLaw, fit
from lab.records.table import grouped

# Efficiency thresholds relative to the baseline; the report names both.
WELL_USED, HALF_USED = 0.7, 0.5
EXACT = 1e-6  # a law with a smaller error made the speedups, and its interval means nothing
UNKNOWNS = 4  # of a step's law: latency, bandwidth, overlap and fixed overhead
LEAST_OVERLAP = 0.01  # a smaller one is what the fit leaves of none
# What GPU-hours are counted for, by what a time of the table is of.
COUNTED = {"step": (1000, "1000 steps"), "epoch": (1, "epoch"), "total": (1, "run")}
MOST_NAMES = 3  # of configurations in a sentence


def headline(summary: pd.DataFrame) -> str:
    """The gain at the most ranks: on every curve if at most two, else on the best and the worst."""
    labels = labels_of(summary)
    ends = farthest(summary)
    if not ends:
        return ""
    ends.sort(key=lambda row: -row["efficiency"])
    sentences = []
    best, worst = (percent(row["efficiency"]) for row in (ends[0], ends[-1]))
    alike = len(ends) > 2 and best == worst
    shown = ends if len(ends) <= 2 else ends[:1] if alike else (ends[0], ends[-1])
    for row in shown:
        extreme = "highest" if row is ends[0] else "lowest"
        which = "" if len(ends) <= 2 else f"With the {extreme} efficiency, on "
        which = f"Of {len(ends)} configurations with the same efficiency, on " if alike else which
        where = ranks(row["device"], row["world_size"])
        where += f" ({labels[row['run_id']]})" * (len(ends) > 1)
        base = {row["baseline_run_id"]: labels[row["run_id"]]}  # several curves may share it
        compared = speedup_over_baseline(row, summary, labels | base)
        sentences.append(f"{which or 'On '}{where}, {compared}.")
    return " ".join(sentences)


def stops(summary: pd.DataFrame) -> list[str]:
    """The number of ranks up to which each curve is worth its cost, as far as the table goes."""
    return _of_each(summary, _stop)


def _of_each(summary: pd.DataFrame, say: Callable[[pd.DataFrame], str]) -> list[str]:
    """The statement about each curve, after its name unless there is only one; equal ones once."""
    lines = curves(summary)
    labels = grouped((text, label) for label, points in lines if (text := say(points)))
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


def _stop(points: pd.DataFrame) -> str:
    known = points[points["efficiency"].notna()]
    if not len(beyond_baseline(known)):
        return ""
    device, base, last = known["device"].iloc[0], known.iloc[0], known.iloc[-1]
    if _impossible(known):
        best = known.sort_values("efficiency").iloc[-1]
        return (
            "no stopping point is named, because an efficiency of "
            f"{percent(best['efficiency'])} on {ranks(device, best['world_size'])} is more than "
            "ranks can give: the work or the baseline differs"
        )
    well, half = (_last_above(known, least) for least in (WELL_USED, HALF_USED))

    def size(row: Any) -> str:
        return f"{ranks(device, row['world_size'])} ({percent(row['efficiency'])})"

    if well["world_size"] == last["world_size"]:
        text = (
            f"efficiency is still {percent(last['efficiency'])} on "
            f"{ranks(device, last['world_size'])}, the most in the table: the stopping point lies "
            "beyond"
        )
    elif half["world_size"] == base["world_size"]:
        following = known[known["world_size"] > base["world_size"]].iloc[0]
        text = (
            f"stay on {ranks(device, base['world_size'])}: on {size(following)} more than half of "
            "the time paid for is lost"
        )
    else:
        parts = [f"{100 * HALF_USED:.0f} % or more up to {size(half)}"]
        if well["world_size"] > base["world_size"]:
            same = int(half["world_size"] == well["world_size"])
            parts = [f"{100 * WELL_USED:.0f} % or more up to {size(well)}", *parts[same:]]
        text = f"efficiency is {', and '.join(parts)}"
        if half["world_size"] < last["world_size"]:
            beyond = known[known["efficiency"] < HALF_USED].iloc[-1]  # it may recover after that
            text += f"; on {size(beyond)} more than half of the time paid for is lost"
    times = known[known["step_time"].notna()]
    if len(times) and base["scaling"] == "strong":
        shortest = times.sort_values("step_time").iloc[0]
        if shortest["world_size"] < last["world_size"]:
            text += f"; beyond {ranks(device, shortest['world_size'])} the time grows again"
    return text


def _impossible(known: pd.DataFrame) -> bool:
    """Whether an efficiency is above what the audit lets rounding explain."""
    return bool((known["efficiency"] > 1 + MARGIN).any())


def _last_above(known: pd.DataFrame, least: float) -> Any:
    """The row with the most ranks before efficiency falls below a limit."""
    above = known["efficiency"] >= least
    return known[above.cummin()].iloc[-1]


def fits(summary: pd.DataFrame) -> list[str]:
    """The law that best fits the speedups of each curve of three or more sizes, and its error."""
    return _of_each(summary, _fit)


def _fit(points: pd.DataFrame) -> str:
    known = points[points["speedup"].notna()]
    if len(known) < 3 or not (known["speedup"] > 0).all() or _impossible(known):
        return ""
    device, base = known["device"].iloc[0], known["world_size"].iloc[0]
    sizes, speedups = list(known["world_size"] / base), list(known["speedup"])
    kind = known["scaling"].iloc[0]
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
            f"and no number of them exceeds a speedup of {bound}"
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


def _step_law(points: pd.DataFrame) -> str:
    known = points[points["step_time"].notna() & points["gradient_bytes"].notna()]
    known = known[known["speedup"].notna() & (known["per"] == "step")]
    kind = set(known["scaling"])
    if len(known) < 3 or known["world_size"].iloc[0] != 1 or kind not in ({"strong"}, {"weak"}):
        return ""
    alone = known["step_time"].iloc[0]
    share = known["world_size"] if kind == {"strong"} else 1
    rows = known.assign(one_device_step_s=alone / share, step_s=known["step_time"])
    law = fit(rows)
    device = known["device"].iloc[0]
    several = rows[rows["world_size"] > 1]
    if law.overlap > LEAST_OVERLAP and len(several) <= UNKNOWNS:
        return ""  # with an overlap, so many unknowns explain any such rows
    fixed, per_byte = _added(several, law)
    adds = {}
    if not fixed.low <= 0:  # NaN if it has no interval
        adds["fixed_overhead_s"] = f"a fixed {format_seconds(*fixed)}"
    if not per_byte.low <= 0:
        size = rounded(known["gradient_bytes"].iloc[0] / 1e6)
        rate = rounded(*(1e-9 / end for end in (per_byte.value, per_byte.high, per_byte.low)))
        adds["bytes_per_s"] = f"its gradients ({size} MB) over links of {rate} GB/s"
        if law.overlap > LEAST_OVERLAP:
            adds["overlap"] = f"of which {percent(law.overlap)} hides behind the backward pass"
    parts = [text for name, text in adds.items() if name not in law.undetermined]
    if not parts or law.largest_relative_error > CLOSE:
        return ""
    most = int(known["world_size"].max())
    last = rows[rows["world_size"] == most].assign(world_size=2 * most)
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


def costs(summary: pd.DataFrame, *, gpu_hours: float | None = None) -> list[dict[str, str]]:
    """A row for each configuration: its ranks, and their hours for a run, an epoch or 1000 steps.

    `hours = time x ranks / 3600`; from a rate alone, for a million of what it counts. With
    `gpu_hours`, of which a rank uses one per hour, also how many times they cover that.
    """
    rows = []
    least: dict[str, float] = {}
    for label, points in curves(summary):
        for row in rows_of(points):
            hours, counted = hours_of(row)
            if hours is None:
                continue
            unit = row["unit"] if gpu_hours is None else "GPU"
            least.setdefault(label, hours)
            cells = {
                "configuration": label,
                ranks(row["device"]): str(row["world_size"]),
                f"{unit}-hours for {_article(counted)}{counted}": rounded(hours),
            }
            if row["scaling"] != "weak" or pd.isna(row["step_time"]):  # time grows with work
                cells["cost over the fewest"] = rounded(hours / least[label])
            if gpu_hours is not None:
                cells[f"{gpu_hours:g} {unit}-hours pay for"] = _paid(gpu_hours / hours, row)
            rows.append(cells)
    return rows


def _article(counted: str) -> str:
    return "" if counted[0].isdigit() else "an " if counted[0] in "aeiou" else "a "


def hours_of(row: Mapping[Any, Any]) -> tuple[float | None, str]:
    """The hours of all ranks together, and their unit: a run, an epoch, 1000 steps, a million."""
    if pd.notna(row["step_time"]):
        times, counted = COUNTED[row["per"]]
        return row["step_time"] * times * row["world_size"] / 3600, counted
    if pd.notna(row["samples_per_second"]):
        counted = f"million {row['rate_of'] or 'of what the rate counts'}"
        return row["world_size"] * MILLION / row["samples_per_second"] / 3600, counted
    return None, ""


def _paid(times: float, row: Mapping[Any, Any]) -> str:
    if pd.isna(row["step_time"]):
        return in_words(times * MILLION, *_ends(times * MILLION, row, "samples_per_second"))
    many, counted = COUNTED[row["per"]]
    noun = counted.removeprefix("1000 ").removesuffix("s")
    number = times * many
    text = in_words(number, *_ends(number, row, "step_time"))
    return f"{text} {noun}{'s' * (text != '1')}"


def _ends(value: float, row: Mapping[Any, Any], quantity: str) -> tuple[float, float]:
    """The interval of a value that is known as exactly as this quantity."""
    center, low, high = with_interval(row, quantity)
    return value * low / center, value * high / center


def requests(summary: pd.DataFrame, gpu_hours: float) -> list[str]:
    """For each curve, the largest efficient job, and how many such jobs the hours cover."""
    over = baseline_name(summary)

    def say(points: pd.DataFrame) -> str:
        known = points[points["efficiency"].notna() & points["step_time"].notna()]
        if not len(beyond_baseline(known)) or _impossible(known):
            return ""
        row = _last_above(known, WELL_USED)
        hours, counted = hours_of(row)
        if hours is None or row["per"] == "step":
            return ""
        count = math.floor(gpu_hours / hours)
        if not count:
            where = ranks(row["device"], row["world_size"])
            return (
                f"{_article(counted)}{counted} on {where} takes {rounded(hours)} GPU-hours, more "
                f"than the {gpu_hours:g} of this request"
            )
        faster = f"{rounded(*with_interval(row, 'speedup'))} times as fast as on {over}"
        is_base = row["run_id"] == row["baseline_run_id"]
        return (
            f"{count:,} {counted}{'s' * (count != 1)} x "
            f"{format_seconds(*with_interval(row, 'step_time'))} x "
            f"{ranks(row['device'], row['world_size'])} = {rounded(count * hours)} of the "
            f"{gpu_hours:g} GPU-hours" + f", each {faster}" * (not is_base)
        )

    return _of_each(summary, say)
