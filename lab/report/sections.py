"""Sections of the notebooks, made from results: tables, communication, learning, predictions."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from lab.analysis import configurations, inference
from lab.analysis import findings as analysis
from lab.analysis.configurations import UNKNOWN, evaluated_samples, loss, megabytes
from lab.analysis.inference import accuracy
from lab.analysis.reported import ReportedTable
from lab.analysis.results import StudyResults
from lab.analysis.scaling_curves import (
    Row,
    common_ranks,
    named_rows,
    over_repeats,
    rows_of,
    time_units,
)
from lab.analysis.tables import classical_tables
from lab.analysis.waterfall import waterfall_table
from lab.config.run import distinct_labels
from lab.config.study import Task
from lab.errors import InputError
from lab.formatting import NOT_MEASURED, capitalized, count, format_seconds, joined
from lab.launch.plan import plan
from lab.launch.status import last_clusters
from lab.records.schema import PHASES, Stat
from lab.records.store import RUNS, Record
from lab.records.table import by_run, median
from lab.report.blocks import Markdown, Table, escaped

# What the kinds of scaling mean, and the law of each; "" is that of rates whose batch is unknown.
LAWS: dict[str, str] = {
    "strong": r"""With $T(N)$ the time on $N$ ranks at one global batch, and $B$ the ranks of
the baseline:

$$
S(N) = \frac{T(B)}{T(N)}, \qquad E(N) = S(N) \, \frac{B}{N}
$$

Amdahl's law bounds the speedup of a program of which a fraction $f$ does not get faster on
$n = N / B$ times as many ranks:

$$
S(N) \le \frac{1}{f + (1 - f) / n}
$$""",
    "weak": r"""With $X(N)$ the throughput on $N$ ranks at one batch per rank, and $B$ the ranks
of the baseline:

$$
S(N) = \frac{X(N)}{X(B)}, \qquad E(N) = S(N) \, \frac{B}{N}
$$

By Gustafson's law, a step of which a fraction $s$ is not shared has, on $n = N / B$ times as many
ranks, the scaled speedup

$$
S(N) = s + (1 - s) \, n, \qquad s = \frac{n - S(N)}{n - 1}
$$""",
    "": r"""With $X(N)$ the throughput on $N$ ranks, and $B$ the ranks of the baseline:

$$
S(N) = \frac{X(N)}{X(B)}, \qquad E(N) = S(N) \, \frac{B}{N}
$$""",
}
COMMUNICATION = (
    "Communication of a step on its slowest rank, {over}. Exposed is "
    "the time in which it did nothing but wait, split into waiting for other ranks and transfer, "
    "whose medians need not add up{cost}. Sent: by one rank in a step, if ranks form a ring"
)
COST = "cost of synchronising"
ITS_COST = (
    "; the cost of synchronising is measured by itself, in alternating rounds with and without it; "
    "stolen compute is what it exceeds the exposed part of these rounds by"
)
FROZEN = "Predictions were written down and hashed before their runs. They are based on: "
PREDICTIONS = (
    "Step time predicted before the run and as measured, median over repeats; an error above zero "
    "means that the run was faster than predicted. Frozen gives the time at which the prediction "
    "was written, and the first digits of its SHA-256"
)
# Labels of the classical tables, by how their captions begin.
RESULTS = {
    "Step time": "tbl-step-time",
    "Speedup": "tbl-speedup",
    "Efficiency": "tbl-efficiency",
    "Configurations": "tbl-configurations",
    "Compute and communication": "tbl-parts",
}
# The status of an attempt that is shown and not counted.
SET_ASIDE = "set aside"
LONG = 100.0  # s; such steps are epochs of published tables, and need no ms
# How the columns of the learning table follow from a run's repeats and its row in a summary.
LEARNING: dict[str, Callable[[Sequence[Record], Row], str]] = {
    "last loss": lambda repeats, _: loss(repeats, "final_loss"),
    "validation loss": lambda repeats, _: loss(repeats, "quality.validation_loss"),
    "accuracy": lambda repeats, _: accuracy(
        median(repeats, "quality.accuracy"), evaluated_samples(repeats[0].run)
    ),
    "peak memory of a rank (MB)": lambda repeats, _: megabytes(median(repeats, "peak_memory")),
    "samples/s": lambda _, row: row.text("samples_per_second"),
    "MFU": lambda _, row: row.text("mfu"),
}


def answer(results: StudyResults) -> Markdown:
    """The answer to the study's question, by what the study varies."""
    notice = (
        [f"{results.notice}. Source: {'; '.join(results.citations)}."] if results.notice else []
    )
    return Markdown.of(*notice, results.headline, strong=True)


def strip(results: StudyResults, run_ids: Sequence[str] | None = None) -> Markdown:
    """How far to trust these results: repeats, interval, other load, the audit's worst finding.

    The audit is that of their study or table; plain records have none.
    """
    audited = results.has_study or isinstance(results.source, ReportedTable)
    audit = results.audit if audited else None
    line = results.noise.strip(audit, run_ids=run_ids)
    return Markdown(f"<small>*{escaped(line)}*</small>")


def result_tables(results: StudyResults) -> list[Table]:
    """The classical tables: time, speedup, efficiency, then compute and communication."""
    return [
        Table(caption, frame, label=label)
        for caption, frame in classical_tables(results.summary)
        for begin, label in RESULTS.items()
        if caption.startswith(begin)
    ]


def scaling_tables(results: StudyResults) -> list[Table]:
    """Time, speedup and efficiency."""
    return [table for table in result_tables(results) if table.label != "tbl-parts"]


def parts_of_step(results: StudyResults) -> list[Table]:
    """Compute and communication, if any part of a step was measured."""
    return [table for table in result_tables(results) if table.label == "tbl-parts"]


def waterfall(results: StudyResults) -> list[Table]:
    """What each configuration loses against the ideal step, by cause, if phases are known."""
    falls = results.waterfalls
    return [Table(*waterfall_table(falls), index=False, label="tbl-waterfall")] if falls else []


def findings(results: StudyResults) -> Markdown:
    """What else the numbers support, as a list."""
    sentences = analysis.findings(results.study, results.summary, results.records, results.noise)
    return Markdown.bullets(sentences, otherwise="The numbers support no further statement.")


def holes(results: StudyResults) -> Markdown:
    """Runs of the study without a measurement, with their reasons, as a list."""
    study = results.study
    sentences = analysis.holes(study, results.records)
    if sentences and len(results.clusters) == 1:
        with contextlib.suppress(InputError):  # the profile may be missing on this machine
            obstacles = {row["run"]: row["cannot run"] for row in plan(study, results.clusters[0])}
            sentences = analysis.holes(study, results.records, obstacles=obstacles)
    counted = f"{count(len(study.tasks), 'repeat')} of {count(len(study.runs), 'configuration')}"
    whole = "all " * (len(study.tasks) > 1) + counted
    absent = any(one.inference and one.inference.unavailable for one in results.records)
    nothing = "Nothing but what is not available here" if absent else "Nothing"
    return Markdown.bullets(sentences, otherwise=f"{nothing}: {whole} completed.")


def next_step(results: StudyResults) -> Markdown:
    """What to do about runs without a measurement, and where a failed one left its log."""
    study = results.study
    command = _run_command(results)
    where = os.path.relpath(study.out / RUNS)
    logs = f" Logs are in `{where}/<run>/<repeat>/log`; fix the cause first." * bool(
        results.records
    )
    return Markdown(f"`{command}` measures what is missing, and keeps what has completed.{logs}")


def _run_command(results: StudyResults) -> str:
    # Records of runs that failed early do not name their cluster; what submitted them does.
    clusters = results.clusters or set(last_clusters(results.study))
    return results.study.command("run", clusters, public=True)


def communication(results: StudyResults) -> Table | Markdown:
    """Total and exposed communication, its causes, the independent estimate and the bytes sent.

    Empty if none of it was measured.
    """
    columns = {
        "total": "communication_time",
        "exposed": "exposed_communication_time",
        "exposed: waiting": "straggler_time",
        "exposed: transfer": "transfer_time",
        COST: "sync_cost_time",
        "stolen compute": "stolen_compute_time",
    }
    sent = by_run(record for record in results.records if record.completed)
    rows = []
    shared = common_ranks(results.summary[results.summary["world_size"] > 1])
    units = time_units(results.summary)
    for name, row in named_rows(results.summary, shared):
        if row["world_size"] > 1:
            times = {part: row.text(column, units) for part, column in columns.items()}
            by_rank = _sent(sent.get(row["run_id"], []))
            rows.append({"configuration": name, **times, "sent (MB)": by_rank})
    over = over_repeats(results.summary["repeats"])
    measured = any(row[COST] != NOT_MEASURED for row in rows)
    caption = COMMUNICATION.format(over=over, cost=ITS_COST if measured else "")
    table = Table.of_rows(caption, rows, common=shared, label="tbl-communication")
    return table if len(table.frame.columns) > 1 else Markdown("")


def _sent(repeats: Sequence[Record]) -> str:
    """The bytes as in the table of strategies, with the number of calls."""
    size = megabytes(median(repeats, "communication.bytes_moved"))
    one = next((record.communication for record in repeats if record.communication), None)
    if one is None:
        return size
    cycle, buckets = max(len(one.cycle), 1), len(one.buckets or ())
    calls = round((one.calls or buckets) * cycle) - buckets
    numbers = {"bucket": buckets, "call": calls}
    counted = " and ".join(count(number, word) for word, number in numbers.items() if number)
    if cycle > 1:
        return f"{size} a step: {counted} every {cycle} steps"
    return f"{size} in {counted}" if counted else size


def learning(results: StudyResults) -> Table:
    """Loss after the last step, validation loss, peak memory and speed of each configuration."""
    runs = [run for run in results.study.runs if run.task == "train"]
    done = [record for record in results.records if record.completed]
    labels, common = distinct_labels(runs)
    columns = dict(LEARNING)
    if all(record.quality is None or record.quality.accuracy is None for record in done):
        del columns["accuracy"]  # language models have none
    summary = {row["run_id"]: row for row in rows_of(results.summary)}
    rows = []
    trained = configurations.trained(runs, done)
    for run in runs:
        cells = {
            name: cell(trained[run], summary[run.id]) if run in trained else NOT_MEASURED
            for name, cell in columns.items()
        }
        rows.append({"configuration": labels[run], **cells})
    splits = sorted({r.quality.depends_on_split or "" for r in done if r.quality} - {""})
    notes = f"; loss depends on how ranks share the batch: {'; '.join(splits)}" * bool(splits)
    kinds = sorted({record.emulation for record in done} - {""})
    notes += f"; emulated: {', '.join(kinds)}" if kinds else ""
    learned = any(record.quality for record in done)
    what = "What was learned, and at what cost" if learned else _costs(rows)
    caption = f"{what}, {over_repeats(results.summary['repeats'])}{notes}"
    return Table.of_rows(caption, rows, common=common, label="tbl-learning")


def _costs(rows: Sequence[Mapping[str, str]]) -> str:
    """What a table of LEARNING shows besides what was learned, for its caption."""
    columns = {
        "memory": "peak memory of a rank (MB)",
        "throughput": "samples/s",
        "utilization": "MFU",
    }
    missing = {NOT_MEASURED, UNKNOWN}
    shown = [name for name, cells in columns.items() if not {row[cells] for row in rows} <= missing]
    return capitalized(joined(shown)) or "Training"


def learning_compared(results: StudyResults) -> Markdown:
    """How closely equal batches learn the same, and a note that unequal ones need not."""
    return Markdown.bullets(configurations.learning_sentences(results.study, results.records))


def every_repeat(results: StudyResults) -> Table:
    """One row per repeat, as measured; the noisier of two attempts follows the one that counts."""
    records, louder = results.records, results.set_aside
    labels, common = distinct_labels(list(dict.fromkeys(record.run for record in records)))
    emulating = any(record.emulation for record in records)
    shortest = min((record.timing.step.median for record in records if record.timing), default=0.0)
    unit, factor = ("s", 1.0) if shortest >= LONG else ("ms", 1e3)
    rows = []
    for record, status in _attempts(records, louder):
        share = record.foreign_share
        rows.append(
            {
                "configuration": labels[record.run],
                "repeat": record.repeat,
                "status": status,
                **({"emulated": record.emulation} if emulating else {}),
                "foreign CPU (%)": "-" if share is None else f"{100 * share:.1f}",
                **dict.fromkeys((f"{name} ({unit})" for name in ("step", *PHASES)), "-"),
                **{
                    f"{name} ({unit})": f"{stat.median * factor:.2f}"
                    for name, stat in _stats(record)
                },
            }
        )
    caption = "Every repeat: median step of the slowest rank"
    if any(record.timing and record.timing.phases for record in records):
        caption += " and its phases"
    if any(record.communication and record.communication.exposed for record in records):
        caption += ", which include the exposed communication"
    if any(record.foreign_share is not None for record in records):
        caption += "; foreign CPU is what other processes took of the ranks' cores"
    aside = f"; {SET_ASIDE}: the noisier of two attempts at a repeat, kept beside it"
    caption += aside * bool(louder)
    return Table.of_rows(caption, rows, common=common, label="tbl-repeats")


def _attempts(
    records: Sequence[Record], louder: Mapping[Task, Record]
) -> Iterator[tuple[Record, str]]:
    for record in records:
        yield record, record.status
        if other := louder.get(record.task):
            yield other, SET_ASIDE


def phases(results: StudyResults) -> Table:
    """Median, 10th and 90th percentile of the step and its phases in ms, and medians by rank."""
    rows = []
    for record in results.records:
        for name, stat in _stats(record):
            of_ranks = record.timing.per_rank[name] if record.timing else []
            times = {"median": stat.median, "p10": stat.p10, "p90": stat.p90}
            times |= {f"rank {rank}": time for rank, time in enumerate(of_ranks)}
            rows.append(
                {"phase": name, **{key: f"{time * 1e3:.2f}" for key, time in times.items()}}
            )
    caption = "Times in ms: over the steps of the slowest rank, and the median of each rank"
    return Table.of_rows(caption, rows, label="tbl-phases")


def _stats(record: Record) -> Iterator[tuple[str, Stat]]:
    """The statistics of the step and of each phase that was measured."""
    if record.timing is not None:
        yield "step", record.timing.step
        yield from ((p, record.timing.phases[p]) for p in PHASES if p in record.timing.phases)


def reproduce(results: StudyResults) -> Markdown:
    """The commands that repeat this study and this report."""
    study = results.study
    again = "read the published numbers again" if results.citations else "measure again"
    commands = {
        f"{_run_command(results)} --fresh": again,
        study.command("report", public=True): "this report from the records",
    }
    width = max(map(len, commands))
    lines = [f"{command:<{width}}  # {what}" for command, what in commands.items()]
    return Markdown("\n".join(["```", *lines, "```"]))


def outcome(results: StudyResults) -> Markdown:
    """A run's throughput, or the first cause of its failure with the last lines of the log."""
    for record in results.records:
        if record.error is not None:
            failure = Markdown.of(f"This run did not complete: {record.end}")
            log = record.error.log
            fence = max(re.findall("~+", f"~~ {log}"), key=len) + "~"  # longer than any in the log
            code = f"{fence}text\n{log}\n{fence}"
            return Markdown(f"{failure.markdown}\n\n{code}") if log else failure
        if record.timing is not None:
            timing = record.timing
            step = format_seconds(timing.step.median, *(timing.step.interval or (None, None)))
            emulated = f"Emulated {record.emulation}: a" if record.emulation else "A"
            flops = timing.flops_per_second
            arithmetic = (
                f", {flops / 1e9:.1f} GFLOP/s of the model's own arithmetic" if flops else ""
            )
            rate = timing.samples_per_second
            speed = f": {rate:.1f} samples/s" if rate is not None else ""
            measured = count(timing.measured_steps, "step")
            over = " with its interval over them," * bool(timing.step.interval)
            return Markdown.of(
                f"{emulated} step takes {step} (median of {measured}{over} after "
                f"{timing.warmup_steps} of warm-up){speed}{arithmetic}."
            )
        if record.inference is not None:
            sentences = [*inference.missing([record]), *inference.sentences([record])]
            timed = "Two copies of the base were timed against each other."
            return Markdown.bullets(sentences or [timed])
    return Markdown.of("There is no record of this run.")


def predictions(results: StudyResults) -> list[Markdown | Table]:
    """The outcome of the predictions, with a row per run that was predicted and measured."""
    summary = Markdown.of(results.prediction_summary)
    if not results.scores:
        return [summary]
    measured = {row["run_id"]: row.text("step_time") for row in rows_of(results.summary)}
    rows = [one.row() | {"measured": measured[one.frozen.run_id]} for one in results.scores]
    bases = dict.fromkeys(score.frozen.basis for score in results.scores)
    beyond = dict.fromkeys(note for score in results.scores for note in score.frozen.extrapolated)
    caveats = f" Caveats: {'; '.join(beyond)}." if beyond else ""
    how = Markdown.of(f"{FROZEN}{'; '.join(bases)}.{caveats}")
    return [summary, how, Table.of_rows(PREDICTIONS, rows, label="tbl-predictions")]
