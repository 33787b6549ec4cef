"""The ladder of stages: training and inference of one model, serial and on ever more hardware.

The stages are those of a published ladder: serial, CPU processes, CUDA, several GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lab.analysis.inference import estimate, place
from lab.analysis.scaling import verdict
from lab.analysis.scaling_curves import Estimate, ranks
from lab.config.run import Run
from lab.config.study import Study
from lab.formatting import rounded
from lab.records.store import Record

TASKS = ("train", "inference")
# Seconds of training and of inference: a GPT-2 like model in C++ (block 256, 6 layers, 6 heads,
# width 384, batch 16, 50 epochs of 52,600 tokens); MPI ran 4 processes a node on a 4-core
# i7-7820HQ, on two nodes with CUDA.
PUBLISHED = {
    "serial": (15264.0, 113.0),
    "CPU processes": (1287.0, 112.0),
    "CUDA": (429.0, 8.0),
    "several GPUs": (226.0, 7.8),
}
STAGES = tuple(PUBLISHED)
CITATION = (
    'presentation "Distributed GPT2 Model Project"; '
    "MPI is shown as CPU processes, MPI with CUDA as several GPUs"
)


class Stage(NamedTuple):
    """A stage of a task: s of a step or a generation and the speedup over serial, or a reason."""

    name: str
    task: str
    published: float
    on: str = ""
    seconds: Estimate | None = None
    speedup: Estimate | None = None
    reason: str = ""
    repeats: int = 0  # the fewest that the speedup is based on


def stages(study: Study, records: Sequence[Record]) -> list[Stage]:
    """Every stage of both tasks, in the order of STAGES; empty if the study lacks one task."""
    if {run.task for run in study.runs} != set(TASKS):
        return []
    return [stage for task in TASKS for stage in _of_task(task, study, records)]


def stage_sentences(ladder: Sequence[Stage]) -> list[str]:
    """The speedup over serial of each stage that was run, and the stages that were not."""
    words = {"train": "Training", "inference": "Inference"}
    texts = [
        f"{words[stage.task]} on {stage.on} is {rounded(*stage.speedup)} times as fast as serial, "
        f"{verdict(*stage.speedup[1:], stage.repeats)}."
        for stage in ladder
        if stage.speedup is not None and stage.name != "serial"
    ]
    gone = [stage for stage in ladder if stage.seconds is None]
    names = [stage.name for stage in gone]
    missing = dict.fromkeys(
        stage.name
        if names.count(stage.name) == len(TASKS)
        else f"{words[stage.task].lower()} on {stage.name}"
        for stage in gone
    )
    if missing:
        texts.append(f"Not measured here: {', '.join(missing)}.")
    return texts


def _of_task(task: str, study: Study, records: Sequence[Record]) -> Iterator[Stage]:
    runs = [run for run in study.runs if run.task == task]
    times: dict[str, tuple[Estimate, str, int]] = {}
    for run in runs:
        done = [record for record in records if record.run_id == run.id and record.completed]
        seconds = _seconds(done)
        if seconds is not None and done[0].environment is not None:
            stage = _stage_of(done[0].environment.device, run.world_size)
            times[stage] = (seconds, place(done[0]), len(done))
    serial, _, base_repeats = times.get("serial", (None, "", 0))
    column = TASKS.index(task)
    for name in STAGES:
        published = PUBLISHED["serial"][column] / PUBLISHED[name][column]
        if name in times:
            seconds, on, repeats = times[name]
            speedup = serial and (Estimate(1.0) if seconds is serial else serial.over(seconds))
            repeats = min(repeats, base_repeats)
            yield Stage(name, task, published, on, seconds, speedup, repeats=repeats)
        else:
            yield Stage(name, task, published, reason=_why_not_run(name, runs))


def _stage_of(device: str | None, world_size: int) -> str:
    return STAGES[2 * (device == "cuda") + (world_size > 1)]


def _seconds(records: Sequence[Record]) -> Estimate | None:
    """The time of an optimizer step, or of one batch with the base."""
    stats = [record.timing.step for record in records if record.timing is not None]
    if not stats:
        results = [record.inference for record in records if record.inference]
        stats = [one.points[-1].base.total for one in results if one.points]
        stats += [one.classifications[-1].base for one in results if one.classifications]
    return estimate(stats) if stats else None


def _why_not_run(name: str, runs: Sequence[Run]) -> str:
    wanted = [run for run in runs if _stage_of(run.needs_device, run.world_size) == name]
    if not wanted:
        return "not part of this study in this form"
    if wanted[0].needs_device == "cuda":
        gpus = ranks("cuda", wanted[0].world_size)
        return f"not run: it needs {gpus}, and no record comes from such a cluster"
    return "not run yet"
