"""Sections on what a study compares and where it ran; empty if it compares nothing."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from lab.analysis import configurations, tables
from lab.analysis.configurations import Cells
from lab.analysis.results import StudyResults
from lab.analysis.scaling_curves import over_repeats, ranks_vary
from lab.config.run import Run, distinct_labels
from lab.config.strategies import SCRIPT_NAME
from lab.config.study import Study
from lab.errors import InputError
from lab.figures import curves
from lab.figures.curves import OVERLAPPING
from lab.figures.figure import NO_COMMUNICATION
from lab.formatting import count, extent, format_seconds, joined, listed
from lab.launch.plan import planned, spent
from lab.launch.preflight import usable
from lab.perfmodel.calibration import Calibration, find_calibration
from lab.records.store import Record, Store
from lab.records.table import grouped, value_at
from lab.report import references, sections
from lab.report.blocks import Figure, Markdown, Table, drawn, figure

Blocks = list[Markdown | Table]
MOST_HOSTS = 16  # that are named
MATRIX_SIZE = re.compile(r" \(\d+ x \d+\)")  # of the product that was the fastest in a job
LOADERS = (
    "The classic loader tokenizes each sample when it is requested, in processes of its own if it "
    "has any; the fast loader reads tokens that were made once."
)
STRATEGIES = (
    "Strategies side by side, {over}. Peak: memory of the rank that uses most; "
    "weights and optimizer state are what it holds throughout a step. Sent: by one rank in a "
    "step, if ranks form a ring"
)
NETWORKS = (
    "Networks side by side, {over}. Exposed: the part of communication that a step "
    "waits for. Sent: by one rank in a step. Epochs: the first whose mean training loss is below "
    "0.04, or the lowest mean of those that were trained"
)
LINK_LAW = (
    "A call of a collective takes alpha, its latency, and its bytes over the bandwidth: "
    "the alpha-beta model. In a ring all-reduce of $n$ ranks each link carries $2(n-1)/n$ of the "
    "bytes, which busbw takes into account."
)
LINKS = (
    "Time of each collective by the bytes of the whole tensor, both logarithmic, with 95 % "
    "intervals, and the fits of alpha + bytes / bandwidth. Where points leave their line, that law "
    "does not hold."
)
DATA_PARALLEL = "; torch's DataParallel copies within itself, where nothing is measured"


def scaling_figures(results: StudyResults) -> list[Figure]:
    """Speedup, efficiency, step time and throughput side by side, or bars of categories.

    If configurations differ in their batch but not in their ranks, also MFU by batch.
    """
    drawn = [figure("overview", results), figure("mfu_by_batch", results)]
    return drawn[: 1 if ranks_vary(results.summary) or drawn[1].missing else 2]


def overlap(results: StudyResults) -> list[Figure]:
    """The band between no and perfect overlap, if a strategy hides gradients behind backward."""
    strategies = {run.strategy for run in results.study.runs}
    if not OVERLAPPING & strategies:
        return []
    band = figure("overlap_band", results)
    return [] if band.missing == NO_COMMUNICATION else [band]


def comparisons(results: StudyResults) -> Blocks:
    """Strategies, loaders and networks side by side, if the study has several of them."""
    blocks = [*_strategies(results), *_loaders(results), *_networks(results)]
    return [*blocks, sections.strip(results)] if blocks else []


def _strategies(results: StudyResults) -> Blocks:
    """Time, throughput, memory, traffic and loss by strategy; CNNs have a separate table."""
    study, records = results.study, results.records
    runs = [run for run in study.runs if run.task == "train" and run.architecture.kind != "cnn"]
    if len({run.strategy for run in runs}) < 2:
        return []
    summary = results.noise.quiet(results.summary)
    learned = configurations.learning_sentences(study, records)  # a section of their own
    sentences = [
        sentence
        for sentence in configurations.strategy_sentences(
            runs, records, summary, baseline=study.baseline
        )
        if sentence not in learned
    ]
    cells = configurations.strategy_cells
    table = _table(STRATEGIES, runs, results, cells, label="tbl-strategies")
    return [Markdown("## Strategies"), *_bullets(sentences), table]


def _loaders(results: StudyResults) -> Blocks:
    """How long steps wait for data with each loader."""
    runs = [run for run in results.study.runs if run.task == "train"]
    if len({run.loader for run in runs}) < 2:
        return []
    quiet = [run for run in runs if results.noise.trustworthy([run.id])]
    sentences = configurations.loader_sentences(quiet, results.records)
    return [Markdown("## Data loaders"), Markdown.of(LOADERS), *_bullets(sentences)]


def _networks(results: StudyResults) -> Blocks:
    """Compute, communication, bytes and epochs of convolutional networks."""
    runs = [run for run in results.study.runs if run.architecture.kind == "cnn"]
    if len({(str(run.model), run.strategy) for run in runs}) < 2:
        return []
    caption = NETWORKS + DATA_PARALLEL * any(run.strategy == "data_parallel" for run in runs)
    table = _table(caption, runs, results, configurations.image_cells, label="tbl-networks")
    return [Markdown("## Networks"), table]


def _bullets(sentences: Sequence[str]) -> Blocks:
    return [Markdown.bullets(sentences)] if sentences else []


def _table(
    caption: str, runs: Sequence[Run], results: StudyResults, cells: Cells, *, label: str
) -> Table:
    rows = configurations.table_rows(runs, results.records, results.summary, cells)
    caption = caption.format(over=over_repeats(results.summary["repeats"]))
    table = Table.of_rows(caption, rows, common=distinct_labels(runs)[1], label=label)
    return replace(table, frame=table.frame.fillna("-"))


def calibration(results: StudyResults) -> list[Markdown | Table | Figure]:
    """The clusters' links, arithmetic and memory as measured by `lab calibrate`."""
    blocks: list[Markdown | Table | Figure] = []
    for name in results.clusters:
        measured = find_calibration(name)
        if measured is None or not measured.parts:
            command = f"lab calibrate --cluster {shlex.quote(name)}"
            missing = f"The cluster {name} is not calibrated; {command} measures its links."
            if results.citations:
                missing = "The source gives no times of collectives."
            blocks.append(Markdown.of(missing))
            continue
        if not blocks:
            blocks.append(Markdown(references.cited(LINK_LAW)))
        emulated = measured.environment.emulated if measured.environment else None
        where = f"cluster {name}" + (f", emulated {emulated.label}" if emulated else "")
        fits, rates = tables.fits_table(measured), tables.throughput_table(measured)
        law, speed = "Fits of time = alpha + bytes / bandwidth", "Arithmetic and memory of a rank"
        numbers = [
            Table(f"{law}, {where}", fits, index=False, label="tbl-links"),
            Table(f"{speed}, {where}", rates, index=False, label="tbl-rates"),
        ]
        # A published table holds no rates.
        blocks += [links(measured), *(table for table in numbers if not table.frame.empty)]
    return blocks


def links(calibration: Calibration) -> Figure:
    """Times of collectives by bytes, measured and fitted."""
    alt = curves.links_alt(calibration)
    return drawn(
        lambda ax: curves.links(ax, calibration),
        alt,
        height=curves.LINKS_HEIGHT,
        caption=LINKS if calibration.rows else "",
        label="fig-links",
    )


def traced_step(results: StudyResults, study: Study) -> list[Markdown | Figure]:
    """A traced step, and where its trace is; nothing if no step of these results was traced."""
    store = Store(study.out)
    paths = [
        (store.folder(record.task) / record.trace.file).relative_to(study.folder)
        for record in results.records
        if record.trace
    ]
    if not paths:
        return []
    where = f"Perfetto (ui.perfetto.dev) opens its trace: {', '.join(map(str, paths))}."
    figures = [figure(name, results) for name in ("trace_timeline", "memory_timeline")]
    return [Markdown.of("A traced step", heading=2), Markdown.of(where), *figures]


def environment(results: StudyResults) -> Table:
    """Hardware and software of the measurement; values that differ between records are listed."""
    pairs = (
        pair
        for record in results.records
        for pair in (*environment_rows(record), *_allocation_rows(record))
    )
    values = {name: list(dict.fromkeys(texts)) for name, texts in grouped(pairs).items()}
    if "hosts" in values:
        places = [record.environment for record in results.records if record.environment]
        hosts = sorted({host for place in places for host in place.hosts})
        values["hosts"] = [listed(hosts, MOST_HOSTS)]
    if "GPU" in values:
        values["GPU"] = list(_counted_together(values["GPU"]))
    if peaks := list(_peaks(results.records)):
        values["peak of a rank"] = peaks
    queued = (value_at(record, "allocation.queue_time") for record in results.records)
    if waits := [wait for wait in queued if wait is not None]:
        values["in the queue"] = [f"{format_seconds(min(waits))} to {format_seconds(max(waits))}"]
    values |= {name: [text] for name, text in _hours(results).items()}
    rows = [{"what": name, "value": "; ".join(listed)} for name, listed in values.items()]
    origin = "as the source states it" if results.citations else "read inside the jobs"
    return Table.of_rows(f"Environment, {origin}", rows, label="tbl-environment")


def _peaks(records: Iterable[Record]) -> Iterator[str]:
    """The peaks that MFU is relative to, by precision and source; a vendor's states its figure."""
    rates = grouped(
        ((record.run.precision, MATRIX_SIZE.sub("", timing.peak_source or "source unknown")), rate)
        for record in records
        if (timing := record.timing) and (rate := timing.peak_flops_per_second)
    )
    for (precision, source), measured in rates.items():
        span = f"{extent([(1e-9 * rate,) for rate in measured])} GFLOP/s, "
        yield f"{precision}: {span * ('FLOP/s' not in source)}{source}"


def _counted_together(texts: Iterable[str]) -> Iterator[str]:
    """Texts that differ only in their number as one: `1, 2 or 4 x Model`."""
    parts = [text.partition(" x ") for text in texts]
    for model, numbers in grouped((model, number) for number, _, model in parts).items():
        yield joined(numbers, "or") + f" x {model}" * bool(model)


def _hours(results: StudyResults) -> dict[str, str]:
    """The hours of a study's jobs, past and still missing; empty for published numbers."""
    if not results.has_study or results.citations:
        return {}
    study = results.study
    used, rows = spent(study, results.records), {}
    if used.jobs:
        rows["spent"] = str(used)
    with contextlib.suppress(InputError):  # the profile may be missing on this machine
        if len(results.clusters) == 1 and len(results.records) < len(study.tasks):
            remaining = planned(study, usable(results.clusters[0]))
            if remaining.jobs or remaining.unknown:  # else this machine cannot run what is missing
                rows["planned"] = str(remaining)
    return rows


def environment_rows(record: Record) -> Iterator[tuple[str, str]]:
    """Names and values of a record's environment, for display; empty if it has none."""
    env = record.environment
    if env is None:
        return
    gpus = f"{env.gpu_count} x {env.gpu}" if env.gpu else "none used"
    yield "cluster profile", env.cluster
    if env.replay:
        yield "replay of", env.replay
        yield "GPU", gpus
        return
    yield "emulated", env.emulated.description if env.emulated else "nothing"
    if env.emulated is not None and env.emulated.step:
        sleeps = [f"{name} {seconds * 1e3:.2f} ms" for name, seconds in env.emulated.step.items()]
        name = f"a rank's sleep per micro-batch, world size {record.run.world_size}"
        yield name, ", ".join(sleeps)
    yield "hosts", ", ".join(sorted(set(env.hosts)))
    if env.shared_host:
        yield "other jobs", "could run on this host at the same time, on other devices"
    yield "processor", f"{env.cpu}, {env.cpu_count} logical CPUs"
    threads = count(env.threads_per_rank, "thread")
    yield "cores per rank", f"{len(env.cpus_granted[0])} with {threads}"
    yield "GPU", f"{gpus}, driver {env.driver}" if env.gpu else gpus
    clocks = [gpu.sm_clock for gpu in env.gpu_states or () if gpu.sm_clock is not None]
    if clocks:
        ends = dict.fromkeys(f"{clock:.0f}" for clock in (min(clocks), max(clocks)))
        yield "SM clock while measuring", f"{' to '.join(ends)} MHz"
    reasons = sorted({name for gpu in env.gpu_states or () for name in gpu.reasons})
    if reasons:
        yield "what limited GPU clocks", ", ".join(reasons)
    yield "backend", env.backend or "none"
    versions = (f"{name} {version}" for name, version in sorted(env.versions.items()))
    yield "versions", ", ".join(versions)
    changes = " with local changes" if env.git_dirty else ""
    own = record.run.script
    commit = f"commit {env.git_commit[:12] + changes if env.git_commit else 'unknown'}"
    yield "code" if own is None else "code of the lab", commit
    if own is not None:
        digest = own.source[:16] or "unknown"
        yield "script", f"{own.name}; SHA-256 {digest}, with what it imports from beside it"
    else:
        yield "data", f"{env.data_description}; SHA-256 {(env.data_sha256 or 'unknown')[:16]}"
        yield "parameters", f"{env.parameters:,}" if env.parameters else "unknown"
    if env.attention:
        yield "attention kernel", env.attention.replace("_", " ")
    if script := record.script:
        several = f", the first of {script.optimizers} that step" if script.optimizers > 1 else ""
        counted = f"of {script.optimizer}{several}" if script.optimizer else "that the script marks"
        yield "steps counted", f"those {counted}"
        yield "modules trained", ", ".join(script.wrappers) or "none seen"


def _allocation_rows(record: Record) -> Iterator[tuple[str, str]]:
    """What Slurm granted; empty for a record without an environment, or without Slurm."""
    slurm = record.allocation
    if slurm is None or record.environment is None:
        return
    requeues = f" (requeued {count(slurm.requeues, 'time')})" if slurm.requeues else ""
    yield "Slurm jobs", f"{slurm.job_id}{requeues}"
    gpus = f", GPU {', '.join(slurm.gpus)} of the first" if slurm.gpus else ""
    yield "nodes", f"{', '.join(slurm.nodes)}{gpus}"


MEASURED = (
    "On each rank, a step runs from its start to its own end, without a barrier; the step time of "
    "a study is that of the **slowest rank** of each step, because a synchronous step ends with "
    "it. Warm-up is left out. Each repeat is a separate job; repeats "
    "are interleaved over the configurations. Times are medians over the repeats' medians; their "
    "95 % intervals are by order statistics, those of ratios bootstrap intervals; of two to four "
    "repeats they are the range, and one repeat has none. What is reported follows the rules for "
    "benchmarks of parallel machines."
)
LOOP = "Steps include neither compilation nor evaluation."
PUBLISHED = (
    "These times were measured and published by others; their source describes how. One number "
    "per configuration has no interval."
)
SCRIPT = (
    "A script runs unchanged, and is measured by hooks of torch: a step is what lies between the "
    "ends of two steps of its optimizer, whatever else the script does in between, such as an "
    "evaluation. Phases are the calls of its module and of the backward pass, the optimizer's step "
    "and the waits for its DataLoader, as far as they were observed."
)
OVERLAP = r"""With $R = T_{\text{compute}} / T_{\text{communication}}$ of one rank, efficiency is
$R / (1 + R)$ if the two take turns; if communication hides behind the backward pass, a share
$b \approx 2/3$ of compute, it is

$$
E = \frac{1}{\max\left(1,\; 1 - b + 1 / R\right)}
$$

Every bucket of gradients is stamped when it is complete, when it is handed to the link, and when
its average has arrived. Total communication is the union of the times on the link; its exposed part
is what follows the last gradient, split into the wait for the slowest rank and transfer."""
COLLECTIVES = (
    "With strategies other than DDP, every collective and message is stamped at its start and its "
    "end: exposed is the time in which a rank did nothing but wait."
)


def method(results: StudyResults) -> Markdown:
    """How the study was measured, and the laws that its scaling and its strategies obey."""
    study = results.study
    several = {run.strategy for run in study.runs if run.world_size > 1 and run.task == "train"}
    published = bool(results.citations)
    parts = {
        PUBLISHED if published else MEASURED: True,
        LOOP: not published and any(run.script is None for run in study.runs),
        SCRIPT: any(run.script for run in study.runs),
        sections.LAWS.get(study.scaling, ""): True,
        OVERLAP: "ddp" in several and not published,
        COLLECTIVES: bool(several - {"ddp", SCRIPT_NAME}) and not published,
    }
    texts = [text for text, holds in parts.items() if text and holds]
    return Markdown(references.cited("\n\n".join(texts)))
