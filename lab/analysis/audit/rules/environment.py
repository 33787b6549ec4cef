"""Rules about the surroundings of a study: one machine, one code, one set of versions; what was real and what emulated."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from lab.analysis.audit.observations import Observations
from lab.analysis.audit.rule import Finding, Rule, Severity, UncheckedError, found
from lab.records.schema import FOREIGN_CPU

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
# How tables say that nothing was emulated.
REAL = {"", "no", "none", "nothing", "false", "0", "nan"}


def mixed_environment(seen: Observations) -> Iterator[Finding]:
    """Hosts, code, versions, threads or clocks that differ inside one study."""
    rows = seen.frame[seen.frame["aggregate"]] if seen.kind == "records" else seen.frame
    unlike = False
    for name, words in SAME.items():
        if name not in rows:
            continue
        # A data set that is a key of the study is asked for; what differs within a configuration is not.
        values = rows[name].dropna().astype(str)
        if values.nunique() > 1 and not (name == "data_sha256" and _follows(seen, name)):
            unlike = True
            named = ", ".join(repr(value) for value in list(dict.fromkeys(values))[:4])
            rare = rows.loc[values.index[values != values.mode().iloc[0]], "label"]
            evidence = f"{values.nunique()} different {words} were used: {named}."
            yield found(
                "mixed-environment",
                "warning",
                rare,
                evidence,
                "Compare only runs of one environment, or run the others again.",
            )
    yield from _hosts(seen, unlike=unlike)
    if "dirty" in rows and rows["dirty"].eq(True).any():
        dirty = rows[rows["dirty"].eq(True)]
        evidence = (
            f"{len(dirty)} of {len(rows)} repeats ran code with changes that no commit holds."
        )
        yield found(
            "mixed-environment", "note", dirty["label"], evidence, "Commit before measuring."
        )
    if "foreign_cpu" in rows and (rows["foreign_cpu"] > FOREIGN_CPU).any():
        disturbed = rows[rows["foreign_cpu"] > FOREIGN_CPU]
        evidence = f"In {len(disturbed)} of {len(rows)} repeats other processes took up to {disturbed['foreign_cpu'].max():.2f} of the ranks' cores."
        yield found(
            "mixed-environment",
            "note",
            disturbed["label"],
            evidence,
            "Measure again on an idle machine.",
        )


def _follows(seen: Observations, name: str) -> bool:
    """Whether each configuration has one value, so that the study varies it on purpose."""
    data = [key for key in seen.keys if key in {"key:data", "key:dataset"}]
    return bool(data) and bool((seen.frame.groupby(data)[name].nunique() <= 1).all())


def _hosts(seen: Observations, *, unlike: bool) -> Iterator[Finding]:
    rows = seen.frame[seen.frame["host"].notna()]
    single = rows[rows["nodes"].isna() | (rows["nodes"] == 1)]
    # Ranks of one run may lie on many hosts; runs of one node each should share theirs.
    runs = single.groupby([single["world_size"], single["repeat"].fillna("")], sort=False)["host"]
    different = {frozenset(hosts) for _, hosts in runs}
    if len(different) > 1:
        named = ", ".join(sorted({host for hosts in different for host in hosts})[:4])
        severity = "warning" if seen.kind != "records" or unlike else "note"
        evidence = (
            f"The runs of this study were on {len(different)} different sets of hosts: {named}."
        )
        advice = "Equal models of machines differ too: pin the study to one host, or repeat the baseline on each."
        yield found("mixed-environment", severity, single["label"], evidence, advice)  # type: ignore[arg-type]


def emulated(seen: Observations) -> Iterator[Finding]:
    """Emulated results among measured ones, or of several emulations; and where all are emulated, that they are."""
    rows = seen.frame[seen.frame["aggregate"]] if seen.kind == "records" else seen.frame
    kinds = rows["emulated"].map(
        lambda cell: "" if cell is None or str(cell).strip().lower() in REAL else str(cell)
    )
    named = ", ".join(
        repr(kind) for kind in list(dict.fromkeys(kind for kind in kinds if kind))[:4]
    )
    unreal = rows[kinds != ""]
    if 0 < len(unreal) < len(rows):
        evidence = (
            f"{len(unreal)} of {len(rows)} results are emulated ({named}), the others are measured."
        )
        advice = "Never compute or draw one from the other: keep emulated results in a study of their own."
        yield found("emulated", "error", unreal["label"], evidence, advice)
    elif kinds.nunique() > 1:
        evidence = f"The results are of {kinds.nunique()} different emulations: {named}."
        yield found(
            "emulated",
            "warning",
            rows["label"],
            evidence,
            "Keep a study for each, and set them side by side.",
        )
    elif len(unreal):
        evidence = f"All {len(rows)} results are emulated: {named}."
        yield found(
            "emulated",
            "note",
            unreal["label"],
            evidence,
            "Say so wherever one of their numbers is shown.",
        )


ENVIRONMENT_RULES = (
    Rule("mixed-environment", (("host", *SAME),), mixed_environment),
    Rule("emulated", (("emulated",),), emulated),
)
# Sums in another order change the last digits; over a short training they stay far below this share of the loss.
LOSS = 0.02
# Reduced precision rounds more.
REDUCED = 0.05
# Of the accuracy: about what seeds differ by in fine-tuning.
POINTS = 0.01
QUARTERS = 4


def same_learning(seen: Observations) -> Iterator[Finding]:
    """Loss curves that disagree beyond tolerance at equal global batch and seed."""
    rows = (
        seen.frame[seen.frame["aggregate"]]
        if seen.kind == "records"
        else seen.frame[~seen.frame["aggregate"]]
    )
    batch = next(
        (name for name in ("global_batch_size", "batch") if rows[name].notna().any()), None
    )
    rows = rows[rows["loss"].notna() | rows["accuracy"].notna()]
    rows = rows[rows[batch].notna()] if batch else rows
    keys = [key for key in seen.keys if key not in {"key:strategy", "key:compile", "key:precision"}]
    compared = False
    names = [
        *keys,
        *([batch] if batch else []),
        *(["total_steps"] if seen.kind == "records" else []),
    ]
    for _, group in rows.groupby(names, sort=False, dropna=False) if names else [("", rows)]:
        if len(group) < 2:
            continue
        compared = True
        if seen.kind == "records":
            yield from _curves(group)
        elif group["world_size"].nunique() > 1:
            yield from _ends(group, batch)
    if not compared:
        raise UncheckedError("two runs of equal global batch with a loss or accuracy")


def _curves(group: pd.DataFrame) -> Iterator[Finding]:
    known = group[[isinstance(curve, list) and len(curve) > 0 for curve in group["loss_curve"]]]
    # Where the loss depends on how ranks share the batch by the model's nature, only equal ways to share it are compared.
    depends = known["depends_on_split"].notna()
    shared = [known["world_size"].where(depends, 0.0), known["strategy"].where(depends, "")]
    for _, alike in known.groupby(shared, sort=False):
        yield from _apart(alike)


def _apart(known: pd.DataFrame) -> Iterator[Finding]:
    if len(known) < 2:
        return
    first = known.iloc[0]
    reduced = known["precision"].isin(["bf16", "fp16"]).any()
    for _, other in known.iloc[1:].iterrows():
        length = min(len(first["loss_curve"]), len(other["loss_curve"]))
        pair = [np.asarray(row["loss_curve"][:length], dtype=float) for row in (first, other)]
        quarters = [
            np.array([part.mean() for part in np.array_split(curve, min(QUARTERS, length))])
            for curve in pair
        ]
        with np.errstate(all="ignore"):
            apart = np.abs(quarters[1] - quarters[0]) / np.abs(quarters[0])
        if np.nanmax(apart, initial=0.0) > (REDUCED if reduced else LOSS):
            place = int(np.nanargmax(apart))
            evidence = (
                f"At equal batch and seed the mean loss of quarter {place + 1} of the training is {quarters[0][place]:.4g} at world size "
                f"{first['world_size']:g} and {quarters[1][place]:.4g} at {other['world_size']:g}, {100 * apart[place]:.1f} % apart."
            )
            yield _finding([first["label"], other["label"]], evidence)


def _ends(group: pd.DataFrame, batch: str | None) -> Iterator[Finding]:
    order = (
        "epoch" if group["epoch"].notna().any() else "step" if group["step"].notna().any() else None
    )
    last = group[group[order] == group[order].max()] if order else group
    for name, tolerance, relative in (("loss", LOSS, True), ("accuracy", POINTS, False)):
        ends = {
            float(str(size)): float(end)
            for size, end in last.groupby("world_size")[name].median().dropna().items()
        }
        if len(ends) < 2:
            continue
        low, high = min(ends, key=lambda size: ends[size]), max(ends, key=lambda size: ends[size])
        gap = (ends[high] - ends[low]) / (abs(ends[low]) if relative and ends[low] else 1.0)
        if gap > tolerance:
            at = (
                f"at {batch.replace('_', ' ')} {last[batch].iloc[0]:g}"
                if batch
                else "at batches that the table does not tell"
            )
            what = f"{100 * gap:.1f} {'%' if relative else 'points'} apart {at}"
            evidence = f"The {name} ends at {ends[low]:.4g} with {low:g} ranks and {ends[high]:.4g} with {high:g}, {what}."
            yield _finding(list(last["label"]), evidence, "warning" if batch else "note")


def _finding(labels: list[str], evidence: str, severity: Severity = "warning") -> Finding:
    advice = "Runs that learn differently do different work: look for unequal data, averaging that is missing, or other seeds."
    return found("same-learning", severity, labels, evidence, advice)


LEARNING_RULES = (Rule("same-learning", (("loss", "accuracy"),), same_learning),)
