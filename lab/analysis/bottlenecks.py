"""What limits a configuration, and what to change first, as far as the numbers support it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from lab.analysis.laws import karp_flatt
from lab.analysis.scaling import FEWEST_REPEATS
from lab.analysis.scaling_curves import with_interval
from lab.analysis.waterfall import SHARE, Waterfall, on_most_ranks
from lab.config.run import Run, conflicts
from lab.formatting import format_seconds, percent, rounded
from lab.perfmodel.collectives import efficiency_with_overlap, efficiency_without_overlap
from lab.records.schema import Environment


def limits(summary: pd.DataFrame, falls: Sequence[Waterfall]) -> list[str]:
    """What keeps a step from the ideal, at the most ranks of each curve."""
    return [sentence for fall in on_most_ranks(falls) for sentence in _limits(summary, fall)]


def _limits(summary: pd.DataFrame, fall: Waterfall) -> Iterator[str]:
    if (loss := largest_loss(fall)) is not None:
        yield loss
    row, run = fall.row, fall.run
    if run.facts.moves == "gradients" and row["communication_time"] > 0:
        yield f"At {fall.place}, {_compute_to_communication(row)}."
    if (fraction := _serial_fraction(row, summary)) is not None:
        yield f"At {fall.place}, Karp and Flatt's serial fraction is {fraction}."


def largest_loss(fall: Waterfall) -> str | None:
    """The largest loss, its time and what to do about it; None if the repeats are inconclusive."""
    opening = f"At {fall.place},"
    if fall.compared:
        opening += f" a step takes {format_seconds(*fall.step)}"
        opening += f" where {format_seconds(*fall.ideal)} is ideal;"
    if fall.supported:
        loss = fall.losses[fall.largest]
        share = percent(loss.value / fall.step.value)
        which = "the largest loss" if fall.compared else "most of a step that is not compute"
        return (
            f"{opening} {which}, {format_seconds(*loss)} ({share} of the step), "
            f"is {fall.name(fall.largest)}; {advice(fall)}."
        )
    if fall.negligible:
        return (
            f"At {fall.place}, compute limits the step: "
            f"every loss takes less than {100 * SHARE:.0f} % of it."
        )
    apart = fall.compared and fall.repeats >= FEWEST_REPEATS and fall.step.low > fall.ideal.high
    return f"{opening} the repeats do not show which loss is the largest." if apart else None


def _compute_to_communication(row: Mapping[Any, Any]) -> str:
    r = row["compute_time"] / row["communication_time"]
    measured = ""
    if pd.notna(row["efficiency"]) and row["baseline_run_id"] != row["run_id"]:
        measured = f"; measured: {percent(*with_interval(row, 'efficiency'))}"
    return (
        f"R = T_compute / T_communication is {rounded(r)}: "
        f"efficiency {percent(efficiency_without_overlap(r))} without overlap, "
        f"{percent(efficiency_with_overlap(r))} with all of the backward pass to hide behind"
        f"{measured}"
    )


def _serial_fraction(row: Mapping[Any, Any], summary: pd.DataFrame) -> str | None:
    """The Karp-Flatt serial fraction with its interval; a speedup outside 1 to N has none."""
    base = summary[summary["run_id"] == row["baseline_run_id"]]
    own = base.empty or row["run_id"] == row["baseline_run_id"]
    if row["scaling"] != "strong" or own or row["repeats"] < FEWEST_REPEATS:
        return None
    n = row["world_size"] / base["world_size"].iloc[0]
    speedup, low, high = with_interval(row, "speedup")
    if not 1 <= low <= high <= n:
        return None
    return percent(*(karp_flatt(value, n) for value in (speedup, high, low)))


def advice(fall: Waterfall) -> str:
    """What to change or measure first against the largest loss, as its run and cluster permit."""
    if fall.largest == "compute" and (missing := list(_missing(fall))):
        return f"first to measure: {' and '.join(missing)}"
    *others, last = _remedies(fall.largest, fall.run, fall.environment)
    return f"first to change: {' or '.join([', '.join(others)] * bool(others) + [last])}"


def _missing(fall: Waterfall) -> Iterator[str]:
    """Measurements that would distinguish the reasons why compute takes longer."""
    run, place = fall.run, fall.environment
    shares_batch = fall.row["scaling"] != "weak" and run.data_parallel_size == run.world_size
    size = run.micro_batch_size
    if shares_batch and size is not None and not {"batch", "launches"} & fall.losses.keys():
        yield f"one rank at micro-batch {size}"
    if "neighbours" not in fall.losses and place is not None and place.device == "cpu":
        yield f"what ranks take from each other (lab calibrate --cluster {place.profile})"


def _remedies(cause: str, run: Run, place: Environment | None) -> Iterator[str]:
    """At least one remedy, and only those that this run permits and that help on its cluster."""
    on_cpu = place is not None and place.device == "cpu"
    match cause:
        case "batch" | "launches" | "host":
            if not run.compile and _allowed(run, compile=True):
                yield "compile: true"
            yield "a larger batch per rank"
        case "neighbours":
            yield "fewer ranks on a host, or hosts with more memory bandwidth"
        case "stolen":
            yield "more work between exchanges, or spare cores for them"
        case "compute":
            yield "more work per rank"
        case "straggler":
            crowded = place and 0 < place.core_count < run.processes * place.threads_per_rank
            equal = "equal ranks: equal batches, on devices that are equally fast"
            yield "a core for each thread of the ranks" if on_cpu and crowded else equal
        case "transfer" | "exchange":
            yield from _less_traffic(run, place)
        case "bubble":
            fits = _allowed(run, microbatches=2 * (run.microbatches or run.world_size))
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
            if replicated and _allowed(run, strategy="zero1", **plain):
                yield "an optimizer that the ranks share (zero1)"
            yield "a larger batch for each step of it"
        case _:  # other processes, and what no phase explains
            yield "the machine: measure again where nothing else runs"


def _allowed(run: Run, **changes: Any) -> bool:
    """Whether the run is still valid with these changes."""
    return not list(conflicts(run.model_copy(update=changes)))


def _less_traffic(run: Run, place: Environment | None) -> Iterator[str]:
    facts, linked = run.facts, place and place.emulated and place.emulated.link
    if place is None or place.device != "cpu" or len(set(place.hosts)) > 1 or linked:
        yield "a faster link"  # but none is faster than the memory of one host
    if run.compression == "none" and _allowed(run, compression="bf16"):
        yield "bf16 compression of the gradients"
    if run.strategy == "fsdp" and run.reshard_after_forward:
        yield "parameters that stay gathered for the backward pass (reshard_after_forward: false)"
    if facts.moves == "activations":
        yield "fewer ranks that share the model"
        return
    if run.global_batch_size is not None and "weights" not in facts.sharded:
        # Sharded weights are gathered for each micro-batch: accumulating saves nothing.
        twice = {"grad_accum": 2 * run.grad_accum, "global_batch_size": 2 * run.global_batch_size}
        if _allowed(run, **twice):
            yield "gradient accumulation over a larger batch"
    yield "a larger batch per rank"


def _ready_data(run: Run, place: Environment | None) -> Iterator[str]:
    if run.loader == "fast":
        yield "data that is cheaper to read, on a faster disk or prepared before the run"
        return
    yield "the fast loader, which makes its tokens once"
    if place is not None:
        ranks_on_host = run.processes // len(set(place.hosts))
        if place.cpu_count >= ranks_on_host * (place.threads_per_rank + run.loader_workers + 1):
            yield "more loader processes"
