"""Rules about speedups: beyond the ranks, over weak baselines, of unequal work."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import product

from lab.analysis.audit.columns import is_parallel, is_serial, normal, setting_of
from lab.analysis.audit.observations import MOST_REFERENCES, Observations, UncheckedError
from lab.analysis.audit.points import CERTAINLY_MORE, Curve, Point
from lab.analysis.audit.rule import SEVERITIES, Fault, Severity, rule, seconds
from lab.records.schema import FOREIGN_SHARE
from lab.records.table import grouped

# The usual difference between repeats, used if no interval is known.
MARGIN = 0.05
# No cache or memory effect seen in data-parallel training makes ranks 1.5 times as effective: then
# the baseline is another program.
IMPOSSIBLE = 1.5
SETTINGS = ("precision", "compile", "threads", "gpu", "cpu")  # a baseline should share these
# A remainder of samples is dropped or padded: below this share the work counts as equal.
WORK = 0.02
# Less work that still takes this share of the time is bound by launches, not arithmetic.
HARDLY = 0.8
LESS_WORK = 0.6
EXPLAINS = 0.5  # communication explains the added time if it makes up this share of it
FLAT = 0.10  # relative: of times that do not depend on the ranks
OF_EACH = " If the rates are those of each rank, say so in their name."
NO_PAIR = "times at two world sizes of one configuration"
NO_WORK = "the batch, or whether scaling is strong or weak"


@rule("super-linear", "time or rate or speedup or efficiency, world_size", severity="error")
def super_linear(observations: Observations) -> Iterator[Fault]:
    """Speedup above N, with what the table says for or against an explanation."""
    checked = False
    for point in observations.points:
        quoted = point.world_size > 1 and (point.speedup > 0 or point.efficiency > 0)
        checked = checked or quoted or math.isfinite(point.gain)
        yield from _beyond(point, observations)
    if not checked:
        raise UncheckedError(f"{_no_gain(observations)}, or a speedup")


def _no_gain(observations: Observations) -> str:
    """What is missing where no two times can be compared."""
    return NO_WORK if any(one.time > 0 for one, _ in observations.compared) else NO_PAIR


def _quoted_on_one(point: Point) -> float:
    """The speedup that a program quotes on one rank, over another program; at least 1."""
    own = point.curve.by_strategy.get(point.strategy, ())
    return max([1.0, *(one.speedup for one in own if one.world_size == 1 and one.speedup > 0)])


def _beyond(point: Point, observations: Observations) -> Iterator[Fault]:
    of_ranks = [text for text in observations.assumptions if re.search("rank|world", text)]
    assumptions = of_ranks if "world_size" not in observations.given else ()
    base, ideal, gain = point.base, point.ideal, point.gain
    by_mean, bounds = point.gain_of_means, point.gain_bounds
    ratios = (point.speedup, point.efficiency * point.over)
    known = [quoted for quoted in ratios if math.isfinite(quoted)]
    if abs(ratios[1] - ratios[0]) < MARGIN * ratios[0]:
        known = [point.speedup]  # 163 % on 3 ranks are the quoted 4.88x, rounded
    quoted, allowed = max(known, default=math.nan), max(point.over, 1.0) * _quoted_on_one(point)
    least = point.least_gain
    if base and least > ideal * (1 + MARGIN) and (bounds is None or bounds[0] > ideal):
        finite = math.isfinite(point.time)
        times = f"{seconds(base.time)} against {seconds(point.time)}{_more_work(point)}"
        times = f" ({times})" if finite else ""
        other = _other_hardware(point, base, observations) or _other_setting(point, base)
        counted = f"Check the number of ranks first: {'; '.join(assumptions)}. "
        yield Fault(
            base.labels + point.labels,
            f"The speedup is {gain:.1f}x on {point.ranks}{times}, above the {ideal:g}x that the "
            f"ranks can give; {other or _explanation(point, base)}.",
            f"{counted if assumptions else ''}Repeat the baseline with the same program and "
            "settings, and look for cached data, different clocks or less work per step.",
            "note" if other else _severity(least > IMPOSSIBLE * ideal, point, base),
        )
    elif by_mean > ideal * (1 + MARGIN):
        verdict = ", so the averaging explains it" if gain <= ideal else " and does not explain it"
        yield Fault(
            point.labels,
            f"The mean over ranks gives {by_mean:.2f}x on {point.ranks}, above N; the slowest rank "
            f"gives {gain:.2f}x{verdict}.",
            "Quote the time of the slowest rank.",
        )
    elif (
        (base is None or math.isnan(gain))
        and point.over != 1  # on the baseline's ranks a ratio compares programs
        and not (observations.nodes_as_ranks and point.curve.smallest[0].world_size > 1)
        and quoted > allowed * (1 + MARGIN)
    ):
        yield Fault(
            point.labels,
            f"A speedup of {quoted:.2f}x is quoted on {point.ranks}, "
            f"{100 * (quoted / allowed - 1):.0f} % above N.",
            "State the baseline and its time; the table holds nothing that explains it.",
            "error" if quoted > IMPOSSIBLE * allowed else "warning",
        )


def _other_hardware(point: Point, base: Point, observations: Observations) -> str:
    """The hardware that two points do not share, in words; "" if they do, or if it is unknown."""
    for name, of_label in observations.hardware.items():
        here, there = ({of_label.get(label, "") for label in one.labels} for one in (point, base))
        if not here & there and "" not in here | there:
            old, new = (", ".join(sorted(some)) for some in (there, here))
            return f"the {name.upper()} differs ({old} against {new})"
    return ""


def _other_setting(point: Point, base: Point) -> str:
    """What only one of two strategies names, such as a precision, or what one adds to the other:
    such a ratio is not a parallel speedup. "" if they name nothing of the kind."""
    compared = f"differs ({base.strategy or 'unnamed'} against {point.strategy})"
    before, after = (set(setting_of(one.strategy).words) for one in (base, point))
    kinds = sorted(kind for kind, _ in before ^ after if kind != "strategy")
    if kinds:
        return f"the {'compilation' if kinds[0] == 'compile' else kinds[0]} {compared}"
    added = point.strategy.split("+")[1:] if "+" not in base.strategy else []
    return f"the program {compared}" if any(not is_parallel(normal(part)) for part in added) else ""


def _severity(impossible: bool, point: Point, base: Point) -> Severity:
    """Milder if the batches, or other processes, may explain part of the gain."""
    batches = _other_batch(point, base) or _unlike_its_kind(point, base)
    return SEVERITIES[(not impossible) + (batches or _foreign(point, base) > 0)]


def _foreign(point: Point, base: Point) -> float:
    """The share of cores that others took from the more disturbed of two; 0 if it is small."""
    most = max(point.foreign_share, base.foreign_share)
    return most if most > FOREIGN_SHARE else 0.0


def _other_batch(point: Point, base: Point) -> bool:
    """Whether rates at different batches per rank are compared, such as the best of each size, or
    times of a training at different batches of either kind."""
    if point.time > 0:
        return point.curve.per != "step" and abs(point.batch / base.batch - 1) >= WORK
    share = point.micro_batch_size / base.micro_batch_size
    return point.curve.batch is None and abs(share - 1) >= WORK


def _unlike_its_kind(point: Point, base: Point) -> bool:
    """Whether what is called strong scaling has another global batch, and so more work."""
    apart = abs(point.global_batch_size - base.global_batch_size)
    return point.curve.scaling == "strong" and apart >= WORK * base.global_batch_size


def _explanation(point: Point, base: Point) -> str:
    """The evidence of the phases: the part that shrank by more than the ranks allow."""
    if _unlike_its_kind(point, base):
        return "the global batch grows in what is called strong scaling, so one of the two is wrong"
    if _other_batch(point, base):
        if point.time > 0:
            return f"the batch differs ({base.batch:g} against {point.batch:g})"
        sizes = f"{base.micro_batch_size:g} against {point.micro_batch_size:g}"
        return f"the batch per rank differs ({sizes})"
    if abs(point.grad_accum - base.grad_accum) > 0:
        times = f"{base.grad_accum:g} against {point.grad_accum:g}"
        return f"the accumulation differs ({times} micro-batches)"
    if foreign := _foreign(point, base):
        return f"other processes took {100 * foreign:.0f} % of the ranks' cores from one of them"
    if base.strategy != point.strategy:
        programs = f"{base.strategy or 'unnamed'} against {point.strategy}"
        return f"the baseline is a different program ({programs})"
    phases = ("data", "compute", "forward", "backward", "optimizer")
    pairs = {name: (getattr(point, name), getattr(base, name)) for name in phases}
    known = {name: (here, there) for name, (here, there) in pairs.items() if here > 0}
    excess = {
        name: there - point.ideal * here
        for name, (here, there) in known.items()
        if there / here > point.ideal * (1 + MARGIN)
    }
    if excess:
        name = max(excess, key=lambda name: excess[name])
        here, there = known[name]
        return f"{name} shrinks by {there / here:.1f}x, more than the ranks allow"
    return "no phase shrinks by more than N" if known else "nothing in these numbers explains it"


@rule("baseline", "time or rate or speedup or efficiency, world_size")
def baseline(observations: Observations) -> Iterator[Fault]:
    """No run at N = 1, a slower setting or program there, a speedup over something else."""
    for curve in observations.curves:
        yield from _missing(curve, observations)
    for point, base in observations.compared:
        explained = _other_batch(point, base) or _other_hardware(point, base, observations)
        explained = explained or _other_setting(point, base)
        if point.least_gain > IMPOSSIBLE * point.ideal and not explained:
            yield _other_program(point, base, observations)
    for curve in observations.curves:
        if math.isnan(curve.ratios_over):
            yield _over_another([point for point in curve.points if point.speedup > 0])
        elif quoted := _over_serial(curve):
            yield _over_another(quoted)
    yield from _other_settings(observations)


def _missing(curve: Curve, observations: Observations) -> Iterator[Fault]:
    smallest = curve.smallest[0]
    n, where = smallest.world_size, f" for {curve.label}" if curve.label else ""
    settings = observations.quoted_over_settings
    of_ranks = [point for point in curve.points if settings.isdisjoint(point.labels)]
    quotes = [value for point in of_ranks for value in (point.speedup, point.efficiency)]
    quoted = any(map(math.isfinite, quotes))
    single = len(curve.points) == 1 and observations.kind == "table" and not quoted
    # The log of a single run compares nothing.
    if n == 1 or single or observations.projected:
        return
    missing = f"There is no run at world size 1{where}"
    if reference := _reference(curve, observations, of_ranks if quoted else []):
        yield Fault(
            smallest.labels, f"{missing}{reference}.", "Say so beside every speedup.", "note"
        )
        return
    # Where a speedup of 1 is quoted there, only the efficiencies may be over another.
    over_others = (point.speedup > 0 for point in of_ranks) if smallest.speedup != 1 else ()
    ratios = "speedups" if any(over_others) else "efficiencies"
    more = f", but {ratios} over another baseline are quoted" if quoted else ""
    yield Fault(
        smallest.labels,
        f"{missing}; the smallest has {n:g} ranks{more}.",
        "Measure one rank with the same program, or state the baseline beside each speedup.",
    )


def _reference(curve: Curve, observations: Observations, quoting: Sequence[Point]) -> str:
    """What the speedups of a curve without a run on one rank are over; "" if that is unknown."""
    n = curve.smallest[0].world_size
    over_least = f"speedups are over {n:g} ranks, so losses from 1 to {n:g} ranks do not show"
    if observations.baseline.get("world_size") == n:
        return f", as the study states: {over_least}"
    if observations.kind != "table":
        return ""
    several = any(point.programs > 1 for point in curve.smallest)
    if curve.ratios_over == n or several or not quoting:
        return f": {over_least}"
    if observations.one_elsewhere:
        return ": another table of the text has it"
    if observations.own_baseline:
        return f": the speedups quoted there are over {observations.own_baseline!r} of their rows"
    ones = observations.ones
    if any(other.smallest[0].world_size == 1 for other in curve.siblings):
        run = "run with another batch size"
    elif ones and ones[0].world_size < n and observations.compares_layouts:
        run = "run on fewer ranks with another layout"
    elif _all_quoted_over(ones, quoting) or _only_reference(ones, quoting):
        run = "run with other settings"
    else:
        return ""
    return f": the speedups quoted there are relative to a {run}"


def _only_reference(ones: Sequence[Point], quoting: Sequence[Point]) -> bool:
    """Whether a single run quotes 1 and no numbers beside the speedups can tell another."""
    bare = all(math.isnan(number) for point in quoting for number in (point.time, point.rate))
    return len(ones) == 1 and ones[0].speedup == 1 and bare


def _all_quoted_over(ones: Sequence[Point], points: Sequence[Point]) -> bool:
    """Whether each of these speedups is that over one of the runs on one rank."""
    own = [point for point in points if point.speedup > 0]
    if not own or len(ones) > MOST_REFERENCES:  # one of many has any ratio by chance
        return False
    return all(
        any(
            one.world_size == one.speedup == 1
            and (one.strategy == point.strategy or is_serial(one.strategy))
            and point.is_quoted_over(one)
            for one in ones
        )
        for point in own
    )


def _other_program(point: Point, base: Point, observations: Observations) -> Fault:
    names = ""
    if base.strategy != point.strategy:
        names = f": {base.strategy!r} is weaker than {point.strategy!r} on one rank"
    n, least = point.world_size, base.world_size
    if math.isfinite(point.time):
        needed = point.time * point.ideal / point.work
        evidence = (
            f"{n:g} ranks in {seconds(point.time)}{_more_work(point)} mean at most "
            f"{seconds(needed)} on {least:g} with the same program, but the baseline takes "
            f"{seconds(base.time)}, {base.time / needed:.1f} times that"
        )
    else:
        rates = (point.rate, point.rate / point.ideal, base.rate)
        rate, enough, there = (observations.per_period(each, digits=4) for each in rates)
        evidence = (
            f"{n:g} ranks at {rate} mean at least {enough} on {least:g} with the same program, "
            f"but the baseline has {there}"
        )
    return Fault(
        base.labels + point.labels,
        f"{evidence}{names}.",
        "Take the parallel program on one rank as the baseline: same compiler, libraries, threads.",
    )


def _more_work(point: Point) -> str:
    """How much more its time covers than the baseline's."""
    more = abs(point.work - 1) >= WORK
    return f" for {point.work:.3g} times the work" if more else ""


def _over_serial(curve: Curve) -> list[Point]:
    """The points of a program that quotes a speedup on one rank too, and over N on more."""
    firsts = [point for point in curve.smallest if point.world_size == 1]
    over = [point for point in firsts if point.speedup > CERTAINLY_MORE]
    more = [
        point
        for point in curve.points
        if point.base in over and point.speedup > point.ideal * (1 + MARGIN)
    ]
    return [*over, *more] if more and len(firsts) > len(over) else []


def _over_another(quoted: Sequence[Point]) -> Fault:
    return Fault(
        [label for point in quoted for label in point.labels],
        f"A speedup of {quoted[0].speedup:.2f}x is quoted on {quoted[0].ranks}: it is relative to "
        "another program, so it says nothing about more ranks.",
        "State beside it what it is relative to, such as another precision.",
        "note",
    )


def _other_settings(observations: Observations) -> Iterator[Fault]:
    """A setting that all runs at N = 1 have, and none at N > 1."""
    frame = observations.frame
    single, several = frame["world_size"] == 1, frame["world_size"] > 1
    for name in [name for name in SETTINGS if name in observations.known]:
        here, there = (set(frame[name][rows].dropna()) for rows in (single, several))
        if here and there and not here & there:
            alone, others = (", ".join(sorted(map(str, values))) for values in (here, there))
            yield Fault(
                frame["label"][single],
                f"{name} is {alone} at world size 1 and {others} on more ranks.",
                "Measure the baseline with the settings of the other world sizes.",
            )


@rule(
    "equal-work",
    "world_size, global_batch_size or micro_batch_size or batch or samples or steps or total_steps",
)
def equal_work(observations: Observations) -> Iterator[Fault]:
    """Batch, samples or steps that differ in strong scaling, work per rank in weak scaling."""
    tables = observations.kind != "records"
    for curve in observations.curves:
        if tables and "batch" in observations.known and curve.batch in {"batch", None}:
            yield from _unclear(curve, observations)
    for point, base in observations.compared:
        yield from _batches(point, base, observations)
        # A step counts as one, whatever their number, and so does a second.
        if not tables or (observations.per != "step" and point.time > 0):
            yield from _amounts(point, base, observations)
    for curve in observations.curves if tables else ():
        yield from _over_another_batch(curve, observations)


def _over_another_batch(curve: Curve, observations: Observations) -> Iterator[Fault]:
    """A speedup that is quoted over the time of a run with another global batch, of a batch that
    was measured on one number of ranks."""
    point = curve.points[0]
    rated = observations.per == "step" and point.rate > 0
    if point is not curve.points[-1] or curve.scaling == "weak" or rated:
        return
    ones = [one for one in observations.ones if one.curve in curve.siblings]
    over = [one for one in ones[:1] if one.time > 0 and point.is_quoted_over(one)]
    if point.time > 0 and over and over[0].world_size < point.world_size:
        before, after = over[0].global_batch_size, point.global_batch_size
        if abs(after / before - 1) >= WORK:  # False if one is unknown
            yield Fault(
                over[0].labels + point.labels,
                f"A speedup of {point.speedup:.2f}x is quoted on {point.world_size:g} ranks with a "
                f"global batch of {after:g}, over {over[0].world_size:g} with {before:g}.",
                "Fix the global batch for strong scaling, or compare rates.",
            )


def _batches(point: Point, base: Point, observations: Observations) -> Iterator[Fault]:
    before, after = base.global_batch_size, point.global_batch_size
    if not (before > 0 and after > 0):
        return
    labels, n, scaling = base.labels + point.labels, point.world_size, point.curve.scaling
    shares_differ = abs(point.micro_batch_size / base.micro_batch_size - 1) >= WORK
    if abs(after / before - 1) < WORK:
        if scaling == "weak" and shares_differ:
            yield Fault(
                labels,
                f"This is called weak scaling, but the global batch of {after:g} is fixed: the "
                f"batch per rank shrinks from {base.micro_batch_size:g} to "
                f"{point.micro_batch_size:g} on {n:g} ranks.",
                "Fix the batch per rank, or call it strong scaling.",
            )
        return
    # Rates can be compared between batches of any size, also beside times of a step.
    rated = not point.time > 0 or (observations.per == "step" and point.rate > 0)
    if scaling == "" and rated:
        return
    if shares_differ:
        yield Fault(
            labels,
            f"The global batch is {before:g} at world size {base.world_size:g} and {after:g} at "
            f"{n:g}, the batch per rank {base.micro_batch_size:g} and {point.micro_batch_size:g}: "
            "neither is fixed.",
            "Fix the global batch for strong scaling, the batch per rank for weak scaling.",
        )
        return
    if scaling == "weak" or (scaling == "" and (observations.per == "step" or point.work != 1)):
        return
    quotes = any(other.speedup > 0 or other.efficiency > 0 for other in point.curve.points)
    # Of epochs that take as long on all numbers of ranks, each rank may have had its own.
    lasting = [other.time / base.time for other in point.curve.points if other.time > 0]
    flat = observations.per == "epoch" and all(abs(time - 1) < FLAT for time in lasting)
    claims = scaling or quotes or observations.kind == "records"
    claims = claims or (observations.per != "total" and not flat)
    yield Fault(
        labels,
        f"{'This is called strong scaling: the' if scaling == 'strong' else 'The'} batch of "
        f"{point.micro_batch_size:g} is per rank, so the global batch grows from "
        f"{before:g} to {after:g} on {n:g} ranks{_fewer_steps(point, base, observations)}.",
        "Fix the global batch, or call it weak scaling and compare times per step; the optimizer "
        "steps differ, and with them what is learned.",
        "warning" if claims else "note",  # times that are not called a speedup
    )


def _fewer_steps(point: Point, base: Point, observations: Observations) -> str:
    """How many fewer optimizer steps an epoch or a total of larger batches has, in words."""
    before, after = base.global_batch_size, point.global_batch_size
    samples = observations.samples_of(point)
    if observations.per == "epoch" and samples > 0:
        old, new = math.ceil(samples / before), math.ceil(samples / after)
        times = seconds(base.time / old), seconds(point.time / new)
        return f": {old} steps of {times[0]} against {new} of {times[1]} for {samples:g} samples"
    if observations.per == "step":
        return ""
    return f": the same samples take {after / before:.3g} times fewer optimizer steps"


def _amounts(point: Point, base: Point, observations: Observations) -> Iterator[Fault]:
    batches = point.global_batch_size / base.global_batch_size
    solved = re.search("iterations", normal(observations.given.get("steps", "")))
    steps = "iterations" if solved else "optimizer steps"
    for name in ("samples", "total_steps", "steps"):
        here, there = getattr(point, name), getattr(base, name)
        if not (here > 0 and there > 0):
            continue
        ratio = here / there
        if name == "steps" and math.isfinite(batches):
            ratio *= batches  # steps of larger batches are more work
        elif name == "steps" and abs(ratio * point.ideal - 1) <= WORK:
            continue  # as many samples as before, in a batch for each rank
        if abs(ratio - 1) > WORK and not (name == "samples" and point.curve.scaling == "weak"):
            what = "samples" if name == "samples" else steps
            yield Fault(
                base.labels + point.labels,
                f"{there:g} {what} at world size {base.world_size:g} are compared with {here:g} "
                f"at {point.world_size:g}.",
                "Compare times of the same work.",
            )


def _unclear(curve: Curve, observations: Observations) -> Iterator[Fault]:
    name = observations.given.get("batch", "batch")
    points = [point for point in curve.points if point.batch > 0]
    if points and points[-1].world_size != points[0].world_size:
        first, last = points[0], points[-1]
        if last.batch == first.batch:
            yield Fault(
                first.labels + last.labels,
                f"It is unclear whether {name!r} is global or per rank: if it is per rank, "
                f"{last.world_size:g} ranks train with {last.batch * last.world_size:g} samples a "
                f"step instead of {first.batch * first.world_size:g}.",
                "State the global batch and the batch per rank.",
                "warning" if "_or_" in name.lower() else "note",
            )


@rule("fixed-overhead", "world_size, time or compute or forward or rate", severity="note")
def fixed_overhead(observations: Observations) -> Iterator[Fault]:
    """A step that hardly shrinks with less work per rank, and ranks that are slower than one."""
    checked = False
    for point, base in observations.compared:
        if math.isfinite(point.gain):
            checked = True
            yield from _hardly_shrinks(point, base, observations)
            yield from _slower(point, base, observations)
    # A step of a replay may stand for an epoch, whose work does not depend on the batch.
    replayed = observations.kind == "records" and observations.summarised
    if observations.per == "step" and not replayed:
        yield from _across_batches(observations)
    if not checked:
        raise UncheckedError(_no_gain(observations))


def _hardly_shrinks(point: Point, base: Point, observations: Observations) -> Iterator[Fault]:
    """Compute of one step or epoch against the share of it that remains per rank."""
    # An epoch is always shared, a step only if the global batch is constant.
    share = point.work / point.ideal
    if share > LESS_WORK or (observations.per == "step" and point.curve.batch is None):
        return
    for name in ("forward", "compute"):
        here, there = getattr(point, name), getattr(base, name)
        if here > 0 and there > 0:
            break
    else:
        return
    records = observations.kind == "records"
    communication = point.communication if name == "compute" and records else 0.0
    # Repeats of the whole time differ by this much.
    spread = point.gain_bounds[1] / point.gain if point.gain_bounds else 1.0
    if here / there > HARDLY * spread and not communication > EXPLAINS * (here - share * there):
        yield Fault(
            base.labels + point.labels,
            f"{name.capitalize()} takes {seconds(there)} at world size {base.world_size:g} and "
            f"{seconds(here)} on {point.ranks}, with {share:.2g} of the work per rank: "
            "either part of this time does not depend on the work, or ranks and other processes "
            "slow each other.",
            "Time one rank with this share of the work: if it takes as long, give each rank more "
            "work per step, compile the model or, on GPUs, capture it as a CUDA graph. A faster "
            "link does not shorten this part.",
        )


def _slower(point: Point, base: Point, observations: Observations) -> Iterator[Fault]:
    gain, bounds = point.gain, point.gain_bounds
    if gain < 1 and (bounds is None or bounds[1] < 1):
        names = ", ".join(filter(None, (point.curve.label, point.strategy)))
        timed = math.isfinite(point.time)
        pair = f", {seconds(base.time)} against {seconds(point.time)}{_more_work(point)}"
        times = pair if timed else ""
        if timed and not (_work_is_known(point, observations) or _more_work(point)):
            times += ", if both do the same work"
        than = "slower than" if round(gain, 2) < 1 else "no faster than"
        only_rate = "rate" in observations.given and "rate_per_rank" not in observations.given
        of_each = OF_EACH if only_rate and not timed else ""
        yield Fault(
            base.labels + point.labels,
            f"{point.world_size:g} ranks are {than} {base.world_size:g}: speedup {gain:.2f}"
            f"{f' ({names})' if names else ''}{times}.",
            "Find the part of the step that grows with the ranks before adding any; measure a step "
            f"without communication.{of_each}",
        )


def _work_is_known(point: Point, observations: Observations) -> bool:
    """Whether the table says what its times cover on more ranks: the same work, or more."""
    stated = point.curve.scaling or point.curve.batch or observations.noted("strong[ _-]?scal")
    return bool(stated) or observations.per == "epoch" or point.rate > 0


def _across_batches(observations: Observations) -> Iterator[Fault]:
    """Steps of half the batch that take as long, on one rank."""
    singles = grouped(
        ((point.curve.label.split("batch")[0], point.strategy, point.global_batch_size), point)
        for point in observations.points
        if point.world_size == 1 and point.time > 0
    )
    for (name, strategy, batch), small_ones in singles.items():
        for small, large in product(small_ones, singles.get((name, strategy, 2 * batch), [])):
            least, most = (small.bounds or (small.time,))[0], (large.bounds or (large.time,))[-1]
            if batch > 0 and least > HARDLY * most:
                saved = 100 * (1 - small.time / large.time)
                yield Fault(
                    small.labels + large.labels,
                    f"On one rank, a step takes {seconds(small.time)} at batch "
                    f"{small.global_batch_size:g} and {seconds(large.time)} at batch "
                    f"{large.global_batch_size:g}: half the work "
                    f"{'saves' if saved >= 0 else 'adds'} {abs(saved):.0f} %.",
                    "Overhead dominates at this size: use larger batches per rank.",
                )
