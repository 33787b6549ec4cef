"""Rules about the environment (one machine, code and set of versions) and what was learned."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from lab.analysis.audit.observations import Observations, UncheckedError
from lab.analysis.audit.rule import Fault, rule
from lab.records.schema import FOREIGN_SHARE

# What must not differ inside one study, in the words of a sentence.
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
NOT_EMULATED = {"", "no", "none", "nothing", "false", "0", "nan"}  # in tables
NAMED = 4  # values in a sentence
# Sums in another order change the last digits; over a short training they stay far below this
# share of the loss. Reduced precision rounds more.
LOSS_TOLERANCE = 0.02
REDUCED_TOLERANCE = 0.05
ACCURACY_TOLERANCE = 0.01  # about what seeds differ by in fine-tuning
QUARTERS = 4
SAME_LEARNING = {"key:strategy", "key:compile", "key:precision"}  # whatever their values


@rule(
    "mixed-environment",
    f"host or {' or '.join(SAME)}",
    advice="Compare only runs of one environment, or run the others again.",
)
def mixed_environment(observations: Observations) -> Iterator[Fault]:
    """Hosts, code, versions, threads or clocks that differ inside one study."""
    rows = observations.runs
    differs = False
    for name, what in SAME.items():
        values = rows[name].dropna().astype(str) if name in rows else pd.Series(dtype=str)
        # Where a study varies the data on purpose, data sets differ between configurations.
        compared = f"key:{name}" in observations.keys  # on purpose, at several world sizes each
        by_data = name == "data_sha256" and _by_data(observations, name)
        if values.nunique() > 1 and not (compared or by_data):
            differs = True
            yield Fault(
                rows.loc[values.index[values != values.mode().iloc[0]], "label"],
                f"{values.nunique()} different {what} were used: {_listed(values)}.",
            )
    yield from _hosts(observations, differs=differs)
    dirty = rows[rows["dirty"].eq(True)] if "dirty" in rows else rows[:0]
    if len(dirty):
        yield Fault(
            dirty["label"],
            f"{len(dirty)} of {len(rows)} repeats ran code with changes that no commit holds.",
            "Commit before measuring.",
            "note",
        )
    disturbed = rows[rows["disturbed"] == 1] if "disturbed" in rows else rows[:0]
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


def _listed(values: pd.Series) -> str:
    return ", ".join(repr(value) for value in values.unique()[:NAMED])


def _by_data(observations: Observations, name: str) -> bool:
    """Whether all runs on the same data agree on a column."""
    data = [key for key in observations.keys if key in {"key:data", "key:dataset"}]
    return bool(data) and bool((observations.frame.groupby(data)[name].nunique() <= 1).all())


def _hosts(observations: Observations, *, differs: bool) -> Iterator[Fault]:
    rows = observations.frame[observations.frame["host"].notna()]
    # Ranks of one run may be on many hosts; runs on one node each should share theirs.
    single = rows[rows["nodes"].isna() | (rows["nodes"] == 1)]
    runs = single.groupby([single["world_size"], single["repeat"].fillna("")], sort=False)["host"]
    sets = {frozenset(hosts) for _, hosts in runs}
    if len(sets) > 1:
        named = ", ".join(sorted(frozenset().union(*sets))[:NAMED])
        yield Fault(
            single["label"],
            f"The runs of this study were on {len(sets)} different sets of hosts: {named}.",
            "Equal models of machines differ too: pin the study to one host, or repeat the "
            "baseline on each.",
            "warning" if observations.kind != "records" or differs else "note",
        )


@rule("emulated", "emulated")
def emulated(observations: Observations) -> Iterator[Fault]:
    """Emulated results among measured ones, several emulations, or only emulated results."""
    rows = observations.runs
    kinds = rows["emulated"].fillna("").astype(str).str.strip()
    kinds = kinds.mask(kinds.str.lower().isin(NOT_EMULATED), "")
    emulations, named = rows[kinds != ""], _listed(kinds[kinds != ""])
    if 0 < len(emulations) < len(rows):
        yield Fault(
            emulations["label"],
            f"{len(emulations)} of {len(rows)} results are emulated ({named}), the others are "
            "measured.",
            "Never compute or draw one from the other: keep emulated results in a study of their "
            "own.",
            "error",
        )
    elif kinds.nunique() > 1:
        yield Fault(
            rows["label"],
            f"The results are of {kinds.nunique()} different emulations: {named}.",
            "Keep a study for each, and set them side by side.",
        )
    elif len(emulations):
        yield Fault(
            emulations["label"],
            f"All {len(rows)} results are emulated: {named}.",
            "Say so wherever one of their numbers is shown.",
            "note",
        )


@rule(
    "same-learning",
    "loss or accuracy",
    advice="Runs that learn differently do different work: look for unequal data, missing "
    "averaging, or other seeds.",
)
def same_learning(observations: Observations) -> Iterator[Fault]:
    """Loss curves that disagree beyond tolerance at equal global batch and seed."""
    frame, records = observations.frame, observations.kind == "records"
    rows = frame[frame["aggregate"] == records]
    rows = rows[rows["loss"].notna() | rows["accuracy"].notna()]
    names = [name for name in observations.keys if name not in SAME_LEARNING]
    names += ["total_steps"] if records else []
    batches = (name for name in ("global_batch_size", "batch") if frame[name].notna().any())
    batch = next(batches, None)
    if batch:
        names.append(batch)
        rows = rows[rows[batch].notna()]
    groups = (
        [group for _, group in rows.groupby(names, sort=False, dropna=False)] if names else [rows]
    )
    groups = [group for group in groups if len(group) > 1]
    if not groups:
        raise UncheckedError("two runs of equal global batch with a loss or accuracy")
    for group in groups:
        yield from _loss_curves(group) if records else _last_values(group, batch)


def _loss_curves(group: pd.DataFrame) -> Iterator[Fault]:
    known = group[[isinstance(curve, list) and len(curve) > 0 for curve in group["loss_curve"]]]
    # Where the loss depends on how ranks share the batch, only equal ways to share it compare.
    depends = known["depends_on_split"].notna()
    split = [known["world_size"].where(depends, 0.0), known["strategy"].where(depends, "")]
    for _, alike in known.groupby(split, sort=False):
        first = alike.iloc[0]
        reduced = alike["precision"].isin(["bf16", "fp16"]).any()
        tolerance = REDUCED_TOLERANCE if reduced else LOSS_TOLERANCE
        for _, other in alike.iloc[1:].iterrows():
            length = min(len(first["loss_curve"]), len(other["loss_curve"]))
            here, there = (
                np.array([part.mean() for part in np.array_split(curve, min(QUARTERS, length))])
                for curve in (first["loss_curve"][:length], other["loss_curve"][:length])
            )
            gaps = np.abs(there - here) / np.abs(here)
            if np.nanmax(gaps, initial=0.0) > tolerance:
                worst = int(np.nanargmax(gaps))
                yield Fault(
                    [first["label"], other["label"]],
                    f"At equal batch and seed the mean loss of quarter {worst + 1} of the training "
                    f"is {here[worst]:.4g} at world size {first['world_size']:g} and "
                    f"{there[worst]:.4g} at {other['world_size']:g}, {100 * gaps[worst]:.1f} % "
                    "apart.",
                )


def _last_values(group: pd.DataFrame, batch: str | None) -> Iterator[Fault]:
    order = next((name for name in ("epoch", "step") if group[name].notna().any()), None)
    last = group[group[order] == group[order].max()] if order else group
    medians = last.groupby("world_size")[["loss", "accuracy"]].median()
    for name, tolerance in (("loss", LOSS_TOLERANCE), ("accuracy", ACCURACY_TOLERANCE)):
        ends = medians[name].dropna()
        if len(ends) < 2 or group["world_size"].nunique() < 2:
            continue
        low, high = float(ends.idxmin()), float(ends.idxmax())  # type: ignore[arg-type]
        gap, unit = ends[high] - ends[low], "points"
        if name == "loss":
            gap, unit = gap / (abs(ends[low]) or 1.0), "%"
        if gap > tolerance:
            where = "at batches that the table does not give"
            if batch:
                where = f"at {batch.replace('_', ' ')} {last[batch].iloc[0]:g}"
            yield Fault(
                last["label"],
                f"The {name} ends at {ends[low]:.4g} with {low:g} ranks and {ends[high]:.4g} with "
                f"{high:g}, {100 * gap:.1f} {unit} apart {where}.",
                severity="warning" if batch else "note",
            )
