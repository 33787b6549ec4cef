"""Rules about repetition: the number of writers, the number of repeats, and their variance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from lab.analysis.audit.keys import NO_REPEATS
from lab.analysis.audit.observations import Observations, UncheckedError
from lab.analysis.audit.points import Curve, Point
from lab.analysis.audit.rule import Fault, rule, seconds
from lab.analysis.scaling import FEWEST_REPEATS
from lab.formatting import count
from lab.records.table import grouped

CLAIM = 0.05  # a smaller difference is not worth claiming
# Clocks resolve microseconds and machines vary by a per cent: closer agreement was computed.
EXACT = 5e-4
ROUNDED_AWAY = 0.005  # relative: a deviation that less precise times do not show
FEWEST_LINES = 3  # of a log
FEWEST_POINTS = 3  # any two points lie on a line


@rule(
    "two-writers",
    "epoch or step or run_id",
    severity="error",
    advice="Two jobs wrote one file, or runs were appended: give each run its own record, and "
    "number the repeats.",
)
def two_writers(observations: Observations) -> Iterator[Fault]:
    """Repeated or out-of-order epochs or steps in one record."""
    if observations.kind == "records":
        yield from _same_record(observations)
        return
    frame = observations.frame
    columns = [name for name in ("epoch", "step") if frame[name].count() > 0]
    rows = frame[frame[columns].notna().all(axis=1) & ~frame["aggregate"]]
    measured = rows[["time", "rate", "loss", "accuracy"]].notna().any().any()
    if rows["loss"].count() > 0:  # the others are evaluations or a summary of the training
        rows = rows[rows["loss"].notna()]
    of_series = observations.groups(rows, "nodes", "rank", "repeat")
    series = grouped((number, place) for place, number in enumerate(of_series))
    numbers = list(rows[columns].itertuples(index=False, name=None))
    labels, sizes = rows["label"].tolist(), rows["world_size"].tolist()
    for rows_of in series.values():
        if len(rows_of) < FEWEST_LINES:
            continue  # no log: the best epoch of each run, say
        index = [numbers[place] for place in rows_of]
        first = {value: at for at, value in reversed(list(enumerate(index)))}
        again = [at for at, value in enumerate(index) if first[value] != at]
        back = [place for place in range(1, len(index)) if index[place] < index[place - 1]]
        if not back and not (again and measured):
            continue  # what is not of a step may be of its samples
        parts = [index[start:end] for start, end in itertools.pairwise([0, *back, len(index)])]
        # Whole series one after another are appended runs, not two concurrent jobs.
        appended = len(parts[0]) == len(set(index)) and all(part == parts[0] for part in parts)
        places = again or back
        size = sizes[rows_of[0]]
        yield Fault(
            [labels[rows_of[place]] for place in places],
            f"{len(index)} rows{f' at world size {size:g}' if size == size else ''} hold "
            f"{len(set(index))} different values of {' and '.join(columns)}: "
            f"{index[places[0]][-1]:g} appears again, and the order goes back "
            f"{count(len(back), 'time')}.",
            severity="warning" if appended else "error",
        )


def _same_record(observations: Observations) -> Iterator[Fault]:
    runs = observations.runs[["run_id", "repeat", "loss_curve", "total_steps"]]
    for (run, repeat), rows in runs.groupby(["run_id", "repeat"], sort=False):
        labels = [f"{run}/{repeat}"]
        if len(rows) > 1:
            yield Fault(
                labels,
                f"Repeat {repeat} of run {run} has {len(rows)} records.",
                "Keep one, and find out which job wrote the other.",
            )
        curve, steps = rows["loss_curve"].iloc[0], rows["total_steps"].iloc[0]
        if isinstance(curve, Sequence) and curve and len(curve) != steps:
            yield Fault(
                labels,
                f"A record of {steps:g} steps holds {len(curve)} losses.",
                "Run it again with `--fresh`: one step writes one loss.",
            )


@rule("repeats", "time or rate or speedup", severity="note")
def repeats(observations: Observations) -> Iterator[Fault]:
    """One repeat where more are needed, and differences whose intervals overlap."""
    frame = observations.frame
    if observations.kind == "collectives":
        yield from _unstated(frame.loc[frame["repeats"].isna(), "label"])
        return
    points = [point for point in observations.points if _repeated(point) or point.speedup > 0]
    if not points:
        raise UncheckedError("world_size")
    counts = {
        point: point.repeats if point.repeats > 0 else max(len(_repeated(point)), 1)
        for point in points
    }
    numbered = observations.kind == "table" and {"repeats", "repeat"} & observations.known
    # A few duplicates in a table may differ in columns whose names were not recognized, and so may
    # the settings of a list on one number of ranks.
    several = len({point.world_size for point in points}) > 1 or observations.kind != "table"
    alike = np.mean([len(_repeated(point)) > 1 for point in points]) > 0.5
    stated = numbered or (several and alike)
    single = [point for point in points if counts[point] < 2]
    spread = [point for point in single if point.bounds is not None or point.rate_std > 0]
    once = [point for point in single if point not in spread]
    few = [point for point in points if 2 <= counts[point] < FEWEST_REPEATS]
    records = observations.kind == "records"
    all_of, singles, pairs = (
        _configurations(some, records=records) for some in (points, once, few)
    )
    total = count(all_of, "configuration")
    if observations.summarised and not stated:
        yield from _unstated(_labels(once))
    elif once:
        yield Fault(
            _labels(once),
            f"{singles} of {total} "
            f"{'was' if singles == 1 else 'were'} measured only once, so differences cannot be "
            "told from chance.",
            "Repeat each at least three times, interleaved, and state the spread.",
            "warning" if all_of > 1 else "note",  # a single one claims no difference
        )
    if spread:
        yield Fault(
            _labels(spread),
            f"The table gives a spread for {len(spread)} of {total}, "
            "but not over how many repeats.",
            "State the number of separate runs; epochs of one run are not repeats.",
        )
    if few:
        yield Fault(
            _labels(few),
            f"{pairs} of {total} "
            f"{'has' if pairs == 1 else 'have'} only 2 repeats: the ranges of two equal runs "
            "are disjoint by chance in 1 of 3 cases.",
            "Repeat each at least three times.",
        )
    sure = records or bool({"repeats", "repeat", "seed"} & observations.known)
    for curve in observations.curves:
        yield from _overlaps(curve, observations, sure=sure)


def _are_repeats(point: Point, observations: Observations) -> bool:
    """Whether rows of equal settings are repeats, and not of programs that no column names: they
    follow one another, and their times are not too far apart."""
    places = observations.places_of(point.labels)
    far_apart = len(point.times) > 1 and max(point.times) > NO_REPEATS * min(point.times)
    return places[-1] - places[0] < len(places) and not far_apart


def _configurations(points: Sequence[Point], *, records: bool) -> int:
    """The number of configurations; one of inference is measured at several points in a record."""
    return len({point.labels for point in points}) if records else len(points)


def _repeated(point: Point) -> tuple[float, ...]:
    """The times of a point by repeat, or its rates if it has no times."""
    return point.times or point.rates


def _labels(points: Iterable[Point]) -> list[str]:
    """The labels of all points, without those of the ranks of a record that is among them."""
    labels = [label for point in points for label in point.labels]
    whole = set(labels)
    return [label for label in labels if label.rpartition(" rank ")[0] not in whole]


def _unstated(labels: Iterable[str]) -> Iterator[Fault]:
    labels = list(labels)
    if labels:
        yield Fault(
            labels,
            f"{count(len(labels), 'value')} {'has' if len(labels) == 1 else 'have'} neither "
            "repeats nor a spread: nothing says how much a measurement varies.",
            "State the number of repeats and the spread.",
        )


def _overlaps(curve: Curve, observations: Observations, *, sure: bool) -> Iterator[Fault]:
    """Ranges that overlap, where they are `sure` to be over repeats, or by their rows."""
    points = [point for point in curve.points if sure or _are_repeats(point, observations)]
    bounded = [(point, point.bounds) for point in points if point.bounds is not None]
    for (first, (low, high)), (second, (least, most)) in itertools.pairwise(bounded):
        gap = abs(first.time / second.time - 1)
        overlap = max(low, least) <= min(high, most)
        if first.world_size != second.world_size and overlap and gap > CLAIM:
            yield Fault(
                first.labels + second.labels,
                f"World sizes {first.world_size:g} and {second.world_size:g} differ by "
                f"{100 * gap:.0f} %, and their ranges overlap: {seconds(low)} to {seconds(high)} "
                f"and {seconds(least)} to {seconds(most)}.",
                "Repeat more often before calling this a difference.",
                # The lab's own report claims nothing if intervals overlap; a table may.
                "note" if observations.kind == "records" else "warning",
            )


@rule(
    "too-regular",
    "time or rate or speedup, world_size",
    advice="Show the raw measurements: machines vary, formulas and simulators do not.",
)
def too_regular(observations: Observations) -> Iterator[Fault]:
    """Measurements with no variance, or exactly on a formula."""
    if observations.kind == "collectives":
        yield from _linear_in_size(observations)
        return
    for curve in observations.curves:
        yield from _no_variance(curve, observations)
        yield from _on_a_formula(curve) if not observations.projected else ()


def _no_variance(curve: Curve, observations: Observations) -> Iterator[Fault]:
    for point in curve.points:
        values = _repeated(point)
        if len(values) < FEWEST_POINTS:
            values = _times_of_one_rank(point, observations)
        if len(values) >= FEWEST_POINTS and np.ptp(values) <= 1e-12 * abs(values[0]):
            value = f"{values[0]:.6g} s" if point.times else observations.per_period(values[0])
            where = f"at world size {point.world_size:g}"
            yield Fault(point.labels, f"{len(values)} measurements {where} are all {value}.")
    # A single measurement has none, and of 3.7 ± 0.0 it may be 0.04.
    steady = (point for point in curve.points if point.std == 0 and point.repeats != 1)
    constant = [point for point in steady if point.time_rounding < ROUNDED_AWAY]
    if len(constant) >= 2:
        number = f"{len(constant)} of {len(curve.points)}"
        evidence = f"The standard deviation is 0 in {number} configurations."
        yield Fault(_labels(constant), evidence)


def _times_of_one_rank(point: Point, observations: Observations) -> tuple[float, ...]:
    """The times of one rank over the epochs or steps of a table."""
    if len(point.labels) < FEWEST_POINTS or not {"epoch", "step"} & observations.known:
        return ()
    rows = observations.rows_of(point)
    rows = rows[~rows["aggregate"]]
    rows = rows[rows["rank"].isna() | (rows["rank"] == rows["rank"].min())]
    return tuple(rows["time"].dropna())


def _varies(values: Sequence[float]) -> bool:
    """Whether repeats differ by more than what a formula is met within."""
    return len(values) > 1 and bool(np.ptp(values) > EXACT * np.mean(values))


def _on_a_formula(curve: Curve) -> Iterator[Fault]:
    gains: dict[float, float] = {}
    labels: list[str] = []
    if any(_varies(_repeated(point)) for point in curve.points):
        return  # repeats that vary were measured: of many such curves, some lie on a law by chance
    for point in curve.points:
        alone = math.isnan(point.gain)  # only a quoted speedup is known
        size, gain = (point.over, point.speedup) if alone else (point.ideal, point.gain)
        # The speedup over itself says nothing.
        if math.isfinite(gain) and gain > 0 and size > 1 and size not in gains:
            gains[size] = gain
            labels += point.labels
    n, speedups = np.array(list(gains)), np.array(list(gains.values()))
    if len(speedups) < 2:
        return
    efficiencies = speedups / n
    listed = ", ".join(f"{gain:g}x on {size:g}" for size, gain in gains.items())
    if np.all(np.abs(efficiencies - 1) < EXACT):
        yield Fault(labels, f"The speedup is exactly the number of ranks: {listed}.")
    elif len(speedups) < FEWEST_POINTS:
        return
    elif np.ptp(efficiencies) < EXACT * efficiencies.mean():
        efficiency = f"{efficiencies[0]:.4g} at every world size"
        yield Fault(labels, f"The efficiency is {efficiency}: {listed}.")
    else:
        serial = (1 / efficiencies[-1] - 1) / (n[-1] - 1)
        amdahl = 1 / (serial + (1 - serial) / n)
        if 1e-3 < serial < 0.999 and np.all(np.abs(speedups / amdahl - 1) < EXACT):
            law = f"Amdahl's law with a serial fraction of {serial:.4g}"
            yield Fault(labels, f"All speedups lie on {law}: {listed}.")


def _linear_in_size(observations: Observations) -> Iterator[Fault]:
    for rows in observations.collectives:
        if len(rows) > FEWEST_POINTS and rows["bytes"].is_unique:
            size, time = rows["bytes"].to_numpy(), rows["time"].to_numpy()
            slope = (time[-1] - time[0]) / (size[-1] - size[0])
            if np.all(np.abs((time[0] + slope * (size - size[0])) / time - 1) < EXACT):
                yield Fault(
                    rows["label"],
                    f"{len(rows)} times are exactly linear in the message size, "
                    f"{slope * 1e9:.4g} s per GB.",
                )
