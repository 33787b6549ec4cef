"""The lab's self-tests on the ranks: what measuring costs, and what each strategy learns.

`python -m lab.worker.selftest overhead RUN DEVICE` and `training RUN DEVICE [MODEL.PY]` take a run,
`losses RUNS DEVICE` runs by name, and `script RUN WAY` a run of a script, as JSON; all print JSON.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch import multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from lab import machine
from lab.config.models import GPT
from lab.config.run import Run
from lab.errors import InputError, LabError
from lab.worker import calibrate, data, distributed, models
from lab.worker.context import Measurement, RankContext, silent
from lab.worker.data.dataset import FastLoader
from lab.worker.distributed import RankJob
from lab.worker.main import measure
from lab.worker.measure.clock import Clock, synchronize
from lab.worker.optim import autocast, compiled, learning_rate, optimizer_for
from lab.worker.script.hooks import StepRecorder, installed
from lab.worker.script.main import run_script
from lab.worker.train import train

# Modules by package. Fabric's own first: `lightning` also loads torchmetrics and torchvision.
FABRICS = {"lightning_fabric": "lightning_fabric", "lightning": "lightning.fabric"}


class PlainLoop:
    """The training of `train` without the measuring, as a user would write it."""

    def __init__(self, job: RankJob) -> None:
        self.run, self.device, self.step = job.run, job.device, 0
        torch.manual_seed(self.run.seed)  # as in `train`, because the losses of both must agree
        self.model = self.build(job).to(self.device)
        torch.manual_seed(self.run.seed + 1 + job.context.rank)  # dropout differs between ranks
        wrapped = self.wrap(self.model)
        self.optimizer = self.optimizer_for(self.model)
        self.forward: Any = compiled(wrapped) if self.run.compile else wrapped
        self.loader = FastLoader(job.dataset.train, run=self.run, rank=job.context.rank)
        self.losses: list[Tensor] = []

    def build(self, job: RankJob) -> nn.Module:
        """The model."""
        return models.build(job.run, job.dataset)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model as the loop calls it."""
        return model

    def optimizer_for(self, model: nn.Module) -> torch.optim.Optimizer:
        """Its optimizer."""
        return optimizer_for(model, self.run)

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a batch."""
        with autocast(self.run, self.device):
            return self.forward(inputs, targets)

    def backward(self, loss: Tensor) -> None:
        """The gradients of the loss."""
        loss.backward()

    def advance(self) -> None:
        """One step."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.run, self.step)
        batch = self.loader.micro_batch(self.step, 0)
        if self.device.type == "cuda":
            batch = batch.pin_memory()
        loss = self.loss(*batch.to(self.device))
        self.backward(loss)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.run.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss.detach())  # read at the end, to avoid waiting for a GPU
        self.step += 1


class PlainDdpLoop(PlainLoop):
    """The same with torch's DDP."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model in DDP with default settings, except for where gradients are stored."""
        ids = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)


class NanoGptLoop(PlainLoop):
    """nanoGPT's model and optimizer, from its `model.py`, in the order of its `train.py`."""

    def __init__(self, job: RankJob, path: Path) -> None:
        self.module = _load(path)
        super().__init__(job)

    def build(self, job: RankJob) -> nn.Module:
        """A GPT of the run's sizes, with biases as the lab's has them."""
        config = job.run.architecture
        assert isinstance(config, GPT)
        settings = self.module.GPTConfig(
            block_size=config.block_size,
            vocab_size=job.dataset.vocab_size,
            n_layer=config.layers,
            n_head=config.heads,
            n_embd=config.width,
            dropout=config.dropout,
            bias=True,
        )
        return self.module.GPT(settings)

    def optimizer_for(self, model: Any) -> torch.optim.Optimizer:
        """The optimizer as the model configures it."""
        return model.configure_optimizers(
            self.run.weight_decay, self.run.learning_rate, (0.9, 0.95), self.device.type
        )

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The second value that the model returns; its own batches have no gaps."""
        with autocast(self.run, self.device):
            return self.forward(inputs.contiguous(), targets.contiguous())[1]


class FabricLoop(PlainLoop):
    """The plain loop's model and optimizer, set up by Lightning Fabric."""

    PRECISIONS = {"fp32": "32-true", "tf32": "32-true", "bf16": "bf16-mixed"}

    def __init__(self, job: RankJob) -> None:
        fabric = importlib.import_module(FABRICS[_fabric()]).Fabric
        accelerator = "cuda" if job.device.type == "cuda" else "cpu"
        precision = self.PRECISIONS[job.run.stated.precision]
        self.fabric = fabric(accelerator=accelerator, devices=1, precision=precision)
        super().__init__(job)
        wrapped, self.optimizer = self.fabric.setup(self.model, self.optimizer)
        self.forward = compiled(wrapped) if self.run.compile else wrapped

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss, computed in Fabric's own autocast."""
        return self.forward(inputs, targets)

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass through Fabric."""
        self.fabric.backward(loss)


def peers(job: RankJob, nanogpt: Path | None) -> dict[str, PlainLoop]:
    """Third-party loops by name: nanoGPT's if its `model.py` is given, Fabric's if installed."""
    loops: dict[str, PlainLoop] = {}
    if nanogpt is not None:
        loops["nanoGPT"] = NanoGptLoop(job, nanogpt)
    if _fabric():
        loops["Lightning Fabric"] = FabricLoop(job)
    return loops


def _fabric() -> str:
    """The installed package that provides Fabric; empty without one."""
    return next((package for package in FABRICS if importlib.util.find_spec(package)), "")


def _load(path: Path) -> ModuleType:
    """Load a file as a module."""
    loader = SourceFileLoader("nanogpt_model", str(path))
    module = ModuleType(loader.name)
    sys.modules[loader.name] = module  # its dataclass looks up its module there
    loader.exec_module(module)
    return module


PLAIN, CONTROL, INSTRUMENTED = "plain", "control", "instrumented"
ANSWER = "answer.json"  # of the ranks, in their folder


class Turns:
    """In place of a progress display: between two instrumented steps, each plain loop takes one."""

    def __init__(self, plain: dict[str, PlainLoop], device: torch.device, *, seed: int) -> None:
        self.plain, self.device = plain, device
        self.orders = np.random.default_rng(seed)  # the same on all ranks: they meet in each step
        # Seconds of wall clock and of CPU, by loop and step.
        self.times: dict[str, list[list[float]]] = {name: [] for name in (*plain, INSTRUMENTED)}
        self._begin: tuple[float, float] | None = None

    def __call__(self, phase: str, step: int, steps: int, loss: float | None = None, /) -> None:
        """End an instrumented step, let the plain loops take theirs, and begin the next."""
        if phase == "first step":  # it has not ended
            return
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
        self.times[name].append([time.perf_counter() - begin[0], time.process_time() - begin[1]])


def compare(job: RankJob, loops: dict[str, PlainLoop]) -> dict[str, Any] | None:
    """Seconds of the lab's loop and of the others by round; rank 0 gets them, the others None.

    A round is one step of the lab's loop, INSTRUMENTED, and one of each other loop in random order,
    with a barrier before each; the first `warmup_steps` do not count. `wall` is the slowest rank's.
    `cpu` is the CPU time of all ranks, which other load on the machine hardly affects.
    """
    turns = Turns(loops, job.device, seed=job.run.seed)
    training = train(replace(job, progress=turns))
    losses = distributed.all_gather_object([float(loss) for loss in loops[PLAIN].losses])
    ranks = distributed.gather(turns.times)
    if ranks is None:
        return None
    # An instrumented step ends when the next round begins, so there is one fewer. Round `k` of
    # the other loops comes after instrumented step `k`, and before the next.
    rounds = len(turns.times[INSTRUMENTED]) - job.run.warmup_steps
    times = {name: np.array([rank[name][-rounds:] for rank in ranks]) for name in turns.times}
    return {
        "rounds": rounds,
        "wall": {name: of_ranks[..., 0].max(axis=0).tolist() for name, of_ranks in times.items()},
        "cpu": {name: of_ranks[..., 1].sum(axis=0).tolist() for name, of_ranks in times.items()},
        "largest_loss_difference": float(np.abs(training.loss - np.mean(losses, axis=0)).max()),
    }


def _compare_rank(rank: int, content: str, folder: str, device: str, *nanogpt: str) -> None:
    """Compare loops on all ranks: overhead, or training if `nanogpt` (a path or empty) is given."""
    os.dup2(2, 1)  # only the answer goes to the standard output, whatever a loop prints
    run = Run.model_validate_json(content)
    context = _alone_on_core(rank, run, device, Path(folder))
    here = distributed.device_of(context)
    dataset = data.prepare(run, data_root=Path(folder), progress=silent)
    with distributed.process_group(context, device=here):
        job = RankJob(run, context, here, dataset, silent)
        if nanogpt:
            loops = {name: PlainLoop(job) for name in (PLAIN, CONTROL)}
            path = Path(nanogpt[0]) if nanogpt[0] else None
            answer = compare(job, loops | peers(job, path))
        else:
            answer = compare(job, {name: PlainDdpLoop(job) for name in (PLAIN, CONTROL)})
    if answer is not None:
        (Path(folder) / ANSWER).write_text(json.dumps(answer))


@contextmanager
def _counted(on_step: Callable[[], None]) -> Iterator[None]:
    """Only call `on_step` at the end of each step of the first optimizer."""
    first: list[Any] = []

    def after(optimizer: Any, *_: Any) -> None:
        if not first:
            first.append(optimizer)
        if optimizer is first[0]:
            on_step()

    with register_optimizer_step_post_hook(after):
        yield


def _script_rank(rank: int, content: str, folder: str, way: str) -> None:
    """Run a script INSTRUMENTED or PLAIN; each rank reports wall and CPU time of every step."""
    run = Run.model_validate_json(content)
    assert run.script is not None
    os.dup2(2, 1)  # the answer alone goes to the standard output
    place = Path(folder)
    context = _alone_on_core(rank, run, "cpu", place)
    marks: list[tuple[float, float]] = []

    def on_step(step: int = 0) -> None:
        marks.append((time.perf_counter(), time.process_time()))
        if len(marks) == run.steps:
            recorder.finish() if way == INSTRUMENTED else sys.exit()

    recorder = StepRecorder(Clock(), world_size=run.world_size, on_step=on_step)
    hooks = installed(recorder) if way == INSTRUMENTED else _counted(on_step)
    run_script(run.script, run, context, hooks, data_root=place, out=place / "out")
    if len(marks) <= run.warmup_steps + 1:
        raise LabError(f"{run.script.name} took {len(marks)} steps, which leaves none to compare")
    steps = np.diff(np.array(marks)[run.warmup_steps :], axis=0).T.tolist()
    # The script has left its group, so the ranks' results are collected in files.
    (place / f"{rank}.answer").write_text(json.dumps(steps))
    answers = [place / f"{other}.answer" for other in range(run.world_size)]
    if all(answer.exists() for answer in answers):
        texts = [answer.read_text() for answer in answers]
        (place / ANSWER).write_text(f"[{', '.join(texts)}]")


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
        (Path(folder) / ANSWER).write_text(json.dumps(answers))


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
            results[name] = measure(run, context, data_root=root, folder=folder, progress=silent)
        except InputError as error:
            results[name] = error
            if dist.is_initialized():  # the next run forms its own group
                distributed.leave_group()
    return results


def _alone_on_core(rank: int, run: Run, device: str, folder: Path) -> RankContext:
    """The context of a rank with one thread, which stays on a core of its own if it computes there.

    Ranks that share a core or move between cores would disturb each other by more than 1 %.
    """
    core = rank
    if device == "cpu" and hasattr(os, "sched_setaffinity"):  # not on macOS
        cpus = machine.allowed_cpus()
        core = cpus[rank % len(cpus)]
        os.sched_setaffinity(0, (core,))
    torch.set_num_threads(1)
    return _context(rank, run, device, folder, cores=(core,))


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
        sys.stdout.write((Path(folder) / ANSWER).read_text())


if __name__ == "__main__":
    main()
