"""Reference steps on the ranks of a calibration: each strategy in turn, and on one rank anew.

`python -m lab.worker.reference CONTEXT STRATEGIES` trains on one rank in a process of its own, by
each of the strategies (NAME,NAME), and prints JSON.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from pydantic import TypeAdapter

from lab.config.strategies import STRATEGIES
from lab.errors import InputError, LabError
from lab.perfmodel.intervals import P10_TO_P90
from lab.perfmodel.reference import ReferenceStep, pooled, reference_runs
from lab.records.schema import PHASES
from lab.worker import data
from lab.worker.context import Progress, RankContext
from lab.worker.distributed import RankJob, all_gather_object, device_of, process_group
from lab.worker.sync_cost import readiness
from lab.worker.train import train

STARTS, QUICK_STARTS = 5, 3
ROUNDS, QUICK_ROUNDS = 2, 1
ALL, PLAIN = tuple(STRATEGIES), ("single", "ddp")
_STEPS = TypeAdapter(tuple[ReferenceStep, ...])


def in_new_processes(
    context: RankContext, *, quick: bool, progress: Progress
) -> tuple[ReferenceStep, ...]:
    """The reference steps on one rank, each start of them in a process that begins anew.

    Two processes that run the same step differ by more than the steps of each: by where their
    memory lies, and by what the machine does meanwhile. Raises LabError where a process fails.
    """
    starts = []
    count = QUICK_STARTS if quick else STARTS
    for start in range(count):
        progress("steps in new processes", start, count)
        with tempfile.TemporaryDirectory() as folder:
            here = dataclasses.asdict(context) | {"rendezvous": str(Path(folder) / "address")}
            # Of the others on one rank little is predicted: one process tells enough of them.
            names = ALL if start == 0 else PLAIN
            command = [
                sys.executable,
                "-m",
                "lab.worker.reference",
                json.dumps(here),
                ",".join(names),
            ]
            process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            raise LabError(f"the reference steps failed:\n{process.stderr.strip()[-2000:]}")
        starts.append(_STEPS.validate_json(process.stdout.splitlines()[-1]))
    return _together(starts)


def in_rounds(
    context: RankContext, device: torch.device, *, quick: bool, progress: Progress
) -> tuple[ReferenceStep, ...]:
    """The reference steps of all ranks, in rounds over the strategies; all ranks must call it.

    Those of one rank run on all ranks at once, each by itself.
    """
    rounds = []
    count = QUICK_ROUNDS if quick else ROUNDS
    for turn in range(count):
        progress("steps", turn, count)
        rounds.append(_turn(context, device))
    return _together(rounds)


def _together(turns: list[tuple[ReferenceStep, ...]]) -> tuple[ReferenceStep, ...]:
    runs = dict.fromkeys(step.run for turn in turns for step in turn)
    steps = (pooled(step for turn in turns for step in turn if step.run == run) for run in runs)
    return tuple(step for step in steps if step)


def _turn(
    context: RankContext, device: torch.device, strategies: Sequence[str] = ALL
) -> tuple[ReferenceStep, ...]:
    steps = []
    for run in reference_runs(context.world_size):
        if run.strategy not in strategies:
            continue
        alone = replace(context, rank=0, world_size=1) if run.world_size == 1 else context
        dataset = data.prepare(run, data_root=Path(), progress=_silent)
        # Where torch is too old for a strategy, it is so on each rank.
        with suppress(InputError):
            steps.append(_step(RankJob(run, alone, device, dataset, _silent)))
    return tuple(steps)


def _step(job: RankJob) -> ReferenceStep:
    run, training = job.run, train(job)
    measured = slice(run.warmup_steps, None)
    # All ranks must wait for the slowest, step by step; alone each has its own median.
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
    """Train each reference run on one rank."""
    fields = json.loads(sys.argv[1])
    context = RankContext(**fields | {"rendezvous": Path(fields["rendezvous"])})
    torch.set_num_threads(context.threads)
    device = device_of(context)
    with process_group(context, device=device):
        steps = _turn(context, device, sys.argv[2].split(","))
    sys.stdout.write("\n" + _STEPS.dump_json(steps).decode())


if __name__ == "__main__":
    main()
