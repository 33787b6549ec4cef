"""Sections that answer questions of some studies only: each is nothing where the study does not ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.page import Prose, Table
from lab.records import load_records
from lab.study import Study
from lab.words import distinct

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lab.study import Run

Part = Prose | Table
CAUSES = (
    "What a step does but train, with its share of the step, medians over repeats. Launches: forward, backward and the host between "
    "them at no samples at all, extrapolated from the batches on one rank with the fast loader; they and the optimizer do not "
    "shrink where ranks share a batch. Waiting for ranks and transfer are the exposed communication"
)
LOADERS = (
    "The classic loader is there on purpose: it tokenizes each sample when it is asked for, in processes that outnumber the cores. "
    "The audit below must warn of it (data-stall); the fast loader, on tokens made once, shows what is left without it."
)
WAYS = (
    "Strategies side by side, medians over repeats. Peak: memory of the rank that has most; weights and optimizer state are what "
    "is there at every moment of a step. Sent: by one rank for a step, where ranks form a ring"
)
IMAGES = (
    "Networks side by side, medians over repeats. Exposed: the part of communication that a step waits for. Sent: by one rank for "
    "a step. Epochs: the first whose mean training loss is below 0.04, or the lowest mean of those that were trained. torch's "
    "DataParallel copies within itself, where nothing is measured, and needs GPUs for more than one device"
)


def parts(study: Study) -> list[Part]:
    """All sections of this kind that the study asks for."""
    return [*strategies(study), *causes(study), *images(study)]


def strategies(study: Study) -> list[Part]:
    """Time, throughput, memory, traffic and loss of each strategy, where the study has several; networks have a table of theirs."""
    from lab.analysis import ways

    runs = [run for run in study.runs if run.task == "train" and run.architecture.kind != "cnn"]
    if len({run.strategy for run in runs}) < 2:
        return []
    records = load_records(study)
    told = ways.strategy_sentences(runs, records, baseline=study.baseline)
    return [Prose("## Strategies"), *_bullets(told), _table(WAYS, runs, lambda: ways.strategy_rows(runs, records))]


def causes(study: Study) -> list[Part]:
    """What keeps ranks from helping, where the study compares loaders."""
    from lab.analysis import causes as found

    runs = [run for run in study.runs if run.task == "train"]
    if len({run.loader for run in runs}) < 2:
        return []
    known = found.causes(runs, load_records(study))
    shown = [one.run for one in known]
    return [
        Prose("## Data, network or launches"),
        Prose.of(LOADERS),
        *_bullets(found.cause_sentences(known)),
        _table(CAUSES, shown, lambda: found.cause_rows(known)),
    ]


def images(study: Study) -> list[Part]:
    """Compute, communication, bytes and epochs of convolutional networks, where there is something to compare."""
    from lab.analysis.images import image_rows

    runs = [run for run in study.runs if run.architecture.kind == "cnn"]
    if len({(str(run.model), run.strategy) for run in runs}) < 2:
        return []
    records = load_records(study)
    return [Prose("## Networks"), _table(IMAGES, runs, lambda: image_rows(runs, records))]


def _bullets(sentences: Sequence[str]) -> list[Part]:
    return [Prose.of(*sentences, bullets=True)] if sentences else []


def _table(caption: str, runs: Sequence[Run], rows: Callable[[], list[dict[str, str]]]) -> Table:
    import pandas as pd

    _, common = distinct(runs)
    return Table(f"{caption}. All: {common}" if common else caption, pd.DataFrame(rows()).fillna("-"), index=False)
