"""The ladder of stages of one model: serial, CPU processes, CUDA, several GPUs, each as a ratio to serial."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lab.analysis.inferences import Estimate, over
from lab.analysis.lines import ranks
from lab.records import Record
from lab.study import Run, Study

STAGES = ("serial", "CPU processes", "CUDA", "several GPUs")
# Seconds of training and of inference by stage: a GPT-2 like model in C++ (block 256, 6 layers, 6 heads, width 384,
# batch 16, 50 epochs of 52,600 tokens); its MPI stages ran 4 processes a node on a 4-core i7-7820HQ, two nodes with CUDA.
PUBLISHED = {
    "serial": (15264.0, 113.0),
    "CPU processes": (1287.0, 112.0),
    "CUDA": (429.0, 8.0),
    "several GPUs": (226.0, 7.8),
}
CITATION = 'presentation "Distributed GPT2 Model Project"; MPI is shown as CPU processes, MPI with CUDA as several GPUs'
TASKS = ("train", "inference")


class Stage(NamedTuple):
    """One stage and task: times in s of one step or one generation, speedup over serial, or why it was not run."""

    name: str
    task: str
    on: str
    seconds: Estimate | None
    speedup: Estimate | None
    published: float
    reason: str


def stage_of(device: str | None, world_size: int) -> str:
    """The stage of a device and a number of ranks."""
    return STAGES[2 * (device == "cuda") + (world_size > 1)]


def stages(study: Study, records: Sequence[Record]) -> list[Stage]:
    """Every stage of both tasks, in the order of STAGES; empty where the study has not both tasks."""
    if {run.task for run in study.runs} != set(TASKS):
        return []
    found: list[Stage] = []
    for column, task in enumerate(TASKS):
        times: dict[str, tuple[Estimate, str]] = {}
        for run in (run for run in study.runs if run.task == task):
            done = [record for record in records if record.run_id == run.id and record.completed]
            seconds = _seconds(done)
            if seconds is not None and done[0].environment is not None:
                device = done[0].environment.device
                times[stage_of(device, run.world_size)] = seconds, ranks(device, run.world_size)
        serial = times.get("serial")
        for name in STAGES:
            published = PUBLISHED["serial"][column] / PUBLISHED[name][column]
            if name in times:
                seconds, on = times[name]
                ratio = None if serial is None else _ratio(serial[0], seconds, same=name == "serial")
                found.append(Stage(name, task, on, seconds, ratio, published, ""))
            else:
                found.append(Stage(name, task, "", None, None, published, _reason(name, task, study.runs)))
    return found


def _seconds(records: Sequence[Record]) -> Estimate | None:
    """Of an optimizer step, or of one batch with the fp32 base."""
    steps = [record.timing.step for record in records if record.timing is not None]
    inferred = [record.inference for record in records if record.inference]
    batches = [found.points[-1].base.total for found in inferred if found.points]
    batches += [found.classifications[-1].base for found in inferred if found.classifications]
    return over(steps or batches) if steps or batches else None


def _ratio(serial: Estimate, stage: Estimate, *, same: bool) -> Estimate:
    if same:
        return Estimate(1.0, None, None)
    bounds = [None, None]
    if None not in (serial.low, serial.high, stage.low, stage.high):
        bounds = [serial.low / stage.high, serial.high / stage.low]  # type: ignore[operator, list-item]
    return Estimate(float(np.divide(serial.value, stage.value)), bounds[0], bounds[1])


def _reason(name: str, task: str, runs: Sequence[Run]) -> str:
    asked = [run for run in runs if run.task == task and (run.needs_device == "cuda") == (name in STAGES[2:])]
    asked = [run for run in asked if (run.world_size > 1) == (name in STAGES[1::2])]
    if not asked:
        return "not part of this study in this form"
    if name in STAGES[2:]:
        return f"not run: it needs {ranks('cuda', asked[0].world_size)}, and there is no record of a cluster with them"
    return "not run yet"
