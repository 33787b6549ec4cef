"""How many epochs a training takes until its loss is low enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lab.records import Record

LOW_ENOUGH = 0.04


class Epochs(NamedTuple):
    """Means of the training loss over whole epochs, and the first epoch (from 1) whose mean is below the limit."""

    means: tuple[float, ...]
    trained: float
    reached: int | None

    @property
    def said(self) -> str:
        """For people: the epoch, or that it was not reached, and the lowest mean."""
        if self.reached is not None:
            return str(self.reached)
        if not self.means:
            return f"not reached ({self.trained:.1f} epochs)"
        return f"not reached ({min(self.means):.2g})"


def epochs(record: Record, *, limit: float = LOW_ENOUGH) -> Epochs | None:
    """The epochs of a completed training; None where samples make up no epochs, or nothing is known of them."""
    samples = record.environment.train_samples if record.environment else None
    if samples is None or record.quality is None:
        return None
    means = epoch_means(record.quality.loss, samples=samples, batch=record.run.global_batch_size)
    reached = next((number for number, mean in enumerate(means, 1) if mean < limit), None)
    return Epochs(tuple(means), len(record.quality.loss) * record.run.global_batch_size / samples, reached)


def epoch_means(losses: Sequence[float], *, samples: int, batch: int) -> list[float]:
    """The mean loss of each whole epoch; a step belongs to the epoch in which its last sample lies."""
    means: list[float] = []
    first = 0
    while (last := ((len(means) + 1) * samples - 1) // batch) < len(losses):
        part = losses[first : last + 1] or losses[last : last + 1]  # an epoch may be smaller than a batch
        means.append(sum(part) / len(part))
        first = last + 1
    return means
