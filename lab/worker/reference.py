"""Reference steps on the ranks of a calibration: each strategy in turn, in separate processes.

`python -m lab.worker.reference CONTEXT STRATEGIES...` trains as one rank, once in a new process for
each list of strategies (NAME,NAME), and prints a line of JSON for each.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import numpy as np
import psutil
import torch
from pydantic import TypeAdapter

from lab.config.strategies import STRATEGIES
from lab.errors import InputError, LabError
from lab.machine import exit_with
from lab.perfmodel.calibration import PLAIN, ReferenceStep, pooled, reference_runs
from lab.perfmodel.simulate import P10_TO_P90
from lab.records.schema import PHASES
from lab.worker import data
from lab.worker.context import Progress, RankContext, silent
from lab.worker.distributed import RankJob, all_gather_object, device_of, process_group
from lab.worker.sync_cost import readiness
from lab.worker.train import train

STARTS, QUICK_STARTS = 4, 3
STARTS_TOGETHER, QUICK_STARTS_TOGETHER = 3, 1  # with several ranks
_STEPS = TypeAdapter(tuple[ReferenceStep, ...])


def reference_steps(
    context: RankContext,
    strategies: Sequence[str] | None,
    *,
    quick: bool,
    progress: Progress,
) -> tuple[ReferenceStep, ...]:
    """The reference steps of these strategies, None for all, each start in new processes.

    All ranks must call this.

    Two processes that run the same step differ by more than the steps within each, because of their
    memory layout and of what else the machine does. A process that has worked before also keeps
    memory that a run, which is a new process, has to request from the system again and again. If
    there are several ranks, the one-rank steps run on all of them at once, each by itself. Raises
    LabError if a process fails.
    """
    names = tuple(STRATEGIES if strategies is None else strategies)
    alone = context.world_size == 1
    full, fewer = (STARTS, QUICK_STARTS) if alone else (STARTS_TOGETHER, QUICK_STARTS_TOGETHER)
    count = fewer if quick else full
    # Little is predicted from the others on one rank, so one process is enough for them.
    starts = [PLAIN if alone and start else names for start in range(count)]
    fields = dataclasses.asdict(context) | {"rendezvous": str(context.rendezvous)}
    command = [sys.executable, "-P", "-m", "lab.worker.reference", json.dumps(fields)]
    turns = []
    progress("steps in new processes", 0, count)
    with (
        TemporaryFile("w+") as errors,
        _running([*command, *map(",".join, starts)], errors) as process,
    ):
        for line in process.stdout or ():
            turns.append(_STEPS.validate_json(line))
            progress("steps in new processes", len(turns), count)
        if process.wait():
            errors.seek(0)
            raise LabError(f"the reference steps failed:\n{errors.read().strip()[-2000:]}")
    return _together(turns)


@contextmanager
def _running(command: Sequence[str], errors: IO[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that is killed, with its children, if reading what it prints is interrupted."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
        try:
            yield process
        except BaseException:
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
            process.kill()
            raise


def _together(turns: list[tuple[ReferenceStep, ...]]) -> tuple[ReferenceStep, ...]:
    runs = dict.fromkeys(step.run for turn in turns for step in turn)
    steps = (pooled(step for turn in turns for step in turn if step.run == run) for run in runs)
    return tuple(step for step in steps if step)


def _turn(
    context: RankContext, device: torch.device, strategies: Sequence[str], *, first: bool
) -> tuple[ReferenceStep, ...]:
    steps = []
    for run in reference_runs(context.world_size):
        if run.strategy not in strategies:
            continue
        alone = replace(context, rank=0, world_size=1) if run.world_size == 1 else context
        dataset = data.prepare(run, data_root=Path(), progress=silent)
        # If torch is too old for a strategy, it is too old on every rank.
        with suppress(InputError):
            steps.append(_step(RankJob(run, alone, device, dataset, silent), first=first))
    return tuple(steps)


def _step(job: RankJob, *, first: bool) -> ReferenceStep:
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
        # Gradients become ready at much the same time in each process: one start is enough.
        gradients=tuple(readiness(training, job) or ()) if first else (),
    )


def main() -> int:
    """Train each start's reference runs as one rank, in a process forked for it."""
    context, *starts = sys.argv[1:]
    fields = json.loads(context)
    import_module("torch._dynamo")  # else each fork would import it, with its first optimizer
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no result
    for number, names in enumerate(starts):
        rendezvous = Path(fields["rendezvous"]).with_suffix(f".steps{number}")
        rank = RankContext(**fields | {"rendezvous": rendezvous})
        # Nothing has been computed yet, so there are no threads that a fork would lack.
        pid = os.fork() or exit_with(_start, rank, names.split(","), number == 0, results)
        if code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
            return code
    return 0


def _start(context: RankContext, names: Sequence[str], first: bool, results: IO[str]) -> None:
    torch.set_num_threads(context.threads)
    device = device_of(context)
    with process_group(context, device=device):
        steps = _turn(context, device, names, first=first)
    results.write(_STEPS.dump_json(steps).decode() + "\n")
    results.flush()


if __name__ == "__main__":
    exit_with(main)
