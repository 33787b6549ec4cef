"""Checks of lesson 00: the available hardware, and what a study demands of it."""

from __future__ import annotations

from lab.config.cluster import Cluster
from lab.config.study import Study
from lab.course.check import exercise, judge, number, require
from lab.course.language import tr
from lab.perfmodel.memory import FP32, state_memory


@exercise("00.ranks")
def ranks(answer: object, *, profile: Cluster) -> str:
    """Each rank needs a device of its own: a GPU, or a core. Read the line that describes the
    cluster.
    """
    capacity = profile.capacity
    judge(answer, capacity, within=0)
    return tr(
        "The world size may be up to {capacity} on this cluster; a larger one is refused before "
        "any job starts.",
        capacity=capacity,
    )


@exercise("00.jobs")
def jobs(answer: object, *, study: Study) -> str:
    """Every combination of the grid's values is a run, and every run is repeated."""
    runs = len(study.runs)
    judge(
        answer,
        len(study.tasks),
        mistakes={
            tr(
                "{runs} is the number of runs: each is repeated {repeats} times.",
                runs=runs,
                repeats=study.repeats,
            ): runs
        },
        within=0,
    )
    return tr(
        "{runs} runs, {repeats} times each: {jobs} jobs, one after the other.",
        runs=runs,
        repeats=study.repeats,
        jobs=len(study.tasks),
    )


@exercise("00.micro-batch")
def micro_batch(answer: object, *, global_batch_size: int, world_size: int, grad_accum: int) -> str:
    """global_batch_size = micro_batch_size * grad_accum * world_size: divide by what is known."""
    mistakes = {
        tr(
            "Every rank gets its share of the batch: divide by the world size too."
        ): global_batch_size / grad_accum,
        tr("A rank takes its share in grad_accum pieces: divide by them too."): global_batch_size
        / world_size,
    }
    value = judge(
        answer, global_batch_size / (world_size * grad_accum), mistakes=mistakes, within=0
    )
    return tr(
        "{value:.0f} samples are in memory at a time, on each of {world_size} ranks.",
        value=value,
        world_size=world_size,
    )


@exercise("00.largest-model")
def largest_model(answer: object, *, memory_bytes: float) -> str:
    """A parameter takes 4 bytes for itself, 4 for its gradient and 8 for AdamW's two moments."""
    most = memory_bytes / state_memory(1, state=FP32).total
    mistakes = {
        tr(
            "That many weights fit; training keeps a gradient and two moments of each."
        ): memory_bytes / 4,
        tr("Weights and gradients fit; where do AdamW's two moments go?"): memory_bytes / 8,
        tr("Give the plain count of parameters, not millions of them."): most / 1e6,
        tr("MB and GB: parameters are a plain count here, memory is in bytes."): most / 1e9,
    }
    require(number(answer) > 0, "Give a positive number of parameters.")
    judge(answer, most, mistakes=mistakes)
    return tr(
        "At most {millions:,.0f} million parameters, and no byte is left for activations: the "
        "real limit is lower.",
        millions=most / 1e6,
    )
