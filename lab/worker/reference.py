"""Reference steps on the ranks of a calibration: each strategy in turn, in separate processes.

`python -m lab.worker.reference CONTEXT STRATEGIES` trains as one rank with each of the strategies
(NAME,NAME), and prints JSON.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from pydantic import TypeAdapter

from lab.config.strategies import STRATEGIES
from lab.errors import InputError, LabError
from lab.machine import exit_with
from lab.perfmodel.intervals import P10_TO_P90
from lab.perfmodel.reference import ReferenceStep, pooled, reference_runs
from lab.records.schema import PHASES
from lab.worker import data
from lab.worker.context import Progress, RankContext
from lab.worker.distributed import RankJob, all_gather_object, device_of, process_group
from lab.worker.sync_cost import readiness
from lab.worker.train import train

STARTS, QUICK_STARTS = 5, 3
STARTS_TOGETHER, QUICK_STARTS_TOGETHER = 3, 1  # with several ranks
ALL, PLAIN = tuple(STRATEGIES), ("single", "ddp")
_STEPS = TypeAdapter(tuple[ReferenceStep, ...])


def reference_steps(
    context: RankContext, *, quick: bool, progress: Progress
) -> tuple[ReferenceStep, ...]:
    """The reference steps, each start in new processes; all ranks must call this.

    Two processes that run the same step differ by more than the steps within each, because of their
    memory layout and of what else the machine does. A process that has worked before also keeps
    memory that a run, which is a new process, has to request from the system again and again. If
    there are several ranks, the one-rank steps run on all of them at once, each by itself. Raises
    LabError if a process fails.
    """
    starts = []
    alone = context.world_size == 1
    full, fewer = (STARTS, QUICK_STARTS) if alone else (STARTS_TOGETHER, QUICK_STARTS_TOGETHER)
    count = fewer if quick else full
    for start in range(count):
        progress("steps in new processes", start, count)
        # Little is predicted from the others on one rank, so one process is enough for them.
        starts.append(_start(context, start, PLAIN if alone and start else ALL))
    return _together(starts)


def _start(context: RankContext, start: int, names: Sequence[str]) -> tuple[ReferenceStep, ...]:
    """Train in a new process, which forms a group with those started by the other ranks."""
    rendezvous = context.rendezvous.with_suffix(f".steps{start}")
    fields = dataclasses.asdict(context) | {"rendezvous": str(rendezvous)}
    command = [sys.executable, "-m", "lab.worker.reference", json.dumps(fields), ",".join(names)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise LabError(f"the reference steps failed:\n{process.stderr.strip()[-2000:]}")
    return _STEPS.validate_json(process.stdout.splitlines()[-1])


def _together(turns: list[tuple[ReferenceStep, ...]]) -> tuple[ReferenceStep, ...]:
    runs = dict.fromkeys(step.run for turn in turns for step in turn)
    steps = (pooled(step for turn in turns for step in turn if step.run == run) for run in runs)
    return tuple(step for step in steps if step)


def _turn(
    context: RankContext, device: torch.device, strategies: Sequence[str]
) -> tuple[ReferenceStep, ...]:
    steps = []
    for run in reference_runs(context.world_size):
        if run.strategy not in strategies:
            continue
        alone = replace(context, rank=0, world_size=1) if run.world_size == 1 else context
        dataset = data.prepare(run, data_root=Path(), progress=_silent)
        # If torch is too old for a strategy, it is too old on every rank.
        with suppress(InputError):
            steps.append(_step(RankJob(run, alone, device, dataset, _silent)))
    return tuple(steps)


def _step(job: RankJob) -> ReferenceStep:
    run, training = job.run, train(job)
    measured = slice(run.warmup_steps, None)
    # Together, all ranks wait for the slowest in each step; alone, each has its own median.
    ranks = np.stack(all_gather_object(training.steps["step_time"][measured]))
    low, middle, high = np.percentile(ranks[0], (10, 50, 90))
    together = ranks.max(axis=0) if run.world_size > 1 else np.median(ranks, axis=1).max()
    return ReferenceStep(
        run=run,
        seconds=(float(np.median(together)),),
        spread=float((high - low) / P10_TO_P90 / middle),
        phases={name: float(np.median(training.steps[name][measured])) for name in PHASES},
        gradients=tuple(readiness(training, job) or ()),
    )


def _silent(phase: str, step: int, steps: int, loss: float | None = None, /) -> None:
    pass


def main() -> None:
    """Train each reference run as one rank."""
    fields = json.loads(sys.argv[1])
    context = RankContext(**fields | {"rendezvous": Path(fields["rendezvous"])})
    torch.set_num_threads(context.threads)
    device = device_of(context)
    with process_group(context, device=device):
        steps = _turn(context, device, sys.argv[2].split(","))
    sys.stdout.write("\n" + _STEPS.dump_json(steps).decode())


if __name__ == "__main__":
    exit_with(main)
