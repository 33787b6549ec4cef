"""Rules about the environment (one machine, code and set of versions) and what was learned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lab.analysis.audit.columns import MEASURED, PHASES, names_gpu
from lab.analysis.audit.observations import Observations, UncheckedError
from lab.analysis.audit.points import Point
from lab.analysis.audit.reshape import listed
from lab.analysis.audit.rule import Comparison, Fault, rule
from lab.config.run import MANTISSA_BITS
from lab.records.schema import FOREIGN_SHARE

# What must not differ inside one study, worded for a sentence.
SAME = {
    "gpu": "GPU models",
    "cpu": "CPU models",
    "version": "versions",
    "commit": "commits",
    "threads": "threads per rank",
    "driver": "drivers",
    "clock": "clocks",
    "data_sha256": "data sets",
    "cluster": "clusters",
}
COUNTS = {"threads"}  # more of them may be meant to speed a program up
NOT_EMULATED = {"", "no", "none", "nothing", "false", "0", "nan"}  # in tables
NAMED = 4  # values in a sentence
SHORT = 12  # digits of a SHA-256 in one
NO_COMPARISON = "times at one rank and at more, or speedups, of one configuration"
# Summing in another order changes the last digits; over a short training the effect stays far below
# this share of the loss. Reduced precision rounds more.
LOSS_TOLERANCE = 0.02
REDUCED_TOLERANCE = 0.05
REDUCED = {name for name, bits in MANTISSA_BITS.items() if bits < MANTISSA_BITS["fp32"]}
ACCURACY_TOLERANCE = 0.01  # about the difference between seeds in fine-tuning
QUARTERS = 4
COMPARED = ["label", "loss_curve", "world_size", "precision", "strategy", "depends_on_split"]
SAME_LEARNING = {"key:strategy", "key:compile", "key:precision"}  # whatever their values


@rule(
    "mixed-environment",
    f"host or device or framework or {' or '.join(SAME)}",
    advice="Compare only runs of one environment, or run the others again.",
)
def mixed_environment(observations: Observations) -> Iterator[Fault]:
    """Hosts, code, versions, threads or clocks that differ inside one study."""
    rows = observations.runs
    curves = _comparing(observations) if observations.kind == "table" else pd.Series(0, rows.index)
    measured = observations.kind == "records" or (MEASURED | {*PHASES}) & observations.known
    if curves.empty and not ("host" in observations.known and measured):
        raise UncheckedError(NO_COMPARISON)
    stated = {"host", *SAME} & observations.known
    if not stated and (observations.kind != "table" or not _environments(rows)):
        raise UncheckedError("a GPU or a version that device or framework names")
    differs = yield from _different(observations, curves)
    if observations.kind == "table" and not observations.own_baseline:
        yield from _quoted_over_another(observations)
    # Configurations of which none was measured on several numbers of ranks are not compared.
    apart = observations.kind == "table" and curves.empty and len(observations.curves) > 1
    if measured and not apart:
        yield from _hosts(observations, differs=differs)
    if observations.kind == "records":
        yield from _conditions(rows)


def _different(observations: Observations, curves: pd.Series) -> Comparison:
    """What differs within a curve and should not, and whether anything does."""
    rows, differs = observations.runs, False
    for name in (name for name in SAME if name in rows):
        known = rows[name].dropna().astype(str)
        if known.nunique() < 2:
            continue
        # What differs only between the configurations of a table is what the table compares.
        values = known[known.groupby(curves).transform("nunique") > 1]
        # A study may vary a setting on purpose, at several world sizes each, or its data.
        meant = f"key:{name}" in observations.keys
        if name == "data_sha256":
            # Whether all runs that are called after the same data had the same.
            own = rows.groupby("key:data")[name].nunique()
            values, meant = values.str[:SHORT], meant or bool((own <= 1).all())
        if values.nunique() > 1 and not meant:
            differs = True
            yield Fault(
                rows.loc[values.index[values != values.mode().iloc[0]], "label"],
                f"{values.nunique()} different {SAME[name]} were used: {listed(values.unique())}.",
            )
    return differs


def _conditions(rows: pd.DataFrame) -> Iterator[Fault]:
    """Repeats of changed code, or that other processes disturbed."""
    # A repeat of an inference run has a row for each batch.
    rows = rows.drop_duplicates(["label", "host", "emulated"])
    dirty = rows[rows["dirty"].eq(True)] if "dirty" in rows else rows[:0]
    if len(dirty):
        yield Fault(
            dirty["label"],
            f"{len(dirty)} of {len(rows)} repeats ran code with uncommitted changes.",
            "Commit before measuring.",
            "note",
        )
    disturbed = rows[rows["disturbed"] == 1]
    if len(disturbed):
        share = disturbed["foreign_share"].max()
        what = f"other processes took up to {100 * share:.0f} % of the ranks' cores"
        if not share > FOREIGN_SHARE:
            what = "GPUs were shared with other processes, or throttled"
        yield Fault(
            disturbed["label"],
            f"In {len(disturbed)} of {len(rows)} repeats {what}.",
            "Measure again on an idle machine.",
            "note",
        )


def _comparing(observations: Observations) -> pd.Series:
    """The number of each row's curve, of those that compare ranks: with one rank, or by a quote."""
    places: dict[int, int] = {}
    for number, curve in enumerate(observations.curves):
        sizes = {point.world_size for point in curve.points}
        quotes = any(point.speedup > 0 or point.efficiency > 0 for point in curve.points)
        if len(sizes) > 1 and (1 in sizes or quotes):
            labels = (label for point in curve.points for label in point.labels)
            places |= dict.fromkeys(observations.places_of(labels), number)
    index = observations.frame.index[list(places)]
    return pd.Series(list(places.values()), index, dtype=float)


def _environments(rows: pd.DataFrame) -> dict[str, pd.Series]:
    """What is known of each of SAME. A device may name a GPU, and a framework its version."""
    used = {name: rows[name] for name in SAME if name in rows}
    devices, frameworks = rows["device"].astype(str), rows["framework"].astype(str)
    used["gpu"] = used["gpu"].fillna(devices.where(devices.map(names_gpu)))
    used["version"] = used["version"].fillna(frameworks.where(frameworks.str.contains(r"\d")))
    return {name: values for name, values in used.items() if values.count() > 0}


def _quoted_over_another(observations: Observations) -> Iterator[Fault]:
    """Speedups over a run on fewer ranks in another environment, if no number of ranks was measured
    in both: then nothing tells what the ranks gain from what the environment does."""
    used, ranks = _environments(observations.frame), observations.frame["world_size"]
    sizes = {
        name: ranks.groupby(values).agg(set)
        for name, values in used.items()
        if name not in COUNTS and values.nunique() > 1
    }
    if not sizes:
        return
    for point in observations.points:
        if not point.speedup > 0 or not observations.quoted_over_settings.isdisjoint(point.labels):
            continue
        over = [one for one in observations.ones if _is_reference(one, point)]
        for name, known in sizes.items() if over else ():
            here, there = (
                set(used[name].iloc[observations.places_of(one.labels)].dropna())
                for one in (point, over[0])
            )
            if len(here) == len(there) == 1 and not known[min(here)] & known[min(there)]:
                yield Fault(
                    point.labels,
                    f"The speedup of {point.speedup:.2f}x on {point.ranks} is relative to a run on "
                    f"{over[0].ranks}, but their {SAME[name]} differ: {min(here)} against "
                    f"{min(there)}.",
                )


def _is_reference(one: Point, point: Point) -> bool:
    """Whether a point of another curve, on fewer ranks than any of its own, is what a quoted
    speedup is over."""
    fewer = one.world_size < point.curve.smallest[0].world_size
    return fewer and one.curve is not point.curve and point.is_quoted_over(one)


def _hosts(observations: Observations, *, differs: bool) -> Iterator[Fault]:
    rows = observations.frame[observations.frame["host"].notna()]
    # Ranks of one run may be on many hosts; single-node runs should all be on the same host.
    single = rows[rows["nodes"].isna() | (rows["nodes"] == 1)]
    runs = single.groupby([single["world_size"], single["repeat"].fillna("")], sort=False)["host"]
    sets = {frozenset(hosts) for _, hosts in runs}
    if len(sets) > 1 and "key:host" not in observations.keys:
        named = ", ".join(sorted(frozenset().union(*sets))[:NAMED])
        yield Fault(
            single["label"],
            f"The runs of this study used {len(sets)} different sets of hosts: {named}.",
            "Machines of one model differ too: pin the study to one host, or repeat the "
            "baseline on each.",
            "warning" if observations.kind != "records" or differs else "note",
        )


@rule("emulated", "emulated, time or rate or speedup or efficiency or busbw")
def emulated(observations: Observations) -> Iterator[Fault]:
    """Emulated results among measured ones, several emulations, or only emulated results."""
    rows = observations.runs
    kinds = rows["emulated"].fillna("").astype(str).str.strip()
    kinds = kinds.mask(kinds.str.lower().isin(NOT_EMULATED), "")
    emulations, named = rows[kinds != ""], listed(kinds[kinds != ""].unique())
    if 0 < len(emulations) < len(rows):
        yield Fault(
            emulations["label"],
            f"Emulated results ({len(emulations)} of {len(rows)}: {named}) stand beside measured "
            "ones.",
            "Never mix the two in a calculation or a figure: keep emulated results in a study of "
            "their own.",
            "error",
        )
    elif kinds.nunique() > 1:
        yield Fault(
            rows["label"],
            f"The results come from {kinds.nunique()} different emulations: {named}.",
            "Keep a study for each, and compare the studies.",
        )
    elif len(emulations):
        yield Fault(
            emulations["label"],
            f"All results are emulated: {named}.",
            "Say so wherever these numbers are shown.",
            "note",
        )


@rule(
    "same-learning",
    "loss or accuracy",
    advice="Runs that learn differently do different work: look for unequal data, missing "
    "averaging, or different seeds.",
)
def same_learning(observations: Observations) -> Iterator[Fault]:
    """Loss curves that disagree beyond tolerance at equal global batch and seed.

    And ranks that end with different parameters, as if nothing had averaged their gradients.
    """
    frame, records = observations.frame, observations.kind == "records"
    if records:
        yield from _models_apart(frame)
    rows = frame[frame["aggregate"] == records]
    rows = rows[rows["loss"].notna() | rows["accuracy"].notna()]
    names = [name for name in observations.keys if name not in SAME_LEARNING]
    names += ["total_steps"] if records else []
    batches = (name for name in ("global_batch_size", "batch") if frame[name].count() > 0)
    batch = next(batches, None)
    if batch:
        names.append(batch)
        rows = rows[rows[batch].notna()]
    groups = rows.groupby(names or ["aggregate"], sort=False, dropna=False).ngroup()
    rows = rows[groups.groupby(groups).transform("size") > 1]
    if rows.empty:
        raise UncheckedError("two runs of equal global batch with a loss or accuracy")
    if records:
        for _, group in rows.groupby(groups[rows.index], sort=False):
            yield from _loss_curves(group)
    else:
        yield from _last_values(rows, groups[rows.index], batch)


def _models_apart(frame: pd.DataFrame) -> Iterator[Fault]:
    apart = frame[frame["aggregate"] & frame["one_model"].eq(False)]
    if len(apart):
        yield Fault(
            apart["label"],
            f"In {len(apart)} of {frame['aggregate'].sum()} repeats the ranks end with different "
            "parameters: each trained a model of its own.",
            "Average gradients, or parameters in the last step; until then these times are those "
            "of other work.",
            "error",
        )


def _loss_curves(group: pd.DataFrame) -> Iterator[Fault]:
    has_curve = [isinstance(curve, Sequence) and len(curve) > 0 for curve in group["loss_curve"]]
    known = group.loc[has_curve, COMPARED]  # rows of all columns take ten times as long
    # If the loss depends on how ranks share the batch, only runs that share it alike compare.
    depends = known["depends_on_split"].notna()
    split = [known["world_size"].where(depends, 0.0), known["strategy"].where(depends, "")]
    for _, alike in known.groupby(split, sort=False):
        first = alike.iloc[0]
        reduced = alike["precision"].isin(REDUCED).any()
        tolerance = REDUCED_TOLERANCE if reduced else LOSS_TOLERANCE
        apart: dict[str, list[tuple[float, str, str]]] = {}  # by run, for one sentence
        for _, other in alike.iloc[1:].iterrows():
            length = min(len(first["loss_curve"]), len(other["loss_curve"]))
            here, there = (
                np.array([part.mean() for part in np.array_split(curve, min(QUARTERS, length))])
                for curve in (first["loss_curve"][:length], other["loss_curve"][:length])
            )
            gaps = np.abs(there - here) / np.abs(here)
            if np.nanmax(gaps, initial=0.0) > tolerance:
                worst = int(np.nanargmax(gaps))
                alone = first["world_size"] == other["world_size"]
                places = [
                    f"in {row['label']}" if alone else f"at world size {row['world_size']:g}"
                    for row in (first, other)
                ]
                evidence = (
                    f"At equal batch and seed, the mean loss of quarter {worst + 1} of training "
                    f"is {here[worst]:.4g} {places[0]} and {there[worst]:.4g} {places[1]}, "
                    f"{100 * gaps[worst]:.1f} % apart."
                )
                run = other["label"].partition("/")[0]
                apart.setdefault(run, []).append((gaps[worst], evidence, other["label"]))
        for repeats in apart.values():
            labels = [first["label"], *(label for _, _, label in repeats)]
            yield Fault(labels, max(repeats)[1])


def _last_values(rows: pd.DataFrame, groups: pd.Series, batch: str | None) -> Iterator[Fault]:
    """Groups of a table whose last losses or accuracies differ between world sizes."""
    order = pd.Series(np.nan, rows.index)
    for name in ("step", "epoch"):
        given = rows[name].notna().groupby(groups).transform("any")
        order = rows[name].where(given, order)
    latest = order.groupby(groups).transform("max")
    last = rows[(order == latest) | latest.isna()]
    groups = groups[last.index]
    places = last.groupby(groups).indices
    medians = last.groupby([groups, last["world_size"]])[["loss", "accuracy"]].median()
    for name, tolerance in (("loss", LOSS_TOLERANCE), ("accuracy", ACCURACY_TOLERANCE)):
        ends = medians[name].dropna()
        least, most = (ends.groupby(level=0).agg(end) for end in ("min", "max"))
        gaps, unit = most - least, "points"
        if name == "loss":
            gaps, unit = gaps / least.abs().where(least != 0, 1.0), "%"
        apart: Any = gaps[gaps > tolerance]
        for group, gap in apart.items():
            own: Any = ends[group]
            of_group = last.iloc[places[group]]
            low, high = float(own.idxmin()), float(own.idxmax())
            where = "at batches that the table does not give"
            if batch:
                where = f"at {batch.replace('_', ' ')} {of_group[batch].iloc[0]:g}"
            yield Fault(
                of_group["label"],
                f"The {name} ends at {own[low]:.4g} at world size {low:g} and {own[high]:.4g} at "
                f"{high:g}, {100 * gap:.1f} {unit} apart {where}.",
                severity="warning" if batch else "note",
            )
