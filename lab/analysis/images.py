"""Networks on images, by strategy, devices and what of them trains: compute, communication, bytes, and epochs to a low loss."""

from __future__ import annotations

from collections.abc import Sequence

from lab.analysis.epochs import epochs
from lab.analysis.repeats import link, median, phase, step, trained
from lab.analysis.rounding import NOT_MEASURED, format_seconds, rounded
from lab.analysis.ways import NONE, NOT_RUN
from lab.records import Record
from lab.study import Run
from lab.words import distinct


def image_rows(runs: Sequence[Run], records: Sequence[Record]) -> list[dict[str, str]]:
    """One row of text per run of a convolutional network: a step, its compute and communication, bytes, epochs until the loss is low."""
    labels, _ = distinct(runs)
    return [
        {"configuration": labels[run]} | (_cells(run, done) if done else {"step": NOT_RUN})
        for run, done in trained(runs, records).items()
        if run.architecture.kind == "cnn"
    ]


def _cells(run: Run, done: Sequence[Record]) -> dict[str, str]:
    alone = run.world_size == 1
    moved, parameters = median(done, link("bytes_moved")), median(done, _parameters)
    found = [one for record in done if (one := epochs(record)) is not None]
    return {
        "trained": f"{parameters / 1e6:.3g} M" if parameters else NONE,
        "step": format_seconds(median(done, step)),
        "compute": format_seconds(median(done, _compute)),
        "communication": "none" if alone else format_seconds(median(done, link("total"))),
        "exposed": "none" if alone else format_seconds(median(done, link("exposed"))),
        "sent (MB)": "none" if alone else rounded(moved / 1e6) if moved is not None else NOT_MEASURED,
        "epochs to loss < 0.04": found[0].said if found else NOT_MEASURED,
    }


def _parameters(record: Record) -> float | None:
    return record.environment.parameters if record.environment else None


def _compute(record: Record) -> float | None:
    """Forward and backward, less what they do nothing but wait."""
    times = [phase(name)(record) or 0.0 for name in ("forward", "backward")]
    waits = record.communication.exposed_in if record.communication else {}
    return sum(times) - sum(waits.get(name, 0.0) for name in ("forward", "backward"))
