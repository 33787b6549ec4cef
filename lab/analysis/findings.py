"""Sentences for the report, made only from numbers that support them: findings and limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import pandas as pd

from lab.analysis.configurations import MOST_NAMES
from lab.analysis.laws import CLOSE, fit_amdahl, karp_flatt
from lab.analysis.noise import Noise
from lab.analysis.placement import slow_ranks
from lab.analysis.scaling import FEWEST_REPEATS, best, by_emulation, farthest, gains
from lab.analysis.scaling_curves import Row, at, curves, labelled_rows, ranks
from lab.analysis.waterfall import SHARE, Waterfall, on_most_ranks, waterfalls
from lab.config.run import Run, conflicts, distinct_labels
from lab.config.study import Study
from lab.formatting import count, format_seconds, joined, listed, percent, rounded, value_of
from lab.perfmodel.collectives import efficiency_with_overlap, efficiency_without_overlap
from lab.records.schema import Environment
from lab.records.store import Record, Store
from lab.records.table import grouped

DDP = "DistributedDataParallel"
UNEVEN = 1.1  # mean over median step of a script
MOST_SPEEDUPS = 4  # of which each has its sentence


def limits(falls: Sequence[Waterfall]) -> list[str]:
    """What keeps a step from the ideal, at the most ranks of each curve."""
    return [sentence for fall in on_most_ranks(falls) for sentence in _limits(fall)]


def _limits(fall: Waterfall) -> Iterator[str]:
    if (loss := largest_loss(fall)) is not None:
        yield loss
    row, run = fall.row, fall.run
    if run.facts.moves == "gradients" and row["communication_time"] > 0:
        yield f"{fall.opening}, {_compute_to_communication(row)}."
    if (fraction := _serial_fraction(row)) is not None:
        yield f"{fall.opening}, Karp and Flatt's serial fraction is {fraction}."


def largest_loss(fall: Waterfall) -> str | None:
    """The largest loss, its time and what to do about it; None if the repeats are inconclusive."""
    opening = f"{fall.opening},"
    if fall.compared:
        start = format_seconds(*fall.ideal)
        start = f"the baseline takes {start}" if fall.alike else f"{start} is ideal"
        opening += f" a step takes {format_seconds(*fall.step)} where {start};"
    if fall.supported:
        loss = fall.losses[fall.largest]
        which = "the largest loss" if fall.compared else "the largest part besides compute"
        return (
            f"{opening} {which}, {format_seconds(*loss)} ({fall.largest_share} of the step), "
            f"is {fall.name(fall.largest)}; {advice(fall)}."
        )
    if fall.negligible:
        most = f"{100 * SHARE:.0f} %"
        if fall.compared:  # the baseline's step may itself be more than compute
            return f"{fall.opening}, no loss takes more than {most} of the step."
        limit = "compute and communication limit" if fall.unseen else "compute limits"
        return f"{fall.opening}, {limit} the step: no other part takes more than {most} of it."
    apart = fall.compared and fall.repeats >= FEWEST_REPEATS and fall.step.low > fall.ideal.high
    return f"{opening} the repeats do not show which loss is the largest." if apart else None


def _compute_to_communication(row: Row) -> str:
    r = row.estimate("compute_time").over(row.estimate("communication_time"))
    serial, hidden = (
        value_of(percent(*(law(end) for end in r if pd.notna(end))))
        for law in (efficiency_without_overlap, efficiency_with_overlap)
    )
    return (
        f"R = T_compute / T_communication is {rounded(*r)}, which alone would give an efficiency "
        f"of {serial} without overlap and of {hidden} with all of the backward pass to hide behind"
        + f"; measured: {row.text('efficiency')}"
        * (row.is_gain_of_ranks and row.base is not None and row.base["world_size"] == 1)
    )


def _serial_fraction(row: Row) -> str | None:
    """The Karp-Flatt serial fraction with its interval; a speedup outside 1 to N has none."""
    enough = row["scaling"] == "strong" and row["repeats"] >= FEWEST_REPEATS
    if not (enough and row.is_gain_of_ranks and row.base):
        return None
    n = row["world_size"] / row.base["world_size"]
    speedup, low, high = row.estimate("speedup")
    if not 1 <= low <= high <= n:
        return None
    return percent(*(karp_flatt(value, n) for value in (speedup, high, low)))


def advice(fall: Waterfall) -> str:
    """What to change or measure first against the largest loss, as its run and cluster permit."""
    if fall.largest == "others":  # nothing in the run accounts for these
        return "first to do: measure again on a machine where nothing else runs"
    if fall.largest in ("compute", "rest"):  # which no measurement so far explains
        profile = f"both steps with a profiler{' (trace: true)' * (fall.run.script is None)}"
        missing = _missing(fall) if fall.largest == "compute" else ()
        return f"first to measure: {' and '.join(missing) or profile}"
    *others, last = _remedies(fall)
    return f"first to change: {' or '.join([', '.join(others)] * bool(others) + [last])}"


def _missing(fall: Waterfall) -> Iterator[str]:
    """Measurements that would distinguish the reasons why compute takes longer."""
    run, place = fall.run, fall.environment
    if fall.unseen:
        yield "how long ranks wait for each other, with a profiler"
    if fall.unseen or fall.alike:
        return
    shares_batch = fall.row["scaling"] != "weak" and run.data_parallel_size == run.world_size
    size = run.micro_batch_size
    if shares_batch and size is not None and not {"batch", "launches"} & fall.losses.keys():
        yield f"one rank at micro-batch {size}"
    if "neighbours" not in fall.losses and place is not None and place.device == "cpu":
        yield f"how much ranks slow each other down (lab calibrate --cluster {place.profile})"


def _remedies(fall: Waterfall) -> Iterator[str]:
    """At least one remedy, and only those that this run permits and that help on its cluster.

    Changes that were measured and made the run no faster are left out.
    """
    run, place = fall.run, fall.environment
    on_cpu = place is not None and place.device == "cpu"
    match fall.largest:
        case "batch" | "launches" | "host":
            # Compiling saves launches within the phases, and nothing between them.
            if fall.largest != "host" and not run.compile and _may_help(fall, compile=True):
                yield "compile: true"
            yield "a larger batch per rank"
        case "neighbours":
            yield "fewer ranks on a host, or hosts with more memory bandwidth"
        case "stolen":
            yield "more work between exchanges"
            if on_cpu:
                yield "spare cores for them"
        case "straggler":
            crowded = place and 0 < place.core_count < run.processes * place.threads_per_rank
            equal = "equal ranks: equal batches, on devices that are equally fast"
            yield "a core for each thread of the ranks" if on_cpu and crowded else equal
        case "transfer" | "exchange":
            yield from _less_traffic(fall)
        case "bubble":
            fits = _may_help(fall, microbatches=2 * run.passes)
            yield "more microbatches" if fits else "a larger batch, cut into more microbatches"
        case "data":
            yield from _ready_data(run, place)
        case "h2d":
            if not on_cpu:
                yield "a copy from pinned memory that overlaps with compute"
            yield "smaller samples"
        case "optimizer":
            facts = run.facts
            plain = {name: Run.model_fields[name].default for name in facts.settings}
            replicated = facts.splits == "samples" and not facts.sharded and run.processes > 1
            if replicated and _may_help(fall, strategy="zero1", **plain):
                yield "an optimizer that the ranks share (zero1)"
            yield "a larger batch for each step of the optimizer"


def _may_help(fall: Waterfall, **changes: Any) -> bool:
    """Whether the run is still valid with these changes, and was not measured to be no faster."""
    changed = fall.run.model_copy(update=changes)
    no_faster = changed in fall.rates and fall.rates[changed] <= fall.rates[fall.run]
    return not no_faster and not list(conflicts(changed))


def _less_traffic(fall: Waterfall) -> Iterator[str]:
    run, place = fall.run, fall.environment
    facts, linked = run.facts, place and place.emulated and place.emulated.link
    if place is None or place.device != "cpu" or len(set(place.hosts)) > 1 or linked:
        yield "a faster link"  # but none is faster than the memory of one host
    if run.compression == "none" and _may_help(fall, compression="bf16"):
        yield "bf16 compression of the gradients"
    gathered = _may_help(fall, reshard_after_forward=False)
    if run.strategy == "fsdp" and run.reshard_after_forward and gathered:
        yield "parameters that stay gathered for the backward pass (reshard_after_forward: false)"
    if facts.moves == "activations":
        yield "fewer ranks that share the model"
        return
    if run.global_batch_size is not None and "weights" not in facts.sharded:
        # Sharded weights are gathered for each micro-batch: accumulating saves nothing.
        twice = {"grad_accum": 2 * run.grad_accum, "global_batch_size": 2 * run.global_batch_size}
        if _may_help(fall, **twice):
            yield "gradient accumulation over a larger batch"
    yield "a larger batch per rank"


def _ready_data(run: Run, place: Environment | None) -> Iterator[str]:
    if run.loader == "fast" or run.dataset.kind == "python":  # the fast one prepares no own samples
        yield "data that is cheaper to read, on a faster disk or prepared before the run"
    else:
        yield "the fast loader with its prepared arrays"
    if run.loader == "classic" and place is not None:
        ranks_on_host = run.processes // len(set(place.hosts))
        if place.cpu_count >= ranks_on_host * (place.threads_per_rank + run.loader_workers + 1):
            yield "more loader processes"


def findings(
    study: Study, summary: pd.DataFrame, records: Sequence[Record], noise: Noise
) -> list[str]:
    """What else the numbers support, and what casts doubt on them, one sentence each."""
    supports = supported(study, summary, records, noise)
    return [*supports, *caveats(study, summary, records, noise)]


def supported(
    study: Study, summary: pd.DataFrame, records: Sequence[Record], noise: Noise
) -> list[str]:
    """What else the numbers support, one sentence each, in a stable order."""
    if summary.empty:
        return []
    sentences: list[str] = []
    for part in by_emulation(noise.quiet(summary)):
        kind = part["emulated"].iloc[0]
        own = [record for record in records if record.emulation == kind]
        sentences += _speedups(part)
        sentences += _serial_fractions(part) if study.scaling == "strong" else ()
        sentences += slow_ranks(part, own)
        sentences += [*limits(waterfalls(part, records)), *_best_batch(part)]
    return [*_emulations(records), *sentences]


def caveats(
    study: Study, summary: pd.DataFrame, records: Sequence[Record], noise: Noise
) -> list[str]:
    """What makes the numbers hard to believe: few repeats, shared cores, lone ranks, noise."""
    if summary.empty:
        return []
    doubts = [*_few_repeats(summary), *_shared_cores(records), *_unseen_communication(records)]
    doubts += [*_ended_early(records), *_uneven_steps(study, records)]
    return [*doubts, *noise.caveats]


def _speedups(summary: pd.DataFrame) -> Iterator[str]:
    rows = farthest(summary)
    yield from (text for _, text in gains(rows, most=MOST_SPEEDUPS))
    if len(rows) > MOST_SPEEDUPS:
        yield f"The speedups of the other {len(rows) - 2} configurations lie between these."


def _serial_fractions(summary: pd.DataFrame) -> Iterator[str]:
    for label, points in curves(summary):
        base = points[points["run_id"] == points["baseline_run_id"]]
        compared = points[points["speedup"].notna()]
        if len(base) != 1 or set(compared["baseline_run_id"]) != set(base["run_id"]):
            continue
        sizes = compared["world_size"] / base["world_size"].iloc[0]
        fit = fit_amdahl(list(sizes), list(compared["speedup"])) if sizes.min() >= 1 else None
        if fit is None or not fit.low or fit.high is None or fit.largest_error > CLOSE:
            continue
        bound = rounded(1 / fit.serial_fraction, 1 / fit.high, 1 / fit.low)
        yield (
            "Amdahl's law with a serial fraction of "
            f"{percent(fit.serial_fraction, fit.low, fit.high)} fits the speedups of {label} "
            f"within {100 * fit.largest_error:.1f} %; under it, no number of "
            f"{ranks(points['device'].iloc[0])} exceeds a speedup of {bound}."
        )


def _best_batch(summary: pd.DataFrame) -> Iterator[str]:
    """The best batch of each model at the most ranks, if its interval lies above all others."""
    rows = labelled_rows(summary)
    most = max(row["world_size"] for row in rows)
    # A sample of one model or data set is other work than that of another.
    works = grouped(((row["model"], row["data"]), row) for row in rows if row["world_size"] == most)
    for of_work in works.values():
        yield from _best_of(of_work, " of this model" * (len(works) > 1))


def _best_of(rows: Sequence[Row], which: str) -> Iterator[str]:
    enough = (row["repeats"] >= FEWEST_REPEATS and row["samples_per_second"] > 0 for row in rows)
    if len(rows) < 2 or not all(enough):
        return
    first, level = best(rows, "samples_per_second")
    last = min(rows, key=lambda row: row["samples_per_second"])
    if not level:
        most, least = (row.estimate("samples_per_second") for row in (first, last))
        times = rounded(*most.over(least))
        yield (
            f"On {first.ranks}, the most samples per second are processed {at(first.label)}, "
            f"{times} times as many as {at(last.label)}; the interval lies above all others{which}."
        )


def holes(
    study: Study, records: Sequence[Record], *, obstacles: Mapping[str, str] | None = None
) -> list[str]:
    """What was requested and is missing: a sentence per cause, with its runs and repeats.

    `obstacles` maps run ids to why the cluster cannot run them. They are those of another machine,
    and say nothing, if they stand in the way of a run that has completed.
    """
    by_task = {(record.run_id, record.repeat): record for record in records}
    completed = [record for record in records if record.completed]
    if any((obstacles or {}).get(record.run_id) for record in completed):
        obstacles = {}
    devices = {record.environment.device for record in completed if record.environment}
    store = Store(study.out)
    missing: dict[tuple[Run, str], list[str]] = {}
    for task in study.tasks:
        record = by_task.get((task.run.id, task.repeat))
        if record is None or not record.completed:
            obstacle = (obstacles or {}).get(task.run.id, "").removeprefix("left out: ")
            if task.run.device_needed not in {"any", *devices}:
                obstacle = f"it needs a cluster with {task.run.device_needed.upper()}"
            cause = "its record is damaged" if store.damaged(task) else _cause(record, obstacle)
            missing.setdefault((task.run, cause), []).append(str(task.repeat))
    alike = grouped(((cause, tuple(repeats)), run) for (run, cause), repeats in missing.items())
    return [
        f"{_which(study, runs, repeats)}: {cause}{'' if cause.endswith('?') else '.'}"
        for (cause, repeats), runs in alike.items()
    ]


def _which(study: Study, runs: Sequence[Run], repeats: Sequence[str]) -> str:
    """These repeats of each of these runs, in words."""
    counted = count(len(runs), "configuration")
    if len(runs) * len(repeats) == len(study.tasks) > 1:
        return f"All {count(len(study.tasks), 'repeat')} of {counted}"
    numbers = f"repeat{'s' * (len(repeats) > 1)} {joined(repeats)}"
    if len(runs) == 1:
        return f"{runs[0].label}, {numbers}"
    labels, _ = distinct_labels(study.runs)
    return f"{counted} ({listed([labels[run] for run in runs], MOST_NAMES)}), {numbers}"


def _cause(record: Record | None, obstacle: str) -> str:
    if record is None:
        return f"not run: {obstacle}" if obstacle else "not run yet"
    return record.end.rstrip(".")


def _few_repeats(summary: pd.DataFrame) -> Iterator[str]:
    few = int((summary["repeats"] < FEWEST_REPEATS).sum())
    if few:
        has, them = ("has", "it") if few == 1 else ("have", "them")
        yield (
            f"{few} of {count(len(summary), 'configuration')} {has} fewer than {FEWEST_REPEATS} "
            f"completed repeats: no difference is claimed for {them}."
        )


def _unseen_communication(records: Sequence[Record]) -> Iterator[str]:
    """Numbers of ranks on which a script was not seen to communicate, and what may be the cause."""
    if sizes := _silent(records, with_ddp=True):
        yield (
            f"No communication was measured on {sizes} ranks: DDP does not synchronise in every "
            "step, or a compiled function or a hook in C++ hides what it sends."
        )
    yield from lone_ranks(records)


def lone_ranks(records: Sequence[Record]) -> Iterator[str]:
    """Numbers of ranks that may each train alone, as a script was not seen to exchange anything."""
    if sizes := _silent(records, with_ddp=False):
        yield (
            f"No communication was seen on {sizes} ranks: unless a compiled function hides it, the "
            "ranks exchange no gradients and each trains alone, so that a speedup says nothing "
            "about scaling."
        )


def _silent(records: Sequence[Record], *, with_ddp: bool) -> str:
    scripts = [one for one in records if one.completed and one.run.script]
    silent = {
        one.run.world_size
        for one in scripts
        if one.communication is None
        and (one.script is not None and DDP in one.script.wrappers) == with_ddp
    }
    return " and ".join(str(size) for size in sorted(silent) if size > 1)


def _ended_early(records: Sequence[Record]) -> Iterator[str]:
    """In how many repeats a script made fewer steps than its run has, and the fewest of them."""
    scripts = [one for one in records if one.completed and one.script]
    early = [
        (one.script.steps, one.run.steps)
        for one in scripts
        if one.script and one.script.ended == "by itself"
    ]
    if early:
        steps, wanted = min(early)
        yield (
            f"In {len(early)} of {count(len(scripts), 'repeat')} the script ended by itself before "
            f"its last step, after {steps} of {wanted} at the earliest: the times are those of "
            "the steps that it made after the warm-up."
        )


def mean_over_median(records: Iterable[Record]) -> dict[Run, float]:
    """The mean step of each script's run as a multiple of its median step."""
    ratios = grouped(
        (record.run, timing.train_time / timing.measured_steps / timing.step.median)
        for record in records
        if record.completed and record.run.script and (timing := record.timing)
    )
    return {run: median(values) for run, values in ratios.items()}


def _uneven_steps(study: Study, records: Sequence[Record]) -> Iterator[str]:
    """The script's run whose mean step exceeds its median step the most, if by UNEVEN."""
    labels, _ = distinct_labels(study.runs)
    medians = {run: ratio for run, ratio in mean_over_median(records).items() if run in labels}
    run = max(medians, key=lambda one: medians[one], default=None)
    if run is not None and medians[run] > UNEVEN:
        yield (
            "Times and rates are those of the median step, but some steps take much longer, such "
            "as those with an evaluation, a checkpoint or a disturbance: the mean is "
            f"{rounded(medians[run])} times the median ({labels[run]}). A whole training takes "
            "the mean."
        )


def _shared_cores(records: Sequence[Record]) -> Iterator[str]:
    """World sizes at which threads of CPU ranks outnumber their cores on a host."""
    crowded: dict[int, tuple[int, int]] = {}
    for record in records:
        for threads, cores in _threads_and_cores(record.environment) if record.completed else ():
            if threads > cores:
                crowded[record.run.world_size] = (threads, cores)
    for world_size, (threads, cores) in sorted(crowded.items()):
        yield (
            f"At world size {world_size}, {threads} threads of the ranks had "
            f"{count(cores, 'core')} between them: "
            "times there do not show what a core for each thread would give."
        )


def _threads_and_cores(place: Environment | None) -> Iterator[tuple[int, int]]:
    """Threads per host, if it is known which ranks ran there; a sleeping thread needs no core."""
    if place is None or place.device != "cpu" or (place.emulated and place.emulated.compute):
        return
    hosts, granted = place.hosts, place.cpus_granted
    if len(hosts) != len(granted):
        if len(set(hosts)) > 1:
            return
        hosts = hosts[:1] * len(granted)
    for host in set(hosts):
        cores = [cores for name, cores in zip(hosts, granted, strict=True) if name == host]
        yield len(cores) * place.threads_per_rank, len(set().union(*cores))


def _emulations(records: Sequence[Record]) -> Iterator[str]:
    places = [record.environment for record in records if record.completed]
    descriptions = [
        place.emulated.description if place and place.emulated else "" for place in places
    ]
    which = "All" if len(set(descriptions)) == 1 else "Some"
    for description in filter(None, dict.fromkeys(descriptions)):
        yield f"{which} results come from an emulation, not from a real machine: {description}."
