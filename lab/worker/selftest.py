"""The lab's tests of itself on the ranks: what measuring costs, and what each strategy learns.

`python -m lab.worker.selftest overhead RUN` takes a run, `losses RUNS DEVICE` runs by name, as
JSON; both print JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed as dist
from torch import multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lab.config.run import Run
from lab.errors import InputError
from lab.worker import calibrate, data, models
from lab.worker.context import Measurement, RankContext
from lab.worker.data.loader import FastLoader
from lab.worker.distributed import RankJob, all_gather_object, gather, leave_group, process_group
from lab.worker.main import measure
from lab.worker.measure.clock import FloatArray, stat, synchronize
from lab.worker.optim import autocast, learning_rate, optimizer_for
from lab.worker.train import train

PLAIN, CONTROL, INSTRUMENTED = "plain", "control", "instrumented"


class PlainLoop:
    """The training that `train` does without its measuring: what a user would write."""

    def __init__(self, job: RankJob) -> None:
        self.run, self.device, self.step = job.run, job.device, 0
        torch.manual_seed(self.run.seed)  # as `train` does: the losses of both must agree
        self.model = models.build(self.run, job.dataset).to(self.device)
        torch.manual_seed(self.run.seed + 1 + job.context.rank)  # dropout differs between ranks
        device_ids = [self.device.index] if self.device.type == "cuda" else None
        self.parallel = DistributedDataParallel(
            self.model, device_ids=device_ids, gradient_as_bucket_view=True
        )
        self.optimizer = optimizer_for(self.model, self.run)
        self.loader = FastLoader(job.dataset.train, run=self.run, rank=job.context.rank)
        self.losses: list[torch.Tensor] = []

    def advance(self) -> None:
        """One step."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.run, self.step)
        batch = self.loader.micro_batch(self.step, 0).to(self.device)
        with autocast(self.run, self.device):
            loss = self.parallel(*batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.run.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss.detach())  # read at the end: a GPU would have to be waited for
        self.step += 1


class Turns:
    """In place of a progress display: between two instrumented steps, each plain loop does one."""

    def __init__(self, plain: dict[str, PlainLoop], device: torch.device, *, seed: int) -> None:
        self.plain, self.device = plain, device
        self.orders = np.random.default_rng(seed)  # the same on all ranks: they meet in each step
        self.wall: dict[str, list[float]] = {name: [] for name in (*plain, INSTRUMENTED)}
        self.cpu: dict[str, list[float]] = {name: [] for name in (*plain, INSTRUMENTED)}
        self._begin: tuple[float, float] | None = None

    def __call__(self, phase: str, step: int, steps: int, loss: float | None = None, /) -> None:
        """End an instrumented step, let the plain loops do theirs, begin the next."""
        if self._begin is not None:
            self._end(INSTRUMENTED, self._begin)
        for name in self.orders.permutation(list(self.plain)).tolist():
            begin = self._start()
            self.plain[name].advance()
            self._end(name, begin)
        self._begin = self._start()

    def _start(self) -> tuple[float, float]:
        # Ranks that began apart would wait for each other in the step's all-reduce.
        dist.barrier()
        synchronize(self.device)
        return time.perf_counter(), time.process_time()

    def _end(self, name: str, begin: tuple[float, float]) -> None:
        synchronize(self.device)
        self.wall[name].append(time.perf_counter() - begin[0])
        self.cpu[name].append(time.process_time() - begin[1])


def measure_overhead(job: RankJob) -> dict[str, object] | None:
    """Ratios of the slowest rank's step times to the plain loop's; rank 0 gets them.

    A round, in which they are compared, is one step of the instrumented loop and one of each of two
    equal plain ones, these in random order, with a barrier before each; the first `warmup_steps` do
    not count. `control` is the ratio of the two plain loops: what this machine makes of no
    difference at all. `cpu_ratio` compares the CPU time of all ranks, which the load of others
    hardly touches.
    """
    plain = {name: PlainLoop(job) for name in (PLAIN, CONTROL)}
    turns = Turns(plain, job.device, seed=job.run.seed)
    training = train(replace(job, progress=turns))
    losses = all_gather_object([float(loss) for loss in plain[PLAIN].losses])
    ranks = gather((turns.wall, turns.cpu))
    if ranks is None:
        return None
    # An instrumented step ends when the next round begins: there is one less of them.
    rounds = len(turns.wall[INSTRUMENTED]) - job.run.warmup_steps
    walls, cpus = zip(*ranks, strict=True)
    wall = {name: np.max([rank[name][-rounds:] for rank in walls], axis=0) for name in turns.wall}
    cpu = {name: np.sum([rank[name][-rounds:] for rank in cpus], axis=0) for name in turns.cpu}
    return {
        "world_size": job.context.world_size,
        "rounds": rounds,
        "ratio": _ratio(wall, INSTRUMENTED),
        "control": _ratio(wall, CONTROL),
        "cpu_ratio": _ratio(cpu, INSTRUMENTED),
        "cpu_control": _ratio(cpu, CONTROL),
        "step_s": {name: float(np.median(values)) for name, values in wall.items()},
        "largest_loss_difference": float(np.abs(training.loss - np.mean(losses, axis=0)).max()),
    }


def _ratio(seconds: Mapping[str, FloatArray], name: str) -> dict[str, object]:
    # Round `k` of the plain loops comes after instrumented step `k`, and before the next.
    return stat(seconds[name] / seconds[PLAIN]).model_dump(mode="json")


def _overhead_rank(rank: int, content: str, folder: str) -> None:
    run = Run.model_validate_json(content)
    core = rank
    # Ranks that share a core, or move between cores, would disturb each other by more than 1 %.
    if hasattr(os, "sched_setaffinity"):  # not on macOS
        cores = sorted(os.sched_getaffinity(0))
        core = cores[rank % len(cores)]
        os.sched_setaffinity(0, (core,))
    torch.set_num_threads(1)
    device = torch.device("cpu")
    context = _context(rank, run, "cpu", Path(folder), cores=(core,))
    dataset = data.prepare(run, data_root=Path(folder), progress=_silent)
    with process_group(context, device=device):
        overhead = measure_overhead(RankJob(run, context, device, dataset, _silent))
    if overhead is not None:
        (Path(folder) / "answer.json").write_text(json.dumps(overhead))


def _losses_rank(rank: int, content: str, folder: str, device: str) -> None:
    calibrate.PEAK_BUDGET_S = 0.02  # nobody reads the rates
    runs = {name: Run.model_validate(fields) for name, fields in json.loads(content).items()}
    results = measure_all(rank, runs, device=device, root=Path(folder))
    answers: dict[str, dict[str, Any]] = {}
    for name, result in results.items():
        answers[name] = {"reason": str(result)}
        if isinstance(result, Measurement) and result.quality is not None:
            answers[name] = result.quality.model_dump(include={"loss", "validation_loss"})
    if rank == 0:
        (Path(folder) / "answer.json").write_text(json.dumps(answers))


def measure_all(
    rank: int, runs: dict[str, Run], *, device: str, root: Path
) -> dict[str, Measurement | InputError | None]:
    """Take part as one rank in each of the runs that has so many; an InputError is a result too."""
    results: dict[str, Measurement | InputError | None] = {}
    for name, run in runs.items():
        if rank >= run.processes:
            continue
        folder = root / name
        folder.mkdir(exist_ok=True)
        context = _context(rank, run, device, folder, cores=(rank,))
        try:
            results[name] = measure(run, context, data_root=root, folder=folder, progress=_silent)
        except InputError as error:
            results[name] = error
            if dist.is_initialized():  # the next run forms a group of its own
                leave_group()
    return results


def _silent(phase: str, step: int, steps: int, loss: float | None = None, /) -> None:
    pass


def _context(rank: int, run: Run, device: str, folder: Path, *, cores: tuple[int]) -> RankContext:
    return RankContext(
        rank=rank,
        world_size=run.processes,
        local_rank=rank,
        device=device,
        cores=cores,
        threads=1,
        cluster="local",
        rendezvous=folder / "address",
        timeout_s=120.0,  # all ranks start together
    )


def main() -> None:
    """Run one of the two on ranks of this machine."""
    benchmark, content, *device = sys.argv[1:]
    fields = json.loads(content)
    runs = [fields] if benchmark == "overhead" else fields.values()
    ranks = max(Run.model_validate(run).processes for run in runs)
    rank = {"overhead": _overhead_rank, "losses": _losses_rank}[benchmark]
    os.environ["OMP_NUM_THREADS"] = "1"  # read when a rank imports torch
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, (content, folder, *device), nprocs=ranks)  # type: ignore[attr-defined, no-untyped-call]
        sys.stdout.write((Path(folder) / "answer.json").read_text())


if __name__ == "__main__":
    main()
