"""What a job runs on each rank: prepare, train, evaluate, and bring the ranks' measurements together."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import nn

from lab.analysis.costs import gpt_flops_per_token
from lab.errors import LabError
from lab.place import Place, Progress
from lab.records import Communication, Environment, Memory, Quality, Timing
from lab.study import Run
from lab.worker import data, strategies
from lab.worker.data.tokens import Tokens
from lab.worker.environment import environment
from lab.worker.foreign import CpuUse, foreign_cpu
from lab.worker.group import gather, process_group, share
from lab.worker.peak import peak_flops
from lab.worker.steps import write_steps
from lab.worker.timing import FloatArray, phases_close, timing
from lab.worker.train import Training, evaluate, train


@dataclass(frozen=True)
class Measured:
    """All of a record that is measured inside the job."""

    timing: Timing
    communication: Communication | None
    memory: Memory
    quality: Quality
    environment: Environment
    checks: dict[str, bool]


@dataclass(frozen=True)
class RankReport:
    """What a rank tells rank 0 when it is done."""

    host: str
    cores: tuple[int, ...]
    steps: dict[str, FloatArray]  # the columns of steps.parquet
    use: CpuUse
    peak_flops: float
    peak_memory: int
    fingerprint: tuple[float, float]


def measure(run: Run, place: Place, *, data_root: Path, folder: Path, progress: Progress) -> Measured | None:
    """Train one repeat of a run on this rank; rank 0 writes `folder`/steps.parquet and gets the measurement, others None.

    All ranks must call it. Raises InputError for data or a model that cannot be used, LabError for a device that is not
    there, ranks that see different data, or a loss that is not finite; torch.OutOfMemoryError passes through.
    """
    torch.set_num_threads(place.threads)
    device = _device(place)
    progress("data", 0, 1)
    tokens = data.prepare(run, data_root=data_root, progress=progress)
    progress("data", 1, 1)
    grouped = place.world_size > 1 or strategies.get(run.strategy).needs_group
    with process_group(place, device=device) if grouped else nullcontext():
        _require_same_data(tokens)
        peak, peak_source = peak_flops(device, precision=run.precision)
        training = train(run, place, device=device, tokens=tokens, progress=progress)
        validation_loss = evaluate(training.model, run, place, device=device, tokens=tokens, progress=progress)
        reports = gather(_report(training, place, peak=peak))
    if reports is None:
        return None
    write_steps([report.steps for report in reports], folder / "steps.parquet", warmup_steps=run.warmup_steps)
    parameters = list(training.model.parameters())
    timed = _timing(run, tokens, training, reports, peak_source=peak_source)
    return Measured(
        timing=timed,
        communication=None,
        memory=Memory(
            kind="cuda_allocated" if device.type == "cuda" else "resident",
            peak=[report.peak_memory for report in reports],
            parameters=sum(parameter.nbytes for parameter in parameters),
        ),
        quality=Quality(loss=training.loss.tolist(), validation_loss=validation_loss),
        environment=environment(
            place,
            device=device,
            tokens=tokens,
            parameters=sum(parameter.numel() for parameter in parameters),
            hosts=[report.host for report in reports],
            cores=[report.cores for report in reports],
            foreign_cpu=foreign_cpu((report.host, report.use) for report in reports),
        ),
        checks={"phases_close": phases_close(timed), "same_parameters": _same_parameters(reports)},
    )


def _device(place: Place) -> torch.device:
    if place.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise LabError(
            f"cluster {place.cluster!r} promises CUDA, torch {torch.__version__} on {socket.gethostname()} finds none: see `lab doctor`"
        )
    # Where the scheduler shows each rank its own GPU only, that one is number 0.
    device = torch.device("cuda", place.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _require_same_data(tokens: Tokens) -> None:
    hosts: dict[str, str] = {}
    for host, digest in share((socket.gethostname(), tokens.sha256)):
        hosts.setdefault(digest, host)
    if len(hosts) > 1:
        raise LabError(
            f"the ranks see different data, for one those of {' and '.join(sorted(hosts.values()))}: "
            "give every node the same files and the same Python, or one LAB_CACHE that all of them share"
        )


def _report(training: Training, place: Place, *, peak: float) -> RankReport:
    return RankReport(
        host=socket.gethostname(),
        cores=place.cores,
        steps={
            **training.laps,
            "cpu_time": training.cpu_time,
            "loss": training.rank_loss,
            "learning_rate": training.learning_rate,
            "grad_norm": training.grad_norm,
        },
        use=training.use,
        peak_flops=peak,
        peak_memory=training.peak_memory,
        fingerprint=_fingerprint(training.model),
    )


def _timing(run: Run, tokens: Tokens, training: Training, reports: Sequence[RankReport], *, peak_source: str) -> Timing:
    return timing(
        {name: np.stack([report.steps[name] for report in reports]) for name in training.laps},
        warmup_steps=run.warmup_steps,
        setup_time=training.first_step_at - psutil.Process().create_time(),
        samples_per_step=run.global_batch_size,
        tokens_per_sample=run.architecture.block_size,
        flops_per_token=gpt_flops_per_token(run.architecture, tokens.vocab_size),
        peak_flops=float(np.mean([report.peak_flops for report in reports])),
        peak_source=peak_source,
    )


@torch.no_grad()
def _fingerprint(model: nn.Module) -> tuple[float, float]:
    """Sum and sum of squares of all parameters, in fp64."""
    parameters = [parameter.double() for parameter in model.parameters()]
    return float(sum(p.sum() for p in parameters)), float(sum(p.square().sum() for p in parameters))


def _same_parameters(reports: Sequence[RankReport]) -> bool:
    """The check of the same name: ranks that train one model end with one model, up to the rounding of unequal CPUs (1e-6)."""
    prints = np.array([report.fingerprint for report in reports])
    scale = max(prints[0, 1], 1.0)  # a sum may be near zero by chance
    return bool(np.all(np.abs(prints - prints[0]) <= 1e-6 * scale))
