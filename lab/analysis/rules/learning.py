"""Rule about learning: equal batches and seeds learn the same, on however many ranks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from lab.analysis.observations import Observations
from lab.analysis.rule import Finding, Rule, Severity, UncheckedError, found

# Sums in another order change the last digits; over a short training they stay far below this share of the loss.
LOSS = 0.02
# Reduced precision rounds more.
REDUCED = 0.05
# Of the accuracy: about what seeds differ by in fine-tuning.
POINTS = 0.01
QUARTERS = 4


def same_learning(seen: Observations) -> Iterator[Finding]:
    """Loss curves that disagree beyond tolerance at equal global batch and seed."""
    rows = seen.frame[seen.frame["aggregate"]] if seen.kind == "records" else seen.frame[~seen.frame["aggregate"]]
    batch = next((name for name in ("global_batch_size", "batch") if rows[name].notna().any()), None)
    rows = rows[rows["loss"].notna() | rows["accuracy"].notna()]
    rows = rows[rows[batch].notna()] if batch else rows
    keys = [key for key in seen.keys if key not in {"key:strategy", "key:compile", "key:precision"}]
    compared = False
    names = [*keys, *([batch] if batch else []), *(["total_steps"] if seen.kind == "records" else [])]
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
        quarters = [np.array([part.mean() for part in np.array_split(curve, min(QUARTERS, length))]) for curve in pair]
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
    order = "epoch" if group["epoch"].notna().any() else "step" if group["step"].notna().any() else None
    last = group[group[order] == group[order].max()] if order else group
    for name, tolerance, relative in (("loss", LOSS, True), ("accuracy", POINTS, False)):
        ends = {float(str(size)): float(end) for size, end in last.groupby("world_size")[name].median().dropna().items()}
        if len(ends) < 2:
            continue
        low, high = min(ends, key=lambda size: ends[size]), max(ends, key=lambda size: ends[size])
        gap = (ends[high] - ends[low]) / (abs(ends[low]) if relative and ends[low] else 1.0)
        if gap > tolerance:
            at = f"at {batch.replace('_', ' ')} {last[batch].iloc[0]:g}" if batch else "at batches that the table does not tell"
            what = f"{100 * gap:.1f} {'%' if relative else 'points'} apart {at}"
            evidence = f"The {name} ends at {ends[low]:.4g} with {low:g} ranks and {ends[high]:.4g} with {high:g}, {what}."
            yield _finding(list(last["label"]), evidence, "warning" if batch else "note")


def _finding(labels: list[str], evidence: str, severity: Severity = "warning") -> Finding:
    advice = "Runs that learn differently do different work: look for unequal data, averaging that is missing, or other seeds."
    return found("same-learning", severity, labels, evidence, advice)


RULES = (Rule("same-learning", (("loss", "accuracy"),), same_learning),)
