"""Rules about speedups: more than the ranks can give, and baselines that flatter."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lab.analysis.audit.observations import Observations, samples_said
from lab.analysis.audit.rule import Finding, Rule, Severity, UncheckedError, found, seconds
from lab.analysis.audit.series import ROUNDING, Line, Point, lines

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
                told
                or math.isfinite(line.gain(point))
                or (point.world_size > 1 and (point.speedup > 0 or point.efficiency > 0))
            )
            yield from _beyond(
                line, point, assumed=seen.assumptions if "world_size" not in seen.given else ()
            )
    if not told:
        raise UncheckedError("times at two world sizes of one configuration, or a speedup")


def _beyond(line: Line, point: Point, *, assumed: tuple[str, ...]) -> Iterator[Finding]:
    n = point.world_size
    ideal, gain, by_mean = line.ideal(point), line.gain(point), line.gain(point, means=True)
    bounds = line.bounds(point)
    where = f" at {line.label}" if line.label else ""
    quoted = max(
        (value for value in (point.speedup, point.efficiency * n) if math.isfinite(value)),
        default=math.nan,
    )
    if gain > ideal * (1 + MARGIN) and (bounds is None or bounds[0] > ideal):
        base = line.base(point)
        assert base is not None
        times = (
            f" ({seconds(base.time)} against {seconds(point.time)})"
            if math.isfinite(point.time)
            else ""
        )
        said = f"The speedup is {gain:.1f}x on {n:g} ranks{where}{times}, above the {ideal:g}x that the ranks can give"
        said += f"; {_explained(line, point, base)}" + (
            f" ({'; '.join(assumed)})" if assumed else ""
        )
        severity: Severity = "error" if gain > IMPOSSIBLE * ideal else "warning"
        advice = "Repeat the baseline with the same program and settings, and look for cached data, other clocks or less work per step."
        yield found("super-linear", severity, [*base.labels, *point.labels], f"{said}.", advice)
    elif by_mean > ideal * (1 + MARGIN):
        said = f"The mean over ranks gives {by_mean:.2f}x on {n:g} ranks{where}, above N; the slowest rank gives {gain:.2f}x"
        verdict = (
            ", so the averaging explains it." if gain <= ideal else " and does not explain it."
        )
        yield found(
            "super-linear",
            "error",
            point.labels,
            said + verdict,
            "Quote the time of the slowest rank.",
        )
    elif (quoted > n * (1 + MARGIN) and line.base(point) is None) or (
        quoted > max(n, 1) * (1 + MARGIN) and math.isnan(gain)
    ):
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
    known = {
        name: getattr(base, name) / getattr(point, name)
        for name in phases
        if getattr(point, name) > 0
    }
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
    log = (
        seen.kind == "table" and "world_size" not in seen.given and len(line.points) == 1
    )  # of one run: nothing is compared
    if smallest.world_size == 1 or log:
        return
    where = f" for {line.label}" if line.label else ""
    if seen.baseline and seen.baseline.get("world_size") == smallest.world_size:
        said = f"The smallest run{where} has {smallest.world_size:g} ranks, as the study says: what the first ranks cost does not show."
        yield found("baseline", "note", smallest.labels, said, "Say so beside every speedup.")
        return
    quoted = any(
        math.isfinite(point.speedup) or math.isfinite(point.efficiency) for point in line.points
    )
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
        said += (
            f": {base.strategy!r} is weaker than {point.strategy!r} on one rank."
            if base.strategy != point.strategy
            else "."
        )
        advice = "Take the parallel program on one rank as the baseline, with the same compiler, libraries and threads."
        yield found("baseline", "warning", [*base.labels, *point.labels], said, advice)


def _misquoted(line: Line) -> Iterator[Finding]:
    """A quoted speedup or efficiency that is not that of the table's own times."""
    for point in line.points:
        gain, n = line.gain(point), point.world_size
        if (
            math.isfinite(point.speedup)
            and math.isfinite(gain)
            and not point.means
            and abs(point.speedup / gain - 1) > MARGIN
        ):
            said = f"A speedup of {point.speedup:.2f}x is quoted on {n:g} ranks, and the table's own times give {gain:.2f}x."
            yield found(
                "baseline",
                "warning",
                point.labels,
                said,
                "Name the baseline that the quoted speedup is over.",
            )
        base = line.base(point)
        alone = (
            base is not None
            and base.world_size == 1
            and math.isnan(point.speedup)
            and not point.means
        )
        # Where the work grows with the ranks and no batch says so, the efficiency is the ratio of the times.
        if alone and min(abs(point.efficiency / own - 1) for own in (gain / n, gain)) > MARGIN:
            said = f"An efficiency of {point.efficiency:.0%} is quoted on {n:g} ranks, and the table's own numbers give {gain / n:.0%}."
            yield found(
                "baseline",
                "warning",
                point.labels,
                said,
                "Name the baseline that the quoted efficiency is over.",
            )
        if (
            math.isfinite(point.speedup)
            and abs(point.efficiency * n / point.speedup - 1) > ROUNDING
        ):
            said = (
                f"An efficiency of {point.efficiency:.0%} on {n:g} ranks is quoted beside a speedup of {point.speedup:.2f}x, "
                f"which is {point.speedup / n:.0%}."
            )
            yield found(
                "baseline",
                "warning",
                point.labels,
                said,
                "Efficiency is speedup over N: say what else it is over.",
            )


def _settings(seen: Observations) -> Iterator[Finding]:
    """A setting that all runs at N = 1 have, and none at N > 1."""
    rows = seen.frame[seen.frame["world_size"].notna()]
    for name in SETTINGS:
        alone = set(rows.loc[rows["world_size"] == 1, name].dropna())
        others = set(rows.loc[rows["world_size"] > 1, name].dropna())
        if alone and others and not alone & others:
            said = f"{name} is {', '.join(sorted(map(str, alone)))} at world size 1 and {', '.join(sorted(map(str, others)))} at more ranks."
            labels = rows.loc[rows["world_size"] == 1, "label"]
            yield found(
                "baseline",
                "warning",
                labels,
                said,
                "Measure the baseline with the settings of the other world sizes.",
            )


SPEEDUPS_RULES = (
    Rule(
        "super-linear", (("time", "rate", "speedup", "efficiency"), ("world_size",)), super_linear
    ),
    Rule("baseline", (("time", "rate", "speedup", "efficiency"), ("world_size",)), baseline),
)
# Samples that do not divide are dropped or padded: less than this is no difference of work.
WORK = 0.02
# Half the work and still this share of the time: launches, not arithmetic, set the pace.
HARDLY = 0.8
# Communication that is this share of the added time explains it.
EXPLAINS = 0.5


def equal_work(seen: Observations) -> Iterator[Finding]:
    """Strong scaling whose global batch, samples or steps differ; weak scaling whose work per rank differs."""
    if seen.kind == "collectives":
        raise UncheckedError("training times")
    for line in lines(seen):
        if seen.kind != "records" and "batch" in seen.known and line.batch in {"batch", None}:
            yield from _unclear(line, seen)
        yield from _batches(line, seen)
        for name, what in (
            ("samples", "samples"),
            ("total_steps", "optimizer steps"),
            ("steps", "optimizer steps"),
        ):
            yield from _amounts(line, name, what, seen)


def _batches(line: Line, seen: Observations) -> Iterator[Finding]:
    for point in line.points:
        base = line.base(point)
        if base is None or not (point.global_batch_size > 0 and base.global_batch_size > 0):
            continue
        whole, part = (
            getattr(point, name) / getattr(base, name)
            for name in ("global_batch_size", "micro_batch_size")
        )
        labels = [*base.labels, *point.labels]
        same_whole, same_part = abs(whole - 1) < WORK, abs(part - 1) < WORK
        weak = seen.scaling == "weak" or (
            seen.scaling is None and (seen.per == "step" or line.work(point, base) != 1)
        )
        if same_whole or (same_part and weak):
            continue
        if same_part:
            yield _more_steps(line, point, base, seen, labels)
        else:
            said = (
                f"The global batch is {base.global_batch_size:g} at world size {base.world_size:g} and {point.global_batch_size:g} at "
                f"{point.world_size:g}, the batch per rank {base.micro_batch_size:g} and {point.micro_batch_size:g}: neither is held."
            )
            yield found(
                "equal-work",
                "warning",
                labels,
                said,
                "Hold the global batch for strong scaling, the batch per rank for weak scaling.",
            )


def _more_steps(
    line: Line, point: Point, base: Point, seen: Observations, labels: list[str]
) -> Finding:
    said = (
        f"The batch of {point.micro_batch_size:g} is per rank, so the global batch grows from {base.global_batch_size:g} to "
        f"{point.global_batch_size:g} on {point.world_size:g} ranks"
    )
    samples = next((value for value in (point.samples, samples_said(seen)) if value > 0), math.nan)
    if seen.per == "epoch" and math.isfinite(samples):
        steps = [math.ceil(samples / each.global_batch_size) for each in (base, point)]
        step = [each.time / count for each, count in zip((base, point), steps, strict=True)]
        said += f": {steps[0]} steps of {seconds(step[0])} against {steps[1]} of {seconds(step[1])} for {samples:g} samples"
    elif seen.per != "step":
        ratio = point.global_batch_size / base.global_batch_size
        said += f": the same samples take {ratio:.3g} times fewer optimizer steps"
    advice = "Hold the global batch, or call it weak scaling and compare times per step; the optimizer steps differ, and with them what is learned."
    return found("equal-work", "warning", labels, f"{said}.", advice)


def _amounts(line: Line, name: str, what: str, seen: Observations) -> Iterator[Finding]:
    if seen.per == "step" and seen.kind != "records":
        return  # a step is a step, however many there were
    for point in line.points:
        base = line.base(point)
        here, there = (
            (getattr(point, name), getattr(base, name))
            if base is not None
            else (math.nan, math.nan)
        )
        if base is None or not (here > 0 and there > 0):
            continue
        scaled = (
            here * point.global_batch_size / (there * base.global_batch_size)
            if name == "steps"
            else here / there
        )
        ratio = scaled if math.isfinite(scaled) else here / there
        if abs(ratio - 1) > WORK and not (name == "samples" and seen.scaling == "weak"):
            said = f"{there:g} {what} at world size {base.world_size:g} are compared with {here:g} at {point.world_size:g}."
            yield found(
                "equal-work",
                "warning",
                [*base.labels, *point.labels],
                said,
                "Compare times of the same work.",
            )


def _unclear(line: Line, seen: Observations) -> Iterator[Finding]:
    name = seen.given.get("batch", "batch")
    points = [point for point in line.points if point.batch > 0]
    if (
        not points
        or points[-1].world_size == points[0].world_size
        or points[-1].batch != points[0].batch
    ):
        return
    first, last = points[0], points[-1]
    said = (
        f"It is unclear whether {name!r} is global or per rank: if it is per rank, {last.world_size:g} ranks train with "
        f"{last.batch * last.world_size:g} samples a step instead of {first.batch * first.world_size:g}"
    )
    labels = [*first.labels, *last.labels]
    severity = "warning" if "_or_" in name.lower() else "note"
    yield found(
        "equal-work", severity, labels, f"{said}.", "State the global batch and the batch per rank."
    )  # type: ignore[arg-type]


def fixed_overhead(seen: Observations) -> Iterator[Finding]:
    """A step that hardly shrinks with less work per rank, and ranks that make it slower than one."""
    if seen.kind == "collectives":
        raise UncheckedError("training times")
    found_lines = lines(seen)
    comparable = False
    for line in found_lines:
        for point in line.points:
            base = line.base(point)
            if base is not None and math.isfinite(line.gain(point)):
                comparable = True
                yield from _hardly_shrinks(line, point, base, seen)
                yield from _slower(line, point, base)
    yield from _across_batches(found_lines, seen)
    if not comparable:
        raise UncheckedError("times at two world sizes of one configuration")


def _hardly_shrinks(line: Line, point: Point, base: Point, seen: Observations) -> Iterator[Finding]:
    """Compute of one step or epoch against the share of it that a rank has left."""
    name = next(
        (
            name
            for name in ("forward", "compute")
            if getattr(point, name) > 0 and getattr(base, name) > 0
        ),
        None,
    )
    # Work per rank: an epoch is shared in any case, a step only where the global batch is held.
    share = base.world_size / point.world_size * line.work(point, base)
    if name is None or share > 0.6 or (seen.per == "step" and line.batch is None):
        return
    ratio = getattr(point, name) / getattr(base, name)
    added = getattr(point, name) - share * getattr(base, name)
    communication = point.communication if name == "compute" and seen.kind == "records" else 0.0
    if ratio > HARDLY and not communication > EXPLAINS * added:
        where = f" at {line.label}" if line.label else ""
        said = (
            f"{name.capitalize()} takes {seconds(getattr(base, name))} on {base.world_size:g} and {seconds(getattr(point, name))} on "
            f"{point.world_size:g} ranks{where}, with {share:.2g} of the work per rank: a part of it does not depend on the work."
        )
        advice = "Launch-bound: give each rank more work per step, compile the model or capture it as a graph; a faster link will not help."
        yield found("fixed-overhead", "note", [*base.labels, *point.labels], said, advice)


def _slower(line: Line, point: Point, base: Point) -> Iterator[Finding]:
    gain, bounds = line.gain(point), line.bounds(point)
    if gain < 1 and (bounds is None or bounds[1] < 1):
        where = (
            f" ({line.label}{', ' if line.label and point.strategy else ''}{point.strategy})"
            if line.label or point.strategy
            else ""
        )
        said = f"{point.world_size:g} ranks are slower than {base.world_size:g}: speedup {gain:.2f}{where}"
        said += (
            f", {seconds(base.time)} against {seconds(point.time)}."
            if math.isfinite(point.time)
            else "."
        )
        advice = "Find the part of the step that grows with the ranks before adding any; measure a step without communication."
        yield found("fixed-overhead", "note", [*base.labels, *point.labels], said, advice)


def _across_batches(found_lines: list[Line], seen: Observations) -> Iterator[Finding]:
    """Steps of half the batch that take as long, on one rank."""
    if seen.per != "step":
        return
    singles = [
        (line.label, point)
        for line in found_lines
        for point in line.points
        if point.world_size == 1 and point.time > 0
    ]
    for label, small in singles:
        for other, large in singles:
            strip = [text.split("batch")[0] for text in (label, other)]
            if (
                strip[0] == strip[1]
                and small.strategy == large.strategy
                and 0 < small.global_batch_size * 2 == large.global_batch_size
            ) and small.time > HARDLY * large.time:
                said = (
                    f"On one rank a step of {small.global_batch_size:g} samples takes {seconds(small.time)}, one of "
                    f"{large.global_batch_size:g} takes {seconds(large.time)}: half the work saves {100 * (1 - small.time / large.time):.0f} %."
                )
                labels = [*small.labels, *large.labels]
                yield found(
                    "fixed-overhead",
                    "note",
                    labels,
                    said,
                    "Launch-bound at this size: use larger batches per rank.",
                )


WORK_RULES = (
    Rule(
        "equal-work",
        (
            ("world_size",),
            ("global_batch_size", "micro_batch_size", "batch", "samples", "steps", "total_steps"),
        ),
        equal_work,
    ),
    Rule(
        "fixed-overhead", (("world_size",), ("time", "compute", "forward", "rate")), fixed_overhead
    ),
)
