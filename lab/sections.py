"""The sections of the notebooks, each made from records: results, communication, learning, audit, environment."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from lab.page import Prose, Table
from lab.published import NOTICE
from lab.records import PHASES, Communication, Record, load_records, table
from lab.study import Run, Study
from lab.surroundings import calibration, environment, links
from lab.words import distinct

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "answer",
    "audit",
    "calibration",
    "communication",
    "environment",
    "every_repeat",
    "findings",
    "holes",
    "learning",
    "links",
    "reproduce",
    "result_tables",
]


def result_tables(study: Study) -> list[Table]:
    """The classical tables of a study: time, speedup, efficiency, compute and communication."""
    from lab.analysis.classical import classical_tables

    return [Table(caption, frame) for caption, frame in classical_tables(_summary(study))]


def answer(study: Study) -> Prose:
    """The answer to the study's question in one sentence."""
    from lab.analysis import findings

    records = load_records(study)
    sources = sorted({record.environment.replay for record in records if record.environment and record.environment.replay})
    told = [f"{NOTICE}. Source: {'; '.join(sources)}."] if sources else []
    return Prose.of(*told, findings.answer(study, _summary(study), records), strong=True)


def findings(study: Study) -> Prose:
    """What else the numbers support, as a list."""
    from lab.analysis import findings

    found = findings.findings(study, _summary(study), load_records(study))
    return Prose.of(*found, bullets=True) if found else Prose.of("The numbers support no further statement.")


def holes(study: Study) -> Prose:
    """What was asked for and is not there, as a list; one sentence where nothing is missing."""
    from lab.analysis import findings

    missing = findings.holes(study, load_records(study), obstacles=_obstacles(study))
    if missing:
        return Prose.of(*missing, bullets=True)
    return Prose.of(f"Nothing: all {len(study.tasks)} repeats of {len(study.runs)} configurations completed.")


def _obstacles(study: Study) -> dict[str, str]:
    """Why runs of a study cannot run where its records are from, by their ids."""
    from lab.errors import InputError
    from lab.plan import plan

    clusters = {record.environment.cluster for record in load_records(study) if record.environment}
    try:
        return {row["run"]: row["cannot run"] for row in plan(study, clusters.pop())} if len(clusters) == 1 else {}
    except InputError:
        return {}  # the profile is not on this machine


def _summary(study: Study) -> pd.DataFrame:
    from lab.analysis.scaling import summary

    return summary(table(study), baseline=study.baseline, scaling=study.scaling)


def communication(study: Study) -> Table:
    """Total and exposed communication, its causes, the independent estimate and the bytes of each configuration."""
    import pandas as pd

    from lab.analysis.lines import curves, ranks
    from lab.analysis.rounding import format_seconds, unit_for

    found = _summary(study)
    parts = {
        "total": "communication_time",
        "exposed": "exposed_communication_time",
        "of it waiting": "straggler_time",
        "of it transfer": "transfer_time",
        "cost of synchronising": "sync_cost_time",
        "stolen compute": "stolen_compute_time",
    }
    unit = unit_for(found["step_time"])
    sent = {record.run_id: record.communication for record in load_records(study) if record.communication}
    rows = []
    for label, points in curves(found):
        for row in points[points["world_size"] > 1].to_dict("records"):
            times = {part: [row[column + end] for end in ("", "_low", "_high")] for part, column in parts.items()}
            link = sent.get(row["run_id"])
            rows.append(
                {"configuration": f"{ranks(row['device'], row['world_size'])}, {label}"}
                | {part: format_seconds(*value, unit=unit) for part, value in times.items()}
                | {"sent by a rank": _sent(link)}
            )
    caption = (
        "Communication of a step, median over repeats [95 % interval]. Exposed is what the step did nothing but wait for, "
        "split into waiting for the slowest rank and transfer; the cost of synchronising is measured by itself, in rounds with and "
        "without it in turn, and exceeds the exposed part by the compute that communication slowed"
    )
    return Table(caption, pd.DataFrame(rows), index=False)


def _sent(link: Communication | None) -> str:
    if link is None or not link.bytes:
        return "-"
    calls = link.calls or len(link.buckets or ())
    word = "bucket" if link.buckets else "call"
    return f"{link.bytes / 1e6:.2f} MB" + (f" in {calls} {word}{'s' * (calls > 1)}" if calls else "")


def audit(study: Study) -> Any:
    """What in this study cannot be trusted, by the rules of the audit and the cluster's calibration."""
    import lab

    return lab.audit(study)


def learning(study: Study) -> Table:
    """Loss after the last step, validation loss and peak memory of each configuration."""
    import pandas as pd

    labels, common = distinct([run for run in study.runs if run.task == "train"])
    rows = [
        {
            "configuration": labels[run],
            "last loss": _median(done, lambda record: record.quality.loss[-1] if record.quality else None, "{:.4f}"),
            "validation loss": _median(done, lambda record: record.quality and record.quality.validation_loss, "{:.4f}"),
            "accuracy": _median(done, lambda record: record.quality and record.quality.accuracy, "{:.1%}"),
            "peak memory of a rank (MB)": _median(
                done, lambda record: max(record.memory.peak) / 1e6 if record.memory else None, "{:.0f}"
            ),
            "samples/s": _median(done, lambda record: record.timing.samples_per_second, "{:.1f}"),
            "MFU": _median(done, lambda record: record.timing.mfu, "{:.1%}"),
        }
        for run, done in _by_run(study)
        if run.task == "train"
    ]
    frame = pd.DataFrame(rows)
    if all(record.quality is None or record.quality.accuracy is None for _, done in _by_run(study) for record in done):
        frame = frame.drop(columns="accuracy")  # language models have none
    reasons = {record.quality.depends_on_split for _, done in _by_run(study) for record in done if record.quality}
    told = "".join(f"; loss depends on how ranks share the batch: {reason}" for reason in sorted(filter(None, reasons)))
    kinds = sorted({record.emulation for _, done in _by_run(study) for record in done if record.emulation})
    told += f"; emulated: {', '.join(kinds)}" if kinds else ""
    every = f". All: {common}" if common else ""
    return Table(f"What was learned, and at what price: medians over repeats{told}{every}", frame, index=False)


def _median(records: Sequence[Record], quantity: Any, form: str) -> str:
    values = [value for record in records if (value := quantity(record)) is not None]
    return form.format(statistics.median(values)) if values else "not measured"


def _by_run(study: Study) -> Iterable[tuple[Run, list[Record]]]:
    records = [record for record in load_records(study) if record.completed]
    return [(run, [record for record in records if record.run_id == run.id]) for run in study.runs]


def every_repeat(study: Study) -> Table:
    """One row per repeat, as measured."""
    import pandas as pd

    records = load_records(study)
    labels, common = distinct(list(dict.fromkeys(record.run for record in records)))
    emulating = any(record.emulation for record in records)
    rows = [
        {"run": record.run_id, "configuration": labels[record.run], "repeat": record.repeat, "status": record.status}
        | ({"emulated": record.emulation} if emulating else {})
        | {f"{phase} (ms)": _milliseconds(record, phase) for phase in ("step", *PHASES)}
        | {"foreign CPU (cores)": _foreign(record)}
        for record in records
    ]
    caption = "Every repeat: median step of the slowest rank and its phases"
    return Table(f"{caption}. All: {common}" if common else caption, pd.DataFrame(rows), index=False)


def _milliseconds(record: Record, phase: str) -> str:
    if record.timing is None:
        return "-"
    stat = record.timing.step if phase == "step" else record.timing.phases.get(phase)
    return "-" if stat is None else f"{stat.median * 1e3:.2f}"


def _foreign(record: Record) -> str:
    cpu = record.environment.foreign_cpu if record.environment else None
    return "-" if cpu is None else f"{cpu:.2f}"


def reproduce(study: Study) -> Prose:
    """The commands that repeat this study and this report."""
    place = os.path.relpath(study.folder)
    name = place if not place.startswith("..") else study.name
    flag = " --quick" if study.quick else ""
    clusters = {record.environment.cluster for record in load_records(study) if record.environment} - {"local"}
    where = f" --cluster {clusters.pop()}" if len(clusters) == 1 else ""
    return Prose(
        f"```\nlab run {name}{where}{flag} --fresh    # measure again\nlab report {name}{flag}         # this report from the records\n```"
    )
