"""Sections that answer questions of some studies only: each is nothing where the study does not ask."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from lab.config.labels import distinct_labels
from lab.config.study import Study
from lab.records.store import Record, load_records
from lab.report.blocks import Figure, Markdown, Table, drawn

if TYPE_CHECKING:
    from collections.abc import Callable

    from lab.config.run import Run
    from lab.perfmodel.calibration import Calibration


Part = Markdown | Table
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
    from lab.analysis import tables

    runs = [run for run in study.runs if run.task == "train" and run.architecture.kind != "cnn"]
    if len({run.strategy for run in runs}) < 2:
        return []
    records = load_records(study)
    told = tables.strategy_sentences(runs, records, baseline=study.baseline)
    return [
        Markdown("## Strategies"),
        *_bullets(told),
        _table(WAYS, runs, lambda: tables.strategy_rows(runs, records)),
    ]


def causes(study: Study) -> list[Part]:
    """What keeps ranks from helping, where the study compares loaders."""
    from lab.analysis import bottlenecks as found

    runs = [run for run in study.runs if run.task == "train"]
    if len({run.loader for run in runs}) < 2:
        return []
    known = found.causes(runs, load_records(study))
    shown = [one.run for one in known]
    return [
        Markdown("## Data, network or launches"),
        Markdown.of(LOADERS),
        *_bullets(found.cause_sentences(known)),
        _table(CAUSES, shown, lambda: found.cause_rows(known)),
    ]


def images(study: Study) -> list[Part]:
    """Compute, communication, bytes and epochs of convolutional networks, where there is something to compare."""
    from lab.analysis.tables import image_rows

    runs = [run for run in study.runs if run.architecture.kind == "cnn"]
    if len({(str(run.model), run.strategy) for run in runs}) < 2:
        return []
    records = load_records(study)
    return [Markdown("## Networks"), _table(IMAGES, runs, lambda: image_rows(runs, records))]


def _bullets(sentences: Sequence[str]) -> list[Part]:
    return [Markdown.of(*sentences, bullets=True)] if sentences else []


def _table(caption: str, runs: Sequence[Run], rows: Callable[[], list[dict[str, str]]]) -> Table:
    import pandas as pd

    _, common = distinct_labels(runs)
    return Table(
        f"{caption}. All: {common}" if common else caption,
        pd.DataFrame(rows()).fillna("-"),
        index=False,
    )


def calibration(study: Study) -> list[Markdown | Table | Figure]:
    """What the links, the arithmetic and the memory of the study's cluster can do, where `lab calibrate` has measured it."""
    from lab.analysis.tables import fits_table, throughput_table
    from lab.errors import InputError
    from lab.perfmodel.calibration import load_calibration

    clusters = {record.environment.cluster for record in load_records(study) if record.environment}
    parts: list[Markdown | Table | Figure] = []
    for name in sorted(clusters):
        try:
            found = load_calibration(name)
        except InputError:
            found = None
        if found is None or not found.parts:
            parts.append(
                Markdown.of(
                    f"The cluster {name} is not calibrated; `lab calibrate --cluster {name}` measures its links."
                )
            )
            continue
        emulated = found.environment.emulated if found.environment else None
        where = f"cluster {name}" + (f", emulated {emulated.label}" if emulated else "")
        parts += [
            links(found),
            Table(
                f"Fits of time = alpha + bytes / bandwidth, {where}", fits_table(found), index=False
            ),
            Table(
                f"Arithmetic and memory of a rank, {where}", throughput_table(found), index=False
            ),
        ]
    return parts


def links(found: Calibration) -> Figure:
    """Times of collectives by bytes, measured and fitted."""
    from lab.figures import curves

    return drawn(lambda axes: curves.links(found, ax=axes), curves.alt(found), height=4.5)


def environment(source: Study | Sequence[Record]) -> Table:
    """Where and with what the records were measured; a value that differs between records is listed with all it was."""
    import pandas as pd

    from lab.formatting import format_seconds

    seen: dict[str, dict[str, None]] = {}
    records = load_records(source)
    for record in records:
        if record.environment is not None:
            for name, value in [*surroundings(record), *_granted(record)]:
                seen.setdefault(name, {})[value] = None
    waits = [
        record.allocation.queue_time
        for record in records
        if record.allocation and record.allocation.queue_time is not None
    ]
    if waits:
        seen["in the queue"] = {
            f"{format_seconds(min(waits))} to {format_seconds(max(waits))}": None
        }
    rows = [{"what": name, "value": "; ".join(values)} for name, values in seen.items()]
    return Table(
        "Environment, read inside the jobs",
        pd.DataFrame(rows, columns=["what", "value"]),
        index=False,
    )


def surroundings(record: Record) -> Iterable[tuple[str, str]]:
    """Names and values of a record's environment for people; none where it has no environment."""
    place = record.environment
    if place is None:
        return
    yield "cluster profile", place.cluster
    if place.replay:
        yield "replay of", place.replay
        yield "GPU", f"{place.gpu_count} x {place.gpu}" if place.gpu else "none used"
        return
    yield "emulated", place.emulated.description if place.emulated else "nothing"
    if place.emulated is not None and place.emulated.step:
        slept = ", ".join(
            f"{name} {seconds * 1e3:.2f} ms" for name, seconds in place.emulated.step.items()
        )
        yield f"a rank's sleep on a micro-batch, world size {record.run.world_size}", slept
    yield "hosts", ", ".join(sorted(set(place.hosts)))
    yield "processor", f"{place.cpu}, {place.cpu_count} logical CPUs"
    yield (
        "cores per rank",
        f"{len(place.cpus_granted[0])} with {place.threads_per_rank} thread{'s' * (place.threads_per_rank > 1)}",
    )
    yield (
        "GPU",
        f"{place.gpu_count} x {place.gpu}, driver {place.driver}" if place.gpu else "none used",
    )
    yield "backend", place.backend or "none"
    yield (
        "versions",
        ", ".join(f"{name} {version}" for name, version in sorted(place.versions.items())),
    )
    commit = (
        "unknown"
        if place.git_commit is None
        else place.git_commit[:12] + (" with local changes" if place.git_dirty else "")
    )
    yield "code", f"commit {commit}"
    yield "data", f"{place.data_description}; SHA-256 {(place.data_sha256 or 'unknown')[:16]}"
    yield "parameters", f"{place.parameters:,}" if place.parameters else "unknown"
    if record.timing is not None and record.timing.peak_flops_per_second is not None:
        yield "peak of a rank", f"{record.run.precision}: {record.timing.peak_source}"


def _granted(record: Record) -> Iterable[tuple[str, str]]:
    given = record.allocation
    if given is None:
        return
    yield (
        "Slurm jobs",
        given.job_id + (f" (put back {given.requeues} times)" if given.requeues else ""),
    )
    gpus = f", GPU {', '.join(given.gpus)} of the first" if given.gpus else ""
    yield "nodes", f"{', '.join(given.nodes)}{gpus}"
