"""Rules about ranks: a synchronous step ends with its slowest rank, and one rank has nobody to talk to."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from lab.analysis.audit.observations import Observations
from lab.analysis.audit.rule import Finding, Rule, UncheckedError, found, seconds
from lab.analysis.audit.series import Line, Point, lines, measurements

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
        told = f"The mean over ranks gives {by_mean:.2f}x on {point.world_size:g} ranks{where}, the slowest rank {by_slowest:.2f}x"
    else:
        told = f"On {point.world_size:g} ranks{where} the mean over ranks is quoted"
    evidence = f"{told} ({seconds(point.mean)} against {seconds(point.time)})."
    return found(
        "slowest-rank",
        "error",
        point.labels,
        evidence,
        "Quote the time of the slowest rank: a synchronous step ends with it.",
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
    rows = seen.frame[
        seen.frame["rank"].notna() & ~seen.frame["aggregate"] & seen.frame["time"].notna()
    ]
    names = [
        *seen.keys,
        "global_batch_size",
        "batch",
        "world_size",
        *(["run_id"] if seen.kind == "records" else []),
    ]
    for _, group in rows.groupby(names, sort=False, dropna=False):
        worst: tuple[float, Finding] | None = None
        for _, ranks in group.groupby(measurements(group), sort=False):
            fastest, slowest = ranks["time"].min(), ranks["time"].max()
            gap = slowest / fastest - 1
            if (
                len(ranks) > 1
                and gap > max(IMBALANCE, worst[0] if worst else 0.0)
                and not _by_chance(ranks)
            ):
                ids = ranks.loc[[ranks["time"].idxmax(), ranks["time"].idxmin()]]
                evidence = (
                    f"Rank {ids['rank'].iloc[0]:g} takes {slowest:.2f} s against {fastest:.2f} s of rank {ids['rank'].iloc[1]:g}"
                    if slowest >= 1
                    else f"Rank {ids['rank'].iloc[0]:g} takes {seconds(slowest)} against {seconds(fastest)} of rank {ids['rank'].iloc[1]:g}"
                )
                evidence += f" at world size {ranks['world_size'].iloc[0]:g}, {100 * gap:.0f} % more in what should be the same steps."
                worst = (
                    gap,
                    _imbalance(
                        list(ranks["label"]), evidence, is_error=gap > _explained(ranks.iloc[0])
                    ),
                )
        if worst:
            yield worst[1]


def _by_chance(ranks: pd.DataFrame) -> bool:
    """Whether the medians of all ranks lie where the median of the record's step may lie: few slow steps move it."""
    return "median_low" in ranks and bool(
        ranks["time"].between(ranks["median_low"], ranks["median_high"]).all()
    )


def _explained(row: pd.Series) -> float:
    """The largest gap, as a share, that skew can explain in as many steps as a record measured."""
    measured = (
        float(row["total_steps"]) - float(row["warmup"]) if "total_steps" in row else math.nan
    )
    return max(NOT_ONE_RUN, SKEW_STEPS / measured) if measured > 0 else NOT_ONE_RUN


def _imbalance(labels: list[str], evidence: str, *, is_error: bool) -> Finding:
    advice = "Ranks that synchronise in every step end together: look for unequal data, a shared device, or clocks that measure different things."
    return found("rank-imbalance", "error" if is_error else "warning", labels, evidence, advice)


RANKS_RULES = (
    Rule("slowest-rank", (("time", "speedup"), ("world_size",)), slowest_rank),
    Rule(
        "communication-alone", (("world_size",), ("communication", "exposed")), communication_alone
    ),
    Rule("rank-imbalance", (("rank",), ("time",), ("world_size",)), rank_imbalance),
)
# What DESIGN asks of a clock: parts and whole within 2 %.
CLOSED = 0.02
# Medians of parts need not add up to the median of the whole; a record that was checked step by step may differ by this.
MEDIANS = 0.10
# A step that waits for data for more than this is not about parallelism.
STALL = 0.10
# DDP rebuilds its buckets after the first step: two steps at least do not count.
FEWEST_WARMUP = 2
# The first epoch or step takes this much longer where something is compiled, cached or allocated in it.
COLD = 0.20
PARTS = ("data", "h2d", "forward", "backward", "compute", "optimizer", "other")


def phases_close(seen: Observations) -> Iterator[Finding]:
    """Phases that do not add up to the step within 2 %, and a part of the communication that is more than all of it."""
    yield from _exposed_beyond(seen)
    rows = seen.frame[seen.frame["time"].notna()].copy()
    if seen.kind == "records":
        rows = rows[rows["aggregate"]]
        rows["sum"], rows["least"] = rows["phase_sum"], rows["phase_sum"]
    else:
        whole = rows["compute"].notna() | (rows["forward"].notna() & rows["backward"].notna())
        # Forward and backward are parts of a compute time that stands beside them.
        doubled = rows["compute"].notna() & (rows["forward"] + rows["backward"]).notna()
        rows = rows[whole]
        parts = rows[list(PARTS)].mask(
            np.outer(doubled[whole], [name in {"forward", "backward"} for name in PARTS])
        )
        waited = rows["exposed"].fillna(rows["communication"])
        rows["sum"] = parts.sum(axis=1) + waited.fillna(0.0)
        # Communication that overlaps compute adds less than its own time.
        rows["least"] = parts.sum(axis=1) + rows["exposed"].fillna(0.0)
        rows = rows[waited.notna() | rows["data"].notna() | rows["optimizer"].notna()]
    if rows.empty:
        raise UncheckedError(
            "parts of the step: compute (or forward and backward) with communication, data or optimizer"
        )
    tolerance = (
        np.where(rows["phases_checked"].eq(True), MEDIANS, CLOSED)
        if "phases_checked" in rows
        else CLOSED
    )
    over, under = (
        rows["least"] / rows["time"] - 1 > tolerance,
        rows["sum"] / rows["time"] - 1 < -tolerance,
    )
    failed = (
        rows["phases_checked"].eq(False)
        if "phases_checked" in rows
        else pd.Series(False, index=rows.index)
    )
    wrong = rows[over | under | failed]
    if wrong.empty:
        return
    gaps = wrong["sum"] / wrong["time"] - 1
    worst = wrong.iloc[_most(gaps.abs())]
    evidence = (
        f"In {len(wrong)} of {len(rows)} rows the parts do not add up: they sum to {seconds(worst['sum'])} where the whole takes "
        f"{seconds(worst['time'])} ({100 * (worst['sum'] / worst['time'] - 1):+.1f} %) in {worst['label']}."
    )
    # Medians of a record overshoot by noise alone; parts of one row that exceed their whole are wrong.
    severity = "error" if over.any() and seen.kind != "records" else "warning"
    advice = (
        "Name the part that is missing or counted twice; report what is left as a part of its own."
    )
    yield found("phases-close", severity, wrong["label"], evidence, advice)  # type: ignore[arg-type]


def _exposed_beyond(seen: Observations) -> Iterator[Finding]:
    rows = seen.frame[seen.frame["exposed"] > seen.frame["communication"] * (1 + CLOSED)]
    if len(rows) and seen.kind != "records":  # whose medians of each need not be of one step
        worst = rows.iloc[_most(rows["exposed"] / rows["communication"])]
        evidence = (
            f"{seconds(worst['exposed'])} of communication are exposed where all of it takes {seconds(worst['communication'])}, "
            f"in {worst['label']}; so in {len(rows)} of {int(seen.frame['exposed'].notna().sum())} rows."
        )
        advice = "Exposed is the part of the communication that the step waits for: measure both in the same steps."
        yield found("phases-close", "error", rows["label"], evidence, advice)


def data_stall(seen: Observations) -> Iterator[Finding]:
    """A step bounded by the loader, by its time or by more loader processes than CPUs."""
    frame = seen.frame
    share = frame["data"] / frame["time"]
    slow = frame[share > STALL]
    checked = share.notna().any()
    if len(slow):
        worst = slow.iloc[_most(share[slow.index])]
        evidence = (
            f"{seconds(worst['data'])} of {seconds(worst['time'])}, {100 * worst['data'] / worst['time']:.0f} %, is waiting for data in "
            f"{worst['label']}, and more than {100 * STALL:.0f} % in {len(slow)} of {int(share.notna().sum())} rows."
        )
        advice = "Feed the ranks before judging their communication: more loader processes, prefetching, or data in memory."
        yield found("data-stall", "warning", slow["label"], evidence, advice)
    workers = frame["loader_workers"] * frame["world_size"]
    cpus = frame["cpus"] * (
        frame["world_size"]
        if "per_rank" in seen.given.get("cpus", "").lower().replace("gpu", "rank")
        else 1.0
    )
    crowded = frame[(workers > cpus) & (frame["loader_workers"] > 0)]
    crowded = crowded[crowded["aggregate"]] if seen.kind == "records" else crowded
    if len(crowded):
        worst = crowded.iloc[_most((workers / cpus)[crowded.index])]
        counts = ", ".join(
            dict.fromkeys(f"{workers[index]:g} on {cpus[index]:g}" for index in crowded.index)
        )
        evidence = (
            f"Loader processes outnumber the CPUs ({counts}), {worst['loader_workers']:g} for each of {worst['world_size']:g} ranks: "
            f"they take turns with each other and with the ranks in {len(crowded)} rows."
        )
        advice = "Ask for a CPU per loader process and rank, and measure the time that a step waits for data before blaming communication."
        yield found("data-stall", "warning", crowded["label"], evidence, advice)
    if not checked and not (workers.notna() & cpus.notna()).any():
        raise UncheckedError("data time, or loader_workers and cpus")


def cold_start(seen: Observations) -> Iterator[Finding]:
    """Warm-up or compilation inside the measure."""
    frame = seen.frame
    few = frame[(frame["warmup"] < FEWEST_WARMUP) & frame["warmup"].notna()]
    few = few[few["aggregate"]] if seen.kind == "records" else few
    if len(few):
        least = few["warmup"].min()
        evidence = f"{least:g} warm-up steps are left out in {len(few)} rows: allocation, compilation and rebuilt buckets are in the measure."
        yield found(
            "cold-start",
            "warning",
            few["label"],
            evidence,
            f"Leave out at least {FEWEST_WARMUP} steps, more where a model is compiled.",
        )
    if seen.kind != "records":
        yield from _first(seen)


def _first(seen: Observations) -> Iterator[Finding]:
    """The first epoch or step of a series against the median of its others."""
    index = next((name for name in ("step", "epoch") if seen.frame[name].notna().any()), None)
    if index is None:
        return
    rows = seen.frame[
        seen.frame[index].notna() & seen.frame["time"].notna() & ~seen.frame["aggregate"]
    ]
    labels: list[str] = []
    worst = (0.0, math.nan, math.nan)
    for _, group in rows.groupby(
        [*seen.keys, "world_size", "global_batch_size", "batch", "rank", "repeat"],
        sort=False,
        dropna=False,
    ):
        if len(group) < 3:
            continue
        place = _most(-group[index])
        first = group.iloc[place]
        rest = float(group["time"].drop(group.index[place]).median())
        if rest > 0 and first["time"] / rest - 1 > COLD:
            labels.append(str(first["label"]))
            worst = max(worst, (first["time"] / rest - 1, first["time"], rest))
    if labels:
        evidence = (
            f"The first {index} takes {seconds(worst[1])}, {100 * worst[0]:.0f} % more than the {seconds(worst[2])} of the others, "
            f"in {len(labels)} series."
        )
        yield found(
            "cold-start",
            "warning",
            labels,
            evidence,
            f"Leave the first {index} out of every mean, and say so.",
        )


def _most(values: pd.Series) -> int:
    """The place of the largest known value."""
    return int(values.fillna(-np.inf).to_numpy().argmax())


PHASES_RULES = (
    Rule(
        "phases-close",
        (("time", "exposed"), ("compute", "forward", "phase_sum", "exposed")),
        phases_close,
    ),
    Rule("data-stall", (("data", "loader_workers"),), data_stall),
    Rule("cold-start", (("warmup", "epoch", "step"),), cold_start),
)
