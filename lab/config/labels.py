"""Labels of several runs side by side, without what they share."""

from __future__ import annotations

from collections.abc import Sequence

from lab.config.run import Run


def distinct_labels(runs: Sequence[Run]) -> tuple[dict[Run, str], str]:
    """Labels without the words that all share, and these; sizes of models where needed."""
    parts = {run: run.label_parts for run in runs}
    shared = set.intersection(*map(set, parts.values())) if len(parts) > 1 else set()
    common = _joined(next(iter(parts.values())), shared) if shared else ""
    sizes = {run: set(run.names["model"].split(", ")[1:]) for run in runs}
    labels = {run: _joined(own, set(own) - shared - sizes[run]) for run, own in parts.items()}
    if len(set(labels.values())) < len(labels):
        labels = {run: _joined(own, set(own) - shared) for run, own in parts.items()}
    return {run: label or run.label for run, label in labels.items()}, common


def _joined(parts: Sequence[str], wanted: set[str]) -> str:
    """The wanted words of a label: `gpt-nano ddp x2, batch 8`."""
    head = " ".join(word for word in parts[:3] if word in wanted)
    return ", ".join([*([head] if head else []), *(word for word in parts[3:] if word in wanted)])
