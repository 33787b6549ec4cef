"""Rule about numbers that no measurement gives: without variance, or on a formula to the last digit."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from lab.analysis.observations import Observations
from lab.analysis.points import Line
from lab.analysis.rule import Finding, Rule, found
from lab.analysis.series import lines

# Clocks resolve microseconds and machines vary by a per cent: agreement to this share is arithmetic.
EXACT = 5e-4
# Of fewer points any two lie on some line.
FEWEST = 3


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
        times = point.times if len(point.times) >= FEWEST else _series(point.labels, seen)
        if len(times) >= FEWEST and np.ptp(times) <= 1e-12 * abs(times[0]):
            evidence = f"{len(times)} measurements at world size {point.world_size:g} are all {times[0]:.6g} s."
            yield _finding(list(point.labels), evidence)
    zero = [point for point in line.points if point.std == 0]
    if len(zero) >= 2:
        evidence = f"The standard deviation is 0 in {len(zero)} of {len(line.points)} configurations."
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
        if math.isfinite(gain) and gain > 0 and point.world_size not in gains and (base is not None or point.world_size > 1):
            gains[line.ideal(point) if base is not None else point.world_size] = gain
            labels += point.labels
    n, reached = np.array(list(gains)), np.array(list(gains.values()))
    if len(reached) < 2:
        return
    told = ", ".join(f"{value:g}x on {size:g}" for size, value in zip(n, reached, strict=True))
    if np.all(np.abs(reached / n - 1) < EXACT):
        yield _finding(labels, f"The speedup is exactly the number of ranks: {told}.")
    elif len(reached) >= FEWEST and np.ptp(reached / n) < EXACT * (reached / n).mean():
        yield _finding(labels, f"The efficiency is {reached[0] / n[0]:.4g} at every world size: {told}.")
    elif len(reached) >= FEWEST:
        serial = (n[-1] / reached[-1] - 1) / (n[-1] - 1)
        if 1e-3 < serial < 0.999 and np.all(np.abs(reached * (serial + (1 - serial) / n) - 1) < EXACT):
            yield _finding(labels, f"All speedups lie on Amdahl's law with a serial fraction of {serial:.4g}: {told}.")


def _linear_in_size(seen: Observations) -> Iterator[Finding]:
    names = [*(key for key in seen.keys if key != "key:bytes"), "world_size"]
    for _, rows in seen.frame.groupby(names, sort=False, dropna=False):
        known = rows[rows["time"].notna() & rows["bytes"].notna()].sort_values("bytes")
        if len(known) > FEWEST and known["bytes"].nunique() == len(known):
            size, time = known["bytes"].to_numpy(), known["time"].to_numpy()
            slope = (time[-1] - time[0]) / (size[-1] - size[0])
            if np.all(np.abs((time[0] + slope * (size - size[0])) / time - 1) < EXACT):
                evidence = f"{len(known)} times are exactly linear in the message size, {slope * 1e9:.4g} s per GB."
                yield _finding(list(known["label"]), evidence)


def _finding(labels: list[str], evidence: str) -> Finding:
    advice = "Show the raw measurements: machines vary, formulas and simulators do not."
    return found("too-regular", "warning", labels, evidence, advice)


RULES = (Rule("too-regular", (("time", "rate", "speedup"), ("world_size",)), too_regular),)
