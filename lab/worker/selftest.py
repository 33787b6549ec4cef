"""The lab's self-tests on the ranks: what measuring costs, and what each strategy learns.

`python -m lab.worker.selftest overhead RUN DEVICE` and `training RUN DEVICE [MODEL.PY]` take a run,
`losses RUNS DEVICE` runs by name, and `script RUN WAY` a run of a script, as JSON; all print JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed as dist
from torch import multiprocessing as mp
from torch.optim.optimizer import register_optimizer_step_post_hook

from lab.config.run import Run
from lab.errors import InputError, LabError
from lab.worker import calibrate, data
from lab.worker.context import Measurement, RankContext
from lab.worker.distributed import (
    RankJob,
    all_gather_object,
    device_of,
    gather,
    leave_group,
    process_group,
)
from lab.worker.loops import PlainDdpLoop, PlainLoop, peers
from lab.worker.main import measure
from lab.worker.measure.clock import HostClock, synchronize
from lab.worker.script.hooks import StepRecorder, installed
from lab.worker.script.main import run_script
from lab.worker.train import train

PLAIN, CONTROL, INSTRUMENTED = "plain", "control", "instrumented"


class Turns:
    """In place of a progress display: between two instrumented steps, each plain loop takes one."""

    def __init__(self, plain: dict[str, PlainLoop], device: torch.device, *, seed: int) -> None:
        self.plain, self.device = plain, device
        self.orders = np.random.default_rng(seed)  # the same on all ranks: they meet in each step
        self.wall: dict[str, list[float]] = {name: [] for name in (*plain, INSTRUMENTED)}
        self.cpu: dict[str, list[float]] = {name: [] for name in (*plain, INSTRUMENTED)}
        self._begin: tuple[float, float] | None = None

    def __call__(self, phase: str, step: int, steps: int, loss: float | None = None, /) -> None:
        """End an instrumented step, let the plain loops take theirs, and begin the next."""
        if self._begin is not None:
            self._end(INSTRUMENTED, self._begin)
        for name in self.orders.permutation(list(self.plain)).tolist():
            begin = self._start()
            self.plain[name].advance()
            self._end(name, begin)
        self._begin = self._start()

    def _start(self) -> tuple[float, float]:
        # Ranks that started apart would wait for each other in the step's all-reduce.
        dist.barrier()
        synchronize(self.device)
        return time.perf_counter(), time.process_time()

    def _end(self, name: str, begin: tuple[float, float]) -> None:
        synchronize(self.device)
        self.wall[name].append(time.perf_counter() - begin[0])
        self.cpu[name].append(time.process_time() - begin[1])


def measure_overhead(job: RankJob) -> dict[str, Any] | None:
    """Compare the lab's loop with two equal plain ones; see `compare`."""
    return compare(job, {name: PlainDdpLoop(job) for name in (PLAIN, CONTROL)})


def compare(job: RankJob, loops: dict[str, PlainLoop]) -> dict[str, Any] | None:
    """Seconds of the lab's loop and of the others by round; rank 0 gets them, the others None.

    A round is one step of the lab's loop, INSTRUMENTED, and one of each other loop in random order,
    with a barrier before each; the first `warmup_steps` do not count. `wall` is the slowest rank's.
    `cpu` is the CPU time of all ranks, which other load on the machine hardly affects.
    """
    turns = Turns(loops, job.device, seed=job.run.seed)
    training = train(replace(job, progress=turns))
    losses = all_gather_object([float(loss) for loss in loops[PLAIN].losses])
    ranks = gather((turns.wall, turns.cpu))
    if ranks is None:
        return None
    # An instrumented step ends when the next round begins, so there is one fewer. Round `k` of
    # the other loops comes after instrumented step `k`, and before the next.
    rounds = len(turns.wall[INSTRUMENTED]) - job.run.warmup_steps
    walls, cpus = zip(*ranks, strict=True)
    return {
        "rounds": rounds,
        "wall": {
            name: np.max([rank[name][-rounds:] for rank in walls], axis=0).tolist()
            for name in turns.wall
        },
        "cpu": {
            name: np.sum([rank[name][-rounds:] for rank in cpus], axis=0).tolist()
            for name in turns.cpu
        },
        "largest_loss_difference": float(np.abs(training.loss - np.mean(losses, axis=0)).max()),
    }


def _compare_rank(rank: int, content: str, folder: str, device: str, *nanogpt: str) -> None:
    """Compare loops on all ranks: overhead, or training if `nanogpt` (a path or empty) is given."""
    os.dup2(2, 1)  # only the answer goes to the standard output, whatever a loop prints
    run = Run.model_validate_json(content)
    core = rank
    # Ranks that share a core or move between cores would disturb each other by more than 1 %.
    if device == "cpu" and hasattr(os, "sched_setaffinity"):  # not on macOS
        cores = sorted(os.sched_getaffinity(0))
        core = cores[rank % len(cores)]
        os.sched_setaffinity(0, (core,))
    torch.set_num_threads(1)
    context = _context(rank, run, device, Path(folder), cores=(core,))
    here = device_of(context)
    dataset = data.prepare(run, data_root=Path(folder), progress=_silent)
    with process_group(context, device=here):
        job = RankJob(run, context, here, dataset, _silent)
        if nanogpt:
            loops = {name: PlainLoop(job) for name in (PLAIN, CONTROL)}
            path = Path(nanogpt[0]) if nanogpt[0] else None
            answer = compare(job, loops | peers(job, path))
        else:
            answer = measure_overhead(job)
    if answer is not None:
        (Path(folder) / "answer.json").write_text(json.dumps(answer))


@contextmanager
def _counted(on_step: Callable[[], None]) -> Iterator[None]:
    """Only call `on_step` at the end of each step of the first optimizer."""
    first: list[Any] = []

    def after(optimizer: Any, *_: Any) -> None:
        if not first:
            first.append(optimizer)
        if optimizer is first[0]:
            on_step()

    handle = register_optimizer_step_post_hook(after)
    try:
        yield
    finally:
        handle.remove()


def _script_rank(rank: int, content: str, folder: str, way: str) -> None:
    """Run a script INSTRUMENTED or PLAIN; each rank reports wall and CPU time of every step."""
    run = Run.model_validate_json(content)
    assert run.script is not None
    os.dup2(2, 1)  # the answer alone goes to the standard output
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [rank]
    core = cores[rank % len(cores)]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, (core,))
    torch.set_num_threads(1)
    context = _context(rank, run, "cpu", Path(folder), cores=(core,))
    marks: list[tuple[float, float]] = []

    def on_step(step: int = 0) -> None:
        marks.append((time.perf_counter(), time.process_time()))
        if len(marks) == run.steps:
            recorder.finish() if way == INSTRUMENTED else sys.exit()

    recorder = StepRecorder(HostClock(), world_size=run.world_size, on_step=on_step)
    hooks = installed(recorder) if way == INSTRUMENTED else _counted(on_step)
    place = Path(folder)
    run_script(run.script, run, context, hooks, data_root=place, out=place / "out")
    if len(marks) <= run.warmup_steps + 1:
        raise LabError(f"{run.script.name} took {len(marks)} steps, which leaves none to compare")
    steps = np.diff(np.array(marks)[run.warmup_steps :], axis=0).T.tolist()
    # The script has left its group, so the ranks' results are collected in files.
    (place / f"{rank}.answer").write_text(json.dumps(steps))
    answers = [place / f"{other}.answer" for other in range(run.world_size)]
    if all(answer.exists() for answer in answers):
        texts = [answer.read_text() for answer in answers]
        (place / "answer.json").write_text(f"[{', '.join(texts)}]")


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
    """Take part as one rank in each run that has this rank; an InputError is a result too."""
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
            if dist.is_initialized():  # the next run forms its own group
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
    """Run one of the self-tests on ranks of this machine."""
    benchmark, content, *arguments = sys.argv[1:]
    fields = json.loads(content)
    runs = fields.values() if benchmark == "losses" else [fields]
    ranks = max(Run.model_validate(run).processes for run in runs)
    ways = {"losses": _losses_rank, "script": _script_rank}
    rank = ways.get(benchmark, _compare_rank)
    os.environ["OMP_NUM_THREADS"] = "1"  # read when a rank imports torch
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, (content, folder, *arguments), nprocs=ranks)  # type: ignore[attr-defined, no-untyped-call]
        sys.stdout.write((Path(folder) / "answer.json").read_text())


if __name__ == "__main__":
    main()
