"""Rules about repetition: how often something was measured, and by how many writers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from lab.analysis.audit.observations import Observations
from lab.analysis.audit.rule import Finding, Rule, UncheckedError, found, seconds
from lab.analysis.audit.series import Line, Point, lines

# Ranges of n and n repeats of equal runs lie apart by chance in 2 / binomial(2n, n): 1 in 3 for two, 1 in 10 for three.
FEWEST = 3
# A smaller difference is none that anybody would claim.
CLAIM = 0.05


def repeats(seen: Observations) -> Iterator[Finding]:
    """One repeat where more are needed, and intervals that overlap where a difference is claimed."""
    if seen.kind == "collectives":
        unsaid = seen.frame[seen.frame["repeats"].isna()]
        if len(unsaid):
            yield _unsaid(list(unsaid["label"]))
        return
    known = lines(seen)
    points = [
        point
        for line in known
        for point in line.points
        if point.times or point.rate > 0 or point.speedup > 0
    ]
    if not points:
        raise UncheckedError("world_size")
    counts = {
        id(point): point.repeats if point.repeats > 0 else max(len(point.times), 1)
        for point in points
    }
    said = (
        "repeats" in seen.known
        or seen.frame["repeat"].notna().any()
        or any(len(point.times) > 1 for point in points)
    )
    spread = [point for point in points if counts[id(point)] < 2 and point.bounds is not None]
    once = [point for point in points if counts[id(point)] < 2 and point.bounds is None]
    if seen.summarised and not said and once:
        yield _unsaid([label for point in once for label in point.labels])
    elif once:
        labels = [label for point in once for label in point.labels]
        evidence = f"{len(once)} of {len(points)} configurations were measured once, so nothing tells their differences from chance."
        yield found(
            "repeats",
            "warning",
            labels,
            evidence,
            "Repeat each at least three times, interleaved, and state the spread.",
        )
    if spread:
        labels = [label for point in spread for label in point.labels]
        evidence = f"{len(spread)} of {len(points)} configurations have a spread, and the table does not say over how many repeats."
        yield found(
            "repeats",
            "note",
            labels,
            evidence,
            "State the number of separate runs; epochs of one run are no repeats.",
        )
    few = [point for point in points if 2 <= counts[id(point)] < FEWEST]
    if few:
        labels = [label for point in few for label in point.labels]
        evidence = f"{len(few)} of {len(points)} configurations have 2 repeats: ranges of equal runs lie apart by chance in 1 of 3 cases."
        yield found("repeats", "note", labels, evidence, "Repeat each at least three times.")
    for line in known:
        yield from _overlaps(line, seen)


def _unsaid(labels: list[str]) -> Finding:
    evidence = f"{len(labels)} values stand alone: the table does not say how often each was measured, nor with what spread."
    return found("repeats", "note", labels, evidence, "State the number of repeats and the spread.")


def _overlaps(line: Line, seen: Observations) -> Iterator[Finding]:
    for first, second in itertools.pairwise(
        point for point in line.points if point.bounds is not None
    ):
        if first.world_size == second.world_size or not _overlap(first, second):
            continue
        if abs(first.time / second.time - 1) > CLAIM:
            assert first.bounds and second.bounds
            evidence = (
                f"World sizes {first.world_size:g} and {second.world_size:g} differ by {100 * abs(first.time / second.time - 1):.0f} %, and "
                f"their ranges overlap: {seconds(first.bounds[0])} to {seconds(first.bounds[1])} and {seconds(second.bounds[0])} to "
                f"{seconds(second.bounds[1])}."
            )
            # The lab's own report claims nothing where intervals overlap; a table's numbers stand without them.
            severity = "note" if seen.kind == "records" else "warning"
            labels = [*first.labels, *second.labels]
            yield found(
                "repeats",
                severity,
                labels,
                evidence,
                "Repeat more often before calling this a difference.",
            )  # type: ignore[arg-type]


def _overlap(first: Point, second: Point) -> bool:
    assert first.bounds and second.bounds
    return max(first.bounds[0], second.bounds[0]) <= min(first.bounds[1], second.bounds[1])


def two_writers(seen: Observations) -> Iterator[Finding]:
    """Repeated or out-of-order epochs or steps in one record."""
    if seen.kind == "records":
        yield from _same_record(seen)
        return
    columns = [name for name in ("epoch", "step") if seen.frame[name].notna().any()]
    rows = seen.frame[seen.frame[columns].notna().all(axis=1) & ~seen.frame["aggregate"]]
    names = [*seen.keys, "world_size", "nodes", "global_batch_size", "batch", "rank", "repeat"]
    for _, group in rows.groupby(
        [name for name in names if name in rows], sort=False, dropna=False
    ):
        index = list(zip(*(group[name] for name in columns), strict=True))
        again = _again(index)
        back = [place for place in range(1, len(index)) if index[place] < index[place - 1]]
        if not again and not back:
            continue
        parts = [index[start:end] for start, end in itertools.pairwise([0, *back, len(index)])]
        # Whole series one after the other are runs that were appended, not two jobs at once.
        restarted = len(parts[0]) == len(set(index)) and all(part == parts[0] for part in parts)
        what = " and ".join(columns)
        labels = [group["label"].iloc[place] for place in (again or back)]
        size = group["world_size"].iloc[0]
        where = f" at world size {size:g}" if size == size else ""
        first = index[(again or back)[0]][-1]
        evidence = (
            f"{len(index)} rows{where} hold {len(set(index))} different values of {what}: {first:g} is there again, and the order goes "
            f"back {len(back)} times."
        )
        advice = "Two jobs wrote one file, or runs were appended: give each run its own record and number the repeats."
        yield found("two-writers", "warning" if restarted else "error", labels, evidence, advice)


def _again(index: list[tuple[float, ...]]) -> list[int]:
    known: set[tuple[float, ...]] = set()
    places = []
    for place, value in enumerate(index):
        if value in known:
            places.append(place)
        known.add(value)
    return places


def _same_record(seen: Observations) -> Iterator[Finding]:
    quoted = seen.frame[seen.frame["aggregate"]]
    for (run, repeat), rows in quoted.groupby(["run_id", "repeat"], sort=False):
        if len(rows) > 1:
            evidence = f"Repeat {repeat} of run {run} has {len(rows)} records."
            yield found(
                "two-writers",
                "error",
                [f"{run}/{repeat}"],
                evidence,
                "Keep one, and find out which job wrote the other.",
            )
        curve, steps = rows["loss_curve"].iloc[0], rows["total_steps"].iloc[0]
        if isinstance(curve, list) and curve and len(curve) != steps:
            evidence = f"{len(curve)} losses stand in a record of {steps:g} steps."
            yield found(
                "two-writers",
                "error",
                [f"{run}/{repeat}"],
                evidence,
                "Run it again with `--fresh`: one step writes one loss.",
            )


REPETITION_RULES = (
    Rule("two-writers", (("epoch", "step", "run_id"),), two_writers),
    Rule("repeats", (("time", "rate", "speedup"),), repeats),
)
# Clocks resolve microseconds and machines vary by a per cent: agreement to this share is arithmetic.
EXACT = 5e-4
# Of fewer points any two lie on some line.
FEWEST_POINTS = 3


def too_regular(seen: Observations) -> Iterator[Finding]:
    """Measurements with no variance, or exactly on a formula."""
    if seen.kind == "collectives":
        yield from _linear_in_size(seen)
        return
    for line in lines(seen):
        yield from _no_variance(line, seen)
        yield from _on_a_formula(line)


def _no_variance(line: Line, seen: Observations) -> Iterator[Finding]:
    for point in line.points:
        times = point.times if len(point.times) >= FEWEST_POINTS else _series(point.labels, seen)
        if len(times) >= FEWEST_POINTS and np.ptp(times) <= 1e-12 * abs(times[0]):
            evidence = f"{len(times)} measurements at world size {point.world_size:g} are all {times[0]:.6g} s."
            yield _finding(list(point.labels), evidence)
    zero = [point for point in line.points if point.std == 0]
    if len(zero) >= 2:
        evidence = (
            f"The standard deviation is 0 in {len(zero)} of {len(line.points)} configurations."
        )
        yield _finding([label for point in zero for label in point.labels], evidence)


def _series(labels: tuple[str, ...], seen: Observations) -> tuple[float, ...]:
    """The times of one rank over epochs or steps."""
    rows = seen.frame[seen.frame["label"].isin(labels) & ~seen.frame["aggregate"]]
    if seen.kind == "records" or not rows[["epoch", "step"]].notna().any(axis=None):
        return ()
    rows = rows[rows["rank"].isna() | (rows["rank"] == rows["rank"].min())]
    return tuple(rows["time"].dropna())


def _on_a_formula(line: Line) -> Iterator[Finding]:
    gains: dict[float, float] = {}
    labels: list[str] = []
    for point in line.points:
        base = line.base(point)
        gain = line.gain(point)
        gain = point.speedup if math.isnan(gain) else gain
        if (
            math.isfinite(gain)
            and gain > 0
            and point.world_size not in gains
            and (base is not None or point.world_size > 1)
        ):
            gains[line.ideal(point) if base is not None else point.world_size] = gain
            labels += point.labels
    n, reached = np.array(list(gains)), np.array(list(gains.values()))
    if len(reached) < 2:
        return
    told = ", ".join(f"{value:g}x on {size:g}" for size, value in zip(n, reached, strict=True))
    if np.all(np.abs(reached / n - 1) < EXACT):
        yield _finding(labels, f"The speedup is exactly the number of ranks: {told}.")
    elif len(reached) >= FEWEST_POINTS and np.ptp(reached / n) < EXACT * (reached / n).mean():
        yield _finding(
            labels, f"The efficiency is {reached[0] / n[0]:.4g} at every world size: {told}."
        )
    elif len(reached) >= FEWEST_POINTS:
        serial = (n[-1] / reached[-1] - 1) / (n[-1] - 1)
        if 1e-3 < serial < 0.999 and np.all(
            np.abs(reached * (serial + (1 - serial) / n) - 1) < EXACT
        ):
            yield _finding(
                labels,
                f"All speedups lie on Amdahl's law with a serial fraction of {serial:.4g}: {told}.",
            )


def _linear_in_size(seen: Observations) -> Iterator[Finding]:
    names = [*(key for key in seen.keys if key != "key:bytes"), "world_size"]
    for _, rows in seen.frame.groupby(names, sort=False, dropna=False):
        known = rows[rows["time"].notna() & rows["bytes"].notna()].sort_values("bytes")
        if len(known) > FEWEST_POINTS and known["bytes"].nunique() == len(known):
            size, time = known["bytes"].to_numpy(), known["time"].to_numpy()
            slope = (time[-1] - time[0]) / (size[-1] - size[0])
            if np.all(np.abs((time[0] + slope * (size - size[0])) / time - 1) < EXACT):
                evidence = f"{len(known)} times are exactly linear in the message size, {slope * 1e9:.4g} s per GB."
                yield _finding(list(known["label"]), evidence)


def _finding(labels: list[str], evidence: str) -> Finding:
    advice = "Show the raw measurements: machines vary, formulas and simulators do not."
    return found("too-regular", "warning", labels, evidence, advice)


REGULARITY_RULES = (
    Rule("too-regular", (("time", "rate", "speedup"), ("world_size",)), too_regular),
)
