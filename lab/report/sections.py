"""The sections of the notebooks, each made from records: results, communication, learning, audit, environment."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from lab.config.labels import distinct_labels
from lab.config.replay import NOTICE
from lab.config.run import Run
from lab.config.study import Study
from lab.formatting import percent
from lab.perfmodel.frozen import mean_absolute_error, predictions, scores, scores_table
from lab.records.schema import PHASES, Communication
from lab.records.store import Record, load_records
from lab.records.table import table
from lab.report.blocks import Markdown, Table

if TYPE_CHECKING:
    import pandas as pd


def result_tables(study: Study) -> list[Table]:
    """The classical tables of a study: time, speedup, efficiency, compute and communication."""
    from lab.analysis.tables import classical_tables

    return [Table(caption, frame) for caption, frame in classical_tables(_summary(study))]


def answer(study: Study) -> Markdown:
    """The answer to the study's question in one sentence."""
    from lab.analysis.findings import answer

    records = load_records(study)
    sources = sorted(
        {
            record.environment.replay
            for record in records
            if record.environment and record.environment.replay
        }
    )
    told = [f"{NOTICE}. Source: {'; '.join(sources)}."] if sources else []
    return Markdown.of(*told, answer(study, _summary(study), records), strong=True)


def findings(study: Study) -> Markdown:
    """What else the numbers support, as a list."""
    from lab.analysis.findings import findings

    found = findings(study, _summary(study), load_records(study))
    return (
        Markdown.of(*found, bullets=True)
        if found
        else Markdown.of("The numbers support no further statement.")
    )


def holes(study: Study) -> Markdown:
    """What was asked for and is not there, as a list; one sentence where nothing is missing."""
    from lab.analysis.findings import holes

    missing = holes(study, load_records(study), obstacles=_obstacles(study))
    if missing:
        return Markdown.of(*missing, bullets=True)
    return Markdown.of(
        f"Nothing: all {len(study.tasks)} repeats of {len(study.runs)} configurations completed."
    )


def _obstacles(study: Study) -> dict[str, str]:
    """Why runs of a study cannot run where its records are from, by their ids."""
    from lab.errors import InputError
    from lab.launch.plan import plan

    clusters = {record.environment.cluster for record in load_records(study) if record.environment}
    try:
        return (
            {row["run"]: row["cannot run"] for row in plan(study, clusters.pop())}
            if len(clusters) == 1
            else {}
        )
    except InputError:
        return {}  # the profile is not on this machine


def _summary(study: Study) -> pd.DataFrame:
    from lab.analysis.scaling import summary

    return summary(table(study), baseline=study.baseline, scaling=study.scaling)


def communication(study: Study) -> Table:
    """Total and exposed communication, its causes, the independent estimate and the bytes of each configuration."""
    import pandas as pd

    from lab.analysis.scaling_curves import curves, ranks
    from lab.formatting import format_seconds, unit_for

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
    sent = {
        record.run_id: record.communication
        for record in load_records(study)
        if record.communication
    }
    rows = []
    for label, points in curves(found):
        for row in points[points["world_size"] > 1].to_dict("records"):
            times = {
                part: [row[column + end] for end in ("", "_low", "_high")]
                for part, column in parts.items()
            }
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
    return f"{link.bytes / 1e6:.2f} MB" + (
        f" in {calls} {word}{'s' * (calls > 1)}" if calls else ""
    )


def audit(study: Study) -> Any:
    """What in this study cannot be trusted, by the rules of the audit and the cluster's calibration."""
    from lab.analysis.audit import audit as audit_of

    return audit_of(study)


def learning(study: Study) -> Table:
    """Loss after the last step, validation loss and peak memory of each configuration."""
    import pandas as pd

    labels, common = distinct_labels([run for run in study.runs if run.task == "train"])
    rows = [
        {
            "configuration": labels[run],
            "last loss": _median(
                done, lambda record: record.quality.loss[-1] if record.quality else None, "{:.4f}"
            ),
            "validation loss": _median(
                done, lambda record: record.quality and record.quality.validation_loss, "{:.4f}"
            ),
            "accuracy": _median(
                done, lambda record: record.quality and record.quality.accuracy, "{:.1%}"
            ),
            "peak memory of a rank (MB)": _median(
                done,
                lambda record: max(record.memory.peak) / 1e6 if record.memory else None,
                "{:.0f}",
            ),
            "samples/s": _median(done, lambda record: record.timing.samples_per_second, "{:.1f}"),
            "MFU": _median(done, lambda record: record.timing.mfu, "{:.1%}"),
        }
        for run, done in _by_run(study)
        if run.task == "train"
    ]
    frame = pd.DataFrame(rows)
    if all(
        record.quality is None or record.quality.accuracy is None
        for _, done in _by_run(study)
        for record in done
    ):
        frame = frame.drop(columns="accuracy")  # language models have none
    reasons = {
        record.quality.depends_on_split
        for _, done in _by_run(study)
        for record in done
        if record.quality
    }
    told = "".join(
        f"; loss depends on how ranks share the batch: {reason}"
        for reason in sorted(filter(None, reasons))
    )
    kinds = sorted(
        {record.emulation for _, done in _by_run(study) for record in done if record.emulation}
    )
    told += f"; emulated: {', '.join(kinds)}" if kinds else ""
    every = f". All: {common}" if common else ""
    return Table(
        f"What was learned, and at what price: medians over repeats{told}{every}",
        frame,
        index=False,
    )


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
    labels, common = distinct_labels(list(dict.fromkeys(record.run for record in records)))
    emulating = any(record.emulation for record in records)
    rows = [
        {
            "run": record.run_id,
            "configuration": labels[record.run],
            "repeat": record.repeat,
            "status": record.status,
        }
        | ({"emulated": record.emulation} if emulating else {})
        | {f"{phase} (ms)": _milliseconds(record, phase) for phase in ("step", *PHASES)}
        | {"foreign CPU (cores)": _foreign(record)}
        for record in records
    ]
    caption = "Every repeat: median step of the slowest rank and its phases"
    return Table(
        f"{caption}. All: {common}" if common else caption, pd.DataFrame(rows), index=False
    )


def _milliseconds(record: Record, phase: str) -> str:
    if record.timing is None:
        return "-"
    stat = record.timing.step if phase == "step" else record.timing.phases.get(phase)
    return "-" if stat is None else f"{stat.median * 1e3:.2f}"


def _foreign(record: Record) -> str:
    cpu = record.environment.foreign_cpu if record.environment else None
    return "-" if cpu is None else f"{cpu:.2f}"


def reproduce(study: Study) -> Markdown:
    """The commands that repeat this study and this report."""
    place = os.path.relpath(study.folder)
    name = place if not place.startswith("..") else study.name
    flag = " --quick" if study.quick else ""
    clusters = {
        record.environment.cluster for record in load_records(study) if record.environment
    } - {"local"}
    where = f" --cluster {clusters.pop()}" if len(clusters) == 1 else ""
    return Markdown(
        f"```\nlab run {name}{where}{flag} --fresh    # measure again\nlab report {name}{flag}         # this report from the records\n```"
    )


def outcome(records: Sequence[Record]) -> Markdown:
    """What came of a run: its throughput, or the first cause of its failure with the last lines of the log."""
    from lab.formatting import format_seconds

    for record in records:
        if record.error is not None:
            rank = "" if record.error.rank is None else f" on rank {record.error.rank}"
            told = Markdown.of(
                f"This run did not complete ({record.status}{rank}): {record.error.type}: {record.error.message}"
            )
            return Markdown(
                f"{told.markdown}\n\n~~~text\n{record.error.log.replace('~~~', '~~')}\n~~~"
                if record.error.log
                else told.markdown
            )
        if record.timing is not None:
            timing = record.timing
            step = format_seconds(timing.step.median, *(timing.step.interval or (None, None)))
            opening = f"Emulated {record.emulation}: a" if record.emulation else "A"
            return Markdown.of(
                f"{opening} step takes {step} (median of {timing.measured_steps} steps after {timing.warmup_steps} of warm-up): "
                f"{timing.samples_per_second:.1f} samples/s, {timing.flops_per_second / 1e9:.1f} GFLOP/s of the model's own arithmetic."
            )
        if record.inference is not None:
            return _inference_outcome(record)
    return Markdown.of("There is no record of this run.")


def _inference_outcome(record: Record) -> Markdown:
    from lab.analysis import inference

    told = [
        *inference.missing([record]),
        *inference.sentences([record]),
    ]
    return Markdown.of(
        *(told or ["Two copies of the base were timed against each other."]), bullets=True
    )


def phases(records: Sequence[Record]) -> Table:
    """Median, 10th and 90th percentile of the step and its phases in ms, and the medians of each rank."""
    import pandas as pd

    rows = []
    for record in records:
        if record.timing is None:
            continue
        for name in ("step", *(phase for phase in PHASES if phase in record.timing.phases)):
            stat = record.timing.step if name == "step" else record.timing.phases[name]
            ranks = {
                f"rank {rank}": f"{time * 1e3:.2f}"
                for rank, time in enumerate(record.timing.per_rank[name])
            }
            quantiles = {"median": stat.median, "p10": stat.p10, "p90": stat.p90}
            rows.append(
                {"phase": name}
                | {key: f"{value * 1e3:.2f}" for key, value in quantiles.items()}
                | ranks
            )
    return Table(
        "Times in ms: over the steps of the slowest rank, and the median of each rank",
        pd.DataFrame(rows),
        index=False,
    )


def predictions_of(study: Study) -> str:
    """One sentence: how many predictions there are, and what became of them."""
    frozen, found = predictions(study), scores(study)
    if found:
        inside = sum(
            score.frozen.low_s <= score.measured_s <= score.frozen.high_s for score in found
        )
        error = percent(mean_absolute_error(found))
        worst = max(found, key=lambda score: abs(score.error))
        return (
            f"Mean absolute error of the step time over {len(found)} run{'s' * (len(found) > 1)}: {error}, "
            f"{worst.error:+.1%} at worst ({worst.frozen.run.label}); {inside} of {len(found)} were measured inside their interval."
        )
    if frozen:
        return f"{len(frozen)} predictions are frozen, and none of their runs has completed since."
    if any(record.environment and record.environment.replay for record in load_records(study)):
        return "These times were published by others: nothing was predicted before them."
    if not any(run.world_size > 1 and run.task == "train" for run in study.runs):
        return "No run of this study trains on more than one rank: there is nothing to predict."
    return (
        "No run of this study was predicted before it was measured. That takes its runs on one rank and lab calibrate "
        "before lab run; lab predict says what is missing."
    )


def predictions_table(study: Study) -> Table:
    """One row per run that was predicted and measured."""
    caption = (
        "Step time predicted before the run and as measured, median over repeats; an error above zero says that the run "
        "was faster than predicted. Frozen tells when the prediction was written, and how its SHA-256 begins"
    )
    return Table(caption, scores_table(scores(study)), index=False)


def section(study: Study) -> list[Markdown | Table]:
    """The whole section."""
    told = Markdown.of(predictions_of(study))
    return [told, predictions_table(study)] if scores(study) else [told]
