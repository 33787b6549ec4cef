"""Rules about the time of a step: its slowest rank, its parts, and what should not be in it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from lab.analysis.audit.observations import Observations, UncheckedError, largest
from lab.analysis.audit.points import Point, measurements
from lab.analysis.audit.rule import Fault, rule, seconds
from lab.formatting import count

# Clocks and rounding in a log differ by less; a mean over equal ranks passes.
QUOTED_TOLERANCE = 0.02
# Synchronous ranks wait for each other in every step: in trials, medians of the same steps agreed
# within a few per cent.
IMBALANCE = 0.05
# Skew cannot explain more than this: the ranks did not run the same synchronous steps.
NOT_ONE_RUN = 0.25
# Ranks in step may still be up to one step apart at either end of the measurement.
SKEW_STEPS = 2
# A wrapper that copies buckets at world size 1 stays below this share of the step.
ALONE = 0.001
CALL = 0.1  # of communication on more ranks: what calls take on one, where no time is known
PARTS_TOLERANCE = 0.02  # of the step: phases are laps of one clock and add up
# Medians of parts need not add up to the median of the whole; a record that was checked step by
# step may be off by this much, and by as much as its steps differ.
MEDIANS_TOLERANCE = 0.10
# A step that waits longer than this for data measures the loader, not parallelism.
STALL = 0.10
PART = 1.05  # of a time: what takes longer is not part of it, such as the loading of a model
# DDP rebuilds its buckets after the first step, so at least two steps are warm-up.
FEWEST_WARMUP = 2
# The first epoch or step takes this much longer if it includes compilation or allocation.
COLD = 0.20
PARTS = ["data", "h2d", "forward", "backward", "compute", "optimizer", "other"]


@rule(
    "slowest-rank",
    "time or speedup, world_size",
    severity="error",
    advice="Quote the time of the slowest rank: a synchronous step ends with it.",
)
def slowest_rank(observations: Observations) -> Iterator[Fault]:
    """A time that averages ranks, with the speedup recomputed from the slowest."""
    if observations.kind == "records":
        yield from _quoted_in_records(observations)
        return
    if not {"rank", "time_mean"} & observations.known:
        raise UncheckedError("rank")
    for point in observations.points:
        if point.mean < point.time * (1 - QUOTED_TOLERANCE):
            yield _averaged(point)
        ranks_known = len(point.labels) > len(point.times) and math.isnan(point.mean)
        if ranks_known and point.speedup > point.gain * (1 + QUOTED_TOLERANCE):
            yield Fault(
                point.labels,
                f"A speedup of {point.speedup:.2f}x is quoted on {point.world_size:g} ranks, but "
                f"the slowest rank gives {point.gain:.2f}x.",
                "Compute the speedup from the time of the slowest rank.",
            )


def _averaged(point: Point) -> Fault:
    by_mean, by_slowest = point.gain_of_means, point.gain
    evidence = f"On {point.ranks} the mean over ranks is quoted"
    if math.isfinite(by_mean) and math.isfinite(by_slowest):
        evidence = f"The mean over ranks gives {by_mean:.2f}x on {point.ranks}, but the slowest "
        evidence += f"rank {by_slowest:.2f}x"
    return Fault(point.labels, f"{evidence} ({seconds(point.mean)} against {seconds(point.time)}).")


def _quoted_in_records(observations: Observations) -> Iterator[Fault]:
    frame = observations.frame[["run_id", "repeat", "time", "aggregate"]]
    for (run, repeat), rows in frame.groupby(["run_id", "repeat"], sort=False):
        quoted, slowest = (rows["time"][rows["aggregate"] == over].max() for over in (True, False))
        if quoted < slowest * (1 - QUOTED_TOLERANCE):
            yield Fault(
                [f"{run}/{repeat}"],
                f"The step is quoted as {seconds(quoted)}, but its slowest rank takes "
                f"{seconds(slowest)}.",
            )


@rule(
    "communication-alone",
    "world_size, communication or exposed",
    severity="error",
    advice="Find out what this number measures; the other world sizes contain it too.",
)
def communication_alone(observations: Observations) -> Iterator[Fault]:
    """Communication reported at world size 1."""
    if observations.nodes_as_ranks:
        raise UncheckedError("ranks per node")
    alone = observations.frame[observations.frame["world_size"] == 1]
    if alone.empty:
        raise UncheckedError("rows at world size 1")
    reported = alone[["communication", "exposed"]].max(axis=1)
    others = observations.frame[observations.frame["world_size"] > 1]
    elsewhere = others[["communication", "exposed"]].max(axis=1).median()
    allowed = (alone["time"] * ALONE).fillna(0.0 if np.isnan(elsewhere) else elsewhere * CALL)
    wrong = alone[reported > allowed]
    columns = wrong["label"], reported[wrong.index], wrong["time"]
    for label, value, time in zip(*columns, strict=True):
        share = f", {100 * value / time:.1f} % of the whole time" if time > 0 else ""
        yield Fault(
            [label],
            f"{seconds(value)} of communication is reported at world size 1{share}, where a rank "
            "has nobody to communicate with.",
        )


@rule(
    "rank-imbalance",
    "rank, time, world_size",
    advice="Ranks that synchronise in every step end together: look for unequal data, a shared "
    "device, or clocks that measure different things.",
)
def rank_imbalance(observations: Observations) -> Iterator[Fault]:
    """Ranks of one synchronous run that differ by more than a few per cent."""
    frame = observations.frame
    rows = frame[frame["rank"].notna() & ~frame["aggregate"] & frame["time"].notna()]
    groups = observations.groups(rows, *(["run_id"] if observations.kind == "records" else []))
    keys = np.array(measurements(rows, groups), dtype=object)
    measured = rows.groupby([groups, keys], sort=False).ngroup()
    times = rows["time"].groupby(measured)
    gaps = times.max() / times.min() - 1
    places, group_of = rows.groupby(measured).indices, groups.groupby(measured).first()
    widest: dict[int, Fault] = {}
    wide: Any = gaps[gaps > IMBALANCE].sort_values(ascending=False)
    for measurement, gap in wide.items():
        ranks, group = rows.iloc[places[measurement]], group_of[measurement]
        if group not in widest and not _by_chance(ranks):
            widest[group] = _imbalance(ranks, gap)
    yield from (widest[group] for group in sorted(widest))


def _imbalance(ranks: pd.DataFrame, gap: float) -> Fault:
    slow, fast = largest(ranks, ranks["time"]), largest(ranks, -ranks["time"])
    times = [seconds(row["time"]) for row in (slow, fast)]
    if slow["time"] >= 1:
        times = [f"{row['time']:.2f} s" for row in (slow, fast)]
    # The largest gap that skew can explain over the measured steps of a record.
    steps = (
        float(slow["total_steps"]) - float(slow["warmup"]) if "total_steps" in slow else math.nan
    )
    explained = max(NOT_ONE_RUN, SKEW_STEPS / steps) if steps > 0 else NOT_ONE_RUN
    return Fault(
        ranks["label"],
        f"Rank {slow['rank']:g} takes {times[0]} against {times[1]} of rank {fast['rank']:g} at "
        f"world size {slow['world_size']:g}, {100 * gap:.0f} % more in what should be the same "
        "steps.",
        severity="error" if gap > explained else "warning",
    )


def _by_chance(ranks: pd.DataFrame) -> bool:
    """Whether the medians of all ranks are compatible with the median of the record's step."""
    return "median_low" in ranks and bool(
        ranks["time"].between(ranks["median_low"], ranks["median_high"]).all()
    )


@rule("phases-close", "time or exposed, compute or forward or phase_sum or exposed")
def phases_close(observations: Observations) -> Iterator[Fault]:
    """Phases that do not add up to the step, and exposed communication beyond all of it."""
    yield from _exposed_beyond(observations)
    rows = observations.runs
    rows = rows[rows["time"].notna()]
    records = observations.kind == "records"
    if records:
        least = most = rows["phase_sum"].dropna()  # a replay has none
    else:
        least, most = _sums_of_parts(rows)
    rows = rows.loc[least.index]
    if rows.empty:
        raise UncheckedError(
            "parts of the step: compute (or forward and backward) with communication, data or "
            "optimizer"
        )
    # Medians of parts add up only within the spread of the steps.
    spread = rows["step_spread"].fillna(0.0)
    tolerance, unlike = spread.clip(lower=PARTS_TOLERANCE), pd.Series(False, rows.index)
    if records:
        passed, unlike = rows["phases_checked"].eq(True), rows["phases_checked"].eq(False)
        tolerance = spread.clip(lower=MEDIANS_TOLERANCE).where(passed, PARTS_TOLERANCE)
    gaps = most / rows["time"] - 1
    over = least / rows["time"] - 1 > tolerance
    wrong = rows[over | (gaps < -tolerance) | unlike]
    if len(wrong):
        worst = largest(wrong, gaps.abs())
        yield Fault(
            wrong["label"],
            f"In {len(wrong)} of {len(rows)} rows the parts do not add up: they sum to "
            f"{seconds(most[worst.name])} where the whole takes {seconds(worst['time'])} "
            f"({100 * gaps[worst.name]:+.1f} %) in {worst['label']}.",
            "Name the part that is missing or counted twice; report the remainder as a part of its "
            "own.",
            # Medians of a record overshoot through noise alone; parts of one row that do are wrong.
            "error" if over.any() and not records else "warning",
        )


def _sums_of_parts(rows: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """The least and the most that the parts of a table's rows make of the whole, in s, where it has
    enough of them."""
    halves = (rows["forward"] + rows["backward"]).notna()
    waited = rows["exposed"].fillna(rows["communication"])
    others = waited.notna() | rows["data"].notna() | rows["optimizer"].notna()
    rows = rows.copy()
    # Forward and backward are parts of a compute time beside them.
    rows.loc[rows["compute"].notna() & halves, ["forward", "backward"]] = 0.0
    rows = rows[(rows["compute"].notna() | halves) & others]
    parts = rows[PARTS].sum(axis=1)
    # Communication that overlaps compute adds less than its own time.
    least, most = parts + rows["exposed"].fillna(0.0), parts + waited[rows.index].fillna(0.0)
    # The backward pass may include what it waits for.
    return parts if _closing(parts, rows) > _closing(least, rows) else least, most


def _closing(parts: pd.Series, rows: pd.DataFrame) -> int:
    return int((parts / rows["time"] - 1).abs().le(PARTS_TOLERANCE).sum())


def _exposed_beyond(observations: Observations) -> Iterator[Fault]:
    frame = observations.runs
    tolerance = MEDIANS_TOLERANCE if observations.kind == "records" else PARTS_TOLERANCE
    rows = frame[frame["exposed"] > frame["communication"] * (1 + tolerance)]
    if len(rows):
        worst = largest(rows, rows["exposed"] / rows["communication"])
        yield Fault(
            rows["label"],
            f"{seconds(worst['exposed'])} of communication are exposed, but all of it takes "
            f"{seconds(worst['communication'])}, in {worst['label']}; found in {len(rows)} of "
            f"{frame['exposed'].count()} rows.",
            "Exposed communication is the part that the step waits for: measure both in the same "
            "steps.",
            "error",
        )


@rule("data-stall", "data or loader_workers")
def data_stall(observations: Observations) -> Iterator[Fault]:
    """A step bounded by the loader, by its time or by more loader processes than CPUs."""
    frame, runs = observations.frame, observations.runs
    share = frame["data"] / frame["time"]
    share = share.where(share <= PART)
    slow = frame[share > STALL]
    # One step of a log may wait without stalling the training.
    logged = {"step", "epoch"} & set(observations.given)
    if len(slow) and not (logged and share.median() <= STALL):
        worst = largest(slow, share)
        # Whole runs, and their ranks only if no run is slow as a whole.
        whole = runs.index if slow.index.isin(runs.index).any() else frame.index
        yield Fault(
            slow["label"],
            f"{seconds(worst['data'])} of {seconds(worst['time'])}, {100 * share[worst.name]:.0f} "
            f"%, is spent waiting for data in {worst['label']}, and more than {100 * STALL:.0f} % "
            f"in {slow.index.isin(whole).sum()} of {count(int(share[whole].count()), 'row')}.",
            "Feed the ranks before judging their communication: more loader processes, "
            "prefetching, or data in memory.",
        )
    workers = frame["loader_workers"] * frame["world_size"]
    column = observations.given.get("cpus", "").lower().replace("gpu", "rank")
    cpus = frame["cpus"] * (frame["world_size"] if "per_rank" in column else 1.0)
    crowded = runs[((workers > cpus) & (frame["loader_workers"] > 0))[runs.index]]
    if len(crowded):
        columns = workers, cpus, frame["loader_workers"], frame["world_size"]
        rows = zip(*(column[crowded.index] for column in columns), strict=True)
        counts = (
            f"{many:g} on {few:g}, {each:g} for each of {count(int(ranks), 'rank')}"
            for many, few, each, ranks in rows
        )
        yield Fault(
            crowded["label"],
            f"Loader processes outnumber the CPUs ({'; '.join(dict.fromkeys(counts))}): they "
            f"compete with each other and with the ranks in {count(len(crowded), 'row')}.",
            "Ask for a CPU per loader process and rank, and measure the time that a step waits for "
            "data before blaming communication.",
        )
    if not share.notna().any() and not (workers.notna() & cpus.notna()).any():
        raise UncheckedError("data time, or loader_workers and cpus")


@rule("cold-start", "warmup or epoch or step")
def cold_start(observations: Observations) -> Iterator[Fault]:
    """Warm-up or compilation inside the measurement."""
    runs = observations.runs
    # Beside a number of repetitions, a warm-up is of the whole program, not of a step.
    fewest = FEWEST_WARMUP if runs["repeats"].isna().all() else 1
    few = runs[runs["warmup"] < fewest]
    if len(few) and fewest == 1:
        evidence = f"No repetition is left out as a warm-up in {count(len(few), 'row')}."
        yield Fault(few["label"], evidence, "Leave out the first repetition, which fills caches.")
    elif len(few):
        yield Fault(
            few["label"],
            f"Fewer than {FEWEST_WARMUP} warm-up steps are left out in {count(len(few), 'row')}: "
            "allocation, compilation and rebuilt buckets are in the measurement.",
            f"Leave out at least {FEWEST_WARMUP} steps, more if the model is compiled.",
        )
    if observations.kind != "records":
        yield from _first_is_slow(observations)


def _first_is_slow(observations: Observations) -> Iterator[Fault]:
    """The first epoch or step of a series against the median of its others."""
    frame = observations.frame
    column = next((name for name in ("step", "epoch") if frame[name].count() > 0), None)
    if column is None:
        return
    rows = frame[frame[column].notna() & frame["time"].notna() & ~frame["aggregate"]]
    group = observations.groups(rows, "rank", "repeat")
    group = group[group.map(group.value_counts()) >= 3]
    rows = rows.loc[group.index]
    first = rows[column].groupby(group).idxmin()
    times = rows.loc[first, "time"].set_axis(first.index)
    rest = rows["time"].drop(first).groupby(group).median()
    excess = (times / rest - 1)[rest > 0]
    slow = excess[excess > COLD]
    if len(slow):
        worst: Any = slow.idxmax()
        labels = rows.loc[first[slow.index], "label"]
        yield Fault(
            labels,
            f"The first {column} takes {seconds(times[worst])}, {100 * slow[worst]:.0f} % more "
            f"than the {seconds(rest[worst])} of the others, in {len(labels)} series.",
            f"Leave the first {column} out of every mean, and say so.",
            "note" if observations.logged else None,
        )
