"""Rules about numbers that follow from others of the same row or table."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from lab.analysis.audit.columns import LAYOUT, counted, normal
from lab.analysis.audit.observations import ROW, Observations, UncheckedError, largest, rounding
from lab.analysis.audit.points import QUOTED, ROUNDING, Point
from lab.analysis.audit.rule import SHOWN, Comparison, Fault, rule, seconds
from lab.formatting import count, plain
from lab.records.table import grouped

WHOLE_RUN = 0.2  # of a time to train may not be training
FEWEST_ALIKE = 3  # rows that agree, beside which one is off
WORK_ADVICE = "Rate times time is the work done: find out which of these numbers is wrong."
OF_RANKS = re.compile(  # of "V100, ntasks 4, threads 2", which do the same work
    r"(?:^|, )[^,\d]*(?:cpu|core|thread|task|rank|proc|node|gpu)[^,\d]* [\d.]+(?=,|$)"
)
RANKS = {"world_size", "per_node"}  # without them, a node may be many ranks


@rule(
    "parallel-consistent",
    "tp or pp or cp or dp or grad_accum or per_node or micro_batch_size, world_size",
)
def parallel_consistent(observations: Observations) -> Iterator[Fault]:
    """Degrees of parallelism, ranks and batches whose products do not match."""
    frame, given = observations.frame, set(observations.given)
    layout = frame[list(LAYOUT)].fillna(1.0).prod(axis=1)
    checked = False
    if "world_size" in given and given & {"dp", *LAYOUT}:
        checked = True
        yield from _degrees(frame, layout)
    if {"world_size", "nodes", "per_node"} <= given:
        checked = True
        yield from _nodes(frame)
    if {"global_batch_size", "micro_batch_size"} <= given and given & {*RANKS, "dp", *LAYOUT}:
        checked |= yield from _batches(frame, layout, observations)
    if not checked:
        raise UncheckedError("degrees of parallelism, or batch sizes, beside the ranks")


def _unlike(frame: pd.DataFrame, layout: pd.Series) -> pd.Series:
    """The rows whose degrees of parallelism do not multiply to the number of ranks.

    They must divide it, as a table may leave out tensor or pipeline parallelism; the latter is left
    out if most rows lack it.
    """
    known, ranks = frame["dp"].notna(), frame["world_size"]
    product = (frame["dp"] * layout).where(known, layout)
    dividing = (ranks % product != 0) & ranks.notna()
    # Some tables count the replicas of experts alone.
    equal = (product == ranks) | (product * frame["ep"].fillna(1.0) == ranks)
    wrong = (~equal).where(known, dividing) & ranks.notna()
    if frame["tp"].count() == 0:
        return dividing
    lacking = frame["pp"].count() == 0 and wrong.sum() > len(frame) / 2
    return dividing if lacking else wrong


def _degrees(frame: pd.DataFrame, layout: pd.Series) -> Iterator[Fault]:
    rows = frame[_unlike(frame, layout)]
    if len(rows):
        row = rows.iloc[0]
        names = [name for name in ("dp", *LAYOUT) if row[name] > 0]
        factors = " x ".join(f"{name} {float(row[name]):g}" for name in names)
        verdict = (
            f"is {math.prod(float(row[name]) for name in names):g}, not"
            if row["dp"] > 0
            else "does not divide"
        )
        evidence = (
            f"{factors} {verdict} {row['world_size']:g} ranks in {row['label']}; found in "
            f"{len(rows)} of {len(frame)} rows."
        )
        times = rows["dp"] * layout.loc[rows.index] / rows["world_size"]
        share = (times % 1 == 0).all()  # of a node, or of cards with two devices each
        advice = "The degrees of parallelism multiply to the number of ranks: "
        if share:
            advice += "count the ranks of all nodes, and every device of a card, or "
        advice += "find out which of these numbers is wrong."
        yield Fault(rows["label"], evidence, advice, None if share else "error")


def _nodes(frame: pd.DataFrame) -> Iterator[Fault]:
    rows = frame[frame["nodes"] * frame["per_node"] - frame["world_size"] != 0]
    rows = rows[rows[["nodes", "per_node", "world_size"]].notna().all(axis=1)]
    # One node may have more than a run uses.
    rows = rows[(rows["nodes"] > 1) | (rows["world_size"] > rows["per_node"])]
    if len(rows):
        row = rows.iloc[0]
        yield Fault(
            rows["label"],
            f"{row['nodes']:g} nodes x {row['per_node']:g} ranks is "
            f"{row['nodes'] * row['per_node']:g}, not {row['world_size']:g} ranks in "
            f"{row['label']}; found in {len(rows)} of {len(frame)} rows.",
            "The ranks are the nodes times the ranks per node: find out which of these numbers is "
            "wrong.",
        )


def _batches(frame: pd.DataFrame, layout: pd.Series, observations: Observations) -> Comparison:
    """Global batches that the micro-batches of all replicas do not make."""
    given = set(observations.given)
    replicas = frame["dp"].fillna(frame["world_size"] / layout)
    if "grad_accum" not in given:
        frame = frame.assign(grad_accum=float("nan"))  # it would follow from the global batch
    of_step, quoted = frame["micro_batch_size"] * replicas, frame["global_batch_size"]
    accumulated, known = of_step * frame["grad_accum"], quoted.notna() & of_step.notna()
    unlike = (accumulated != quoted).where(frame["grad_accum"].notna(), quoted % of_step != 0)
    if not re.search("micro|mbs", normal(observations.given["micro_batch_size"])):
        unlike &= of_step != quoted  # a batch per rank may include accumulation
    equal = known & ((accumulated.fillna(of_step) == quoted) | _rounded_down(frame, replicas))
    odd = unlike & ~equal & _among_equals(frame, equal, known, observations)
    checked = bool(given & {"dp", *LAYOUT}) or "grad_accum" in given
    wrong = unlike if checked else odd
    if checked and not given & {"dp", *LAYOUT}:
        # If the table omits model parallelism, there are fewer replicas.
        wrong &= odd | ((accumulated % quoted != 0) & frame["grad_accum"].notna())
    rows = frame[wrong & known & ~_unlike(frame, layout)]
    if len(rows):
        row = rows.iloc[0]
        steps, copies = row["grad_accum"], float(replicas.loc[rows.index[0]])
        by = f" x {steps:g} accumulated" if steps == steps else ""
        verdict = (
            f"is {row['micro_batch_size'] * steps * copies:g}, not" if by else "does not divide"
        )
        yield Fault(
            rows["label"],
            f"{row['micro_batch_size']:g} per rank{by} x {copies:g} replicas {verdict} "
            f"the global batch of {row['global_batch_size']:g} in {row['label']}; found in "
            f"{len(rows)} of {len(frame)} rows.",
            "The global batch is micro-batch x accumulation x data-parallel ranks: find out which "
            "of these numbers is wrong.",
        )
    return checked or _are_most(equal, known)


def _rounded_down(frame: pd.DataFrame, replicas: pd.Series) -> pd.Series:
    """Whether batches per rank are whole shares of the global one: of 256, each of 3 has 85."""
    share = frame["global_batch_size"] // replicas
    return (share == frame["micro_batch_size"]) & frame["grad_accum"].isna()


def _are_most(equal: pd.Series, known: pd.Series) -> bool:
    return bool(equal.sum() >= max(FEWEST_ALIKE, 2 * known.sum() / 3))


def _among_equals(
    frame: pd.DataFrame, equal: pd.Series, known: pd.Series, observations: Observations
) -> pd.Series:
    """Whether most rows of a table meet an identity, and one of a row's own settings does."""
    if not _are_most(equal, known):
        return pd.Series(False, frame.index)
    keys = [*observations.keys] or ["aggregate"]
    return equal.groupby([frame[key] for key in keys], dropna=False).transform("any")


@rule(
    "quoted-against-own",
    "speedup or efficiency or ratio_of_times or ratio_of_rates or rate_per_rank or rate,"
    " time or rate or speedup or ratio_of_times or ratio_of_rates",
)
def quoted_against_own(observations: Observations) -> Iterator[Fault]:
    """A quoted speedup, efficiency, total or rate that the table's own numbers contradict."""
    checked, given = False, set(observations.given)
    for point in observations.points if observations.kind != "collectives" else ():
        own = point.gain == point.gain and point.base is not None
        own = own and not observations.own_baseline  # each row has the time that it is over
        quotes = point.speedup > 0 or point.efficiency > 0
        both = point.speedup > 0 and point.efficiency > 0
        if (quotes and own) or both:
            checked = True
            if observations.quoted_over_settings.isdisjoint(point.labels):
                yield from _misquoted(point, own)
        elif point.speedup > 0 and point.world_size > 1:
            yield from _misquoted_over_siblings(point)
    for kind in ("times", "rates"):
        if f"ratio_of_{kind}" in observations.known:
            rows = observations.frame[observations.frame[f"ratio_of_{kind}"].notna()]
            checked |= yield from _ratios(rows, kind, observations)
    if {"rate", "rate_per_rank", "world_size"} <= given:
        total, each = (counted(observations.given[name]) for name in ("rate", "rate_per_rank"))
        if total and total == each:
            checked = True
            yield from _totals(observations)
    if observations.kind == "table" and {"rate", "time"} <= observations.known:
        stepwise = observations.per == "step"
        whole = stepwise and {"global_batch_size", "batch"} & given
        compared = False
        if whole or (stepwise and "micro_batch_size" in given):
            compared = yield from _steps(observations)
        checked |= compared
        curves = () if whole or compared else observations.curves
        for several in grouped((OF_RANKS.sub("", one.label), one) for one in curves).values():
            points = [point for curve in several for point in curve.points]
            alike = yield from _unlike_runs(points, several[0].per, observations)
            checked |= alike
            for curve in () if alike or len(several) == 1 else several:
                checked |= yield from _unlike_runs(curve.points, curve.per, observations)
    if not checked:
        raise UncheckedError("a quoted speedup, efficiency or total with the numbers behind it")


def _misquoted(point: Point, own: bool) -> Iterator[Fault]:
    """A quoted speedup or efficiency that is not that of the table's `own` times, or of each
    other."""
    n, speedup, efficiency = point.world_size, point.speedup, point.efficiency
    base, gain, over = point.base, point.gain, point.over
    comparable = base is not None and base.world_size == point.curve.ratios_over
    if base is not None and not comparable:
        first = base.speedup if base.speedup > 0 else base.efficiency * base.over
        gain *= first if point.curve.ratios_over > 0 else math.nan  # which may be unknown
        comparable = base.efficiency > 0
    gain = gain or math.nan  # an infinite time has no speedup to compare
    margin = point.rounding + (base.rounding if base else 0.0)
    # Of the rates next to the times, or in strong scaling whose batch per rank differs, a sibling.
    rates = base is not None and point.times and point.rate / (base.rate or math.nan)
    elsewhere = bool(rates and abs(speedup / rates - 1) < QUOTED)
    others = [other for other in _references(point) if other is not base]
    elsewhere = elsewhere or any(map(point.is_quoted_over, others))
    # Of 0.01, half may be rounding, and then no sum of shares tells what it explains.
    rounded = point.speedup_rounding
    more, less = (speedup * (1 + sign * rounded) / gain for sign in (1, -1))
    within = point.curve.quoted_within
    apart = abs(speedup / gain - 1) > within and (less > 1 + margin or more < 1 - margin)
    if own and not elsewhere and not point.means and apart:
        yield Fault(
            point.labels,
            f"A speedup of {speedup:.2f}x is quoted on {point.ranks}, but the table's own "
            f"{'times' if point.times else 'rates'} give {gain:.2f}x.",
            "Name the baseline of the quoted speedup.",
        )
    alone = own and comparable and speedup != speedup and not point.means
    # If the work grows with the ranks and no batch shows it, it is the ratio of the times.
    gap = min(abs(efficiency / ratio - 1) for ratio in (gain / over or math.nan, gain))
    if alone and gap > max(QUOTED, margin + point.efficiency_rounding):
        yield Fault(
            point.labels,
            f"An efficiency of {100 * efficiency:.0f} % is quoted on {point.ranks}, but the "
            f"table's own numbers give {100 * gain / over:.0f} %.",
            "Name the baseline of the quoted efficiency.",
        )
    digits = point.speedup_rounding + point.efficiency_rounding
    short = 1 - efficiency * over / speedup
    cut_off = 0 < short < digits + point.efficiency_rounding  # the last digit, as in 2.0 of 2.08
    if abs(short) > max(ROUNDING, digits) and not cut_off:
        yield Fault(
            point.labels,
            f"An efficiency of {100 * efficiency:.0f} % on {n:g} ranks is quoted beside a speedup "
            f"of {speedup:.2f}x, which is {100 * speedup / over:.0f} %.",
            "Efficiency is speedup over N: state what else it was divided by.",
        )


def _references(point: Point) -> list[Point]:
    """Points on one rank at any batch that quote a speedup of 1."""
    smallest = (other for curve in point.curve.siblings for other in curve.smallest)
    return [other for other in smallest if other.world_size == other.speedup == 1]


def _misquoted_over_siblings(point: Point) -> Iterator[Fault]:
    """A speedup over other batches that none of their rates on one rank gives."""
    references = [other for other in _references(point) if other.rate > 0]
    if references and point.rate > 0 and not any(map(point.is_quoted_over, references)):
        own = " or ".join(f"{point.rate / other.rate:.2f}x" for other in references[:SHOWN])
        yield Fault(
            point.labels,
            f"A speedup of {point.speedup:.2f}x is quoted on {point.ranks}, but the table's own "
            f"rates give {own} over one rank at other batches.",
            "Name the baseline of the quoted speedup.",
        )


def _worst(
    wrong: pd.DataFrame, gap: pd.Series, what: Callable[[Any], str], advice: str
) -> list[Fault]:
    """The fault of some rows, if any, in words for the one that is furthest off."""
    if not len(wrong):
        return []
    evidence = f"{what(largest(wrong, gap))}; found in {count(len(wrong), 'row')}."
    return [Fault(wrong["label"], evidence, advice)]


def _steps(observations: Observations) -> Comparison:
    """Rates times times of a step that are not its global batch, in samples or in tokens, although
    those of at least half of the rows are."""
    frame = observations.frame
    done = frame["rate"] * frame["time"]
    lengths = pd.to_numeric(frame["sequence_length"].str.replace(",", ""), errors="coerce")
    given = set(observations.given)
    # A batch may be that of a rank.
    batches = [frame["global_batch_size"]] * bool({"global_batch_size", "micro_batch_size"} & given)
    batches += [frame["batch"]] * ("batch" in given)
    batches += [batch * frame["world_size"] for batch in batches if batch.name == "batch"]
    digits = rounding(frame, "rate", "time")
    works = [*(batch * lengths for batch in batches), *batches]
    gaps = [(done / work - 1).abs() for work in works]
    wrong = [gap > digits.clip(lower=QUOTED) for gap in gaps]
    known = [at for at, gap in enumerate(gaps) if gap.count() > 0]
    best = min(known, key=lambda at: wrong[at].sum() / gaps[at].notna().sum(), default=None)
    if best is None or wrong[best].sum() > gaps[best].notna().sum() / 2:
        return False
    yield from _worst(
        frame[wrong[best]],
        gaps[best],
        lambda worst: (
            f"{observations.per_period(worst['rate'])} for {seconds(worst['time'])} is "
            f"{plain(worst['rate'] * worst['time'])} in a step, but its batch holds "
            f"{plain(works[best][worst.name])}, in {worst['label']}"
        ),
        WORK_ADVICE,
    )
    return True


def _unlike_runs(points: list[Point], per: str, observations: Observations) -> Comparison:
    """Points of a curve, or of several that differ in cores or threads only, whose rate times time
    is not the work of most others, which is equal on all numbers of ranks or grows with them."""
    points = [point for point in points if point.time > 0 and point.rate > 0]
    if len({point.time for point in points}) == 1:
        return False  # runs of a fixed time do as much as they can
    # A time to train holds more than training, such as evaluation.
    least = QUOTED if per == "step" else WHOLE_RUN
    margins = [max(least, point.rounding + point.rate_rounding) for point in points]
    done = np.array([point.time * point.rate for point in points])
    fitting = []
    for works in (np.ones(len(points)), np.array([point.world_size for point in points])):
        usual = float(np.median(done / works)) * works if points else done
        fitting.append((np.abs(done / usual - 1) <= margins, usual))
    fits, usual = max(fitting, key=lambda pair: int(pair[0].sum()))
    if fits.sum() < max(FEWEST_ALIKE, 2 * len(points) / 3):
        return False
    for point, amount, work, fit in zip(points, done, usual, fits, strict=True):
        if not fit:
            yield Fault(
                point.labels,
                f"{observations.per_period(point.rate)} for {seconds(point.time)} is {amount:.4g} "
                f"on {point.ranks}; by {fits.sum()} other rows it should be {work:.4g}.",
                WORK_ADVICE,
            )
    return True


def _ratios(rows: pd.DataFrame, kind: str, observations: Observations) -> Comparison:
    """Ratios between two settings for which the same row of the table has its own numbers."""
    frame, quantity = observations.frame, kind.removesuffix("s")
    key = next(
        name
        for name in observations.keys
        if set(rows["ratio_over"].dropna()) <= set(observations.frame[name])
    )
    others = frame.set_index([frame[ROW], frame[key]])
    others = others[~others.index.duplicated()]
    places = pd.MultiIndex.from_arrays([rows[ROW], rows["ratio_over"]])
    over = others.reindex(places)
    here, there = rows[quantity].to_numpy(), over[quantity].to_numpy()
    own = pd.Series(there / here if kind == "times" else here / there, rows.index)
    digits = rounding(rows, quantity, f"ratio_of_{kind}") + rounding(over, quantity).to_numpy()
    quoted = rows[f"ratio_of_{kind}"]
    margin = digits.clip(lower=QUOTED)
    # "A to B" may mean A over B or B over A.
    gap = (quoted / own - 1).abs().combine((quoted * own - 1).abs(), min)
    yield from _worst(
        rows[(gap > margin) & own.notna()],
        gap,
        lambda worst: (
            f"{quoted[worst.name]:.2f}x is quoted for {worst[key]} over {worst['ratio_over']} in "
            f"{worst['label']}, but the {kind} of its own row give {own[worst.name]:.2f}x"
        ),
        "Compute it again from the numbers beside it, or state where it comes from.",
    )
    return bool(own.count() > 0)


def _totals(observations: Observations) -> list[Fault]:
    frame, rated = observations.frame, observations.per_period
    total = frame["rate_per_rank"] * frame["world_size"]
    digits = rounding(frame, "rate", "rate_per_rank")
    gap = (frame["rate"] / total - 1).abs()
    return _worst(
        frame[gap > digits.clip(lower=QUOTED)],
        gap,
        lambda worst: (
            f"{rated(worst['rate'])} on {worst['world_size']:g} ranks are quoted beside "
            f"{rated(worst['rate_per_rank'])} per rank, which makes {rated(total[worst.name])}, in "
            f"{worst['label']}"
        ),
        "The total is the rate of a rank times the ranks: find out which of these numbers is "
        "wrong.",
    )
