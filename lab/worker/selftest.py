"""What measuring costs: the lab's training loop against a plain one, step by step in turn, in one job."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import distributed as dist
from torch import multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lab.config.run import Run
from lab.worker import data, models
from lab.worker.context import RankContext
from lab.worker.data.dataset import Dataset
from lab.worker.data.loader import FastLoader
from lab.worker.distributed import all_gather_object, gather, process_group
from lab.worker.measure.clock import FloatArray, stat, synchronize
from lab.worker.optim import autocast, learning_rate, optimizer_for
from lab.worker.train import train

PLAIN, CONTROL, INSTRUMENTED = "plain", "control", "instrumented"


class PlainLoop:
    """The training that `train` does, without its clock, its hook and its notes: what a user would write."""

    def __init__(
        self, run: Run, place: RankContext, *, device: torch.device, dataset: Dataset
    ) -> None:
        torch.manual_seed(run.seed)
        self.run, self.device, self.step = run, device, 0
        self.model = models.build(run, dataset).to(device)
        torch.manual_seed(run.seed + 1 + place.rank)
        device_ids = [device.index] if device.type == "cuda" else None
        self.parallel = DistributedDataParallel(
            self.model, device_ids=device_ids, gradient_as_bucket_view=True
        )
        self.optimizer = optimizer_for(self.model, run)
        self.loader = FastLoader(dataset.train, run=run, rank=place.rank)
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
        self.losses.append(loss.detach())
        self.step += 1


@dataclass
class Turns:
    """Takes the place of the progress display: between two instrumented steps, each plain loop does one."""

    plain: dict[str, PlainLoop]
    device: torch.device
    orders: np.random.Generator
    wall: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)
    _begin: tuple[float, float] | None = None

    def __call__(self, phase: str, step: int, steps: int, loss: float | None = None, /) -> None:
        """End an instrumented step, let the plain loops do theirs, begin the next."""
        if self._begin is not None:
            self._note(INSTRUMENTED, self._begin)
        for name in self.orders.permutation(list(self.plain)).tolist():
            begin = self._meet()
            self.plain[name].advance()
            self._note(name, begin)
        self._begin = self._meet()

    def _meet(self) -> tuple[float, float]:
        dist.barrier()
        synchronize(self.device)
        return time.perf_counter(), time.process_time()

    def _note(self, name: str, begin: tuple[float, float]) -> None:
        synchronize(self.device)
        self.wall.setdefault(name, []).append(time.perf_counter() - begin[0])
        self.cpu.setdefault(name, []).append(time.process_time() - begin[1])


def measure_overhead(
    run: Run, place: RankContext, *, device: torch.device, dataset: Dataset
) -> dict[str, object] | None:
    """Ratios of step times to the plain loop's in the same round, the slowest rank's; on rank 0, None on the others.

    A round is one step of the instrumented loop and one of each of two equal plain ones, these in an order that is
    random and the same on all ranks, with a barrier before each. The first `warmup_steps` rounds do not count.
    `control` is the ratio of the two plain loops: what this machine makes of no difference at all. `cpu_ratio` compares
    the CPU time of all ranks, which the load of others hardly touches.
    """
    plain = {
        name: PlainLoop(run, place, device=device, dataset=dataset) for name in (PLAIN, CONTROL)
    }
    turns = Turns(plain, device, np.random.default_rng(run.seed))
    training = train(run, place, device=device, dataset=dataset, progress=turns)
    losses = np.stack(
        all_gather_object(np.array([float(loss) for loss in plain[PLAIN].losses]))
    ).mean(axis=0)
    ranks = gather((turns.wall, turns.cpu))
    if ranks is None:
        return None
    # An instrumented step ends when the next round begins: there is one less of them.
    rounds = len(turns.wall[INSTRUMENTED]) - run.warmup_steps
    wall = {
        name: np.max([walls[name][-rounds:] for walls, _ in ranks], axis=0) for name in turns.wall
    }
    cpu = {name: np.sum([cpus[name][-rounds:] for _, cpus in ranks], axis=0) for name in turns.cpu}
    return {
        "world_size": place.world_size,
        "rounds": rounds,
        "ratio": _ratio(wall, INSTRUMENTED),
        "control": _ratio(wall, CONTROL),
        "cpu_ratio": _ratio(cpu, INSTRUMENTED),
        "cpu_control": _ratio(cpu, CONTROL),
        "step_s": {name: float(np.median(values)) for name, values in wall.items()},
        "largest_loss_difference": float(np.abs(training.loss - losses).max()),
    }


def _ratio(seconds: dict[str, FloatArray], name: str) -> dict[str, object]:
    """To the plain loop. Round `k` of the plain loops comes after instrumented step `k`, and before the next."""
    return stat(seconds[name] / seconds[PLAIN]).model_dump(mode="json")


def _rank(rank: int, run_json: str, folder: str) -> None:
    run = Run.model_validate_json(run_json)
    cores = (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1))
    )
    core = cores[rank % len(cores)]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, (core,))
    torch.set_num_threads(1)
    place = RankContext(
        rank=rank,
        world_size=run.world_size,
        local_rank=rank,
        device="cpu",
        cores=(core,),
        threads=1,
        cluster="local",
        rendezvous=Path(folder) / "address",
    )
    device = torch.device("cpu")
    dataset = data.prepare(run, data_root=Path(folder), progress=lambda *_: None)
    with process_group(place, device=device):
        found = measure_overhead(run, place, device=device, dataset=dataset)
    if found is not None:
        (Path(folder) / "overhead.json").write_text(json.dumps(found))


def main() -> None:
    """Measure the run that is given as JSON in the first argument, on CPU ranks of one core each; prints JSON."""
    run = Run.model_validate_json(sys.argv[1])
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (run.model_dump_json(), folder), nprocs=run.world_size)  # type: ignore[attr-defined, no-untyped-call]
        sys.stdout.write((Path(folder) / "overhead.json").read_text())


if __name__ == "__main__":
    main()
