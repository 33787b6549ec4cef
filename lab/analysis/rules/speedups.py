"""Rules about speedups: more than the ranks can give, and baselines that flatter."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lab.analysis.observations import Observations
from lab.analysis.points import ROUNDING, Line, Point
from lab.analysis.rule import Finding, Rule, Severity, UncheckedError, found, seconds
from lab.analysis.series import lines

# Where no interval is known, a gain beyond N by less than this is within what repeats usually differ.
MARGIN = 0.05
# No cache or memory effect seen in data-parallel training makes ranks 1.5 times as effective: the baseline is another program.
IMPOSSIBLE = 1.5
# Settings that a baseline shares with what is compared with it.
SETTINGS = ("precision", "compile", "threads", "gpu", "cpu")


def super_linear(seen: Observations) -> Iterator[Finding]:
    """Speedup above N, with what the table says for or against an explanation."""
    told = False
    for line in lines(seen):
        for point in line.points:
            told = (
                told or math.isfinite(line.gain(point)) or (point.world_size > 1 and (point.speedup > 0 or point.efficiency > 0))
            )
            yield from _beyond(line, point, assumed=seen.assumptions if "world_size" not in seen.given else ())
    if not told:
        raise UncheckedError("times at two world sizes of one configuration, or a speedup")


def _beyond(line: Line, point: Point, *, assumed: tuple[str, ...]) -> Iterator[Finding]:
    n = point.world_size
    ideal, gain, by_mean = line.ideal(point), line.gain(point), line.gain(point, means=True)
    bounds = line.bounds(point)
    where = f" at {line.label}" if line.label else ""
    quoted = max((value for value in (point.speedup, point.efficiency * n) if math.isfinite(value)), default=math.nan)
    if gain > ideal * (1 + MARGIN) and (bounds is None or bounds[0] > ideal):
        base = line.base(point)
        assert base is not None
        times = f" ({seconds(base.time)} against {seconds(point.time)})" if math.isfinite(point.time) else ""
        said = f"The speedup is {gain:.1f}x on {n:g} ranks{where}{times}, above the {ideal:g}x that the ranks can give"
        said += f"; {_explained(line, point, base)}" + (f" ({'; '.join(assumed)})" if assumed else "")
        severity: Severity = "error" if gain > IMPOSSIBLE * ideal else "warning"
        advice = "Repeat the baseline with the same program and settings, and look for cached data, other clocks or less work per step."
        yield found("super-linear", severity, [*base.labels, *point.labels], f"{said}.", advice)
    elif by_mean > ideal * (1 + MARGIN):
        said = f"The mean over ranks gives {by_mean:.2f}x on {n:g} ranks{where}, above N; the slowest rank gives {gain:.2f}x"
        verdict = ", so the averaging explains it." if gain <= ideal else " and does not explain it."
        yield found("super-linear", "error", point.labels, said + verdict, "Quote the time of the slowest rank.")
    elif (quoted > n * (1 + MARGIN) and line.base(point) is None) or (quoted > max(n, 1) * (1 + MARGIN) and math.isnan(gain)):
        said = f"A speedup of {quoted:.2f}x is quoted on {n:g} ranks{where}, {100 * (quoted / n - 1):.0f} % above N."
        severity = "error" if quoted > IMPOSSIBLE * n else "warning"
        yield found(
            "super-linear",
            severity,
            point.labels,
            said,
            "State the baseline and its time; the table holds nothing that explains it.",
        )


def _explained(line: Line, point: Point, base: Point) -> str:
    """What the phases say: the part that shrank by more than the ranks allow."""
    ideal = line.ideal(point)
    phases = ("data", "compute", "forward", "backward", "optimizer")
    known = {name: getattr(base, name) / getattr(point, name) for name in phases if getattr(point, name) > 0}
    odd = {name: ratio for name, ratio in known.items() if ratio > ideal * (1 + MARGIN)}
    if base.strategy != point.strategy:
        return f"the baseline is another program ({base.strategy or 'unnamed'} against {point.strategy})"
    if odd:
        name = max(odd, key=lambda key: getattr(base, key) - ideal * getattr(point, key))
        return f"{name} shrinks by {odd[name]:.1f}x, more than the ranks allow"
    return "no phase of it shrinks by more than N" if known else "nothing in the table explains it"


def baseline(seen: Observations) -> Iterator[Finding]:
    """A missing or weakened baseline: no run at N = 1, a slower setting or program at N = 1, a speedup over something else."""
    if seen.kind == "collectives":
        raise UncheckedError("training times")
    for line in lines(seen):
        yield from _missing(line, seen)
        for point in line.points:
            base = line.base(point)
            if base is not None:
                yield from _other_program(line, point, base)
        yield from _misquoted(line)
    yield from _settings(seen)


def _missing(line: Line, seen: Observations) -> Iterator[Finding]:
    smallest = line.points[0]
    log = seen.kind == "table" and "world_size" not in seen.given and len(line.points) == 1  # of one run: nothing is compared
    if smallest.world_size == 1 or log:
        return
    where = f" for {line.label}" if line.label else ""
    if seen.baseline and seen.baseline.get("world_size") == smallest.world_size:
        said = f"The smallest run{where} has {smallest.world_size:g} ranks, as the study says: what the first ranks cost does not show."
        yield found("baseline", "note", smallest.labels, said, "Say so beside every speedup.")
        return
    quoted = any(math.isfinite(point.speedup) or math.isfinite(point.efficiency) for point in line.points)
    said = f"There is no run at world size 1{where}; the smallest has {smallest.world_size:g} ranks"
    said += " and speedups are quoted." if quoted else "."
    yield found(
        "baseline",
        "warning",
        smallest.labels,
        said,
        "Measure one rank with the same program, or state the baseline beside each speedup.",
    )


def _other_program(line: Line, point: Point, base: Point) -> Iterator[Finding]:
    gain, ideal = line.gain(point), line.ideal(point)
    if gain > IMPOSSIBLE * ideal:
        said = (
            f"{point.world_size:g} ranks in {seconds(point.time)} mean at most {seconds(point.time * ideal)} on one with the same program, "
            f"and the baseline takes {seconds(base.time)}, {base.time / (point.time * ideal):.1f} times that"
        )
        said += f": {base.strategy!r} is weaker than {point.strategy!r} on one rank." if base.strategy != point.strategy else "."
        advice = "Take the parallel program on one rank as the baseline, with the same compiler, libraries and threads."
        yield found("baseline", "warning", [*base.labels, *point.labels], said, advice)


def _misquoted(line: Line) -> Iterator[Finding]:
    """A quoted speedup or efficiency that is not that of the table's own times."""
    for point in line.points:
        gain, n = line.gain(point), point.world_size
        if math.isfinite(point.speedup) and math.isfinite(gain) and not point.means and abs(point.speedup / gain - 1) > MARGIN:
            said = f"A speedup of {point.speedup:.2f}x is quoted on {n:g} ranks, and the table's own times give {gain:.2f}x."
            yield found("baseline", "warning", point.labels, said, "Name the baseline that the quoted speedup is over.")
        base = line.base(point)
        alone = base is not None and base.world_size == 1 and math.isnan(point.speedup) and not point.means
        # Where the work grows with the ranks and no batch says so, the efficiency is the ratio of the times.
        if alone and min(abs(point.efficiency / own - 1) for own in (gain / n, gain)) > MARGIN:
            said = f"An efficiency of {point.efficiency:.0%} is quoted on {n:g} ranks, and the table's own numbers give {gain / n:.0%}."
            yield found("baseline", "warning", point.labels, said, "Name the baseline that the quoted efficiency is over.")
        if math.isfinite(point.speedup) and abs(point.efficiency * n / point.speedup - 1) > ROUNDING:
            said = (
                f"An efficiency of {point.efficiency:.0%} on {n:g} ranks is quoted beside a speedup of {point.speedup:.2f}x, "
                f"which is {point.speedup / n:.0%}."
            )
            yield found("baseline", "warning", point.labels, said, "Efficiency is speedup over N: say what else it is over.")


def _settings(seen: Observations) -> Iterator[Finding]:
    """A setting that all runs at N = 1 have, and none at N > 1."""
    rows = seen.frame[seen.frame["world_size"].notna()]
    for name in SETTINGS:
        alone = set(rows.loc[rows["world_size"] == 1, name].dropna())
        others = set(rows.loc[rows["world_size"] > 1, name].dropna())
        if alone and others and not alone & others:
            said = f"{name} is {', '.join(sorted(map(str, alone)))} at world size 1 and {', '.join(sorted(map(str, others)))} at more ranks."
            labels = rows.loc[rows["world_size"] == 1, "label"]
            yield found("baseline", "warning", labels, said, "Measure the baseline with the settings of the other world sizes.")


RULES = (
    Rule("super-linear", (("time", "rate", "speedup", "efficiency"), ("world_size",)), super_linear),
    Rule("baseline", (("time", "rate", "speedup", "efficiency"), ("world_size",)), baseline),
)
