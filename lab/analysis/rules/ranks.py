"""Rules about ranks: a synchronous step ends with its slowest rank, and one rank has nobody to talk to."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from lab.analysis.observations import Observations
from lab.analysis.points import Line, Point
from lab.analysis.rule import Finding, Rule, UncheckedError, found, seconds
from lab.analysis.series import lines, measurements

# Clocks and rounding of a log differ by less; a mean over ranks that are equal passes.
QUOTED_TOLERANCE = 0.02
# Synchronous ranks wait for each other in every step: medians of the same steps agreed within a few per cent when tried.
IMBALANCE = 0.05
# Beyond this no skew explains it: the ranks did not run the same synchronous steps.
NOT_ONE_RUN = 0.25
# Ranks that step together may still be up to a step apart at either end of what was measured.
SKEW_STEPS = 2
# A wrapper that copies buckets at world size 1 stays below this share of the step and is no communication.
ALONE = 0.001


def slowest_rank(seen: Observations) -> Iterator[Finding]:
    """A time that averages ranks, with the speedup recomputed from the slowest."""
    if seen.kind == "records":
        yield from _quoted_records(seen)
        return
    if not {"rank", "time_mean"} & seen.known:
        raise UncheckedError("rank")
    for line in lines(seen):
        for point in line.points:
            quoted = point.mean if math.isfinite(point.mean) else math.nan
            if quoted < point.time * (1 - QUOTED_TOLERANCE):
                yield _averaged(line, point)
        yield from _quoted_speedups(line)


def _averaged(line: Line, point: Point) -> Finding:
    where = f" at {line.label}" if line.label else ""
    by_mean, by_slowest = line.gain(point, means=True), line.gain(point)
    if math.isfinite(by_mean) and math.isfinite(by_slowest):
        told = (
            f"The mean over ranks gives {by_mean:.2f}x on {point.world_size:g} ranks{where}, the slowest rank {by_slowest:.2f}x"
        )
    else:
        told = f"On {point.world_size:g} ranks{where} the mean over ranks is quoted"
    evidence = f"{told} ({seconds(point.mean)} against {seconds(point.time)})."
    return found(
        "slowest-rank", "error", point.labels, evidence, "Quote the time of the slowest rank: a synchronous step ends with it."
    )


def _quoted_speedups(line: Line) -> Iterator[Finding]:
    for point in line.points:
        gain = line.gain(point)
        ranks_known = len(point.labels) > len(point.times)
        if ranks_known and math.isnan(point.mean) and point.speedup > gain * (1 + QUOTED_TOLERANCE):
            yield found(
                "slowest-rank",
                "error",
                point.labels,
                f"A speedup of {point.speedup:.2f}x is quoted on {point.world_size:g} ranks, the slowest rank gives {gain:.2f}x.",
                "Compute the speedup from the time of the slowest rank.",
            )


def _quoted_records(seen: Observations) -> Iterator[Finding]:
    for (run, repeat), rows in seen.frame.groupby(["run_id", "repeat"], sort=False):
        quoted, ranks = rows[rows["aggregate"]]["time"], rows[~rows["aggregate"]]["time"]
        if len(quoted) and len(ranks) and quoted.max() < ranks.max() * (1 - QUOTED_TOLERANCE):
            yield found(
                "slowest-rank",
                "error",
                [f"{run}/{repeat}"],
                f"The step is quoted as {seconds(quoted.max())}, and its slowest rank takes {seconds(ranks.max())}.",
                "Quote the time of the slowest rank: a synchronous step ends with it.",
            )


def communication_alone(seen: Observations) -> Iterator[Finding]:
    """Communication reported at world size 1."""
    if "nodes" in seen.given and not {"world_size", "per_node"} & set(seen.given):
        raise UncheckedError("ranks per node")
    alone = seen.frame[seen.frame["world_size"] == 1]
    if alone.empty:
        raise UncheckedError("rows at world size 1")
    told = alone[["communication", "exposed"]].max(axis=1)
    wrong = alone[told > (alone["time"] * ALONE).fillna(0.0)]
    for label, value, time in zip(wrong["label"], told[wrong.index], wrong["time"], strict=True):
        share = f", {100 * value / time:.1f} % of its time" if time > 0 else ""
        yield found(
            "communication-alone",
            "error",
            [label],
            f"{seconds(value)} of communication is reported at world size 1{share}, where a rank has nobody to communicate with.",
            "Find out what this number measures; it is in the communication of the other world sizes too.",
        )


def rank_imbalance(seen: Observations) -> Iterator[Finding]:
    """Ranks of one synchronous run that differ by more than a few per cent."""
    rows = seen.frame[seen.frame["rank"].notna() & ~seen.frame["aggregate"] & seen.frame["time"].notna()]
    names = [*seen.keys, "global_batch_size", "batch", "world_size", *(["run_id"] if seen.kind == "records" else [])]
    for _, group in rows.groupby(names, sort=False, dropna=False):
        worst: tuple[float, Finding] | None = None
        for _, ranks in group.groupby(measurements(group), sort=False):
            fastest, slowest = ranks["time"].min(), ranks["time"].max()
            gap = slowest / fastest - 1
            if len(ranks) > 1 and gap > max(IMBALANCE, worst[0] if worst else 0.0) and not _by_chance(ranks):
                ids = ranks.loc[[ranks["time"].idxmax(), ranks["time"].idxmin()]]
                evidence = (
                    f"Rank {ids['rank'].iloc[0]:g} takes {slowest:.2f} s against {fastest:.2f} s of rank {ids['rank'].iloc[1]:g}"
                    if slowest >= 1
                    else f"Rank {ids['rank'].iloc[0]:g} takes {seconds(slowest)} against {seconds(fastest)} of rank {ids['rank'].iloc[1]:g}"
                )
                evidence += (
                    f" at world size {ranks['world_size'].iloc[0]:g}, {100 * gap:.0f} % more in what should be the same steps."
                )
                worst = gap, _imbalance(list(ranks["label"]), evidence, is_error=gap > _explained(ranks.iloc[0]))
        if worst:
            yield worst[1]


def _by_chance(ranks: pd.DataFrame) -> bool:
    """Whether the medians of all ranks lie where the median of the record's step may lie: few slow steps move it."""
    return "median_low" in ranks and bool(ranks["time"].between(ranks["median_low"], ranks["median_high"]).all())


def _explained(row: pd.Series) -> float:
    """The largest gap, as a share, that skew can explain in as many steps as a record measured."""
    measured = float(row["total_steps"]) - float(row["warmup"]) if "total_steps" in row else math.nan
    return max(NOT_ONE_RUN, SKEW_STEPS / measured) if measured > 0 else NOT_ONE_RUN


def _imbalance(labels: list[str], evidence: str, *, is_error: bool) -> Finding:
    advice = "Ranks that synchronise in every step end together: look for unequal data, a shared device, or clocks that measure different things."
    return found("rank-imbalance", "error" if is_error else "warning", labels, evidence, advice)


RULES = (
    Rule("slowest-rank", (("time", "speedup"), ("world_size",)), slowest_rank),
    Rule("communication-alone", (("world_size",), ("communication", "exposed")), communication_alone),
    Rule("rank-imbalance", (("rank",), ("time",), ("world_size",)), rank_imbalance),
)
